"""False claims about models of one's own, hired by the SDK: running statistics, recurrences, an evaluation's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.execution.jobs import ClaimRun, TrainingJob
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.programs.program import Kind, Program, Tag
from lockstep.training.export import load_model
from lockstep.training.metrics import EvaluationSpec, read_metrics
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies.sparseloco import SparseLoCo
from tests.adversarial.cheat import Outcome, Story
from tests.adversarial.claims import Convicts, Liar
from tests.adversarial.court import LONG, Court
from tests.adversarial.lies import (
    Array,
    Change,
    Lie,
    Lying,
    at,
    by_program,
    edits,
    lying,
    next_of,
    outputs_of,
    starts,
    with_op,
    word,
    written,
)
from tests.adversarial.lies import scaled as times
from tests.support import evaluations, own_models
from tests.support.toyjob import TOY_TERMS

ENCODE = own_models.STEPS + 1
EVALUATED = evaluations.BATCHES + 1
"""The encode of an evaluation."""


def hired(job: Callable[[], TrainingJob]) -> Callable[[Court], None]:
    """The court's job is that one now, its round 0 sealed."""

    def begin(court: Court) -> None:
        court.forget()
        court.hire(job())
        court.seal()
        court.spent = []

    return begin


def entry(k: int) -> Callable[[Program], int]:
    """The op that makes an entry of the next state."""
    return lambda program: program.outputs[k].index


# -- running statistics of a batch norm --------------------------------------------------------------------------------

STATISTICS = 1
"""The entry of a state, a payload and a merge that holds them."""
NORMED = hired(lambda: own_models.job(own_models.normed()))


def statistic(which: int) -> Callable[[Program], int]:
    """The op that makes the next running mean (0), variance (1) or counter (2)."""
    return lambda program: program.ops[program.ops[entry(STATISTICS)(program)].views[0].index].views[which].index


def still(array: Array, step: StepTrace) -> Array:
    """The statistics are those of the state before."""
    (before,) = (tensor for k, tensor in enumerate(step.before) if k == STATISTICS and tensor is not None)
    return before


def moved(which: int, change: Change) -> Lie:
    """One of them is another, and what is joined is computed from that."""
    return edits(2, {statistic(which): change}, follows=True)


ULP = word(5, lambda old: old ^ 1)
"""One channel in its last bit."""


def _others(run: Lying, t: int, step: StepTrace) -> StepTrace:
    after = (np.zeros_like(x) if k == STATISTICS and x is not None else x for k, x in enumerate(next_of(step)))
    return written(step, outputs_of(step), tuple(after))


OTHERS = at(ENCODE, _others)
"""Honest steps, and then statistics of one's own choice."""


def payload_of(run: ClaimRun) -> Sequence[Array]:
    """What a slot puts out."""
    *_, (_, final, _) = run.states()
    return [x for x in final[:2] if x is not None]


def averaged(story: Story, slots: Sequence[int] = (1, 2)) -> Story:
    """The model that is downloaded then has the mean of the statistics of `slots`, word for word."""

    def told(court: Court) -> Outcome:
        end = story(court)
        court.settle()
        handle, sent = court.handle(), [payload_of(court.run(slot))[STATISTICS] for slot in slots]
        mean = (sum(sent[1:], start=sent[0]) / np.float32(len(slots))).astype(np.float32)
        assert handle.checkpoint()[0].shared[STATISTICS].tobytes() == mean.tobytes()
        with own_models.registered():
            norm: Any = load_model(handle.download(Path(court.folder) / "model" / handle.id.hex()).parent).norm
        assert norm.num_batches_tracked == own_models.STEPS
        assert norm.running_mean.numpy().tobytes() == mean[: norm.num_features].tobytes()
        return end

    return told


# -- recurrences, unrolled: a Program has one op for each token --------------------------------------------------------

STEP, TOKENS, TOKEN, ELEMENT = 2, 3, 1, 17
"""A token that is neither the first nor the last."""


def recurrent(kind: str) -> Callable[[Court], None]:
    """The court's job trains a model with that recurrence."""
    model = own_models.scanned if kind == "mamba" else partial(own_models.recurrent, kind)
    return hired(lambda: own_models.job(model(), tokens=TOKENS))


def hidden(program: Program, token: int = TOKEN) -> int:
    """The op that makes the output after a token, an LSTM's hidden state: the outputs of all tokens are stacked."""
    stack = next(i for i in range(len(program.ops)) if program.name_of(i).endswith(".stack"))
    assert len(program.ops[stack].views) == TOKENS, "an op for each token"
    return program.ops[stack].views[token].index


def cell(program: Program) -> int:
    """The op that makes an LSTM's cell state: h = o tanh(c)."""
    (_, squashed) = (v.index for v in program.ops[hidden(program)].views)
    return program.ops[squashed].views[0].index


