"""Rows of fields and windows in a loss: the same in a Program as in eager torch, on every path, for every word."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep.numerics import paths, portable, reference
from lockstep.numerics.arrays import StepContext, to_array
from lockstep.numerics.built import kernels
from lockstep.numerics.reference import Operands, Rows
from lockstep.protocol.errors import LoweringError, UsageError
from lockstep.protocol.programs.program import Kind, Program
from lockstep.storage.dataset import Dataset
from lockstep.storage.fields import BITS, unpacked
from lockstep.tracing import draw, random_words, trace
from lockstep.training.baseline import Sample
from lockstep.training.evaluation import evaluation_job
from lockstep.training.job import Batch, build_programs, training_job
from lockstep.training.losses import RandomLoss
from lockstep.training.rows import dataset_of, windows
from lockstep.training.strategies import diloco
from tests.support.emulation import Both
from tests.unit.storage.test_fields import dataset as every_type

CONTEXT = StepContext(bytes(range(32)), 3, 1, 2)
WORDS = np.array(
    [0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF],
    np.uint32,
)
"""Zero, subnormal and normal numbers, infinity, quiet and signalling NaNs; with the sign bit all of them once more."""


def read_program(data: Dataset, batch: Batch) -> Program:
    """A Program that returns what a loss gets of a step's rows, each field flat, as words of 32 bits."""

    def fields(_unread: Tensor) -> list[Tensor]:
        given = batch.given(draw(0, batch.rows, batch.words), random_words, 0)
        parts = [given] if isinstance(given, Tensor) else list(given.values() if isinstance(given, dict) else given)
        return [p.view(torch.int32).flatten() if p.is_floating_point() else p.to(torch.int32).flatten() for p in parts]

    return trace(fields, torch.empty(1, device="meta"))


def eager_words(data: Dataset, batch: Batch, context: StepContext) -> list[np.ndarray[Any, Any]]:
    sample = Sample(data.rows, batch, context.seed, context.words[0], context.words[1])
    given = sample.given(context.words[2], 0)
    parts = [given] if isinstance(given, Tensor) else list(given.values() if isinstance(given, dict) else given)
    return [p.contiguous().view(torch.int32).numpy() if p.is_floating_point() else p.int().numpy() for p in parts]


@pytest.mark.parametrize("data", [
    every_type(40),
    windows({"x": np.arange(4000, dtype=np.uint32).view(np.float32).reshape(2000, 2), "y": -np.arange(2000)}, length=9),
    windows(np.arange(3000), length=17),
    windows(np.arange(3000, dtype=np.int16) - 5, length=17, stride=3),
], ids=["fields", "windows of fields", "windows of tokens", "windows of one"])  # fmt: skip
def test_a_program_reads_what_eager_torch_reads(data: Dataset) -> None:
    batch = Batch(rows=8, row_length=17).of(data)
    program = read_program(data, batch)
    found = paths.compile(program).run(
        [np.zeros(1, np.float32)] + [None] * (len(program.inputs) - 1), CONTEXT, data.rows
    )
    due = eager_words(data, batch, CONTEXT)
    assert len(due) == len([f for f in found if f is not None])
    for own, other in zip(found, due, strict=False):
        assert own is not None
        assert own.tobytes() == other.tobytes()


def any_data(seed: int) -> Dataset:
    """Some fields of some types and shapes, read whole or in windows."""
    rng = np.random.default_rng(seed)
    count, fields = int(rng.integers(1, 60)), {}
    for k in range(int(rng.integers(1, 5))):
        dtype = str(rng.choice(sorted(BITS)))
        shape = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(0, 4))))
        words = rng.integers(0, 1 << 32, (count, *shape), np.uint32)
        cast = words.view(np.int32) if dtype == "int64" else words
        fields[f"f{k}"] = words.view(np.float32) if dtype == "float32" else cast.astype(dtype)
    if rng.integers(2) and count > 3:
        return windows(fields, length=int(rng.integers(1, count)), stride=int(rng.integers(1, 4)))
    return dataset_of(tuple(fields.values()) if rng.integers(2) else fields)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_program_reads_any_fields_as_eager_torch_does(seed: int) -> None:
    data = any_data(seed)
    batch = Batch(rows=1 + seed % 7).of(data)
    program = read_program(data, batch)
    state: list[Any] = [np.zeros(1, np.float32), *[None] * (len(program.inputs) - 1)]
    found = [f for f in paths.compile(program).run(state, CONTEXT, data.rows) if f is not None]
    assert [f.tobytes() for f in found] == [d.tobytes() for d in eager_words(data, batch, CONTEXT)]


