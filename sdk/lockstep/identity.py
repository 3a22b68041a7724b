"""A node's identity: the ed25519 key that signs its requests to coordinators.

The key is no money: it only proves that a request comes from the node that a staking account registered on chain
(`NodeRegistered`). It lies in `node.key` as 64 hex digits, readable by its owner alone.
"""

from __future__ import annotations

import os
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from lockstep.protocol.errors import AuthError, KeyStoreError
from lockstep.protocol.requests import LIFETIME, NONCE_BYTES, RequestSignature, request_digest
from lockstep.protocol.types import Seconds

FILE_NAME = "node.key"


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
        secret = os.urandom(32) if seed is None else seed
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise KeyStoreError(f"{path} exists", hint="a node key is never overwritten; move it away first") from error
        with os.fdopen(handle, "w") as file:
            file.write(secret.hex() + "\n")
        return NodeKey(secret)

    @staticmethod
    def load(path: Path) -> NodeKey:
        """Read a key; raises KeyStoreError if it is absent or not 64 hex digits."""
        try:
            secret = bytes.fromhex(path.read_text().strip())
        except FileNotFoundError as error:
            raise KeyStoreError(f"no node key at {path}", hint="`lockstep key new` makes one") from error
        except (ValueError, UnicodeDecodeError) as error:
            raise KeyStoreError(f"{path} is not a node key", hint="restore it from your backup") from error
        if len(secret) != 32:
            raise KeyStoreError(f"{path} is not a node key: {len(secret)} bytes", hint="restore it from your backup")
        return NodeKey(secret)

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
