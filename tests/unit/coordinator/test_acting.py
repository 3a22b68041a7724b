"""From decisions to transactions: all are sent before any is waited for, and one that is refused keeps no other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import acting, reading
from coordinator.acting import ActionSender
from coordinator.decide import AggregatorJob, AggregatorRound
from coordinator.merging import Aggregators
from lockstep.market.acts import Action, ActionKind
from lockstep.protocol.errors import Crashed
from lockstep.protocol.jobs import JobState, JobStatus, Phase, Receipt, Round
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import MERGE_SLOT, JobId, Seconds, Wei
from tests.support.coordinating import JOB, ME, Sent
from tests.unit.coordinator.test_decide import DECIDER, PARAMS


class Calls:
    """In the place of a contract, or of a party: a call is its name and what it was called with, but for the job."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: (name, *(tuple(a) if isinstance(a, list) else a for a in args if a != JOB))


def at_once(_: JobId, work: Callable[[], Any]) -> Any:
    return work()


class Noted(Sent):
    """Writes down when it is sent and when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Any] = {}
        self.order: list[str] = []

    def again(self, key: str, call: object) -> None:
        super().again(key, call)
        self.calls[key] = call
        self.order.append("send")

    def mined(self, key: str) -> bool:
        self.order.append("wait")
        return super().mined(key)


@pytest.fixture
def sent() -> Noted:
    return Noted()


@pytest.fixture
def actions(parts: Any, sent: Noted, monkeypatch: pytest.MonkeyPatch) -> ActionSender:
    parts.party.contracts = SimpleNamespace(market=Calls(), vault=Calls(), demands=Calls(), game=None)
    parts.party.deposit = Calls().deposit
    aggregators = SimpleNamespace(merge=lambda *_: (b"out", b"out2", "cid"))
    monkeypatch.setattr(reading, "bodies", lambda *_: ["body"])
    monkeypatch.setattr(reading, "merge_inputs", lambda *_: ())
    parts.guard = SimpleNamespace(bind=lambda place, promise: promise)
    return ActionSender(parts, sent, aggregators, at_once)  # type: ignore[arg-type]


def seen(*rounds: AggregatorRound) -> AggregatorJob:
    return AggregatorJob(PARAMS, JobState(ME, JobStatus.ACTIVE, attempt=2, started=1), False, rounds)


def test_every_action_has_its_call_and_a_key_of_its_own(actions: ActionSender, sent: Noted) -> None:
    rounds = (
        AggregatorRound(0, Phase.SEALING, Round(backed=2)), AggregatorRound(1, Phase.SEALING, Round(seed_block=9)),
    )  # fmt: skip
    decided = [
        Action(ActionKind.DEPOSIT, amount=Wei(5)),
        Action(ActionKind.START, 3),
        Action(ActionKind.SEAL, 0),
        Action(ActionKind.SEAL, 1),
        Action(ActionKind.FREEZE, 0),
        Action(ActionKind.MERGE, 0, rounds=2),
        Action(ActionKind.BACK, 0, rounds=1),
        Action(ActionKind.FINALIZE, 0),
        Action(ActionKind.RELEASE, 0),
        Action(ActionKind.FINISH),
        Action(ActionKind.WITHDRAW),
    ]
    assert actions.act(JOB, seen(*rounds), decided, DECIDER)
    assert list(sent.calls.values()) == [
        ("deposit", 5, DECIDER.now), ("start_round", 3), ("seal", 0), ("seal", 1), ("freeze", 0, ("body",)),
        ("merge", 0, b"out", b"out2", "cid", 2), ("back", 0, 1), ("finalize", 0), ("release", 0), ("finish",),
        ("withdraw",),
    ]  # fmt: skip
    job, block = JOB.hex(), DECIDER.block
    assert list(sent.calls) == [
        f"deposit/{job}/2/{block}", f"startround/{job}/2/3", f"seal/{job}/2/0/close", f"seal/{job}/2/1/draw",
        f"freeze/{job}/2/0", f"merge/{claim_id(JOB, 0, 2, MERGE_SLOT).hex()}", f"back/{job}/2/0/2",
        f"finalize/{job}/2/0", f"release/{job}/2/0", f"finish/{job}/2", f"withdraw/{job}/2/{block}",
    ], "what an earlier version has sent is known by the same key"  # fmt: skip


def test_all_is_sent_before_any_is_waited_for_and_a_refusal_keeps_no_other(actions: ActionSender, sent: Noted) -> None:
    sent.refused = {f"finalize/{JOB.hex()}/2/1"}
    assert actions.act(JOB, seen(), [Action(ActionKind.FINALIZE, r) for r in range(3)], DECIDER)
    assert sent.order == ["send", "send", "wait", "wait"]
    assert not actions.act(JOB, seen(), [Action(ActionKind.FINALIZE, 1)], DECIDER), "nothing took effect"


def test_a_payload_is_demanded_once_though_the_index_has_not_seen_it(actions: ActionSender, sent: Noted) -> None:
    view = AggregatorRound(0, Phase.ATTESTING, Round(attempt=2))
    assert actions.act(JOB, seen(view), [Action(ActionKind.DEMAND, 0, 1)], DECIDER)
    claim = claim_id(JOB, 0, 2, 1)
    assert list(sent.calls) == [f"demand/{claim.hex()}"]
    assert sent.calls[f"demand/{claim.hex()}"][:3] == ("unavailable", 0, 1)
    sent.known_keys = {f"demand/{claim.hex()}"}
    assert not actions.act(JOB, seen(view), [Action(ActionKind.DEMAND, 0, 1)], DECIDER)
    assert sent.order == ["send", "wait"]


def test_a_merge_that_ends_what_runs_it_is_begun_once(
    parts: Any, sent: Noted, actions: ActionSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []

    def merge(*given: object) -> Any:
        begun.append(given)
        raise Crashed("it was ended: SIGKILL", "")

    for _ in range(2):
        aggregators = Aggregators(parts)
        monkeypatch.setattr(aggregators, "of", lambda job, params: SimpleNamespace(merge=merge))
        for _ in range(3):
            assert not ActionSender(parts, sent, aggregators, at_once).act(  # type: ignore[arg-type]
                JOB, seen(AggregatorRound(0, Phase.MERGING, Round())), [Action(ActionKind.MERGE, 0, rounds=1)], DECIDER
            )
    assert len(begun) == 1
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [])
    assert not aggregators.prepared(JOB, PARAMS, DECIDER.now), "nor is it looked at"


@pytest.mark.parametrize(
    ("refused", "left"),
    [({}, [0, 1]), ({1}, [0]), ({0, 1}, None)],
    ids=["all", "all but what the chain refuses", "none is taken"],
)
def test_a_receipt_that_the_chain_refuses_keeps_no_other(
    actions: ActionSender, sent: Noted, monkeypatch: pytest.MonkeyPatch, refused: set[int], left: list[int] | None
) -> None:
    given = [Receipt(who, 3, b"signed") for who in (0, 1)]
    view = AggregatorRound(
        0, Phase.ATTESTING, Round(revealed=2, attest_ends=Seconds(9_999)), ((0, Report.DECODED), (1, Report.DECODED)),
        receipts={0: 3, 1: 3},
    )  # fmt: skip
    monkeypatch.setattr(acting.receipts, "held", lambda session, job, r, attempt, slots: given)
    monkeypatch.setattr(
        sent, "allowed", lambda call: not any(receipt.who in refused for receipt in call[2]), raising=True
    )
    assert actions.act(JOB, seen(view), [Action(ActionKind.ATTEST, 0)], DECIDER) == (left is not None)
    assert list(sent.calls.values()) == ([] if left is None else [("attest", 0, tuple(given[who] for who in left))])
