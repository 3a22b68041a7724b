"""A worker's notes on itself, in a file of its home: `worker status` and `worker why` read them beside the chain.

The chain tells what became of a claim; why a job was never joined only the worker knows. The file is a courtesy:
nothing is decided by it, and one that is missing or damaged says nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.base.files import write_atomically
from lockstep.base.lines import event
from lockstep.protocol.errors import LockstepError, Malformed
from lockstep.protocol.types import JobId, Seconds

if TYPE_CHECKING:
    from lockstep.runtime.refusals import Refusal

FILE_NAME = "notes.json"


@dataclass(frozen=True)
class Note:
    """A state, or the reason why something does not happen, and when it is looked at again."""

    code: str
    message: str
    next: int | None = None
    """Chain time; None: nothing will change by itself."""


def of_refusal(refusal: Refusal) -> Note:
    """Returns what an owner is told of a job that its home refuses for good."""
    return Note(refusal.code, f"{refusal.message}: nothing more is claimed in this job, older claims are defended")


WORKING = Note("working", "it joins, trains and defends")
STOPPED = Note("stopped", "no worker runs in this home", None)


@dataclass
class Notes:
    """The notes of one process; `home` None: they are kept nowhere."""

    home: Path | None
    state: Note = WORKING
    jobs: dict[JobId, Note] = field(default_factory=dict)
    """Jobs that are not joined, each with its note."""
    _changed: bool = field(default=False, compare=False)
    """True while the file says something else."""

    def refused(self, job: JobId, note: Note, now: Seconds) -> None:
        """A job is not joined; told once for each reason."""
        before = self.jobs.get(job)
        if before is None or before.code != note.code:
            event("refused", time=now, job=job.hex(), code=note.code, message=note.message)
        self._set(job, note)

    def waits(self, job: JobId, note: Note) -> None:
        """A job cannot be joined yet."""
        self._set(job, note)

    def joins(self, job: JobId) -> None:
        """Nothing keeps a job from being joined any more."""
        if self.jobs.pop(job, None) is not None:
            self._changed = True

    def begins(self) -> None:
        """A process starts: what the one before said of itself is over."""
        self._write()

    def is_in(self, state: Note) -> None:
        """Notes the state of the process as a whole, at the end of a look: what changed in it is written at once."""
        if state != self.state or self._changed:
            self.state = state
            self._write()

    def ended(self, error: LockstepError) -> None:
        """The process ends with an error."""
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
