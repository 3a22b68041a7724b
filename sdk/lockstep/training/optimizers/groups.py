"""Groups of parameters by name: their own rate or decay, and their places in the flat tensors.

[strategy.inner.groups."*.bias"]       # the last pattern that matches a parameter decides
weight_decay = 0.0
[strategy.inner.groups."embed.*"]
learning_rate = 1e-4
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.base.naming import refuse_unknown
from lockstep.protocol.errors import UsageError
from lockstep.training.parameters import Layout, Parameter
from lockstep.training.strategies.base import Shards

SHOWN = 12
"""Names of parameters that an error lists."""
DECAYED = ("all", "matrices", "hidden")
EMBEDDINGS = ("tokens", "positions", "embed", "wte", "wpe")
"""Words in the names of embeddings, which `decayed = "hidden"` excludes."""


@dataclass(frozen=True)
class RateGroup:
    """A rate or a decay for the parameters that match a pattern; None: the optimizer's."""

    learning_rate: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value < float("inf")):
                raise UsageError(f"{name} is {value!r}", "give a number of at least 0")

    def to_dict(self) -> dict[str, float]:
        """Returns the fields that are set."""
        return {k: v for k, v in vars(self).items() if v is not None}


@dataclass(frozen=True)
class Groups:
    """Learning rates and decays by patterns of parameters' names, in order: as in `fnmatch`, `*` matches dots too."""

    rows: tuple[tuple[str, RateGroup], ...] = ()

    @classmethod
    def of(cls, given: Any, where: str = "groups") -> Groups:
        """Reads tables by their patterns, or a list of tables that have a `pattern` each, as `to_dict` gives it."""
        return cls(tuple((pattern, _group(table, place)) for pattern, table, place in tables_of(given, where)))

    def to_dict(self) -> list[dict[str, Any]]:
        """A list, since the order counts."""
        return [{"pattern": pattern, **group.to_dict()} for pattern, group in self.rows]

    def chosen(self, name: str) -> RateGroup:
        """Returns a parameter's rate and decay: each field from the last matching pattern that sets it."""
        rate = decay = None
        for pattern, group in self.rows:
            if fnmatchcase(name, pattern):
                rate = rate if group.learning_rate is None else group.learning_rate
                decay = decay if group.weight_decay is None else group.weight_decay
        return RateGroup(rate, decay)


def tables_of(given: Any, where: str) -> list[tuple[str, dict[str, Any], str]]:
    """Yields (pattern, table, its place) of tables by their patterns; raises UsageError for anything else."""
    if isinstance(given, Mapping):
        rows = [(pattern, table, f'{where}."{pattern}"') for pattern, table in given.items()]
    elif isinstance(given, list) and all(isinstance(x, Mapping) and isinstance(x.get("pattern"), str) for x in given):
        rows = [(x["pattern"], {k: v for k, v in x.items() if k != "pattern"}, where) for x in given]
    else:
        raise UsageError(f"{where} is {given!r}", f'write tables by name patterns: [{where}."*.bias"]')
    for _, table, place in rows:
        if not isinstance(table, Mapping):
            raise UsageError(f"{place} is {table!r}", f"write a table: [{place}]")
    return [(pattern, dict(table), place) for pattern, table, place in rows]


def _group(table: dict[str, Any], where: str) -> RateGroup:
    refuse_unknown(table, ["learning_rate", "weight_decay"], f"[{where}]")
    try:
        return RateGroup(**table)
    except UsageError as error:
        raise UsageError(f"[{where}]: {error.message}", error.hint) from error


def refuse_unmatched(patterns: Iterable[str], layout: Layout, what: str) -> None:
    """Raises UsageError for a pattern that names no parameter."""
    names = [p.name for p in layout.parameters]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            raise UsageError(f"{what}: {pattern!r} names no parameter", f"parameters are {shown}")


