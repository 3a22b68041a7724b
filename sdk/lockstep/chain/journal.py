"""Journal of an account's signed transactions in one SQLite file: each is written before it is sent, later with its
outcome.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS transactions (
    genesis    TEXT NOT NULL,
    account    TEXT NOT NULL,
    key        TEXT NOT NULL,
    nonce      INTEGER NOT NULL,
    label      TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    data       BLOB NOT NULL,
    value      TEXT NOT NULL,
    gas        INTEGER NOT NULL,
    tip        INTEGER NOT NULL,
    max_fee    INTEGER NOT NULL,
    raw        BLOB NOT NULL,
    hashes     TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('sent', 'mined', 'reverted')),
    receipt    TEXT,
    PRIMARY KEY (genesis, account, key)
)
"""
_OURS = "account=:account AND genesis=:genesis"
_SIGNED_SCHEMA = "CREATE TABLE IF NOT EXISTS signed (hash TEXT PRIMARY KEY) WITHOUT ROWID"
"""Every transaction ever signed here; it remains when its key is forgotten."""


@dataclass(frozen=True)
class SentReceipt:
    """A mined transaction's cost and outcome."""

    key: str
    label: str
    transaction: str
    """0x-prefixed hash."""
    block: int
    gas_used: int
    gas_price: int
    """Wei of the chain's own coin per gas."""
    succeeded: bool


class OutboxJournal:
    """The transactions of one account on one chain. Not thread-safe: the caller locks."""

    def __init__(self, path: Path, account: str, genesis: str) -> None:
        """`genesis` is the hash of the chain's first block, which distinguishes local chains with the same chain id."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._where = {"account": account, "genesis": genesis}
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode=WAL")
        # FULL: a committed row survives a crash of the machine, not only of the process.
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_SCHEMA)
        self._database.execute(_SIGNED_SCHEMA)

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes the writes in its block atomic and exclusive."""
        # On a full disk SQLite rolls back the transaction by itself.
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    def row(self, key: str) -> sqlite3.Row | None:
        """Returns the transaction with this key, if any."""
        row: sqlite3.Row | None = self._run(
            f"SELECT * FROM transactions WHERE key=:key AND {_OURS}", key=key
        ).fetchone()
        return row

    def insert(self, row: dict[str, Any]) -> None:
        """Records a signed transaction, replacing one with the same key."""
        row = {**row, **self._where}
        hashes = [(hash_,) for hash_ in json.loads(row["hashes"])]
        self._database.executemany("INSERT OR IGNORE INTO signed VALUES (?)", hashes)
        columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        self._database.execute(f"INSERT OR REPLACE INTO transactions ({columns}) VALUES ({marks})", row)

    def delete(self, key: str) -> None:
        """Removes a key; the hash of its transaction stays recorded."""
        self._run(f"DELETE FROM transactions WHERE key=:key AND {_OURS}", key=key)

    def rename(self, key: str, name: str) -> None:
        """Gives a transaction another key, replacing one that has it."""
        self._run(f"UPDATE OR REPLACE transactions SET key=:name WHERE key=:key AND {_OURS}", key=key, name=name)

    def settle(self, receipt: SentReceipt) -> None:
        """Records the outcome of a transaction."""
        state, text = "mined" if receipt.succeeded else "reverted", json.dumps(asdict(receipt))
        self._run(
            f"UPDATE transactions SET state=:state, receipt=:text WHERE key=:key AND {_OURS}",
            state=state, text=text, key=receipt.key,
        )  # fmt: skip

    def unsettle(self, first: int) -> int:
        """Marks transactions from this nonce on as sent again, after a reorganisation. Returns the number of them."""
        return self._run(
            f"UPDATE transactions SET state='sent', receipt=NULL WHERE nonce>=:first AND state!='sent' AND {_OURS}",
            first=first,
        ).rowcount

    def waiting(self) -> list[sqlite3.Row]:
        """Returns the transactions sent and not known to be mined, lowest nonce first."""
        return self._run(f"SELECT * FROM transactions WHERE state='sent' AND {_OURS} ORDER BY nonce").fetchall()

    def keys(self, prefix: str) -> list[str]:
        """Returns every key with this prefix, lowest nonce first."""
        rows = self._run(f"SELECT key FROM transactions WHERE {_OURS} ORDER BY nonce")
        return [key for (key,) in rows if key.startswith(prefix)]

    def nonces(self) -> set[int]:
        """Returns every recorded nonce."""
        return {nonce for (nonce,) in self._run(f"SELECT nonce FROM transactions WHERE {_OURS}")}

    def signed(self, hash_: str) -> bool:
        """Returns True if a transaction of this 0x-prefixed hash was ever signed here."""
        return self._database.execute("SELECT 1 FROM signed WHERE hash=?", (hash_,)).fetchone() is not None

    def _run(self, statement: str, **values: object) -> sqlite3.Cursor:
        return self._database.execute(statement, {**values, **self._where})
