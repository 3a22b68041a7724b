"""A model of one's own, tried before anything is paid: can a job of it be made?

    checked = check("net.py:make")        make() -> (model, loss, Batch) or (model, loss, Batch, rows)

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
from lockstep.training.trial import TriedSteps, reason_not_to_run, rows_of, trial
from lockstep.training.wrappers import unwrapped

_MODULE = "lockstep_checked_model"
"""The name under which the file is imported: its own may be that of a library."""
_FORM = "FILE.py:FUNCTION, whose call without arguments returns (model, loss or None, Batch(...)), and rows if you like"


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
    trial: TriedSteps | None = None
    """Some steps of it, run and compared; None: none was run."""
    not_run: str = ""
    """The reason why none was run."""

    @property
    def differs(self) -> bool:
        """True if a job of it would not train what eager PyTorch trains, or this machine would compute wrong bits."""
        return self.trial is not None and bool(self.trial.wrong or self.trial.differing)


def check(target: str, *, runs: bool = True, threads: int = 1) -> Checked:
    """Traces and validates the Programs of a job of what `target`, "FILE.py:FUNCTION", makes, and, if it `runs` them,
    runs and compares some steps; nothing is sent.

    Raises LoweringError with the module, the line, the rule that is missing and a hint, and UsageError for a target
    that makes no model.
    """
    model, loss, batch, given = _made(target)
    model = unwrapped(model)
    rows = None if given is None else rows_of(given, batch)
    loss, strategy = loss or loss_of(model), diloco.Spec()
    built = build_programs(model, loss, strategy, batch=batch, rounds=1, slots=2)
    for program in (built.step, built.encode, built.merge):
        validate(program)
    written, step = sum(s.elements for s in built.layout.statistics), built.step
    name, elements = type(model).__name__, step.ops[-1].cumulative
    why = reason_not_to_run(model, built) if runs else "it was not asked for"
    found = None if why else trial(model, loss, strategy, batch, built, rows, threads=threads)
    return Checked(name, built.layout.used, written, len(step.ops), elements, found, why)


def _made(target: str) -> tuple[nn.Module, Loss | RandomLoss | None, Batch, object]:
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
    fits = isinstance(made, tuple) and len(made) in (3, 4)
    if not fits or not isinstance(made[0], nn.Module) or not isinstance(made[2], Batch):
        raise UsageError(f"{target} returns {type(made).__name__}", f"give {_FORM}")
    return made[0], made[1], made[2], made[3] if len(made) == 4 else None


def _place(error: Exception, file: Path) -> str:
    """Returns the last line of a file that an error came through, as FILE:LINE."""
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file.absolute()
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)
