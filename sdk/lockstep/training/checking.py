"""A model of one's own, tried before anything is paid: can a job of it be made?

    checked = check("net.py:make")        make() -> (model, loss, Batch)

Only run it on code that you would run: the file is imported.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.training.job import Batch, build_programs
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.models import loss_of
from lockstep.training.strategies import diloco

_MODULE = "lockstep_checked_model"
"""The name under which the file is imported: its own may be that of a library."""
_FORM = "FILE.py:FUNCTION, whose call without arguments returns (model, loss or None, Batch(...))"


@dataclass(frozen=True)
class Checked:
    """The contents of a job of the model."""

    model: str
    """The model's class."""
    parameters: int
    """Elements that are trained."""
    statistics: int
    """Elements of buffers that a step writes."""
    ops: int
    """Operations of a step."""
    elements: int
    """Elements that the operations of a step compute."""


def check(target: str) -> Checked:
    """Traces and validates the Programs of a job of what `target`, "FILE.py:FUNCTION", makes; nothing is sent.

    Raises LoweringError with the module, the line, the rule that is missing and a hint, and UsageError for a target
    that makes no model.
    """
    model, loss, batch = _made(target)
    built = build_programs(model, loss or loss_of(model), diloco.Spec(), batch=batch, rounds=1, slots=2)
    for program in (built.step, built.encode, built.merge):
        validate(program)
    written = sum(s.elements for s in built.layout.statistics)
    step = built.step
    return Checked(type(model).__name__, built.layout.used, written, len(step.ops), step.ops[-1].cumulative)


def _made(target: str) -> tuple[nn.Module, Loss | RandomLoss | None, Batch]:
    if target.endswith(".toml"):
        raise UsageError(f"{target} describes a job, not a model", "`lockstep train quote` checks a description")
    path, _, name = target.rpartition(":")
    file = Path(path)
    if not path or not file.is_file():
        raise UsageError(f"{target} names no file", f"give {_FORM}")
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is no Python file", f"give {_FORM}")
    module = importlib.util.module_from_spec(spec)
    # A model of a dataclass looks its own module up.
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
        factory = getattr(module, name, None)
        if not callable(factory):
            raise UsageError(f"{file} has no function {name}", f"give {_FORM}")
        made = factory()
    except LockstepError:
        raise
    except Exception as error:
        raise UsageError(f"{_place(error, file)}: {type(error).__name__}: {error}", "run the file in Python") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    fits = isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module) and isinstance(made[2], Batch)
    if not fits:
        raise UsageError(f"{target} returns {type(made).__name__}", f"give {_FORM}")
    return made


def _place(error: Exception, file: Path) -> str:
    """Returns the last line of a file that an error came through, as FILE:LINE."""
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file.absolute()
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)
