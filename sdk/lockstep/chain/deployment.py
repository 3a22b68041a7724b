"""Deploys the contracts: their addresses are computed first, since they know each other from birth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.chain import artifacts
from lockstep.chain.addresses import Addresses
from lockstep.presets import CHAINS
from lockstep.protocol.errors import ChainError, TryLater
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Address, Seconds

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

UNBOND_SECONDS = Seconds(14 * 86_400)
_GAS = 6_000_000
ORDER = ("token", "arbiter", "rounds", "jobs", "vault", "market", "game", "validator", "availability", "witnesses")


def create_address(deployer: Address, nonce: int) -> Address:
    """Where CREATE puts the contract of the deployer's transaction `nonce`: keccak(rlp([deployer, nonce]))[12:]."""
    import rlp  # type: ignore[import-untyped]
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(keccak(rlp.encode([bytes.fromhex(deployer[2:]), nonce]))[12:]))


def deploy(
    w3: Web3,
    deployer: LocalAccount,
    token: Address | None = None,
    unbond_seconds: Seconds = UNBOND_SECONDS,
    chain: ChainTimes = CHAINS["devnet"],
    timeout: float = 60.0,
) -> Addresses:
    """The deployment on the chain of `w3`; without `token`, with a test token that anybody may mint.

    `chain` is what the deployment promises of that chain: jobs with clocks too short for it are refused.

    Raises `ChainError` if a creation reverts or lands elsewhere, `TryLater` if it is not mined in `timeout` seconds.
    """
    first = w3.eth.get_transaction_count(deployer.address)
    order = [name for name in ORDER if token is None or name != "token"]
    at = {name: create_address(Address(deployer.address), first + i) for i, name in enumerate(order)}
    if token is not None:
        at["token"] = token
    arguments: dict[str, tuple[str, list[Any]]] = {
        "token": ("TestToken", []),
        "arbiter": ("Arbiter", []),
        "rounds": ("Rounds", []),
        "jobs": ("Jobs", []),
        "vault": (
            "StakeVault",
            [at["token"], at["market"], at["game"], at["witnesses"], at["availability"], unbond_seconds],
        ),
        "market": (
            "JobMarket",
            [
                *(at[name] for name in ("token", "vault", "game", "validator", "witnesses", "availability")),
                chain.inclusion,
                chain.censor,
            ],
        ),
        "game": ("DisputeGame", [at["market"], at["vault"], at["arbiter"]]),
        "validator": ("Validator", [at["market"]]),
        "availability": ("Availability", [at["market"], at["vault"]]),
        "witnesses": ("Witnesses", [at["market"], at["vault"]]),
    }
    base_fee = w3.eth.get_block("latest").get("baseFeePerGas", 0)
    hashes = {}
    for i, name in enumerate(order):
        artifact, values = arguments[name]
        compiled = artifacts.load(artifact)
        factory = w3.eth.contract(
            abi=compiled.abi, bytecode=compiled.linked({"Rounds": at["rounds"], "Jobs": at["jobs"]})
        )
        transaction = {
            "type": 2,
            "chainId": w3.eth.chain_id,
            "nonce": first + i,
            "data": factory.constructor(*values).data_in_transaction,
            "value": 0,
            "gas": _GAS,
            "maxPriorityFeePerGas": 1_000_000_000,
            "maxFeePerGas": 2 * base_fee + 1_000_000_000,
        }
        hashes[name] = w3.eth.send_raw_transaction(deployer.sign_transaction(transaction).raw_transaction)
    receipts = {name: _receipt(w3, hash_, timeout) for name, hash_ in hashes.items()}
    for name, receipt in receipts.items():
        if receipt["status"] != 1 or receipt["contractAddress"] != at[name]:
            raise ChainError(f"deploying {arguments[name][0]} failed", "check the chain's hardfork: at least shanghai")
    block = min(receipt["blockNumber"] for receipt in receipts.values())
    for linked in ("rounds", "jobs"):
        del at[linked]  # nobody calls it
    return Addresses(chain_id=w3.eth.chain_id, block=block, **at)


def _receipt(w3: Web3, hash_: Any, timeout: float) -> Any:
    from web3.exceptions import TimeExhausted

    try:
        return w3.eth.wait_for_transaction_receipt(hash_, timeout=timeout, poll_latency=0.1)
    except TimeExhausted as failure:
        raise TryLater(
            f"the deployment is not mined after {timeout:.0f} s", "look whether the chain moves"
        ) from failure
