"""The outbox: every transaction is written down before it is sent, and sent until it is mined, once per key.

submit(call, key):  key known? -> that transaction;  else nonce -> sign -> write (SQLite) -> broadcast
wait(key):          receipt? -> done;  not yet? -> broadcast again, with a higher fee when it is stuck
after kill -9:      `recover` broadcasts what was written and not mined; nothing is signed twice under one key
after a reorganisation: what is mined no more, by the account's nonce, is broadcast again in its place
whenever nothing of the account is mined for long: all of it is broadcast again, the first with a higher fee
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from lockstep.chain import reverts
from lockstep.chain.contracts import Call, revert_data
from lockstep.protocol.economics import MAX_FEE_CAP
from lockstep.protocol.errors import ChainError, FundsError, LockstepError, TryLater
from lockstep.protocol.types import Address

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

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
_SIGNED_SCHEMA = "CREATE TABLE IF NOT EXISTS signed (hash TEXT PRIMARY KEY) WITHOUT ROWID"
"""Every transaction ever signed here; a key that is forgotten leaves it."""

# What nodes answer (Anvil, geth, reth) to a transaction that they have, and to one whose fee no longer suffices.
_KNOWN = ("already known", "already imported", "nonce too low")
_CHEAP = ("underpriced", "less than block base fee")

TIP_WEI = 1_000_000_000
STUCK_SECONDS = 30.0
"""How long (of this machine's time: pacing only) nothing of the account is mined until all that waits is sent again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Receipt:
    """What a mined transaction cost and did."""

    key: str
    label: str
    transaction: str
    """0x-prefixed hash."""
    block: int
    gas_used: int
    gas_price: int
    """Wei of the chain's own coin per gas."""
    succeeded: bool


class Outbox:
    """The transactions of one account on one chain, in one SQLite file. Safe for threads of one process."""

    def __init__(self, path: Path, w3: Web3, account: LocalAccount, max_fee_wei: int = MAX_FEE_CAP) -> None:
        """`max_fee_wei` bounds what is paid per gas: above it `TryLater` is raised instead of sending.

        The default is the highest fee that any job refunds, so that no defender stops below what it is paid back.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._w3 = w3
        self._account = account
        self._cap = max_fee_wei
        self._chain_id = w3.eth.chain_id
        # A local chain that was started anew has the same id and other blocks: old rows are not of it.
        self._genesis = w3.eth.get_block(0)["hash"].hex()
        self._lock = threading.RLock()
        self._push_at = time.monotonic() + STUCK_SECONDS
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode=WAL")
        # FULL: a row that was committed survives the machine, not only the process.
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_SCHEMA)
        self._database.execute(_SIGNED_SCHEMA)
        self.recover()

    @property
    def address(self) -> str:
        """Who signs."""
        return self._account.address

    def close(self) -> None:
        """Closes the file; what was submitted stays submitted."""
        self._database.close()

    def send(self, call: Call, key: str, *, check: bool = True, timeout: float = 120.0) -> Receipt:
        """Submits and waits. Raises the rule that the call broke (`ChainError`, `FundsError`), or `TryLater`."""
        self.submit(call, key, check=check)
        return self.wait(key, timeout)

    def send_all(self, calls: Iterable[tuple[str, Call]], timeout: float = 120.0) -> list[Receipt]:
        """Submits (key, call) pairs with consecutive nonces, then waits: each may depend on those before it."""
        keys = []
        for key, call in calls:
            self.submit(call, key, check=False)
            keys.append(key)
        return [self.wait(key, timeout) for key in keys]

    def submit(self, call: Call, key: str, *, check: bool = True) -> None:
        """Writes the transaction down and broadcasts it. A key that is known changes nothing: idempotent.

        `check` runs the call first and raises the rule that it would break, before anything is signed.
        """
        with self._lock:
            self._restore()
            if self._row(key) is not None:
                return
            if check:
                self.simulate(call)
            if not self._waiting():
                self._push_at = time.monotonic() + STUCK_SECONDS
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                row = self._sign(key, call, self._next_nonce(), *self._fees())
                self._insert(row)
            try:
                self._broadcast(row["raw"])
            except (ChainError, FundsError):
                # The node will never mine it: its nonce must not block what comes after. Unreachable is not refused.
                self._delete(key)
                raise

    def wait(self, key: str, timeout: float = 120.0) -> Receipt:
        """The receipt of a submitted key. Raises the broken rule if it reverted, `TryLater` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        pause = 0.05
        while True:
            with self._lock:
                receipt = self._look(key)
            if receipt is not None:
                if not receipt.succeeded:
                    raise self._reason(key)
                return receipt
            if time.monotonic() >= deadline:
                raise TryLater(f"{key} is not mined after {timeout:.0f} s", "it stays in the outbox: wait for it again")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def receipt(self, key: str) -> Receipt | None:
        """The receipt if the key was submitted and is mined; does not wait."""
        with self._lock:
            return self._look(key) if self._row(key) is not None else None

    def recover(self) -> list[str]:
        """Broadcasts everything written and not mined, lowest nonce first; returns the keys. Called on opening."""
        with self._lock:
            self._restore()
            unmined = [row for row in self._waiting() if self._settle(row["key"]) is None]
            for row in unmined:
                self._broadcast(row["raw"])
            return [row["key"] for row in unmined]

    def forget(self, key: str) -> None:
        """Removes a mined or reverted key, so that it can be used again. Raises `TryLater` while it is not mined."""
        with self._lock:
            row = self._row(key)
            if row is not None and row["state"] == "sent":
                raise TryLater(f"{key} is not mined yet", "wait for it first")
            self._delete(key)

    def sent(self, transaction: bytes) -> bool:
        """Whether a transaction (its hash) was signed here."""
        with self._lock:
            found = self._database.execute("SELECT 1 FROM signed WHERE hash=?", ("0x" + transaction.hex(),)).fetchone()
        return found is not None

    def simulate(self, call: Call) -> None:
        """Runs the call on the pending state. Raises the rule that it would break."""
        from web3.exceptions import ContractLogicError, Web3RPCError

        request = {"from": self.address, "to": call.to, "data": call.data, "value": call.value, "gas": call.gas}
        try:
            self._w3.eth.call(request, "pending")  # type: ignore[arg-type]
        except ContractLogicError as failure:
            raise reverts.decode(revert_data(failure)) from failure
        except Web3RPCError as failure:
            raise _rejected(failure) from failure

    # -- inside

    def _row(self, key: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._database.execute(
            "SELECT * FROM transactions WHERE key=? AND account=? AND genesis=?", (key, self.address, self._genesis)
        ).fetchone()
        return row

    def _delete(self, key: str) -> None:
        self._database.execute(
            "DELETE FROM transactions WHERE key=? AND account=? AND genesis=?", (key, self.address, self._genesis)
        )

    def _next_nonce(self) -> int:
        """After everything mined and everything written down."""
        written = self._database.execute(
            "SELECT MAX(nonce) FROM transactions WHERE account=? AND genesis=?", (self.address, self._genesis)
        ).fetchone()[0]
        mined = self._mined()
        return mined if written is None else max(mined, written + 1)

    def _mined(self) -> int:
        """Transactions of the account that are on the chain: the next one's nonce."""
        return self._w3.eth.get_transaction_count(self._account.address, "latest")

    def _restore(self) -> None:
        """Broadcast again what a reorganisation took off the chain.

        INVARIANT: a receipt counts as long as the chain has counted its nonce; whoever acts on the chain as it is now,
        under a key that was mined on another, finds it sent, not done.
        """
        first = self._mined()
        gone = self._database.execute(
            "UPDATE transactions SET state='sent', receipt=NULL WHERE account=? AND genesis=? AND nonce>=? "
            "AND state!='sent'",
            (self.address, self._genesis, first),
        ).rowcount
        if gone:
            for row in self._waiting():
                self._broadcast(row["raw"])

    def _waiting(self) -> list[sqlite3.Row]:
        """What was sent and is not known to be mined, lowest nonce first."""
        return self._database.execute(
            "SELECT * FROM transactions WHERE account=? AND genesis=? AND state='sent' ORDER BY nonce",
            (self.address, self._genesis),
        ).fetchall()

    def _look(self, key: str) -> Receipt | None:
        row = self._row(key)
        if row is not None and row["state"] != "sent":
            # A reorganisation may have taken it off the chain: then it is sent again, and not done.
            self._restore()
        receipt = self._settle(key)
        if receipt is None and time.monotonic() >= self._push_at:
            self._push()
            receipt = self._settle(key)
        return receipt

    def _push(self) -> None:
        """Nothing was mined for long: send all that waits again, the first with more fee.

        INVARIANT: whatever the node has lost, and whoever asks for what: no nonce holds up those after it for good.
        """
        self._push_at = time.monotonic() + STUCK_SECONDS
        self._restore()
        unmined = [row for row in self._waiting() if self._settle(row["key"]) is None]
        mined = self._mined()
        try:
            self._close_gaps(mined, unmined)
            for i, row in enumerate(unmined):
                if i == 0 or row["nonce"] < mined:
                    self._send_again(row["key"])
                else:
                    self._broadcast(row["raw"])
        except (ChainError, FundsError, TryLater) as error:
            # Whoever asked may wait for another one: it is pushed again.
            log.warning("what waits cannot be sent again", code=error.code, message=error.message)

    def _close_gaps(self, mined: int, unmined: Sequence[sqlite3.Row]) -> None:
        """Before transactions that wait: nonces that a reorganisation freed and whose keys were forgotten.

        Nothing after them is mined until something takes them: a transfer of nothing to ourselves.
        """
        written = self._database.execute(
            "SELECT nonce FROM transactions WHERE account=? AND genesis=?", (self.address, self._genesis)
        )
        last = max((row["nonce"] for row in unmined), default=mined)
        for nonce in sorted(set(range(mined, last)) - {nonce for (nonce,) in written}):
            filler = self._sign(f"gap/{nonce}", Call(Address(self.address), b"", 21_000, "gap"), nonce, *self._fees())
            self._insert(filler)
            self._broadcast(filler["raw"])

    def _fees(self) -> tuple[int, int]:
        """(tip, max fee) per gas: twice the base fee leaves room for six full blocks."""
        base = self._w3.eth.get_block("latest").get("baseFeePerGas", 0)
        # INVARIANT: a move goes out at every base fee up to the bound; the tip gives way.
        if base > self._cap:
            raise TryLater(f"the base fee is {base} wei per gas, the bound {self._cap}", "wait, or raise the bound")
        return min(TIP_WEI, self._cap), min(2 * base + TIP_WEI, self._cap)

    def _sign(self, key: str, call: Call, nonce: int, tip: int, max_fee: int) -> dict[str, Any]:
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": self._chain_id,
            "nonce": nonce,
            "to": call.to,
            "data": call.data,
            "value": call.value,
            "gas": call.gas,
            "maxPriorityFeePerGas": min(tip, max_fee),
            "maxFeePerGas": max_fee,
        }
        signed = self._account.sign_transaction(transaction)
        return {
            "key": key,
            "account": self.address,
            "genesis": self._genesis,
            "nonce": nonce,
            "label": call.label,
            "recipient": call.to,
            "data": call.data,
            "value": str(call.value),
            "gas": call.gas,
            "tip": tip,
            "max_fee": max_fee,
            "raw": bytes(signed.raw_transaction),
            "hashes": json.dumps(["0x" + signed.hash.hex()]),
            "state": "sent",
        }

    def _insert(self, row: dict[str, Any]) -> None:
        columns = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        hashes = [(hash_,) for hash_ in json.loads(row["hashes"])]
        self._database.executemany("INSERT OR IGNORE INTO signed VALUES (?)", hashes)
        self._database.execute(f"INSERT OR REPLACE INTO transactions ({columns}) VALUES ({marks})", row)

    def _broadcast(self, raw: bytes) -> None:
        """Hands the transaction to the node; one that it knows, has mined or finds too cheap, `wait` sees to."""
        from web3.exceptions import Web3RPCError

        try:
            self._w3.eth.send_raw_transaction(raw)
        except Web3RPCError as failure:
            text = str(failure).lower()
            if any(reason in text for reason in _KNOWN) or any(reason in text for reason in _CHEAP):
                return
            raise _rejected(failure) from failure

    def _settle(self, key: str) -> Receipt | None:
        """The receipt, written down when first seen."""
        from web3.exceptions import TransactionNotFound

        row = self._row(key)
        if row is None:
            raise ChainError(f"nothing was submitted under {key}", "submit it first")
        if row["receipt"] is not None:
            return Receipt(**json.loads(row["receipt"]))
        for hash_ in json.loads(row["hashes"]):
            try:
                found = self._w3.eth.get_transaction_receipt(hash_)
            except TransactionNotFound:
                continue
            receipt = Receipt(
                key=key,
                label=row["label"],
                transaction=hash_,
                block=found["blockNumber"],
                gas_used=found["gasUsed"],
                gas_price=found["effectiveGasPrice"],
                succeeded=found["status"] == 1,
            )
            self._push_at = time.monotonic() + STUCK_SECONDS
            self._database.execute(
                "UPDATE transactions SET state=?, receipt=? WHERE key=? AND account=? AND genesis=?",
                (
                    "mined" if receipt.succeeded else "reverted",
                    json.dumps(asdict(receipt)),
                    key,
                    self.address,
                    self._genesis,
                ),
            )
            return receipt
        return None

    def _send_again(self, key: str) -> None:
        """Not mined for long: the same call with more fee, or with a new nonce if another transaction took this one.

        Above the bound it waits as it is.
        """
        row = self._row(key)
        assert row is not None
        call = Call(row["recipient"], row["data"], row["gas"], row["label"], int(row["value"]))
        taken = self._w3.eth.get_transaction_count(self._account.address, "latest") > row["nonce"]
        if taken and self._settle(key) is not None:
            return
        try:
            _, market_fee = self._fees()
        except TryLater:
            return
        nonce = self._next_nonce() if taken else row["nonce"]
        # Nodes take a replacement from 10 % more on.
        tip = min(row["tip"] * 5 // 4 + 1, self._cap)
        max_fee = min(max(row["max_fee"] * 5 // 4 + 1, market_fee), self._cap)
        again = self._sign(key, call, nonce, tip, max_fee)
        # The old hash cannot be mined any more once its nonce is gone; until then either may be.
        again["hashes"] = json.dumps(json.loads(again["hashes"]) + ([] if taken else json.loads(row["hashes"])))
        self._insert(again)
        self._broadcast(again["raw"])

    def _reason(self, key: str) -> LockstepError:
        """Why a mined transaction reverted: the same call on the state before its block."""
        from web3.exceptions import ContractLogicError, Web3RPCError

        row = self._row(key)
        assert row is not None
        block = json.loads(row["receipt"])["block"]
        request = {"from": self.address, "to": row["recipient"], "data": row["data"], "gas": row["gas"]}
        for at in (block - 1, block):
            try:
                self._w3.eth.call(request, at)  # type: ignore[arg-type]
            except ContractLogicError as failure:
                return reverts.decode(revert_data(failure))
            except Web3RPCError as failure:
                return _rejected(failure)
        return ChainError(
            f"{row['label']} reverted in block {block}", "another transaction of the same block came first: look again"
        )


def _rejected(failure: Exception) -> LockstepError:
    """The node refused the transaction itself."""
    text = str(failure)
    if "insufficient funds" in text.lower() or "insufficient balance" in text.lower():
        return FundsError("the account cannot pay for gas", "send it some of the chain's own coin")
    return ChainError(f"the node refused the transaction: {text}", "check the gas limit and the chain")
