"""What backs a claim, and what a demand for its data costs whoever answers it."""

from __future__ import annotations

import pytest

from lockstep.presets import DEVNET, MAINNET, Terms
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Wei
from tests.support.auditing import PARAMS
from tests.support.params import amended
from worker.backing import answer_unpaid


def with_prices(terms: Terms, **changes: object) -> JobParams:
    return amended(PARAMS, **{"bond": terms.bond, "gas_price": terms.gas_price, "fee_cap": terms.fee_cap, **changes})  # type: ignore[arg-type]


def test_a_job_that_pays_nothing_for_gas_has_its_workers_answer_at_their_own_cost() -> None:
    assert answer_unpaid(with_prices(DEVNET), 0) == "", "where gas costs nothing, nobody minds"
    assert "pays nothing for gas" in answer_unpaid(with_prices(DEVNET), 1)
    assert "pays nothing for gas" in answer_unpaid(with_prices(MAINNET, gas_price=Wei(0)), 1)


@pytest.mark.parametrize("times", [0.01, 1])
def test_a_job_pays_for_answers_up_to_its_cap(times: float) -> None:
    assert answer_unpaid(with_prices(MAINNET, bond=Wei(1)), int(times * MAINNET.fee_cap)) == ""


@pytest.mark.parametrize("bond", [1, MAINNET.gas_price * 10**7])
def test_a_cap_below_the_base_fee_pays_no_answer_whatever_the_bond(bond: int) -> None:
    assert "its gas now" in answer_unpaid(with_prices(MAINNET, bond=Wei(bond)), MAINNET.fee_cap + 1)
