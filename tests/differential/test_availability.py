"""Demands on a chain and in the twin, act by act: the same are refused for the same reasons, and the same is stored."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain import reverts
from lockstep.chain.contracts import Call
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest
from lockstep.protocol.errors import ChainError, LockstepError
from lockstep.protocol.jobs import Body, JobParams, Phase, Reveal
from lockstep.protocol.market import availability, ids
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.types import BURN, Keeper, Row, Shown, Status
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.defects import Code, ProgramParts
from lockstep.protocol.programs.program import F32, I32, Program
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, StateRoot, Wei
from tests.support import arena, invalid
from tests.support.ledger import Availability, Market
from tests.support.params import amended
from tests.support.replay import replayed

pytestmark = pytest.mark.chain

ROWS, LENGTH = 5, 300
SLOTS = 2
ANSWER = Seconds(60)
ATTEST = Seconds(40)
GAS_PRICE = Wei(10**9)


def encode_program() -> Program:
    """A payload of three tensors: an op of three leaves, a vector of the state, nothing, an op of a scalar; a carry of
    two vectors of the state."""
    b = ProgramBuilder(invalid.SLOT)
    long = b.map((700,), [b.input(0).slice(0, 0, 1)], lambda e, x: e.fneg(x))
    tick = b.map((), [b.input(6)], lambda e, c: e.iadd(c, e.i32(1)), I32)
    return b.finish([long, b.input(2), None, tick, b.input(4), b.input(5), None, None])


ENCODE = encode_program()
TENSORS: dict[int, bytes] = {
    k: np.random.default_rng(k).integers(0, 2**32, h.elements, dtype=np.uint32).tobytes()
    for k, h in enumerate(ENCODE.output_layout)
    if h is not None
}
ROOTS = [
    merkle.EMPTY[0] if h is None else merkle.tensor_root(h.dtype, h.shape, TENSORS[k])
    for k, h in enumerate(ENCODE.output_layout)
]
OUT, OUT2 = StateRoot(merkle.tree(ROOTS[:4])), StateRoot(merkle.tree(ROOTS[4:]))
DATA = np.random.default_rng(3).integers(0, 9, ROWS * LENGTH, dtype=np.int32).tobytes()
CODE = Code(ENCODE.header, ENCODE.ops_root, ENCODE.consts_root)


def params(answer_seconds: Seconds = ANSWER) -> JobParams:
    sound = invalid.sound().job
    terms = arena.Terms(
        invalid.step_program(), ENCODE, invalid.merge_program(),
        merkle.tensor_root(I32, (ROWS, LENGTH), DATA), ROWS, LENGTH, StateRoot(sound.genesis_shared),
        StateRoot(sound.genesis_outer), StateRoot(sound.zero_carry), 1, 2, 1,
    )  # fmt: skip
    return amended(
        arena.params_of(terms, SLOTS),
        attest_seconds=ATTEST,
        answer_seconds=answer_seconds,
        gas_price=GAS_PRICE,
        fee_cap=10**9,
    )


class Hashes(dict[int, bytes]):
    """Block hashes, asked of the chain."""

    def __init__(self, w3: Any) -> None:
        super().__init__()
        self._w3 = w3

    def __missing__(self, number: int) -> bytes:
        return bytes(self._w3.eth.get_block(number)["hash"])


Part = tuple[Call, Callable[[Block, Address], None]]


@dataclass
class Both:
    """One chain, and the twin that has lived through the same."""

    arena: arena.Arena
    market: Market = field(init=False)
    twin: Availability = field(init=False)
    errors: Counter[str] = field(default_factory=Counter)
    jobs: int = 0

    def __post_init__(self) -> None:
        c = self.arena.contracts
        chain = self.arena.devnet.w3.eth.chain_id
        self.market = Market(chain, Address(c.market.address), c.vault.unbond_seconds())
        self.twin = Availability(self.market)
        for account in (self.arena.worker, self.arena.challenger):
            self.market.books.deposit(Address(account.address), arena.DEPOSIT)

    @cached_property
    def poor(self) -> LocalAccount:
        return self.arena.devnet.account("poor")

    def block(self, number: int | str = "latest") -> Block:
        w3 = self.arena.devnet.w3
        found = w3.eth.get_block(number)  # type: ignore[arg-type]
        return Block(found["number"], Seconds(found["timestamp"]), Hashes(w3), found["baseFeePerGas"])

    def act(self, sender: LocalAccount, call: Call, twin: Callable[[Block, Address], Any]) -> str:
        """The same act on both sides, refused with the same error and arguments; its name, "" if it was accepted."""
        said, number = self._send(sender, call)
        mine = ""
        try:
            twin(self.block(number), Address(sender.address))
        except LockstepError as error:
            mine = error.message
        assert said == mine, f"{call.label}: the contract says {said!r}, the twin {mine!r}"
        name = said.partition("(")[0]
        self.errors[name] += 1
        return name

    def _send(self, sender: LocalAccount, call: Call) -> tuple[str, int]:
        request = {"from": sender.address, "to": call.to, "data": "0x" + call.data.hex(), "gas": hex(call.gas)}
        hash_ = self._ask("eth_sendTransaction", request)
        while (receipt := self._ask("eth_getTransactionReceipt", hash_)) is None:
            time.sleep(0.002)
        if receipt["status"] == "0x1":
            return "", int(receipt["blockNumber"], 16)
        quiet = {"disableStack": True, "disableMemory": True, "disableStorage": True}
        trace = self._ask("debug_traceTransaction", hash_, quiet)
        data = bytes.fromhex(trace["returnValue"].removeprefix("0x"))
        return reverts.decode(data).message, int(receipt["blockNumber"], 16)

    def _ask(self, method: str, *arguments: Any) -> Any:
        answer = self.arena.devnet.w3.provider.make_request(method, list(arguments))  # type: ignore[arg-type]
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    # -- a job with revealed claims

    def to_attesting(self, p: JobParams) -> JobId:
        """A job whose slots are the worker's, all revealed."""
        chain, worker, twin = self.arena.contracts.market, self.arena.worker, self.market
        self.jobs += 1
        nonce, escrow = self.jobs, p.escrow
        me = Address(worker.address)
        self.act(worker, chain.create(p, nonce, escrow), lambda b, s: twin.create(s, p, nonce, escrow))
        job = ids.job_id(twin.chain_id, twin.address, me, nonce, p)
        self.act(worker, chain.start_round(job, 0), lambda b, s: twin.start_round(b, job, 0))
        for slot in range(SLOTS):
            self.act(worker, chain.join(job, 0, slot), lambda b, s, slot=slot: twin.join(b, s, job, 0, slot))
        self.arena.devnet.mine(2)
        self.act(worker, chain.seal(job, 0), lambda b, s: twin.seal(b, job, 0))
        for slot in range(SLOTS):
            made = ids.commitment(self.claim(job, slot), me, self.opened())
            self.act(
                worker, chain.commit(job, 0, slot, made), lambda b, s, k=slot, m=made: twin.commit(b, s, job, 0, k, m)
            )
        for slot in range(SLOTS):
            shown = self.opened()
            self.act(
                worker, chain.reveal(job, 0, slot, shown), lambda b, s, k=slot, o=shown: twin.reveal(b, s, job, 0, k, o)
            )
        return job

    def claim(self, job: JobId, slot: int) -> ClaimId:
        return ids.claim_id(job, 0, 0, slot)

    def opened(self) -> Reveal:
        levels = honest.trace_levels([StateRoot(bytes(32)), StateRoot(merkle.node(OUT, OUT2))])
        body = Body(levels[-1][0], OUT, OUT2)  # type: ignore[arg-type]
        return Reveal(body, Digest(bytes(32)), tuple(merkle.proof(levels, 1)), "", "")

    # -- demands

    def demand(self, sender: LocalAccount, job: JobId, slot: int) -> tuple[str, Digest]:
        claim = self.claim(job, slot)
        demand = availability.payload_demand_id(claim, self.twin.by_claim[claim].count)
        # Different for every demand, far beyond what there is.
        wanted = int.from_bytes(demand, "big")
        call = self.arena.contracts.demands.unavailable(job, 0, slot, wanted)
        return self.act(sender, call, lambda b, s: self.twin.unavailable(b, s, job, 0, slot, wanted)), demand

    def shown(self, demand: Digest) -> tuple[Shown, ...]:
        """The leaves that are due; before the beacon, some."""
        seed = self.arena.contracts.demands.seed_of(demand) or demand
        wanted = self.twin.demands[demand].wanted if demand in self.twin.demands else 0
        return availability.payload_answer(wanted, seed, ENCODE, TENSORS.__getitem__)

    def answer(self, demand: Digest, shown: tuple[Shown, ...], body: Body | None = None, code: Code = CODE) -> str:
        said = body or self.opened().body
        call = self.arena.contracts.demands.answer(demand, said, code, shown)
        return self.act(self.poor, call, lambda b, s: self.twin.answer(b, demand, said, code, shown))

    def settle(self, demand: Digest) -> str:
        call = self.arena.contracts.demands.settle(demand)
        return self.act(self.poor, call, lambda b, s: self.twin.settle(b, demand))

    def demand_row(self, sender: LocalAccount, job: JobId, row: int) -> str:
        call = self.arena.contracts.demands.demand_row(job, row)
        return self.act(sender, call, lambda b, s: self.twin.demand_row(b, s, job, row))

    def part(self, job: JobId, row: int, rows: tuple[Row, ...], begin: int = 0, tree: Digest | None = None) -> Part:
        """A part of a row, as a transaction and for the twin."""
        root = tree or availability.row_answer(params(), DATA, 0)[0]
        call = self.arena.contracts.demands.answer_row(job, row, root, begin, rows)
        return call, lambda b, s: self.twin.answer_row(b, s, call.data, job, row, root, begin, rows)

    def commit(self, sender: LocalAccount, *calls: Call) -> str:
        digests = [digest_of(Address(sender.address), call.data) for call in calls]
        call = self.arena.contracts.demands.commit(digests)
        return self.act(sender, call, lambda b, s: self.twin.commit(b, s, digests))

    def answer_row(
        self, job: JobId, row: int, rows: tuple[Row, ...], tree: Digest | None = None, begin: int = 0
    ) -> str:
        """Commits to a part, and posts it."""
        part = self.part(job, row, rows, begin, tree)
        assert self.commit(self.poor, part[0]) == ""
        return self.act(self.poor, *part)

    def void_for_row(self, job: JobId, row: int) -> str:
        call = self.arena.contracts.demands.void_for_row(job, row)
        return self.act(self.poor, call, lambda b, s: self.twin.void_for_row(b, job, row))

    def freeze(self, job: JobId) -> str:
        bodies = [self.opened().body] * SLOTS
        call = self.arena.contracts.market.freeze(job, 0, bodies)

        def twin(block: Block, sender: Address) -> None:
            self.market.freeze(block, job, 0, bodies)

        return self.act(self.poor, call, twin)

    def later(self, seconds: int) -> None:
        self.arena.devnet.advance(Seconds(seconds))

    def compare(self) -> None:
        """Everything that demands have changed is the same on both sides."""
        contracts = self.arena.contracts
        for demand, mine in self.twin.demands.items():
            assert contracts.demands.demand(demand) == mine, demand.hex()
            assert (contracts.vault.lock_of(demand) is None) == (mine.status != Status.OPEN), "a bond sticks"
        for claim, asked in self.twin.by_claim.items():
            assert contracts.demands.read("asked", claim) == (asked.count, asked.open, asked.until, asked.missing)
        for account in (self.arena.worker.address, self.arena.challenger.address, self.poor.address, BURN):
            at = Address(account)
            assert contracts.vault.free(at) == self.market.books.free[at], account
            assert contracts.vault.credits(at) == self.market.books.credits[at], account


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    started = arena.Arena.start(tmp_path_factory.mktemp("chain"))
    made = Both(started)
    made.arena.devnet.w3.provider.make_request("anvil_setBalance", [made.poor.address, hex(10**20)])  # type: ignore[arg-type]
    yield made
    started.stop()


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_answered_demand_pays_the_worker_and_counts_for_nothing_else(both: Both) -> None:
    job = both.to_attesting(params())
    worker = Address(both.arena.worker.address)
    before = both.market.books.credits[worker]
    error, demand = both.demand(both.arena.challenger, job, 0)
    assert error == ""
    assert both.answer(demand, both.shown(demand)) == "TooEarly", "the beacon is not there yet"
    both.arena.devnet.mine(1)
    assert both.answer(demand, both.shown(demand)) == ""
    bond = both.market.bond_of(job)
    assert both.market.books.credits[worker] - before == bond * 60 // 100
    assert both.answer(demand, both.shown(demand)) == "DemandClosed"
    assert both.twin.missing(both.claim(job, 0)) is False
    both.later(ATTEST)
    assert both.freeze(job) == ""
    assert both.market.rounds[job, 0].mask == 3, "both payloads are there"
    both.compare()


