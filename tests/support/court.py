"""A chain in memory with one job, two lying claims and one honest claim, and players of games about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain import games as chain_games
from lockstep.chain.contracts import Call
from lockstep.chain.game_table import GameTable
from lockstep.disputes.player import GamePlayer, Side
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.types import Address, ClaimId, GameId, Seed, StateRoot
from tests.support import games
from tests.support.arena import Arena, Terms
from tests.support.games import Lie, PlainClaim

STEP, ENCODE = games.step_program(), games.encode_program()
LIE = Lie(2, element=300, bits=1 << 20)


@dataclass
class Court:
    """A chain with two lying claims (slots 0 and 2) and an honest one (slot 1), as computed by their worker."""

    arena: Arena
    claims: list[ClaimId]
    seed: Seed
    opened: int = 0

    def play(self, game: GameId, slot: int, lie: Lie | None, moves: int = 40) -> None:
        """Plays up to `moves` moves of a game."""
        sides = [
            self.seat(game, Side.DEFENDER, self.held(slot, lie)),
            self.seat(game, Side.CHALLENGER, self.held(slot)),
        ]
        for _ in range(moves):
            # one move per turn: `all` stops at the first
            if all(seat.turn(self.arena.now()) is None for seat in sides):
                return

    def held(self, slot: int, lie: Lie | None = None) -> PlainClaim:
        return PlainClaim((STEP, ENCODE), games.start_state(), games.dataset(), self.seed, 0, slot, lie_at=1, lie=lie)

    def open(self, slot: int, held: PlainClaim) -> GameId:
        self.opened += 1
        claim = chain_games.claim(self.arena.contracts.market, self.claims[slot], self.arena.bodies[self.claims[slot]])
        move = games.open_at(claim, held, 1, self.opened)
        game = game_id(claim.id, Address(self.arena.challenger.address), self.opened)
        self.arena.begin(game, move)
        return game

    def seat(self, game: GameId, side: Side, held: Any, watched: bool = False) -> GamePlayer:
        contracts = self.arena.contracts
        table = GameTable(contracts.game, 0, contracts.market if watched else None)
        account = self.arena.worker if side is Side.DEFENDER else self.arena.challenger
        return GamePlayer(game, side, held, table, self.sender(account))

    def sender(self, account: LocalAccount) -> Any:
        self.keys: list[str] = getattr(self, "keys", [])

        def send(call: Call, key: str) -> object:
            self.keys.append(key)
            return self.arena.send(call, account)

        return send


def in_memory() -> Court:
    """Creates a court in memory in which slots 0 and 2 lie and slot 1 is honest."""
    arena = Arena.in_memory()
    made: dict[int, PlainClaim] = {}
    lies = (LIE, None, LIE)

    def trace(seed: Seed, slot: int) -> tuple[StateRoot, ...]:
        made[slot] = PlainClaim(
            (STEP, ENCODE), games.start_state(), games.dataset(), seed, 0, slot, lie_at=1, lie=lies[slot]
        )
        return made[slot].trace

    def ends(slot: int) -> tuple[StateRoot, StateRoot]:
        last = made[slot].steps[-1].graph[1]
        return StateRoot(last[-2]), StateRoot(last[-1])

    start, data = games.start_state(), games.dataset()
    step = PlainClaim((STEP,), start, data, Seed(bytes(32))).step(1)
    rows, length = data.header.shape
    terms = Terms(
        STEP, ENCODE, ENCODE, games.tensor_root(data), rows, length, StateRoot(step.prev[1][0]),
        StateRoot(b"\0" * 32), StateRoot(step.prev[1][2]), 1, 1, 1,
    )  # fmt: skip
    claims = arena.claims(terms, len(lies), trace, ends)
    seed = arena.contracts.market.facts_of(claims[0], 1).seed
    return Court(arena, claims, seed)
