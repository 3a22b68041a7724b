"""A job as a command names it: JOB.toml, or FILE.py:FUNCTION that makes a model, and the keys given by `--set`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base import networks
from lockstep.base.amounts import require_amount
from lockstep.base.decoding import file_bytes, from_toml
from lockstep.base.lines import say
from lockstep.protocol.errors import Malformed, UsageError

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.execution.jobs import TrainingJob

Target = Annotated[
    str,
    typer.Argument(
        metavar="JOB.toml|FILE.py:FUNCTION",
        help="The job's description; or a function that returns (model, loss, Batch, rows). Its file is imported.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the description, e.g. rounds=3 or strategy.inner_steps=10; may be repeated.",
    ),
]


@dataclass(frozen=True)
class DescribedJob:
    """A description that passed every check that neither reads a file nor traces the model."""

    fields: Mapping[str, Any]
    folder: Path
    """The folder that its paths are relative to."""

    def at(self, settings: Settings) -> DescribedJob:
        """Returns the description, with the terms of the local market if it names none and uses that market."""
        terms = None if "terms" in self.fields else networks.terms_of(settings.deployment)
        return self if terms is None else self.having(terms=terms)

    def having(self, **fields: Any) -> DescribedJob:
        """Returns the description with other values of some keys."""
        return replace(self, fields={**self.fields, **fields})

    def job(self, *, weights: bool = True) -> TrainingJob:
        """Traces the job, which takes seconds and needs torch; without weights it takes little memory.

        Prints warnings, e.g. of a warm-up that is longer than the job. Raises UsageError.
        """
        from lockstep.training.describe import job_of

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            job = job_of(self.fields, self.folder, weights=weights)
        for each in found:
            say(f"warning: {each.message}")
        return job


def read(
    target: str, sets: Sequence[str] | None = None, price: str | None = None, title: str | None = None
) -> DescribedJob:
    """Returns a target's description, overridden by `--set`, `--price` and `--title`; raises UsageError."""
    from lockstep.training.describe import refuse_wrong

    own = ".py:" in target
    described = {"model": target} if own else _of_file(Path(target))
    for given in sets or ():
        _merge(described, _parsed(given), given)
    if price is not None:
        require_amount(price, "--price")
        described["price"] = price
    if title is not None:
        described["title"] = title
    refuse_wrong(described)
    return DescribedJob(described, Path() if own else Path(target).parent)


def _of_file(path: Path) -> dict[str, Any]:
    try:
        return from_toml(file_bytes(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="`lockstep train init` writes one") from error
    except Malformed as error:
        raise UsageError(
            f"{path}: {error.message}", hint="compare it with what `lockstep train init` writes"
        ) from error


def _parsed(given: str) -> dict[str, Any]:
    """Parses KEY=VALUE into tables; a value that is not TOML is a string."""
    key, equals, value = given.partition("=")
    for written in (value, json.dumps(value)):
        try:
            found = from_toml(f"{key} = {written}")
        except Malformed:
            continue
        if equals and len(found) == 1:
            return found
    raise UsageError(f"--set {given}", hint="KEY=VALUE, e.g. rounds=3 or strategy.inner_steps=10")


def _merge(into: dict[str, Any], found: Mapping[str, Any], given: str) -> None:
    for key, value in found.items():
        if not isinstance(value, Mapping):
            into[key] = value
            continue
        below = into.setdefault(key, {})
        if not isinstance(below, dict):
            raise UsageError(f"--set {given}: {key} is {below!r}, not a table", hint="write the table in JOB.toml")
        _merge(below, value, given)
