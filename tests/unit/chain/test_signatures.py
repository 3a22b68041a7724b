"""Signatures off chain are judged as the market recovers them: keys and delegates."""

from __future__ import annotations

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_keys.backends import CoinCurveECCBackend, get_backend

from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Local
from lockstep.chain.signatures import HALF_ORDER, recovered
from lockstep.protocol.types import Address, Digest
from tests.unit.chain.conftest import OpenOutbox

DIGEST, OTHER = Digest(b"d" * 32), Digest(b"e" * 32)
KEY: LocalAccount = Account.from_key(b"\x11" * 32)
ME = Address(KEY.address)
ORDER = 2 * HALF_ORDER + 1


def sign(account: LocalAccount, digest: Digest = DIGEST) -> bytes:
    return bytes(account.unsafe_sign_hash(digest).signature)


def test_a_signature_is_its_keys() -> None:
    assert recovered(DIGEST, sign(KEY)) == ME
    assert recovered(OTHER, sign(KEY)) not in (None, ME)


def test_keys_are_used_in_constant_time() -> None:
    assert type(get_backend()) is CoinCurveECCBackend, "eth-keys falls back to Python without a word"


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        sign(KEY)[:64],
        sign(KEY) + b"\0",
        sign(KEY)[:64] + bytes([sign(KEY)[64] - 27]),
        sign(KEY)[:32] + (ORDER - int.from_bytes(sign(KEY)[32:64], "big")).to_bytes(32, "big") + sign(KEY)[64:],
        bytes(65),
        b"\xff" * 32 + bytes(31) + b"\1\x1b",
        bytes(32) + bytes(31) + b"\1\x1b",
    ],
    ids=["nothing", "no v", "a byte too many", "v = 0 or 1", "high s", "zero", "r beyond the curve", "r = 0"],
)
def test_what_openzeppelin_refuses_is_nobodys(signature: bytes) -> None:
    assert recovered(DIGEST, signature) is None


@pytest.mark.chain
@pytest.mark.parametrize("devnet", ["anvil"], indirect=True)
def test_the_word_of_a_contract_is_not_taken_for_a_signature(devnet: Local, contracts: Contracts) -> None:
    # push4 isValidSignature's selector, shl 224, mstore 0, return 32 bytes: yes to everything, for now.
    devnet._request("anvil_setCode", [ME, "0x631626ba7e60e01b60005260206000f3"])
    assert not contracts.signed_for(ME, DIGEST, b"anything at all")
    assert contracts.signed_for(ME, DIGEST, sign(KEY)), "its key still signs"


@pytest.mark.chain
def test_a_delegate_signs_for_its_account_while_it_is_one(
    devnet: Local, contracts: Contracts, open_outbox: OpenOutbox, rich: LocalAccount
) -> None:
    me = Address(rich.address)
    assert contracts.signed_for(me, DIGEST, sign(rich))
    assert not contracts.signed_for(me, DIGEST, sign(KEY))
    outbox = open_outbox(rich)
    outbox.send(contracts.vault.set_delegate(ME), "delegate")
    assert contracts.vault.delegate_of(me) == ME
    assert contracts.signed_for(me, DIGEST, sign(KEY))
    assert contracts.signed_for(me, DIGEST, sign(rich)), "and the account itself"
    outbox.send(contracts.vault.set_delegate(Address("0x" + "00" * 20)), "no delegate")
    assert not contracts.signed_for(me, DIGEST, sign(KEY))
    outbox.close()
