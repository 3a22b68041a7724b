"""Creates claims and games on a chain without services: one job, one slot for each claim, short windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain import games
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, Local
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body, JobParams, Reveal
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import Address, ClaimId, Digest, GameId, JobId, Seconds, Seed, StateRoot, TensorRoot, Wei
from tests.support.games import Lie, Match, PlainClaim, Policy, challenges, defends, open_at
from tests.support.memory.devnet import MemoryDevnet
from tests.support.params import job_params
from tests.support.sending import transact

WINDOW = Seconds(600)
CLOCK = Seconds(120)
CHALLENGE = Seconds(10 * 86_400)
STAKE, PRICE, BOND = Wei(10**18), Wei(10**16), Wei(10**17)
DEPOSIT = Wei(10**21)


@dataclass(frozen=True)
class Terms:
    """Programs, roots and shapes that a job of the arena trains."""

    step: Program
    encode: Program
    merge: Program
    dataset_root: TensorRoot
    rows: int
    row_length: int
    genesis: StateRoot
    outer: StateRoot
    zero_carry: StateRoot
    shared_depth: int
    payload_depth: int
    inner_steps: int


def params_of(terms: Terms, slots: int) -> JobParams:
    """Returns parameters of one round with long windows and short clocks, in which only slot owners merge."""
    zero = StateRoot(merkle.EMPTY[terms.payload_depth])
    return job_params(
        spec_digest=Digest(bytes(31) + b"\1"), step_program=Digest(terms.step.root),
        encode_program=Digest(terms.encode.root), merge_program=Digest(terms.merge.root),
        dataset_root=Digest(terms.dataset_root), dataset_rows=terms.rows, row_length=terms.row_length,
        genesis_shared=terms.genesis, genesis_outer=terms.outer,
        zero_carry=terms.zero_carry, zero_payload=zero, shared_depth=terms.shared_depth,
        payload_depth=terms.payload_depth, inner_steps=terms.inner_steps, rounds=1, slots=slots, min_slots=1,
        max_lead=1, max_fail=0, join_seconds=WINDOW, train_seconds=WINDOW, reveal_seconds=WINDOW,
        attest_seconds=WINDOW, turn_seconds=WINDOW, challenge_seconds=CHALLENGE, clock_seconds=CLOCK,
        step_seconds=Seconds(10), slot_price=PRICE, merge_price=PRICE, slot_stake=STAKE, merge_stake=STAKE,
        bond=BOND, aggregator=Address("0x" + "00" * 20), answer_seconds=WINDOW,
)  # fmt: skip


@dataclass(frozen=True)
class Spent:
    """Gas and size of one transaction in a game."""

    call: str
    gas: int
    bytes: int
    """Bytes of the transaction's data."""


@dataclass
class Outcome:
    """A game that was played to its end."""

    game: GameId
    log: list[moves.GameEvent]
    spent: list[Spent]

    @property
    def verdict(self) -> moves.Verdict:
        return next(e.verdict for e in self.log if isinstance(e, moves.Resolved))

    @property
    def finding(self) -> moves.Finding | None:
        return next((e.finding for e in self.log if isinstance(e, moves.Convicted)), None)

    @property
    def gas(self) -> int:
        return sum(s.gas for s in self.spent)

    @property
    def worst(self) -> int:
        return max(s.gas for s in self.spent)


