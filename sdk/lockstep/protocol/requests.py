"""Signed requests: the bytes that a node signs when it talks to a coordinator.

    message = SHA-256("LSR1" ‖ method ‖ 0x00 ‖ path?query ‖ 0x00 ‖ nonce ‖ expires u64 ‖ SHA-256(body))

The four headers below carry the rest. The signature itself (ed25519) is made and checked in `lockstep.identity`; this
module only says what is signed and what a well-formed, timely request is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from lockstep.protocol.errors import AuthError
from lockstep.protocol.types import Digest, Seconds

MAGIC = b"LSR1"
KEY_HEADER = "Lockstep-Key"
NONCE_HEADER = "Lockstep-Nonce"
EXPIRES_HEADER = "Lockstep-Expires"
SIGNATURE_HEADER = "Lockstep-Signature"

NONCE_BYTES = 16
LIFETIME = Seconds(120)
"""How long a client lets its request live."""

MAX_LIFETIME = Seconds(900)
"""The furthest expiry that a coordinator accepts: it must remember every nonce for that long."""

_HINT = "sign every request with the node key that the staking key registered; `lockstep doctor` shows both"


@dataclass(frozen=True)
class RequestSignature:
    """The four headers, parsed."""

    key: bytes
    """32 bytes: the node's ed25519 public key."""
    nonce: bytes
    """16 bytes, never used twice by one key."""
    expires: Seconds
    """Chain time after which the request is refused."""
    signature: bytes
    """64 bytes over `request_digest`."""

    def headers(self) -> dict[str, str]:
        """The headers to send."""
        return {
            KEY_HEADER: self.key.hex(),
            NONCE_HEADER: self.nonce.hex(),
            EXPIRES_HEADER: str(self.expires),
            SIGNATURE_HEADER: self.signature.hex(),
        }

    @staticmethod
    def parse(headers: Mapping[str, str]) -> RequestSignature:
        """Read the headers (lower-case or as written); raises AuthError `auth.unsigned` or `auth.malformed`."""
        found = {
            name: headers.get(name, headers.get(name.lower(), ""))
            for name in (KEY_HEADER, NONCE_HEADER, EXPIRES_HEADER, SIGNATURE_HEADER)
        }
        missing = [name for name, value in found.items() if not value]
        # INVARIANT: nothing acts on a request that nobody signed.
        if missing:
            raise AuthError(f"the request is unsigned: no {', '.join(missing)}", hint=_HINT, code="auth.unsigned")
        return RequestSignature(
            _hex(KEY_HEADER, found[KEY_HEADER], 32),
            _hex(NONCE_HEADER, found[NONCE_HEADER], NONCE_BYTES),
            _expiry(found[EXPIRES_HEADER]),
            _hex(SIGNATURE_HEADER, found[SIGNATURE_HEADER], 64),
        )

    def check_time(self, now: Seconds) -> None:
        """Raises AuthError `auth.expired` unless now <= expires <= now + MAX_LIFETIME, in chain seconds."""
        # INVARIANT: a request is good for a bounded time, so its nonce need only be remembered that long.
        if self.expires < now:
            raise AuthError(
                f"the request expired at {self.expires}; chain time is {now}",
                hint="sign it again; expiry is counted in chain time, the latest block's timestamp",
                code="auth.expired",
            )
        if self.expires > now + MAX_LIFETIME:
            raise AuthError(
                f"the request expires at {self.expires}, more than {MAX_LIFETIME} s after chain time {now}",
                hint=f"let a request live {LIFETIME} s of chain time",
                code="auth.expired",
            )


def request_digest(method: str, target: str, nonce: bytes, expires: int, body: bytes) -> Digest:
    """The 32 bytes to sign; `target` is the path with its query, percent-encoded as sent."""
    return Digest(
        sha256(
            b"\x00".join((MAGIC + method.upper().encode("ascii"), target.encode("ascii"), b""))
            + nonce
            + expires.to_bytes(8, "big")
            + sha256(body).digest()
        ).digest()
    )


def _hex(name: str, text: str, length: int) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    # fromhex forgives blanks and capitals; one value has one spelling.
    if len(value) != length or value.hex() != text:
        raise AuthError(f"{name} is not {length} bytes of lower-case hex", hint=_HINT, code="auth.malformed")
    return value


def _expiry(text: str) -> Seconds:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) < 1 << 63):
        raise AuthError(f"{EXPIRES_HEADER} is not a time in seconds", hint=_HINT, code="auth.malformed")
    return Seconds(int(text))
