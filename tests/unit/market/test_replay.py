"""Audits: from public data alone, and the first transition that differs, whatever the claimant withheld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lockstep.execution import jobs
from lockstep.execution.jobs import ClaimRun, Job, State
from lockstep.execution.merging import merge_round, store_payload
from lockstep.market.ledger import ClaimRecord, JobLedger, RoundLedger
from lockstep.market.replay import PublicData, WrongSource, audit, first_difference, published_trace
from lockstep.numerics.trace import layout_root
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.game import DisputedClaim
from lockstep.protocol.errors import Mismatch, Unreachable
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    Cid,
    Digest,
    ProgramRoot,
    Seconds,
    StateRoot,
    TensorRoot,
    TraceRoot,
)
from lockstep.storage import ContentStore, open_store
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import store_checkpoint
from tests.support import toyjob
from tests.support.params import amended

lies = pytest.importorskip("lockstep.demo.cheats.lies")

WORKER = Address("0x" + "11" * 20)
NOWHERE = Cid("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku")
GONE = "http://127.0.0.1:9"


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return DirectoryStore(tmp_path / "blocks")


@pytest.fixture
def job(store: ContentStore) -> Job:
    return toyjob.load(store)


def slot_run(job: Job, slot: int = 0) -> ClaimRun:
    return jobs.slot_run(job, job.genesis, toyjob.SEED, 0, slot)


def lying(job: Job, name: str, slot: int = 0) -> ClaimRun:
    return lies.OF_SLOTS[name](job.programs, job.params, Random(1)).run(slot_run(job, slot))


def published(run: ClaimRun, store: ContentStore) -> ClaimRecord:
    """A slot's claim as its worker made it public."""
    states = list(run.states())
    roots, final = [root for _, _, root in states], states[-1][1]
    layout = run.program(run.transitions).output_layout
    width = 1 << run.job.params.role.payload_depth
    out, out2 = (Digest(layout_root(layout[p], final[p])) for p in (slice(width), slice(width, None)))
    return ClaimRecord(
        claim_id(run.job.id, run.round, 0, run.slot), run.job.id, run.round, 0, run.slot, WORKER,
        TraceRoot(jobs.trace_root(roots)), out, out2, store.put(b"".join(roots)),
        store_payload(run.job, store, jobs.payload_of(run.job, final), jobs.carry_of(run.job, final)), Seconds(100),
        carries=run.carried is not None,
    )  # fmt: skip


def test_honest_claim_matches_and_its_whole_trace_was_computed(job: Job, store: ContentStore) -> None:
    told: list[int] = []
    done = audit(slot_run(job), published(slot_run(job), store), store, lambda t, root: told.append(t))
    assert done.matches
    assert done.t is None
    assert done.final is not None
    assert told == list(range(1, toyjob.STEPS + 2))
    assert tuple(done.held.trace) == done.published


@pytest.mark.parametrize("name", ["other-data", "wrong-lr", "skipped-step", "scaled-payload"])
def test_replay_stops_at_the_first_transition_that_differs(job: Job, store: ContentStore, name: str) -> None:
    record, told = published(lying(job, name), store), []
    done = audit(slot_run(job), record, store, lambda t, root: told.append(t))
    expected = lies.OF_SLOTS[name](job.programs, job.params, Random(1)).expectation
    assert (done.matches, done.t) == (False, expected.step)
    assert told == list(range(1, expected.step + 1)), "nothing is computed after it"
    assert done.published is not None
    move = honest.opening(_claim(job, record), done.held, done.published, 0)
    assert move is not None
    assert (move.t, move.next) == (expected.step, done.published[expected.step - 1])


def _claim(job: Job, record: ClaimRecord) -> DisputedClaim:
    p = job.params
    run = slot_run(job, record.slot)
    return DisputedClaim(
        record.id, WORKER, run.transitions, record.body, run.root(0, run.start), ProgramRoot(p.role.step_program),
        ProgramRoot(p.role.encode_program), toyjob.SEED, 0, record.slot, TensorRoot(p.role.dataset_root),
        p.role.dataset_rows, p.role.row_length, p.windows.clock_seconds, p.windows.step_seconds, p.prices.bond,
    )  # fmt: skip