def test_names_and_seeds_are_the_contracts(both: Both) -> None:
    demands = both.arena.contracts.demands
    job = both.to_attesting(params())
    claim = both.claim(job, 0)
    _, demand = both.demand(both.arena.challenger, job, 0)
    assert bytes(demands.read("payloadDemandId", claim, 0)) == demand
    assert bytes(demands.read("payloadDemandId", claim, 7)) == availability.payload_demand_id(claim, 7)
    assert bytes(demands.read("rowDemandId", job, 3)) == availability.row_demand_id(job, 3)
    beacon = both.twin.demands[demand].beacon
    with pytest.raises(ChainError, match=rf"TooEarly\({beacon + 1}\)"):
        demands.read("seedOf", demand)
    both.arena.devnet.mine(2)
    assert bytes(demands.read("seedOf", demand)) == demands.seed_of(demand)
    both.later(ANSWER + 1)
    assert both.settle(demand) == ""


def test_unanswered_demand_excludes_the_payload_and_returns_the_bond(both: Both) -> None:
    job = both.to_attesting(params())
    asker = Address(both.arena.challenger.address)
    before = both.market.books.free[asker]
    _, demand = both.demand(both.arena.challenger, job, 1)
    both.later(ATTEST + 1)
    assert both.freeze(job) == "TooEarly", "freeze waits for demands"
    assert both.settle(demand) == "TooEarly"
    both.later(ANSWER)
    assert both.answer(demand, both.shown(demand)) == "DemandClosed"
    assert both.freeze(job) == "", "what was not answered needs no settling"
    assert both.market.rounds[job, 0].mask == 1, "the slot of the missing payload is left out"
    assert both.settle(demand) == ""
    assert both.market.books.free[asker] == before, "the bond is back"
    assert both.settle(demand) == "DemandClosed"
    both.compare()


