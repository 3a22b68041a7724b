"""Whether an account signed a digest, as contracts/libraries/Signatures.sol decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, Digest

if TYPE_CHECKING:
    from web3 import Web3

HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
"""Of secp256k1, rounded down: of the two signatures s and -s, OpenZeppelin's ECDSA takes the lower."""

MAGIC = keccak(b"isValidSignature(bytes32,bytes)")[:4]
"""What a contract answers that approves of a signature (ERC-1271)."""


def recovered(digest: Digest, signature: bytes) -> Address | None:
    """The account whose key made 65 bytes r ‖ s ‖ v, v = 27 or 28; None if they are no signature of anybody's."""
    from eth_account import Account

    if len(signature) != 65 or signature[64] not in (27, 28) or int.from_bytes(signature[32:64], "big") > HALF_ORDER:
        return None
    try:
        return Address(Account._recover_hash(digest, signature=signature))
    except Exception:  # eth-keys raises several unrelated families for points that are not on the curve
        return None


def is_signed(w3: Web3, account: Address, digest: Digest, signature: bytes) -> bool:
    """Whether `account` signed: its own key, which asks nobody, or its code's word (ERC-1271)."""
    return recovered(digest, signature) == account or _approved(w3, account, digest, signature)


def _approved(w3: Web3, account: Address, digest: Digest, signature: bytes) -> bool:
    from eth_abi.abi import encode
    from web3.exceptions import ContractLogicError, Web3RPCError

    if not w3.eth.get_code(account):  # type: ignore[arg-type]
        return False
    data = MAGIC + encode(["bytes32", "bytes"], [digest, signature])
    try:
        answer = bytes(w3.eth.call({"to": account, "data": data}))
    except (ContractLogicError, Web3RPCError):
        return False
    return answer[:32] == MAGIC.ljust(32, b"\0")
