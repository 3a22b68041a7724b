"""The documents' journeys, run as a reader would: in an empty folder, in order, against a market of this machine.

A journey's commands must end with exit code 0 and print what the document shows, but for numbers, ids and times. A
command that stays up must print the text that its mark names, and end with exit code 0 or 130 when it is told to.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.documents import Stage
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROOT = Path(__file__).resolve().parents[2]
ID = {"JOB": re.compile(r"^([0-9a-f]{64})$", re.MULTILINE), "CLAIM": re.compile(r'"claim": "([0-9a-f]{64})"')}
"""Where a reader finds what a document calls JOB and CLAIM."""


@dataclass
class Reader:
    """Somebody who types what a page says."""

    folder: Path
    printed: str = ""
    """By all commands so far."""
    beside: list[tuple[str, subprocess.Popen[str]]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        return {
            **kept, "HOME": str(self.folder / "home"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LOCKSTEP_CACHE": str(self.folder / "cache"), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def start(self, command: str) -> subprocess.Popen[str]:
        """The command, with the ids that were printed before. A terminal shows both streams, and so does its pipe."""
        for name, shown in ID.items():
            if re.search(rf"\b{name}\b(?!\.)", command):
                found = shown.findall(self.printed)
                assert found, f"{command}: nothing printed a {name} before"
                command = re.sub(rf"\b{name}\b(?!\.)", found[-1], command)
        return subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder / "work", env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, stage: Stage) -> str:
        """What the commands of a block print; one that has an `until` goes on beside the next ones."""
        out = ""
        for command in self._commands(stage):
            process = self.start(command)
            if stage.until is not None:
                said = self._wait(process, command, stage.until)
            else:
                try:
                    said, _ = process.communicate(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
                assert process.returncode == 0, f"{stage.block.where}: {command}\n{said}"
            self.printed += said
            out += said
        return out

    def _commands(self, stage: Stage) -> list[str]:
        """The commands of a block; a snippet of Python is a file that is run."""
        if not documents.is_python(stage.block):
            return stage.block.commands
        (self.folder / "work/snippet.py").write_text(stage.block.text)
        return ["python snippet.py"]

    def _wait(self, process: subprocess.Popen[str], command: str, text: str) -> str:
        self.beside.append((command, process))
        timer = threading.Timer(PATIENCE, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.start()
        out = ""
        assert process.stdout is not None
        for line in process.stdout:
            out += line
            if text in line:
                timer.cancel()
                threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
                return out
        timer.cancel()
        raise AssertionError(f"{command} ended with {process.wait()} and printed no {text}\n{out}")

    def leave(self) -> list[str]:
        """End what still runs as Ctrl-C does; what did not end well."""
        bad = []
        for command, process in self.beside:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT if " watch " in command else signal.SIGTERM)
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            if code not in (0, 130):
                bad.append(f"{command} ended with {code}")
        return bad


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    reader = Reader(tmp_path)
    yield reader
    reader.leave()
    down = reader.start("lockstep local down")
    down.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("name", documents.journeys(ROOT))
def test_a_journey_goes_as_the_document_says(reader: Reader, name: str) -> None:
    stages = documents.journeys(ROOT)[name]
    for stage in stages:
        out = reader.run(stage)
        lost = documents.missing(stage.prints, out)
        assert lost == [], f"{stage.block.where}: the document shows what was not printed\n{out}"
    bad, reader.beside = reader.leave(), []
    assert bad == []
