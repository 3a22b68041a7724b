"""A worker's notes on its own state, in a file of its home, which `worker status` and `worker why` read beside the
chain.

The chain records what became of a claim; only the worker knows why it never joined a job. No decision depends on the
file, and a missing or damaged one reads as empty.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.base.durations import moment
from lockstep.base.files import write_atomically
from lockstep.base.lines import event
from lockstep.market.waiting import HALTED_SECONDS
from lockstep.protocol.errors import LockstepError, Malformed
from lockstep.protocol.types import JobId, Seconds

if TYPE_CHECKING:
    from lockstep.runtime.refusals import Refusal

FILE_NAME = "notes.json"


@dataclass(frozen=True)
class Note:
    """A state, or the reason why something does not happen, and the time of its next check."""

    code: str
    message: str
    next: int | None = None
    """Chain time; None: nothing will change by itself."""


def of_refusal(refusal: Refusal) -> Note:
    """Returns the note for a job that its home refuses until the owner clears it."""
    return Note(refusal.code, f"{refusal.message}: nothing more is claimed in this job, older claims are defended")


def of_halt(still: float, head: Seconds) -> Note | None:
    """Returns the note for a chain that has brought no block for `still` machine seconds, if that is too long."""
    if still <= HALTED_SECONDS:
        return None
    return Note("chain_halted", f"the chain has brought no block since {moment(head)}: nothing can be sent")


WORKING = Note("working", "it joins, trains and defends")
STOPPED = Note("stopped", "no worker runs in this home", None)


@dataclass
class Notes:
    """The notes of one process; without a home they are kept only in memory."""

    home: Path | None
    state: Note = WORKING
    jobs: dict[JobId, Note] = field(default_factory=dict)
    """Notes on the jobs that are not joined."""
    _changed: bool = field(default=False, compare=False)
    """True while the file lacks a change of the notes."""

    def refused(self, job: JobId, note: Note, now: Seconds) -> None:
        """Notes that a job is not joined, and prints an event once for each reason."""
        before = self.jobs.get(job)
        if before is None or before.code != note.code:
            event("refused", time=now, job=job.hex(), code=note.code, message=note.message)
        self._set(job, note)

    def waits(self, job: JobId, note: Note) -> None:
        """Notes that a job cannot be joined yet."""
        self._set(job, note)

    def joins(self, job: JobId) -> None:
        """Notes that nothing keeps a job from being joined any more."""
        if self.jobs.pop(job, None) is not None:
            self._changed = True

    def begins(self) -> None:
        """Replaces the notes of an earlier process when this one starts."""
        self._write()

    def is_in(self, state: Note) -> None:
        """Notes the state of the process as a whole, at the end of a look: what changed in it is written at once."""
        if state != self.state or self._changed:
            self.state = state
            self._write()

    def ended(self, error: LockstepError) -> None:
        """Notes that the process ends with an error."""
        self.is_in(Note(error.code, f"{error.message}; {error.hint}" if error.hint else error.message))

    def _set(self, job: JobId, note: Note) -> None:
        if self.jobs.get(job) != note:
            self.jobs[job] = note
            self._changed = True

    def _write(self) -> None:
        if self.home is None:
            return
        said = {
            "pid": os.getpid(), "state": asdict(self.state), "jobs": {j.hex(): asdict(n) for j, n in self.jobs.items()}
        }  # fmt: skip
        try:
            write_atomically(self.home / FILE_NAME, [json.dumps(said).encode()])
            self._changed = False
        except (OSError, LockstepError):
            # A full disk must not end a worker; who asks then reads what was true before.
            return


def read(home: Path) -> Notes:
    """Returns the notes of a home's last worker; empty if they cannot be read."""
    try:
        said: Any = from_json(file_bytes(home / FILE_NAME), MAX_FILE_BYTES)
        jobs = {JobId(bytes.fromhex(job)): Note(**note) for job, note in said["jobs"].items()}
        return Notes(None, Note(**said["state"]), jobs)
    except (OSError, Malformed, LookupError, TypeError, ValueError, AttributeError):
        return Notes(None, STOPPED)
