"""Every store as a place: opened, damaged and killed the same way by each test of the battery."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.storage import ContentStore, open_store
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.kubo import multiaddr_of_url
from lockstep.storage.server import application
from tests.support.serving import Served
from tests.support.waiting import PATIENCE

MAX_BYTES = 8 << 20
"""Of a request to a server."""
SERVE = "from lockstep.cli.storage import storage_app; storage_app()"
WRITE = """
import hashlib, sys
from lockstep.storage import open_store
store = open_store(sys.argv[1])
for number in range(1000):
    seed = f"{sys.argv[2]}-{number}".encode()
    print(store.put(hashlib.shake_256(seed).digest(700_000)), flush=True)
"""


class Place:
    """A store that can be reached, its blocks as files, and the means to lose it."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: Served | None = None
        self.url = home.as_uri().replace("file", "dir", 1)
        if kind == "kubo":
            self._thread = Served(application(DirectoryStore(home), max_bytes=MAX_BYTES))
            self.url = multiaddr_of_url(self._thread.__enter__())

    def start(self) -> None:
        """Serve from a process, on another port."""
        self._end(signal.SIGTERM)
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", "--home", str(self.home), "--max-mib", str(MAX_BYTES >> 20)],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["multiaddr"])

    def open(self) -> ContentStore:
        """A client of its own."""
        return open_store(self.url)

    def block_file(self, cid: str) -> Path:
        """The file that holds a block."""
        (path,) = (self.home / "blocks").glob(f"*/{cid}")
        return path

    def block_files(self) -> list[Path]:
        """The files of all blocks."""
        return sorted((self.home / "blocks").glob("*/*"))

    def lose(self) -> None:
        """Make the store unreachable without deleting what a reader could call missing."""
        if self.kind == "kubo":
            self._end(signal.SIGKILL)
        else:
            self.home.rename(self.home.with_name("unmounted"))

    def kill_while_writing(self, name: str, seconds: float) -> list[str]:
        """Let a process of its own put content, kill -9 whoever writes blocks; returns the CIDs that it was given."""
        if self.kind == "kubo":
            self.start()
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE, self.url, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert writer.stdout is not None
        first = writer.stdout.readline().strip()
        time.sleep(seconds)
        if self.kind == "kubo":
            self._end(signal.SIGKILL)
        else:
            writer.kill()
        rest, _ = writer.communicate(timeout=PATIENCE)
        return [first, *rest.split()]

    def close(self) -> None:
        """End what was started."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self.home, ignore_errors=True)

    def _end(self, number: int) -> None:
        (thread, self._thread), (process, self._process) = (self._thread, None), (self._process, None)
        if thread is not None:
            thread.__exit__(None, None, None)
        if process is not None:
            os.kill(process.pid, number)
            process.wait(timeout=PATIENCE)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(params=["directory", "kubo"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One empty place of each kind."""
    place = Place(request.param, tmp_path / "store")
    yield place
    place.close()
