"""The benchmark of strategies resumes with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import strategies
from lockstep.storage.dataset import Dataset
from lockstep.training.data import Corpus
from lockstep.training.models import GPTConfig

TINY = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=16)


class Ended(Exception):
    """The process is over."""


def corpus() -> Corpus:
    rows = np.random.default_rng(0).integers(0, 32, (40, 17), dtype=np.int32)
    return Corpus(Dataset(rows, 32), Dataset(rows[:8], 32))


def test_a_run_that_is_ended_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strategies.SIZES, "tiny", TINY)
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
