"""Runs thousands of cases in processes that may crash; counts cases and collects failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

import psutil

from tests.differ.trial import EQUAL, NOTHING

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out/differ"
MOST_SECONDS = 300.0
"""Time limit of one case in processor seconds; a longer case counts as hung."""
MOST_WAITING = 3600.0
"""Time limit of one case in seconds on a busy machine."""
ENVIRONMENT = {"MALLOC_PERTURB_": "128", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": "1"}
"""Environment in which allocated and freed memory is overwritten, and waiting threads release the processor."""


@dataclass(frozen=True)
class Failure:
    """A case with wrong bits."""

    name: str
    said: str
    """The difference, or how the process ended."""
    after: float
    """Seconds since the start of the run."""


@dataclass
class Hunt:
    """Result of a run."""

    cases: Counter[str] = field(default_factory=Counter)
    """Number of cases by kind."""
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0
    after: int = 0
    """Number of the case at which a further run continues: all earlier ones have run."""


class Worker:
    """One process, with the case that it last reported."""

    def __init__(self, command: list[str], environment: dict[str, str], at: int, heard: Queue[tuple[Worker, str]]):
        self.at, self.name, self.began, self.spent, self.killed = at, "", 0.0, 0.0, False
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.complaints: list[str] = []
        self._complaining = threading.Thread(target=self._complain, daemon=True)
        self._complaining.start()
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: Queue[tuple[Worker, str]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            heard.put((self, line))
        heard.put((self, ""))

    def _complain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints = [*self.complaints[-200:], line.rstrip()]

    def begin(self, at: int, name: str) -> None:
        """Records the next case of the process."""
        self.at, self.name, self.began, self.spent = at, name, time.monotonic(), self._processor_time()

    def kill_if_late(self) -> None:
        """Kills the process if it takes too long for one case."""
        busy, passed = self._processor_time() - self.spent, time.monotonic() - self.began
        if self.name and (busy > MOST_SECONDS or passed > MOST_WAITING):
            self.killed = True
            self.process.kill()

    def _processor_time(self) -> float:
        try:
            taken = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return self.spent
        return float(taken.user + taken.system + taken.children_user + taken.children_system)

    def ending(self) -> str:
        """Describes how the process ended."""
        code = self.process.wait()
        self._complaining.join(5)
        said = [line for line in self.complaints if line.strip()]
        chosen = [line for line in said if "ERROR: AddressSanitizer" in line or "runtime error" in line]
        return f"the process ended with {code}: {(chosen or said[-1:] or ['it said nothing'])[0][:300]}"


def hunt(
    kinds: list[str],
    *,
    cases: int | None = None,
    seconds: float | None = None,
    jobs: int = 2,
    most_failures: int = 1 << 30,
    kernels: Path | None = None,
    environment: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
    first: int = 0,
    told: Callable[[Failure], None] = lambda failure: None,
) -> Hunt:
    """Runs cases of these kinds until a number of cases, seconds or failures is reached, or Ctrl-C."""
    began, found, heard = time.monotonic(), Hunt(), Queue[tuple[Worker, str]]()
    deadline = began + seconds if seconds is not None else float("inf")
    # The caller's coverage measurement does not extend to these processes.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    around = kept | ENVIRONMENT | (environment or {})

    def started(at: int) -> Worker:
        command = [sys.executable, "-m", "tests.differ.worker", ",".join(kinds), str(at), str(jobs), *options]
        command += ["--cases", str(first + cases)] if cases is not None else []
        command += ["--seconds", str(max(0.0, deadline - time.monotonic()))] if seconds is not None else []
        command += ["--kernels", str(kernels)] if kernels is not None else []
        return Worker(command, around, at, heard)

    def failed(name: str, said: str) -> None:
        failure = Failure(name, said, time.monotonic() - began)
        found.failures.append(failure)
        told(failure)

    running, looked, ended = [started(first + job) for job in range(jobs)], began, first
    try:
        while running and len(found.failures) < most_failures:
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                for worker in running:
                    worker.kill_if_late()
            try:
                worker, line = heard.get(timeout=1)
            except Empty:
                continue
            if not line:
                ending = f"no end within {MOST_SECONDS:.0f} s" if worker.killed else worker.ending()
                running.remove(worker)
                if worker.process.wait() == 0:
                    ended = max(ended, worker.at + 1)
                    continue
                if not worker.name:
                    raise RuntimeError(f"a worker ends between two cases: {worker.complaints[-30:]}")
                found.cases[worker.name.partition(":")[0]] += 1
                failed(worker.name, ending)
                running.append(started(worker.at + jobs))
                continue
            message = json.loads(line)
            if "begin" in message:
                worker.begin(message["begin"], message["name"])
                continue
            worker.name = ""
            if message["said"] != NOTHING:
                found.cases[message["name"].partition(":")[0]] += 1
            if message["said"] not in (EQUAL, NOTHING):
                failed(message["name"], message["said"])
    except KeyboardInterrupt:
        pass
    finally:
        found.after = min((worker.at for worker in running), default=ended)
        for worker in running:
            worker.process.kill()
            worker.process.wait()
    found.seconds = time.monotonic() - began
    return found
