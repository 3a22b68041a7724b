"""Deploys the contracts. Addresses are computed first, because constructors refer to one another's contracts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.chain import artifacts
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.presets import CHAINS
from lockstep.protocol.errors import ChainError, TryLater
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Address, Seconds

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

UNBOND_SECONDS = Seconds(14 * 86_400)
GAS = 6_000_000
"""The gas limit of a creation; the most expensive one uses 5.2 M."""
LIBRARIES = {"Settling": "settling", "Rounds": "rounds", "Jobs": "jobs"}
"""Maps the artifact of each library that the market is linked with to its key among the addresses."""
ORDER = (
    "token", "arbiter", *LIBRARIES.values(), "vault", "market", "game", "validator", "availability", "witnesses",
)  # fmt: skip


def create_address(deployer: Address, nonce: int) -> Address:
    """Returns the address that CREATE gives the deployer's transaction `nonce`: keccak(rlp([deployer, nonce]))[12:]."""
    import rlp  # type: ignore[import-untyped]
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(keccak(rlp.encode([bytes.fromhex(deployer[2:]), nonce]))[12:]))


@dataclass(frozen=True)
class Creation:
    """The transaction that creates one contract."""

    name: str
    """The contract's key among the addresses; users never call those of LIBRARIES directly."""
    artifact: str
    address: Address
    arguments: tuple[Any, ...]
    nonce: int
    data: bytes
    """Creation code with its arguments."""


@dataclass(frozen=True)
class Plan:
    """The transactions of a deployment in order; deployer, next nonce and arguments determine them."""

    deployer: Address
    creations: tuple[Creation, ...]
    at: dict[str, Address]
    """Maps a name to the address of every contract, including an existing token."""

    def addresses(self, chain_id: int, block: int) -> Addresses:
        """Returns the deployment's addresses once it is mined."""
        return Addresses(chain_id, block=block, **{name: self.at[name] for name in CONTRACTS})

    def arguments_of(self) -> dict[str, tuple[Any, ...]]:
        """Maps the name of each created contract to its constructor arguments."""
        return {each.name: each.arguments for each in self.creations}


def wiring(
    at: dict[str, Address], unbond_seconds: Seconds, chain: ChainTimes
) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Maps a name to (artifact, constructor arguments), by which the contracts refer to one another."""
    return {
        "token": ("TestToken", ()),
        "arbiter": ("Arbiter", ()),
        **{name: (artifact, ()) for artifact, name in LIBRARIES.items()},
        "vault": (
            "StakeVault",
            (at["token"], at["market"], at["game"], at["witnesses"], at["availability"], unbond_seconds),
        ),
        "market": (
            "JobMarket",
            (
                *(at[name] for name in ("token", "vault", "game", "validator", "witnesses", "availability")),
                chain.inclusion,
                chain.censor,
            ),
        ),
        "game": ("DisputeGame", (at["market"], at["vault"], at["arbiter"])),
        "validator": ("Validator", (at["market"],)),
        "availability": ("Availability", (at["market"], at["vault"])),
        "witnesses": ("Witnesses", (at["market"], at["vault"])),
    }


def plan(
    deployer: Address,
    first: int,
    token: Address | None = None,
    unbond_seconds: Seconds = UNBOND_SECONDS,
    chain: ChainTimes = CHAINS["devnet"],
) -> Plan:
    """Returns the creations of a deployment from the deployer's nonce `first` on; includes a test token unless `token`
    is given."""
    order = [name for name in ORDER if token is None or name != "token"]
    at = {name: create_address(deployer, first + i) for i, name in enumerate(order)}
    if token is not None:
        at["token"] = token
    wired = wiring(at, unbond_seconds, chain)
    creations = []
    for i, name in enumerate(order):
        artifact, arguments = wired[name]
        compiled = artifacts.load(artifact)
        code = bytes.fromhex(compiled.linked({artifact: at[name] for artifact, name in LIBRARIES.items()})[2:])
        data = code + encoded_arguments(artifact, arguments)
        creations.append(Creation(name, artifact, at[name], arguments, first + i, data))
    return Plan(deployer, tuple(creations), at)


def encoded_arguments(artifact: str, arguments: tuple[Any, ...]) -> bytes:
    """Encodes constructor arguments, as they follow the creation code."""
    from eth_abi.abi import encode

    entry: dict[str, Any] = next(
        (e for e in artifacts.load(artifact).abi if e["type"] == "constructor"), {"inputs": []}
    )
    return encode([artifacts.abi_type(part) for part in entry["inputs"]], arguments)


def deploy(
    w3: Web3,
    deployer: LocalAccount,
    token: Address | None = None,
    unbond_seconds: Seconds = UNBOND_SECONDS,
    chain: ChainTimes = CHAINS["devnet"],
    timeout: float = 60.0,
) -> Addresses:
    """Deploys to a local chain; without `token`, with a test token that any account may mint.

    `chain` has the times that the deployment promises for that chain: jobs with too short clocks are refused. Nothing
    is written to disk; `chain.deploying` deploys durably.

    Raises `ChainError` if a creation reverts or has another address, `TryLater` if it is not mined in `timeout`
    seconds.
    """
    first = w3.eth.get_transaction_count(deployer.address)
    planned = plan(Address(deployer.address), first, token, unbond_seconds, chain)
    base_fee = w3.eth.get_block("latest").get("baseFeePerGas", 0)
    hashes = {}
    for each in planned.creations:
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": w3.eth.chain_id,
            "nonce": each.nonce,
            "data": each.data,
            "value": 0,
            "gas": GAS,
            "maxPriorityFeePerGas": 1_000_000_000,
            "maxFeePerGas": 2 * base_fee + 1_000_000_000,
        }
        hashes[each] = w3.eth.send_raw_transaction(deployer.sign_transaction(transaction).raw_transaction)
    receipts = {each: _receipt(w3, hash_, timeout) for each, hash_ in hashes.items()}
    for each, receipt in receipts.items():
        if receipt["status"] != 1 or receipt["contractAddress"] != each.address:
            raise ChainError(f"deploying {each.artifact} failed", "check the chain's hardfork: at least shanghai")
    block = min(receipt["blockNumber"] for receipt in receipts.values())
    return planned.addresses(w3.eth.chain_id, block)


def _receipt(w3: Web3, hash_: Any, timeout: float) -> Any:
    from web3.exceptions import TimeExhausted

    try:
        return w3.eth.wait_for_transaction_receipt(hash_, timeout=timeout, poll_latency=0.1)
    except TimeExhausted as failure:
        raise TryLater(
            f"the deployment is not mined after {timeout:.0f} s", "check that the chain produces blocks"
        ) from failure
