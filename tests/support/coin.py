"""An ERC-20 like old stable coins: six decimals, no permits, and no change of a nonzero allowance."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

from lockstep.chain.devnet import Local
from lockstep.protocol.types import Address

ROOT = Path(__file__).resolve().parents[2]
SYMBOL, DECIMALS = "COIN", 6
UNIT = 10**DECIMALS
SOURCE = """// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

contract Coin {
    string public constant name = "Coin";
    string public constant symbol = "COIN";
    uint8 public constant decimals = 6;
    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;

    function mint(address to, uint256 value) external {
        totalSupply += value;
        balanceOf[to] += value;
    }

    function approve(address spender, uint256 value) external {
        require(value == 0 || allowance[msg.sender][spender] == 0, "set it to zero first");
        allowance[msg.sender][spender] = value;
    }

    function transfer(address to, uint256 value) external {
        balanceOf[msg.sender] -= value;
        balanceOf[to] += value;
    }

    function transferFrom(address from, address to, uint256 value) external {
        allowance[from][msg.sender] -= value;
        balanceOf[from] -= value;
        balanceOf[to] += value;
    }
}
"""
"""Solidity source; its functions return nothing, as Tether's."""


@cache
def creation_code() -> bytes:
    """Compiles the contract with the compiler of the project's contracts."""
    request = {
        "language": "Solidity", "sources": {"Coin.sol": {"content": SOURCE}},
        "settings": {"evmVersion": "paris", "outputSelection": {"*": {"Coin": ["evm.bytecode.object"]}}},
    }  # fmt: skip
    run = subprocess.run(
        [ROOT / "tools/solc", "--standard-json"], input=json.dumps(request), capture_output=True, text=True, cwd=ROOT,
        check=True,
    )  # fmt: skip
    return bytes.fromhex(json.loads(run.stdout)["contracts"]["Coin.sol"]["Coin"]["evm"]["bytecode"]["object"])


def deploy_coin(devnet: Local) -> Address:
    """Deploys the coin from a separate account; returns its address."""
    account, w3 = devnet.account("mint"), devnet.w3
    signed = account.sign_transaction({
        "chainId": w3.eth.chain_id, "nonce": w3.eth.get_transaction_count(account.address), "data": creation_code(),
        "gas": 2_000_000, "gasPrice": 10**10, "value": 0,
    })  # fmt: skip
    receipt = w3.eth.wait_for_transaction_receipt(w3.eth.send_raw_transaction(signed.raw_transaction))
    address = receipt["contractAddress"]
    assert address, "it is created"
    return Address(address)
