"""Loads a model from its author's Python file: FILE.py:FUNCTION, a function that returns the model.

    brought = bring("net.py:make")        make() -> (model, loss or None, Batch) or (model, loss or None, Batch, data)
    brought.describe()                    config.json: the class, the file, the SHA-256 of the file
    brought.of(folder)                    the model with the weights that `train pull` wrote

The file is imported: only use code that you would run.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lockstep.base.decoding import file_bytes
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.storage.dataset import Dataset
from lockstep.training.export import load_config, load_model
from lockstep.training.job import Batch, default_loss
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.models import describe, is_own
from lockstep.training.rows import dataset_of

_MODULE = "lockstep_brought_model"
"""The module name under which the file is imported: its own name may be that of a library."""
_FORM = "FILE.py:FUNCTION, a function without arguments that returns (model, loss or None, Batch(...)), optionally rows"
_FUNCTION, _DIGEST = "function", "sha256"
"""Keys of a custom model's `config.json`."""


@dataclass(frozen=True)
class Brought:
    """The result of calling FUNCTION."""

    model: nn.Module
    loss: Loss | RandomLoss
    """The loss that FUNCTION returned; if that was None, the model's own."""
    batch: Batch
    dataset: Dataset | None
    """The rows that FUNCTION returned; None if it returned none."""
    target: str
    """FILE.py:FUNCTION, the file without its folders."""
    digest: str
    """SHA-256 of the file's bytes, hex; the modules that it imports are not in it."""

    def describe(self) -> dict[str, Any]:
        """Returns the model's `config.json`: its own if a registry or `transformers` has its class, else the file's."""
        described = describe(self.model)
        return {**described, _FUNCTION: self.target, _DIGEST: self.digest} if is_own(described) else described

    def of(self, folder: Path) -> nn.Module:
        """Returns the model with the weights that `train pull` wrote into a folder.

        Raises UsageError if they were trained with another file, PayloadInvalid if they do not fit the model.
        """
        config = load_config(folder)
        if not is_own(config):
            return load_model(folder)
        # INVARIANT: weights go into the model of the code that they were trained with.
        if config.get(_DIGEST, self.digest) != self.digest:
            raise UsageError(
                f"{self.target} has SHA-256 {self.digest[:16]}, but the job was made with {config.get(_FUNCTION)} of "
                f"{str(config[_DIGEST])[:16]}",
                "use the file as it was; in Python, load_model(folder, model) takes any model of these parameters",
            )
        return load_model(folder, self.model)


def bring(target: str, folder: Path = Path(), *, seed: int = 0) -> Brought:
    """Imports FILE, relative to `folder`, and calls FUNCTION, with torch's generator at `seed`.

    Raises UsageError for a target that makes no model, with the line of FILE at which the call failed.
    """
    written, _, name = target.rpartition(":")
    file = folder / written
    if not written or not file.is_file():
        raise UsageError(f"{target} names no file", f"give {_FORM}")
    digest = sha256(file_bytes(file)).hexdigest()
    torch.manual_seed(seed)
    made = _called(file, name)
    fits = isinstance(made, tuple) and len(made) in (3, 4)
    if not fits or not isinstance(made[0], nn.Module) or not isinstance(made[2], Batch):
        raise UsageError(f"{target} returns {type(made).__name__}", f"give {_FORM}")
    model, loss, batch = made[:3]
    dataset = rows_of(made[3], batch) if len(made) == 4 and made[3] is not None else None
    batch = batch if dataset is None else batch.of(dataset)
    return Brought(model, loss or default_loss(model, dataset, batch), batch, dataset, f"{file.name}:{name}", digest)


def rows_of(given: object, batch: Batch) -> Dataset:
    """Returns rows that a user gave as a dataset: whole numbers from 0, [N, L], as tokens, anything else as fields.

    Raises UsageError if they cannot form a dataset, or do not fit the batch.
    """
    rows = given.rows if isinstance(given, Dataset) and given.form is None else _whole_numbers(given)
    if rows is None:
        return dataset_of(given)
    if rows.shape[1:] != (batch.row_length,) or not len(rows):
        series = "; lockstep.training.rows.windows(tokens, length=L, stride=1) makes them of one text"
        raise UsageError(
            f"the rows have shape {rows.shape} and type {rows.dtype}",
            f"give whole numbers [N, {batch.row_length}], as the batch reads{series if rows.ndim == 1 else ''}",
        )
    if isinstance(given, Dataset):
        return given
    if rows.min() < 0:
        return dataset_of(rows)
    if rows.max() >= (1 << 31) - 1:
        raise UsageError(f"the rows hold numbers from {rows.min()} to {rows.max()}", "use numbers below 2^31 - 1")
    return Dataset(np.ascontiguousarray(rows, np.int32), int(rows.max()) + 1)


def _whole_numbers(given: object) -> NDArray[Any] | None:
    """Returns integers [N, L] or [N] as an array; None for anything else, which becomes fields."""
    listed = isinstance(given, (list, tuple)) and all(isinstance(each, (list, int)) for each in given)
    if not listed and not isinstance(given, (np.ndarray, torch.Tensor)):
        return None
    try:
        rows = np.asarray(given)
    except (ValueError, TypeError, RuntimeError):
        return None
    return rows if rows.dtype.kind in "iu" and rows.ndim < 3 else None


def _called(file: Path, name: str) -> Any:
    """Returns the result of calling a function of a file."""
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file", f"give {_FORM}")
    module = importlib.util.module_from_spec(spec)
    # A model of a dataclass looks its own module up.
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            raise UsageError(f"{file} has no function {name}", f"give {_FORM}")
        return function()
    except LockstepError:
        raise
    except Exception as error:
        raise UsageError(f"{_place(error, file)}: {type(error).__name__}: {error}", "run the file in Python") from error
    finally:
        sys.path.remove(str(file.resolve().parent))


def _place(error: Exception, file: Path) -> str:
    """Returns the last line of a file in an error's traceback, as FILE:LINE."""
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file.absolute()
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)
