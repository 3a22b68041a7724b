"""What is remembered, and that one home has one verifier."""

from pathlib import Path

import pytest

from lockstep.protocol.errors import DoctorError
from lockstep.protocol.types import ClaimId, TraceRoot
from verifier.memory import FILE_NAME, Memory

CLAIM, ROOT, OTHER = ClaimId(b"\1" * 32), TraceRoot(b"\2" * 32), TraceRoot(b"\3" * 32)


def test_matches_are_kept_by_claim_and_trace_root_across_restarts(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        assert not memory.matched(CLAIM, ROOT)
        memory.remember(CLAIM, ROOT)
        memory.remember(CLAIM, ROOT)
    with Memory(tmp_path) as memory:
        assert memory.matched(CLAIM, ROOT)
        assert not memory.matched(CLAIM, OTHER), "the same id on another chain is another claim"


def test_second_verifier_in_one_home_is_refused(tmp_path: Path) -> None:
    with Memory(tmp_path), pytest.raises(DoctorError, match="another verifier") as refused:
        Memory(tmp_path)
    assert refused.value.hint
    Memory(tmp_path).close()


def test_damaged_memory_is_named_and_the_home_stays_free(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, and long enough to be looked at" * 40)
    with pytest.raises(DoctorError, match=FILE_NAME):
        Memory(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    Memory(tmp_path).close()
