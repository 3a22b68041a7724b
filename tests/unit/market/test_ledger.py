"""The ledger: a fold over the market's events, the same whenever it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from structlog.testing import capture_logs

from lockstep.chain.events import NO_CID, Cursor, Event, EventBatch
from lockstep.market.ledger import ClaimRecord, Ledger, RoundLedger, Watcher
from lockstep.protocol import merkle
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import ZERO_ADDRESS, ClaimStatus, Phase
from lockstep.protocol.market.effects import EFFECTS
from lockstep.protocol.market.events import EVENTS, Revealed
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, JobId, Seconds, Wei

JOB = JobId(b"\7" * 32)
W0, W1, ME = (Address("0x" + c * 40) for c in "0ab")
SLOTS = 2


def root(n: int) -> Digest:
    return Digest(bytes([n]) * 32)


def whole_args(contract: str, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an event, in order; what a test does not speak of is zero."""
    kind = EVENTS.get((contract, name))
    zeros = {"Address": ZERO_ADDRESS, "int": 0, "Wei": Wei(0), "Seconds": Seconds(0), "Cid": NO_CID, "bool": False}
    every = [(f.name, zeros.get(str(f.type), bytes(32))) for f in fields(kind)] if kind is not None else []  # type: ignore[arg-type]
    return {field: args.get(field, zero) for field, zero in every} | (dict(args) if kind is None else {})


