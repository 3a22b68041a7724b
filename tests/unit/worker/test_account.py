"""Reason codes: every round that did not pay says why; sums agree with the events."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.naming import short
from lockstep.chain.events import Event
from lockstep.market.ledger import Ledger
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, Address, JobId, Seconds
from worker.account import MEANINGS, Account, earnings_lines, earnings_of, reasons_of
from worker.requesters import RequesterHistory, history_with

ME, OTHER, REQUESTER = (Address("0x" + c * 40) for c in "abc")
JOB = JobId(b"\x07" * 32)


def event(contract: str, name: str, args: dict[str, Any]) -> Event:
    """One as the reader gives it."""
    return Event(contract, name, args, 1, b"h" * 32, Seconds(100), bytes(32), 0)


def market(name: str, round_: int = 0, **args: Any) -> Event:
    return event("JobMarket", name, {"job": JOB, "round": round_, **args})


def started(attempt: int = 0, round_: int = 0) -> list[Event]:
    return [
        market("RoundStarted", round_, attempt=attempt, base=bytes(32), outer=bytes(32)),
        market("Joined", round_, slot=0, worker=ME),
        market("Joined", round_, slot=1, worker=OTHER),
    ]


def revealed(slot: int, worker: Address, attempt: int = 0) -> list[Event]:
    claim = claim_id(JOB, 0, attempt, slot)
    return [
        market("Committed", slot=slot, commitment=bytes(32)),
        market(
            "Revealed", slot=slot, claim=claim, worker=worker, trace_root=bytes(32), out=bytes(32), out2=bytes(32),
            trace_cid="bafytrace", payload_cid="bafypayload",
        ),
    ]  # fmt: skip


def paid(slot: int, account: Address, amount: int) -> list[Event]:
    """A claim's stake comes back, then its pay."""
    unlocked = {"key": claim_id(JOB, 0, 0, slot), "account": account, "amount": 100}
    return [event("StakeVault", "Unlocked", unlocked), market("Paid", slot=slot, account=account, amount=amount)]


CREATED = event(
    "JobMarket",
    "JobCreated",
    {"job": JOB, "requester": REQUESTER, "spec_digest": bytes(32), "escrow": 100, "deposit": 10},
)
SEALED = market("Sealed", seed=b"\x01" * 32)
BOTH = [*started(), SEALED, *revealed(0, ME), *revealed(1, OTHER)]
FROZEN = market("Frozen", merge_in=bytes(32), mask=0b11)
PAID = paid(0, ME, 10)
VOID = event("JobMarket", "JobVoid", {"job": JOB, "prover": OTHER})
CONVICTED = market("Convicted", claim=claim_id(JOB, 0, 0, 0), slot=0, worker=ME, challenger=OTHER)
SLASHED = event(
    "StakeVault", "Slashed",
    {
        "key": claim_id(JOB, 0, 0, 0), "account": ME, "amount": 100, "owed": 0, "burned": 50, "to_challenger": 30,
        "to_requester": 20,
    },
)  # fmt: skip


