"""Signatures off chain are judged as the market judges them: keys, delegates, contracts that say yes."""

from __future__ import annotations

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Devnet
from lockstep.chain.signatures import HALF_ORDER, MAGIC, is_signed, recovered
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
def test_an_account_signs_by_its_key_and_a_contract_by_its_word(devnet: Devnet) -> None:
    # push4 MAGIC, shl 224, mstore 0, return 32 bytes; the second answers zeros, the third reverts.
    says_yes = "0x63" + MAGIC.hex() + "60e01b60005260206000f3"
    wallets = {f"0x{n:040x}": code for n, code in ((0x77, says_yes), (0x78, "0x60206000f3"), (0x79, "0x60006000fd"))}
    for address, code in wallets.items():
        devnet._request("anvil_setCode", [address, code])
    assert is_signed(devnet.w3, ME, DIGEST, sign(KEY))
    assert not is_signed(devnet.w3, ME, OTHER, sign(KEY))
    said = [is_signed(devnet.w3, Address(address), DIGEST, b"anything at all") for address in wallets]
    assert said == [True, False, False]


@pytest.mark.chain
def test_a_delegate_signs_for_its_account_while_it_is_one(
    devnet: Devnet, contracts: Contracts, open_outbox: OpenOutbox, rich: LocalAccount
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