class Chain:
    """Events as the market emits them, folded as they come."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.count = 0
        self.say("JobCreated", requester=ME, spec_digest=root(1))

    def say(self, name: str, contract: str = "JobMarket", **arguments: Any) -> None:
        self.count += 1
        args = {"job": JOB, **arguments} if contract == "JobMarket" else arguments
        when = Seconds(1000 + self.count)
        whole = whole_args(contract, name, args)
        self.ledger.apply(Event(contract, name, whole, self.count, bytes(32), when, bytes(32), 0))

    def start(self, r: int, attempt: int, base: Digest, outer: Digest) -> None:
        self.say("RoundStarted", round=r, attempt=attempt, base=base, outer=outer)
        for slot, worker in enumerate((W0, W1)):
            self.say("Joined", round=r, slot=slot, worker=worker)
        self.say("Sealed", round=r, seed=root(9))

    def reveal(self, r: int, attempt: int, slot: int) -> bytes:
        claim = claim_id(JOB, r, attempt, slot)
        self.say("Committed", round=r, slot=slot, commitment=root(3))
        self.say(
            "Revealed", round=r, slot=slot, claim=claim, worker=(W0, W1)[slot], trace_root=root(4), out=root(20 + slot),
            out2=root(6), trace_cid=f"trace-{slot}", payload_cid=f"payload-{slot}",
        )  # fmt: skip
        return claim

    def merge(self, r: int, attempt: int, out: Digest, mask: int | None = None) -> bytes:
        if mask is not None:
            self.say("Frozen", round=r, merge_in=root(8), mask=mask)
        claim = claim_id(JOB, r, attempt, MERGE_SLOT)
        self.say(
            "Merged", round=r, claim=claim, worker=W0, out=out, out2=root(31), checkpoint_cid=f"checkpoint-{out[0]}"
        )
        return claim

    def convict(self, r: int, slot: int, claim: bytes, worker: Address = W0) -> None:
        self.say("Convicted", claim=claim, round=r, slot=slot, worker=worker, challenger=ME)


def test_what_an_event_keeps_of_a_round_is_a_field_of_it() -> None:
    kept = {name for effect in EFFECTS.values() if isinstance(effect.state, Phase) for name in effect.kept}
    assert kept <= {field.name for field in fields(RoundLedger)}
    assert set(EFFECTS[Revealed].kept) <= {field.name for field in fields(ClaimRecord)}


def test_revealed_claims_carry_where_their_data_lies() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    claim = chain.reveal(0, 0, 1)
    found = chain.ledger.find(claim)  # type: ignore[arg-type]
    assert found is not None
    job, round_, record = found
    assert (job.id, round_.seed, record.slot, record.worker) == (JOB, root(9), 1, W1)
    assert (record.trace_cid, record.payload_cid, record.claimed_at) == ("trace-1", "payload-1", 1000 + chain.count)
    assert chain.ledger.find(root(99)) is None  # type: ignore[arg-type]


def test_merge_takes_the_accepted_payloads_in_slot_order() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    chain.reveal(0, 0, 1)
    claim = chain.merge(0, 0, root(30), mask=0b10)
    round_ = chain.ledger.jobs[JOB].rounds[0]
    first, second = round_.accepted(SLOTS)
    assert first is None
    assert second is not None
    assert (second.cid, second.out) == ("payload-1", root(21))
    assert round_.merge is not None
    assert round_.merge.id == claim
    assert round_.merge.trace_root == merkle.leaf(merkle.node(root(30), root(31)))
    assert round_.holders[0][1] == ClaimStatus.EXCLUDED
    assert round_.holders[1][1] == ClaimStatus.ACCEPTED


def test_slot_that_stayed_silent_is_absent_after_the_freeze() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    chain.merge(0, 0, root(30), mask=0b01)
    assert chain.ledger.jobs[JOB].rounds[0].holders[1] == (W1, ClaimStatus.ABSENT)


def test_convicted_merge_makes_room_for_another_and_later_rounds_keep_their_base() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    lie = chain.merge(0, 0, root(40), mask=0b01)
    chain.start(1, 0, root(40), root(31))
    later = chain.reveal(1, 0, 0)
    chain.convict(0, MERGE_SLOT, lie)
    chain.say("RoundVoid", round=1, attempt=0)
    job = chain.ledger.jobs[JOB]
    assert job.attempt == 1
    assert job.rounds[0].merge is None
    assert job.rounds[1].phase == Phase.VOID
    truth = chain.merge(0, 1, root(30))
    chain.start(1, 1, root(30), root(31))
    assert job.rounds[0].merge is not None
    assert job.rounds[0].merge.id == truth != lie
    (before,) = job.past
    assert [r.checkpoint for r in job.records_behind(before, SLOTS)] == ["checkpoint-40"]
    assert [r.checkpoint for r in job.records_behind(job.rounds[1], SLOTS)] == ["checkpoint-30"]
    assert [r.checkpoint for r in job.records(1, SLOTS)] == ["checkpoint-30"]
    found = chain.ledger.find(later)  # type: ignore[arg-type]
    assert found is not None
    assert found[1] is before, "a claim of a voided round is found in its own attempt"


def test_a_conviction_in_a_void_round_is_no_rewind_of_its_own() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    lies = [chain.merge(0, 0, root(40), mask=0b01)]
    chain.start(1, 0, root(40), root(31))
    chain.reveal(1, 0, 0)
    lies.append(chain.merge(1, 0, root(41), mask=0b01))
    chain.convict(0, MERGE_SLOT, lies[0])
    chain.say("RoundVoid", round=1, attempt=0)
    chain.convict(1, MERGE_SLOT, lies[1])
    job = chain.ledger.jobs[JOB]
    assert (job.attempt, job.rounds[1].phase) == (1, Phase.VOID)
    assert [m.convicted for m in job.rounds[1].merges] == [True]


def test_merge_that_is_made_again_gives_way_and_later_rounds_are_of_a_higher_attempt() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    first = chain.merge(0, 0, root(30), mask=0b01)
    second = chain.merge(0, 1, root(30))
    job = chain.ledger.jobs[JOB]
    assert job.attempt == 1
    assert [(m.id, m.replaced) for m in job.rounds[0].merges] == [(first, True), (second, False)]
    assert job.rounds[0].merge is not None
    assert job.rounds[0].merge.id == second
    assert job.rounds[0].decided_at == 1000 + chain.count, "its window begins anew"
    assert chain.ledger.awaited(first) is None  # type: ignore[arg-type]
    behind = job.merge_of(root(30), root(31), 1)
    assert behind is not None
    assert behind[1].id == second, "its checkpoint is the one to fetch"
    chain.convict(0, MERGE_SLOT, second)
    assert job.rounds[0].merge is None, "the first does not stand again"
    assert job.attempt == 2
    chain.merge(0, 2, root(32))
    assert job.attempt == 2


def test_convicted_slot_is_marked_in_its_own_attempt() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    claim = chain.reveal(0, 0, 0)
    chain.convict(0, 0, claim)
    round_ = chain.ledger.jobs[JOB].rounds[0]
    assert round_.claims[0].convicted
    assert round_.holders[0] == (W0, ClaimStatus.CONVICTED)
    assert not round_.merges


def test_slot_that_is_convicted_after_the_freeze_is_merged_and_can_be_left_out() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    claims = [chain.reveal(0, 0, slot) for slot in range(SLOTS)]
    chain.merge(0, 0, root(30), mask=0b11)
    round_ = chain.ledger.jobs[JOB].rounds[0]
    assert round_.merged_and_convicted == frozenset()
    assert round_.record_of_honest(SLOTS).payloads == round_.accepted(SLOTS)
    chain.convict(0, 1, claims[1], W1)
    assert round_.merged_and_convicted == {1}
    assert [p and p.cid for p in round_.accepted(SLOTS)] == ["payload-0", "payload-1"], "the merge stands"
    honest = round_.record_of_honest(SLOTS)
    assert [p and p.cid for p in honest.payloads] == ["payload-0", None]
    assert (honest.number, honest.seed, honest.checkpoint) == (0, root(9), None)


def test_slot_that_is_convicted_before_the_freeze_is_not_merged() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    claims = [chain.reveal(0, 0, slot) for slot in range(SLOTS)]
    chain.convict(0, 1, claims[1], W1)
    chain.merge(0, 0, root(30), mask=0b01)
    assert chain.ledger.jobs[JOB].rounds[0].merged_and_convicted == frozenset()


def test_failed_round_leaves_no_checkpoint_and_the_next_one_goes_on_from_before_it() -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    chain.reveal(0, 0, 0)
    chain.merge(0, 0, root(30), mask=0b01)
    chain.start(1, 0, root(30), root(31))
    claim = chain.reveal(1, 0, 0)
    chain.say("Frozen", round=1, merge_in=root(8), mask=0b01)
    chain.say("RoundFailed", round=1)
    chain.start(2, 0, root(30), root(31))
    job = chain.ledger.jobs[JOB]
    assert [r.checkpoint for r in job.records_behind(job.rounds[2], SLOTS)] == ["checkpoint-30"]
    assert [r.checkpoint for r in job.records(2, SLOTS)] == ["checkpoint-30", None]
    statuses = [status for _, status in job.rounds[1].holders.values()]
    assert statuses == [ClaimStatus.ACCEPTED] + [ClaimStatus.ABSENT] * (SLOTS - 1)
    assert chain.ledger.awaited(ClaimId(claim)) is not None, "what was revealed is judged"
    chain.say("RoundFinal", round=1)
    assert job.rounds[1].holders[0][1] == ClaimStatus.FINAL
    assert chain.ledger.awaited(ClaimId(claim)) is None
    assert [r.checkpoint for r in job.records(2, SLOTS)] == ["checkpoint-30", None], "nothing was merged there"


def test_a_round_that_fails_before_its_seed_gives_the_stakes_back() -> None:
    chain = Chain()
    chain.say("RoundStarted", round=0)
    chain.say("Joined", round=0, slot=0, worker=W0)
    chain.say("RoundFailed", round=0)
    assert chain.ledger.jobs[JOB].rounds[0].holders == {0: (W0, ClaimStatus.VOID)}


@pytest.mark.parametrize(
    ("settled", "becomes"),
    [
        (None, ClaimStatus.MISSING),
        (Status.MISSING, ClaimStatus.MISSING),
        (Status.ANSWERED, ClaimStatus.EXCLUDED),
    ],
    ids=["open at the freeze", "given up", "shown, and named by too few"],
)
def test_a_claim_whose_payload_was_demanded_in_vain_is_missing(settled: Status | None, becomes: ClaimStatus) -> None:
    chain = Chain()
    chain.start(0, 0, root(10), root(11))
    claim = chain.reveal(0, 0, 0)
    chain.say("PayloadDemanded", "Availability", demand=root(50), job=JOB, claim=claim, asker=ME)
    if settled is not None:
        chain.say("Settled", "Availability", demand=root(50), subject=claim, status=settled)
    chain.say("Frozen", round=0, merge_in=root(8), mask=0)
    assert chain.ledger.jobs[JOB].rounds[0].holders[0] == (W0, becomes)


def test_games_run_until_they_are_resolved() -> None:
    chain = Chain()
    opened = {"claim": root(1), "challenger": ME, "defender": W0, "nonce": 0, "t": 3}
    chain.say("Opened", "DisputeGame", game=root(50), **opened)
    chain.say("Opened", "DisputeGame", game=root(51), **opened)
    chain.say("Resolved", "DisputeGame", game=root(50), claim=root(1), verdict=1, winner=ME)
    assert list(chain.ledger.games) == [root(51)]
    assert [(g.id, g.verdict, g.t) for g in chain.ledger.all_games()] == [
        (root(50), Verdict.FRAUD, 3), (root(51), Verdict.NONE, 3),
    ]  # fmt: skip


def test_nodes_take_turns_in_the_order_of_their_latest_registration() -> None:
    chain = Chain()
    for account in (W0, W1, ME, W0):
        chain.say("NodeRegistered", "StakeVault", account=account, key=root(1))
    assert [chain.ledger.place(a, frozenset()) for a in (W1, ME, W0)] == [0, 1, 2]
    assert chain.ledger.place(W0, frozenset({ME})) == 1
    assert chain.ledger.place(Address("0x" + "f" * 40), frozenset()) == 3


def test_an_event_that_does_not_follow_is_skipped_and_the_next_one_is_taken() -> None:
    def said(name: str, block: int, contract: str = "JobMarket", **args: Any) -> Event:
        whole = whole_args(contract, name, {"job": JOB, **args})
        return Event(contract, name, whole, block, bytes(32), Seconds(1000), bytes(32), 0)

    stray = [
        said("Sealed", 1, round=0, seed=root(1)), said("Left", 2, round=7, slot=1), said("Merged", 3),
        said("Resolved", 4, "DisputeGame", game=root(5), verdict=99),
        said("VerdictCommitted", 5, "Witnesses", audit=root(6), i=9, commitment=root(7)),
    ]  # fmt: skip
    created = said("JobCreated", 6, requester=ME, spec_digest=root(1))

    class Reader:
        def start(self) -> Cursor:
            return Cursor(1)

        def poll(self, cursor: Cursor) -> EventBatch:
            return EventBatch((*stray, created) if cursor.next_block == 1 else (), Cursor(7))

    watcher = Watcher(Reader())  # type: ignore[arg-type]
    with capture_logs() as told:
        assert watcher.poll() == [*stray, created]
    assert list(watcher.ledger.jobs) == [JOB]
    assert [line["event_name"] for line in told] == [event.name for event in stray], "each is logged once"


def test_a_claim_without_a_readable_cid_is_a_claim() -> None:
    chain = Chain()
    chain.start(0, 0, root(1), root(2))
    for slot in range(SLOTS):
        chain.say("Committed", round=0, slot=slot, commitment=root(3))
        chain.say(
            "Revealed", round=0, slot=slot, claim=claim_id(JOB, 0, 0, slot), worker=(W0, W1)[slot], trace_root=root(4),
            out=root(5), out2=root(6), trace_cid=NO_CID, payload_cid=NO_CID,
        )  # fmt: skip
    r = chain.ledger.jobs[JOB].rounds[0]
    assert len(r.bodies) == SLOTS, "freeze takes its body"
    assert [p.cid for p in r.payloads.values()] == [NO_CID, NO_CID]


def test_stakes_are_at_stake_until_they_are_free_whatever_became_of_their_job() -> None:
    chain = Chain()
    chain.start(0, 0, root(1), root(2))
    claim, game = claim_id(JOB, 0, 0, 0), root(50)
    chain.say("Locked", "StakeVault", key=claim, account=W0, amount=5)
    chain.say("Locked", "StakeVault", key=root(60), account=W0, amount=5)
    assert chain.ledger.staked(W0) == [claim], "a bond is no claim's"
    assert chain.ledger.at_stake(W0) == {JOB}
    assert chain.ledger.at_stake(W1) == frozenset()
    chain.say("Opened", "DisputeGame", game=game, claim=claim, challenger=ME, defender=W0, nonce=0, t=1)
    chain.say("JobDone", paid=0, refunded=0, returned=0)
    chain.say("Unlocked", "StakeVault", key=claim, account=W0, amount=5)
    assert chain.ledger.at_stake(W0) == {JOB}, "its game goes on"
    assert [g.id for g in chain.ledger.games_against(W0)] == [game]
    chain.say("Resolved", "DisputeGame", game=game, claim=claim, verdict=Verdict.REJECTED, winner=W0)
    assert chain.ledger.at_stake(W0) == frozenset()
    assert chain.ledger.stakers == {W0}, "of whom anything was ever locked"
    for end in ("Slashed", "BondTaken"):
        chain.say("Locked", "StakeVault", key=claim, account=W0, amount=5)
        chain.say(end, "StakeVault", key=claim, account=W0, amount=5)
        assert chain.ledger.staked(W0) == [], end


def test_a_merges_stake_is_one_of_its_job() -> None:
    chain = Chain()
    chain.start(0, 0, root(1), root(2))
    merge = chain.merge(0, 0, root(30), mask=3)
    chain.say("Locked", "StakeVault", key=merge, account=W0, amount=5)
    assert chain.ledger.staked(W0) == [merge]
    assert chain.ledger.places[merge] == (JOB, 0)
