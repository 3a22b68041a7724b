"""Transactions of accounts that a local chain acts for: sent, mined, and refused by the rule that they break."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from web3.exceptions import ContractLogicError

from lockstep.chain import reverts
from lockstep.chain.contracts import Call, revert_data
from lockstep.chain.devnet import Local
from lockstep.protocol.types import Address


def transact(chain: Local, call: Call, sender: Address) -> Any:
    """One transaction, mined; a revert raises its rule. Returns the receipt as JSON has it.

    Plain JSON-RPC: web3's own way to send asks the node four times.
    """
    request = {"from": sender, "to": call.to, "data": "0x" + call.data.hex(), "gas": hex(call.gas)}
    hash_ = chain._request("eth_sendTransaction", [request])
    while (receipt := chain._request("eth_getTransactionReceipt", [hash_])) is None:
        time.sleep(0.001)
    found: Any = receipt
    if found["status"] != "0x1":
        _raise(chain, request, int(found["blockNumber"], 16) - 1)
    return found


def _raise(chain: Local, request: Any, block: int) -> NoReturn:
    """The rule that a mined transaction broke: the same call on the state before it."""
    try:
        chain.w3.eth.call(request, block)
    except ContractLogicError as failure:
        raise reverts.decode(revert_data(failure)) from failure
    raise AssertionError("a transaction failed that succeeds as a call: its gas limit")