def test_one_answer_does_not_end_another_demand(both: Both) -> None:
    """An accomplice that asks first, and is answered, shields nobody."""
    job = both.to_attesting(params())
    _, first = both.demand(both.arena.worker, job, 0)
    both.arena.devnet.mine(1)
    assert both.answer(first, both.shown(first)) == ""
    _, second = both.demand(both.arena.challenger, job, 0)
    assert first != second
    both.later(ANSWER + 1)
    assert both.settle(second) == ""
    assert both.twin.missing(both.claim(job, 0)) is True
    assert both.freeze(job) == ""
    assert both.market.rounds[job, 0].mask == 2, "the slot that did not answer again is left out"
    both.compare()


def test_demands_have_their_time_their_slot_and_their_price(both: Both) -> None:
    job = both.to_attesting(params())
    assert both.demand(both.poor, job, 0)[0] == "StakeTooLow"
    assert both.demand(both.arena.challenger, job, SLOTS)[0] == "NoSuchSlot"
    both.later(ATTEST)
    assert both.demand(both.arena.challenger, job, 0)[0] == "WrongPhase"
    assert both.demand(both.arena.challenger, JobId(bytes(32)), 0)[0] == "WrongPhase"
    both.compare()


def test_spoiled_answers_are_refused(both: Both) -> None:
    job = both.to_attesting(params())
    demand, shown = Digest(bytes(32)), ()
    while not any(s.descriptor for s in shown):  # a block's hash names the leaves: one that an op made is wanted
        assert shown == () or both.answer(demand, shown) == ""
        _, demand = both.demand(both.arena.challenger, job, 0)
        both.arena.devnet.mine(1)
        shown = both.shown(demand)
    spoiled = bytes([shown[0].leaf[0] ^ 1]) + shown[0].leaf[1:]
    with_op = next(i for i, s in enumerate(shown) if s.descriptor)
    for wrong in (
        (replace(shown[0], leaf=spoiled), *shown[1:]),
        (replace(shown[0], entry_proof=shown[0].entry_proof[1:]), *shown[1:]),
        (replace(shown[0], leaf_proof=(*shown[0].leaf_proof, merkle.EMPTY[0])), *shown[1:]),
        (*shown[:with_op], replace(shown[with_op], descriptor=ENCODE.descriptors[-1] + b"\0"), *shown[with_op + 1 :]),
    ):
        assert both.answer(demand, wrong) == "ProofInvalid"
    for wrong in ((replace(shown[0], leaf=shown[0].leaf + bytes(4)), *shown[1:]), shown[:7], (*shown, shown[0]), ()):
        assert both.answer(demand, wrong) == "AnswerWrong"
    body = both.opened().body
    assert both.answer(demand, shown, replace(body, out2=StateRoot(bytes(32)))) == "CommitmentMismatch"
    assert both.answer(demand, shown, code=ProgramParts.of(invalid.step_program()).code) == "ProofInvalid"
    assert both.answer(demand, shown) == "", "and then the right one is taken"
    both.compare()


