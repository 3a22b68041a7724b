"""The guard: never two merges for one claim, never one request twice, whatever becomes of the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.guard import Guard
from lockstep.protocol.errors import AuthError, DoctorError, GuardRefused
from lockstep.protocol.types import ClaimId, Seconds

CLAIM = ClaimId(b"c" * 32)
KEY, NONCE = b"k" * 32, b"n" * 16


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    guard = Guard(tmp_path / "guard.sqlite")
    yield guard
    guard.close()


def test_a_claim_is_bound_to_one_merge(guard: Guard, tmp_path: Path) -> None:
    guard.bind_merge(CLAIM, b"a" * 32, b"b" * 32)
    guard.bind_merge(CLAIM, b"a" * 32, b"b" * 32)
    again = Guard(tmp_path / "guard.sqlite")
    with pytest.raises(GuardRefused):
        again.bind_merge(CLAIM, b"a" * 32, b"x" * 32)
    assert again.merge_of(CLAIM) == (b"a" * 32, b"b" * 32)
    assert again.merge_of(ClaimId(b"d" * 32)) is None
    again.close()


def test_a_nonce_is_used_once_per_key(guard: Guard, tmp_path: Path) -> None:
    guard.use_nonce(KEY, NONCE, Seconds(10))
    guard.use_nonce(b"j" * 32, NONCE, Seconds(10))
    with pytest.raises(AuthError) as refused:
        Guard(tmp_path / "guard.sqlite").use_nonce(KEY, NONCE, Seconds(99))
    assert refused.value.code == "auth.replayed"


def test_forgotten_nonces_stay_refused_because_time_never_returns(guard: Guard) -> None:
    guard.use_nonce(KEY, NONCE, Seconds(10))
    assert guard.forget(Seconds(10)) == 0, "a request is good until its expiry, inclusive"
    assert guard.forget(Seconds(11)) == 1
    assert guard.latest(Seconds(3)) == 11, "an index that starts anew does not turn time back"
    assert guard.latest(Seconds(20)) == 20


def test_an_unusable_file_is_a_doctors_error(tmp_path: Path) -> None:
    with pytest.raises(DoctorError):
        Guard(tmp_path / "absent" / "guard.sqlite")
