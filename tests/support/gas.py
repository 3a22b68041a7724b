"""Measures the gas of every verb of the contracts, from receipts of one scenario on a chain with reproducible block
hashes.

python -m tests.support.gas        writes tests/vectors/gas.json anew (`make gas-snapshot`)

Anvil, hardfork Prague: EIP-7623's floor of calldata is counted in. The job has the toy Programs of
tests/support/games.py; gas that grows with a Program or a trace is in benchmarks/dispute.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain import artifacts
from lockstep.chain import games as chain_games
from lockstep.chain.contracts import Call
from lockstep.chain.devnet import HARDFORK, Devnet
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import DisputedClaim, game_id
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed, StateRoot, Wei
from tests.support import games
from tests.support.arena import CHALLENGE, DEPOSIT, WINDOW, Arena, Terms, params_of
from tests.support.games import Lie, PlainClaim
from tests.support.params import amended

SNAPSHOT = Path(__file__).parents[1] / "vectors/gas.json"
QUOTED = Path(__file__).parents[2] / "sdk/lockstep/chain/gas.json"
CONTRACTS = ("StakeVault", "JobMarket", "DisputeGame")
GENESIS = Seconds(2_000_000_000)
STEP, ENCODE = games.step_program(), games.encode_program()

LIES = (None, Lie(0, element=412, bits=64), Lie(5, element=1, chunk=1), Lie(9, chunk=269))
"""Lies of the slots: none, in a map, in a fold of several chunks, in a fold whose partials form a tree."""

TAMPERED: tuple[dict[int, Digest], ...] = (
    {STEP.state_block + 2: games.root_of(games.tensor(0, (1,), [1]))},
    {len(STEP.ops) + 3: Digest(b"\xee" * 32)},
)
"""Replaced nodes: a wrong alias, garbage in padding."""

DAY = Seconds(86_400)


@dataclass
class Scenario:
    """One job from its parameters to the last withdrawal, with every kind of game on its claims."""

    arena: Arena

    def run(self) -> None:
        """Runs the whole scenario."""
        self.accounts()
        self.a_job_that_nobody_joins()
        claims = self.claims()
        self.convictions(claims)
        self.a_game_over_the_whole_trace(claims[0])
        self.to_the_end(claims)
        self.withdrawals()
        self.an_owner()

    # -- acts

    def accounts(self) -> None:
        """Calls that an account makes for itself."""
        vault, token, worker = self.arena.contracts.vault, self.arena.contracts.token, self.arena.worker
        self.send(vault.call("setDelegate", self.arena.challenger.address), worker)
        self.send(vault.call("registerNode", bytes(31) + b"\1"), worker)
        permit = token.sign_permit(worker, vault.address, Wei(10**18), Seconds(GENESIS + 1000 * DAY))
        self.send(vault.call("depositWithPermit", Wei(10**18), *permit), worker)
        self.send(token.approve(vault.address, DEPOSIT), worker)
        self.send(vault.call("requestUnbond", Wei(10**18)), worker)

    def a_job_that_nobody_joins(self) -> None:
        """Creates and cancels a job."""
        market, worker = self.arena.contracts.market, self.arena.worker
        params = amended(params_of(terms(), 2), rounds=2)
        self.arena.jobs += 1
        self.send(market.create(params, self.arena.jobs, self.escrow(params)), worker)
        self.send(market.call("cancel", self.arena.last_job()), worker)

    def claims(self) -> list[ClaimId]:
        """Creates a job with five slots: claims by one worker, one of them honest."""
        made: dict[int, PlainClaim] = {}

        def trace(seed: Seed, slot: int) -> tuple[StateRoot, ...]:
            made[slot] = self.held(seed, slot)
            return made[slot].trace

        def ends(slot: int) -> tuple[StateRoot, StateRoot]:
            last = made[slot].steps[-1].graph[1]
            return StateRoot(last[-2]), StateRoot(last[-1])

        found = self.arena.claims(terms(), len(LIES) + len(TAMPERED), trace, ends)
        self.seed = self.arena.contracts.market.facts_of(found[0], 1).seed
        return found

    def held(self, seed: Seed, slot: int) -> PlainClaim:
        """Returns the computation of the slot's worker."""
        lie = LIES[slot] if slot < len(LIES) else None
        tampered = TAMPERED[slot - len(LIES)] if slot >= len(LIES) else {}
        return PlainClaim(
            (STEP, ENCODE),
            games.start_state(),
            games.dataset(),
            seed,
            0,
            slot,
            lie_at=1,
            lie=lie,
            tampered=dict(tampered),
        )

    def convictions(self, claims: Sequence[ClaimId]) -> None:
        """Plays a game at the wrong step of each wrong claim."""
        for slot, claim in enumerate(claims[1:], 1):
            held = self.held(self.seed, slot)
            truth = replace(held, lie=None, tampered={})
            opening = games.open_at(self.as_stored(claim), held, 1, slot)
            outcome = self.arena.play(opening, games.defends(held), games.challenges(truth))
            assert outcome.verdict == moves.Verdict.FRAUD

    def a_game_over_the_whole_trace(self, claim: ClaimId) -> None:
        """Plays a game without t up to the defence; then the challenger is silent and the claim is upheld."""
        arena, held = self.arena, self.held(self.seed, 0)
        opening = games.open_at(self.as_stored(claim), held, 0, 9)
        its_id = game_id(claim, Address(arena.challenger.address), 9)
        state, log = arena.begin(its_id, opening, None)
        challenger = games.random_challenger(games.random.Random(1), held, concede=0)
        while state.phase != moves.GamePhase.GRAPH_PICK:
            policy = games.defends(held) if state.defender_moves else challenger
            move = policy(state, log)
            assert move is not None
            sender = arena.worker if state.defender_moves else arena.challenger
            state, events = arena._step(its_id, move, sender, None)
            log += events
        self.later(Seconds(state.deadline - arena.now() + 1))
        self.send(chain_games.call(arena.contracts.game, moves.Resolve(state.standing), its_id), arena.challenger)

    def to_the_end(self, claims: Sequence[ClaimId]) -> None:
        """Merges, finalises and pays the job."""
        market, worker = self.arena.contracts.market, self.arena.worker
        job = self.arena.last_job()
        self.later(Seconds(WINDOW))
        self.arena.merge(job, StateRoot(Digest(b"\1" * 32)), StateRoot(Digest(b"\2" * 32)))
        self.later(Seconds(CHALLENGE + 1))
        self.send(market.finalize(job, 0), worker)
        self.send(market.call("finish", job), worker)

    def withdrawals(self) -> None:
        """Withdraws everything due to any account."""
        vault, worker = self.arena.contracts.vault, self.arena.worker
        self.later(Seconds(30 * DAY))
        for verb, account in (("withdrawUnbonded", worker), ("withdraw", worker), ("withdraw", self.arena.challenger)):
            self.send(vault.call(verb), account)
        self.send(vault.call("burn"), worker)

    def an_owner(self) -> None:
        """Names an owner, lets it act, and hands the account back."""
        vault, worker, owner = self.arena.contracts.vault, self.arena.worker, self.arena.challenger
        self.send(vault.call("setOwner", owner.address), worker)
        self.send(vault.call("requestUnbondFor", worker.address, Wei(1)), owner)
        self.send(vault.call("setDelegateFor", worker.address, worker.address), owner)
        self.later(Seconds(30 * DAY))
        self.send(vault.call("withdrawUnbondedFor", worker.address), owner)
        self.send(vault.call("proposeOwner", worker.address, worker.address), owner)
        self.send(vault.call("acceptOwner", worker.address), worker)

    # -- the chain

    def send(self, call: Call, sender: LocalAccount) -> Any:
        """Sends one transaction, which is mined."""
        return self.arena.send(call, sender)

    def later(self, seconds: Seconds) -> None:
        """Advances chain time."""
        self.arena._request("evm_setNextBlockTimestamp", self.arena.now() + seconds)
        self.arena._request("evm_mine")

    def as_stored(self, claim: ClaimId) -> DisputedClaim:
        """Returns the claim as stored on chain."""
        return chain_games.claim(self.arena.contracts.market, claim, self.arena.bodies[claim])

    def escrow(self, params: Any) -> Wei:
        """Returns the cost of the rounds."""
        return Wei(params.schedule.rounds * (params.role.slots * params.role.slot_price + params.merge.price))


