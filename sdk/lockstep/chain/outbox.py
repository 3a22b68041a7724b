"""The outbox writes every transaction to disk before it is sent, and sends it until it is mined, once per key.

submit(call, key):  key known? -> that transaction;  else nonce -> sign -> write (SQLite) -> broadcast
wait(key):          receipt? -> done;  not yet? -> broadcast again, with a higher fee when it is stuck
after kill -9:      `recover` broadcasts what was written and not mined; nothing is signed twice under one key
after a reorganisation: a transaction that is no longer mined, by the account's nonce, is broadcast again in its place,
                    at the next use of the outbox or when the account's process calls `tend`
if none of the account's transactions is mined for STUCK_SECONDS: all are broadcast again, the first with a higher fee
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.base.log import Logger
from lockstep.base.vitals import VITALS
from lockstep.chain.contracts import Call
from lockstep.chain.journal import OutboxJournal, SentReceipt
from lockstep.chain.wire import Wire
from lockstep.protocol.errors import ChainError, FundsError, TryLater
from lockstep.protocol.market.prices import MAX_FEE_CAP
from lockstep.protocol.types import Address

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

STUCK_SECONDS = 30.0
"""Machine seconds without a mined transaction after which all waiting ones are broadcast again."""
ASKED_SECONDS = 180.0
"""Machine seconds for which a call held back by the fee bound is reported as waiting.

