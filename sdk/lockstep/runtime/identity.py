"""A node's identity: the ed25519 key that signs its requests to coordinators.

The key controls no money: it only proves that a request comes from the node that a staking account registered on chain
(`NodeRegistered`). `lockstep.chain.keys` reads and writes its file.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from nacl.exceptions import BadSignatureError, CryptoError
from nacl.signing import SigningKey, VerifyKey

from lockstep.chain.keys import create_node_key, load_node_key
from lockstep.protocol.errors import AuthError
from lockstep.protocol.types import Address, Digest, Seconds
from lockstep.runtime.requests import LIFETIME, NONCE_BYTES, RequestSignature, request_digest


class NodeKey:
    """An ed25519 key pair of a node."""

    def __init__(self, seed: bytes) -> None:
        """`seed` has the 32 secret bytes."""
        self._signing = SigningKey(seed)

    @property
    def public(self) -> bytes:
        """The 32 bytes that `registerNode` stores on chain."""
        return bytes(self._signing.verify_key)

    def sign(self, message: bytes) -> bytes:
        """Returns the 64-byte ed25519 signature (RFC 8032) of `message`."""
        return self._signing.sign(message).signature

    def sign_request(
        self, account: str, method: str, target: str, body: bytes, *, now: Seconds, nonce: bytes | None = None
    ) -> dict[str, str]:
        """Returns the headers of a signed request by `account`, which must have registered this key.

        The request is valid for LIFETIME seconds of chain time from `now`; its nonce is fresh by default.
        """
        nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce
        expires = Seconds(now + LIFETIME)
        speaker, digest = Address(account.lower()), Digest(sha256(body).digest())
        signature = self.sign(request_digest(method, target, speaker, nonce, expires, digest))
        return RequestSignature(speaker, nonce, expires, digest, signature).headers()

    @staticmethod
    def create(path: Path, seed: bytes | None = None) -> NodeKey:
        """Writes a new key (from `seed` or the system's randomness). Raises KeyStoreError if `path` exists."""
        return NodeKey(bytes(create_node_key(path, seed)))

    @staticmethod
    def load(path: Path) -> NodeKey:
        """Reads a key. Raises KeyStoreError if it is absent, damaged or readable by others."""
        return NodeKey(bytes(load_node_key(path)))

    @staticmethod
    def open(path: Path) -> NodeKey:
        """Loads the key at `path`, or creates one if there is none."""
        return NodeKey.load(path) if path.exists() else NodeKey.create(path)


def verify_request(signature: RequestSignature, key: bytes, method: str, target: str) -> None:
    """Raises AuthError `auth.signature` unless `key`, registered by the account, signed exactly this request.

    The caller checks the time, the nonce and the body itself.
    """
    digest = request_digest(method, target, signature.account, signature.nonce, signature.expires, signature.body)
    # A registered key is 32 arbitrary bytes: libsodium refuses some with other errors.
    try:
        VerifyKey(key).verify(digest, signature.signature)
    except (BadSignatureError, CryptoError, ValueError) as error:
        raise AuthError(
            f"the signature is not of this request by the key that {signature.account} registered",
            hint="sign method, path with query, account, nonce, expiry and body's digest exactly as they are sent",
            code="auth.signature",
        ) from error
