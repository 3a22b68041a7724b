"""Computes a claim: trains its steps, checks one of them, and stores the data that it commits to.

It runs in parallel with the loop that talks to the chain, and needs no chain itself. After a kill it continues from
the last state on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from lockstep.base.vitals import VITALS
from lockstep.execution.jobs import BackgroundTask, ClaimRun, State, carry_of, payload_of
from lockstep.execution.merging import store_payload
from lockstep.numerics import reference
from lockstep.numerics.resident import Resident
from lockstep.numerics.trace import StepTrace, TensorCache, layout_root
from lockstep.protocol.errors import WrongBits
from lockstep.protocol.programs.program import CHUNK, Kind, Program
from lockstep.protocol.types import ClaimId, Digest, Seed, StateRoot
from worker.progress import Material, WorkFolder

if TYPE_CHECKING:
    from lockstep.storage import ContentStore

CHECKED_WORDS = 12
"""Words of one step that are computed once more in Python integers before every claim."""

REST = 4
"""After a device's state is written to disk, no other is for this many times the seconds that the copy and write
took."""

CHECKED_TERMS = 1 << 12
"""Folds of more terms are checked by one chunk."""

CHECKED_BYTES = 1 << 30
"""Bytes of tensors that a check holds in memory at a time; a single op's operands may exceed it."""


@dataclass(frozen=True)
class Trained:
    """A claim ready to be committed."""

    material: Material
    seconds: float
    """Computing time in this process."""
    resumed_from: int
    """Steps that an earlier process had done."""


def train(
    run: ClaimRun, folder: WorkFolder, go_on: Callable[[], None], check: Random | None
) -> tuple[State, list[StateRoot], int]:
    """Returns (tensors of S_T, S_1..S_T, number of steps found on disk). `go_on` is called before each step and raises
    to stop the work.

    A state is hashed and written to disk while the next step is computed. One on a device is copied for that: such
    states are written as often as leaves the device most of its time.
    `check` draws the step that is checked against the reference arithmetic, of all steps, so that a process that is
    killed comes to it again; None checks nothing (a lie would fail). Raises WrongBits.
    """
    due = 0 if check is None else check.randint(1, run.transitions)
    # INVARIANT: no state at or behind the step that is due is progress before its check has passed.
    state, roots = folder.resume(run, due)
    resumed = len(roots)

    rests_until = 0.0

    def keep(t: int, state: State) -> None:
        nonlocal rests_until
        roots.append(run.root(t, state))
        began, resident = time.monotonic(), isinstance(state, Resident)
        if (began < rests_until and t < run.transitions) or (t == due and resident):
            return
        folder.save_step(run, state, roots, due)
        if resident:
            rests_until = time.monotonic() + REST * (time.monotonic() - began)

    with BackgroundTask[None]() as beside:
        for t in range(resumed + 1, run.transitions + 1):
            go_on()
            # Two states are alive: what comes after this one lies where the one before it was.
            after: State | None = run.advance(t, state)
            assert after is not None
            VITALS.count("steps_trained")
            beside.begin(partial(keep, t, after))
            if t == due and check is not None:
                beside.wait()
                resident = isinstance(after, Resident)
                if not resident:
                    # It is on disk, and a step that is shown wants its memory.
                    after = None
                check_step(run.materialise(t, state), t, roots[-1], check)
                if not resident:
                    folder.believe()
            state = _read_again(run, folder, t, state, due) if after is None else after
    return state, roots, resumed


def _read_again(run: ClaimRun, folder: WorkFolder, t: int, before: State, due: int) -> State:
    """Returns the tensors of S_t from the disk; computes them again if the file was damaged meanwhile."""
    state, roots = folder.resume(run, due)
    return state if len(roots) == t else run.advance(t, before)


