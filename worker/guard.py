"""The commitment guard: never two different claims for one slot, whatever crashes or is started twice.

A row is on disk before the transaction that it guards is sent (after EIP-3076, which does this for validators' votes);
the home is locked while a worker runs, so that no second process signs with the same key and another memory.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.protocol.errors import DoctorError, GuardRefused
from lockstep.protocol.types import Cid, ClaimId, Digest, TraceRoot

FILE_NAME = "guard.sqlite"
LOCK_NAME = "worker.lock"
SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    claim BLOB PRIMARY KEY, trace_root BLOB NOT NULL, out BLOB NOT NULL, out2 BLOB NOT NULL, nonce BLOB NOT NULL,
    trace_cid TEXT NOT NULL, payload_cid TEXT NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Bound:
    """What a claim is bound to, once and for all."""

    trace_root: TraceRoot
    out: Digest
    out2: Digest
    nonce: bytes
    """32 random bytes of the commitment; zeros for a merge, which commits to nothing beforehand."""
    trace_cid: Cid
    payload_cid: Cid
    """Of a merge: the checkpoint's."""

    @property
    def values(self) -> tuple[bytes, bytes, bytes]:
        """What is claimed; the rest is transport."""
        return self.trace_root, self.out, self.out2


class Guard:
    """The memory of one worker's home; closes with the process."""

    def __init__(self, home: Path) -> None:
        """Lock `home` and open its memory. GuardRefused if another worker runs there, DoctorError if it is unusable."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # INVARIANT: one home, one worker.
        self._lock = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise GuardRefused(
                f"another worker runs in {home}",
                hint="stop it first; two workers need two homes and two keys",
                code="guard_refused.locked",
            ) from error
        try:
            self._db = sqlite3.connect(home / FILE_NAME, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise DoctorError(
                f"{home / FILE_NAME} cannot be used: {error}",
                hint="restore it from a backup; without it a worker cannot know what it has signed",
            ) from error

    def bound(self, claim: ClaimId) -> Bound | None:
        """What the claim was bound to earlier, if anything."""
        row = self._db.execute(
            "SELECT trace_root, out, out2, nonce, trace_cid, payload_cid FROM claims WHERE claim = ?", (claim,)
        ).fetchone()
        return None if row is None else Bound(*row)

    def bind(self, claim: ClaimId, wanted: Bound) -> Bound:
        """Promise these values and no others; returns the row that stands (with its first nonce).

        Raises GuardRefused if the claim was bound to other values.
        """
        self._db.execute(
            "INSERT OR IGNORE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)",
            (claim, *wanted.values, wanted.nonce, wanted.trace_cid, wanted.payload_cid),
        )
        standing = self.bound(claim)
        # INVARIANT: never two different commitments for one claim.
        if standing is None or standing.values != wanted.values:
            raise GuardRefused(
                f"claim {claim.hex()[:16]} was bound to other values before",
                hint="equal inputs gave other bits, or the home is a copy: check this machine before it runs again",
            )
        return standing

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
