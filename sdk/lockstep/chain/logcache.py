"""Caches final blocks' logs on disk, so that a restarted reader requests only new blocks.

A cache that does not match (another chain or deployment, another hash at its last block, a changed byte) is dropped
with a warning, and the logs are read again from the chain.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.base.log import Logger
from lockstep.base.settings import cache_directory
from lockstep.chain.addresses import Addresses
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.types import Seconds

if TYPE_CHECKING:
    from web3 import Web3

FILE_NAME = "logs.sqlite"
VERSION = 1
FOLDER = "logs"
"""The folder of the user's cache with the logs that commands have read."""
WORTH_BLOCKS = 4_000
"""Length of a chain, in blocks since the deployment, from which a command keeps the logs that it has read."""
KEPT_SECONDS = 30 * 86_400
"""Time since a command last read a file of that folder, after which the file is deleted."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS covered (
    of      TEXT PRIMARY KEY,
    next    INTEGER NOT NULL,
    hash    TEXT NOT NULL,
    digest  BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS logs (
    of      TEXT NOT NULL,
    block   INTEGER NOT NULL,
    place   INTEGER NOT NULL,
    hash    BLOB NOT NULL,
    time    INTEGER NOT NULL,
    address TEXT NOT NULL,
    topics  BLOB NOT NULL,
    data    BLOB NOT NULL,
    tx      BLOB NOT NULL,
    PRIMARY KEY (of, block, place)
) WITHOUT ROWID;
"""

Result = TypeVar("Result")

log = Logger(__name__)


@dataclass(frozen=True)
class RawLog:
    """An undecoded log, with its block's time."""

    block: int
    place: int
    hash: bytes
    time: int
    address: str
    topics: bytes
    data: bytes
    tx: bytes

    @classmethod
    def of(cls, entry: Mapping[str, Any], time: Seconds) -> RawLog:
        """Converts an entry of eth_getLogs."""
        return cls(
            int(entry["blockNumber"]), int(entry["logIndex"]), bytes(entry["blockHash"]), int(time), entry["address"],
            b"".join(bytes(topic) for topic in entry["topics"]), bytes(entry["data"]), bytes(entry["transactionHash"]),
        )  # fmt: skip

    @property
    def entry(self) -> dict[str, Any]:
        """The log in the form of eth_getLogs."""
        return {
            "blockNumber": self.block, "logIndex": self.place, "blockHash": self.hash, "blockTimestamp": self.time,
            "address": self.address, "data": self.data, "transactionHash": self.tx,
            "topics": [self.topics[at : at + 32] for at in range(0, len(self.topics), 32)],
        }  # fmt: skip


@dataclass(frozen=True)
class Covered:
    """The end of the cached range: all blocks before `next` are in the cache."""

    next: int
    hash: str
    """The hash of the block before `next`."""
    digest: bytes = bytes(32)
    """A hash over all cached logs, in order."""