def test_forgotten_beacon_is_replaced_for_everybody(both: Both) -> None:
    job = both.to_attesting(params(Seconds(1_000)))
    _, demand = both.demand(both.arena.challenger, job, 0)
    both.arena.devnet.mine(300)
    assert both.answer(demand, both.shown(demand)) == ""
    both.compare()


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 1, ROWS - 1])
def test_posted_row_pays_who_posted_it_and_ends_all_demands_for_it(both: Both, row: int) -> None:
    job = both.to_attesting(params())
    poster = Address(both.poor.address)
    before = both.market.books.credits[poster]
    assert both.demand_row(both.arena.challenger, job, row) == ""
    assert both.demand_row(both.arena.worker, job, row) == "AlreadyDone"
    _, rows = availability.row_answer(params(), DATA, row)
    assert both.answer_row(job, row, rows[:1]) == ""
    assert len(rows) > 1, "the rows of this dataset lie in several leaves"
    bond, n = both.twin.row_bond_of(job, row), len(rows)
    first_share = bond // n * 60 // 100
    assert both.market.books.credits[poster] - before == first_share, "every part is paid at once"
    assert both.answer_row(job, row, rows[:1]) == "AlreadyDone", "each leaf once"
    assert both.answer_row(job, row, rows[2:], begin=2) == "AnswerWrong", "in order"
    assert both.answer_row(job, row, rows) == "", "what is there already is skipped"
    assert both.market.books.credits[poster] - before == first_share + (bond - bond // n) * 60 // 100
    assert both.demand_row(both.arena.challenger, job, row) == "AlreadyDone"
    both.later(ANSWER + 1)
    assert both.void_for_row(job, row) == "DemandClosed"
    both.compare()


def test_row_that_nobody_has_voids_the_job(both: Both) -> None:
    job = both.to_attesting(params())
    asker = Address(both.arena.challenger.address)
    before = both.market.books.free[asker]
    assert both.demand_row(both.arena.challenger, job, 2) == ""
    assert both.demand_row(both.arena.challenger, job, 3) == ""
    both.later(ANSWER - 5)
    assert both.void_for_row(job, 2) == "TooEarly"
    both.later(6)
    assert both.void_for_row(job, 2) == ""
    assert both.market.jobs[job].prover == asker
    assert both.void_for_row(job, 3) == "", "a job that is void needs no other row, and its bond returns"
    assert both.twin.demands[availability.row_demand_id(job, 3)].status == Status.CLOSED
    assert both.market.books.free[asker] == before
    assert both.demand_row(both.arena.challenger, job, 0) == "WrongJobStatus"
    assert both.market.phase(both.block(), job, 0) == Phase.VOID
    both.compare()


def test_a_part_that_was_not_committed_in_an_earlier_block_is_not_paid(both: Both) -> None:
    """Whoever copies an answer out of the mempool has committed to nothing, and cannot use the answerer's digest."""
    job = both.to_attesting(params())
    assert both.demand_row(both.arena.challenger, job, 0) == ""
    part = both.part(job, 0, availability.row_answer(params(), DATA, 0)[1])
    assert both.act(both.poor, *part) == "NotCommitted"
    assert both.commit(both.poor, part[0]) == ""
    assert both.act(both.arena.worker, *part) == "NotCommitted", "the digest is its sender's"
    w3 = both.arena.devnet.w3
    w3.provider.make_request("evm_setAutomine", [False])  # type: ignore[arg-type]
    try:
        worker, digest = both.arena.worker, digest_of(Address(both.arena.worker.address), part[0].data)
        commit = both.arena.contracts.demands.commit([digest])
        hashes = [
            both._ask(
                "eth_sendTransaction", {"from": a.address, "to": c.to, "data": "0x" + c.data.hex(), "gas": hex(c.gas)}
            )
            for a, c in ((worker, commit), (worker, part[0]))
        ]
        both.arena.devnet.mine(1)
    finally:
        w3.provider.make_request("evm_setAutomine", [True])  # type: ignore[arg-type]
    first, second = (w3.eth.get_transaction_receipt(h) for h in hashes)
    assert first["blockNumber"] == second["blockNumber"]
    assert (first["status"], second["status"]) == (1, 0), "committed and shown in one block: a copy"
    both.twin.commit(both.block(first["blockNumber"]), Address(worker.address), [digest])
    later = both.arena.contracts.demands.commit([digest])
    assert both.act(worker, later, lambda b, s: both.twin.commit(b, s, [digest])) == ""
    assert both.arena.contracts.demands.committed_at(digest) == first["blockNumber"], "the first block stays"
    before = both.market.books.credits[Address(both.poor.address)]
    assert both.act(both.poor, *part) == ""
    assert both.market.books.credits[Address(both.poor.address)] > before
    both.compare()


def test_rows_that_are_not_the_datasets_are_refused(both: Both) -> None:
    job = both.to_attesting(params())
    assert both.demand_row(both.arena.challenger, job, ROWS) == "NoSuchRow"
    assert both.demand_row(both.poor, job, 1) == "StakeTooLow"
    assert both.demand_row(both.arena.challenger, JobId(bytes(32)), 0) == "WrongJobStatus"
    assert both.demand_row(both.arena.challenger, job, 1) == ""
    _, rows = availability.row_answer(params(), DATA, 1)
    other = availability.row_answer(params(), DATA, 3)[1]
    spoiled = replace(rows[0], leaf=rows[0].leaf[:-1] + b"\xff")
    assert both.answer_row(job, 1, rows, Digest(bytes(32))) == "ProofInvalid"
    assert both.answer_row(job, 1, other) == "ProofInvalid"
    assert both.answer_row(job, 1, (spoiled, *rows[1:])) == "ProofInvalid"
    assert both.answer_row(job, 1, (replace(rows[0], leaf=rows[0].leaf[4:]), *rows[1:])) == "AnswerWrong"
    assert both.answer_row(job, 1, ()) == "AlreadyDone", "nothing new"
    assert both.answer_row(job, 1, (*rows, rows[0])) == "AnswerWrong"
    assert both.answer_row(job, 2, rows) == "DemandClosed", "nobody has demanded that one"
    assert both.settle(availability.row_demand_id(job, 1)) == "TooEarly"
    both.later(ANSWER + 1)
    assert both.settle(availability.row_demand_id(job, 1)) == "DemandClosed", "a row's demand is no payload's"
    assert both.answer_row(job, 1, rows) == "DemandClosed"
    assert both.void_for_row(job, 1) == ""
    both.compare()


# -- anything ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_acts_are_refused_and_stored_alike(both: Both, seed: int) -> None:
    dice = random.Random(seed)
    job = both.to_attesting(params())
    demands: list[Digest] = [Digest(bytes(32))]
    accounts = [both.arena.challenger, both.arena.worker, both.poor]
    for _ in range(60):
        row = dice.randrange(ROWS + 1)
        act = dice.randrange(12)
        if act < 3:
            error, demand = both.demand(dice.choice(accounts), job, dice.randrange(SLOTS + 1))
            demands += [demand] if not error else []
        elif act < 5:
            demand = dice.choice(demands)
            shown = both.shown(demand)
            both.answer(demand, shown if dice.random() < 0.8 else shown[1:])
        elif act == 5:
            both.settle(dice.choice(demands))
        elif act == 6:
            both.demand_row(dice.choice(accounts), job, row)
        elif act == 7:
            rows = availability.row_answer(params(), DATA, dice.randrange(ROWS))[1]
            begin = dice.randrange(2)
            both.answer_row(job, row, rows[begin : 1 + dice.randrange(3)], begin=begin)
        elif act == 8 and dice.random() < 0.3:
            both.void_for_row(job, row)
        elif act == 9:
            both.freeze(job)
        elif act == 10:
            both.later(dice.choice((1, 5, 20, 70)))
        else:
            both.arena.devnet.mine(1)
    both.later(ANSWER + 1)
    for demand in demands[1:]:
        both.settle(demand)
    for row in range(ROWS):
        both.void_for_row(job, row)
    both.compare()
    books = both.market.books
    assert books.tokens == books.owed, "money is conserved"
    assert not [lock for lock in books.locks.values() if lock.keeper == Keeper.AVAILABILITY], "no bond sticks"


def test_a_payload_without_tensors_needs_no_leaf() -> None:
    header = availability.ProgramHeader.decode(ENCODE.header)
    empty = replace(header, outputs=(availability.Alias(0),) * len(header.outputs))
    assert availability.named_leaves(7, Digest(bytes(32)), empty) == []
    assert len(availability.named_leaves(7, Digest(bytes(32)), header)) == availability.LEAVES


def test_half_of_the_leaves_are_the_askers_choice() -> None:
    header = availability.ProgramHeader.decode(ENCODE.header)
    half = len(ENCODE.output_layout) // 2
    filled = [k for k, layout in enumerate(ENCODE.output_layout) if layout is not None]
    entries, carry = [k for k in filled if k < half], [k for k in filled if k >= half]
    lacking = [(0, 2), (4, 1 << 39), ((1 << 24) - 1, 0)]
    wanted = availability.pack_wanted(lacking, b"asker")
    named = availability.named_leaves(wanted, Digest(bytes(32)), header)
    assert named[:3] == [(entries[i % len(entries)], number) for i, number in lacking]
    other = availability.named_leaves(wanted, Digest(b"\1" * 32), header)
    assert named[:4] == other[:4], "the beacon changes none of them"
    assert not set(named[4:]) & set(other[4:])
    of_carry = availability.named_leaves(wanted, Digest(bytes(32)), header, carry=True)
    assert {entry for entry, _ in of_carry} <= set(carry), "a carry's demand names nothing of the payload"
    assert (carry == []) == (of_carry == [])
    assert availability.pack_wanted([], b"asker") != availability.pack_wanted([], b"another")
    assert availability.pack_wanted([(1, 1)] * 9, b"") == availability.pack_wanted([(1, 1)] * 4, b"")


def test_an_op_of_the_payload_has_the_header_of_its_descriptor() -> None:
    assert ENCODE.output_layout[0] == TensorHeader(F32, (700,))


def test_every_transaction_of_these_demands_replays_in_the_twin(both: Both) -> None:
    """Events and their bytes, and every stored word."""
    replay = replayed(both.arena.devnet.w3, both.arena.contracts.addresses)
    assert replay.calls["Availability.unavailable"] > 5, replay.calls
    assert replay.refused.total() > 5, replay.refused
