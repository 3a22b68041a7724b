"""kill -9 at any line of the guard loses nothing: whatever was signed was promised, and stays promised."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from lockstep.protocol.errors import GuardRefused
from lockstep.runtime.guard import lock
from lockstep.runtime.guard.memory import GuardMemory
from tests.unit.runtime.guard.promising import CLAIMS, SCOPE, main, place, promise

MOST_LINES = 1000
"""More than the guard's code executes for CLAIMS claims."""


def run(home: Path, kill_at: int) -> tuple[int | None, list[int]]:
    """(exit code, claims that were signed) of a real process that dies at a line."""
    signed = home.with_suffix(".signed")
    process = multiprocessing.get_context("fork").Process(target=main, args=(home, signed, kill_at))
    process.start()
    process.join(60)
    return process.exitcode, [int(n) for n in signed.read_text().split()] if signed.exists() else []


@pytest.mark.slow
def test_a_process_killed_at_any_line_has_promised_what_it_signed(tmp_path: Path) -> None:
    deaths, partly = 0, set()
    for line in range(1, MOST_LINES):
        home = tmp_path / f"home{line}"
        code, signed = run(home, line)
        # The lock died with the process, and the memory opens again.
        with lock.held(home, "worker"), GuardMemory(home, SCOPE) as guard:
            promised = {n for n in range(CLAIMS) if guard.record(place(n)) is not None}
            assert set(signed) <= promised, f"signed {signed}, promised {promised}, killed at line {line}"
            assert len(promised) - len(signed) <= 1, "at most the claim in work was promised and not signed"
            for n in promised:
                assert guard.bind(place(n), promise(n)).nonce == promise(n).nonce, "the first nonce stands"
                with pytest.raises(GuardRefused):
                    guard.bind(place(n), promise(n, trace=b"x"))
        partly.add(len(signed))
        if code == 0:
            break
        assert code == -signal.SIGKILL, f"line {line} ended with {code}"
        deaths += 1
    assert code == 0, "some line is the last"
    assert deaths > 40, f"{deaths} lines of the guard were executed"
    assert partly == {0, 1, 2, 3}, "killed before, between and after the claims"
