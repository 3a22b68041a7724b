"""What a signed request is: exact bytes, bounded life, one spelling."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import AuthError
from lockstep.protocol.types import Address, Digest, Seconds
from lockstep.runtime.requests import HEADERS, MAX_LIFETIME, RequestSignature, request_digest

ACCOUNT, OTHER = Address("0x" + "a1" * 20), Address("0x" + "b2" * 20)
BODY = Digest(sha256(b"body").digest())
SIGNED = RequestSignature(ACCOUNT, bytes(range(16)), Seconds(1_000), BODY, bytes(64))


def test_digest_is_the_documented_layout() -> None:
    place = b"LSR2POST\x00/api/v1/blobs?pin=1\x00"
    expected = sha256(place + b"\xa1" * 20 + bytes(16) + (77).to_bytes(8, "big") + BODY).digest()
    assert request_digest("post", "/api/v1/blobs?pin=1", ACCOUNT, bytes(16), 77, BODY) == expected


@given(st.integers(0, 5), st.binary(min_size=1, max_size=8))
def test_every_part_changes_the_digest(part: int, other: bytes) -> None:
    parts = ["POST", "/a", ACCOUNT, bytes(16), 5, BODY]
    changed = list(parts)
    hashed = sha256(other).digest()
    changed[part] = ("PUT", "/b" + other.hex(), OTHER, hashed[:16], 6, hashed)[part]
    assert request_digest(*parts) != request_digest(*changed)  # type: ignore[arg-type]


def test_headers_round_trip_in_either_case() -> None:
    headers = SIGNED.headers()
    assert RequestSignature.parse(headers) == SIGNED
    assert RequestSignature.parse({name.lower(): value for name, value in headers.items()}) == SIGNED


@pytest.mark.parametrize("name", list(SIGNED.headers()))
def test_a_missing_header_is_unsigned(name: str) -> None:
    headers = SIGNED.headers()
    del headers[name]
    with pytest.raises(AuthError) as refused:
        RequestSignature.parse(headers)
    assert refused.value.code == "auth.unsigned"
    assert name in refused.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Lockstep-Account", "0x" + "00" * 19),
        ("Lockstep-Account", "0x" + "AB" * 20),
        ("Lockstep-Account", "ab" * 20),
        ("Lockstep-Account", "0x" + "\xff" * 40),
        ("Content-Digest", "sha-256=::"),
        ("Content-Digest", "sha-256=:" + "A" * 43 + ":"),
        ("Content-Digest", "sha-256=:" + "A" * 42 + "B=:"),
        ("Content-Digest", "sha-512=:" + "A" * 43 + "=:"),
        ("Content-Digest", "\xff" * 60),
        ("Lockstep-Nonce", "zz" * 16),
        ("Lockstep-Nonce", "00 " * 16),
        ("Lockstep-Expires", "-1"),
        ("Lockstep-Expires", "1e9"),
        ("Lockstep-Expires", "9" * 30),
        ("Lockstep-Expires", "١٢"),
        ("Lockstep-Signature", "00" * 65),
    ],
)
def test_another_spelling_is_malformed(name: str, value: str) -> None:
    with pytest.raises(AuthError) as refused:
        RequestSignature.parse(SIGNED.headers() | {name: value})
    assert refused.value.code == "auth.malformed"


def test_another_body_is_refused() -> None:
    SIGNED.check_body(BODY)
    with pytest.raises(AuthError) as refused:
        SIGNED.check_body(sha256(b"another").digest())
    assert refused.value.code == "auth.body"


@given(st.dictionaries(st.sampled_from(HEADERS), st.text(max_size=70)))
def test_headers_of_strangers_raise_the_error_tree_alone(changes: dict[str, str]) -> None:
    with suppress(AuthError):
        RequestSignature.parse(SIGNED.headers() | changes)


def test_life_is_bounded_on_both_sides() -> None:
    SIGNED.check_time(Seconds(1_000))
    SIGNED.check_time(Seconds(1_000 - MAX_LIFETIME))
    for now in (1_001, 1_000 - MAX_LIFETIME - 1):
        with pytest.raises(AuthError) as refused:
            SIGNED.check_time(Seconds(now))
        assert refused.value.code == "auth.expired"