A caller that still wants it has submitted it again by then, whatever its back-off and the chain's pace.
"""

log = Logger(__name__)


class Outbox:
    """The transactions of one account on one chain, in one SQLite file. Safe for threads of one process."""

    def __init__(
        self, path: Path, w3: Web3, account: LocalAccount, max_fee_wei: int | None = None,
        max_tip_wei: int | None = None,
    ) -> None:  # fmt: skip
        """`max_fee_wei` bounds the price per gas: above it, sending raises `TryLater`. `max_tip_wei` bounds the tip
        within it; None: the same bound.

        The default is the highest fee that any job refunds, so that no defender stops below the price that it is
        refunded.
        """
        cap = MAX_FEE_CAP if max_fee_wei is None else max_fee_wei
        self._wire = Wire(w3, account, cap, cap if max_tip_wei is None else max_tip_wei)
        self._lock = threading.RLock()
        self._unsent: dict[str, float] = {}
        """By label of a call held back before signing: machine time of its latest submission."""
        self._push_at = time.monotonic() + STUCK_SECONDS
        self._journal = OutboxJournal(path, account.address, w3.eth.get_block(0)["hash"].hex())
        self.recover()

    @property
    def address(self) -> str:
        """The signing account's address."""
        return self._wire.address

    def close(self) -> None:
        """Closes the file; submitted transactions stay submitted."""
        self._journal.close()

    def send(self, call: Call, key: str, *, check: bool = True, timeout: float = 120.0) -> SentReceipt:
        """Submits a call and waits until it is mined. Raises the error of the broken rule (`ChainError`, `FundsError`),
        or `TryLater`."""
        self.submit(call, key, check=check)
        return self.wait(key, timeout)

    def send_all(self, calls: Iterable[tuple[str, Call]], timeout: float = 120.0) -> list[SentReceipt]:
        """Submits (key, call) pairs with consecutive nonces, unsimulated, so that each may depend on earlier ones; then
        waits until all are mined and returns their receipts in order."""
        keys = []
        for key, call in calls:
            self.submit(call, key, check=False)
            keys.append(key)
        return [self.wait(key, timeout) for key in keys]

    def submit(self, call: Call, key: str, *, check: bool = True, nonce: int | None = None) -> None:
        """Writes the transaction to disk and broadcasts it. It is idempotent: a known key changes nothing.

        `check` simulates the call first and raises the error of a broken rule before anything is signed. `nonce` is the
        only nonce under which it may be signed; raises `ChainError` if another transaction has it. Calls on which it
        depends are sent first, under keys of their own; the call itself is then sent without simulation.
        """
        with self._lock:
            self._restore()
            if self._journal.row(key) is not None:
                return
            for number, each in enumerate(call.before):
                own = f"before/{number}/{key}"
                # Mined, yet due again: its effect was used up, or it reverted.
                if self._journal.row(own) is not None and self._look(own) is not None:
                    self._journal.delete(own)
                self.submit(each, own, check=check and not number)
            if check and not call.before:
                self._wire.simulate(call)
            if not self._journal.waiting():
                self._push_at = time.monotonic() + STUCK_SECONDS
            with self._journal.writing():
                due = self._next_nonce()
                if nonce is not None and nonce != due:
                    raise ChainError(
                        f"{self.address} has sent {due} transactions, not {nonce}",
                        "another program uses this key: start again with a key that only this one uses",
                    )
                row = self._wire.sign(key, call, due, *self._fees(call))
                self._journal.insert(row)
            try:
                self._wire.broadcast(row["raw"])
            except (ChainError, FundsError):
                # The node will never mine it, and its nonce must not block later ones. Unreachable does not mean
                # refused.
                self._journal.delete(key)
                raise

    def wait(self, key: str, timeout: float = 120.0) -> SentReceipt:
        """Returns the receipt of a submitted key. Raises the error of the broken rule if it reverted, `TryLater` after
        `timeout` seconds."""
        deadline = time.monotonic() + timeout
        pause = 0.05
        while True:
            with self._lock:
                receipt = self._look(key)
            if receipt is not None:
                if not receipt.succeeded:
                    raise self._wire.reason(self._known(key))
                return receipt
            if time.monotonic() >= deadline:
                raise TryLater(
                    f"{key} is not mined after {timeout:.0f} s", "the transaction stays in the outbox: wait again"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def receipt(self, key: str) -> SentReceipt | None:
        """Returns the receipt of a key, if it was submitted and is mined; does not wait."""
        with self._lock:
            return self._look(key) if self._journal.row(key) is not None else None

    def held(self) -> str:
        """Returns the reason why a fee bound keeps waiting transactions from a higher bid; "" if there is none."""
        with self._lock:
            labels = [row["label"] for row in self._journal.waiting() if self._settle(row["key"]) is None]
            # A call that was not submitted again is no longer wanted: its window is over.
            since = time.monotonic() - ASKED_SECONDS
            self._unsent = {label: asked for label, asked in self._unsent.items() if asked >= since}
            labels += self._unsent
            if not labels:
                return ""
            try:
                self._wire.fees()
            except TryLater as held:
                return f"{', '.join(sorted(set(labels)))} waits: {held.message}"
            # An unsigned call is submitted again by its caller, or no longer wanted.
            self._unsent.clear()
            return ""

    def keys(self, prefix: str) -> list[str]:
        """Returns the keys with this prefix, mined or not, lowest nonce first."""
        with self._lock:
            return self._journal.keys(prefix)

    def last_block(self, prefix: str) -> int | None:
        """Returns the last block with a transaction whose key has this prefix, 0 if there is none; None while one is
        not mined."""
        with self._lock:
            self._restore()
            receipts = [self._settle(key) for key in self._journal.keys(prefix)]
            blocks = [receipt.block for receipt in receipts if receipt is not None]
            return None if len(blocks) < len(receipts) else max(blocks, default=0)

    def recover(self) -> list[str]:
        """Broadcasts every transaction that is written and not mined, lowest nonce first; returns the keys. Called on
        opening."""
        with self._lock:
            self._restore()
            unmined = [row for row in self._journal.waiting() if self._settle(row["key"]) is None]
            for row in unmined:
                self._wire.broadcast(row["raw"])
            return [row["key"] for row in unmined]

    def tend(self) -> None:
        """Broadcasts again what a reorganisation reverted and what has waited for long; to be called at each block.

        Otherwise an account with nothing to send would never notice that its deposit was reverted.
        """
        with self._lock:
            try:
                self._restore()
            except (ChainError, FundsError, TryLater) as error:
                log.warning(
                    "a transaction that a reorganisation reverted cannot be sent again yet",
                    code=error.code,
                    why=error.message,
                )
            if self._journal.waiting() and time.monotonic() >= self._push_at:
                self._push()

    def forget(self, key: str) -> None:
        """Removes a mined or reverted key, so that it can be used again. Raises `TryLater` while it is not mined."""
        with self._lock:
            row = self._journal.row(key)
            if row is not None and row["state"] == "sent":
                raise TryLater(f"{key} is not mined yet", "wait for it first")
            self._journal.delete(key)

    def rename(self, key: str, name: str) -> None:
        """Gives a transaction another key."""
        with self._lock:
            self._journal.rename(key, name)

    def sent(self, transaction: bytes) -> bool:
        """Returns True if a transaction (its hash) was signed here."""
        with self._lock:
            return self._journal.signed("0x" + transaction.hex())

    def simulate(self, call: Call) -> None:
        """Simulates the call on the pending state. Raises the error of the rule that it would break."""
        self._wire.simulate(call)

    # -- inside

    def _fees(self, call: Call) -> tuple[int, int]:
        """Returns the fees for a call; remembers a call that the fee bound holds back, for `held`."""
        try:
            fees = self._wire.fees()
        except TryLater:
            self._unsent[call.label] = time.monotonic()
            raise
        self._unsent.clear()
        return fees

    def _next_nonce(self) -> int:
        """Returns the nonce after the highest that is mined or in the journal."""
        return max(self._wire.mined(), *(nonce + 1 for nonce in self._journal.nonces()), 0)

    def _restore(self) -> None:
        """Broadcasts again the transactions that a reorganisation reverted.

        INVARIANT: a receipt counts as long as the chain has counted its nonce; whoever acts on the chain as it is now,
        under a key that was mined on another, finds it sent, not done.
        """
        if self._journal.unsettle(self._wire.mined()):
            for row in self._journal.waiting():
                self._wire.broadcast(row["raw"])

    def _look(self, key: str) -> SentReceipt | None:
        if self._known(key)["state"] != "sent":
            # A reorganisation may have reverted it: then it is sent again, and does not count as mined.
            self._restore()
        receipt = self._settle(key)
        if receipt is None and time.monotonic() >= self._push_at:
            self._push()
            receipt = self._settle(key)
        return receipt

    def _push(self) -> None:
        """Broadcasts all waiting transactions again if none was mined for long, the first with a higher fee.

        INVARIANT: whatever the node has lost, and whoever asks for what: no nonce holds up those after it for good.
        """
        self._push_at = time.monotonic() + STUCK_SECONDS
        try:
            self._restore()
            unmined = [row for row in self._journal.waiting() if self._settle(row["key"]) is None]
            mined = self._wire.mined()
            self._close_gaps(mined, unmined)
            for i, row in enumerate(unmined):
                if i == 0 or row["nonce"] < mined:
                    self._send_again(row["key"])
                else:
                    self._wire.broadcast(row["raw"])
        except (ChainError, FundsError, TryLater) as error:
            # The caller may wait for a later transaction; the first one is pushed again.
            log.warning("a waiting transaction cannot be sent again", code=error.code, message=error.message)

    def _close_gaps(self, mined: int, unmined: Sequence[sqlite3.Row]) -> None:
        """Fills nonces that a reorganisation freed and whose keys were forgotten.

        No later transaction is mined until they are used: each is filled by a transfer of nothing to the account
        itself.
        """
        last = max((row["nonce"] for row in unmined), default=mined)
        for nonce in sorted(set(range(mined, last)) - self._journal.nonces()):
            filler = self._wire.sign(
                f"gap/{nonce}", Call(Address(self.address), b"", 21_000, "gap"), nonce, *self._wire.fees()
            )
            self._journal.insert(filler)
            self._wire.broadcast(filler["raw"])

    def _known(self, key: str) -> sqlite3.Row:
        row = self._journal.row(key)
        if row is None:
            raise ChainError(f"nothing was submitted under {key}", "submit it first")
        return row

    def _settle(self, key: str) -> SentReceipt | None:
        """Returns the receipt of a key, and records it when it is first seen."""
        row = self._known(key)
        if row["receipt"] is not None:
            return SentReceipt(**json.loads(row["receipt"]))
        for hash_ in json.loads(row["hashes"]):
            found = self._wire.found(hash_)
            if found is None:
                continue
            receipt = SentReceipt(
                key=key,
                label=row["label"],
                transaction=hash_,
                block=found["blockNumber"],
                gas_used=found["gasUsed"],
                gas_price=found.get("effectiveGasPrice", 0),
                succeeded=found["status"] == 1,
            )
            self._push_at = time.monotonic() + STUCK_SECONDS
            self._journal.settle(receipt)
            VITALS.count("gas_used", by=receipt.gas_used)
            VITALS.count("fees_paid_coins", by=receipt.gas_used * receipt.gas_price)
            VITALS.count("transactions", "mined" if receipt.succeeded else "reverted")
            return receipt
        return None

    def _send_again(self, key: str) -> None:
        """Sends a call that has waited for long again: with a higher fee, or with a new nonce if another transaction
        took its own.

        Above the fee bounds the transaction is not changed.
        """
        row = self._known(key)
        call = Call(row["recipient"], row["data"], row["gas"], row["label"], int(row["value"]))
        taken = self._wire.mined() > row["nonce"]
        if taken and self._settle(key) is not None:
            return
        # INVARIANT: a contract is created where the others expect it, or not at all.
        if taken and not call.to:
            raise ChainError(f"another transaction took nonce {row['nonce']}", "begin the deployment anew")
        try:
            market = self._wire.fees()
        except TryLater as held:
            log.warning("a transaction waits for a lower base fee", key=key, why=held.message)
            return
        fees = market if taken else self._wire.dearer(row["tip"], row["max_fee"], market[1])
        if fees is None:
            log.warning("a transaction waits: max_fee or max_tip leaves no room for a higher bid", key=key)
            self._wire.broadcast(row["raw"])
            return
        again = self._wire.sign(key, call, self._next_nonce() if taken else row["nonce"], *fees)
        # The old hash cannot be mined once its nonce is used; until then either may be.
        again["hashes"] = json.dumps(json.loads(again["hashes"]) + ([] if taken else json.loads(row["hashes"])))
        self._journal.insert(again)
        self._wire.broadcast(again["raw"])
