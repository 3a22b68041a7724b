"""What the processes of a market take of the machine, sampled while they run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

KIB = 1024


def children(root: int) -> set[int]:
    """A process and everything that it started, and what those started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything, also blanks.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found


def shares(pid: int) -> Mapping[str, int]:
    """Bytes of a process's memory by kind, as /proc/PID/smaps_rollup names them; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {name.rstrip(":"): KIB * int(value) for name, value, *_ in fields}


@dataclass
class Sampler:
    """The sum over all processes of their proportional set sizes (PSS), once a second, and its largest value.

    A page that several processes map counts once.
    """

    root: int = field(default_factory=os.getpid)
    seconds: float = 1.0
    peak: int = 0
    """Bytes."""
    at_peak: dict[str, int] = field(default_factory=dict)
    """By process at the peak: its command's last words."""
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.seconds):
            found = {f"{pid} {_command(pid)}": shares(pid).get("Pss", 0) for pid in children(self.root)}
            self.samples += 1
            if (total := sum(found.values())) > self.peak:
                self.peak, self.at_peak = total, found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(words[3:5]) if {"lockstep.cli.main", "lockstep.demo.cheats"} & set(words) else Path(words[0]).name
