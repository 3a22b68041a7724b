"""Children live as long as their parent, no longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from coordinator.supervisor import listen
from lockstep.protocol.errors import DoctorError

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


@pytest.fixture
def parent():  # type: ignore[no-untyped-def]
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "ready"
    yield process
    process.kill()
    process.wait()


def _children(pid: int, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 10
    while len(children := psutil.Process(pid).children()) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return children


def _runs(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_sigterm_leaves_no_child_and_exits_zero(parent: subprocess.Popen[str]) -> None:
    children = _children(parent.pid, 2)
    assert len(children) == 2
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(15) == 0
    assert [c for c in children if c.is_running()] == []
    assert parent.stdout is not None
    assert json.loads(parent.stdout.read())["event"] == "stopped"


def test_a_killed_parent_takes_its_children_along(parent: subprocess.Popen[str]) -> None:
    children = _children(parent.pid, 2)
    time.sleep(1.5)  # the interpreter of a child must have started to notice
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_a_dead_child_is_started_again(parent: subprocess.Popen[str]) -> None:
    first = {c.pid for c in _children(parent.pid, 2)}
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = {c.pid for c in psutil.Process(parent.pid).children() if _runs(c)}
        if len(now) == 2 and victim not in now:
            break
        time.sleep(0.1)
    assert len(now) == 2
    assert victim not in now


def test_a_taken_port_is_a_doctors_error() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(DoctorError, match="cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