def terms() -> Terms:
    """Returns the toy Programs as a job: one step, then the encode."""
    start, data = games.start_state(), games.dataset()
    step = PlainClaim((STEP,), start, data, Seed(bytes(32))).step(1)
    rows, length = data.header.shape
    return Terms(
        STEP, ENCODE, ENCODE, games.tensor_root(data), rows, length, StateRoot(step.prev[1][0]),
        StateRoot(merkle.EMPTY[1]), StateRoot(step.prev[1][2]), 1, 1, 1,
    )  # fmt: skip


@contextmanager
def chain(folder: Path) -> Iterator[Arena]:
    """Yields a chain that is equal in every run: its time starts at GENESIS and advances one second per block."""
    with Devnet(folder, block_seconds=0, genesis_time=GENESIS) as devnet:
        devnet.w3.provider.make_request("anvil_setBlockTimestampInterval", [1])  # type: ignore[arg-type]
        yield Arena.on(devnet)


def snapshot(folder: Path) -> dict[str, Any]:
    """Returns each verb's most expensive call of the scenario with the number of calls, and the verbs without a
    call.
    """
    with chain(folder) as arena:
        Scenario(arena).run()
        spent = arena.spent
    found = {
        label: {"gas": max(own), "calls": len(own)}
        for label in sorted({s.call for s in spent})
        if label.partition(".")[0] in CONTRACTS and (own := [s.gas for s in spent if s.call == label])
    }
    return {"hardfork": HARDFORK, "verbs": found, "without a call": sorted(verbs() - set(found))}


def verbs() -> set[str]:
    """Returns Contract.function of all functions that change state."""
    return {
        f"{name}.{entry['name']}"
        for name in CONTRACTS
        for entry in artifacts.load(name).abi
        if entry["type"] == "function" and entry["stateMutability"] == "nonpayable"
    }


def text(found: dict[str, Any]) -> str:
    """Formats one verb per line."""
    return json.dumps(found, indent=1).replace('": {\n   ', '": {').replace(",\n   ", ", ").replace("\n  }", "}") + "\n"


def quoted(verbs: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns the gas of the verbs that a quote counts, by function name; the wheel contains it, because it has no
    tests/.

    Verbs of games are left out: a quote has none, and `reveal` is also a verb of the market.
    """
    named = (name.split(".") for name in verbs)
    return {verb: verbs[f"{contract}.{verb}"]["gas"] for contract, verb in named if contract != "DisputeGame"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = snapshot(Path(folder))
    SNAPSHOT.write_text(text(found))
    QUOTED.write_text(json.dumps(quoted(found["verbs"]), indent=1) + "\n")
