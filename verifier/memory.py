"""What a verifier remembers across restarts: the claims that it has replayed and found right.

Everything else the chain says again. The home is locked while a verifier runs: one key, one process.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.protocol.errors import DoctorError
from lockstep.protocol.types import ClaimId, TraceRoot

FILE_NAME, LOCK_NAME = "audits.sqlite", "verifier.lock"
SCHEMA = """
CREATE TABLE IF NOT EXISTS matches (claim BLOB, trace_root BLOB, PRIMARY KEY (claim, trace_root)) WITHOUT ROWID;
"""


class Memory:
    """The memory of one verifier's home; closes with the process."""

    def __init__(self, home: Path) -> None:
        """Lock `home` and open its memory; raises DoctorError if another verifier runs there or it is unusable."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # INVARIANT: one home, one verifier.
        self._lock = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = sqlite3.connect(home / FILE_NAME, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(SCHEMA)
        except BlockingIOError as error:
            os.close(self._lock)
            raise DoctorError(f"another verifier runs in {home}", hint="stop it first, or use another home") from error
        except sqlite3.Error as error:
            os.close(self._lock)
            raise DoctorError(
                f"{home / FILE_NAME} cannot be used: {error}", hint="remove it: claims are then replayed once more"
            ) from error

    def matched(self, claim: ClaimId, trace_root: TraceRoot) -> bool:
        """Whether the claim was replayed and found right; a claim is its trace root, not its id alone."""
        row = self._db.execute("SELECT 1 FROM matches WHERE claim = ? AND trace_root = ?", (claim, trace_root))
        return row.fetchone() is not None

    def remember(self, claim: ClaimId, trace_root: TraceRoot) -> None:
        """Keep that a claim is right."""
        self._db.execute("INSERT OR IGNORE INTO matches VALUES (?, ?)", (claim, trace_root))

    def close(self) -> None:
        """Close the memory and unlock the home."""
        self._db.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
