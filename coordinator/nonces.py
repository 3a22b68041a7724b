"""The used nonces of signed requests, which are neither on chain nor in the index.

The index is a cache and may be deleted at any time; this file (`nonces.sqlite`) is not. A row is on disk before the
request that it guards acts.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from lockstep.protocol.errors import AuthError, DoctorError
from lockstep.protocol.types import Address, Seconds

FILE_NAME = "nonces.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS used (
    account TEXT, nonce BLOB, expires INTEGER NOT NULL, PRIMARY KEY (account, nonce)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floor (id INTEGER PRIMARY KEY CHECK (id = 0), time INTEGER NOT NULL);
INSERT OR IGNORE INTO floor VALUES (0, 0);
"""
BUSY_SECONDS = 20


class Nonces:
    """The nonces of one coordinator's home; usable from several threads and processes."""

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

    def latest(self, now: Seconds) -> Seconds:
        """Returns the chain time for checking requests, which never goes back behind the time at which nonces were
        dropped."""
        with self._lock:
            (floor,) = self._db.execute("SELECT time FROM floor").fetchone()
        return Seconds(max(now, floor))

    def require_fresh(self, account: Address, nonce: bytes) -> None:
        """Raises AuthError `auth.replayed` if the account has used the nonce; does not record it."""
        with self._lock:
            seen = self._db.execute("SELECT 1 FROM used WHERE account=? AND nonce=?", (account, nonce)).fetchone()
        if seen is not None:
            raise _replayed()

    def use_nonce(self, account: Address, nonce: bytes, expires: Seconds) -> None:
        """Records a nonce until its request expires; raises AuthError `auth.replayed` if it was used."""
        row = (account, nonce, expires)
        with self._lock:
            fresh = self._db.execute("INSERT OR IGNORE INTO used VALUES (?, ?, ?)", row).rowcount
        # INVARIANT: a request acts at most once.
        if not fresh:
            raise _replayed()

    def forget(self, now: Seconds) -> int:
        """Drops the nonces of expired requests; returns how many."""
        with self._lock:
            self._db.execute("UPDATE floor SET time = max(time, ?)", (now,))
            return self._db.execute("DELETE FROM used WHERE expires < ?", (now,)).rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _replayed() -> AuthError:
    return AuthError("this request was made before", hint="use a fresh nonce for every request", code="auth.replayed")
