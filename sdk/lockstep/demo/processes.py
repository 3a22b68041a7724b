"""Child processes of the demo: started with a minimal environment, read line by line, and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.chain.devnet import die_with_parent
from lockstep.protocol.errors import LockstepError, TryLater

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
"""The variables that a child inherits: enough to run Python, nothing that could tell it a secret."""


Lie = tuple[str, int]
"""Name and seed of a cheat."""


def command(arguments: Sequence[str], lie: Lie | None = None) -> list[str]:
    """Returns the command that runs `lockstep` with arguments, or its lying double (`lockstep.demo.cheats`)."""
    if lie is None:
        return [sys.executable, "-m", "lockstep.cli.main", *arguments]
    return [sys.executable, "-m", "lockstep.demo.cheats", lie[0], str(lie[1]), *arguments]


@dataclass
class Process:
    """A running program of the market, with the events that it has printed."""

    name: str
    popen: subprocess.Popen[str]
    log: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    _arrivals: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)

    def wait_for(self, event: str, seconds: float) -> dict[str, Any]:
        """Returns the first event of this name; raises LockstepError if the process ends first, TryLater after
        `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for seen in self.events:
                if seen.get("event") == event:
                    return seen
            with contextlib.suppress(queue.Empty):
                if self._arrivals.get(timeout=0.1) is None:
                    raise LockstepError(
                        f"{self.name} ended with exit code {self.popen.wait()} before `{event}`: {self.last_words()}",
                        hint=f"its log is {self.log}",
                    )
        raise TryLater(f"{self.name} did not report `{event}` within {seconds:.0f} s", hint=f"its log is {self.log}")

    def last_words(self) -> str:
        """Returns the end of the process's log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace").strip()[-400:]
        return ""

    def named(self, event: str) -> list[dict[str, Any]]:
        """All events of that name so far."""
        return [e for e in list(self.events) if e.get("event") == event]

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self.popen.poll() is None

    def stop(self, seconds: float = 10.0) -> int:
        """SIGTERM, and SIGKILL to its whole group after `seconds`; returns the exit code."""
        if self.running:
            self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        # what it started itself lives in the same group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        return self.popen.wait()

    def _read(self, on_event: Callable[[str, dict[str, Any]], None] | None) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            event = _event(line)
            if event is None:
                continue
            # INVARIANT: whoever waited for an event knows that on_event was told of it.
            if on_event is not None:
                on_event(self.name, event)
            self.events.append(event)
            self._arrivals.put(event)
        self._arrivals.put(None)


def _event(line: str) -> dict[str, Any] | None:
    """Parses the event in a line of stdout; None if there is none."""
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        return said if isinstance(said, dict) else None
    return None


class Group:
    """All processes of one demo; leaving the `with` block ends them, last started first."""

    def __init__(self, logs: Path, on_event: Callable[[str, dict[str, Any]], None] | None = None) -> None:
        self.logs = logs
        self.on_event = on_event
        self.processes: list[Process] = []
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.stop()

    def start(
        self, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None, lie: Lie | None = None
    ) -> Process:
        """Start the `lockstep` command with a clean environment, stdout read as events, stderr into its log."""
        log = self.logs / f"{name}.log"
        clean = {k: os.environ[k] for k in _KEPT if k in os.environ}
        clean |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        with log.open("ab") as stderr:
            popen = subprocess.Popen(
                command(arguments, lie),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=clean,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        process = Process(name, popen, log)
        threading.Thread(target=process._read, args=(self.on_event,), name=f"read {name}", daemon=True).start()
        self.processes.append(process)
        return process

    def check(self) -> None:
        """Raise LockstepError if a process ended with an error."""
        for process in self.processes:
            code = process.popen.poll()
            if code not in (None, 0):
                raise LockstepError(
                    f"{process.name} ended with exit code {code}: {process.last_words()}",
                    hint=f"its log is {process.log}",
                )
