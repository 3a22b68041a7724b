"""Demands of payloads of many leaves and rows of several parts, at random on a chain: the twin lives through the same.

What each call is refused for, in which state, tests/rules/table.py says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain.contracts import Call
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol import merkle
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import availability
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.types import Row, Shown, Status
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.defects import Code, ProgramParts
from lockstep.protocol.programs.program import F32, I32, Program
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, StateRoot
from tests.support import arena, invalid
from tests.support.params import amended
from tests.support.replay import replayed

pytestmark = pytest.mark.chain

ROWS, LENGTH = 5, 300
SLOTS = 2
ANSWER = Seconds(60)


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
DATA = np.random.default_rng(3).integers(0, 9, ROWS * LENGTH, dtype=np.int32).tobytes()
CODE = Code(ENCODE.header, ENCODE.ops_root, ENCODE.consts_root)


def terms(encode: Program = ENCODE) -> arena.Terms:
    sound = invalid.sound().job
    return arena.Terms(
        invalid.step_program(), encode, invalid.merge_program(),
        merkle.tensor_root(I32, (ROWS, LENGTH), DATA), ROWS, LENGTH, StateRoot(sound.genesis_shared),
        StateRoot(sound.genesis_outer), StateRoot(sound.zero_carry), 1, 2, 1,
    )  # fmt: skip


def params(answer_seconds: Seconds = ANSWER, encode: Program = ENCODE) -> JobParams:
    return amended(
        arena.params_of(terms(encode), SLOTS), attest_seconds=40, answer_seconds=answer_seconds, gas_price=10**9,
        fee_cap=10**9,
    )  # fmt: skip


@dataclass
class Asking:
    """A chain, a job whose slots have all revealed the same payload, and who asks for what of it."""

    arena: arena.Arena
    params: JobParams
    ends: tuple[StateRoot, StateRoot] = (StateRoot(merkle.tree(ROOTS[:4])), StateRoot(merkle.tree(ROOTS[4:])))
    claims: list[ClaimId] = field(init=False)
    asked: list[Digest] = field(default_factory=list)

    def __post_init__(self) -> None:
        last = StateRoot(merkle.node(*self.ends))
        self.claims = self.arena.claims_of(
            self.params, lambda seed, slot: [StateRoot(bytes(32)), last], lambda slot: self.ends
        )
        self.poor = self.arena.devnet.account("poor")
        self.arena.devnet._request("anvil_setBalance", [self.poor.address, hex(10**20)])

    @property
    def job(self) -> JobId:
        return self.arena.contracts.market.claim(self.claims[0]).job

    def act(self, sender: LocalAccount, call: Call) -> str:
        """The name of the error; "": accepted."""
        try:
            self.arena.send(call, sender)
        except Reverted as refusal:
            return refusal.rule
        return ""

    def demand(self, sender: LocalAccount, slot: int) -> str:
        claim = self.claims[slot % SLOTS]
        demand = availability.payload_demand_id(claim, len([d for d in self.asked if self._of(d) == claim]))
        # Different for every demand, far beyond what there is.
        wanted = int.from_bytes(demand, "big")
        error = self.act(sender, self.arena.contracts.demands.unavailable(self.job, 0, slot, wanted))
        self.asked += [] if error else [demand]
        return error

    def _of(self, demand: Digest) -> Digest:
        found = self.arena.contracts.demands.demand(demand)
        assert found is not None
        return found.subject

    def shown(self, demand: Digest) -> tuple[Shown, ...]:
        """The leaves that are due; before the beacon, some."""
        contract = self.arena.contracts.demands
        found = contract.demand(demand)
        wanted = found.wanted if found is not None else 0
        return availability.payload_answer(wanted, contract.seed_of(demand) or demand, ENCODE, TENSORS.__getitem__)

    def answer(self, demand: Digest, shown: Sequence[Shown], code: Code = CODE) -> str:
        body = self.arena.bodies[self.claims[0]]
        return self.act(self.poor, self.arena.contracts.demands.answer(demand, body, code, tuple(shown)))

    def answer_row(self, row: int, rows: tuple[Row, ...], begin: int) -> str:
        """Commits to a part, and posts it."""
        demands, me = self.arena.contracts.demands, Address(self.poor.address)
        root = availability.row_answer(self.params, DATA, 0)[0]
        part = demands.answer_row(self.job, row, root, begin, rows)
        assert self.act(self.poor, demands.commit([digest_of(me, part.data)])) == ""
        return self.act(self.poor, part)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arena.Arena]:
    started = arena.Arena.start(tmp_path_factory.mktemp("chain"))
    yield started
    started.stop()


def test_spoiled_leaves_of_an_op_are_refused(chain: arena.Arena) -> None:
    asking, shown = Asking(chain, params()), tuple[Shown, ...]()
    while not any(s.descriptor for s in shown):  # a block's hash names the leaves: one that an op made is wanted
        assert asking.demand(chain.challenger, 0) == ""
        chain.devnet.mine(2)
        shown = asking.shown(asking.asked[-1])
    with_op = next(i for i, s in enumerate(shown) if s.descriptor)
    for wrong in (
        (replace(shown[0], entry_proof=shown[0].entry_proof[1:]), *shown[1:]),
        (*shown[:with_op], replace(shown[with_op], descriptor=ENCODE.descriptors[-1] + b"\0"), *shown[with_op + 1 :]),
    ):
        assert asking.answer(asking.asked[-1], wrong) == "ProofInvalid"
    for wrong in ((replace(shown[0], leaf=shown[0].leaf + bytes(4)), *shown[1:]), shown[:7], (*shown, shown[0])):
        assert asking.answer(asking.asked[-1], wrong) == "AnswerWrong"
    assert asking.answer(asking.asked[-1], shown, ProgramParts.of(invalid.step_program()).code) == "ProofInvalid"
    assert asking.answer(asking.asked[-1], shown) == "", "and then the right one is taken"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_acts_leave_no_bond(chain: arena.Arena, seed: int) -> None:
    act_at_random(chain, seed)


def act_at_random(chain: arena.Arena, seed: int) -> None:
    dice, asking = random.Random(seed), Asking(chain, params())
    demands, accounts = chain.contracts.demands, [chain.challenger, chain.worker, asking.poor]
    nothing = Digest(bytes(32))
    for _ in range(60):
        row, act = dice.randrange(ROWS + 1), dice.randrange(12)
        if act < 3:
            asking.demand(dice.choice(accounts), dice.randrange(SLOTS + 1))
        elif act < 5:
            demand = dice.choice([nothing, *asking.asked])
            shown = asking.shown(demand)
            asking.answer(demand, shown if dice.random() < 0.8 else shown[1:])
        elif act == 5:
            asking.act(asking.poor, demands.settle(dice.choice([nothing, *asking.asked])))
        elif act == 6:
            asking.act(dice.choice(accounts), demands.demand_row(asking.job, row))
        elif act == 7:
            rows = availability.row_answer(asking.params, DATA, dice.randrange(ROWS))[1]
            begin = dice.randrange(2)
            asking.answer_row(row, rows[begin : 1 + dice.randrange(3)], begin)
        elif act == 8 and dice.random() < 0.3:
            asking.act(asking.poor, demands.void_for_row(asking.job, row))
        elif act == 9:
            bodies = [chain.bodies[claim] for claim in asking.claims]
            asking.act(asking.poor, chain.contracts.market.freeze(asking.job, 0, bodies))
        elif act == 10:
            chain.devnet.advance(Seconds(dice.choice((1, 5, 20, 70))))
        else:
            chain.devnet.mine(1)
    chain.devnet.advance(Seconds(ANSWER + 1))
    for demand in asking.asked:
        asking.act(asking.poor, demands.settle(demand))
    for row in range(ROWS):
        asking.act(asking.poor, demands.void_for_row(asking.job, row))
    for demand in (*asking.asked, *(availability.row_demand_id(asking.job, row) for row in range(ROWS))):
        found = demands.demand(demand)
        assert found is None or found.status != Status.OPEN
        assert chain.contracts.vault.lock_of(demand) is None, "no bond sticks"


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


@pytest.mark.slow
def test_every_transaction_of_these_demands_replays_in_the_twin(chain: arena.Arena) -> None:
    """Events and their bytes, and every stored word."""
    for seed in range(2):
        act_at_random(chain, seed)
    replay = replayed(chain.devnet.w3, chain.contracts.addresses)
    assert replay.calls["Availability.unavailable"] > 5, replay.calls
    assert replay.refused.total() > 5, replay.refused
