"""A job as its parties run it: states, roots, and a loading that refuses what the chain does not name."""

import weakref
from pathlib import Path

import numpy as np
import pytest

from lockstep.execution import jobs
from lockstep.execution.jobs import (
    BackgroundTask,
    CarryIn,
    ClaimRun,
    Job,
    State,
    carry_of,
    check_checkpoint,
    merge_run,
    payload_of,
    slot_run,
    trace_root,
)
from lockstep.numerics.trace import layout_root, tensor_root
from lockstep.protocol import merkle
from lockstep.protocol.errors import BlobMissing, Mismatch, ProgramInvalid
from lockstep.protocol.jobs import Body
from lockstep.protocol.market import state_roots
from lockstep.protocol.programs.program import I32
from lockstep.protocol.types import MERGE_SLOT, ClaimId, StateRoot, TraceRoot
from lockstep.storage import ContentStore
from lockstep.storage.containers import JobSpec, encode_program
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import Checkpoint
from tests.support import toyjob
from tests.support.params import amended
from worker.computing import train
from worker.progress import WorkFolder

CLAIM = ClaimId(b"\xaa" * 32)


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def job(store: ContentStore) -> Job:
    return toyjob.load(store)


def test_slot_state_is_what_the_contract_computes(job: Job) -> None:
    """docs/protocol.md section 3: S_0 = node(node(base, base), node(zero carry, clock lifted))."""
    for round_ in range(3):
        run = slot_run(job, job.genesis, toyjob.SEED, round_, 2)
        base, _ = job.checkpoint_roots(job.genesis)
        clock = merkle.lift(merkle.scalar_root(I32, round_ * toyjob.STEPS), 0, 1)
        expected = merkle.node(merkle.node(base, base), merkle.node(job.params.role.zero_carry, clock))
        assert run.root(0, run.start) == expected, round_


def test_merge_state_is_what_the_contract_computes(job: Job) -> None:
    """merge_in = node(lift(node(base, outer)), node(payloads, lift(mask)))."""
    payload = (np.arange(toyjob.SIZE, dtype=np.float32),)
    run = merge_run(job, job.genesis, [payload, None, payload], toyjob.SEED, 0)
    base, outer = job.checkpoint_roots(job.genesis)
    leaf, absent = tensor_root(payload[0]), job.params.role.zero_payload
    payloads = merkle.tree([leaf, absent, leaf, merkle.EMPTY[0]])
    mask = tensor_root(np.array([1, 0, 1], np.float32))
    left = merkle.lift(merkle.node(base, outer), 2, 3)
    assert run.root(0, run.start) == merkle.node(left, merkle.node(payloads, merkle.lift(mask, 0, 2)))
    assert run.transitions == 1
    assert run.slot == MERGE_SLOT


def test_the_last_state_is_the_node_of_both_outputs(job: Job) -> None:
    run = slot_run(job, job.genesis, toyjob.SEED, 0, 0)
    *_, (t, final, root) = run.states()
    assert t == run.transitions == toyjob.STEPS + 1
    roots = job.payload_roots(payload_of(job, final))
    assert root == merkle.node(*roots)
    assert roots[1] == merkle.EMPTY[0], "carry is off: out2 = Z_p"


def test_slots_rounds_and_seeds_draw_other_data(job: Job) -> None:
    runs = [(toyjob.SEED, 0, 0), (toyjob.SEED, 0, 1), (toyjob.SEED, 1, 0), (b"\x01" * 32, 0, 0)]
    roots = {trace_root([r for _, _, r in slot_run(job, job.genesis, *key).states()]) for key in runs}
    assert len(roots) == len(runs)


def test_states_can_be_taken_up_anywhere(job: Job) -> None:
    run = slot_run(job, job.genesis, toyjob.SEED, 0, 0)
    whole = list(run.states())
    for after in (1, 4):
        rest = list(run.states(after, whole[after - 1][1]))
        assert [r for _, _, r in rest] == [r for _, _, r in whole[after:]]
    assert run.root(3, run.state_before(4)) == whole[2][2]


# -- what a slot carries


