"""Data as people have them, and the jobs that become of them with a module of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lockstep.execution.jobs import TrainingJob
from lockstep.presets import LOCAL
from lockstep.protocol.errors import UsageError
from lockstep.training.data import byte_dataset
from lockstep.training.describe import job_of
from lockstep.training.given import job_given
from lockstep.training.job import Batch
from lockstep.training.models import GPT, GPTConfig

pytestmark = pytest.mark.usefixtures("traced_once")
TEXT = "words upon words, " * 20


class Bigrams(nn.Module):
    """Tokens to the logits of the next token."""

    def __init__(self, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 4), nn.Linear(4, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class Scores(nn.Module):
    """Numbers to a number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)[:, 0]


def squares(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return mse_loss(model(x), y)


class Column:
    """A column of a table of `datasets`, which is no list."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, k: int) -> Any:
        return self.values[k]


class Table:
    """The parts of `datasets.Dataset` by which it is known."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns_of, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns_of.values())))

    def with_format(self, kind: str) -> Any:
        assert kind == "numpy"
        return _Formatted({name: np.asarray(v) for name, v in self.columns_of.items()})

    def __getitem__(self, name: str) -> Column:
        return Column(self.columns_of[name])


class _Formatted:
    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, part: slice) -> dict[str, Any]:
        assert part == slice(None)
        return self.columns


class Stream:
    """Those of `datasets.IterableDataset`."""

    column_names = ("text",)

    def with_format(self, kind: str) -> Stream:
        raise AssertionError(kind)


class Series:
    """Those of a column of pandas, whose labels are no places."""

    def __init__(self, values: list[str]) -> None:
        self.values = np.asarray(values, object)
        self.dtype = self.values.dtype

    def tolist(self) -> list[str]:
        return list(self.values)


class Sentences(torch.utils.data.Dataset[str]):
    """Texts one by one."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> str:
        return TEXT


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "data",
    [
        lambda: [TEXT] * 3, lambda: (TEXT,) * 3, lambda: np.array([TEXT] * 3), lambda: Series([TEXT] * 3),
        lambda: Table({"text": [TEXT] * 3, "n": [1, 2, 3]}), lambda: Table({"text": [TEXT] * 3})["text"],
        lambda: {"text": [TEXT] * 3}, Sentences,
    ],
    ids=["list", "tuple", "strings of numpy", "series", "table", "column", "dict", "torch"],
)  # fmt: skip
def test_texts_in_every_form_are_the_same_rows_of_bytes(data: Callable[[], Any]) -> None:
    job = job_given(Bigrams(), data(), rounds=2, inner_steps=3, weights=False)
    due = byte_dataset((f"{TEXT}\n\n" * 3).encode(), row_tokens=65)
    assert job.dataset.rows.tobytes() == due.rows.tobytes()
    assert (job.dataset.vocabulary, job.inner_steps, job.rounds) == (256, 3, 2)
    assert job.loss is not None, "watchers compute the loss of the next token"


def folder_of(texts: dict[str, str], path: Path) -> Path:
    path.mkdir()
    for name, text in texts.items():
        (path / name).write_text(text)
    return path


def test_a_folder_s_texts_are_those_of_a_description(tmp_path: Path) -> None:
    folder = folder_of({f"{k}.txt": f"{k} {TEXT}" for k in range(22)}, tmp_path / "texts")
    config = GPTConfig(layers=1, heads=2, width=16, context=16)
    given = job_given(GPT(config), str(folder), batch=4, slots=2, rounds=2, seed=5)
    model = {"layers": 1, "heads": 2, "width": 16, "context": 16}
    described = {"texts": "texts", "model": model, "batch": {"rows": 4}, "slots": 2, "rounds": 2, "seed": 5}
    due = job_of(described, tmp_path)
    assert given.programs == due.programs
    assert given.dataset.root == due.dataset.root, "one document in twenty is held out"
    assert given.genesis is not None
    assert due.genesis is not None
    assert all(np.array_equal(a, b) for a, b in zip(given.genesis.shared, due.genesis.shared, strict=True))
    assert given.terms == due.terms


def test_one_document_is_trained_on_whole(tmp_path: Path) -> None:
    folder = folder_of({"a.txt": TEXT}, tmp_path / "texts")
    rows = byte_dataset(f"{TEXT}\n\n".encode(), row_tokens=65).rows
    for data in (folder, folder / "a.txt", [TEXT]):
        assert np.array_equal(job_given(Bigrams(), data, weights=False).dataset.rows, rows), data


def test_tables_in_a_folder_are_rows_of_numbers(tmp_path: Path) -> None:
    folder = folder_of({"a.csv": "x,y\n" + "1.5,2\n" * 9}, tmp_path / "tables")

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(model(x[:, None].expand(-1, 4)), y.float())

    for data in (folder, folder / "a.csv"):
        job = job_given(Scores(), data, loss=loss, batch=Batch(rows=2), weights=False)
        assert str(job.dataset.form) == "x float32[], y int64[]"


@pytest.mark.parametrize(
    "data",
    [
        np.arange(60).reshape(6, 10), torch.arange(60).reshape(6, 10), np.arange(60).reshape(6, 10).tolist(),
        Table({"input_ids": np.arange(60).reshape(6, 10).tolist(), "attention_mask": [[1] * 10] * 6}),
    ],
    ids=["numpy", "torch", "lists", "table"],
)  # fmt: skip
def test_integers_are_tokens_and_rows_are_as_long_as_theirs(data: Any) -> None:
    job = job_given(Bigrams(60), data, weights=False)
    assert (job.dataset.rows.shape, job.dataset.vocabulary, job.dataset.form) == ((6, 10), 60, None)


def test_arrays_by_name_reach_the_loss() -> None:
    x, y = np.ones((9, 4), np.float32), np.ones(9, np.float32)
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for data in ({"x": x, "y": y}, Table({"x": x.tolist(), "y": y.tolist()}), tensors):
        job = job_given(Scores(), data, loss=squares, batch={"rows": 3}, weights=False)
        assert job.dataset.fielded


class Positions(Bigrams):
    """With as many positions as its configuration says, in nanoGPT's word for them."""

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"block_size": 16})()
        self.positions = nn.Embedding(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens) + self.positions(torch.arange(tokens.shape[1])))


