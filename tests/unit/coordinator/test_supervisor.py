"""Children live as long as their parent, no longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psutil
import pytest

from coordinator.supervisor import listen
from lockstep.protocol.errors import DoctorError
from tests.support.waiting import PATIENCE, wait

pytestmark = pytest.mark.slow

PARENT = """
import json, sys
from fastapi import FastAPI
from coordinator import supervisor
app = FastAPI()
sock = supervisor.listen("127.0.0.1", 0)
sleep = "from coordinator.queue import end_with_parent; end_with_parent(); import time; time.sleep(600)"
child = [sys.executable, "-c", sleep]
supervisor.run(app, sock, {"one": child, "two": child}, {},
               lambda: print(json.dumps({"event": "ready", "port": sock.getsockname()[1]}), flush=True))
print(json.dumps({"event": "stopped"}), flush=True)
"""


STREAMING = """
import json, sys
from pathlib import Path
from coordinator import supervisor
from coordinator.api import create_app
from coordinator.db import Database
from lockstep.runtime import logs
from lockstep.storage import open_store
from tests.support.pages import Seeded
logs.configure()
folder = Path(sys.argv[1])
(folder / "store").mkdir()
database = Database(f"sqlite:///{folder / 'index.sqlite'}")
database.migrate()
app = create_app(Seeded(database, open_store(f"dir://{folder / 'store'}"), folder).context())
sock = supervisor.listen("127.0.0.1", 0)
supervisor.run(app, sock, {}, {}, lambda: print(sock.getsockname()[1], flush=True), app.state.stream.close)
"""


@pytest.mark.slow
def test_sigterm_ends_open_streams_at_once_and_no_error_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as err:
        server = subprocess.Popen(
            [sys.executable, "-c", STREAMING, str(tmp_path)], stdout=subprocess.PIPE, stderr=err, text=True
        )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/api/v1/stream"
        with ExitStack() as stack:
            client = stack.enter_context(httpx2.Client(timeout=20))
            open_ones = [stack.enter_context(client.stream("GET", url)) for _ in range(5)]
            assert [answer.status_code for answer in open_ones] == [200] * 5
            server.send_signal(signal.SIGTERM)
            for answer in open_ones:
                # A stream that is cut off raises: its last chunk is missing.
                assert b"".join(answer.iter_raw()) == b"retry: 3000\n\n"
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.wait()
    # What was waited for in vain would have been cut off, which is logged as an error.
    assert {json.loads(line)["level"] for line in log.read_text().splitlines()} == {"info"}, log.read_text()


@pytest.fixture
def parent():  # type: ignore[no-untyped-def]
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "ready"
    yield process
    process.kill()
    process.wait()


def _children(pid: int, count: int) -> list[psutil.Process]:
    wait(lambda: len(psutil.Process(pid).children()) == count, "children")
    return psutil.Process(pid).children()


def _runs(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_sigterm_leaves_no_child_and_exits_zero(parent: subprocess.Popen[str]) -> None:
    children = _children(parent.pid, 2)
    assert len(children) == 2
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE) == 0
    assert [c for c in children if c.is_running()] == []
    assert parent.stdout is not None
    assert json.loads(parent.stdout.read())["event"] == "stopped"


@pytest.mark.slow
def test_a_killed_parent_takes_its_children_along(parent: subprocess.Popen[str]) -> None:
    children = _children(parent.pid, 2)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _gone, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert alive == []


def test_a_dead_child_is_started_again(parent: subprocess.Popen[str]) -> None:
    first = {c.pid for c in _children(parent.pid, 2)}
    victim = min(first)
    os.kill(victim, signal.SIGKILL)

    def running() -> set[int]:
        return {c.pid for c in psutil.Process(parent.pid).children() if _runs(c)}

    wait(lambda: len(running() - {victim}) == 2, "another child")
    assert victim not in running()


def test_a_taken_port_is_a_doctors_error() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(DoctorError, match="cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
