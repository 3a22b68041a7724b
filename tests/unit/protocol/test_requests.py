"""What a signed request is: exact bytes, bounded life, one spelling."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import AuthError
from lockstep.protocol.requests import MAX_LIFETIME, RequestSignature, request_digest
from lockstep.protocol.types import Seconds

SIGNED = RequestSignature(bytes(range(32)), bytes(range(16)), Seconds(1_000), bytes(64))


def test_digest_is_the_documented_layout() -> None:
    body = b'{"a":1}'
    expected = sha256(
        b"LSR1POST\x00/api/v1/blobs?pin=1\x00" + bytes(16) + (77).to_bytes(8, "big") + sha256(body).digest()
    ).digest()
    assert request_digest("post", "/api/v1/blobs?pin=1", bytes(16), 77, body) == expected


@given(st.integers(0, 4), st.binary(min_size=1, max_size=8))
def test_every_part_changes_the_digest(part: int, other: bytes) -> None:
    parts = ["POST", "/a", bytes(16), 5, b"body"]
    changed = list(parts)
    changed[part] = ("PUT", "/b" + other.hex(), sha256(other).digest()[:16], 6, b"body" + other)[part]
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
        ("Lockstep-Key", "00" * 31),
        ("Lockstep-Key", "AB" * 32),
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


def test_life_is_bounded_on_both_sides() -> None:
    SIGNED.check_time(Seconds(1_000))
    SIGNED.check_time(Seconds(1_000 - MAX_LIFETIME))
    for now in (1_001, 1_000 - MAX_LIFETIME - 1):
        with pytest.raises(AuthError) as refused:
            SIGNED.check_time(Seconds(now))
        assert refused.value.code == "auth.expired"
