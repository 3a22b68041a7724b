"""Recovers the signer of a digest, as contracts/libraries/Signatures.sol does."""

from __future__ import annotations

from lockstep.protocol.market.ids import HALF_ORDER
from lockstep.protocol.types import Address, Digest


def recovered(digest: Digest, signature: bytes) -> Address | None:
    """Returns the account that made a signature of 65 bytes r ‖ s ‖ v, v = 27 or 28; None if the signature is
    invalid.
    """
    from eth_account import Account

    if len(signature) != 65 or signature[64] not in (27, 28) or int.from_bytes(signature[32:64], "big") > HALF_ORDER:
        return None
    try:
        return Address(Account._recover_hash(digest, signature=signature))
    except Exception:  # eth-keys raises several unrelated exception types for points that are not on the curve
        return None
