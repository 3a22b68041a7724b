"""Runs a job's rounds on this machine: the loss after every merge, and the last round's model."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.lines import say
from lockstep.cli.watching import sparkline
from lockstep.protocol.errors import UsageError

if TYPE_CHECKING:
    from lockstep.execution.jobs import TrainingJob


def rehearsed(job: TrainingJob, threads: int, out: Path | None) -> tuple[dict[str, Any], str]:
    """Returns the command's `data` and text; progress goes to stderr. Raises UsageError if `out` cannot be written."""
    from lockstep.training.export import save_model
    from lockstep.training.rehearsal import Rehearsal

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}", hint="name another folder") from error
    rehearsal = Rehearsal(job, threads=threads)
    state = rehearsal.first()
    losses, seconds = [rehearsal.loss(state)], []
    for _ in range(job.rounds):
        began = time.monotonic()
        state = rehearsal.next(state)
        seconds.append(time.monotonic() - began)
        losses.append(rehearsal.loss(state))
        said = "" if losses[-1] is None else f"loss {losses[-1]:.6g}, "
        say(f"round {state.round} of {job.rounds}: {said}{seconds[-1]:.1f} s")
    path = None
    if out is not None:
        parts = (state.checkpoint.shared, job.parameters, job.model, job.programs.step.consts)
        path = str(save_model(out, *parts))
    known = [x for x in losses if x is not None]
    data = {
        "rounds": job.rounds,
        # JSON has no word for what is no number: "nan", "inf".
        "losses": [x if math.isfinite(x) else str(x) for x in known],
        "seconds": seconds,
        "sent_bytes": state.sent,
        "model_path": path,
    }
    curve = f"loss {known[0]:.6g} -> {known[-1]:.6g}  {sparkline(known)}" if known else "the job names no loss"
    lines = [
        f"{job.rounds} rounds of {job.slots} slots in {sum(seconds):.1f} s; {state.sent:,} bytes of payloads",
        curve,
    ]
    return data, "\n".join(lines if path is None else [*lines, path])
