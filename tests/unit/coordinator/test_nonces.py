"""Nonces: never one request twice, whatever becomes of the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.nonces import Nonces
from lockstep.protocol.errors import AuthError, DoctorError
from lockstep.protocol.types import Address, Seconds

ACCOUNT, OTHER, NONCE = Address("0x" + "aa" * 20), Address("0x" + "bb" * 20), b"n" * 16


@pytest.fixture
def nonces(tmp_path: Path) -> Iterator[Nonces]:
    nonces = Nonces(tmp_path / "nonces.sqlite")
    yield nonces
    nonces.close()


def test_a_nonce_is_used_once_per_account(nonces: Nonces, tmp_path: Path) -> None:
    nonces.use_nonce(ACCOUNT, NONCE, Seconds(10))
    nonces.use_nonce(OTHER, NONCE, Seconds(10))
    with pytest.raises(AuthError) as refused:
        Nonces(tmp_path / "nonces.sqlite").use_nonce(ACCOUNT, NONCE, Seconds(99))
    assert refused.value.code == "auth.replayed"


def test_asking_for_a_nonce_uses_none(nonces: Nonces) -> None:
    nonces.require_fresh(ACCOUNT, NONCE)
    nonces.use_nonce(ACCOUNT, NONCE, Seconds(10))
    with pytest.raises(AuthError) as refused:
        nonces.require_fresh(ACCOUNT, NONCE)
    assert refused.value.code == "auth.replayed"
    nonces.require_fresh(OTHER, NONCE)


def test_forgotten_nonces_stay_refused_because_time_never_returns(nonces: Nonces) -> None:
    nonces.use_nonce(ACCOUNT, NONCE, Seconds(10))
    assert nonces.forget(Seconds(10)) == 0, "a request is good until its expiry, inclusive"
    assert nonces.forget(Seconds(11)) == 1
    assert nonces.latest(Seconds(3)) == 11, "an index that starts anew does not turn time back"
    assert nonces.latest(Seconds(20)) == 20


def test_an_unusable_file_is_a_doctors_error(tmp_path: Path) -> None:
    with pytest.raises(DoctorError):
        Nonces(tmp_path / "absent" / "nonces.sqlite")
