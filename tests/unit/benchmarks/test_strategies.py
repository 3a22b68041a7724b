"""The benchmark of strategies: resumed with the same bits, tuned on a grid, told apart by seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import strategies
from lockstep.storage.dataset import Dataset
from lockstep.training.data import Corpus
from lockstep.training.models import GPTConfig
from lockstep.training.strategies.registry import STRATEGIES

TINY = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=16)


class Ended(Exception):
    """The process is over."""


def corpus() -> Corpus:
    rows = np.random.default_rng(0).integers(0, 32, (40, 17), dtype=np.int32)
    return Corpus(Dataset(rows, 32), Dataset(rows[:8], 32))


@pytest.mark.slow
def test_a_run_that_is_ended_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strategies.SIZES, "tiny", TINY)
    monkeypatch.setattr(strategies, "KEPT_SECONDS", 0.0)
    setting = strategies.Setting("tiny", 6, 2, 2, 0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    due = strategies.row_of("sparseloco", setting, corpus(), whole, lambda r: None)

    def ends(round_: int) -> None:
        if round_ == 2:
            raise Ended

    with pytest.raises(Ended):
        strategies.row_of("sparseloco", setting, corpus(), cut, ends)
    seen: list[int] = []
    assert strategies.row_of("sparseloco", setting, corpus(), cut, seen.append) == due
    assert seen == [3], "two rounds were not computed again"
    again = strategies.row_of("sparseloco", setting, corpus(), cut, lambda r: pytest.fail("a finished row is read"))
    assert again == due


@pytest.mark.slow
def test_a_row_has_what_a_worker_sends_fetches_and_is_audited_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(strategies.SIZES, "tiny", TINY)
    setting = strategies.Setting("tiny", 4, 2, 2, 3)
    rows = {name: strategies.row_of(name, setting, corpus(), tmp_path, lambda r: None) for name in ("fedavg", "muloco")}
    assert [row["seed"] for row in rows.values()] == [3, 3]
    assert rows["fedavg"]["bits_up"] == rows["fedavg"]["bits_audit"], "nothing is carried"
    assert 32 < rows["fedavg"]["bits_up"] < 33
    assert 32 < rows["fedavg"]["bits_down"] < 35, "the parameters, their padding and the manifest"
    assert 64 < rows["muloco"]["bits_down"] < 68, "and an outer momentum"
    audited = rows["muloco"]["bits_audit"] - rows["muloco"]["bits_up"]
    assert 64 < audited < 128, "a momentum, a residual, and v of what is no matrix"
    assert all(0 < row["loss"] < 10 for row in rows.values())


@pytest.mark.slow
def test_half_of_the_slots_are_absent_from_every_round_and_send_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(strategies.SIZES, "tiny", TINY)
    setting = strategies.Setting("tiny", 6, 2, 4, 0, slots=strategies.HALF_ABSENT)
    absent = [strategies.absent_of(setting, r) for r in range(8)]
    assert all(len(slots) == 2 for slots in absent)
    assert len(set(absent)) > 1, "not the same ones"
    row = strategies.row_of("fedavg", setting, corpus(), tmp_path, lambda r: None)
    whole = strategies.row_of("fedavg", replace(setting, slots=strategies.WHOLE), corpus(), tmp_path, lambda r: None)
    assert 2 * row["bytes_sent"] == whole["bytes_sent"]
    assert row["bits_up"] == whole["bits_up"], "of a payload"


@pytest.mark.parametrize(
    ("least", "factor"), [(-3, 0.125), (-2, 0.25), (0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (-9, 2.0**-8), (9, 2.0**8)]
)
def test_an_outer_step_is_the_best_of_a_coarse_grid_or_lies_beyond_it(least: int, factor: float) -> None:
    asked = []

    def run(name: str, setting: strategies.Setting) -> dict[str, object]:
        asked.append(setting)
        return {"tuning_loss": abs(math.log2(setting.factor) - least)}

    assert strategies.tuned("diloco", strategies.Setting(), run) == factor
    assert {setting.seed for setting in asked} == {strategies.TUNING_SEED}
    assert strategies.tuned("fedavg", strategies.Setting(), pytest.fail) == 1.0, "it has no outer step"


@pytest.mark.parametrize("name", [*STRATEGIES, *strategies.VARIANTS])
def test_a_factor_multiplies_the_outer_step_alone(name: str) -> None:
    once, twice = (strategies.strategy_for(name, strategies.Setting(factor=f)).to_dict() for f in (1.0, 2.0))
    if name == "fedavg":
        assert once == twice
        return
    if "outer" in once:
        assert twice["outer"].pop("learning_rate") == 2 * once["outer"].pop("learning_rate")
    else:
        field = "outer_learning_rate" if name.startswith("diloco") else "learning_rate"
        assert twice.pop(field) == 2 * once.pop(field)
    assert once == twice


def test_a_picture_orders_strategies_by_loss_and_workers_by_number() -> None:
    def row(name: str, loss: float, workers: int = 2, slots: str = "") -> dict[str, object]:
        setting = {"workers": workers, "steps": 10, "slots": slots}
        return {"strategy": name, "setting": setting, "bits_up": 2.0, "rounds": 5, "loss": loss, "parameters": 70000}

    chart = strategies.picture([row("a", 3.0), row("b", 2.0), row("b", 2.5)])
    assert [(line.name, line.points) for line in chart.lines] == [("b", [(10.0, 2.25)]), ("a", [(10.0, 3.0)])]
    svg = chart.svg()
    assert svg.count("<circle") == 2 + 4, "two dots, and two of each in the legend"
    assert ">0<" not in svg, "losses are drawn where they lie"
    ordered = strategies.picture_of_orderings(
        [row("a", 3.0, 4), row("a", 3.5, 1), row("a", 3.2, 4), row("a", 4.0, 4, "half absent")]
    )
    whole, absent = ordered.lines
    assert (whole.name, whole.points, whole.dots) == ("a", [(1, 3.5), (4, 3.1)], False)
    assert (absent.name, absent.points, absent.dots) == ("a, half absent", [(4, 4.0)], True)
    assert "<polyline" in ordered.svg()


def test_what_sets_rows_apart_is_paired_by_seed() -> None:
    peer = [{"seed": 0, "loss": 2.0}, {"seed": 1, "loss": 4.0}, {"seed": 2, "loss": 1.0}]
    rows = [{"seed": 1, "loss": 4.04}, {"seed": 0, "loss": 2.04}]
    found = strategies.apart(rows, peer)
    assert found is not None
    mean, half = found
    assert mean == pytest.approx(1.5)
    assert half == pytest.approx(12.706 * 0.5, rel=1e-3), "t of one degree of freedom, deviation / sqrt(2) = 0.5"
    assert strategies.apart(rows[:1], peer) is None
    assert "+1.50" in strategies.table([
        {"strategy": name, "setting": {"slots": "", "workers": 2, "factor": 1.0}, "bits_up": 1.0, "bits_down": 1.0,
         "bits_audit": 1.0, **row}
        for name, rows_ in (("diloco", peer), ("muloco", rows)) for row in rows_
    ])  # fmt: skip