@pytest.mark.parametrize("cid", [NOWHERE, Cid("no cid at all"), Cid("")])
def test_withheld_trace_convicts_nobody_by_itself(job: Job, store: ContentStore, cid: Cid) -> None:
    record = replace(published(slot_run(job), store), trace_cid=cid)
    done = audit(slot_run(job), record, store)
    assert done.matches
    assert done.published is None


def test_lie_behind_a_withheld_trace_is_challenged_at_the_trace_root(job: Job, store: ContentStore) -> None:
    record = replace(published(lying(job, "other-data"), store), trace_cid=NOWHERE)
    done = audit(slot_run(job), record, store)
    assert (done.matches, done.t, done.published) == (False, None, None)
    move = honest.opening(_claim(job, record), done.held, None, 0)
    assert move is not None
    assert move.t == 0


@pytest.mark.parametrize(
    "spoil",
    [lambda d: d[:-32], lambda d: d + bytes(32), lambda d: d[:-1], lambda d: b"\0" + d[1:], lambda d: b""],
    ids=["shorter", "longer", "truncated", "altered", "empty"],
)
def test_list_that_is_not_the_trace_is_no_list(job: Job, store: ContentStore, spoil: Callable[[bytes], bytes]) -> None:
    record = published(slot_run(job), store)
    assert record.trace_cid is not None
    data = store.get(record.trace_cid, max_bytes=1 << 20)
    T = toyjob.STEPS + 1
    assert published_trace(store, record, T) is not None
    assert published_trace(store, replace(record, trace_cid=store.put(spoil(data))), T) is None


def test_list_that_nobody_answers_for_is_not_missing_and_keeps_no_verdict(job: Job, store: ContentStore) -> None:
    record = published(slot_run(job), store)
    wrong = published(lying(job, "other-data"), store)
    with open_store(GONE) as gone:
        with pytest.raises(Unreachable):
            published_trace(gone, record, toyjob.STEPS + 1)
        assert audit(slot_run(job), record, gone).matches, "the trace root decides without the list"
        told: list[int] = []
        done = audit(slot_run(job), wrong, gone, lambda t, root: told.append(t))
        assert (done.matches, done.t, done.published) == (False, None, None), "nor is a lie any less one"
        assert told == list(range(1, toyjob.STEPS + 2)), "replayed once"


def test_first_difference_counts_from_one_and_needs_a_list() -> None:
    a, b = StateRoot(b"a"), StateRoot(b"b")
    assert first_difference([a, b], [a, a]) == 2
    assert first_difference([a], [a]) is None
    assert first_difference(None, [a]) is None


# -- inputs ------------------------------------------------------------------------------------------------------------


def ledgers(job: Job, claims: list[ClaimRecord], mask: int) -> tuple[JobLedger, RoundLedger]:
    """Round 0 with these claims, frozen."""
    shared, outer = job.checkpoint_roots(job.genesis)
    round_ = RoundLedger(0, 0, shared, outer, toyjob.SEED, claims={c.slot: c for c in claims}, mask=mask)
    return JobLedger(job.id, WORKER, 0, {0: round_}), round_


def merge_record(job: Job, out: Digest, out2: Digest, cid: Cid) -> ClaimRecord:
    root = TraceRoot(merkle.leaf(merkle.node(out, out2)))
    return ClaimRecord(
        claim_id(job.id, 0, 0, MERGE_SLOT), job.id, 0, 0, MERGE_SLOT, WORKER, root, out, out2, None, cid, Seconds(200)
    )


def finals(job: Job) -> list[State]:
    return [list(slot_run(job, slot).states())[-1][1] for slot in range(3)]