def scan(program: Program) -> int:
    """The op that makes the state of a Mamba's scan: its output is a product with that."""
    return program.ops[hidden(program)].views[0].index


def reader(program: Program) -> int:
    """The fold in which the next token's gates read a hidden state."""
    folds = (i for i, op in enumerate(program.ops) if op.kind == Kind.FOLD)
    return next(i for i in folds if (Tag.OP, hidden(program)) in ((v.tag, v.index) for v in program.ops[i].views))


def flipped(place: Callable[[Program], int]) -> Lie:
    """One bit of what is made there, so high that no later rounding hides it."""
    return edits(STEP, {place: word(ELEMENT, lambda old: old ^ 1 << 12)}, follows=True)


def normed_and_recurrent() -> TrainingJob:
    """A job whose model has an LSTM and a batch norm, and that goes on with one honest slot."""
    return own_models.job(own_models.recurrent("lstm", normed=True), tokens=TOKENS, min_slots=1)


LEFT_OUT = edits(STEP, {hidden: lambda _, step: step.output(hidden(step.program, TOKEN - 1)).array}, follows=True)
"""The hidden state after a token is the one before it."""


# -- the loss of an evaluation -----------------------------------------------------------------------------------------

SUM = 2
"""The entry of a slot's state that is its sum."""
EVALUATION = hired(
    lambda: evaluations.job(terms=replace(TOY_TERMS, **{k: v for k, v in LONG.items() if k != "rounds"}))
)
HALVED = edits(EVALUATED, {entry(0): times([0.5, 1, 1])})
"""The payload claims half the sum."""


def loss_of_the_batch(program: Program) -> int:
    """The op that gives a batch's mean loss: the last before it is added."""
    return max(i for i in range(len(program.ops)) if program.name_of(i) == "nll_loss_forward")


def rows_of_the_batch(program: Program) -> int:
    """The op that draws."""
    return next(i for i, op in enumerate(program.ops) if op.kind == Kind.DRAW)


def _further_on(program: Program) -> Program:
    draw = rows_of_the_batch(program)
    return with_op(program, draw, replace(program.ops[draw], p0=program.ops[draw].p0 + 1000))


OTHER_ROWS = at(range(1, EVALUATED), by_program(_further_on))
"""Every batch is of the rows that would be drawn further on."""


def better_model(honest: ClaimRun, court: Court) -> ClaimRun:
    """Other parameters than the job's."""
    return starts(honest, dict.fromkeys((0, 1), lambda _: evaluations.parameters(2)))


def reported(story: Story) -> Story:
    """The job then reports the sum of the honest slots, to the last bit."""

    def told(court: Court) -> Outcome:
        end = story(court)
        court.settle()
        handle, payloads = court.handle(), [payload_of(court.run(slot))[0] for slot in (1, 2)]
        assert handle.checkpoint()[0].outer[0].tobytes() == evaluations.added(payloads).tobytes()
        found = handle.metrics()
        assert (found.batches, found.left_out) == (2 * evaluations.BATCHES, 0), "the liar's were not merged"
        return end

    return told


def found_out_later(court: Court) -> Outcome:
    """Slot 0's half is merged before anybody looks: the merge stands, and whoever reads the loss merges without it."""
    runs = [lying(court.run(0), HALVED), court.run(1), court.run(2)]
    claims, handle = court.claim({0: runs[0]}), court.handle()
    court.merge()
    assert handle.metrics().batches == 3 * evaluations.BATCHES, "nobody knows better yet"
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.settle()
    payloads = [payload_of(each)[0] for each in runs]
    merged = handle.checkpoint()[0].outer[0]
    assert merged.tobytes() == evaluations.added(payloads).tobytes(), "the chain's own, with the lie"
    due = evaluations.added(payloads[1:])
    spec = EvaluationSpec(next_token=True)
    assert handle.metrics() == read_metrics([due], court.job.programs.step, spec, left_out=1)
    return game


# -- what a slot of SparseLoCo keeps -----------------------------------------------------------------------------------


def sparse(rounds: int) -> Callable[[Court], None]:
    """The court's job is one of SparseLoCo."""
    strategy = SparseLoCo(AdamW(learning_rate=1e-2, warmup=1), own_models.STEPS)
    terms = replace(own_models.TERMS, max_lead=6)
    return hired(lambda: own_models.job(own_models.spare(), strategy, rounds=rounds, terms=terms))


def kept(r: int) -> Callable[[Liar], Story]:
    """The lie is told in round `r`, in which there is something to lie about; its slot is excluded, and goes on."""

    def telling(liar: Liar) -> Story:
        def story(court: Court) -> Outcome:
            end = Convicts(liar, r)(court)
            court.merge(r=r)
            court.seal(r + 1)
            assert [court.run(slot, r + 1).carried is not None for slot in range(3)] == [False, True, True], "excluded"
            court.rounds(r + 1)
            return end

        return story

    return telling
