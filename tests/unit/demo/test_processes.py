"""Child processes of the demo: read, named when they fail, never left behind, told no secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lockstep.demo.processes import Group
from lockstep.protocol.errors import LockstepError, TryLater
from tests.support.waiting import PATIENCE, wait

pytestmark = pytest.mark.slow


def serve(folder: Path) -> list[str]:
    """A `lockstep` program that serves until it is told to end."""
    return ["storage", "serve", "--home", str(folder / "blocks")]


def gone(pid: int) -> bool:
    """True if a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_is_read_told_only_what_it_needs_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    heard: list[tuple[str, str]] = []
    with Group(tmp_path / "logs", lambda name, event: heard.append((name, event["event"]))) as group:
        child = group.start("store", serve(tmp_path), {"GIVEN": "yes"})
        ready = child.wait_for("ready", PATIENCE)
        assert ready["url"].startswith("http://127.0.0.1:")
        assert child.named("ready") == [ready]
        assert heard == [("store", "ready")]
        told = psutil.Process(child.popen.pid).environ()
        assert (told["GIVEN"], told["OMP_NUM_THREADS"]) == ("yes", "1")
        assert not {"SECRET_TOKEN"} & set(told)
        group.check()
        with pytest.raises(TryLater, match=r"store.*merged"):
            child.wait_for("merged", 0.2)
        assert child.running
    assert not child.running
    assert child.popen.returncode == 0, "it was asked to end, and did"
    group.check()


def test_a_child_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    with Group(tmp_path / "logs") as group:
        child = group.start("store", ["storage", "serve", "--port", "70000"])
        with pytest.raises(LockstepError, match=r"store ended with exit code 2 before `ready`.*--port") as failed:
            child.wait_for("ready", PATIENCE)
        assert str(child.log) in failed.value.hint
        with pytest.raises(LockstepError, match="store ended with exit code 2"):
            group.check()


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    # Python runs a sitecustomize.py of its path at every start: this child leaves a grandchild behind.
    (tmp_path / "sitecustomize.py").write_text(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
    )
    with Group(tmp_path / "logs") as group:
        group.start("store", serve(tmp_path), {"PYTHONPATH": str(tmp_path)}).wait_for("ready", PATIENCE)
        pid = int((tmp_path / "pid").read_text())
        assert psutil.pid_exists(pid)
    wait(lambda: gone(pid), "the end of the grandchild")


@pytest.mark.skipif(sys.platform != "linux", reason="children notice the death of their parent on Linux alone")
def test_a_parent_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path; from lockstep.demo.processes import Group\n"
        f"child = Group(Path({str(tmp_path)!r})).start('store', {serve(tmp_path)!r})\n"
        f"child.wait_for('ready', {PATIENCE}); print(child.popen.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    wait(lambda: gone(int(done.stdout)), "the end of the child")