def test_merge_is_replayed_from_accepted_payloads(job: Job, store: ContentStore) -> None:
    claims = [published(slot_run(job, slot), store) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b101)
    payloads = [jobs.payload_of(job, final) for final in finals(job)]
    merged = merge_round(job, job.genesis, [payloads[0], None, payloads[2]], toyjob.SEED, 0)
    round_.merge_in = merged.run.root(0, merged.run.start)
    record = merge_record(job, merged.out, merged.out2, store_checkpoint(store, merged.checkpoint))
    public = PublicData(job, store)
    assert audit(public.run_of(ledger, round_, record), record, store).matches
    lie = lies.lying_aggregator(job.programs, job.params, Random(0)).run(merged.run)
    out, out2 = job.checkpoint_roots(jobs.checkpoint_of(job, lie.advance(1, lie.start)))
    wrong = audit(public.run_of(ledger, round_, record), merge_record(job, out, out2, NOWHERE), store)
    assert (wrong.matches, wrong.t) == (False, 1)


def test_lost_payload_of_a_merge_is_computed_again_from_its_slot(job: Job, store: ContentStore) -> None:
    claims = [replace(published(slot_run(job, slot), store), payload_cid=NOWHERE) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b111)
    merged = merge_round(job, job.genesis, [jobs.payload_of(job, f) for f in finals(job)], toyjob.SEED, 0)
    record = merge_record(job, merged.out, merged.out2, NOWHERE)
    public = PublicData(job, store)
    assert public.fault_of_payload(claims[0]) == "blob_missing"
    assert public.run_of(ledger, round_, record).start is not None
    assert public.payload(claims[0].payload) is not None, "kept once it was computed"


def test_name_that_is_no_cid_is_data_that_nobody_holds(job: Job, store: ContentStore) -> None:
    nonsense = Cid("../../etc/passwd")
    claims = [replace(published(slot_run(job, slot), store), payload_cid=nonsense) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b111)
    merged = merge_round(job, job.genesis, [jobs.payload_of(job, f) for f in finals(job)], toyjob.SEED, 0)
    record = merge_record(job, merged.out, merged.out2, nonsense)
    round_.merges.append(record)
    ledger.rounds[1] = RoundLedger(1, 0, merged.out, merged.out2, toyjob.SEED)
    public = PublicData(job, store)
    assert public.fault_of_payload(claims[0]) == "blob_missing"
    assert audit(public.run_of(ledger, round_, record), record, store).matches, "payloads come from the slots"
    assert job.checkpoint_roots(PublicData(job, store).base(ledger, ledger.rounds[1])) == (merged.out, merged.out2)


def test_lost_payload_of_a_liar_leaves_the_merge_undecided(job: Job, store: ContentStore) -> None:
    claims = [replace(published(lying(job, "other-data", slot), store), payload_cid=NOWHERE) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b111)
    with pytest.raises(WrongSource, match="slot 0 of round 0"):
        PublicData(job, store).run_of(ledger, round_, merge_record(job, Digest(bytes(32)), Digest(bytes(32)), NOWHERE))


def test_inputs_other_than_the_frozen_ones_are_refused(job: Job, store: ContentStore) -> None:
    ledger, round_ = ledgers(job, [published(slot_run(job, s), store) for s in range(3)], 0b111)
    round_.merge_in = StateRoot(b"\7" * 32)
    with pytest.raises(Mismatch, match="input on chain"):
        PublicData(job, store).run_of(ledger, round_, merge_record(job, Digest(bytes(32)), Digest(bytes(32)), NOWHERE))


def test_next_round_starts_from_what_was_replayed_or_stored(job: Job, store: ContentStore) -> None:
    claims = [published(slot_run(job, slot), store) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b111)
    merged = merge_round(job, job.genesis, [jobs.payload_of(job, f) for f in finals(job)], toyjob.SEED, 0)
    record = merge_record(job, merged.out, merged.out2, NOWHERE)
    round_.merges.append(record)
    after = RoundLedger(1, 0, merged.out, merged.out2, toyjob.SEED)
    ledger.rounds[1] = after
    fresh = PublicData(job, store)
    assert job.checkpoint_roots(fresh.base(ledger, after)) == (merged.out, merged.out2), "from the payloads"
    with open_store(GONE) as gone:
        replayed = PublicData(job, gone)
        replayed.keep(record, merged.run.advance(1, merged.run.start))
        assert job.checkpoint_roots(replayed.base(ledger, after)) == (merged.out, merged.out2), "from its own replay"