def settle(
    run: ClaimRun, claim: ClaimId, attempt: int, final: State, roots: Sequence[StateRoot], store: ContentStore
) -> Material:
    """Stores payload and trace; returns the claim's outputs with their CIDs. `attempt` is the one in the claim's id."""
    layout, sections = run.program(run.transitions).output_layout, run.job.params.sections
    out, out2 = (Digest(layout_root(layout[s], final[s])) for s in (sections.payload, sections.carried))
    payload_cid = store_payload(run.job, store, payload_of(run.job, final), carry_of(run.job, final))
    trace_cid = store.put(b"".join(roots))
    return Material(
        claim, run.job.id, run.round, attempt, run.slot, run.seed, tuple(roots), out, out2, trace_cid,
        payload_cid, run.carried is not None,
    )  # fmt: skip


def compute(
    run: ClaimRun,
    attempt: int,
    folder: WorkFolder,
    store: ContentStore,
    go_on: Callable[[], None],
    check: Random | None,
) -> Trained:
    """Computes a whole claim, resuming from the disk; its material is on disk when this returns."""
    started = time.monotonic()
    material, resumed = folder.material(), 0
    if material is None:
        final, roots, resumed = train(run, folder, go_on, check)
        material = settle(run, folder.claim, attempt, final, roots, store)
        folder.save_material(material)
    folder.drop_progress()
    run.job.turn_to(None)
    return Trained(material, time.monotonic() - started, resumed)


def check_step(step: StepTrace, t: int, root: StateRoot, random: Random) -> None:
    """Compare a step with its materialised form, and some of its words with the reference arithmetic.

    The form that claims are made with is compared by its state's root alone: it has no other words to look at. What
    both forms compute wrongly alike is seen only where a drawn word falls on it: 12 words of one step, an op drawn for
    each, find a convolution's gradient among hundreds of ops once in many claims. Ops are drawn evenly, so a long step
    hides a wrong one well. A job is therefore compared with other code before it is joined
    (`execution/comparing.py`); what this is left to find is a machine that errs now and then.

    Raises WrongBits: a claim of this machine would lose its stake.
    """
    program = step.program
    # INVARIANT: what would be shown in a game is what is claimed.
    if step.root != root:
        raise _wrong(f"step {t} gives another state when its tensors are kept")
    for words in _batches(program, sorted(_drawn(program, random) for _ in range(CHECKED_WORDS))):
        part = replace(step, place=TensorCache())
        part.hold(frozenset(index for index, _ in words))
        for index, element in words:
            expected, got = _word(part, index, element, random)
            if expected != got:
                raise _wrong(f"op {index} ({program.name_of(index)}), element {element} of step {t} is wrong")


def _drawn(program: Program, random: Random) -> tuple[int, int]:
    index = random.randrange(len(program.ops))
    return index, random.randrange(program.ops[index].header.elements)


def _batches(program: Program, words: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yields lists of (op, element) whose operands and outputs fit into CHECKED_BYTES; a larger op has lists of its
    own."""
    batch: list[tuple[int, int]] = []
    for word in words:
        ops = frozenset(index for index, _ in (*batch, word))
        if batch and program.held_bytes(ops) > CHECKED_BYTES:
            yield batch
            batch = []
        batch.append(word)
    yield batch


def _word(step: StepTrace, index: int, element: int, random: Random) -> tuple[int, int]:
    """Returns (expected word, computed word) of an element, or of one chunk of a fold of more than CHECKED_TERMS
    terms."""
    op, operands = step.program.ops[index], step.operands()
    if op.kind != Kind.FOLD or op.k_terms <= CHECKED_TERMS:
        return reference.element(op, element, operands), int(step.output(index).words[element])
    group = random.randrange(-(-op.chunks // CHUNK)) if op.is_grouped else None
    words = step.partials(index, element, group)
    j = random.randrange(len(words))
    return reference.chunk(op, element, CHUNK * (group or 0) + j, operands), words[j]


def check_of(claim: ClaimId, seed: Seed) -> Random:
    """Returns the random source of a claim's self-check: the same in every process, and unknown before the seed is
    drawn."""
    return Random(bytes(claim) + bytes(seed))


def _wrong(what: str) -> WrongBits:
    return WrongBits(
        f"self-check: {what}",
        hint="this machine or build computes wrong bits, and would lose its stakes: run `lockstep doctor`",
    )
