"""A job that nobody could defend is refused with what voids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from lockstep.execution import invalidity
from lockstep.execution.invalidity import Undefendable
from lockstep.protocol.errors import LockstepError, Mismatch, ProgramInvalid
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Subject
from lockstep.protocol.programs.rules import Rule
from lockstep.protocol.types import Digest
from lockstep.storage import ContentStore, cid_of_digest, open_store
from lockstep.storage.containers import JobSpec
from tests.support import broken, toyjob
from tests.support.params import amended


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ContentStore]:
    with open_store(f"dir://{tmp_path}/store") as opened:
        yield opened


def test_sound_job_loads(store: ContentStore) -> None:
    params = toyjob.publish(store)
    assert invalidity.load(toyjob.ID, params, store).params == params
    assert invalidity.evidence_against(params, store) is None


def test_broken_job_is_refused_with_the_evidence_against_it(store: ContentStore) -> None:
    params = broken.publish(store)
    with pytest.raises(Undefendable, match="33 instructions") as refused:
        invalidity.load(toyjob.ID, params, store)
    evidence = refused.value.evidence
    assert refused.value.rule == Rule.INSTRUCTION_COUNT
    assert (evidence.subject, evidence.program) == (Subject.OP, defects.STEP)
    assert defects.check(defects.job_of(params), evidence) == Rule.INSTRUCTION_COUNT


def test_program_that_does_not_even_parse_is_proven(store: ContentStore) -> None:
    """What a party cannot decode, it can still show."""
    import dag_cbor

    params = toyjob.publish(store)
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    fields = dict(dag_cbor.decode(store.get(spec.programs["encode"], max_bytes=1 << 20)))  # type: ignore[arg-type]
    fields["ops"] = [bytes(fields["ops"][0]) + b"\0", *fields["ops"][1:]]
    parts = defects.ProgramParts(fields["header"], tuple(fields["ops"]))
    spec = replace(spec, programs={**spec.programs, "encode": store.put(dag_cbor.encode(fields))})
    store.put(spec.encode(), codec="dag-cbor")
    params = amended(params, spec_digest=spec.digest, encode_program=Digest(parts.root))
    with pytest.raises(Undefendable) as refused:
        invalidity.load(toyjob.ID, params, store)
    assert refused.value.rule == Rule.DESCRIPTOR_LENGTH


def test_dead_op_is_refused_and_voids_nothing(store: ContentStore) -> None:
    good = toyjob.schedule()
    dead = replace(good.encode.ops[0], cumulative=2 * good.encode.ops[0].cumulative)
    encode = replace(good.encode, ops=(*good.encode.ops, dead))
    params = toyjob.publish(store)
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    spec = replace(spec, programs={**spec.programs, "encode": store.put(broken.encode_program(encode))})
    store.put(spec.encode(), codec="dag-cbor")
    params = amended(params, spec_digest=spec.digest, encode_program=Digest(encode.root))
    with pytest.raises(ProgramInvalid, match="dead") as refused:
        invalidity.load(toyjob.ID, params, store)
    assert not isinstance(refused.value, Undefendable)


def test_another_program_under_the_specs_name_is_a_mismatch(store: ContentStore) -> None:
    params = amended(toyjob.publish(store), step_program=Digest(bytes(32)))
    with pytest.raises(Mismatch, match="Program's root"):
        invalidity.evidence_against(params, store)


WRONG = (None, 5, [], {}, "x", b"x", -1, 1.5, ["x"], {"a": 1})
"""Values of which at least eight are of the wrong type for any field."""


@pytest.mark.parametrize(
    "block",
    [b"\x81" * 200_000 + b"\x80", b"\x01", bytes.fromhex("a1") + b"\x67version\x01", b"\xff", b""],
    ids=["nested", "no map", "another map", "no CBOR", "nothing"],
)
def test_a_spec_that_is_none_is_refused_with_a_reason(store: ContentStore, block: bytes) -> None:
    params = amended(toyjob.publish(store), spec_digest=Digest(sha256(block).digest()))
    store.put_block(block, "dag-cbor")
    with pytest.raises(Mismatch, match="a spec does not parse: "):
        invalidity.load(toyjob.ID, params, store)


def test_a_spec_with_any_field_of_another_type_is_refused_or_read(store: ContentStore) -> None:
    """Whoever writes a spec, a party that reads it goes on: with the job, or without."""
    import dag_cbor

    params = toyjob.publish(store)
    good = dag_cbor.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")))
    assert isinstance(good, dict)
    refused = 0
    for key in good:
        for wrong in WRONG:
            block = dag_cbor.encode({**good, key: wrong})
            store.put_block(block, "dag-cbor")
            try:
                invalidity.load(toyjob.ID, amended(params, spec_digest=Digest(sha256(block).digest())), store)
            except LockstepError:
                refused += 1
    assert refused >= 8 * len(good) - 16, "all but what a model, a strategy and parameters may be"


@pytest.mark.parametrize("part", ["programs", "dataset", "genesis"])
def test_a_job_whose_part_is_nested_beyond_reason_is_refused(store: ContentStore, part: str) -> None:
    params = toyjob.publish(store)
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    deep = b"\x81" * 200_000 + b"\x80"
    if part == "programs":
        spec = replace(spec, programs={**spec.programs, "step": store.put(deep)})
    else:
        # A checkpoint's manifest is read only if it has the length that is due.
        due = len(deep) if part == "dataset" else len(store.fetch_block(spec.genesis))
        cid = store.put_block(deep[-due:], "dag-cbor")
        spec = replace(spec, **{part: cid})  # type: ignore[arg-type]
    store.put(spec.encode(), codec="dag-cbor")
    with pytest.raises(LockstepError, match="does not parse: more than"):
        invalidity.load(toyjob.ID, amended(params, spec_digest=spec.digest), store)
