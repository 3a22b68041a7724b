"""Makes a job from a model and data in a program, in the common forms of both.

    job = job_given(Net(), "texts", rounds=2)               a folder or file of texts or numbers
    job = job_given(Net(), ["a text", "another"])           texts
    job = job_given(Net(), tokens)                          integers [N, L]
    job = job_given(Net(), load_dataset(...), loss=loss)    Hugging Face `datasets`; arrays, a torch Dataset, ...

`loss` defaults to the model's own, or to next-token prediction for a module that does that. All other arguments are
keys of a description (`describe`): rounds, slots, batch, strategy, terms, price, tokens, seed and so on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import nn

from lockstep.execution.jobs import TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.storage.dataset import Dataset
from lockstep.training.brought import rows_of
from lockstep.training.describe import ModelAndRows, batch_of, job_with, own_batch_of, text_of
from lockstep.training.job import Batch
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.models import describe, is_own
from lockstep.training.probing import context_of
from lockstep.training.tables import ENDINGS as TABLES
from lockstep.training.tables import read_data
from lockstep.training.texts import FIELD, sources_of
from lockstep.training.tokens import ALL, TRAIN
from lockstep.training.wrappers import unwrapped

IDS = "input_ids"
"""The column of tokens in a dataset of Hugging Face."""


def job_given(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    *,
    loss: Loss | RandomLoss | None = None,
    batch: Batch | Mapping[str, Any] | int | None = None,
    inner_steps: int | None = None,
    weights: bool = True,
    **described: Any,
) -> TrainingJob:
    """Returns the job of a model, or of what a function makes with torch's generator at `seed`, on data.

    `batch`: a Batch, its fields, or its number of rows. `inner_steps` is the strategy's. Without `weights` the job can
    be quoted but not submitted. Raises UsageError, LoweringError.
    """
    made = made_of(model, described.get("seed", 0))
    if inner_steps is not None:
        described["strategy"] = {**described.get("strategy", {}), "inner_steps": inner_steps}
    if isinstance(batch, Batch):
        batch = {"rows": batch.rows, "row_length": batch.row_length, "accumulation": batch.accumulation}
    described["batch"] = {"rows": batch} if isinstance(batch, int) else dict(batch or {})

    def parts() -> ModelAndRows:
        return ModelAndRows(made, loss, *_read(data, made, described, loss))

    return job_with(described, parts, weights=weights)


def made_of(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Returns a module as it is, or what a function makes with torch's generator at `seed`; raises UsageError."""
    made: Any = model
    if not isinstance(model, nn.Module) and callable(model):
        if not isinstance(seed, int):
            raise UsageError(f"seed is {seed!r}", "give an integer")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = model()
    if not isinstance(made, nn.Module):
        raise UsageError(f"the model is {type(made).__name__}", "give a torch.nn.Module, or a function that makes one")
    return made


def _read(
    data: Any, model: nn.Module, described: Mapping[str, Any], loss: Loss | RandomLoss | None
) -> tuple[Batch, Dataset]:
    if isinstance(data, (str, PathLike)):
        return _of_path(Path(cast(Any, data)), model, described)
    if isinstance(data, Iterator):
        raise UsageError("the data are an iterator", "give list(...) of it: the data are read more than once")
    texts = _texts(data, described.get("field", FIELD))
    if texts is None:
        return _of_numbers(_columns(data, loss) if _is_table(data) else data, model, described)
    with TemporaryDirectory(prefix="lockstep-texts-") as folder:
        file = Path(folder) / "texts.jsonl"
        with file.open("w", encoding="ascii") as lines:
            lines.writelines(json.dumps({FIELD: text}) + "\n" for text in texts)
        return _of_texts(file, ALL, model, {**described, "field": FIELD})


