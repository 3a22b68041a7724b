"""Computes the loss after each merge from data to which the chain commits, so that anyone gets the same value.

A training job's spec may name a fourth Program, `loss`: the mean loss of the model over the rows of one step, and
nothing else. The loss after k merges is that of the checkpoint that the k-th merge claims, over the rows that the seed
of its round draws for a round k, each slot's first step; before the first merge it is that of the first weights with
round 0's seed. The chain commits to checkpoint, seed, rows and Program, so the value is unique and verifiable. The rows
are neither chosen by anyone nor read in this order by training.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base import markup
from lockstep.base.naming import short
from lockstep.execution.jobs import Job, slot_run
from lockstep.numerics import paths
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import Crashed, ProgramInvalid
from lockstep.protocol.programs.program import F32, Program
from lockstep.protocol.types import Seed
from lockstep.storage.containers import load_program
from lockstep.storage.payload import Checkpoint

if TYPE_CHECKING:
    from lockstep.storage import ContentStore

NAME = "loss"
"""Name of the loss Program in a spec."""
STEP = 1
"""The transition whose rows are drawn."""


@dataclass(frozen=True)
class MergedLoss:
    """The loss of one checkpoint."""

    merges: int
    """Number of merged rounds before the checkpoint; 0 for the first weights."""
    round: int | None
    """The round whose merge produced it; None for the first weights."""
    loss: float
    """Mean over the slots of the mean over one step's rows; in nats if the model predicts next tokens."""
    slots: int
    claim: str
    """ClaimId of the merge, hex; empty for the first weights."""
    checkpoint: str
    """CID of the checkpoint."""

    def __str__(self) -> str:
        claim = f"claim {short(self.claim)}" if self.claim else "the first weights"
        return f"loss {self.loss:.6f} after {self.merges} merge{'' if self.merges == 1 else 's'}, {claim}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON; a loss that is not finite becomes a string."""
        return {**asdict(self), "loss": self.loss if math.isfinite(self.loss) else str(self.loss)}


class Curve(tuple[MergedLoss, ...]):
    """The losses of a run in order; a notebook draws them, and print lists them."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no loss yet"

    def __repr__(self) -> str:
        return f"<Curve: {', '.join(f'{x.loss:.6f}' for x in self) or 'no loss yet'}>"

    def _repr_html_(self) -> str:
        points = [
            (x.merges, x.loss, f"{x.loss:.6f} after {x.merges} merges, claim {short(x.claim) or '-'}") for x in self
        ]
        return markup.curve(points, "loss after each merge")


class Losses:
    """The loss Program of a job, compiled."""

    def __init__(self, job: Job, program: Program) -> None:
        self._job = job
        self._executable = (
            job.box.executable(program)
            if job.box is not None and job.box.holds(program)
            else paths.compile(program, threads=job.threads, path="auto")
        )

    @staticmethod
    def of(job: Job, store: ContentStore) -> Losses | None:
        """Returns the job's losses, or None if it has no loss Program.

        Raises ProgramInvalid if that Program is not a loss.
        """
        cid = job.spec.programs.get(NAME)
        if cid is None:
            return None
        if job.box is not None:
            # The child decodes and plans the Program first, within its limits.
            job.box.decode(cid)
        program = load_program(store, cid)
        validate(program)
        if job.box is not None:
            job.box.hold(program)
        # INVARIANT: it reads what a step reads, and puts one number out.
        outputs = [header for header in program.output_layout if header is not None]
        if program.inputs != job.programs.step.inputs or [(h.dtype, h.elements) for h in outputs] != [(F32, 1)]:
            raise ProgramInvalid(
                "the job's loss Program does not have the form of a loss",
                hint="the job is valid, but its losses cannot be computed",
            )
        return Losses(job, program)

    def at(self, checkpoint: Checkpoint, seed: Seed, merges: int, seconds: float | None = None) -> float:
        """Returns the loss of the checkpoint after `merges` merges.

        `seconds` bounds all slots together. Raises Crashed when they are over, even while a child computes a slot.
        """
        ends = None if seconds is None else time.monotonic() + seconds
        found = []
        for slot in range(self._job.params.role.slots):
            if ends is not None and time.monotonic() >= ends:
                raise Crashed(f"its loss takes longer than {seconds:.0f} s", hint="the job is shown without a loss")
            run = slot_run(self._job, checkpoint, seed, merges, slot)
            with nullcontext() if self._job.box is None else self._job.box.losses_until(ends):
                state = self._executable.run(run.start, run.context(STEP), self._job.dataset)
            found += [float(tensor.reshape(-1)[0]) for tensor in state if tensor is not None]
        self._executable.free_scratch()
        return math.fsum(found) / len(found)
