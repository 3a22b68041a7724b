"""What the chain does not know and a lost index must not forget: merges bound, nonces seen.

The index is a cache and may be deleted at any time; this file (`guard.sqlite`) is not. A row is on disk before the
transaction or the request that it guards goes on.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from lockstep.protocol.errors import AuthError, DoctorError, GuardRefused
from lockstep.protocol.types import ClaimId, Seconds

SCHEMA = """
CREATE TABLE IF NOT EXISTS merges (claim BLOB PRIMARY KEY, out BLOB NOT NULL, out2 BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nonces (
    key BLOB, nonce BLOB, expires INTEGER NOT NULL, PRIMARY KEY (key, nonce)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floor (id INTEGER PRIMARY KEY CHECK (id = 0), time INTEGER NOT NULL);
INSERT OR IGNORE INTO floor VALUES (0, 0);
"""
BUSY_SECONDS = 20


class Guard:
    """The guard of one coordinator's home; usable from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; raises DoctorError if that is impossible."""
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise DoctorError(f"{path} cannot be used: {error}", hint="check the folder's mode and the disk") from error

    def bind_merge(self, claim: ClaimId, out: bytes, out2: bytes) -> None:
        """Promise to claim these outputs and no others; raises GuardRefused if others were promised."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO merges VALUES (?, ?, ?)", (claim, out, out2))
            bound = self._db.execute("SELECT out, out2 FROM merges WHERE claim = ?", (claim,)).fetchone()
        # INVARIANT: never two different merges for one claim.
        if bound != (out, out2):
            raise GuardRefused(
                f"merge {claim.hex()[:16]} was bound to other outputs before",
                hint="the same inputs gave other bits: run `lockstep coordinator doctor` on this machine",
            )

    def merge_of(self, claim: ClaimId) -> tuple[bytes, bytes] | None:
        """(out, out2) that the claim is bound to, if any."""
        with self._lock:
            row: tuple[bytes, bytes] | None = self._db.execute(
                "SELECT out, out2 FROM merges WHERE claim = ?", (claim,)
            ).fetchone()
        return row

    def latest(self, now: Seconds) -> Seconds:
        """Chain time for judging requests: never before the time at which nonces were forgotten."""
        with self._lock:
            (floor,) = self._db.execute("SELECT time FROM floor").fetchone()
        return Seconds(max(now, floor))

    def use_nonce(self, key: bytes, nonce: bytes, expires: Seconds) -> None:
        """Remember a nonce until its request expires; raises AuthError `auth.replayed` if it was seen."""
        with self._lock:
            fresh = self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?, ?)", (key, nonce, expires)).rowcount
        # INVARIANT: a request acts at most once.
        if not fresh:
            raise AuthError(
                "this request was made before", hint="use a fresh nonce for every request", code="auth.replayed"
            )

    def forget(self, now: Seconds) -> int:
        """Drop nonces whose requests are refused as expired from now on; returns how many."""
        with self._lock:
            self._db.execute("UPDATE floor SET time = max(time, ?)", (now,))
            return self._db.execute("DELETE FROM nonces WHERE expires < ?", (now,)).rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
