"""The list of roots beside a wrong claim: it is looked for, and what nobody answers for keeps no game."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.market.replay import Replay
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.types import Cid, ClaimId, Seconds
from lockstep.runtime.backoff import Backoff
from verifier import decide
from verifier.challenging import LIST_TRIES, Challenger
from verifier.root_lists import Lists

REVEALED, DUE, LATE = 1000, 1300, 1325
"""The claim is made public, its list is due, and nothing that is still being fetched is waited for."""


class Silent:
    """A store that answers for nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, cid: Cid, *, max_bytes: int) -> bytes:
        self.asked += 1
        raise Unreachable("read timed out")


class Opened(Challenger):
    """Notes what is challenged in the place of opening it."""

    def __init__(self, store: Any) -> None:
        parts: Any = [SimpleNamespace(address="me"), *[None] * 4]
        super().__init__(*parts, Lists(store), Backoff(decide.RETRY_SECONDS))
        self.opened: list[tuple[ClaimId, int | None]] = []
        self.failing: dict[ClaimId, Exception] = {}

    def poll(self, view: Any) -> None:
        """A look, and another once what it asked for was fetched."""
        self.step(view)
        wait(self._lists._executor._work.values())
        self.step(view)

    def _challenge(self, wrong: Any, nonce: int) -> None:
        if wrong.record.id in self.failing:
            raise self.failing[wrong.record.id]
        self.opened.append((wrong.record.id, wrong.audit.t))


def scene(opened: Opened, count: int = 1) -> Any:
    """Wrong claims of a job with witnesses, each with a list that its owner names; returns a view at a time."""
    role = SimpleNamespace(witnesses=3, transitions=9, reveal_seconds=100, attest_seconds=100)
    params = SimpleNamespace(role=role, windows=SimpleNamespace(audit_seconds=50))
    records: dict[ClaimId, Any] = {}
    for i in range(count):
        record: Any = SimpleNamespace(
            id=ClaimId(bytes([i]) * 32), job=b"j" * 32, round=0, attempt=0, slot=i, is_merge=False,
            trace_cid=Cid("bafy"), trace_root=b"t" * 32, claimed_at=REVEALED,
        )  # fmt: skip
        records[record.id] = record
        opened.add(record, found())
    ledger = SimpleNamespace(find=lambda i: (None, None, records[i]), audits={})
    return lambda now: SimpleNamespace(games=[], now=Seconds(now), params={b"j" * 32: params}, ledger=ledger)


def found() -> Any:
    return Replay(False, None, SimpleNamespace(trace=[b"r" * 32] * 9), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [REVEALED, DUE], ids=["before it is due", "after it was due"])
def test_a_list_that_nobody_answers_for_is_none_after_a_few_tries_or_when_it_was_due(now: int) -> None:
    store = Silent()
    challenger = Opened(store)
    at = scene(challenger)
    tries = LIST_TRIES if now < DUE else 1
    for i in range(tries):
        assert not challenger.opened, i
        challenger.poll(at(now + i * decide.RETRY_SECONDS))
    assert challenger.opened == [(ClaimId(bytes(32)), None)]
    assert store.asked == tries
    assert not len(challenger)


def test_a_list_for_which_enough_was_asked_is_asked_for_no_more() -> None:
    store = Silent()
    challenger = Opened(store)
    at, claim = scene(challenger), ClaimId(bytes(32))
    challenger.failing[claim] = Unreachable("the store that a step needs")
    for i in range(LIST_TRIES + 3):
        challenger.poll(at(REVEALED + i * decide.RETRY_SECONDS))
    assert store.asked == LIST_TRIES
    challenger.failing.clear()
    challenger.poll(at(DUE))
    assert challenger.opened == [(claim, None)]
    assert not challenger._unanswered, "what was counted for a claim goes with it"


def test_a_claim_for_which_nobody_answers_keeps_no_other_from_being_challenged() -> None:
    challenger = Opened(Silent())
    at = scene(challenger, 3)
    challenger.failing[ClaimId(bytes(32))] = Unreachable("the store that a step needs")
    challenger.poll(at(DUE))
    assert [claim[0] for claim, _ in challenger.opened] == [1, 2]
    assert len(challenger) == 1, "it is tried again"


class Slow(Silent):
    """A store that answers once it may, and never the thread that looks at the chain."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def get(self, cid: Cid, *, max_bytes: int) -> bytes:
        assert threading.current_thread() is not threading.main_thread(), "the loop waits for a store"
        assert self.may.wait(60)
        return super().get(cid, max_bytes=max_bytes)


def test_a_store_that_does_not_answer_yet_keeps_no_other_claim_and_its_claim_for_half_a_window() -> None:
    store = Slow()
    challenger = Opened(store)
    at = scene(challenger, 2)
    named = ClaimId(bytes([1]) * 32)
    at(REVEALED).ledger.find(named)[2].trace_cid = Cid("")
    try:
        for now in (REVEALED, DUE, LATE - 1):
            challenger.step(at(now))
            assert [claim for claim, _ in challenger.opened] == [named] * (now >= DUE), "who names no list is not kept"
        challenger.step(at(LATE))
        assert len(challenger.opened) == 2, "the rest of the window is the game's"
        assert not store.asked, "it has not answered yet"
    finally:
        store.may.set()
