"""Running statistic: the mean, variance or counter that a step writes for a batch norm is another than the Program's.

One channel a little off, statistics that stand still, a batch counted twice, others in the payload, one's own in the
merge. Convicted, the liar is paid nothing, and the job ends with the mean of the others' statistics, word for word.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dispute import MAX_GAS, MAX_TRANSACTIONS
from lockstep.client import JobHandle
from lockstep.execution.jobs import ClaimRun
from lockstep.protocol.programs.program import Program
from lockstep.training.export import load_model
from tests.adversarial.cheat import Cheat, Ended, convict, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, at, changed, lying, next_of, outputs_of, recomputed, with_word, words, written
from tests.support import own_models

ENTRY = 1
"""The entry of a state, a payload and a merge that holds the statistics."""
STEP, CHANNEL = 2, 5
ENCODE = own_models.STEPS + 1


def hired(court: Court) -> JobHandle:
    """The court's job trains a model with a batch norm now, its round 0 sealed."""
    court.forget()
    handle = court.hire(own_models.job(own_models.normed()))
    court.seal()
    court.spent = []
    return handle


def behind(program: Program) -> int:
    """The op that makes the statistics of the next state."""
    return program.outputs[ENTRY].index


def statistic(program: Program, which: int) -> int:
    """The op that makes the next running mean (0), variance (1) or counter (2)."""
    joined = program.ops[behind(program)].views[0].index
    return program.ops[joined].views[which].index


def moved(which: int, change: Callable[[np.ndarray], np.ndarray]) -> tuple[Lie, Callable[[Program], int]]:
    """One of them is another, and what is joined is computed from that."""

    def lie(run, t, step):  # type: ignore[no-untyped-def]
        op = statistic(step.program, which)
        return recomputed(run, changed(step, {op: change(step.output(op).array)}), op)

    return at(STEP, lie), lambda program: statistic(program, which)


def one_ulp(array: np.ndarray) -> np.ndarray:
    """One channel in its last bit."""
    return with_word(array, CHANNEL, int(words(array)[CHANNEL]) ^ 1)


def still(run, t, step):  # type: ignore[no-untyped-def]
    """The statistics are those of the state before."""
    return changed(step, {behind(step.program): step.before[ENTRY]})


LIES: Mapping[str, tuple[Lie, Callable[[Program], int], int | None]] = {
    "a channel's mean by one ulp": (*moved(0, one_ulp), CHANNEL),
    "half of each variance": (*moved(1, lambda array: array * np.float32(0.5)), 0),
    "a batch counted twice": (*moved(2, lambda array: array + np.float32(1)), 0),
    "statistics that stand still": (at(STEP, still), behind, None),
}


def lie_of(name: str) -> Callable[[Court], Ended]:
    """Slot 0 tells the lie of that name in a step."""

    def play(court: Court) -> Ended:
        handle = hired(court)
        lie, op, element = LIES[name]
        honest = court.run(0)
        declared = Where(STEP, op(honest.program(STEP)), element, rule="op")
        return averaged(court, handle, convict(court, lying(honest, lie), declared))

    return play


def payload_of_another(court: Court) -> Ended:
    """Slot 0's steps are honest, and its payload has statistics of its own choice."""
    handle = hired(court)
    honest = court.run(0)

    def lie(run, t, step):  # type: ignore[no-untyped-def]
        sent = next_of(step)
        after = tuple(np.zeros_like(x) if k == ENTRY else x for k, x in enumerate(sent))
        return written(step, outputs_of(step), after)

    return averaged(court, handle, convict(court, lying(honest, at(ENCODE, lie)), Where(ENCODE, ENTRY, rule="alias")))


def own_in_the_merge(court: Court) -> Ended:
    """The merger hands on the base's statistics for the mean; a slot owner merges in the liar's stead."""
    handle = hired(court)
    court.claim()

    def lie(run, t, step):  # type: ignore[no-untyped-def]
        return changed(step, {behind(step.program): step.before[ENTRY]})

    claim = court.merge(lambda honest: lying(honest, lie))
    merger = court.name_of(court.record(claim).worker)
    declared = Where(1, behind(court.job.programs.merge), rule="op")
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    court.settle()
    court.balance({merger: court.params.merge.stake})
    return averaged(court, handle, ended(court, game, declared), slots=(0, 1, 2))


def averaged(court: Court, handle: JobHandle, end: Ended, slots: tuple[int, ...] = (1, 2)) -> Ended:
    """The end; the model that is downloaded has the mean of the statistics of `slots`."""
    sent = [payload_of_run(court.run(slot))[ENTRY] for slot in slots]
    checkpoint, _ = handle.checkpoint()
    total = sent[0]
    for other in sent[1:]:
        total = total + other
    assert checkpoint.shared[ENTRY].tobytes() == (total / np.float32(len(slots))).tobytes()
    with own_models.registered():
        model = load_model(handle.download(Path(court.folder) / "model" / handle.id.hex()).parent)
    norm = model.norm
    assert norm.num_batches_tracked == own_models.STEPS
    assert norm.running_mean.numpy().tobytes() == checkpoint.shared[ENTRY][: norm.num_features].tobytes()
    return end


def payload_of_run(claimed: ClaimRun) -> list[np.ndarray]:
    """The payload that a slot puts out."""
    *_, (_, final, _) = claimed.states()
    return [x for x in final[:2] if x is not None]


CHEAT = Cheat(
    "lie in a running statistic", "fraud",
    {
        **{name: lie_of(name) for name in LIES}, "others in the payload": payload_of_another,
        "the base's in the merge": own_in_the_merge,
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_statistic_that_no_batch_gave_is_convicted_at_its_word(court: Court, form: str) -> None:
    row = run(court, CHEAT, form)
    print(f"{form}: {row.found}, {row.transactions} transactions, {row.gas:,} gas")
    assert row.transactions <= MAX_TRANSACTIONS
    assert row.gas <= MAX_GAS["float32"]
