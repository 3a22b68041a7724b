"""Records jobs that a home refuses because its executor computed them wrongly, or because they killed the executor.

A refusal is written to disk at once, as one file per job, `refused/<job>.json`. It is in force until the owner clears
it (`retry` of each program) or another build runs in the home and tries the job again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.base.files import write_atomically
from lockstep.numerics.built import build_name
from lockstep.protocol.errors import Crashed, Malformed, WrongBits
from lockstep.protocol.types import ClaimId, JobId

FOLDER, LOSSES = "refused", "refused-losses"
"""Folders of the home: for refused jobs, and for jobs of which only the loss is refused."""


@dataclass(frozen=True)
class Refusal:
    """The reason why a job is refused: wrong bits, or the death of the process that ran it."""

    job: JobId
    message: str
    """Description of the failure and its step."""
    claim: ClaimId | None = None
    """The claim that was being computed; None if the failure came before the job was joined."""
    build: str = ""
    """The build that computed (`numerics.built.build_name`)."""
    code: str = WrongBits.code
    """The code of the error."""


class Refusals:
    """The refused jobs of one home.

    Nothing is cached in memory, because a command may clear a refusal while a worker runs.
    """

    def __init__(self, home: Path, folder: str = FOLDER) -> None:
        """The first refusal creates the folder. Another `folder` is for refusals of less than a whole job."""
        self._folder = home / folder

    def record(self, job: JobId, error: WrongBits | Crashed, claim: ClaimId | None = None) -> None:
        """Refuses a job; the refusal is durable when this returns."""
        said = {
            "message": error.message,
            "claim": claim.hex() if claim else None,
            "build": build_name(),
            "code": error.code,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(job), [json.dumps(said).encode()])

    def of(self, job: JobId) -> Refusal | None:
        """Returns the refusal of a job, if this build has one in force."""
        path = self._path(job)
        try:
            said: Any = from_json(file_bytes(path), MAX_FILE_BYTES)
            claim = None if said["claim"] is None else ClaimId(bytes.fromhex(said["claim"]))
            found = Refusal(job, str(said["message"]), claim, str(said["build"]), str(said["code"]))
        except FileNotFoundError:
            return None
        except (OSError, Malformed, LookupError, TypeError, ValueError):
            # INVARIANT: a refusal that cannot be read is in force.
            return Refusal(job, f"it was refused, and {path} is damaged, which says why")
        return found if found.build == build_name() else None

    def all(self) -> dict[JobId, Refusal]:
        """Returns every refusal that is in force."""
        found: dict[JobId, Refusal] = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                job = JobId(bytes.fromhex(path.stem))
            except ValueError:
                continue
            if (refusal := self.of(job)) is not None:
                found[job] = refusal
        return found

    def forget(self, job: JobId) -> None:
        """Removes the refusal of a job, which may then be tried again."""
        self._path(job).unlink(missing_ok=True)

    def _path(self, job: JobId) -> Path:
        return self._folder / f"{job.hex()}.json"
