"""Sends transactions of accounts that a local chain signs for; a refusal raises the error of the broken rule."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from web3.exceptions import ContractLogicError

from lockstep.chain import reverts
from lockstep.chain.contracts import Call, revert_data
from lockstep.chain.devnet import Local
from lockstep.protocol.types import Address


def transact(chain: Local, call: Call, sender: Address) -> Any:
    """Sends one transaction, which is mined; returns the receipt as in JSON. A revert raises the error of the broken
    rule.

    It uses plain JSON-RPC, because web3 would send four requests.
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
    """Raises the rule that a mined transaction broke, by repeating the call on the state before it."""
    try:
        chain.w3.eth.call(request, block)
    except ContractLogicError as failure:
        raise reverts.decode(revert_data(failure)) from failure
    raise AssertionError("a transaction failed that succeeds as a call: its gas limit")