def test_rows_are_as_long_as_the_model_says_that_it_sees() -> None:
    assert job_given(Positions(), [TEXT], weights=False).dataset.row_tokens == 17
    assert job_given(Positions(), [TEXT], batch={"row_length": 9}, weights=False).dataset.row_tokens == 9
    with pytest.raises(UsageError, match=r"fails on tokens of shape \[1, 29\]: IndexError") as refused:
        job_given(Positions(), [TEXT], batch=Batch(row_length=30), weights=False)
    assert "row_length" in refused.value.hint


def test_a_function_makes_the_model_at_the_seed() -> None:
    def shared(seed: int) -> bytes:
        job = job_given(Bigrams, [TEXT], seed=seed)
        assert job.genesis is not None
        return b"".join(tensor.tobytes() for tensor in job.genesis.shared)

    assert shared(1) == shared(1) != shared(2)


def test_the_keys_of_a_description_are_its_arguments() -> None:
    job = job_given(
        Bigrams(), [TEXT], slots=4, min_slots=2, terms="local", strategy={"name": "fedavg"}, inner_steps=7,
        weights=False,
    )  # fmt: skip
    assert (job.slots, job.min_slots, job.inner_steps, job.strategy["name"]) == (4, 2, 7, "fedavg")
    assert job.terms.train_seconds == LOCAL.train_seconds


class Ahead(Bigrams):
    """Sees the tokens that it is to predict."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).cumsum(1).flip(1))


def numbers(data: Any, **keys: Any) -> Callable[[], TrainingJob]:
    return lambda: job_given(Scores(), data, weights=False, **keys)


def texts(data: Any, model: Any = Bigrams, **keys: Any) -> Callable[[], TrainingJob]:
    return lambda: job_given(model, data, weights=False, **keys)


def _items() -> Iterator[str]:
    yield TEXT


REFUSED: dict[str, tuple[Callable[[], TrainingJob], str, str]] = {
    "a text": (texts(TEXT), "'words upon", "in a list"),
    "no file": (texts("nowhere"), "'nowhere' does not exist", "name a folder"),
    "an iterator": (texts(_items()), "an iterator", "list"),
    "a gap": (texts([TEXT, None]), "item 1 is NoneType", "a document each"),
    "a stream": (texts(Stream()), "Stream is a stream", "from_list"),
    "ragged": (texts(Table({"input_ids": np.array([[1], [1, 2]], object)})), "several shapes", "pad them"),  # type: ignore[dict-item]
    "one series": (texts(np.arange(90)), "the rows have shape", "windows"),
    "no loss of numbers": (numbers({"x": np.ones((9, 4)), "y": np.ones(9)}), "no loss", "give a loss"),
    "no logits": (texts([TEXT], Scores), "the loss of a Scores is not known", "def loss"),
    "few logits": (texts([[300, 1, 2]] * 3), "index out of range", "def loss"),
    "ahead": (texts([TEXT], Ahead), "change with a later token", "def loss"),
    "a typo": (texts([TEXT], round=2), "nothing is called 'round'", "rounds"),
    "a typo of the batch": (texts([TEXT], batch={"row": 2}), "nothing is called 'row'", "rows"),
    "texts beside data": (texts([TEXT], texts="texts"), "nothing is called 'texts'", ""),
    "no model": (texts([TEXT], 5), "the model is int", "nn.Module"),
}


@pytest.mark.parametrize("made", REFUSED)
def test_what_becomes_no_job_is_refused_with_a_way_out(made: str) -> None:
    call, message, hint = REFUSED[made]
    with pytest.raises(UsageError) as refused:
        call()
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_splits_are_to_be_chosen_from() -> None:
    splits = Table({"text": [TEXT]})
    splits.column_names = {"train": ["text"], "test": ["text"]}  # type: ignore[assignment]
    with pytest.raises(UsageError, match="splits: train, test"):
        job_given(Bigrams(), splits, weights=False)
