"""A lying challenger, for devnets only: it attacks an honest claim with an invented step.

The lie is one flipped bit of one op's output at step 1. The liar picks towards it as an honest challenger would, down
to the element, and there the contract computes the bits that the defender claimed: nothing can be proved, the liar's
clock runs out and its bond is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from random import Random
from threading import Event as Flag
from typing import Any

from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.chain import games
from lockstep.chain.events import EventReader
from lockstep.chain.game_table import GameTable
from lockstep.demo.cheats.lies import require_devnet
from lockstep.disputes.player import GamePlayer, Side
from lockstep.execution.jobs import ClaimRun, JobPrograms, load
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, Watcher
from lockstep.market.replay import PublicData, published_trace
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.dispute.openings import CommittedTensor, Contents, Levels, MaterialisedStep
from lockstep.protocol.errors import ChainError, LockstepError, Unreachable
from lockstep.protocol.programs.program import CHUNK, Kind, Program
from lockstep.protocol.types import GameId, Seconds, StateRoot, Wei
from lockstep.runtime.party import Party
from verifier import decide

FALSE_CHALLENGE = "false-challenge"
POLL_SECONDS = 0.2

log = Logger(__name__)


@dataclass(frozen=True)
class Aim:
    """The place where the liar pretends that the claim is wrong."""

    op_index: int
    op_kind: str
    op_name: str
    element: int
    chunk: int | None
    """The chunk, in a fold of more than one."""


@dataclass(frozen=True)
class Rejected:
    """The expected end of the game about the lie, and the place that the liar aims at."""

    program: str
    step: int
    verdict: str
    aims_at: Aim
    """The place of the lie; the game does not end there, since nothing is proved."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the expectation as printed on stdout."""
        return asdict(self)


def place_of(programs: JobPrograms, seed: int) -> Aim:
    """Draws an op, an element and a chunk of the step Program."""
    random = Random(f"lockstep/{FALSE_CHALLENGE}/{seed}")
    step = programs.step
    index = random.randrange(len(step.ops))
    op = step.ops[index]
    element = random.randrange(op.header.elements)
    chunks = op.chunks if op.kind == Kind.FOLD else 1
    chunk = random.randrange(chunks) if chunks > 1 else None
    return Aim(index, op.kind.name.lower(), step.name_of(index), element, chunk)


@dataclass(frozen=True)
class InventedStep:
    """An honest transition with one bit of one op's output flipped, and its tree recomputed."""

    honest: MaterialisedStep
    place: Aim

    @property
    def program(self) -> Program:
        """The honest Program."""
        return self.honest.program

    @property
    def prev(self) -> Levels:
        """The tree of the honest S_{t-1}, from which the step starts."""
        return self.honest.prev

    @cached_property
    def graph(self) -> Levels:
        """G_t with the invented output's root at the op's position."""
        count = 1 << self.program.depth
        leaves = [merkle.node_at(self.honest.graph, 0, i) for i in range(count)]
        invented = self._invented
        leaves[self.place.op_index] = merkle.tensor_root_of_tree(invented.header, invented.levels[-1][0])  # type: ignore[call-overload]
        return merkle.levels(leaves, self.program.depth)

    @property
    def root(self) -> StateRoot:
        """A root of S_1 that differs from the honest one, although no later op was recomputed from the lie."""
        return StateRoot(merkle.leaf(self.graph[-1][0]))

    def output(self, op: int) -> CommittedTensor:
        """Returns an op's output; the invented one for the op of the lie."""
        return self._invented if op == self.place.op_index else self.honest.output(op)

    def state(self, entry: int) -> CommittedTensor:
        """Returns a tensor of S_{t-1}."""
        return self.honest.state(entry)

    def dataset(self) -> CommittedTensor:
        """The job's dataset."""
        return self.honest.dataset()

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """Returns one level of a fold's partials; for the lie, with the word flipped that leads to its chunk."""
        words = list(self.honest.partials(op, element, group))
        place = self.place
        if (op, element) == (place.op_index, place.element) and place.chunk is not None:
            at = place.chunk
            if self.program.ops[op].is_grouped:
                at = at // CHUNK if group is None else at % CHUNK
            words[at] ^= 1
        return words

    @cached_property
    def _invented(self) -> Contents:
        tensor = self.honest.output(self.place.op_index)
        data = bytearray(b"".join(tensor.leaf(i) for i in range(tensor.header.leaves)))
        data[4 * self.place.element] ^= 1
        return Contents(tensor.header, bytes(data))


