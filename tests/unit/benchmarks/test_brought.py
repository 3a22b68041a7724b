"""The scripts that are brought to a market."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import brought
from lockstep.training.brought import bring

NAMES = sorted(path.name for path in brought.SCRIPTS.iterdir() if path.is_dir())


def test_every_script_has_what_its_author_wrote_what_was_made_of_it_and_a_description() -> None:
    assert len(NAMES) == 10
    for name in NAMES:
        files = {path.name for path in (brought.SCRIPTS / name).iterdir() if path.is_file()}
        assert files == {"train.py", "net.py", "job.toml"}, name
        assert 'model = "net.py:make"' in (brought.SCRIPTS / name / "job.toml").read_text(), name


def test_lines_that_change_are_counted_without_empty_ones_and_indentation(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("a = 1\n\nfor i in range(3):\n    b = 2\n")
    after.write_text("a = 1\nb = 2\nc = 3\n")
    assert brought.changed(before, after) == (1, 1)


@pytest.mark.parametrize("saved", ["the model", "a child", "several"])
def test_weights_of_a_script_fill_what_they_are_of(saved: str) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Bilinear(2, 2, 1)})
    due = {name: torch.full_like(value, 3.0) for name, value in model.state_dict().items()}
    part = {name.removeprefix("a."): value for name, value in due.items() if name.startswith("a.")}
    other = {name.removeprefix("b."): value for name, value in due.items() if name.startswith("b.")}
    kept = {"the model": due, "a child": part, "several": {"a": part, "b": other}}[saved]
    brought.fill(model, kept)
    filled = {name for name, value in model.state_dict().items() if torch.equal(value, due[name])}
    assert filled == {name for name in due if saved != "a child" or name.startswith("a.")}


def test_weights_of_something_else_are_refused() -> None:
    with pytest.raises(RuntimeError, match="no module"):
        brought.fill(nn.Linear(2, 1), {"other": torch.zeros(1)})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_a_job(name: str) -> None:
    with brought.workplace(name) as folder:
        found = bring("net.py:make", folder)
        assert found.dataset is not None
        assert 0 < brought.loss_of(found, found.model) < 100


@pytest.mark.slow
def test_a_script_is_rehearsed_to_its_own_loss() -> None:
    row = brought.tried("dlrm", None)
    assert row.first_loss > 1.3 * row.eager_loss
    assert row.ratio == pytest.approx(1, abs=0.1)
