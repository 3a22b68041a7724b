"""One look at a job is at one block, though the chain goes on while it is read."""

from __future__ import annotations

from copy import deepcopy

from lockstep.protocol.jobs import NO_SEED, Phase
from tests.support.world import World
from worker.decide import JobView
from worker.reading import look


def test_nobody_is_told_to_train_before_it_knows_the_seed() -> None:
    world = World.start()
    world.to(Phase.SEALING)
    world.devnet.mine(1)
    head, now, known = world.head, world.now, deepcopy(world.ledger())

    def seen(block: int) -> JobView:
        ledger, me = known.jobs[world.job], world.address("worker-0")
        return look(world.contracts.market, known, ledger, world.params, me, now, block)

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
    view = look(market, known, known.jobs[world.job], world.params, me, world.now, world.head)
    (r,) = view.rounds
    assert r.slots_of(me) == [1]
    assert r.idle_locks == {1}
    assert (view.job.started, view.block) == (1, world.head)
