"""The node key signs requests, and nothing else passes as its signature."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.errors import AuthError, KeyStoreError
from lockstep.protocol.types import Address, Digest, Seconds
from lockstep.runtime.identity import NodeKey, verify_request
from lockstep.runtime.requests import LIFETIME, RequestSignature

ACCOUNT = "0x" + "Ab" * 20
NODE = NodeKey(bytes([7]) * 32)
NOW = Seconds(1_700_000_000)


def test_a_signed_request_verifies_and_expires_in_chain_time() -> None:
    signature = RequestSignature.parse(NODE.sign_request(ACCOUNT, "POST", "/api/v1/claims", b"{}", now=NOW))
    verify_request(signature, NODE.public, "POST", "/api/v1/claims")
    signature.check_body(sha256(b"{}").digest())
    assert signature.expires == NOW + LIFETIME


@pytest.mark.parametrize(
    ("method", "target", "change"),
    [
        ("PUT", "/x", {}),
        ("POST", "/x?y", {}),
        ("POST", "/x", {"body": Digest(bytes(32))}),
        ("POST", "/x", {"account": Address("0x" + "22" * 20)}),
        ("POST", "/x", {"nonce": bytes(16)}),
        ("POST", "/x", {"expires": Seconds(NOW + 1)}),
    ],
)
def test_a_signature_is_of_one_request_alone(method: str, target: str, change: dict[str, Any]) -> None:
    signature = RequestSignature.parse(NODE.sign_request(ACCOUNT, "POST", "/x", b"{}", now=NOW))
    with pytest.raises(AuthError) as refused:
        verify_request(replace(signature, **change), NODE.public, method, target)
    assert refused.value.code == "auth.signature"


@pytest.mark.parametrize("key", [NodeKey(bytes(32)).public, bytes(32), b"\xff" * 32, b"", bytes(31)])
def test_another_nodes_key_does_not_verify(key: bytes) -> None:
    signature = RequestSignature.parse(NODE.sign_request(ACCOUNT, "POST", "/x", b"", now=NOW))
    with pytest.raises(AuthError):
        verify_request(signature, key, "POST", "/x")


def test_nonces_are_fresh() -> None:
    nonces = {NODE.sign_request(ACCOUNT, "GET", "/", b"", now=NOW)["Lockstep-Nonce"] for _ in range(8)}
    assert len(nonces) == 8


def test_the_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "home" / "node.key"
    made = NodeKey.create(path)
    assert path.stat().st_mode & 0o077 == 0
    assert NodeKey.load(path).public == made.public
    assert NodeKey.open(path).public == made.public
    with pytest.raises(KeyStoreError):
        NodeKey.create(path)


@pytest.mark.parametrize("text", ["", "zz", "00" * 31])
def test_a_damaged_key_file_is_a_key_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyStoreError):
        NodeKey.load(path)
    with pytest.raises(KeyStoreError):
        NodeKey.load(tmp_path / "absent")
