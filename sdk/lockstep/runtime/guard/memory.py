"""Stores a home's signing records: one row for each claim, written before anything about it is signed or committed.

It corresponds to EIP-3076's slashing protection database. Two signatures over one (chain, market, job, round, attempt,
slot, seed, base) are slashable, so that tuple is the key: after a reorganisation that changes a slot's seed, its claim
is a different one.
"""

from __future__ import annotations

import platform
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.base.closing import Closing
from lockstep.base.files import sync_folder
from lockstep.base.naming import short
from lockstep.protocol.errors import DoctorError, GuardRefused
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, Seed, StateRoot, TraceRoot

if TYPE_CHECKING:
    from web3 import Web3

    from lockstep.chain.addresses import Addresses

FILE_NAME = "guard.sqlite"
BUSY_SECONDS = 20
SCHEMA = """
CREATE TABLE IF NOT EXISTS promises (
    scope TEXT NOT NULL, claim BLOB NOT NULL, seed BLOB NOT NULL, base BLOB NOT NULL,
    trace_root BLOB NOT NULL, out BLOB NOT NULL, out2 BLOB NOT NULL, nonce BLOB NOT NULL,
    trace_cid TEXT NOT NULL, payload_cid TEXT NOT NULL, torn INTEGER NOT NULL CHECK (torn IN (0, 1)),
    PRIMARY KEY (scope, claim, seed, base)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trust (scope TEXT PRIMARY KEY, home TEXT NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "claim, seed, base, trace_root, out, out2, nonce, trace_cid, payload_cid, torn"
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Scope:
    """The account, chain and market to which records belong: a record binds only in its scope."""

    chain_id: int
    genesis: bytes
    """Hash of block 0, which distinguishes local chains with the same chain id."""
    market: Address
    account: Address

    @staticmethod
    def of(w3: Web3, addresses: Addresses, account: Address) -> Scope:
        """Returns an account's scope on the connected chain."""
        return Scope(addresses.chain_id, bytes(w3.eth.get_block(0)["hash"]), addresses.market, account)

    @property
    def key(self) -> str:
        """The scope's name in the memory's rows."""
        return f"{self.chain_id}/{self.genesis.hex()}/{self.market.lower()}/{self.account.lower()}"


@dataclass(frozen=True)
class RecordKey:
    """The key of a record: one piece of work, for which at most one result may be signed."""

    claim: ClaimId
    """Id of (chain, market, job, round, attempt, slot)."""
    seed: Seed
    base: StateRoot
    """The round's base for a slot; for a merge, the input root that the contract froze."""


@dataclass(frozen=True)
class SigningRecord:
    """The values that an account may sign for a key; they never change."""

    trace_root: TraceRoot
    out: Digest
    out2: Digest
    nonce: bytes
    """32 random bytes of the commitment; zeros for a merge, which has no commitment."""
    trace_cid: Cid
    payload_cid: Cid
    """CID of the payload; empty for a merge, which is recorded before its checkpoint is stored."""
    torn: bool = False
    """True if two machines signed different values for this key: nothing more is signed for it."""

    @property
    def values(self) -> tuple[bytes, bytes, bytes]:
        """The claimed roots: trace root and both outputs."""
        return self.trace_root, self.out, self.out2