def decays(parameter: Parameter, decayed: str) -> bool:
    """Returns True if `decayed` selects a parameter."""
    matrix = len(parameter.shape) - parameter.is_complex > 1
    if decayed == "hidden":
        return matrix and not any(word in parameter.name for word in EMBEDDINGS)
    return matrix or decayed == "all"


class Run(NamedTuple):
    """A part of a shard that is treated alike."""

    shard: int
    start: int
    stop: int
    key: Any
    shape: tuple[int, ...] | None = None
    """The shape of a single parameter; None: several, or padding."""


@dataclass(frozen=True)
class Partition:
    """Shards in runs: neighbours of the same key together, each shard's padding in its last run.

    A shard of one run is not cut at all.
    """

    runs: tuple[Run, ...]
    sizes: tuple[int, ...]

    @classmethod
    def by_key(cls, layout: Layout, key_of: Callable[[Parameter], Hashable]) -> Partition:
        """Neighbours of the same key are one run."""
        runs: list[Run] = []
        for p in _in_order(layout):
            key = key_of(p)
            if runs and (runs[-1].shard, runs[-1].key) == (p.shard, key):
                runs[-1] = runs[-1]._replace(stop=p.offset + p.elements)
            else:
                runs.append(Run(p.shard, p.offset, p.offset + p.elements, key))
        last = {run.shard: at for at, run in enumerate(runs)}
        for shard, at in last.items():
            runs[at] = runs[at]._replace(stop=layout.sizes[shard])
        return cls(tuple(runs), layout.sizes)

    @classmethod
    def by_parameter(cls, layout: Layout, key_of: Callable[[Parameter], Hashable]) -> Partition:
        """Each parameter is a run, and so is each shard's padding, whose key is None."""
        runs = [Run(p.shard, p.offset, p.offset + p.elements, key_of(p), p.shape) for p in _in_order(layout)]
        for shard, (own, size) in enumerate(zip(layout.own, layout.sizes, strict=True)):
            if own < size:
                runs.append(Run(shard, own, size, None))
        return cls(tuple(sorted(runs, key=lambda run: (run.shard, run.start))), layout.sizes)

    def cut(self, shards: Shards) -> list[Tensor]:
        """The runs' tensors, in a parameter's shape where they are of one."""
        found = []
        for run in self.runs:
            part = shards[run.shard]
            if run.stop - run.start < self.sizes[run.shard]:
                part = part[run.start : run.stop]
            found.append(part if run.shape is None else part.view(run.shape))
        return found

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The inverse of `cut`."""
        found: list[list[Tensor]] = [[] for _ in self.sizes]
        for run, part in zip(self.runs, parts, strict=True):
            found[run.shard].append(part if run.shape is None else part.reshape(-1))
        return [each[0] if len(each) == 1 else torch.cat(each) for each in found]


def _in_order(layout: Layout) -> list[Parameter]:
    return sorted((p for p in layout.parameters if p.elements), key=lambda p: (p.shard, p.offset))


class Grouped:
    """A frozen dataclass that treats parameters by their names."""

    learning_rate: float
    weight_decay: float
    decayed: str
    groups: Groups

    def check_groups(self) -> None:
        """Raises UsageError for a wrong word."""
        if self.decayed not in DECAYED:
            raise UsageError(f"decayed is {self.decayed!r}", f"one of {', '.join(DECAYED)}")

    def key_of(self, parameter: Parameter) -> tuple[float, float]:
        """(its learning rate over the optimizer's, its weight decay)."""
        chosen = self.groups.chosen(parameter.name)
        ratio = 1.0 if chosen.learning_rate is None else chosen.learning_rate / self.learning_rate
        own = self.weight_decay if decays(parameter, self.decayed) else 0.0
        return ratio, own if chosen.weight_decay is None else chosen.weight_decay

    def cut_of(self, layout: Layout, whole: bool = False) -> Partition:
        """Runs of one key; `whole`: parameters."""
        refuse_unmatched((pattern for pattern, _ in self.groups.rows), layout, "groups")
        return (Partition.by_parameter if whole else Partition.by_key)(layout, self.key_of)
