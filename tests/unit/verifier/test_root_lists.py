"""Lists of state roots: fetched beside the loop, told once each, and kept for nobody who does not ask again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.execution.jobs import trace_root
from lockstep.protocol.errors import BlobMissing, Unreachable
from lockstep.protocol.types import Cid, StateRoot
from verifier import root_lists
from verifier.root_lists import Lists, OnItsWay

ROOTS = (b"a" * 32, b"b" * 32)
TRACE_ROOT = trace_root([StateRoot(root) for root in ROOTS])


class Store:
    """Answers with the list, or with an error, once it may."""

    def __init__(self) -> None:
        self.says: bytes | Exception = b"".join(ROOTS)
        self.threads: list[threading.Thread] = []

    def get(self, cid: Cid, *, max_bytes: int) -> bytes:
        self.threads.append(threading.current_thread())
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def claim(number: int = 0) -> Any:
    return SimpleNamespace(id=bytes([number]) * 32, trace_root=TRACE_ROOT, trace_cid=Cid("bafy"))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def made(store: Store) -> Iterator[Lists]:
    found = Lists(store)  # type: ignore[arg-type]
    yield found
    found.close()


def fetched(made: Lists) -> None:
    wait(made._executor._work.values())


def begun(made: Lists, number: int = 0) -> bool:
    with pytest.raises(OnItsWay) as told:
        made.find(claim(number), 2)
    return told.value.begun


def test_a_list_is_fetched_beside_who_asks_and_is_theirs_when_they_ask_again(made: Lists, store: Store) -> None:
    assert begun(made)
    fetched(made)
    assert made.find(claim(), 2) == ROOTS
    assert [thread is threading.current_thread() for thread in store.threads] == [False]
    assert begun(made), "it is the claim's word of that moment"


def test_a_list_that_is_being_fetched_is_not_asked_for_again(made: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    may = threading.Event()
    monkeypatch.setattr(root_lists, "published_trace", lambda *_: may.wait(60))
    try:
        assert (begun(made), begun(made)) == (True, False)
    finally:
        may.set()


def test_a_list_that_is_missing_is_none_and_one_for_which_nobody_answers_is_told_as_that(
    made: Lists, store: Store
) -> None:
    store.says = BlobMissing("nobody has it")
    begun(made)
    fetched(made)
    assert made.find(claim(), 2) is None
    store.says = Unreachable("read timed out")
    begun(made)
    fetched(made)
    with pytest.raises(Unreachable):
        made.find(claim(), 2)


def test_lists_that_nobody_asks_for_again_are_let_go(made: Lists) -> None:
    for number in range(root_lists.KEPT + 9):
        begun(made, number)
        fetched(made)
    assert len(made._executor) == root_lists.KEPT + 1
    assert made.find(claim(root_lists.KEPT + 8), 2) == ROOTS, "the latest are there"
