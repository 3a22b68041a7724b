"""A model of one's own is run before it is paid for: its bits beside other code's, its gradients beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lockstep.numerics.executor import Executable
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Kind
from lockstep.training.brought import rows_of
from lockstep.training.checking import Checked, check
from lockstep.training.job import Batch, build_programs
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.strategies import diloco
from lockstep.training.trial import TriedSteps, trial
from tests.support.wrong import one_bit_off

BATCH = Batch(rows=2, row_length=17)
VOCABULARY = 20


def tried(model: nn.Module, loss: Loss | RandomLoss, batch: Batch = BATCH, rows: Any = None) -> TriedSteps:
    strategy = diloco.DiLoCo()
    built = build_programs(model, loss, strategy, batch=batch, rounds=1, slots=2)
    return trial(model, loss, strategy, batch, built, rows)


def of_floats(model: Any, rows: Tensor) -> Tensor:
    found: Tensor = model(rows.float() / 128 - 1)
    return found.pow(2).mean()


def of_tokens(model: Any, rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 8), nn.GELU(), nn.Linear(8, 4))


class Tied(nn.Module):
    """Embeds and predicts by one table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.embedding(tokens))
        return found


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    return model


def with_statistics() -> nn.Module:
    """A bias before a batch norm has the gradient zero, and rounding alone in it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


RIGHT: dict[str, tuple[Callable[[], nn.Module], Loss | RandomLoss, int]] = {
    "plain": (mlp, of_floats, 4),
    "bfloat16": (lambda: mlp().bfloat16(), of_floats, 4),
    "frozen": (frozen, of_floats, 3),
    "tied": (Tied, of_tokens, 1),
    "running statistics": (with_statistics, of_floats, 9),
    "a loss that draws": (mlp, RandomLoss(lambda m, r, w: of_floats(m, r + (w[..., 0] & 7)), words=1), 4),
}


@cache
def found_of(name: str) -> TriedSteps:
    model, loss, _ = RIGHT[name]
    return tried(model(), loss)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RIGHT)
def test_a_model_that_is_trained_as_pytorch_trains_it_passes(name: str) -> None:
    found, (*_, count) = found_of(name), RIGHT[name]
    assert (found.wrong, found.eager, found.differing) == ("", "", ())
    assert (found.steps, found.exact, len(found.gradients)) == (2, True, count)
    assert all(g.error is not None for g in found.gradients)


def test_rows_are_made_that_the_loss_takes_and_given_ones_are_taken() -> None:
    assert "below 10" in found_of("tied").rows
    rows = np.full((3, 17), VOCABULARY - 1, np.int32)
    assert tried(Tied(), of_tokens, rows=rows).rows == "3 rows as given"
    for wrong in (
        np.zeros((3, 16), np.int32),
        np.zeros((0, 17), np.int32),
        np.zeros(17, np.int32),
        np.full((1, 17), 2**40),
        np.full((1, 17), -(2**40)),
    ):
        with pytest.raises(UsageError):
            rows_of(wrong, BATCH)
    tokens = rows_of(torch.zeros(3, 17, dtype=torch.int64), BATCH)
    assert (tokens.rows.dtype, tokens.form, tokens.vocabulary) == (np.int32, None, 1)
    assert rows_of([[1] * 17, [2] * 17], BATCH).form is None, "a list of rows is tokens too"
    for other in (np.zeros((3, 17)), np.full((1, 17), -1)):
        assert rows_of(other, BATCH).fielded, "rows of floats and of negative numbers are fields"


def stubborn(model: Any, rows: Tensor) -> Tensor:
    """Its own table of float32 meets the parameters."""
    found: Tensor = model(torch.from_numpy(np.ones((2, 17), np.float32)) * 1.0) @ torch.eye(4, dtype=torch.float32)
    return found.pow(2).mean() + rows.float().mean()


def test_gradients_are_compared_in_float64_unless_the_loss_insists_on_float32() -> None:
    assert found_of("tied").precision == "float64"
    assert found_of("plain").precision == "float64", "its rows become float64, too"
    found = tried(mlp(), stubborn)
    assert (found.precision, found.differing, found.eager) == ("float32", (), "")


@pytest.mark.slow
def test_a_gradient_that_is_rounding_alone_is_no_difference() -> None:
    """Two rows through a batch norm, whose outputs are +-1 whatever the weights before it are."""
    torch.manual_seed(0)
    found = tried(nn.Sequential(nn.Linear(17, 3), nn.BatchNorm1d(3)), of_floats)
    assert (found.wrong, found.differing) == ("", ())


@pytest.mark.slow
def test_a_model_that_draws_is_compared_with_other_code_alone_and_says_so() -> None:
    found = tried(nn.Sequential(mlp(), nn.Dropout(0.5)), of_floats)
    assert (found.wrong, found.differing, found.gradients) == ("", (), ())
    assert "random" in found.eager
    assert tried(nn.Sequential(mlp(), nn.Dropout(0.5)).eval(), of_floats).eager == "", "nothing is drawn"


def test_a_gradient_that_pytorch_computes_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.training.gradients.hooked", lambda *_: None)  # a trace that leaves hooks out
    model = mlp()
    model[2].bias.register_hook(lambda grad: 2 * grad)  # type: ignore[index]
    (found,) = tried(model, of_floats).differing
    assert found.name == "2.bias"
    assert found.error == pytest.approx(0.5, rel=1e-3)


def test_wrong_bits_are_told_with_their_op(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Executable.run

    def wrong(self: Executable, *arguments: Any, **named: Any) -> Sequence[Any]:
        found = run(self, *arguments, **named)
        steps = any(op.kind == Kind.DRAW for op in self.program.ops) and self.path != "portable"
        return one_bit_off(found) if steps else found

    monkeypatch.setattr(Executable, "run", wrong)
    found = tried(mlp(), of_floats)
    assert found.wrong.startswith("step 1: entry 0 of the state")
    assert "element 0 is 0x" in found.wrong


SOURCE = """
from lockstep.training.job import Batch
from tests.unit.training.test_checking import Tied, mlp, of_floats, of_tokens

def right():
    return mlp(), of_floats, Batch(rows=2, row_length=17)

def with_rows():
    return Tied(), of_tokens, Batch(rows=2, row_length=17), [[t % 20 for t in range(17)]] * 3
def five():
    return 1, 2, 3, 4, 5
"""


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Checked]:
    (tmp_path / "net.py").write_text(SOURCE)
    return lambda name, **more: check(f"{tmp_path / 'net.py'}:{name}", **more)


def test_a_function_may_return_rows_too_and_no_step_need_be_run(checked: Callable[..., Checked]) -> None:
    found = checked("with_rows")
    assert found.trial is not None
    assert (found.trial.rows, found.differs) == ("3 rows as given", False)
    found = checked("right", runs=False)
    assert (found.trial, found.differs) == (None, False)
    with pytest.raises(UsageError, match="returns tuple"):
        checked("five")