def account(*events: Event) -> Account:
    ledger = Ledger()
    for e in (CREATED, *events):
        ledger.apply(e)
    return Account(ME, ledger, None, Path())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "events"),
    [
        ("training", started()),
        ("training", [*started(), SEALED]),
        ("pending", BOTH),
        ("pending", [*BOTH, FROZEN]),
        ("paid", [*BOTH, FROZEN, market("RoundFinal"), *PAID]),
        ("excluded", [*BOTH, market("Frozen", merge_in=bytes(32), mask=0b10)]),
        ("excluded", [*BOTH, market("Frozen", merge_in=bytes(32), mask=0b10), market("RoundFinal")]),
        ("absent", [*started(), SEALED, *revealed(1, OTHER), market("Frozen", merge_in=bytes(32), mask=0b10)]),
        ("convicted", [*BOTH, FROZEN, CONVICTED]),
        ("convicted", [*BOTH, FROZEN, CONVICTED, market("RoundVoid", attempt=0)]),
        ("pending", [*BOTH, FROZEN, market("RoundFailed")]),
        ("paid", [*BOTH, FROZEN, market("RoundFailed"), market("RoundFinal"), *PAID]),
        ("round_failed", [*started(), market("RoundFailed")]),
        ("round_void", [*BOTH, FROZEN, market("RoundVoid", attempt=0)]),
        ("void_paid", [*BOTH, FROZEN, market("RoundVoid", attempt=0), *PAID]),
        ("void_paid", [*BOTH, FROZEN, VOID, market("RoundVoid", attempt=0), *PAID]),
        ("job_void", [*BOTH, FROZEN, VOID, market("RoundVoid", attempt=0)]),
        ("not_joined", [market("RoundStarted", attempt=0, base=bytes(32), outer=bytes(32))]),
    ],
)
def test_each_round_has_the_reason_that_its_events_give(reason: str, events: list[Event]) -> None:
    rows = reasons_of(account(*events))
    assert [r["reason"] for r in rows] == [reason]
    assert rows[0]["means"] == MEANINGS[reason]


def test_the_schemas_hold_every_reason() -> None:
    common = json.loads(resources.files("lockstep").joinpath("schemas/common.json").read_text())
    assert common["$defs"]["reason"]["enum"] == [*MEANINGS]


@pytest.mark.parametrize(
    ("events", "paid", "unpaid"),
    [
        (started(), 0, 0),
        ([*started(), market("RoundFailed")], 0, 0),
        ([*started(), SEALED, *revealed(1, OTHER), market("RoundFailed")], 0, 0),
        (BOTH, 0, 0),
        ([*BOTH, FROZEN, market("RoundFailed")], 0, 0),
        ([*BOTH, FROZEN, market("RoundFailed"), market("RoundFinal"), *PAID], 1, 0),
        ([*BOTH, market("Frozen", merge_in=bytes(32), mask=0b10), market("RoundFinal")], 0, 1),
        ([*BOTH, FROZEN, market("RoundFinal"), *PAID], 1, 0),
        ([*BOTH, FROZEN, CONVICTED, market("RoundFailed")], 0, 0),
        ([*BOTH, FROZEN, market("RoundVoid", attempt=0)], 0, 0),
    ],
)
def test_work_that_was_public_and_is_not_paid_is_counted_by_requester(
    events: list[Event], paid: int, unpaid: int
) -> None:
    ledger = account(*events).ledger
    assert history_with(ledger, REQUESTER, ME) == RequesterHistory(paid, unpaid)
    assert history_with(ledger, OTHER, ME) == RequesterHistory(), "another requester's rounds are its own"


def test_a_round_started_again_has_a_row_for_each_attempt() -> None:
    void = [*BOTH, FROZEN, market("RoundVoid", attempt=0), *started(attempt=1)]
    rows = reasons_of(account(*void))
    assert [(r["attempt"], r["reason"]) for r in rows] == [(0, "round_void"), (1, "training")]


def test_earnings_are_payments_and_slashes_of_this_account() -> None:
    merge = paid(MERGE_SLOT, ME, 5)
    others = paid(1, OTHER, 10)
    earned = earnings_of(account(*BOTH, FROZEN, market("RoundFinal"), *PAID, *merge, *others))
    assert (earned["earned"], earned["slashed"]) == ("15", "0")
    assert [p["slot"] for p in earned["paid"]] == [0, "merge"]
    lost = earnings_of(account(*BOTH, FROZEN, CONVICTED, SLASHED))
    assert (lost["earned"], lost["slashed"]) == ("0", "100")
    assert lost["slashes"][0]["reason"] == "convicted"
    told = earnings_lines(earned)
    assert told[0] == f"{ME} earned 0.000000000000000015 LST, and lost 0 LST of its stake"
    assert told[2].endswith(f"for round 0, the merge of job {short(JOB)}")
    assert earnings_lines(lost)[1].startswith("lost  0.0000000000000001 LST in round 0, slot 0 of job ")
