"""What is remembered, and that one home has one verifier."""

from pathlib import Path

import pytest

from lockstep.protocol.errors import DoctorError, GuardRefused
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market import draws
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.types import AuditId, ClaimId, Digest, StateRoot, TraceRoot
from verifier.journal import FILE_NAME, Journal, Observation
from verifier.witness.enrolling import LINKS

AUDIT = AuditId(b"\7" * 32)
CLAIM, ROOT, OTHER = ClaimId(b"\1" * 32), TraceRoot(b"\2" * 32), TraceRoot(b"\3" * 32)


def test_matches_are_kept_by_claim_and_trace_root_across_restarts(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert not journal.matched(CLAIM, ROOT)
        journal.remember(CLAIM, ROOT)
        journal.remember(CLAIM, ROOT)
    with Journal(tmp_path) as journal:
        assert journal.matched(CLAIM, ROOT)
        assert not journal.matched(CLAIM, OTHER), "the same id on another chain is another claim"


def test_second_verifier_in_one_home_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(GuardRefused, match="another verifier") as refused:
        Journal(tmp_path)
    assert refused.value.hint
    Journal(tmp_path).close()


def test_damaged_journal_is_named_and_the_home_stays_free(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, and long enough to be looked at" * 40)
    with pytest.raises(DoctorError, match=FILE_NAME):
        Journal(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    Journal(tmp_path).close()


def test_a_witness_s_secrets_survive_the_process(tmp_path: Path) -> None:
    secret = b"\5" * 32
    top = draws.chained(Digest(secret), LINKS)
    roots = tuple(StateRoot(keccak(bytes([t]))) for t in range(3))
    proofs = tuple(keccak(bytes([9, k])) for k in range(5))
    leaf = StateLeaf(keccak(b"leaf"), Code(b"header", keccak(b"ops"), keccak(b"consts")), proofs[:2], proofs)
    first = Observation(AUDIT, 2, keccak(b"beacon"), keccak(b"salt"), roots, 2, leaf)
    assert first.state == roots[1]
    with Journal(tmp_path) as journal:
        journal.keep_chain(top, secret)
        assert journal.keep_observation(first) == first
        again = Observation(
            AUDIT, 2, keccak(b"beacon"), keccak(b"another salt"), roots, 3, StateLeaf(keccak(b"another leaf"))
        )
        assert journal.keep_observation(again) == first, "a commitment to the first may be on its way"
    with Journal(tmp_path) as journal:
        assert journal.secret_of(top) == secret
        assert journal.secret_of(Digest(bytes(32))) is None
        assert journal.observation(AUDIT, 2, keccak(b"beacon")) == first
        assert journal.observation(AUDIT, 2, keccak(b"after a reorganisation")) is None
        assert journal.observation(AuditId(bytes(32)), 2, keccak(b"beacon")) is None
