"""What an account demands, and when: what it lacks, once, where that pays or protects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from lockstep.demands import Asks, to_demand
from lockstep.merging import wrong_leaves
from lockstep.protocol import receipts
from lockstep.protocol.economics import PROVER_PERCENT
from lockstep.protocol.errors import BlobMissing, RowMissing
from lockstep.protocol.jobs import Round
from lockstep.protocol.market.availability import row_demand_id
from lockstep.protocol.receipts import Report
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds, Wei
from tests.auditing import PARAMS

JOB, CLAIM = JobId(b"j" * 32), ClaimId(b"c" * 32)
MISSING = RowMissing(BlobMissing("no block", "ask its owner"), 7)
ME, OTHER = Address("0x" + "aa" * 20), Address("0x" + "bb" * 20)
BOND = Wei(PARAMS.deposit * PROVER_PERCENT // 100 - 1)


@dataclass
class Chain:
    """What `Asks` reads of it, and what it would send."""

    bond: Wei = BOND
    demanded: set[bytes] = field(default_factory=set)

    @property
    def demands(self) -> Chain:
        return self

    market = demands

    def row_bond_of(self, job: JobId, row: int) -> Wei:
        return self.bond

    def demand(self, key: bytes) -> object | None:
        return key if key in self.demanded else None

    def demand_row(self, job: JobId, row: int) -> tuple[str, int]:
        return "row", row

    def unavailable(self, job: JobId, r: int, slot: int, wanted: int) -> tuple[str, int, int]:
        return "payload", slot, wanted


def test_a_row_is_demanded_after_a_while_if_that_pays_and_nobody_has() -> None:
    chain = Chain()
    asks = Asks(chain, ME)  # type: ignore[arg-type]
    patience = PARAMS.windows.answer_seconds
    assert asks.row(JOB, PARAMS, MISSING, Seconds(100)) is None, "stores may be slow"
    assert asks.row(JOB, PARAMS, MISSING, Seconds(99 + patience)) is None
    assert asks.row(JOB, PARAMS, MISSING, Seconds(100 + patience)) == (f"demand/row/{JOB.hex()}", ("row", 7))
    chain.demanded.add(row_demand_id(JOB, 7))
    assert asks.row(JOB, PARAMS, MISSING, Seconds(200 + patience)) is None, "once"


@pytest.mark.parametrize(("over", "asked"), [(0, True), (1, False), (1_000, False)])
def test_a_row_is_not_demanded_where_the_bond_is_not_less_than_the_prize(over: int, asked: bool) -> None:
    asks = Asks(Chain(bond=Wei(BOND + over)), ME)  # type: ignore[arg-type]
    asks.row(JOB, PARAMS, MISSING, Seconds(0))
    assert (asks.row(JOB, PARAMS, MISSING, PARAMS.windows.answer_seconds) is not None) is asked


def test_a_payload_is_demanded_under_one_key_whoever_asked_before() -> None:
    first, again = (demanded(ME) for _ in range(2))
    assert first == again, "after every restart"
    key, what, slot, wanted = first
    assert (key, what, slot) == (f"demand/{CLAIM.hex()}", "payload", 2), "the outbox sends a key once"
    assert wanted != demanded(OTHER)[3], "who asks after another names other leaves"


def test_a_payload_that_came_spoiled_is_demanded_where_it_is_wrong() -> None:
    wanted, guessed = demanded(ME, [(3, 999), (1, 0)])[3], demanded(ME)[3]
    words = [wanted >> 64 * i & (1 << 64) - 1 for i in range(4)]
    assert [(w >> 40, w & (1 << 40) - 1) for w in words[:2]] == [(3, 999), (1, 0)]
    assert wanted >> 128 == guessed >> 128, "the rest are the account's own"


def demanded(me: Address, lacking: Sequence[tuple[int, int]] = ()) -> tuple[str, str, int, int]:
    """(key, what, slot, wanted) of an account's demand for a payload."""
    key, call = Asks(Chain(), me).payload(JOB, 0, 2, CLAIM, lacking)  # type: ignore[arg-type]
    what, slot, wanted = cast(tuple[str, int, int], call)
    return key, what, slot, wanted


def test_leaves_that_differ_from_the_replay_are_found() -> None:
    own = [np.arange(700, dtype=np.float32), np.zeros(3, np.float32)]
    stored = [own[0].copy(), own[1].copy()]
    assert list(wrong_leaves(own, stored)) == []
    stored[0][600] += 1
    stored[1][2] = 1
    assert list(wrong_leaves(own, stored)) == [(0, 2), (1, 0)]


def after(*given: tuple[int, int]) -> Round:
    """A round in which (speaker, mask) were given."""
    named, spoke = (0, 0), 0
    for who, mask in given:
        named, spoke = receipts.add(named, mask, who), spoke | 1 << who
    return replace(Round(), named=named, spoke=spoke, receipts=len(given))


@pytest.mark.parametrize(
    ("given", "slot"),
    [
        ((), 1),
        (((0, 0b111), (2, 0b111)), 1),
        (((0, 0b101), (2, 0b101)), None),
        (((0, 0b111), (2, 0b101)), None),
        (((1, 0b111),), 1),
    ],
    ids=["nobody spoke", "all let it in", "all refuse it", "half refuse it", "its owner alone spoke"],
)
def test_a_payload_is_demanded_where_the_others_would_merge_it(
    given: tuple[tuple[int, int], ...], slot: int | None
) -> None:
    reports = {0: Report.DECODED, 1: Report.MISSING, 2: Report.DECODED}
    assert to_demand(reports, after(*given)) == slot
    assert to_demand({**reports, 1: Report.REFUSED}, after(*given)) == slot
    assert to_demand({**reports, 1: Report.UNREACHABLE}, after(*given)) is None, "nobody answered: nothing is known"
    assert to_demand({**reports, 1: Report.DECODED}, after(*given)) is None
