"""The lock: one home, one process, until it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.protocol.errors import GuardRefused
from lockstep.runtime.guard import lock

HOLD = """
import sys, time
from pathlib import Path
from lockstep.runtime.guard import lock
with lock.held(Path(sys.argv[1]), "worker"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_holds_the_home(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(GuardRefused, match=rf"another worker \(process {holder.pid}\)") as refused:
            lock.held(tmp_path, "coordinator").__enter__()
        assert (refused.value.code, refused.value.exit_code) == ("guard_refused.locked", 8)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock.held(tmp_path, "coordinator"):
            pass
    finally:
        holder.kill()
        holder.wait()


def test_one_process_cannot_hold_a_home_twice(tmp_path: Path) -> None:
    with lock.held(tmp_path, "worker"):
        with pytest.raises(GuardRefused), lock.held(tmp_path, "worker"):
            pass
        with pytest.raises(GuardRefused), lock.held(tmp_path, "guard command"):
            pass
    with lock.held(tmp_path, "worker"):
        pass
