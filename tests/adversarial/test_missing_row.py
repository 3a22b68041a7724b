"""Missing dataset row: a draw that nobody can check or learn from. Demanded in vain, it voids the job."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lockstep.chain.contracts import Call
from lockstep.execution.jobs import Job
from lockstep.node.demands import Answers
from lockstep.numerics.trace import tensor_root
from lockstep.protocol.market.availability import row_answer, row_demand_id
from lockstep.protocol.market.job_rules import answer_floor
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.types import Digest, Seconds
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import WALLET, Court, Where
from tests.support.toyjob import ROWS

ROW = 17
LONG_ROWS, LONG = 64, 49_153
"""A context of 49,152 tokens and the one after it: 193 leaves, which no transaction holds."""


def missing(court: Court) -> Ended:
    """Nobody has the row: the requester published a root and not the data."""
    demands = court.contracts.demands
    court.send(demands.demand_row(court.job_id, ROW), "verifier")
    assert court.refused(demands.void_for_row(court.job_id, ROW), "verifier") == "TooEarly"
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.void_for_row(court.job_id, ROW), "verifier")
    court.settle_void("verifier")
    return Ended("void", Where(rule=f"row {ROW}"), Where(rule=f"row {ROW}"))


def acts(court: Court, job: Any) -> Iterator[tuple[str, Call]]:
    """What the accomplice's program sends until the row is posted: it is killed and started again at every act."""
    while True:
        answers = Answers(court.contracts, court.store, court.address("accomplice"))
        due = list(answers.due(court.ledger(), lambda _: cast(Job, job), court.now()))
        if not due:
            return
        yield from due


def ended(court: Court, row: int, lost: int) -> Ended:
    """The row is posted, who asked has lost its bond, the job goes on."""
    demand = court.contracts.demands.demand(row_demand_id(court.job_id, row))
    assert demand is not None
    assert demand.status.name == "ANSWERED"
    assert court.contracts.vault.lock_of(row_demand_id(court.job_id, row)) is None
    assert court.wealth("mallory") - WALLET == -lost
    assert court.contracts.market.job(court.job_id).status.name == "ACTIVE"
    return Ended("answered", Where(rule="bond lost"), Where(rule="bond lost"))


def answered(court: Court) -> Ended:
    """The row is there: who demanded it in spite pays who posts it."""
    demands = court.contracts.demands
    bond = demands.row_bond_of(court.job_id, ROW)
    court.send(demands.demand_row(court.job_id, ROW), "mallory")
    for _, call in acts(court, court.job):
        court.send(call, "accomplice")
    assert court.wealth("accomplice") - WALLET == bond * 60 // 100
    assert court.refused(demands.demand_row(court.job_id, ROWS), "mallory") == "NoSuchRow"
    return ended(court, ROW, bond)


def long_row(court: Court, meddle: Callable[[Court, int, Call, Any], int] = lambda *_: 0) -> Ended:
    """A row that everybody holds, of a length that no transaction carries: it is posted in parts."""
    court.forget()
    data = np.random.default_rng(1).integers(0, 50_000, (LONG_ROWS, LONG), dtype=np.int32)
    court.submit(
        dataset_root=Digest(tensor_root(data)), dataset_rows=LONG_ROWS, row_length=LONG,
        answer_seconds=answer_floor(LONG, Seconds(12)),
    )  # fmt: skip
    demands, row = court.contracts.demands, 3
    bond = demands.row_bond_of(court.job_id, row)
    court.send(demands.demand_row(court.job_id, row), "mallory")
    job, begun = SimpleNamespace(params=court.params, dataset=data), court.now()
    sent, taken = [], 0
    for key, call in acts(court, job):
        assert len(call.data) < 128 * 1024 - 1024, "nodes pass it on"
        if key.startswith("answer"):
            taken += meddle(court, row, call, job)
        court.send(call, "accomplice")
        sent.append(key.partition("/")[0])
    assert sent == ["commit", *["answer"] * 4]
    assert court.now() - begun <= court.params.windows.answer_seconds
    gained = court.wealth("accomplice") - WALLET
    assert 0 <= bond * 60 // 100 - gained - taken < 10, "60 % of the bond, each share rounded down"
    return ended(court, row, bond - taken)


def copied(court: Court, row: int, call: Call, job: Any) -> int:
    """Who asked sees the part in the mempool, and sends it first: it has committed to nothing."""
    assert court.refused(call, "mallory") == "NotCommitted"
    return 0


def one_leaf_ahead(court: Court, row: int, call: Call, job: Any) -> int:
    """Who asked posts a single leaf before each part, so that the part should not fit any more."""
    demands = court.contracts.demands
    demand = demands.demand(row_demand_id(court.job_id, row))
    assert demand is not None
    tree, rows = row_answer(job.params, job.dataset.reshape(-1).data, row)
    leaf = demands.answer_row(court.job_id, row, tree, demand.next, rows[demand.next : demand.next + 1])
    if demand.next + 1 == len(rows):
        return 0  # the last leaf is a part of its own: who posts that has answered
    before = court.wealth("mallory")
    court.send(demands.commit([digest_of(court.address("mallory"), leaf.data)]), "mallory")
    court.send(leaf, "mallory")
    return court.wealth("mallory") - before


CHEATS = (
    Cheat("missing dataset row", "void", {"nobody has it": missing}),
    Cheat(
        "row demanded in spite", "answered",
        {
            "somebody has it": answered,
            "longer than a transaction": long_row,
            "its answer copied": lambda court: long_row(court, copied),
            "single leaves posted ahead": lambda court: long_row(court, one_leaf_ahead),
        },
    ),
)  # fmt: skip


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_row_that_nobody_has_voids_the_job_and_one_that_is_posted_does_not(
    court: Court, cheat: Cheat, form: str
) -> None:
    run(court, cheat, form)
