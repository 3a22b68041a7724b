"""What is asked of nothing: the answers of both chains for ids that nobody made."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.chain import artifacts
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Local
from lockstep.chain.memory.machine import FIELDS
from lockstep.protocol.transition import VIEWS

SAID: dict[tuple[str, str], dict[str, Any]] = {}
NOTHING = {"address": "0x" + "77" * 20, "bool": False, "uint8": 0}


APART = {("Validator", "check"), ("Availability", "seedOf")}
"""The one takes evidence; the other asks for the first block's hash, which each chain has its own of."""


@pytest.mark.sampled(64)
@pytest.mark.chain
@pytest.mark.parametrize(("contract", "function"), [view for view in VIEWS if view not in APART])
def test_a_view_of_nothing_says_the_same(contract: str, function: str, devnet: Local, contracts: Contracts) -> None:
    entry = artifacts.function(contract, function)
    arguments = [() if part["type"].endswith("[]") else NOTHING.get(part["type"], 3) for part in entry["inputs"]]
    encoded = [
        (3).to_bytes(32, "big") if part["type"] == "bytes32" else value
        for part, value in zip(entry["inputs"], arguments, strict=True)
    ]
    bound = devnet.w3.eth.contract(
        address=getattr(contracts.addresses, FIELDS[contract]), abi=artifacts.load(contract).abi
    )
    request = {"to": bound.address, "data": bound.encode_abi(function, args=encoded)}
    answer: Any = devnet.w3.provider.make_request("eth_call", [request, "latest"])  # type: ignore[arg-type]
    said = answer.get("result") or answer["error"].get("data")
    kind = "memory" if type(devnet).__name__ == "MemoryDevnet" else "anvil"
    SAID.setdefault((contract, function), {})[kind] = said
    assert len(set(SAID[contract, function].values())) == 1, SAID[contract, function]
