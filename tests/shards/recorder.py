"""A pytest plugin: writes what became of each test as it ends, a line of JSON each; leaves out what passed before."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

OUTCOMES = "LOCKSTEP_OUTCOMES"
"""The file that a process appends its lines to."""
PASSED = "LOCKSTEP_PASSED"
"""A file of such lines, of which those that passed are not run again."""


@dataclass(frozen=True)
class Outcome:
    """How a test ended: `passed`, `failed` or `skipped`, and the seconds with set-up and teardown."""

    test: str
    outcome: str
    seconds: float
    processor: float = 0.0
    """Processor seconds of its process, all threads, and of the children that ended meanwhile."""


def read(path: Path) -> Iterator[Outcome]:
    """The outcomes of a file. A last line that was cut off is none."""
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            yield Outcome(**json.loads(line))


def processor_seconds() -> float:
    """The processor time of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Recorder:
    """Appends to `path`: a process that dies leaves what ended before."""

    def __init__(self, path: Path):
        self.path = path
        self.outcome = ""
        self.seconds = 0.0
        self.processor = processor_seconds()

    def write(self, test: str, outcome: str, seconds: float) -> None:
        """One line; the processor time since the last one is this test's."""
        before, self.processor = self.processor, processor_seconds()
        ended = Outcome(test, outcome, round(seconds, 3), round(self.processor - before, 3))
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(ended)) + "\n")

    def pytest_collection_finish(self) -> None:
        """Imports are no test's."""
        self.processor = processor_seconds()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of set-up, call and teardown is the test's."""
        self.seconds += report.duration
        if report.failed or not self.outcome or (report.skipped and self.outcome == "passed"):
            self.outcome = report.outcome
        if report.when == "teardown":
            self.write(report.nodeid, self.outcome, self.seconds)
            self.outcome, self.seconds = "", 0.0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails as a test does."""
        if report.failed:
            self.write(report.nodeid, "failed", 0.0)


def pytest_configure(config: pytest.Config) -> None:
    """Records where the environment says so."""
    if path := os.environ.get(OUTCOMES):
        config.pluginmanager.register(Recorder(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has passed."""
    if path := os.environ.get(PASSED):
        passed = {o.test for o in read(Path(path)) if o.outcome == "passed"}
        left_out = [item for item in items if item.nodeid in passed]
        items[:] = [item for item in items if item.nodeid not in passed]
        config.hook.pytest_deselected(items=left_out)