@dataclass
class Arena:
    """A chain with the contracts, a worker and a challenger with deposits; every transaction is mined at once."""

    devnet: Local
    contracts: Contracts
    worker: LocalAccount
    challenger: LocalAccount
    spent: list[Spent] = field(default_factory=list)
    jobs: int = 0
    bodies: dict[ClaimId, Body] = field(default_factory=dict)
    """Bodies of the claims."""

    @staticmethod
    def start(folder: Path) -> Arena:
        """Starts Anvil in `folder` and deploys; `stop` ends it."""
        return Arena.on(Devnet(folder))

    @staticmethod
    def in_memory() -> Arena:
        """Starts an arena on a chain in memory."""
        return Arena.on(MemoryDevnet(arbiter=ReferenceArbiter()))

    @staticmethod
    def on(devnet: Local) -> Arena:
        """Sets up contracts and accounts on a running chain."""
        for method, arguments in (
            ("evm_setIntervalMining", [0]), ("evm_setAutomine", [True]), ("anvil_autoImpersonateAccount", [True]),
        ):  # fmt: skip
            devnet.w3.provider.make_request(method, arguments)  # type: ignore[arg-type]
        deployed = Contracts.at(devnet.w3, deploy(devnet.w3, devnet.account("deployer")))
        arena = Arena(devnet, deployed, devnet.account("worker"), devnet.account("challenger"))
        for account in (arena.worker, arena.challenger):
            arena.send(deployed.token.call("mint", account.address, 2 * DEPOSIT), account)
            arena.send(deployed.token.call("approve", deployed.vault.address, 2 * DEPOSIT), account)
            arena.send(deployed.vault.call("deposit", DEPOSIT), account)
        return arena

    def stop(self) -> None:
        """Ends the chain."""
        self.devnet.stop()

    def send(self, call: Call, sender: LocalAccount | Address) -> Any:
        """Sends one transaction, which is mined; returns the receipt. A revert raises the error of the broken rule."""
        address = Address(sender if isinstance(sender, str) else sender.address)
        receipt = transact(self.devnet, call, address)
        self.spent.append(Spent(call.label, int(receipt["gasUsed"], 16), len(call.data)))
        return receipt

    def _request(self, method: str, *arguments: Any) -> Any:
        """Makes a plain JSON-RPC request: web3 would send four for a transaction."""
        answer = self.devnet.w3.provider.make_request(method, list(arguments))  # type: ignore[arg-type]
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def now(self) -> Seconds:
        """Returns the chain's time."""
        return Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])

    # -- claims

    def claims(
        self, terms: Terms, slots: int, trace: Callable[[Seed, int], Sequence[StateRoot]], ends: Callable[[int], Any]
    ) -> list[ClaimId]:
        """Creates one job with `slots` claims by the worker; `trace(seed, slot)` returns S_1 ..

        S_T, `ends(slot)` (out, out2).
        """
        return self.claims_of(params_of(terms, slots), trace, ends)

    def claims_of(
        self, params: JobParams, trace: Callable[[Seed, int], Sequence[StateRoot]], ends: Callable[[int], Any]
    ) -> list[ClaimId]:
        """Creates claims as `claims`, in a job with the given parameters."""
        market, account, slots = self.contracts.market, self.worker, params.role.slots
        self.jobs += 1
        self.send(market.create(params, self.jobs, params.escrow), account)
        job = self.last_job()
        self.send(market.start_round(job, 0), account)
        for slot in range(slots):
            self.send(market.join(job, 0, slot), account)
        self.devnet.mine(2)
        self.send(market.seal(job, 0), account)
        made = [market.claim_id_of(job, 0, slot) for slot in range(slots)]
        seed = market.round(job, 0).seed
        opened = []
        for slot, claim in enumerate(made):
            levels = honest.trace_levels(trace(seed, slot))
            out, out2 = ends(slot)
            proof = tuple(merkle.proof(levels, params.role.inner_steps))
            opened.append(Reveal(Body(levels[-1][0], out, out2), Digest(bytes(32)), proof, "", ""))  # type: ignore[arg-type]
            self.send(market.commit(job, 0, slot, self._commitment(claim, opened[-1])), account)
        for slot, revealed in enumerate(opened):
            self.send(market.reveal(job, 0, slot, revealed), account)
            self.bodies[made[slot]] = revealed.body
        return made

    def _commitment(self, claim: ClaimId, opened: Reveal) -> Digest:
        worker = bytes(12) + bytes.fromhex(self.worker.address[2:])
        said = opened.body
        return keccak(claim + worker + said.trace_root + said.out + said.out2 + bytes(32) + opened.nonce)

    def merge(self, job: JobId, out: StateRoot, out2: StateRoot) -> ClaimId:
        """Freezes round 0 and lets the worker merge it."""
        market = self.contracts.market
        revealed = range(market.params(job).role.slots)
        bodies = [self.bodies[market.claim_id_of(job, 0, slot)] for slot in revealed]
        # No receipts are given: revealed claims are accepted at the end of the window.
        self.devnet.advance(WINDOW)
        self.send(market.freeze(job, 0, bodies), self.worker)
        self.send(market.merge(job, 0, out, out2, "", 1), self.worker)
        merged = market.claim_id_of(job, 0)
        self.bodies[merged] = Body(merkle.leaf(merkle.node(out, out2)), out, out2)  # type: ignore[arg-type]
        return merged

    def last_job(self) -> JobId:
        """Returns the job created last."""
        market = self.contracts.market
        topic = keccak(b"JobCreated(bytes32,address,bytes32,uint256,uint256)")
        request: Any = {"address": market.address, "fromBlock": 0, "topics": ["0x" + topic.hex()]}
        return JobId(bytes(market.w3.eth.get_logs(request)[-1]["topics"][1]))

    # -- games

    def play(self, opening: moves.Open, defender: Policy, challenger: Policy, twin: Match | None = None) -> Outcome:
        """Plays one game to its end; with a `twin`, compares it with the Python game after every move."""
        contract = self.contracts.game
        game_id = game.game_id(opening.claim, Address(self.challenger.address), opening.nonce)
        before = len(self.spent)
        state, log = self.begin(game_id, opening, twin)
        while state.phase != moves.GamePhase.CLOSED:
            policy = defender if state.defender_moves else challenger
            move = policy(state, log)
            if move is None:
                self.devnet.advance(Seconds(state.deadline - self.now() + 1))
                move = moves.Resolve(state.standing)
            sender = self.worker if state.defender_moves else self.challenger
            state, events = self._step(game_id, move, sender, twin)
            log += events
        assert log == games.log(contract, game_id), "what the receipts said is what the log says"
        return Outcome(game_id, log, self.spent[before:])

    def convicted(
        self, lie: Lie, held: PlainClaim, truth: PlainClaim, twin: Match, nonce: Callable[[], int]
    ) -> Outcome:  # fmt: skip
        """Plays a game about the lie in `held`: it must end with a conviction at the lie. Then reverts the chain."""
        mark = self.devnet.snapshot()
        opening = honest.opening(twin.claim, truth, held.trace, nonce())
        if opening is None:
            # Whether rounding hides the lie in S_t depends on the chain's seed; G always shows it.
            opening = open_at(twin.claim, held, 1, nonce())
        outcome = self.play(opening, defends(held), challenges(truth), twin)
        assert outcome.verdict == moves.Verdict.FRAUD
        found = outcome.finding
        assert found is not None
        where = found.wrong, found.position, found.element, found.chunk
        assert where == (moves.Wrong.OP, lie.op, lie.element, lie.chunk or 0)
        assert not self.contracts.market.live(twin.claim.id), "the stake is slashed"
        self.devnet.revert(mark)
        return outcome

    def begin(
        self, game_id: GameId, opening: moves.Open, twin: Match | None = None
    ) -> tuple[game.Game, list[moves.GameEvent]]:
        """Opens a game and returns its id and events, without playing on."""
        return self._step(game_id, opening, self.challenger, twin)

    def _step(
        self, game_id: GameId, move: moves.Move, sender: LocalAccount, twin: Match | None
    ) -> tuple[game.Game, list[moves.GameEvent]]:
        contract = self.contracts.game
        receipt = self.send(games.call(contract, move, game_id), sender)
        state = games.read(contract, game_id)
        events = [games.decode(plain(log)) for log in receipt["logs"] if log["address"] == contract.address.lower()]
        if twin is not None:
            seen = len(twin.log)
            twin.now = Seconds(self.now() - twin.seconds_per_move)
            twin.play(move, Address(sender.address))
            # The twin does not meter gas.
            assert twin.state == replace(state, spent=0), f"the stored game after {move.call}"
            assert twin.log[seen:] == events, f"the events of {move.call}"
        return state, events


def plain(log: Any) -> Any:
    """Converts a receipt's log to the form that web3 returns."""
    return {"topics": [bytes.fromhex(t[2:]) for t in log["topics"]], "data": bytes.fromhex(log["data"][2:])}
