"""AdamW: its schedule and its table."""

from __future__ import annotations

import pytest

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies.diloco import Spec


def test_rate_warms_up_then_decays_to_its_fraction() -> None:
    inner = AdamW(learning_rate=1.0, warmup=4, final_fraction=0.1)
    rates = [inner.rate(s, 40) for s in range(40)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.1 <= rates[-1] < 0.11


def test_table_restarts_the_bias_correction_every_round() -> None:
    inner = AdamW(learning_rate=1.0, warmup=0, final_fraction=1.0, weight_decay=0.5, restart_warmup=1)
    table = inner.table(6, restart=3)
    assert table.shape == (6, 3)
    assert table[:3].tolist() == table[3:].tolist()
    assert table[:, 0].tolist() == [0.75, 0.5, 0.5] * 2, "half the rate in the first step of a round"
    assert abs(table[0, 1] - 0.5 / (1 - 0.9)) < 1e-6
    assert abs(table[2, 2] - (1 - 0.95**3) ** -0.5) < 1e-6


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta2": -0.1}, {"learning_rate": 0.0}, {"clip": 0.0}])
def test_values_that_cannot_train_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError):
        AdamW(**wrong)


def test_strategy_describes_itself_completely() -> None:
    described = Spec(inner=AdamW(learning_rate=0.5)).to_dict()
    assert described["name"] == "diloco"
    assert described["inner"]["learning_rate"] == 0.5
    assert set(described) >= {"inner_steps", "payload", "outer_learning_rate", "outer_momentum"}
