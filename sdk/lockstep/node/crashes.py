"""Jobs whose Programs ended what runs them, kept in a home: no later process of the same build looks at them.

One file a job, `crashed/<job>.json`, on disk before anything else is done.
"""

from __future__ import annotations

import json
from pathlib import Path

from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.base.files import write_atomically
from lockstep.numerics.built import build_name
from lockstep.protocol.errors import Crashed, Malformed
from lockstep.protocol.types import JobId

FOLDER = "crashed"


class Crashes:
    """The jobs of one home."""

    def __init__(self, home: Path) -> None:
        """Nothing is created before there is one."""
        self._folder = home / FOLDER

    def record(self, job: JobId, error: Crashed) -> None:
        """Refuse a job for good; on disk when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        said = {"message": error.message, "build": build_name()}
        write_atomically(self._folder / f"{job.hex()}.json", [json.dumps(said).encode()])

    def all(self) -> set[JobId]:
        """Returns the jobs that this build refuses."""
        found = set()
        for path in self._folder.glob("*.json"):
            try:
                job = JobId(bytes.fromhex(path.stem))
                said = from_json(file_bytes(path), MAX_FILE_BYTES)
                # INVARIANT: a refusal that cannot be read is in force.
                if not isinstance(said, dict) or said.get("build", build_name()) == build_name():
                    found.add(job)
            except (OSError, Malformed):
                found.add(job)
            except ValueError:
                continue
        return found
