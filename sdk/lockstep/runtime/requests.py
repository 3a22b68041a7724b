"""Signed requests: the bytes that a node signs when it talks to a coordinator.

    message = SHA-256("LSR2" ‖ method ‖ 0x00 ‖ path?query ‖ 0x00 ‖ account ‖ nonce ‖ expires u64 ‖ SHA-256(body))

Five headers carry the values. The account determines which key must have signed: the one that it registered on chain
last. A key in the request would prove nothing, because any account may register any key. The body's digest (RFC 9530)
is a header, so that the signature is checked before the body is read.

`lockstep.runtime.identity` makes and checks the signature (ed25519); this module defines the signed bytes and the form
and lifetime of requests.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from lockstep.protocol.errors import AuthError
from lockstep.protocol.types import Address, Digest, Seconds

MAGIC = b"LSR2"
ACCOUNT_HEADER = "Lockstep-Account"
NONCE_HEADER = "Lockstep-Nonce"
EXPIRES_HEADER = "Lockstep-Expires"
SIGNATURE_HEADER = "Lockstep-Signature"
DIGEST_HEADER = "Content-Digest"
HEADERS = (ACCOUNT_HEADER, NONCE_HEADER, EXPIRES_HEADER, DIGEST_HEADER, SIGNATURE_HEADER)

NONCE_BYTES = 16
LIFETIME = Seconds(120)
"""Chain seconds for which a client's request is valid."""

MAX_LIFETIME = Seconds(900)
"""Longest lifetime that a coordinator accepts, because it must remember every nonce for that long."""

_HINT = "sign every request with the node key that the staking key registered; `lockstep doctor` shows both"


@dataclass(frozen=True)
class RequestSignature:
    """The five headers of a signed request, parsed."""

    account: Address
    """The staking account that sends the request, in lower case; its registered node key has signed."""
    nonce: bytes
    """16 bytes, never used twice by one account."""
    expires: Seconds
    """Chain time after which the request is refused."""
    body: Digest
    """SHA-256 of the body."""
    signature: bytes
    """64 bytes over `request_digest`."""

    def headers(self) -> dict[str, str]:
        """Returns the headers to send."""
        return {
            ACCOUNT_HEADER: self.account,
            NONCE_HEADER: self.nonce.hex(),
            EXPIRES_HEADER: str(self.expires),
            DIGEST_HEADER: f"sha-256=:{base64.b64encode(self.body).decode()}:",
            SIGNATURE_HEADER: self.signature.hex(),
        }

    @staticmethod
    def parse(headers: Mapping[str, str]) -> RequestSignature:
        """Parses the headers (lower-case or as written). Raises AuthError `auth.unsigned` or `auth.malformed`."""
        found = {name: headers.get(name, headers.get(name.lower(), "")) for name in HEADERS}
        missing = [name for name, value in found.items() if not value]
        # INVARIANT: nothing acts on a request that nobody signed.
        if missing:
            raise AuthError(f"the request is unsigned: no {', '.join(missing)}", hint=_HINT, code="auth.unsigned")
        return RequestSignature(
            _account(found[ACCOUNT_HEADER]),
            _hex(NONCE_HEADER, found[NONCE_HEADER], NONCE_BYTES),
            _expiry(found[EXPIRES_HEADER]),
            _digest(found[DIGEST_HEADER]),
            _hex(SIGNATURE_HEADER, found[SIGNATURE_HEADER], 64),
        )

    def check_body(self, digest: bytes) -> None:
        """Raises AuthError `auth.body` unless this is the SHA-256 of the received body."""
        # INVARIANT: nothing acts on a body that nobody signed.
        if digest != self.body:
            raise AuthError("the body is not the one that was signed", hint="send the body unchanged", code="auth.body")

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


def request_digest(method: str, target: str, account: Address, nonce: bytes, expires: int, body: Digest) -> Digest:
    """Returns the 32 bytes to sign; `target` is the path with its query, percent-encoded as sent, and `body` the
    SHA-256 of the body.

    Raises AuthError `auth.malformed` for an unknown HTTP method.
    """
    if not method.isascii():
        raise AuthError("the request's method is not ASCII", hint=_HINT, code="auth.malformed")
    return Digest(
        sha256(
            b"\x00".join((MAGIC + method.upper().encode("ascii"), target.encode("latin-1"), b""))
            + bytes.fromhex(account[2:])
            + nonce
            + expires.to_bytes(8, "big")
            + body
        ).digest()
    )


def _hex(name: str, text: str, length: int) -> bytes:
    try:
        value = bytes.fromhex(text) if len(text) == 2 * length else b""
    except ValueError:
        value = b""
    # fromhex accepts blanks and capitals; each value must have one spelling.
    if len(value) != length or value.hex() != text:
        raise AuthError(f"{name} is not {length} bytes of lower-case hex", hint=_HINT, code="auth.malformed")
    return value


def _account(text: str) -> Address:
    return Address("0x" + _hex(ACCOUNT_HEADER, text[2:] if text.startswith("0x") else "", 20).hex())


def _digest(text: str) -> Digest:
    try:
        value = base64.b64decode(text.removeprefix("sha-256=:").removesuffix(":"), validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != 32 or text != f"sha-256=:{base64.b64encode(value).decode()}:":
        raise AuthError(f"{DIGEST_HEADER} is not sha-256=:BASE64: (RFC 9530)", hint=_HINT, code="auth.malformed")
    return Digest(value)


def _expiry(text: str) -> Seconds:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) < 1 << 63):
        raise AuthError(f"{EXPIRES_HEADER} is not a time in seconds", hint=_HINT, code="auth.malformed")
    return Seconds(int(text))
