"""A node's identity: the ed25519 key that signs its requests to coordinators.

The key is no money: it only proves that a request comes from the node that a staking account registered on chain
(`NodeRegistered`). Its file is `lockstep.chain.keys`'s.
"""

from __future__ import annotations

import os
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from lockstep.chain.keys import create_node_key, load_node_key
from lockstep.protocol.errors import AuthError
from lockstep.protocol.requests import LIFETIME, NONCE_BYTES, RequestSignature, request_digest
from lockstep.protocol.types import Seconds


class NodeKey:
    """An ed25519 key pair of a node."""

    def __init__(self, seed: bytes) -> None:
        """`seed`: the 32 secret bytes."""
        self._signing = SigningKey(seed)

    @property
    def public(self) -> bytes:
        """The 32 bytes that `registerNode` puts on chain."""
        return bytes(self._signing.verify_key)

    def sign(self, message: bytes) -> bytes:
        """64 bytes of ed25519 (RFC 8032) over `message`."""
        return self._signing.sign(message).signature

    def sign_request(
        self, method: str, target: str, body: bytes, *, now: Seconds, nonce: bytes | None = None
    ) -> dict[str, str]:
        """The headers of a request that lives LIFETIME seconds of chain time from `now`; a fresh nonce by default."""
        nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce
        expires = Seconds(now + LIFETIME)
        signature = self.sign(request_digest(method, target, nonce, expires, body))
        return RequestSignature(self.public, nonce, expires, signature).headers()

    @staticmethod
    def create(path: Path, seed: bytes | None = None) -> NodeKey:
        """Write a new key (from `seed` or the system's randomness); raises KeyStoreError if `path` exists."""
        return NodeKey(bytes(create_node_key(path, seed)))

    @staticmethod
    def load(path: Path) -> NodeKey:
        """Read a key; raises KeyStoreError if it is absent, damaged or readable by others."""
        return NodeKey(bytes(load_node_key(path)))

    @staticmethod
    def open(path: Path) -> NodeKey:
        """Load the key at `path`, making it first if there is none."""
        return NodeKey.load(path) if path.exists() else NodeKey.create(path)


def verify_request(signature: RequestSignature, method: str, target: str, body: bytes) -> None:
    """Raises AuthError `auth.signature` unless the key signed exactly this request; time and nonce are the caller's."""
    digest = request_digest(method, target, signature.nonce, signature.expires, body)
    try:
        VerifyKey(signature.key).verify(digest, signature.signature)
    except (BadSignatureError, ValueError) as error:
        raise AuthError(
            "the signature is not of this request by this key",
            hint="sign method, path with query, nonce, expiry and body exactly as they are sent",
            code="auth.signature",
        ) from error
