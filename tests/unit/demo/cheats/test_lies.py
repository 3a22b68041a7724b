"""Lies: each begins exactly where it was declared, is consistent after that, and loses the game there."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.chain.devnet import CHAIN_ID
from lockstep.demo.cheats.lies import (
    OF_SLOTS,
    Cheat,
    LyingRun,
    Swap,
    cheat_of,
    inserted,
    wrong_partials,
)
from lockstep.demo.run import CARRY_CHEATS, INDEX_CHEATS, INTEGER_CHEATS
from lockstep.execution.jobs import CarryIn, ClaimRun, Job, carry_of, payload_of, slot_run, trace_root
from lockstep.market.held import HeldClaim
from lockstep.numerics import scalar
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.programs.program import STOCHASTIC, Fold, Instr, Kind
from lockstep.protocol.types import ClaimId, Digest, ProgramRoot, Seconds, StateRoot, TensorRoot, TraceRoot, Wei
from lockstep.storage import ContentStore
from tests.support import games, toyjob

SEEDS = range(4)
SPOKEN = [
    (name, seed, products)
    for name in OF_SLOTS if name not in ("silent", "two-signatures", *CARRY_CHEATS, *INDEX_CHEATS)
    for seed in SEEDS
    for products in ("float32", "int8") if products == "int8" or name not in INTEGER_CHEATS
]  # fmt: skip
"""Each lie about each job that it can be told about."""


@pytest.fixture(scope="session")
def integers(toy_store: ContentStore) -> Job:
    """The toy job whose gradient is a product of integers."""
    return toyjob.load(toy_store, integers=True)


@pytest.fixture
def told(products: str, toy: Job, integers: Job) -> Job:
    """The job that is lied about."""
    return integers if products == "int8" else toy


@pytest.fixture
def honest_told(told: Job) -> ClaimRun:
    """Slot 1 of round 0."""
    return slot_run(told, told.genesis, toyjob.SEED, 0, 1)


def lie_of(name: str, seed: int, job: Job) -> Cheat:
    return cheat_of(name, job.programs, job.params, seed, CHAIN_ID)


def claim_of(run: ClaimRun, held: HeldClaim) -> game.DisputedClaim:
    """What the market would say of the claim."""
    params = run.job.params
    body = Body(TraceRoot(trace_root(held.trace)), NO_STATE, NO_STATE)
    return game.DisputedClaim(
        ClaimId(b"claim".ljust(32)), games.WORKER, run.transitions, body, held.state_zero,
        ProgramRoot(params.role.step_program), ProgramRoot(params.role.encode_program), run.seed, run.round, run.slot,
        TensorRoot(params.role.dataset_root), params.role.dataset_rows, params.role.row_length, Seconds(120),
        Seconds(10), Wei(1),
    )  # fmt: skip


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("name", "seed", "products"), SPOKEN)
def test_the_lie_begins_at_its_declared_step_and_op_and_nowhere_before(
    name: str, seed: int, honest_told: ClaimRun, told: Job
) -> None:
    cheat = lie_of(name, seed, told)
    expected, lying = cheat.expectation, cheat.run(honest_told)
    truth, lies = HeldClaim.of(honest_told), HeldClaim.of(lying)
    differing = [t for t, (a, b) in enumerate(zip(truth.trace, lies.trace, strict=True), 1) if a != b]
    assert differing[0] == expected.step, "the first step that differs"
    honest_step, lying_step = truth.whole(expected.step), lies.whole(expected.step)
    ops = [i for i, (a, b) in enumerate(zip(honest_step.roots, lying_step.roots, strict=True)) if a != b]
    assert ops[0] == expected.op_index, "the first op that differs"
    assert expected.op_kind == honest_step.program.ops[ops[0]].kind.name.lower()
    assert honest_step.program.name_of(ops[0]) == expected.op_name
    if expected.element is not None:
        a, b = (s.output(ops[0]).words.astype(np.int64) for s in (honest_step, lying_step))
        assert np.flatnonzero(a != b).tolist() == [expected.element], "one element alone"
        off = abs(int(a[expected.element]) - int(b[expected.element]))
        if expected.op_kind == "quant":
            codes = [np.array([w[expected.element]], np.uint32).view(np.int8).astype(int) for w in (a, b)]
            assert sorted(abs(codes[0] - codes[1])) == [0, 0, 0, 1], "one code, by one"
            assert max(abs(codes[1])) <= 127, "by a code"
        else:
            assert off == 1, "by one ulp"
    assert lying_step.root == lies.trace[expected.step - 1], "what is shown is what was claimed"
    assert lying_step.program is honest_told.program(expected.step), "the honest Program is what is defended"


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("name", "seed", "products"), SPOKEN)
def test_the_game_ends_exactly_where_the_lie_was_declared(
    name: str, seed: int, honest_told: ClaimRun, told: Job
) -> None:
    cheat = lie_of(name, seed, told)
    truth, lies = HeldClaim.of(honest_told), HeldClaim.of(cheat.run(honest_told))
    claim = claim_of(honest_told, lies)
    opening = honest.opening(claim, truth, lies.trace, 0)
    assert opening is not None, "the lie shows in the trace"
    match = games.Match(claim)
    ended = match.run(opening, games.defends(lies), games.challenges(truth))
    finding = match.finding
    assert ended.verdict == moves.Verdict.FRAUD
    assert finding is not None
    expected = cheat.expectation
    program = getattr(told.programs, expected.program)
    assert (finding.program, finding.t, finding.position) == (program.root, expected.step, expected.op_index)
    assert finding.wrong == moves.Wrong.OP
    if expected.element is not None:
        assert finding.element == expected.element
    if expected.chunk is not None:
        assert finding.chunk == expected.chunk > 0


def test_a_liar_that_is_silent_loses_by_the_clock(honest_run: ClaimRun, toy: Job) -> None:
    cheat = lie_of("silent", 0, toy)
    assert cheat.silent, "it makes no move"
    assert cheat.expectation.verdict == "timeout"
    truth, lies = HeldClaim.of(honest_run), HeldClaim.of(cheat.run(honest_run))
    claim = claim_of(honest_run, lies)
    opening = honest.opening(claim, truth, lies.trace, 0)
    assert opening is not None
    assert games.Match(claim).run(opening, games.silent, games.challenges(truth)).verdict == moves.Verdict.TIMEOUT


def test_an_honest_claim_opens_no_game(honest_run: ClaimRun) -> None:
    truth = HeldClaim.of(honest_run)
    assert honest.opening(claim_of(honest_run, truth), truth, truth.trace, 0) is None


def test_some_lie_about_a_sum_sits_in_a_later_chunk(toy: Job, integers: Job) -> None:
    for job in (toy, integers):
        chunks = [lie_of("one-ulp", seed, job).expectation.chunk for seed in SEEDS]
        assert all(c is not None and c > 0 for c in chunks), chunks


@pytest.mark.parametrize("name", INTEGER_CHEATS)
def test_a_lie_about_codes_wants_a_job_with_codes(name: str, toy: Job) -> None:
    with pytest.raises(UsageError) as error:
        lie_of(name, 0, toy)
    assert "int8" in error.value.hint


def test_who_rounds_to_nearest_draws_nothing_at_any_step(integers: Job) -> None:
    cheat = lie_of("nearest-instead-of-stochastic", 0, integers)
    assert set(cheat.forgeries) == set(range(1, toyjob.STEPS + 1))
    honest_ops, lying_ops = integers.programs.step.ops, cheat.forgeries[1].program.ops
    drawn = [i for i, op in enumerate(honest_ops) if op.kind == Kind.QUANT and op.p1 >= STOCHASTIC]
    assert drawn == [cheat.expectation.op_index]
    assert [i for i, (a, b) in enumerate(zip(honest_ops, lying_ops, strict=True)) if a != b] == drawn


def test_a_lie_that_does_not_show_is_known_before_the_run(
    honest_run: ClaimRun, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lie_of("one-ulp", 0, toy).run(honest_run).shows
    assert lie_of("scaled-payload", 0, toy).run(honest_run).shows
    monkeypatch.setattr("lockstep.demo.cheats.lies.NUDGES", (0,))
    lying = lie_of("one-ulp", 0, toy).run(honest_run)
    assert not lying.shows, "the word stays as it is"
    assert HeldClaim.of(lying).trace == HeldClaim.of(honest_run).trace


def test_a_lie_of_one_seed_has_as_many_places_as_are_drawn(toy: Job) -> None:
    places = [cheat_of("one-ulp", toy.programs, toy.params, 0, CHAIN_ID, draw).expectation for draw in range(8)]
    assert places[0] == lie_of("one-ulp", 0, toy).expectation
    assert len({(e.op_index, e.element) for e in places}) > 4


@pytest.mark.parametrize("name", CARRY_CHEATS)
def test_a_lie_about_a_carry_wants_a_job_with_one(name: str, toy: Job) -> None:
    with pytest.raises(UsageError) as error:
        lie_of(name, 0, toy)
    assert "--strategy" in error.value.hint


def test_a_stale_carry_is_lied_about_as_soon_as_there_is_one(toy_store: ContentStore) -> None:
    job = toyjob.load(toy_store, carry=1)
    cheat = lie_of("stale-carry", 0, job)
    first = slot_run(job, job.genesis, toyjob.SEED, 0, 1)
    early = cheat.run(first)
    assert not early.lied, "round 0 starts from zero anyway"
    assert HeldClaim.of(early).trace == HeldClaim.of(first).trace
    *_, (_, final, _) = first.states()
    out, out2 = job.payload_roots(payload_of(job, final), carry_of(job, final))
    kept = CarryIn(Body(TraceRoot(bytes(32)), StateRoot(out), StateRoot(out2)), carry_of(job, final))
    run = slot_run(job, job.genesis, toyjob.SEED, 1, 1, kept)
    lying = cheat.run(run)
    assert lying.lied
    truth, lies = HeldClaim.of(run), HeldClaim.of(lying)
    claim = replace(claim_of(run, lies), state_zero=truth.state_zero, carried=truth.carried)
    opening = honest.opening(claim, truth, lies.trace, 0)
    assert opening is not None, "the lie shows in the trace"
    match = games.Match(claim)
    ended = match.run(opening, games.defends(lies), games.challenges(truth))
    assert ended.verdict == moves.Verdict.FRAUD
    assert match.finding is not None
    assert (match.finding.t, match.finding.position) == (1, cheat.expectation.op_index)


def test_a_value_changes_places_with_a_zero_of_its_pair() -> None:
    words = np.array([0, 0, 7, 0, 7, 7, 0, 0x80000000, 7], np.uint32)
    assert {Swap(1, 0, nth).place(words) for nth in range(4)} == {2, 6}, "a kept zero is -0; the last has no pair"
    assert Swap(1, 0, 0).place(np.ones(8, np.uint32)) is None


def test_a_payload_that_keeps_every_element_has_no_wrong_index(honest_run: ClaimRun, toy: Job) -> None:
    lying = lie_of("wrong-index", 0, toy).run(honest_run)
    assert HeldClaim.of(lying).trace == HeldClaim.of(honest_run).trace
    assert not lying.lied


def test_the_same_seed_lies_in_the_same_place(integers: Job) -> None:
    for name in set(OF_SLOTS) - set(CARRY_CHEATS):
        assert lie_of(name, 3, integers).expectation == lie_of(name, 3, integers).expectation, name


@pytest.mark.parametrize("chain", [1, 11155111, 31338])
def test_cheats_refuse_every_chain_but_a_devnet(chain: int, integers: Job) -> None:
    for name in OF_SLOTS:
        with pytest.raises(UsageError, match="chain"):
            cheat_of(name, integers.programs, integers.params, 0, chain)


def test_an_unknown_cheat_is_a_usage_error(toy: Job) -> None:
    with pytest.raises(UsageError) as error:
        lie_of("kindness", 0, toy)
    assert "one-ulp" in error.value.hint, "the hint lists what there is"


def test_a_lie_that_rounding_swallows_is_not_told(honest_run: ClaimRun, toy: Job) -> None:
    cheat = lie_of("one-ulp", 0, toy)
    run = cheat.run(honest_run)
    assert isinstance(run, LyingRun)
    assert not run.lied, "nothing is computed yet"
    HeldClaim.of(run)
    assert run.lied


words = st.integers(0, 0xFFFFFFFF).filter(lambda w: not scalar.is_nan(w))


@given(st.lists(words, min_size=2, max_size=6), st.data())
def test_wrong_partials_combine_to_the_lie_and_differ_in_one_chunk(partials: list[int], data: st.DataObject) -> None:
    chunk = data.draw(st.integers(1, len(partials) - 1))
    total = combine(partials)
    lie = (total + data.draw(st.sampled_from([1, -1]))) & scalar.MASK
    found = wrong_partials(Fold.SUM, partials, chunk, lie)
    if found is None:
        return
    assert combine(found) == lie
    assert [i for i, (a, b) in enumerate(zip(found, partials, strict=True)) if a != b] == [chunk]


@given(st.lists(st.floats(0.5, 1, width=32), min_size=2, max_size=6), st.sampled_from([1, -1]))
def test_sums_of_like_terms_can_always_be_off_by_one_ulp(values: list[float], off: int) -> None:
    partials = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]
    lie = combine(partials) + off
    assert wrong_partials(Fold.DOT, partials, len(partials) - 1, lie) is not None


def combine(partials: list[int] | tuple[int, ...]) -> int:
    acc = 0
    for word in partials:
        acc = scalar.fadd(acc, word)
    return acc


def test_an_inserted_copy_changes_no_state(honest_run: ClaimRun, toy: Job) -> None:
    program = toy.programs.step
    for at in range(len(program.ops)):
        tapped = inserted(program, at, (Instr(scalar.Opcode.MOV, 0),))
        out = toy.executable(tapped).run(honest_run.start, honest_run.context(1), toy.dataset)
        assert honest_run.root(1, list(out)) == honest_run.root(1, honest_run.advance(1, honest_run.start)), at


def test_nothing_that_is_shown_of_an_honest_step_is_changed(honest_run: ClaimRun, toy: Job) -> None:
    cheat = lie_of("other-data", 0, toy)
    lying, truth = cheat.run(honest_run), honest_run
    state = truth.advance(1, truth.start)
    graphs = [Digest(merkle.node_at(run.materialise(2, state).graph, -1, 0)) for run in (lying, truth)]
    assert graphs[0] == graphs[1], "step 2 of the same state is honest"
    assert toyjob.STEPS > 1
