"""The guard: one home, one worker; one claim, one commitment."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.protocol.errors import DoctorError, GuardRefused
from lockstep.protocol.types import Cid, ClaimId, Digest, TraceRoot
from worker.guard import FILE_NAME, Bound, Guard

CLAIM = ClaimId(b"c" * 32)
BOUND = Bound(TraceRoot(b"t" * 32), Digest(b"o" * 32), Digest(b"p" * 32), b"n" * 32, Cid("bafytrace"), Cid("bafypay"))


def test_a_claim_is_bound_once_and_for_all(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        assert guard.bound(CLAIM) is None, "nothing is promised yet"
        assert guard.bind(CLAIM, BOUND) == BOUND
        for other in ("trace_root", "out", "out2"):
            with pytest.raises(GuardRefused) as refused:
                guard.bind(CLAIM, replace(BOUND, **{other: b"x" * 32}))
            assert refused.value.exit_code == 8
        assert guard.bound(CLAIM) == BOUND, "a refusal changes nothing"


def test_the_promise_outlives_the_process_and_keeps_its_first_nonce(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        guard.bind(CLAIM, BOUND)
    with Guard(tmp_path) as guard:
        assert guard.bind(CLAIM, replace(BOUND, nonce=b"m" * 32)).nonce == BOUND.nonce
        with pytest.raises(GuardRefused):
            guard.bind(CLAIM, replace(BOUND, out=Digest(b"x" * 32)))


def test_a_second_worker_in_the_same_home_is_refused(tmp_path: Path) -> None:
    with Guard(tmp_path), pytest.raises(GuardRefused) as refused:
        Guard(tmp_path)
    assert refused.value.code == "guard_refused.locked"
    Guard(tmp_path).close()


def test_a_killed_process_leaves_its_row_and_frees_the_lock(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.unit.worker.test_guard import *\n"
        "Guard(Path(sys.argv[1])).bind(CLAIM, BOUND); os.kill(os.getpid(), signal.SIGKILL)"
    )
    code = "import sys; sys.path.insert(0, '.')\n" + script
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env=os.environ, timeout=60)
    assert done.returncode == -9, "the child killed itself after binding"
    with Guard(tmp_path) as guard:
        assert guard.bound(CLAIM) == BOUND


def test_a_damaged_memory_stops_the_worker(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(DoctorError):
        Guard(tmp_path)
