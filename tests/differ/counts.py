"""Computes line and branch coverage of a `--coverage` build from the .gcno and .gcda files of gcc 12 or later.

gcov counts branches that no condition in the sources decides. Of the blocks of machine code with several exits, exactly
these are left out:

- a call that may throw: that it returns and that it throws are no branches;
- what only an exception reaches: the clean-up of what goes out of scope, the choice of a handler and what that does;
- functions of the standard library, and those that the compiler makes up: their text is not in our sources.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FUNCTION, BLOCKS, ARCS, LINES, COUNTERS = 0x01000000, 0x01410000, 0x01430000, 0x01450000, 0x01A10000
ON_TREE, FAKE, FALLTHROUGH = 1, 2, 4
ENTRY, EXIT = 0, 1


@dataclass
class Arc:
    """An edge between two blocks."""

    begin: int
    end: int
    flags: int
    count: int | None = None


@dataclass
class Function:
    """Blocks of machine code, and the source lines that they belong to."""

    start: tuple[int, int] = (0, 0)
    artificial: bool = False
    arcs: list[Arc] = field(default_factory=list)
    lines: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def ends(self) -> dict[int, list[Arc]]:
        """Returns the edges out of each block."""
        found: dict[int, list[Arc]] = defaultdict(list)
        for arc in self.arcs:
            found[arc.begin].append(arc)
        return found

    def solve(self) -> None:
        """Computes the counts of all edges from the recorded ones: a block is entered as often as it is left."""
        into: dict[int, list[Arc]] = defaultdict(list)
        for arc in self.arcs:
            into[arc.end].append(arc)
        out = self.ends()
        left = [arc for arc in self.arcs if arc.count is None]
        while left:
            before = len(left)
            for block in {b for arc in left for b in (arc.begin, arc.end)} - {ENTRY, EXIT}:
                unknown = [a for a in (*into[block], *out[block]) if a.count is None]
                if len(unknown) == 1:
                    given = sum(a.count or 0 for a in into[block]) - sum(a.count or 0 for a in out[block])
                    unknown[0].count = -given if unknown[0] in into[block] else given
            left = [arc for arc in left if arc.count is None]
            if len(left) == before:
                raise ValueError("the counts of a function do not tell how often each arc was taken")

    def usual(self) -> set[int]:
        """Returns the blocks that are reached without an exception."""
        out, found, todo = self.ends(), {ENTRY}, [ENTRY]
        while todo:
            arcs = out[todo.pop()]
            throws = any(a.flags & FAKE for a in arcs)
            for arc in arcs:
                if arc.flags & FAKE or (throws and not arc.flags & FALLTHROUGH) or arc.end in found:
                    continue
                found.add(arc.end)
                todo.append(arc.end)
        return found

    def branches(self) -> Iterator[tuple[str, int, list[int]]]:
        """Yields (file, line, count of each exit) of the blocks with more than one exit."""
        out, usual = self.ends(), self.usual()
        for block in sorted(usual):
            if any(a.flags & FAKE for a in out[block]) or len(out[block]) < 2 or not self.lines.get(block):
                continue
            yield *self.lines[block][-1], [arc.count or 0 for arc in out[block]]

    def executed(self) -> Iterator[tuple[str, int, int]]:
        """Yields (file, line, count) for each line of each block."""
        times: dict[int, int] = defaultdict(int)
        for arc in self.arcs:
            times[arc.end if arc.end != EXIT else -1] += arc.count or 0
        for block, lines in self.lines.items():
            for file, line in lines:
                yield file, line, times[block]


class Bytes:
    """A reader of consecutive numbers and strings."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 0

    def word(self) -> int:
        self.at += 4
        return int(struct.unpack_from("<I", self.data, self.at - 4)[0])

    def string(self) -> str:
        length = self.word()
        self.at += length
        return self.data[self.at - length : self.at].rstrip(b"\0").decode()

    def records(self) -> Iterator[tuple[int, int]]:
        """Yields (tag, length) of each record; bytes that its reader has not consumed are skipped."""
        while self.at + 8 <= len(self.data):
            tag, length = self.word(), struct.unpack("<i", struct.pack("<I", self.word()))[0]
            if tag == 0:
                return
            end = self.at + max(0, length)
            yield tag, length
            self.at = end


def functions(notes: Path) -> list[Function]:
    """Returns the functions of a source with their counts."""
    given = Bytes(notes)
    given.at = 16
    given.string()
    given.word()
    found: dict[int, Function] = {}
    own = Function()
    for tag, length in given.records():
        end = given.at + length
        if tag == FUNCTION:
            ident = given.word()
            given.at += 8
            given.string()
            own = found[ident] = Function(artificial=bool(given.word()))
            given.string()
            own.start = (given.word(), given.word())
        elif tag == ARCS:
            begin = given.word()
            while given.at < end:
                own.arcs.append(Arc(begin, given.word(), given.word()))
        elif tag == LINES:
            block, file = given.word(), ""
            while given.at < end:
                if line := given.word():
                    own.lines.setdefault(block, []).append((file, line))
                elif name := given.string():
                    file = name
    counts = Bytes(notes.with_suffix(".gcda"))
    counts.at = 16
    ident = 0
    for tag, length in counts.records():
        if tag == FUNCTION and length:
            ident = counts.word()
        elif tag == COUNTERS and ident in found:
            counted = [arc for arc in found[ident].arcs if not arc.flags & ON_TREE]
            values = struct.unpack_from(f"<{length // 8}q", counts.data, counts.at) if length > 0 else ()
            for arc, value in zip(counted, values or [0] * len(counted), strict=True):
                arc.count = value
    for function in found.values():
        for arc in function.arcs:
            if arc.count is None and not arc.flags & ON_TREE:
                arc.count = 0
        function.solve()
    return [f for f in found.values() if not f.artificial]


@dataclass
class Counts:
    """Coverage of one source: executions of each line and each branch."""

    lines: dict[int, int] = field(default_factory=dict)
    branches: dict[tuple[int, tuple[int, int], int, int], int] = field(default_factory=dict)
    """Counts by line, function, block within the function on that line, and exit.

    Instances of a template count as one function.
    """

    def missing(self) -> dict[int, list[str]]:
        """Returns the lines with a branch that was never taken, with the counts of the line's branches."""
        found: dict[int, list[str]] = defaultdict(list)
        for (line, *_), count in sorted(self.branches.items()):
            found[line].append(str(count))
        return {line: counts for line, counts in found.items() if "0" in counts}


def counts_of(notes: Iterable[Path], file: str) -> Counts:
    """Returns the sum over several builds for the source of that name, with or without folders."""
    found = Counts()
    for path in notes:
        for function in functions(path):
            for source, line, count in function.executed():
                if Path(source).match(file):
                    found.lines[line] = found.lines.get(line, 0) + count
            on_line: dict[int, int] = defaultdict(int)
            for source, line, ways in function.branches():
                if not Path(source).match(file):
                    continue
                block = on_line[line]
                on_line[line] += 1
                for way, count in enumerate(ways):
                    key = (line, function.start, block, way)
                    found.branches[key] = found.branches.get(key, 0) + count
    return found