def _of_path(path: Path, model: nn.Module, described: Mapping[str, Any]) -> tuple[Batch, Dataset]:
    try:
        found = path.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise UsageError(
            f"{str(path)[:100]!r} does not exist", "name a folder or file; give texts themselves in a list"
        )
    files = list(path.iterdir()) if path.is_dir() else [path]
    if files and all(file.name.lower().endswith(TABLES) for file in files):
        return _of_numbers(read_data(path), model, described)
    # One document in twenty of a folder is held out, as `train run` does; a single one is trained on whole.
    several = path.is_dir() and len(sources_of(path, described.get("field", FIELD))) > 1
    return _of_texts(path, TRAIN if several else ALL, model, described)


def _of_texts(path: Path, side: str, model: nn.Module, described: Mapping[str, Any]) -> tuple[Batch, Dataset]:
    texts = text_of({**described, "texts": str(path)}, Path())
    batch = _batch(model, described, texts.vocabulary, _length_of(model))
    return batch, texts.rows(side, batch.row_length)


def _of_numbers(data: Any, model: nn.Module, described: Mapping[str, Any]) -> tuple[Batch, Dataset]:
    length = _row_length(data) or _length_of(model)
    rows = data if isinstance(data, Dataset) else rows_of(data, Batch(row_length=length))
    if rows.fielded:
        return own_batch_of(described, length).of(rows), rows
    windows = None if rows.form is None else rows.form.windows
    length = rows.row_tokens if windows is None else windows.length
    return _batch(model, described, rows.vocabulary, length), rows


def _row_length(data: Any) -> int | None:
    """Returns L for integers [N, L], which are tokens; None for other data."""
    shape, kind = tuple(getattr(data, "shape", ())), str(getattr(data, "dtype", ""))
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, list) for row in data):
        shape, kind = (len(data), len(data[0])), "int"
    return max(2, int(shape[1])) if len(shape) == 2 and "int" in kind else None


def _length_of(model: nn.Module) -> int:
    """Returns the tokens per row for a module: its declared context, else a Batch's default."""
    seen = context_of(unwrapped(model))
    return Batch().row_length if seen is None else seen + 1


def _batch(model: nn.Module, described: Mapping[str, Any], vocabulary: int, length: int) -> Batch:
    """Returns the described batch; rows for a custom module have this many tokens by default."""
    own = is_own(describe(model))
    return own_batch_of(described, length) if own else batch_of(described, model, vocabulary)


# -- texts and tables as people have them


def _texts(data: Any, column: str) -> list[str] | None:
    """Returns data that are texts, or their column of this name; None if there are no texts."""
    if isinstance(data, (Mapping, Dataset)) or _is_table(data) or hasattr(data, "columns"):
        names = getattr(data, "column_names", getattr(data, "columns", data))
        if isinstance(data, Dataset) or column not in names:
            return None
        data = data[column]
    if hasattr(data, "dtype"):
        if getattr(data.dtype, "kind", None) not in ("O", "U", "T"):
            return None
        data = data.tolist()
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return None
    if not len(data) or not isinstance(data[0], str):
        return None
    texts = [data[k] for k in range(len(data))]
    for k, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"item {k} is {type(text).__name__}, not a string", "give a list of strings, a document each"
            )
    return texts


def _is_table(data: Any) -> bool:
    """Returns True for a dataset of Hugging Face, known by its parts: the library is not imported."""
    if not hasattr(data, "column_names") or not hasattr(data, "with_format"):
        return False
    if isinstance(data.column_names, Mapping):
        raise UsageError(
            f"the dataset has splits: {', '.join(data.column_names)}", 'give one of them, e.g. data["train"]'
        )
    if not hasattr(data, "__len__"):
        raise UsageError(
            f"{type(data).__name__} is a stream", "give a Dataset of its items: Dataset.from_list(list(data))"
        )
    return True


def _columns(data: Any, loss: Loss | RandomLoss | None) -> Any:
    """Returns a table's columns as arrays by name; without a loss, only its column of tokens."""
    columns = data.with_format("numpy")[:]
    return columns[IDS] if loss is None and IDS in columns else dict(columns)
