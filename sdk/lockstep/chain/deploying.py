"""Deploys durably: writes the plan before the first transaction, and each creation before it is sent.

    FILE                 the addresses, written once every contract is mined and its code is verified
    FILE.plan            chain, deployer, first nonce, arguments: a second start must say the same
    FILE.journal         an outbox (`chain.outbox`): each creation under its own key, under its own nonce

After kill -9 the same command continues: it finds the sent transactions, and sends the remaining ones once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.files import write_atomically
from lockstep.chain import artifacts
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Token
from lockstep.chain.deployment import GAS, Creation, Plan, plan
from lockstep.chain.known_chains import facts_of, require_no_arb_sys, require_own_blocks
from lockstep.chain.outbox import Outbox
from lockstep.chain.verifying import verify
from lockstep.protocol.errors import ChainError, FundsError, UsageError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Address, Seconds

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

MAX_RUNTIME_BYTES, MAX_CREATION_BYTES = 24_576, 49_152
"""Most bytes of code on chain (EIP-170) and of creation code (EIP-3860)."""
_PUSH0 = "0x5f5ff3"
"""Code PUSH0 PUSH0 RETURN, which only runs on chains with the Shanghai upgrade (EIP-3855)."""


@dataclass(frozen=True)
class Wanted:
    """A deployment's requested settings."""

    token: Address | None
    """The token's address; None deploys a test token that any account may mint."""
    unbond_seconds: Seconds
    times: ChainTimes


def check_chain(w3: Web3, wanted: Wanted, *, test_token: bool) -> None:
    """Raises `ChainError` or `UsageError` if no market can run on this chain with these settings."""
    from web3.exceptions import ContractLogicError, Web3RPCError

    chain_id = w3.eth.chain_id
    require_own_blocks(chain_id)
    require_no_arb_sys(w3)
    facts = facts_of(chain_id)
    if wanted.token is None and not test_token and (facts is None or facts.public):
        raise UsageError(
            f"chain {chain_id} is not a devnet, and no token is given",
            "give --token ADDRESS, or --test-token to mint one",
        )
    if wanted.token is not None and not w3.eth.get_code(wanted.token):  # type: ignore[arg-type]
        raise UsageError(f"no token exists at {wanted.token} on chain {chain_id}", "check --token and --rpc")
    if wanted.token is not None:
        # INVARIANT: no market is made whose amounts nobody can read.
        _ = Token(w3, wanted.token).currency
    try:
        w3.eth.call({"data": _PUSH0})  # type: ignore[typeddict-item]
    except (ContractLogicError, Web3RPCError) as failure:
        raise ChainError(
            f"chain {chain_id} does not support the opcode PUSH0", "use a chain with the Shanghai hardfork or later"
        ) from failure


def check_sizes(planned: Plan) -> None:
    """Raises `ChainError` if a contract's code exceeds the chains' size limit."""
    for each in planned.creations:
        size = artifacts.load(each.artifact).runtime_bytes
        # INVARIANT: what a chain would refuse is not paid for.
        if size > MAX_RUNTIME_BYTES or len(each.data) > MAX_CREATION_BYTES:
            raise ChainError(
                f"{each.artifact} has {size} bytes", f"chains accept at most {MAX_RUNTIME_BYTES} (EIP-170)"
            )


def planned_on(w3: Web3, deployer: Address, wanted: Wanted) -> Plan:
    """Returns the plan that starts at the deployer's next nonce."""
    first = w3.eth.get_transaction_count(deployer)  # type: ignore[arg-type]
    made = plan(deployer, first, wanted.token, wanted.unbond_seconds, wanted.times)
    check_sizes(made)
    return made


def simulated(w3: Web3, planned: Plan) -> dict[str, int]:
    """Estimates the gas of every creation with the node, by artifact; sends nothing."""
    from web3.exceptions import ContractLogicError, Web3RPCError

    gas = {}
    for each in planned.creations:
        try:
            gas[each.artifact] = w3.eth.estimate_gas({"from": planned.deployer, "data": each.data})
        except (ContractLogicError, Web3RPCError) as failure:
            if "insufficient" in str(failure).lower():
                raise FundsError("the account cannot pay for gas", "send it some of the chain's own coin") from failure
            raise ChainError(
                f"creating {each.artifact} would fail: {failure}", "check the chain's hardfork: at least shanghai"
            ) from failure
    return gas


