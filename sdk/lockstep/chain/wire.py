"""Signs and sends one account's transactions: simulation, fees, signature, broadcast, receipt."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

from lockstep.chain import reverts
from lockstep.chain.contracts import Call, revert_data
from lockstep.chain.rpc import KNOWN_WORDS
from lockstep.protocol.errors import ChainError, FundsError, LockstepError, TryLater, Unreachable

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3
    from web3.types import TxReceipt

# Errors of nodes (Anvil, geth, reth) for a transaction whose fee no longer suffices.
_CHEAP = ("underpriced", "less than block base fee")

TIP_WEI = 1_000_000_000
PENDING, LATEST = "pending", "latest"
LAST = 8
"""Multiple of the base fee that a bid covers if the tip bound leaves no room for a higher one."""
HELD = "try_later.fee"
"""The error code of a transaction that the fee bound holds back."""


def gwei(wei: int) -> str:
    """Formats a price per gas in gwei."""
    return f"{wei / 10**9:.6g} gwei"


class Wire:
    """An account's connection to a node; it has no state."""

    def __init__(self, w3: Web3, account: LocalAccount, max_fee_wei: int, max_tip_wei: int) -> None:
        """`max_fee_wei` bounds the price per gas, `max_tip_wei` the tip within it."""
        self._w3 = w3
        self._account = account
        self._chain_id = w3.eth.chain_id
        self._newest = PENDING
        """The newest state that the node can simulate on."""
        self.cap = max_fee_wei
        self.tip_cap = min(max_tip_wei, max_fee_wei)

    @property
    def address(self) -> str:
        """The signing account's address."""
        return self._account.address

    def simulate(self, call: Call) -> None:
        """Simulates the call on the pending state. Raises the error of a broken rule."""
        from web3.exceptions import ContractLogicError, Web3RPCError

        request = {"from": self.address, "to": call.to, "data": call.data, "value": call.value, "gas": call.gas}
        try:
            self._call_newest(request)
        except ContractLogicError as failure:
            raise reverts.decode(revert_data(failure)) from failure
        except Web3RPCError as failure:
            raise _rejected(failure) from failure

    def _call_newest(self, request: dict[str, Any]) -> None:
        """Simulates a call on the newest state that the node has. Raises web3's errors."""
        from web3.exceptions import ContractLogicError, Web3RPCError

        try:
            self._w3.eth.call(request, self._newest)  # type: ignore[arg-type]
        except ContractLogicError:
            raise
        except Web3RPCError as failure:
            if self._newest == LATEST:
                raise
            # Some providers have no pending block: waiting transactions are then not seen, and checked again later.
            self._newest = LATEST if PENDING in str(failure).lower() else PENDING
            self._w3.eth.call(request, LATEST)  # type: ignore[arg-type]

    def mined(self) -> int:
        """Returns the number of the account's mined transactions, which is the next nonce."""
        return self._w3.eth.get_transaction_count(self._account.address, "latest")

    def fees(self) -> tuple[int, int]:
        """Returns (tip, max fee) per gas: twice the base fee covers six full blocks, LAST times eighteen."""
        base = self._w3.eth.get_block("latest").get("baseFeePerGas", 0)
        # INVARIANT: a move goes out at every base fee up to the bound; the tip gives way.
        if base > self.cap:
            raise TryLater(
                f"the base fee is {gwei(base)} per unit of gas, above the bound of {gwei(self.cap)}",
                "the transaction is sent once the base fee is lower; a higher --max-fee or max_fee sends it now",
                code=HELD,
            )
        # At first half of the bound: nodes require a replacement to raise both fees.
        tip = min(TIP_WEI, self.tip_cap - self.tip_cap // 2)
        return tip, min((LAST if self._is_last(tip) else 2) * base + TIP_WEI, self.cap)

    def dearer(self, tip: int, max_fee: int, market: int) -> tuple[int, int] | None:
        """Returns (tip, max fee) of a replacement that nodes accept within the bounds; None if the bounds leave no room
        for one.

        `market` is the most that a new transaction would bid.
        """
        raised = min(_raised(tip), self.tip_cap)
        market *= LAST // 2 if self._is_last(raised) else 1
        found = raised, min(max(_raised(max_fee), market), self.cap)
        # INVARIANT: a replacement is 10 % dearer in both fees, or no node takes it.
        return found if found[0] >= _least(tip) and found[1] >= _least(max_fee) else None

    def _is_last(self, tip: int) -> bool:
        """Returns True if the tip bound leaves no room for another bid above this tip."""
        return _least(tip) > self.tip_cap

    def sign(self, key: str, call: Call, nonce: int, tip: int, max_fee: int) -> dict[str, Any]:
        """Signs a transaction and returns its journal row; the tip is reduced to fit the max fee."""
        tip = min(tip, max_fee)
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": self._chain_id,
            "nonce": nonce,
            "to": call.to or b"",
            "data": call.data,
            "value": call.value,
            "gas": call.gas,
            "maxPriorityFeePerGas": tip,
            "maxFeePerGas": max_fee,
        }
        signed = self._account.sign_transaction(transaction)
        return {
            "key": key,
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

    def broadcast(self, raw: bytes) -> None:
        """Sends the transaction to the node; `wait` handles one that the node has, has mined or finds too cheap."""
        from web3.exceptions import Web3RPCError

        try:
            self._w3.eth.send_raw_transaction(raw)
        except Web3RPCError as failure:
            text = str(failure).lower()
            if any(reason in text for reason in KNOWN_WORDS) or any(reason in text for reason in _CHEAP):
                return
            raise _rejected(failure) from failure

    def found(self, hash_: str) -> TxReceipt | None:
        """Returns the node's receipt of a transaction; None while it is not mined."""
        from web3.exceptions import TransactionNotFound

        try:
            return self._w3.eth.get_transaction_receipt(hash_)  # type: ignore[arg-type]
        except TransactionNotFound:
            return None

    def reason(self, row: sqlite3.Row) -> LockstepError:
        """Returns a mined transaction's revert reason, by repeating the call on the state before its block."""
        from web3.exceptions import ContractLogicError, Web3RPCError

        block = json.loads(row["receipt"])["block"]
        request = {"from": self.address, "to": row["recipient"], "data": row["data"], "gas": row["gas"]}
        for at in (block - 1, block):
            try:
                self._w3.eth.call(request, at)  # type: ignore[arg-type]
            except ContractLogicError as failure:
                return reverts.decode(revert_data(failure))
            except Web3RPCError as failure:
                return _rejected(failure)
            except Unreachable as error:
                # A block's state is available for a limited time only, but the revert itself is known.
                return ChainError(
                    f"{row['label']} reverted in block {block}, and the reason cannot be read: {error.message}",
                    error.hint,
                )
        return ChainError(
            f"{row['label']} reverted in block {block}", "another transaction of the same block came first: look again"
        )


def _raised(wei: int) -> int:
    """Returns the next bid: a quarter higher, rounded up."""
    return wei + wei // 4 + 1


def _least(wei: int) -> int:
    """Returns the lowest bid that may replace this one: a tenth higher, rounded up."""
    return max(-(-11 * wei // 10), wei + 1)


def _rejected(failure: Exception) -> LockstepError:
    """Converts the node's refusal of a transaction into an error."""
    text = str(failure)
    if "insufficient funds" in text.lower() or "insufficient balance" in text.lower():
        return FundsError("the account cannot pay for gas", "send it some of the chain's own coin")
    return ChainError(f"the node refused the transaction: {text}", "check the gas limit and the chain")