def test_the_seed_chooses_every_window_of_a_text() -> None:
    data = windows(np.arange(2081), length=17)
    assert data.form is not None
    assert data.form.windows is not None
    assert data.form.windows.count == 32
    sample = Sample(data.rows, Batch(rows=4096, row_length=17).of(data), bytes(32))
    given = torch.cat([sample.given(t, 0) for t in range(1, 4)])
    assert torch.equal(given - given[:, :1], torch.arange(17).expand(len(given), 17)), "windows are of the text"
    assert given[:, 0].unique().numel() > 0.99 * 2048, "and start anywhere"


def any_words(rows: int, length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    found = np.random.default_rng(0).integers(0, 1 << 32, (rows, length), np.uint32)
    special = np.concatenate([WORDS, WORDS | np.uint32(1 << 31)])
    found[:, : len(special)] = special
    return found.view(np.int32)


def carried_program(length: int) -> Program:
    """Drawn words as floats, moved, chosen, gathered and joined."""

    def carried(_unread: Tensor) -> list[Tensor]:
        rows = draw(0, 6, length)
        floats = rows.to(torch.int32).view(torch.float32)
        turned = floats.t().contiguous()
        chosen = torch.where(rows[:, :1] >= 0, floats, floats.flip(1))
        picked = floats[torch.tensor([3, 0, 5])]
        return [floats.flatten(), torch.cat([turned.flatten(), picked.flatten()]), chosen.flatten()]

    return trace(carried, torch.empty(1, device="meta"))


def carried_due(rows: np.ndarray[Any, Any], drawn: list[int]) -> list[bytes]:
    words = rows[drawn]
    chosen = np.where(words[:, :1] >= 0, words, words[:, ::-1])
    return [words.tobytes(), words.T.tobytes() + words[[3, 0, 5]].tobytes(), np.ascontiguousarray(chosen).tobytes()]


def test_every_path_carries_every_word_of_a_row() -> None:
    rows = any_words(50, 40)
    program, state = carried_program(40), [np.zeros(1, np.float32)]
    drawn = [reference.drawn_row(CONTEXT.seed, CONTEXT.words, j, 50) for j in range(6)]
    due = carried_due(rows, drawn)
    for path in kernels.paths():
        for threads in (1, 3):
            found = paths.compile(program, threads=threads, path=path).run(state, CONTEXT, rows)
            assert [np.asarray(f).tobytes() for f in found if f is not None] == due, f"{path}, {threads} threads"
    whole = portable.Executor(
        program.header, list(program.descriptors), [to_array(c.header, c.data) for c in program.consts]
    )
    found = whole.run(list(state), CONTEXT.seed, *CONTEXT.words, rows, False, 1, "auto")
    assert [np.asarray(f).tobytes() for f in found if f is not None] == due, "numpy"
    (op,) = (op for op in program.ops if op.kind == Kind.DRAW)
    table = Rows(50, lambda row, column: int(rows[row, column]) & 0xFFFFFFFF)
    operands = Operands(lambda *_: 0, CONTEXT.seed, CONTEXT.words, table)
    slow = [reference.element(op, at, operands) for at in range(240)]
    assert np.array(slow, np.uint32).tobytes() == due[0], "the slow executor"


@pytest.mark.slow
def test_the_emulated_device_carries_every_word_of_a_row() -> None:
    Both(carried_program(40)).agree([np.zeros(1, np.float32)], CONTEXT, any_words(50, 40))
    data = every_type(40)
    Both(read_program(data, Batch(rows=8).of(data))).agree([np.zeros(1, np.float32)], CONTEXT, data.rows)


# -- what becomes a dataset

PAIRS = (np.arange(6.0).reshape(3, 2), np.array([1, 0, 2]))
Pair = namedtuple("Pair", "x y")


class Column:
    """A column of a table of pandas."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.to_numpy = lambda: values


class Frame(dict[str, Column]):
    """A table as pandas has it."""

    columns, to_numpy = ("x", "y"), None


class Items:
    """Rows one by one, as of `torch.utils.data.Dataset`."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return torch.from_numpy(PAIRS[0][k]), int(PAIRS[1][k])


@pytest.mark.parametrize("data", [
    PAIRS, Frame(x=Column(PAIRS[0]), y=Column(PAIRS[1])),
    TensorDataset(*map(torch.from_numpy, PAIRS)), Items(), Pair(*PAIRS), {"x": PAIRS[0], "y": PAIRS[1]},
    [{"x": x.tolist(), "y": y} for x, y in zip(*PAIRS, strict=True)], {"x": list(PAIRS[0]), "y": [1, 0, 2]},
], ids=lambda d: type(d).__name__)  # fmt: skip
def test_data_as_people_have_it_become_fields(data: Any) -> None:
    found = dataset_of(data)
    assert found.form is not None
    assert [(f.dtype, f.shape) for f in found.form.fields] == [("float32", (2,)), ("int64", ())]
    for due, own in zip(PAIRS, unpacked(found.form, found.rows), strict=True):
        assert np.array_equal(own, due)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"x": PAIRS[0], "y": [1]}, "different numbers of rows: x: 3, y: 1"),
        ({"x": ["a", "b"]}, "'x' has type"), (np.zeros(3, np.complex64), "complex64"), ({}, "no rows"), (7, "are int"),
        (np.array([2**40]), "integers from"), (np.array([1e300]), "beyond float32"),
        ({"x": [np.zeros(2), np.zeros(3)]}, "shapes"), ([{"x": 1}, {"y": 1}], "row 1 has other fields"),
        (DataLoader(TensorDataset(torch.zeros(3))), "DataLoader"), (torch.zeros(2, device="meta"), "meta"),
        ({"x": np.zeros((2, 600, 600), np.float32)}, "600"), ({"x": 3.0, "y": [1.0]}, "'x' is float"),
        (np.array(["2020"], "datetime64[D]"), "datetime64"), (np.zeros((0, 3)), "no rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_no_data_is_refused_by_name(data: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        dataset_of(data)
    assert caught.value.hint


# -- losses


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


def of_names(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def of_batch(model: Any, batch: Any) -> Tensor:
    return of_names(model, batch["x"], batch["y"])


def of_pair(model: Any, batch: Any) -> Tensor:
    x, y = batch
    return of_names(model, x, y)


NAMED = {"x": PAIRS[0], "y": PAIRS[1]}


@pytest.mark.parametrize(
    ("data", "loss"),
    [(NAMED, of_names), (NAMED, of_batch), (NAMED, lambda m, **f: of_names(m, **f)), (PAIRS, of_pair),
     (PAIRS, of_names), (Pair(*PAIRS), of_pair), (Pair(*PAIRS), lambda m, b: of_names(m, b.x, b.y)),
     ({**NAMED, "z": PAIRS[1]}, of_names), (NAMED, partial(of_names))],
)  # fmt: skip
def test_a_loss_takes_fields_as_its_parameters_say(data: Any, loss: Callable[..., Tensor]) -> None:
    dataset, model = dataset_of(data), Line()
    sample = Sample(dataset.rows, Batch(rows=4).of(dataset), CONTEXT.seed)
    drawn = [reference.drawn_row(CONTEXT.seed, (0, 0, 1), j, 3) for j in range(4)]
    due = of_names(model, torch.tensor(PAIRS[0][drawn]).float(), torch.tensor(PAIRS[1][drawn]))
    assert torch.equal(sample.value(model, loss, 1), due)


def test_losses_that_fit_no_fields_are_refused_by_name() -> None:
    dataset = dataset_of(NAMED)
    build = partial(
        build_programs, Line(), strategy=diloco.DiLoCo(), batch=Batch(rows=4).of(dataset), rounds=1, slots=2
    )
    with pytest.raises(UsageError, match="the rows have x, y"):
        build(lambda model, features, labels: of_names(model, features, labels))
    with pytest.raises(LoweringError, match=r"a field 'z' .* at test_rows.py:"):
        build(lambda model, batch: batch["z"].mean())
    with pytest.raises(LoweringError, match=r"rows of fields as one tensor at test_rows\.py:"):
        build(lambda model, batch: batch[:, 1].mean())
    plain = partial(build_programs, Line(), strategy=diloco.DiLoCo(), batch=Batch(rows=4), rounds=1, slots=2)
    with pytest.raises(UsageError, match="a row is one tensor"):
        plain(of_names)
    with pytest.raises(UsageError, match="no loss"):
        training_job(Line(), diloco.DiLoCo(), dataset, batch=Batch(rows=4), rounds=1, slots=2, min_slots=1)


def test_a_loss_that_draws_gets_words_for_each_row_of_fields() -> None:
    dataset, shapes = dataset_of(NAMED), []

    def value(model: Any, batch: Any, words: Tensor) -> Tensor:
        shapes.append(words.shape)
        return of_batch(model, batch)

    Sample(dataset.rows, Batch(rows=4).of(dataset), CONTEXT.seed).value(Line(), RandomLoss(value, 3), 1)
    assert shapes == [(4, 3)]


def test_a_job_and_an_evaluation_take_the_form_of_their_rows() -> None:
    dataset, terms = dataset_of(NAMED), {"rounds": 1, "slots": 2, "min_slots": 1}
    job = training_job(Line(), diloco.DiLoCo(), dataset, batch=Batch(rows=4), loss=of_names, **terms)
    assert job.dataset.row_tokens == 3
    flat = np.zeros(256, np.float32)
    job = evaluation_job(
        Line(), dataset, parameters=flat, batch=Batch(rows=4), batches=2, loss=of_names, slots=2, min_slots=1
    )
    assert job.dataset.fielded
    text = windows(np.arange(500) % 7, length=9)
    with pytest.raises(UsageError, match="windows have 9 tokens, but the batch reads 8"):
        training_job(Line(), diloco.DiLoCo(), text, batch=Batch(rows=4, row_length=8), loss=of_pair, **terms)