def carrying(store: ContentStore) -> Job:
    return toyjob.load(store, carry=1)


def test_a_carry_goes_from_the_last_state_of_a_round_into_the_first_of_the_next(store: ContentStore) -> None:
    job = carrying(store)
    first = slot_run(job, job.genesis, toyjob.SEED, 0, 1)
    *_, (_, final, root) = first.states()
    out, out2 = job.payload_roots(payload_of(job, final), carry_of(job, final))
    assert root == merkle.node(out, out2)
    body = Body(TraceRoot(bytes(32)), StateRoot(out), StateRoot(out2))
    carried = CarryIn(body, carry_of(job, final))
    then = slot_run(job, job.genesis, toyjob.SEED, 1, 1, carried)
    quarter = then.start[4:6]
    assert [x.tobytes() for x in quarter] == [x.tobytes() for x in carried.tensors]
    assert all(x.any() for x in quarter), "moments that have seen gradients"
    base = job.params.genesis.shared
    assert then.root(0, then.start) == state_roots.slot_zero(base, StateRoot(out2), job.params.role.inner_steps, 1)
    assert then.carried == body
    fresh = slot_run(job, job.genesis, toyjob.SEED, 1, 1)
    assert fresh.root(0, fresh.start) == state_roots.slot_zero(
        base, job.params.role.zero_carry, job.params.role.inner_steps, 1
    )
    assert trace_root([r for _, _, r in then.states()]) != trace_root([r for _, _, r in fresh.states()])


def test_the_merge_takes_the_payload_and_leaves_the_carry(store: ContentStore) -> None:
    plain, job = toyjob.load(store), carrying(store)
    finals = [list(slot_run(job, job.genesis, toyjob.SEED, 0, s).states())[-1][1] for s in range(3)]
    payloads = [payload_of(job, final) for final in finals]
    merged = merge_run(job, job.genesis, [payloads[0], None, payloads[2]], toyjob.SEED, 0)
    assert [len(p) for p in payloads] == [1, 1, 1], "no moments"
    due = merge_run(plain, job.genesis, [payloads[0], None, payloads[2]], toyjob.SEED, 0)
    assert merged.advance(1, merged.start)[0].tobytes() == due.advance(1, due.start)[0].tobytes()
    roots = [*(job.payload_root(p) for p in payloads), merkle.EMPTY[1]]
    roots[1] = job.params.role.zero_payload
    params, mask = job.params, state_roots.mask_tensor(0b101, 3)
    merge_in = state_roots.merge_in(params.genesis.shared, params.genesis.outer, roots, mask, 1, 1)
    assert merged.root(0, merged.start) == merge_in, "what the contract freezes"


class Counted(ClaimRun):
    """Counts the states that are alive when a step is computed, the one that it writes included."""

    def __init__(self, honest: ClaimRun) -> None:
        super().__init__(honest.job, honest.slot, honest.round, honest.seed, honest.start)
        self.__dict__.update(written=[], alive=[])

    def advance(self, t: int, state: State) -> State:
        after = super().advance(t, state)
        changed = next(a for a, b in zip(after, state, strict=True) if a is not None and a is not b)
        self.__dict__["written"].append(weakref.ref(changed))
        self.__dict__["alive"].append(sum(ref() is not None for ref in self.__dict__["written"]))
        return after


def test_two_states_are_alive_at_a_time(job: Job, tmp_path: Path) -> None:
    honest = slot_run(job, job.genesis, toyjob.SEED, 0, 0)
    due = [root for _, _, root in honest.states()]
    replayed, trained = Counted(honest), Counted(honest)
    assert [root for _, _, root in replayed.states()] == due
    assert train(trained, WorkFolder(tmp_path, CLAIM), lambda: None, None)[1] == due
    expected = [min(t, 2) for t in range(1, honest.transitions + 1)]
    assert replayed.__dict__["alive"] == expected
    assert trained.__dict__["alive"] == expected


