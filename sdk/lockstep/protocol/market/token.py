"""The test token: an ERC-20 with permits that anyone may mint.

Twin of contracts/test/TestToken.sol on OpenZeppelin 5.
"""

from __future__ import annotations

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, word
from lockstep.protocol.market.calls import MAX_UINT
from lockstep.protocol.market.ids import HALF_ORDER, separator, typed_digest
from lockstep.protocol.market.state import Draft, Reader, added
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, Digest

NAME, SYMBOL, DECIMALS = "Lockstep Test Token", "LST", 18
PERMIT_TYPE = "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"


def mint(d: Draft, sender: Address, to: Address, amount: int) -> None:
    """Mints tokens."""
    if to == ZERO_ADDRESS:
        raise revert("ERC20InvalidReceiver", to)
    d.total_supply = added(d.total_supply, amount)
    d.balances[to] += amount

    d.emit("TestToken", "Transfer", ZERO_ADDRESS, to, amount)


def transfer(d: Draft, sender: Address, to: Address, amount: int) -> bool:
    """Transfers the sender's tokens."""
    if to == ZERO_ADDRESS:
        raise revert("ERC20InvalidReceiver", to)
    held = d.balances[sender]
    if held < amount:
        raise revert("ERC20InsufficientBalance", sender, held, amount)
    d.balances[sender] = held - amount
    d.balances[to] += amount

    d.emit("TestToken", "Transfer", sender, to, amount)
    return True


def approve(d: Draft, sender: Address, spender: Address, amount: int) -> bool:
    """Allows `spender` to transfer up to `amount` of the sender's tokens; the largest amount is never used up."""
    if spender == ZERO_ADDRESS:
        raise revert("ERC20InvalidSpender", spender)
    d.allowances[sender, spender] = amount

    d.emit("TestToken", "Approval", sender, spender, amount)
    return True


def transfer_from(d: Draft, sender: Address, owner: Address, to: Address, amount: int) -> bool:
    """Transfers another account's tokens, within its allowance."""
    allowed = d.allowances[owner, sender]
    if allowed < MAX_UINT:
        if allowed < amount:
            raise revert("ERC20InsufficientAllowance", sender, allowed, amount)
        # The zero address cannot sign an approval, so even a transfer of none of its tokens is refused.
        if owner == ZERO_ADDRESS:
            raise revert("ERC20InvalidApprover", owner)
        d.allowances[owner, sender] = allowed - amount
    return transfer(d, owner, to, amount)


def permit(
    d: Draft, sender: Address, owner: Address, spender: Address, amount: int, deadline: int, v: int, r: bytes, s: bytes
) -> None:
    """Sets an allowance by the owner's signature (EIP-2612)."""
    if d.block.time > deadline:
        raise revert("ERC2612ExpiredSignature", deadline)
    signer = d.at.recover(permit_digest(d, owner, spender, amount, deadline), r + s + bytes((v,)))
    # OpenZeppelin's ECDSA rejects invalid signatures with specific errors.
    if int.from_bytes(s, "big") > HALF_ORDER:
        raise revert("ECDSAInvalidSignatureS", s)
    if signer == ZERO_ADDRESS:
        raise revert("ECDSAInvalidSignature")
    if signer != owner:
        raise revert("ERC2612InvalidSigner", signer, owner)
    d.permits[owner] += 1
    approve(d, owner, spender, amount)


def permit_digest(s: Reader, owner: Address, spender: Address, amount: int, deadline: int) -> Digest:
    """Returns the digest that a permit signs, with the owner's next nonce."""
    parts = (owner, spender, amount, s.permits[owner], deadline)
    struct = keccak(keccak(PERMIT_TYPE.encode()) + b"".join(word(part) for part in parts))
    return typed_digest(NAME, s.at.chain_id, s.at.token, struct)


def domain_separator(s: Reader) -> Digest:
    """Returns the hash of the permits' EIP-712 domain."""
    return separator(NAME, s.at.chain_id, s.at.token)


def eip712_domain(s: Reader) -> tuple[bytes, str, str, int, Address, bytes, tuple[int, ...]]:
    """Returns the fields of the EIP-712 domain (EIP-5267)."""
    return b"\x0f", NAME, "1", s.at.chain_id, s.at.token, bytes(32), ()