class LogCache:
    """The logs of one deployment's final blocks, in a file that several deployments and processes may share."""

    def __init__(self, path: Path, w3: Web3, addresses: Addresses, *, checked: bool = False) -> None:
        """Opens the file; a damaged file is logged and replaced.

        `checked` is True if two providers agree on the logs; the logs of an unchecked provider are a separate copy.
        """
        places = ":".join(str(each) for each in astuple(addresses))
        genesis = w3.eth.get_block(0)["hash"].hex()
        self._of = f"{VERSION}:{int(checked)}:{hashlib.sha256(f'{genesis}:{places}'.encode()).hexdigest()}"
        self._start = addresses.block
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._open()

    def close(self) -> None:
        """Closes the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def read(self, hash_of: Callable[[int], str | None]) -> tuple[list[RawLog], Covered] | None:
        """Returns all cached logs in order, and the range that they cover; None if the cache does not fit the chain.

        `hash_of` returns the chain's hash of a block.
        """
        covered = self._run(self._covered)
        if covered is None:
            return None
        # INVARIANT: the chain has the block at which the copy ends, so it has all that came before.
        if hash_of(covered.next - 1) != covered.hash:
            self._drop("its last block is not on the chain")
            return None
        logs = self._run(self._logs)
        if logs is None:
            return None
        if _digest(bytes(32), logs) != covered.digest:
            self._drop("it was changed")
            return None
        return logs, covered

    def add(self, since: int, logs: Iterable[RawLog], last: int, hash_: str) -> None:
        """Adds the logs of the blocks from `since` to `last`, unless another process was first."""
        self._run(lambda database: self._add(database, since, list(logs), last, hash_))

    def forget(self) -> None:
        """Drops the cached logs."""
        self._run(self._forget)

    # -- inside

    def _covered(self, database: sqlite3.Connection) -> Covered | None:
        row = database.execute("SELECT next, hash, digest FROM covered WHERE of=?", (self._of,)).fetchone()
        return None if row is None else Covered(int(row[0]), str(row[1]), bytes(row[2]))

    def _logs(self, database: sqlite3.Connection) -> list[RawLog]:
        columns = "block, place, hash, time, address, topics, data, tx"
        rows = database.execute(f"SELECT {columns} FROM logs WHERE of=? ORDER BY block, place", (self._of,))
        return [RawLog(*row) for row in rows]

    def _add(self, database: sqlite3.Connection, since: int, logs: list[RawLog], last: int, hash_: str) -> None:
        with database:
            database.execute("BEGIN IMMEDIATE")
            before = self._covered(database)
            # INVARIANT: nothing is missing before what a cache covers.
            if since != (self._start if before is None else before.next):
                return
            ordered = sorted(logs, key=lambda each: (each.block, each.place))
            database.executemany(
                "INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [(self._of, *astuple(each)) for each in ordered]
            )
            digest = _digest(before.digest if before is not None else bytes(32), ordered)
            database.execute(
                "INSERT OR REPLACE INTO covered VALUES (?, ?, ?, ?)", (self._of, last + 1, hash_, digest)
            )  # fmt: skip

    def _forget(self, database: sqlite3.Connection) -> None:
        with database:
            database.execute("BEGIN IMMEDIATE")
            for table in ("logs", "covered"):
                database.execute(f"DELETE FROM {table} WHERE of=?", (self._of,))

    def _drop(self, why: str) -> None:
        log.warning(
            "the local copy of the chain's logs is dropped, and the logs are read again", path=str(self._path), why=why
        )
        self._run(self._forget)

    def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Runs work on the database; on an error the cache is dropped, since everything can be read again."""
        if self._database is None:
            return None
        try:
            return work(self._database)
        except (sqlite3.OperationalError, OSError) as error:
            log.warning("the local copy of the chain's logs cannot be used now", path=str(self._path), why=str(error))
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            self._begin_anew(str(error))
        return None

    def _open(self) -> None:
        try:
            self._connect()
        except (sqlite3.OperationalError, OSError) as error:
            log.warning("the local cache of event logs cannot be opened", path=str(self._path), why=str(error))
        except sqlite3.DatabaseError as error:
            self._begin_anew(str(error))

    def _connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _begin_anew(self, why: str) -> None:
        """Replaces a damaged database file by a new one."""
        log.warning(
            "the local copy of the chain's logs is damaged, and the logs are read again", path=str(self._path), why=why
        )
        self.close()
        with suppress(OSError, sqlite3.Error):
            _delete(self._path)
            self._connect()


@contextmanager
def users_cache(rpc: str, w3: Web3, addresses: Addresses) -> Iterator[LogCache | None]:
    """Opens the user's copy of a deployment's logs, as the providers `rpc` tell them; a provider's copy serves no other
    one.

    None while the chain is short, or if the user's cache cannot be used.
    """
    cache = None
    if w3.eth.block_number - addresses.block >= WORTH_BLOCKS:
        with suppress(DoctorError):
            folder = cache_directory() / FOLDER
            name = hashlib.sha256(f"{rpc}:{addresses}".encode()).hexdigest()[:32]
            cache = LogCache(folder / f"{name}.sqlite", w3, addresses)
            _tidy(folder, f"{name}.sqlite")
    try:
        yield cache
    finally:
        if cache is not None:
            cache.close()


def _tidy(folder: Path, used: str) -> None:
    """Marks a file as used now, and deletes those that no command has used for long."""
    with suppress(OSError):
        os.utime(folder / used)
        for file in folder.glob("*.sqlite"):
            if time.time() - file.stat().st_mtime > KEPT_SECONDS:
                _delete(file)


def _delete(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _digest(before: bytes, logs: Iterable[RawLog]) -> bytes:
    """Extends the hash over all logs by these."""
    for each in logs:
        before = hashlib.sha256(before + repr(astuple(each)).encode()).digest()
    return before