def test_base_of_a_round_built_on_a_convicted_merge_is_that_merge(job: Job, store: ContentStore) -> None:
    claims = [published(slot_run(job, slot), store) for slot in range(3)]
    ledger, round_ = ledgers(job, claims, 0b111)
    merged = merge_round(job, job.genesis, [jobs.payload_of(job, f) for f in finals(job)], toyjob.SEED, 0)
    lie = lies.lying_aggregator(job.programs, job.params, Random(0)).run(merged.run)
    false = jobs.checkpoint_of(job, lie.advance(1, lie.start))
    out, out2 = job.checkpoint_roots(false)
    wrong = merge_record(job, out, out2, store_checkpoint(store, false))
    right = merge_record(job, merged.out, merged.out2, store_checkpoint(store, merged.checkpoint))
    round_.merges += [replace(wrong, convicted=True), right]
    before, after = RoundLedger(1, 0, out, out2, toyjob.SEED), RoundLedger(1, 1, merged.out, merged.out2, toyjob.SEED)
    ledger.past.append(before)
    ledger.rounds[1] = after
    public = PublicData(job, store)
    assert job.checkpoint_roots(public.base(ledger, before)) == (out, out2)
    assert job.checkpoint_roots(public.base(ledger, after)) == (merged.out, merged.out2)


# -- what slots carry --------------------------------------------------------------------------------------------------

OTHER = Address("0x" + "22" * 20)


def two_rounds(job: Job, store: ContentStore, mask: int = 0b111) -> tuple[JobLedger, RoundLedger]:
    """Round 0 accepted by `mask` and merged, round 1 joined by its owners; (ledger, round 1)."""
    claims = [published(slot_run(job, slot), store) for slot in range(3)]
    ledger, before = ledgers(job, claims, mask)
    payloads = [jobs.payload_of(job, final) if mask >> s & 1 else None for s, final in enumerate(finals(job))]
    merged = merge_round(job, job.genesis, payloads, toyjob.SEED, 0)
    before.merges.append(merge_record(job, merged.out, merged.out2, store_checkpoint(store, merged.checkpoint)))
    after = RoundLedger(1, 0, merged.out, merged.out2, toyjob.SEED)
    after.holders = dict.fromkeys(range(3), (WORKER, ClaimStatus.JOINED))
    ledger.rounds[1] = after
    return ledger, after


@pytest.fixture
def carrying(store: ContentStore) -> Job:
    return toyjob.load(store, carry=1)


def claimed(job: Job, ledger: JobLedger, round_: RoundLedger, slot: int, store: ContentStore) -> ClaimRecord:
    """A slot's honest claim of round 1."""
    public = PublicData(job, store)
    carried = public.carried(ledger, round_, slot)
    run = jobs.slot_run(job, public.base(ledger, round_), round_.seed, 1, slot, carried)
    record = published(run, store)
    round_.claims[slot] = record
    return record


