"""Honest parties in the search see what their programs would see: equal views, from a State and through web3."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.market.acts import Action, ActionKind
from lockstep.market.ledger import Ledger
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.state import State
from lockstep.protocol.types import Address, Wei
from tests.differential.test_ledger import played
from tests.search.honest import Party
from worker.decide import JobView, WorkerFacts, acts
from worker.reading import poll


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_looks_at_a_state_as_it_does_through_web3(seed: int) -> None:
    looks = 0

    def seen(contracts: Contracts, s: State, b: Block, ledger: Ledger) -> None:
        nonlocal looks
        for job, params in s.params.items():
            assert params is not None
            owners = {c.worker for c in s.claims.values() if c.job == job}
            for me in sorted(owners)[:3]:
                told = poll(contracts.market, ledger, ledger.jobs[job], params, me, b.time, b.number)
                scene: Any = SimpleNamespace(job=job, setting=SimpleNamespace(params=params))
                mine = Party(me, scene, SimpleNamespace())._look(s, b)  # type: ignore[arg-type]
                assert shown(mine) == shown(told)
                assert chosen(mine, me, s) == chosen(told, me, s)
                looks += 1

    played(seed, seen)
    assert looks > 20


def chosen(view: JobView, me: Address, s: State) -> list[Action]:
    """Returns a party's acts; lists are not modelled in the search."""
    return [act for act in acts(view, WorkerFacts(me, Wei(s.free[me]))) if act.kind != ActionKind.PUBLISH]


def shown(view: JobView) -> object:
    """Returns the data that a decision reads, without published lists, which the search does not model."""
    return (
        view.id, view.params, view.job, view.now, view.block,
        [
            (
                r.number, r.state, r.phase, r.merger, r.merge_turns_over, r.audit, r.merged_by, r.idle_locks,
                [(c.worker, c.status) for c in r.claims if r.phase < Phase.FINAL and c.status != ClaimStatus.NONE],
            )
            for r in view.rounds
        ],
    )  # fmt: skip