def deploy(
    w3: Web3, deployer: LocalAccount, file: Path, wanted: Wanted, *, max_fee_wei: int | None = None,
    max_tip_wei: int | None = None,
    told: Callable[[Creation, bool], None] = lambda creation, mined: None, timeout: float = 600.0,
) -> tuple[Addresses, int]:  # fmt: skip
    """Deploys, or continues a deployment; returns the addresses, and how many creations were sent before.

    Calls `told` with each creation when it is sent and when it is mined. Raises `UsageError` if `file` or its plan is
    of another deployment, `ChainError`, `FundsError`, `TryLater`, `Unreachable`, `Mismatch`.
    """
    plan_file, journal = file.with_name(file.name + ".plan"), file.with_name(file.name + ".journal")
    if file.exists() and not plan_file.exists():
        raise UsageError(f"{file} exists", "name another file with --deployment, or move it away")
    planned = _resumed(w3, deployer, plan_file, wanted)
    outbox = Outbox(journal, w3, deployer, max_fee_wei, max_tip_wei)
    try:
        before = len(outbox.keys("deploy/"))
        for each in planned.creations:
            outbox.submit(Call(Address(""), each.data, GAS, each.artifact), _key(each), check=False, nonce=each.nonce)
            told(each, False)
        blocks = []
        for each in planned.creations:
            blocks.append(outbox.wait(_key(each), timeout).block)
            told(each, True)
    finally:
        outbox.close()
    addresses = planned.addresses(w3.eth.chain_id, min(blocks))
    # INVARIANT: no address is handed out whose code is not this package's.
    verify(w3, addresses).require()
    write_atomically(file, [addresses.text().encode()])
    plan_file.unlink()
    for suffix in ("", "-wal", "-shm"):
        journal.with_name(journal.name + suffix).unlink(missing_ok=True)
    return addresses, before


def _key(each: Creation) -> str:
    return f"deploy/{each.nonce}/{each.name}"


def _resumed(w3: Web3, deployer: LocalAccount, file: Path, wanted: Wanted) -> Plan:
    """Returns the plan on disk, or writes and returns a new one."""
    genesis = w3.eth.get_block(0)["hash"].hex()
    said: dict[str, Any] = {
        "chain_id": w3.eth.chain_id, "genesis": genesis, "deployer": deployer.address, "token": wanted.token,
        "unbond_seconds": wanted.unbond_seconds, "inclusion_seconds": wanted.times.inclusion,
        "censor_seconds": wanted.times.censor,
    }  # fmt: skip
    if not file.exists():
        made = planned_on(w3, Address(deployer.address), wanted)
        begun = {**said, "first": made.creations[0].nonce, "code": _digest(made)}
        write_atomically(file, [(json.dumps(begun, indent=2) + "\n").encode()])
        return made
    try:
        held = json.loads(file.read_text())
        first, code = int(held.pop("first")), held.pop("code")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise UsageError(
            f"{file} cannot be read", "the file of an interrupted deployment is damaged: repair it, or move it away"
        ) from failure
    # INVARIANT: a deployment that was begun goes on as it was begun, or not at all.
    if differs := sorted(name for name in said if said[name] != held.get(name)):
        raise UsageError(
            f"the deployment in {file} has {differs[0]} {held.get(differs[0])}, not {said[differs[0]]}",
            "give the same options again, or move it and its journal away to start a new one",
        )
    made = plan(Address(deployer.address), first, wanted.token, wanted.unbond_seconds, wanted.times)
    if _digest(made) != code:
        raise UsageError(
            f"{file} was begun with other contracts", "continue with the version of Lockstep that began it"
        )
    return made


def _digest(planned: Plan) -> str:
    return keccak(b"".join(keccak(each.data) for each in planned.creations)).hex()
