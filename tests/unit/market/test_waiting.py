"""A job's waiting: at every point of a round one sentence, with who can end it, since when, until when, what to do."""

from __future__ import annotations

import re
from typing import Any

from lockstep.base.durations import moment
from lockstep.base.naming import short
from lockstep.market.snapshots import snapshot_of
from lockstep.market.waiting import Waiting, waiting_of
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Digest
from tests.support.world import World

THREE: dict[str, Any] = {"slots": 3, "min_slots": 2, "rounds": 2}


def waits(world: World, head_age: float = 0.0) -> Waiting:
    """Returns the waiting of a world's job, whose sentence has no bare wei and no whole id."""
    found = waiting_of(snapshot_of(world.contracts, world.ledger(), world.job, head_age))
    said = found.sentence()
    assert not re.search(r"\d{13}|[0-9a-f]{40}|None", said), said
    assert found.do in said
    assert "\n" not in said
    return found


def test_a_job_that_nobody_takes_says_since_when_and_where_to_look() -> None:
    world = World.start(**THREE)
    created = world.now
    world.pass_to(created + 100)
    found = waits(world)
    assert (found.code, found.since, found.until) == ("unstarted", created, None)
    assert "no worker has taken the job" in found.what
    assert f"`lockstep worker quote {short(world.job)}`" in found.do
    assert all(word in found.do for word in ("--min-price", "windows", "memory"))
    assert f"since {moment(created)} (1 min 40 s)" in found.sentence()


def test_a_roster_counts_its_slots_and_says_what_its_end_brings() -> None:
    world = World.start(**THREE)
    market = world.contracts.market
    world.send(market.start_round(world.job, 0), "requester")
    world.send(market.join(world.job, 0, 0), "worker-0")
    ends, found = market.round(world.job, 0).join_ends, waits(world)
    assert (found.code, found.until) == ("joining", ends)
    assert found.what.endswith("1 of 3 slots is taken")
    assert "fails if fewer than 3 of 3" in found.then
    world.pass_to(ends)
    found = waits(world)
    assert (found.code, found.since, found.who) == ("too_few", ends, "anybody")
    assert "3 are needed" in found.what


def test_every_phase_names_who_is_due() -> None:
    world = World.start(**THREE)
    market, params = world.contracts.market, world.params
    names = [short(world.address(f"worker-{slot}")) for slot in range(3)]
    world.to(Phase.SEALING)
    assert waits(world).code == "seed"
    world.to(Phase.TRAINING)
    sealed, found = world.now, waits(world)
    assert (found.code, found.since, found.until) == ("training", sealed, sealed + params.role.train_seconds)
    assert all(name in found.who for name in names)
    assert "`lockstep worker why`" in found.do
    world.to(Phase.REVEALING)
    assert (waits(world).code, waits(world).since) == ("revealing", world.now)
    world.send(market.reveal(world.job, 0, 0, world.opened(world.claim_id(0))), "worker-0")
    found = waits(world)
    assert found.what.endswith("2 of 3 claims to be revealed")
    assert names[0] not in found.who
    for slot in (1, 2):
        world.send(market.reveal(world.job, 0, slot, world.opened(world.claim_id(slot))), f"worker-{slot}")
    assert (waits(world).code, waits(world).until) == ("attesting", market.round(world.job, 0).attest_ends)
    world.send(market.attest(world.job, 0, [world.receipt(1)]), "worker-1")
    assert names[1] not in waits(world).who
    world.to(Phase.FREEZING)
    assert (waits(world).code, waits(world).until) == ("freezing", None)


def test_one_commitment_that_is_missing_names_its_owner_alone() -> None:
    world = World.start(**THREE)
    market = world.contracts.market
    world.to(Phase.TRAINING)
    world.send(market.commit(world.job, 0, 0, Digest(b"c" * 32)), "worker-0")
    world.send(market.commit(world.job, 0, 2, Digest(b"c" * 32)), "worker-2")
    found = waits(world)
    assert found.who == f"{short(world.address('worker-1'))} of slot 1"
    assert "that worker's machine" in found.do
    world.pass_to(market.round(world.job, 0).commit_ends)
    assert waits(world).code == "revealing"


