"""One look at a job is at one block, though the chain goes on while it is read."""

from __future__ import annotations

from copy import deepcopy

from lockstep.protocol.jobs import NO_SEED, ZERO_ADDRESS, ClaimStatus, Phase
from lockstep.protocol.market.availability import payload_demand_id
from lockstep.protocol.types import Address
from tests.support.world import World
from worker.decide import JobView
from worker.reading import poll


def test_nobody_is_told_to_train_before_it_knows_the_seed() -> None:
    world = World.start()
    world.to(Phase.SEALING)
    world.devnet.mine(1)
    head, now, known = world.head, world.now, deepcopy(world.ledger())

    def seen(block: int) -> JobView:
        ledger, me = known.jobs[world.job], world.address("worker-0")
        return poll(world.contracts.market, known, ledger, world.params, me, now, block)

    # Whoever looks at `head` looks while the next blocks are mined.
    world.send(world.contracts.market.seal(world.job, 0), "requester")
    world.devnet.mine(3)
    (before,) = seen(head).rounds
    assert (before.phase, before.state.seed) == (Phase.SEALING, NO_SEED)
    (after,) = seen(head + 1).rounds
    assert after.phase == Phase.TRAINING
    assert after.state.seed == world.contracts.market.round(world.job, 0).seed != NO_SEED


def test_a_look_finds_what_is_ones_own() -> None:
    world = World.start()
    world.to(Phase.REVEALING)
    known = world.ledger()
    market, me = world.contracts.market, world.address("worker-1")
    view = poll(market, known, known.jobs[world.job], world.params, me, world.now, world.head)
    (r,) = view.rounds
    assert r.slots_of(me) == [1]
    assert r.idle_locks == {1}
    assert (view.job.started, view.block) == (1, world.head)


def test_a_look_says_whose_turn_it_is_to_make_a_merge_again() -> None:
    world = World.start(rounds=3, max_lead=3)
    world.to(Phase.LEAD)
    market = world.contracts.market

    def merger() -> Address:
        known, me = world.ledger(), world.address("worker-0")
        (r,) = poll(market, known, known.jobs[world.job], world.params, me, world.now, world.head).rounds
        return r.merger

    assert merger() == ZERO_ADDRESS, "its merger may back it still"
    world.pass_to(market.round(world.job, 0).merged_at + world.params.merge.turn_seconds)
    assert merger() == market.merger_of(world.job, 0) != ZERO_ADDRESS
    world.send(market.back(world.job, 0, 1), "aggregator")
    assert merger() == ZERO_ADDRESS


def test_a_failed_round_keeps_the_stake_of_a_claim_whose_carry_is_demanded() -> None:
    world = World.start(min_slots=2, rounds=3, max_lead=3, carry_period=2)
    market, demands, me = world.contracts.market, world.contracts.demands, world.address("worker-0")
    world.to(Phase.LEAD)
    world.send(market.back(world.job, 0, 2), "aggregator")
    world.to(Phase.ATTESTING, 1)
    world.send(demands.carry_unavailable(world.job, 1, 0, 0), "verifier")
    claim = world.claim_id(0, 1)
    world.to(Phase.FREEZING, 1)
    world.pass_to(world.now + world.params.windows.answer_seconds + 1)
    world.to(Phase.FAILED, 1)

    def idle() -> frozenset[int]:
        known = world.ledger()
        view = poll(market, known, known.jobs[world.job], world.params, me, world.now, world.head)
        return next(r.idle_locks for r in view.rounds if r.number == 1)

    assert market.claim(claim).open_games == 1
    assert claim in world.ledger().staked(me)
    assert idle() == frozenset(), "it waits for the demand, as for a game"
    world.pass_to(world.now + world.params.windows.clock_seconds)
    world.send(demands.settle(payload_demand_id(claim, 0)), "verifier")
    assert market.claim(claim).status == ClaimStatus.CONVICTED
    assert claim not in world.ledger().staked(me)
