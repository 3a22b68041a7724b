"""Better loss: an evaluation's worker, or its merger, reports another loss than the model has on the rows drawn.

In the payload, in the sum by one ulp, in one batch's loss with all that follows from it, on rows of its own choice, or
of better parameters than those that are asked about. The others' batches are what the job then reports.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from lockstep.client import JobHandle
from lockstep.execution.jobs import ClaimRun
from lockstep.presets import Terms
from lockstep.protocol.programs.program import Kind, Program
from lockstep.training.metrics import EvaluationSpec, read_metrics
from tests.adversarial.cheat import Cheat, Ended, convict, ended, run
from tests.adversarial.court import LONG, Court, Where
from tests.adversarial.lies import Lie, at, by_program, changed, lying, named, recomputed, with_op, with_word, words
from tests.support import evaluations
from tests.support.toyjob import TOY_TERMS

SUM = 2
"""The entry of a slot's state that is its sum."""
ENCODE = evaluations.BATCHES + 1
TERMS: Terms = replace(TOY_TERMS, **{k: v for k, v in LONG.items() if k != "rounds"})


def hired(court: Court) -> JobHandle:
    """The court's job is an evaluation now, its round 0 sealed."""
    court.forget()
    handle = court.hire(evaluations.job(terms=TERMS))
    court.seal()
    court.spent = []
    return handle


def behind(program: Program, entry: int) -> int:
    """The op that makes an entry of the next state."""
    return program.outputs[entry].index


def loss_of_the_batch(program: Program) -> int:
    """The op that gives a batch's mean loss: the last before it is added."""
    return max(i for i in range(len(program.ops)) if program.name_of(i) == "nll_loss_forward")


def rows_of_the_batch(program: Program) -> int:
    """The op that draws."""
    return next(i for i, op in enumerate(program.ops) if op.kind == Kind.DRAW)


def halved(run, t, step):  # type: ignore[no-untyped-def]
    """The payload claims half the sum."""
    op = behind(step.program, 0)
    return changed(step, {op: step.output(op).array * np.array([0.5, 1, 1], np.float32)})


def one_ulp_less(run, t, step):  # type: ignore[no-untyped-def]
    """The sum has one ulp less; what is added later is added to that."""
    op = behind(step.program, SUM)
    return changed(step, {op: with_word(step.output(op).array, 0, int(words(step.output(op).array)[0]) - 1)})


def easier_batch(run, t, step):  # type: ignore[no-untyped-def]
    """One batch is said to be easier, and everything behind that is computed honestly."""
    op = loss_of_the_batch(step.program)
    return recomputed(run, changed(step, {op: step.output(op).array * np.float32(0.9)}), op)


def other_rows(program: Program) -> Program:
    """The rows that would be drawn further on."""
    draw = rows_of_the_batch(program)
    return with_op(program, draw, replace(program.ops[draw], p0=program.ops[draw].p0 + 1000))


LIES: Mapping[str, tuple[Lie, Callable[[ClaimRun], Where]]] = {
    "half of it in the payload": (
        at(ENCODE, halved), lambda honest: Where(ENCODE, behind(honest.program(ENCODE), 0), 0, rule="op"),
    ),
    "one ulp of the sum": (
        at(3, one_ulp_less), lambda honest: Where(3, behind(honest.program(3), SUM), 0, rule="op"),
    ),
    "one batch's, and all that follows": (
        at(2, easier_batch), lambda honest: Where(2, loss_of_the_batch(honest.program(2)), 0, rule="op"),
    ),
    "on rows of its choice": (
        at(range(1, ENCODE), by_program(other_rows)),
        lambda honest: Where(1, rows_of_the_batch(honest.program(1)), rule="op"),
    ),
}  # fmt: skip


def lie_of(name: str) -> Callable[[Court], Ended]:
    """Slot 0 tells the lie of that name; the job reports what the two others have found."""

    def play(court: Court) -> Ended:
        handle = hired(court)
        lie, where = LIES[name]
        honest = court.run(0)
        return reported(court, handle, convict(court, lying(honest, lie), where(honest)))

    return play


def better_model(court: Court) -> Ended:
    """Slot 0 evaluates other parameters than the job's."""
    handle = hired(court)
    honest = court.run(0)
    other = evaluations.parameters(2)
    liar = replace(honest, start=[other, other, *honest.start[2:]])
    # Tokens are looked up before anything else of the parameters is read.
    declared = Where(1, named(honest.program(1), "tokens.embedding"), rule="op")
    return reported(court, handle, convict(court, liar, declared))


def found_out_later(court: Court) -> Ended:
    """Slot 0's half is merged before anybody looks: the merge stands, and whoever reads the loss merges without it."""
    handle = hired(court)
    lie, where = LIES["half of it in the payload"]
    honest = court.run(0)
    runs = [lying(honest, lie), court.run(1), court.run(2)]
    claims = court.claim({0: runs[0]})
    court.merge()
    assert handle.metrics().batches == 3 * evaluations.BATCHES, "nobody knows better yet"
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    checkpoint, _ = handle.checkpoint()
    payloads = [payload_of_run(each) for each in runs]
    assert checkpoint.outer[0].tobytes() == evaluations.added(payloads).tobytes(), "the chain's own, with the lie"
    found, due = handle.metrics(), evaluations.added(payloads[1:])
    assert found == read_metrics([due], court.job.programs.step, EvaluationSpec(next_token=True), left_out=1)
    return ended(court, game, where(honest))


def payload_of_run(claimed: ClaimRun) -> np.ndarray:
    """What a slot puts out."""
    *_, (_, final, _) = claimed.states()
    assert final[0] is not None
    return final[0]


def reported(court: Court, handle: JobHandle, end: Ended) -> Ended:
    """The end; what the job reports is the sum of the honest slots, to the last bit."""
    payloads = [payload_of_run(court.run(slot)) for slot in (1, 2)]
    checkpoint, _ = handle.checkpoint()
    assert checkpoint.outer[0].tobytes() == evaluations.added(payloads).tobytes()
    found = handle.metrics()
    assert (found.batches, found.left_out) == (2 * evaluations.BATCHES, 0), "the liar's were not merged"
    return end


def lying_merger(court: Court) -> Ended:
    """The merge takes a tenth off; a slot owner merges in the liar's stead."""
    hired(court)
    court.claim()

    def less(run, t, step):  # type: ignore[no-untyped-def]
        op = behind(step.program, 1)
        return changed(step, {op: step.output(op).array * np.array([0.9, 1, 1], np.float32)})

    claim = court.merge(lambda honest: lying(honest, less))
    merger = court.name_of(court.record(claim).worker)
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    declared = Where(1, behind(court.job.programs.merge, 1), 0, rule="op")
    court.settle()
    court.balance({merger: court.params.merge.stake})
    return ended(court, game, declared)


CHEAT = Cheat(
    "better loss in an evaluation", "fraud",
    {
        **{name: lie_of(name) for name in LIES}, "of better parameters": better_model,
        "found out after the merge": found_out_later, "in the merge": lying_merger,
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_better_loss_than_the_model_s_is_convicted(court: Court, form: str) -> None:
    run(court, CHEAT, form)


def test_whoever_evaluates_honestly_is_never_convicted(court: Court) -> None:
    handle = hired(court)
    claims = court.claim()
    assert court.audits() == {}
    game = court.open_at(claims[1], ENCODE, "mallory")
    assert court.play(game, court.defender(game)).name == "REJECTED", "mallory has nothing to point at"
    court.settle()
    court.balance({"mallory": court.params.prices.bond})
    assert handle.metrics().batches == 3 * evaluations.BATCHES