def test_one_thing_is_done_beside_at_a_time_and_what_it_raises_is_not_lost() -> None:
    done: list[int] = []
    with BackgroundTask[int]() as beside:
        assert beside.wait() is None, "nothing is under way"
        for i in range(5):
            beside.begin(lambda i=i: done.append(i) or i)  # type: ignore[misc]
            assert done[:i] == list(range(i)), "what was begun before is done"
        assert beside.wait() == 4
    with pytest.raises(ZeroDivisionError), BackgroundTask[float]() as beside:
        beside.begin(lambda: 1 / 0)
    with BackgroundTask[float]() as other:
        other.begin(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            other.begin(lambda: 0.0)


def test_threads_change_no_bit(store: ContentStore) -> None:
    roots = [
        trace_root([r for _, _, r in slot_run(j, j.genesis, toyjob.SEED, 0, 1).states()])
        for j in (toyjob.load(store, threads=1), toyjob.load(store, threads=2))
    ]
    assert roots[0] == roots[1]


def test_a_checkpoint_of_other_roots_is_refused(job: Job) -> None:
    shared, outer = job.checkpoint_roots(job.genesis)
    assert check_checkpoint(job, job.genesis, shared, outer) is job.genesis
    with pytest.raises(Mismatch):
        check_checkpoint(job, job.genesis, outer, shared)
    with pytest.raises(Mismatch):
        check_checkpoint(job, Checkpoint(job.genesis.shared, ()), shared, outer)


NAMED = (
    "step_program", "encode_program", "merge_program", "dataset_root", "genesis_shared", "zero_carry", "zero_payload",
)  # fmt: skip


@pytest.mark.parametrize("part", NAMED)
def test_loading_refuses_what_the_chain_does_not_name(part: str, store: ContentStore) -> None:
    params = toyjob.publish(store)
    with pytest.raises(Mismatch):
        jobs.load(toyjob.ID, amended(params, **{part: b"\x01" * 32}), store)


def test_loading_refuses_a_carry_that_is_not_zero(store: ContentStore) -> None:
    """The contract would start every slot there; whoever started at zero would be convicted of the first step."""
    ones = np.ones(toyjob.SIZE, np.float32)
    vector = toyjob.schedule().step.inputs[4]
    carry = layout_root([vector, vector], [ones, ones])
    params = toyjob.publish(store)
    with pytest.raises(Mismatch, match="carry"):
        jobs.load(toyjob.ID, amended(params, zero_carry=carry), store)


def test_loading_refuses_other_shapes(store: ContentStore) -> None:
    params = toyjob.publish(store)
    with pytest.raises((Mismatch, ProgramInvalid)):
        jobs.load(toyjob.ID, amended(params, row_length=toyjob.TERMS + 1), store)
    with pytest.raises(Mismatch):
        jobs.load(toyjob.ID, amended(params, dataset_rows=toyjob.ROWS + 1), store)
    with pytest.raises(ProgramInvalid):
        jobs.load(toyjob.ID, amended(params, slots=2), store)


def test_loading_says_that_the_spec_is_missing(store: ContentStore) -> None:
    params = toyjob.publish(store)
    with pytest.raises(BlobMissing):
        jobs.load(toyjob.ID, amended(params, spec_digest=b"\x02" * 32), store)


def test_loading_refuses_a_spec_without_a_merge(store: ContentStore) -> None:
    params = toyjob.publish(store)
    cid = store.put(encode_program(toyjob.encode_program_of()))
    spec = JobSpec({"step": cid, "encode": cid}, cid, cid, {}, (), {})
    store.put(spec.encode(), codec="dag-cbor")
    with pytest.raises(ProgramInvalid):
        jobs.load(toyjob.ID, amended(params, spec_digest=spec.digest), store)


def test_a_subtree_needs_every_tensor(job: Job) -> None:
    header = job.programs.step.inputs[0]
    vector = np.zeros(toyjob.SIZE, np.float32)
    assert jobs.subtree_root([header, None], [vector]) == layout_root([header, None], [vector, None])
    for wrong in ([], [np.zeros(toyjob.SIZE + 1, np.float32)]):
        with pytest.raises(Mismatch):
            jobs.subtree_root([header, None], wrong)
