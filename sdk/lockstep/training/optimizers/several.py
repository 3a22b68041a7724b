"""Several optimizers, each for the parameters that match its name pattern, and each at its own pace.

[strategy.inner]
name = "several"
[strategy.inner.parts."discriminator.*"]    # of several patterns that match, the last one decides
name = "adamw"
[strategy.inner.parts."generator.*"]
name = "adamw"
every = 5                                   # moves once in five steps: the fifth, the tenth
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.training.described import Described
from lockstep.training.optimizers.adamw import AdamW
from lockstep.training.optimizers.groups import SHOWN, Partition, refuse_unmatched
from lockstep.training.parameters import Layout, Parameter, unallocated
from lockstep.training.strategies.base import Optimizer, Paced, Shards, Transformation


@dataclass(frozen=True)
class PacedPart:
    """An optimizer that updates its parameters once in `every` steps, with the gradient of that step."""

    optimizer: Optimizer
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.every < 1 << 31:
            raise UsageError(f"every is {self.every}", "use at least 1: one update in this many steps")

    def paced(self, steps: int) -> int:
        """Returns its number of updates in that many steps; at least one, so that its table has a row."""
        return max(1, -(-steps // self.every))

    def restart(self, restart: int | None) -> int | None:
        """Returns its updates between two restarts of its memory; raises UsageError if there are none or they vary."""
        if restart is not None and restart % self.every:
            raise UsageError(
                f"every is {self.every}, and memory restarts every {restart} steps",
                "make inner_steps a multiple of it, or carry the memory: carry = true of diloco",
            )
        return None if restart is None else restart // self.every


@dataclass(frozen=True)
class Members:
    """Optimizers by patterns of parameters' names, in order."""

    rows: tuple[tuple[str, PacedPart], ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """A list, since the order counts."""
        return [{"pattern": p, "every": m.every, **m.optimizer.to_dict()} for p, m in self.rows]


def _everything() -> Members:
    return Members((("*", PacedPart(AdamW())),))


@dataclass(frozen=True)
class Several(Described):
    """Each parameter is moved by the optimizer of the last pattern that matches its name."""

    name: ClassVar[str] = "several"
    parts: Members = field(default_factory=_everything)
    """Optimizers by patterns of parameters' names, each a table [....parts."generator.*"] with a name, `every` and its
    own fields."""

    def __post_init__(self) -> None:
        if not self.parts.rows:
            raise UsageError("several has no parts", '[strategy.inner.parts."*"] name = "adamw"')

    def unreached(self, steps: int, restart: int | None) -> str:
        """Joins the warnings of its parts."""
        found = []
        for pattern, member in self.parts.rows:
            if isinstance(member.optimizer, Paced):
                text = member.optimizer.unreached(steps // member.every, member.restart(restart))
                found += [f"{pattern}: {text}"] if text else []
        return "; ".join(found)

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: those of the parts that have parameters, one after the other."""
        refuse_unmatched((pattern for pattern, _ in self.parts.rows), layout, "parts")
        own = {p.name: self._part_of(p) for p in layout.parameters}
        left = [name for name, at in own.items() if at is None]
        if left:
            shown = ", ".join(left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
            raise UsageError(f"no part of several updates {shown}", 'add a first part "*"')
        cut = Partition.by_key(layout, lambda p: own[p.name])
        parts = []
        for at, (_, member) in enumerate(self.parts.rows):
            if at in own.values():
                of = _Owned.of(layout, cut, at)
                made = member.optimizer.over(member.paced(steps), member.restart(restart), of.layout)
                parts.append(_Part(of, member.every, made))
        return _together(cut, parts)

    def _part_of(self, parameter: Parameter) -> int | None:
        matching = [at for at, (pattern, _) in enumerate(self.parts.rows) if fnmatchcase(parameter.name, pattern)]
        return matching[-1] if matching else None


class _Owned(NamedTuple):
    """The runs of a part, and its parameters in a layout of their own: one flat tensor for each shard that has any."""

    runs: tuple[int, ...]
    layout: Layout
    shards: tuple[int, ...]
    """The shard of each of its flat tensors."""

    @classmethod
    def of(cls, layout: Layout, cut: Partition, key: int) -> _Owned:
        runs = tuple(at for at, run in enumerate(cut.runs) if run.key == key)
        shards = tuple(dict.fromkeys(cut.runs[at].shard for at in runs))
        sizes, starts = [0] * len(shards), {}
        for at in runs:
            run, shard = cut.runs[at], shards.index(cut.runs[at].shard)
            starts[at] = sizes[shard]
            sizes[shard] += run.stop - run.start
        parameters = []
        for p in layout.parameters:
            for at in runs:
                run = cut.runs[at]
                if run.shard == p.shard and run.start <= p.offset and p.offset + p.elements <= run.stop:
                    offset = starts[at] + p.offset - run.start
                    parameters.append(Parameter(p.name, offset, p.shape, shards.index(p.shard)))
                    break
        return cls(runs, Layout(tuple(parameters), tuple(sizes)), shards)

    def taken(self, cut: Partition, parts: Sequence[Tensor]) -> list[Tensor]:
        """Its flat tensors, of all runs."""
        found: list[list[Tensor]] = [[] for _ in self.shards]
        for at in self.runs:
            found[self.shards.index(cut.runs[at].shard)].append(parts[at])
        return [each[0] if len(each) == 1 else torch.cat(each) for each in found]

    def put(self, cut: Partition, parts: list[Tensor], flats: Shards) -> None:
        """Writes its flat tensors into the list of all runs."""
        ends = [0] * len(self.shards)
        for at in self.runs:
            shard = self.shards.index(cut.runs[at].shard)
            start, ends[shard] = ends[shard], ends[shard] + cut.runs[at].stop - cut.runs[at].start
            whole = ends[shard] - start == self.layout.sizes[shard]
            parts[at] = flats[shard] if whole else flats[shard][start : ends[shard]]


class _Part(NamedTuple):
    own: _Owned
    every: int
    made: Transformation


def _together(cut: Partition, parts: Sequence[_Part]) -> Transformation:
    scalar = torch.empty((), dtype=torch.int32, device="meta")
    counts = [len(part.made.init(unallocated(part.own.layout), scalar)) for part in parts]

    def init(p: Shards, counter: Tensor) -> list[Tensor]:
        runs = cut.cut(p)
        return [each for part in parts for each in part.made.init(part.own.taken(cut, runs), counter)]

    def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
        runs, slopes, after, at = cut.cut(p), cut.cut(grad), [], 0
        moved = list(runs)
        for part, count in zip(parts, counts, strict=True):
            before, flat = list(state[at : at + count]), part.own.taken(cut, runs)
            clock = counter if part.every == 1 else counter // part.every
            held, x = part.made.update(before, clock, flat, part.own.taken(cut, slopes))
            if part.every > 1:
                due = counter % part.every == part.every - 1
                held = [torch.where(due, new, old) for new, old in zip(held, before, strict=True)]
                x = [torch.where(due, new, old) for new, old in zip(x, flat, strict=True)]
            after += held
            part.own.put(cut, moved, x)
            at += count
        return after, cut.join(moved)

    def sent(state: Shards, p: Shards) -> list[Tensor]:
        runs, at = cut.cut(p), 0
        moved = list(runs)
        for part, count in zip(parts, counts, strict=True):
            if part.made.sent is not None:
                part.own.put(cut, moved, part.made.sent(state[at : at + count], part.own.taken(cut, runs)))
            at += count
        return cut.join(moved)

    return Transformation(init, update, sent if any(part.made.sent for part in parts) else None)