class GuardMemory(Closing):
    """The signing records of one account; several threads and processes may share the file."""

    def __init__(self, home: Path, scope: Scope) -> None:
        """Opens or creates the memory in `home`. Raises DoctorError if it cannot be used."""
        self.scope = scope
        self._path = home / FILE_NAME
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: a committed row survives a crash of the machine, not only of the process.
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            sync_folder(home)
        except (sqlite3.Error, OSError) as error:
            raise DoctorError(
                f"{self._path} cannot be used: {error}",
                hint="restore it from an export (`guard import`); without it a home cannot know what it has signed",
            ) from error

    def record(self, place: RecordKey) -> SigningRecord | None:
        """Returns the key's record, if there is one."""
        with self._lock:
            return self._row(place)

    def bind(self, place: RecordKey, wanted: SigningRecord) -> SigningRecord:
        """Binds a key to these values; returns the record on disk, with the nonce of its first binding.

        Raises GuardRefused if other values are recorded.
        """
        with self._lock:
            self._insert(place, wanted)
            kept = self._row(place)
        # INVARIANT: never two different claims for one place.
        if kept is None or kept.torn or kept.values != wanted.values:
            raise GuardRefused(
                f"the guard refuses: this key has signed other values for claim {short(place.claim)}",
                hint="this machine computes other bits than before, or two machines use one key: find out which before "
                "you continue",
            )
        return kept

    def records(self) -> list[tuple[RecordKey, SigningRecord]]:
        """Returns every record of the scope, in the order of their places."""
        with self._lock:
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM promises WHERE scope = ? ORDER BY claim, seed, base", (self.scope.key,)
            ).fetchall()
        return [_entry(row) for row in rows]

    def merge(self, entries: Iterable[tuple[RecordKey, SigningRecord]]) -> int:
        """Merges the records of another memory atomically; returns how many rows are new or stricter.

        A key bound to different values on both sides is torn: nothing is signed for it again.
        """
        changed = 0
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for place, record in entries:
                changed += self._take(place, record)
            # The file lacks what the other machine has signed since, so the home listens again.
            self._db.execute("DELETE FROM trust WHERE scope = ?", (self.scope.key,))
        return changed

    def trusted(self) -> bool:
        """Returns True if this home has listened to the chain with this file on this machine; False for a new,
        imported, copied or restored file.
        """
        with self._lock:
            row = self._db.execute("SELECT home FROM trust WHERE scope = ?", (self.scope.key,)).fetchone()
        return row is not None and row[0] == self._identity()

    def trust(self) -> None:
        """Records that this home knows everything that its key has signed."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO trust VALUES (?, ?)", (self.scope.key, self._identity()))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # -- inside

    def _row(self, place: RecordKey) -> SigningRecord | None:
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM promises WHERE scope = ? AND claim = ? AND seed = ? AND base = ?",
            (self.scope.key, place.claim, place.seed, place.base),
        ).fetchone()
        return None if row is None else _entry(row)[1]

    def _insert(self, place: RecordKey, p: SigningRecord) -> int:
        return self._db.execute(
            "INSERT OR IGNORE INTO promises VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.scope.key, place.claim, place.seed, place.base, *p.values, p.nonce, p.trace_cid, p.payload_cid,
                p.torn,
            ),
        ).rowcount  # fmt: skip

    def _take(self, place: RecordKey, record: SigningRecord) -> int:
        if self._insert(place, record):
            return 1
        kept = self._row(place)
        assert kept is not None, "what could not be inserted is there"
        if kept.torn or (kept.values == record.values and not record.torn):
            return 0
        return self._db.execute(
            "UPDATE promises SET torn = 1 WHERE scope = ? AND claim = ? AND seed = ? AND base = ?",
            (self.scope.key, place.claim, place.seed, place.base),
        ).rowcount

    def _identity(self) -> str:
        """Identifies this file on this machine: a copy has another inode, a moved disk another machine id."""
        machine = _MACHINE_ID.read_text().strip() if _MACHINE_ID.exists() else platform.node()
        return f"{machine}/{self._path.resolve()}/{self._path.stat().st_ino}"


def _entry(
    row: tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, str, str, int],
) -> tuple[RecordKey, SigningRecord]:
    claim, seed, base, trace_root, out, out2, nonce, trace_cid, payload_cid, torn = row
    record = SigningRecord(
        TraceRoot(trace_root), Digest(out), Digest(out2), nonce, Cid(trace_cid), Cid(payload_cid), bool(torn)
    )
    return RecordKey(ClaimId(claim), Seed(seed), StateRoot(base)), record