def test_a_claim_is_replayed_from_what_its_slot_carries(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    record = claimed(carrying, ledger, after, 1, store)
    run = PublicData(carrying, store).run_of(ledger, after, record)
    assert run.carried == ledger.rounds[0].claims[1].body
    assert audit(run, record, store).matches
    held = audit(run, record, store).held
    assert held.carried == run.carried.words, "what a game shows"


def test_a_claim_from_zeros_differs_at_its_first_step(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    public = PublicData(carrying, store)
    record = replace(
        published(jobs.slot_run(carrying, public.base(ledger, after), after.seed, 1, 1), store), carries=True
    )
    after.claims[1] = record
    done = audit(public.run_of(ledger, after, record), record, store)
    assert (done.matches, done.t) == (False, 1)


def test_a_claim_that_says_so_is_replayed_from_zeros(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    public = PublicData(carrying, store)
    record = published(jobs.slot_run(carrying, public.base(ledger, after), after.seed, 1, 1), store)
    after.claims[1] = record
    assert audit(public.run_of(ledger, after, record), record, store).matches


def test_a_lost_carry_is_computed_again_from_its_slot(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    record = claimed(carrying, ledger, after, 1, store)
    first = ledger.rounds[0]
    first.claims = {slot: replace(c, payload_cid=NOWHERE) for slot, c in first.claims.items()}
    run = PublicData(carrying, store).run_of(ledger, after, record)
    assert audit(run, record, store).matches
    longer = replace(carrying, params=amended(carrying.params, carry_period=3))
    third = RoundLedger(2, 0, after.base, after.outer, toyjob.SEED)
    third.holders = dict(after.holders)
    after.mask, ledger.rounds[2] = 0b010, third
    after.claims[1] = replace(record, payload_cid=NOWHERE)
    tensors = PublicData(longer, store).carried(ledger, third, 1).tensors  # type: ignore[union-attr]
    *_, (_, final, _) = run.states()
    due = jobs.carry_of(carrying, final)
    assert [x.tobytes() for x in tensors] == [x.tobytes() for x in due], "round by round, back to zeros"


def test_a_carry_is_lacking_while_nobody_stores_it_and_it_was_not_computed(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    record = claimed(carrying, ledger, after, 1, store)
    assert not PublicData(carrying, store).lacks_carry(ledger, after, 1)
    assert not PublicData(carrying, store).lacks_carry(ledger, ledger.rounds[0], 1), "the first round starts from zero"
    first = ledger.rounds[0]
    first.claims = {slot: replace(c, payload_cid=NOWHERE) for slot, c in first.claims.items()}
    public = PublicData(carrying, store)
    assert public.lacks_carry(ledger, after, 1)
    public.run_of(ledger, after, record)
    assert not public.lacks_carry(ledger, after, 1), "its own replay gave it"


def test_a_liars_lost_carry_leaves_its_next_claim_undecided(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    record = claimed(carrying, ledger, after, 2, store)
    wrong = replace(published(lying(carrying, "other-data", 2), store), payload_cid=NOWHERE)
    ledger.rounds[0].claims[2] = wrong
    with pytest.raises(WrongSource, match="slot 2 of round 0 does not produce") as refused:
        PublicData(carrying, store).run_of(ledger, after, record)
    assert refused.value.record is wrong, "the claim to challenge"


def test_who_carries_what_follows_the_chain(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store, mask=0b101)
    assert [ledger.carry_behind(after, s, 2) is not None for s in range(3)] == [True, False, True], "accepted ones"
    assert all(ledger.carry_behind(after, slot, 1) is None for slot in range(3)), "a period of 1 divides all"
    after.holders[0] = (OTHER, ClaimStatus.JOINED)
    assert ledger.carry_behind(after, 0, 2) is None, "another owner starts from zeros"
    first = ledger.rounds[0]
    assert ledger.carry_behind(first, 2, 2) is None, "and so does the first round"
    record = claimed(carrying, ledger, after, 2, store)
    first.claims[2] = replace(first.claims[2], convicted=True)
    assert ledger.carry_behind(after, 2, 2) == (first, first.claims[2]), "a later conviction changes nothing"
    after.claims[2] = replace(record, carries=False)
    assert ledger.carry_behind(after, 2, 2) is None, "a claim says itself whether it carries"
    del after.claims[2]
    assert ledger.carry_behind(after, 2, 2) is None, "what is convicted is not carried"
    first.claims[2] = replace(first.claims[2], convicted=False)
    first.phase = Phase.FAILED
    assert ledger.carry_behind(after, 2, 2) is None, "after a failed round"


def test_a_round_that_ran_again_carries_from_the_attempt_that_it_stands_on(carrying: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(carrying, store)
    old = ledger.rounds[0]
    new = replace(old, attempt=1, claims={s: replace(c, attempt=1) for s, c in old.claims.items()})
    ledger.past.append(old)
    ledger.rounds[0] = new
    again = replace(after, attempt=1)
    assert ledger.carry_behind(after, 1, 2) == (old, old.claims[1])
    assert ledger.carry_behind(again, 1, 2) == (new, new.claims[1])


def test_without_a_carry_nothing_is_carried(job: Job, store: ContentStore) -> None:
    ledger, after = two_rounds(job, store)
    assert PublicData(job, store).carried(ledger, after, 1) is None
