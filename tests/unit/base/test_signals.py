"""A process that is through ends with its own exit code, however often it is told to stop."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: None)

class AtTheEnd:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

# It goes last, when the interpreter has put the handlers back.
import builtins
builtins.kept = AtTheEnd()
{}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "code"), [("", -15), ("from lockstep.base.signals import ignore_stops; ignore_stops()", 0)]
)
def test_a_late_stop_changes_nothing(more: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", LATE.format(more)], capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