class FalseChallenger:
    """Attacks the first claim that is honest at step 1, plays on as far as it can, and waits for its clock."""

    def __init__(self, party: Party, seed: int) -> None:
        self._party = party
        self._seed = seed
        self._watcher = Watcher(EventReader(party.w3, party.addresses))
        self._table = GameTable(party.contracts.game, party.addresses.block, party.contracts.market)
        self._seat: GamePlayer | None = None
        self._stuck = False

    def run(self, stop: Flag) -> None:
        """Runs until `stop` is set."""
        seen = -1
        while not stop.is_set():
            try:
                head = self._party.head()
                if head.number != seen:
                    self._step(head.time)
                    seen = head.number
            except Unreachable as error:
                log.warning(error.message, hint=error.hint)
            time.sleep(POLL_SECONDS)

    def _step(self, now: Seconds) -> None:
        self._watcher.poll()
        if self._seat is None:
            mine = [g for g in self._watcher.ledger.all_games() if g.challenger == self._party.address]
            if not mine:
                self._attack(now)
        elif not self._stuck:
            self._move(self._seat, now)

    def _attack(self, now: Seconds) -> None:
        for ledger in self._watcher.ledger.jobs.values():
            for round_ in ledger.all_rounds():
                for record in round_.claims.values():
                    params = self._party.contracts.market.params(ledger.id)
                    public = PublicData(load(ledger.id, params, self._party.store), self._party.store)
                    run = public.run_of(ledger, round_, record)
                    if self._open(run, record, now):
                        return

    def _open(self, run: ClaimRun, record: ClaimRecord, now: Seconds) -> bool:
        party = self._party
        published = published_trace(party.store, record, run.transitions)
        step = run.materialise(1, run.start)
        if published is None or published[0] != step.root:
            return False
        place = place_of(run.job.programs, self._seed)
        invented = InventedStep(step, place)
        held = HeldClaim(run, [invented.root, *published[1:]])
        held.keep(1, invented)
        expectation = Rejected("step", 1, "rejected", place)
        game = game_id(record.id, party.address, 0)
        event("lie", time=now, cheat=FALSE_CHALLENGE, claim=record.id.hex(), expectation=expectation.to_dict())
        move = honest.opening(
            games.claim(party.contracts.market, record.id, record.body, held.carried), held, published, 0
        )
        assert move is not None, "an invented state differs"
        self._stake(run.job.params.prices.bond, record)
        party.outbox.send(games.call(party.contracts.game, move, game), f"open/{record.id.hex()}/0")
        event("challenged", time=now, claim=record.id.hex(), game=game.hex(), t=1)
        self._seat = GamePlayer(GameId(game), Side.CHALLENGER, held, self._table, party.outbox.send)
        return True

    def _stake(self, bond: Wei, record: ClaimRecord) -> None:
        party = self._party
        missing = decide.deposit_due(party.contracts.vault.free(party.address), bond)
        if missing:
            party.outbox.send(party.deposit(missing, party.head().time), f"deposit/{record.id.hex()}/0")

    def _move(self, seat: GamePlayer, now: Seconds) -> None:
        try:
            verdict = seat.verdict
            if verdict is not Verdict.NONE:
                self._stuck = True
                event(decide.name_of_end(verdict), time=now, game=seat.game.hex(), verdict=verdict.name.lower())
                return
            move = seat.turn(now)
        except ChainError as error:
            # The contract computed what the defender claimed. The clock does the rest.
            log.info("nothing can be proved", game=seat.game.hex(), why=error.message)
            return
        except LockstepError as error:
            log.warning(error.message, hint=error.hint)
            return
        if move is not None:
            event("moved", time=now, game=seat.game.hex(), move=move.call)


def challenger_of(seed: int) -> Callable[..., FalseChallenger]:
    """Returns a constructor of false challengers that replaces the verifier's service."""

    def made(party: Party, *_: object, **__: object) -> FalseChallenger:
        require_devnet(party.addresses.chain_id)
        return FalseChallenger(party, seed)

    return made