def test_a_payload_that_was_demanded_names_who_owes_it() -> None:
    world = World.start(**THREE)
    world.to(Phase.ATTESTING)
    world.send(world.contracts.demands.unavailable(world.job, 0, 1, 1), "mallory")
    (demand,) = world.ledger().demands.values()
    found = waits(world)
    assert (found.code, found.until) == ("payload", demand.deadline)
    assert short(world.address("worker-1")) in found.who
    assert "missing" in found.then


def test_a_merge_goes_from_turn_to_turn_until_the_round_fails() -> None:
    world = World.start(**THREE)
    world.to(Phase.MERGING)
    opened, turn = world.contracts.market.round(world.job, 0).merge_opens, world.params.merge.turn_seconds
    found = waits(world)
    assert (found.code, found.since, found.until) == ("aggregator", opened, opened + turn)
    assert short(world.address("aggregator")) in found.who
    mergers = []
    for at in (1, 2, 3):
        after = found.then
        world.pass_to(opened + at * turn)
        found = waits(world)
        merger = world.contracts.market.merger_of(world.job, 0)
        assert short(merger) in found.who
        assert short(merger) in after, "the turn before named it"
        assert (found.code, found.until) == ("merge", opened + (at + 1) * turn)
        assert "which the aggregator did not do" in found.what
        mergers.append(merger)
    assert len(set(mergers)) == 3
    assert found.then == "the round fails"
    world.pass_to(opened + 4 * turn)
    assert (waits(world).code, waits(world).who) == ("unmerged", "anybody")


def test_a_merged_round_waits_for_its_window_then_for_anybody() -> None:
    world = World.start(**THREE)
    world.to(Phase.LEAD)
    merged, found = world.now, waits(world)
    window = world.params.windows.challenge_seconds
    assert (found.code, found.since, found.until) == ("window", merged, merged + window)
    assert "round 1 waits until round 0 is final" in found.what
    world.pass_to(merged + window)
    assert (waits(world).code, waits(world).since) == ("unsettled", merged + window)
    world.to(Phase.FINAL)
    assert "no worker has started round 1" in waits(world).what
    world.to(Phase.FINAL, 1)
    assert waits(world).code == "unfinished"
    world.send(world.contracts.market.finish(world.job), "requester")
    found = waits(world)
    assert (found.code, found.since, found.ends) == ("done", world.now, "")
    assert f"`lockstep train pull {short(world.job)}`" in found.do


def test_failed_rounds_are_counted_and_too_many_end_the_job() -> None:
    world = World.start(**(THREE | {"max_fail": 1}))
    market = world.contracts.market
    for number in (0, 1):
        world.send(market.start_round(world.job, number), "requester")
        world.pass_to(market.round(world.job, number).join_ends)
        world.send(market.seal(world.job, number), "requester")
        said = waits(world).what
        assert ("1 round failed, more than 1 ends it" in said) == (number == 0)
    world.send(market.finish(world.job), "requester")
    assert "2 rounds failed" in waits(world).what


def test_a_cancelled_job_says_so_while_its_rounds_end() -> None:
    world = World.start(**THREE)
    world.to(Phase.LEAD)
    world.send(world.contracts.market.cancel(world.job), "requester")
    assert waits(world).what.startswith("the job is cancelled; claims of round 0")


def test_a_chain_that_stands_still_is_told_before_what_is_behind_it() -> None:
    world = World.start(**THREE)
    assert waits(world, head_age=90).code == "unstarted"
    found = waits(world, head_age=91)
    assert (found.code, found.since) == ("chain_halted", world.now)
    assert "no block for 1 min 31 s" in found.what
    assert "no worker has taken the job" in found.do
    world.to(Phase.FINAL)
    world.to(Phase.FINAL, 1)
    world.send(world.contracts.market.finish(world.job), "requester")
    assert waits(world, head_age=1e6).code == "done", "a job that is over waits for no block"


def test_the_json_has_the_sentence_and_every_part_of_it() -> None:
    found = waits(World.start(**THREE)).to_dict()
    assert set(found) == {"code", "what", "who", "since", "until", "then", "do", "sentence"}
    assert found["sentence"].startswith(found["what"])
