"""A merge that is off is off where it was declared, and its liar can defend it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lockstep.base.cache import MemoryCache
from lockstep.demo.cheats.coordinator import LyingAggregator
from lockstep.demo.cheats.lies import Cheat, cheat_of, lying_aggregator
from lockstep.execution.jobs import Job
from lockstep.execution.merging import load_checkpoint, merge_round
from lockstep.execution.rounds import Payload
from lockstep.protocol.errors import UsageError
from lockstep.runtime.guard.memory import GuardMemory
from lockstep.storage import ContentStore
from tests.support import toyjob
from tests.support.merges import SCOPE, frozen, merge_place, merging_parts, put, trained


def lie(job: Job, seed: int = 0) -> Cheat:
    return lying_aggregator(job.programs, job.params, Random(seed))


def test_lies_refuse_every_chain_but_a_devnet(toy: Job) -> None:
    with pytest.raises(UsageError, match="refuse chain 1"):
        cheat_of("lying-aggregator", toy.programs, toy.params, 0, chain_id=1)


def test_the_lie_is_where_it_was_declared_and_consistent(toy: Job, toy_store: ContentStore, tmp_path: Path) -> None:
    cheat = lie(toy)
    expected = cheat.expectation
    assert (expected.program, expected.step, expected.op_kind) == ("merge", 1, "map")
    refs: list[Payload | None] = [put(toy, toy_store, trained(toy, s)) for s in range(3)]
    place = merge_place(toy, refs)
    with GuardMemory(tmp_path, SCOPE) as guard:
        liar = LyingAggregator(toy, merging_parts(toy_store, guard, tmp_path), MemoryCache())
        liar.cheat = cheat
        out, out2, cid = liar.merge(place, frozen(refs))
        held = liar.held(place, frozen(refs))
    honest = merge_round(toy, toy.genesis, [trained(toy, s) for s in range(3)], toyjob.SEED, 0)
    assert out != honest.out, "the shared state is perturbed"
    assert load_checkpoint(toy, toy_store, cid, out, out2) is not None, "what is stored is what is claimed"
    theirs, ours = held.step(1), honest.run.materialise(1, honest.run.start)
    assert theirs.program.root == toy.programs.merge.root
    differ = [i for i in range(len(ours.program.ops)) if theirs.graph[0][i] != ours.graph[0][i]]
    assert differ[0] == expected.op_index, "nothing before the declared op is wrong"
    assert theirs.prev == ours.prev


def test_the_place_of_the_lie_follows_from_the_seed(toy: Job) -> None:
    assert lie(toy, 3).expectation == lie(toy, 3).expectation
