"""The memory: one claim, one promise; imports keep the stricter; a copied home is not trusted."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.base.machine import is_full
from lockstep.protocol.errors import DoctorError, GuardRefused, Mismatch, UsageError
from lockstep.protocol.types import Address, Digest, Seed, StateRoot
from lockstep.runtime.guard import interchange
from lockstep.runtime.guard.memory import FILE_NAME, GuardMemory, SigningRecord
from tests.unit.runtime.guard.promising import SCOPE, place, promise

PLACE, PROMISE = place(1), promise(1)
OTHER = promise(1, trace=b"x")


def homes(tmp_path: Path, count: int = 2) -> list[Path]:
    """Folders of several machines."""
    found = [tmp_path / f"home{i}" for i in range(count)]
    for home in found:
        home.mkdir()
    return found


def test_a_claim_is_bound_once_and_for_all(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        assert guard.record(PLACE) is None, "nothing is promised yet"
        assert guard.bind(PLACE, PROMISE) == PROMISE
        for other in ("trace_root", "out", "out2"):
            with pytest.raises(GuardRefused) as refused:
                guard.bind(PLACE, replace(PROMISE, **{other: b"x" * 32}))
            assert refused.value.exit_code == 8
        assert guard.record(PLACE) == PROMISE, "a refusal changes nothing"


def test_the_promise_outlives_the_process_and_keeps_its_first_nonce(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        guard.bind(PLACE, PROMISE)
    with GuardMemory(tmp_path, SCOPE) as guard:
        assert guard.bind(PLACE, replace(PROMISE, nonce=b"m" * 32)).nonce == PROMISE.nonce
        with pytest.raises(GuardRefused):
            guard.bind(PLACE, replace(PROMISE, out=Digest(b"x" * 32)))


def test_what_no_contract_could_punish_is_another_place(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        guard.bind(PLACE, PROMISE)
        redrawn = replace(PLACE, seed=Seed(b"r" * 32))
        assert guard.bind(redrawn, OTHER) == OTHER, "a reorganisation drew another seed"
        rebased = replace(PLACE, base=StateRoot(b"r" * 32))
        assert guard.bind(rebased, OTHER) == OTHER
    for scope in (replace(SCOPE, genesis=b"h" * 32), replace(SCOPE, account=Address("0x" + "33" * 20))):
        with GuardMemory(tmp_path, scope) as guard:
            assert guard.record(PLACE) is None, "other chains and keys are bound to nothing"
            assert guard.bind(PLACE, OTHER) == OTHER


def test_of_two_threads_and_two_files_handles_one_wins(tmp_path: Path) -> None:
    guards = [GuardMemory(tmp_path, SCOPE) for _ in range(4)]
    start, won, lost = threading.Barrier(len(guards)), [], []

    def work(i: int) -> None:
        start.wait()
        try:
            won.append(guards[i].bind(PLACE, promise(1, trace=b"abcd"[i : i + 1])))
        except GuardRefused as error:
            lost.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(guards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)
    assert guards[0].record(PLACE) == won[0]
    for guard in guards:
        guard.close()


def test_an_export_moves_the_promises_and_nothing_else(tmp_path: Path) -> None:
    here, there = homes(tmp_path)
    with GuardMemory(here, SCOPE) as guard:
        guard.bind(PLACE, PROMISE)
        guard.bind(place(2), promise(2))
        text = interchange.dumps(SCOPE, guard.records())
    with GuardMemory(there, SCOPE) as guard:
        assert guard.merge(interchange.loads(text, SCOPE)) == 2
        assert guard.records() == [(PLACE, PROMISE), (place(2), promise(2))]
        assert guard.merge(interchange.loads(text, SCOPE)) == 0, "a second import changes nothing"
        with pytest.raises(GuardRefused):
            guard.bind(PLACE, OTHER)


def test_of_two_memories_that_differ_neither_signs(tmp_path: Path) -> None:
    here, there = homes(tmp_path)
    with GuardMemory(here, SCOPE) as first, GuardMemory(there, SCOPE) as second:
        first.bind(PLACE, PROMISE)
        second.bind(PLACE, OTHER)
        assert second.merge(first.records()) == 1
        for values in (PROMISE, OTHER):
            with pytest.raises(GuardRefused):
                second.bind(PLACE, values)
        torn = second.record(PLACE)
        assert torn is not None
        assert torn.torn
        # Tornness travels, and never heals.
        assert first.merge(second.records()) == 1
        with pytest.raises(GuardRefused):
            first.bind(PLACE, PROMISE)
        assert first.merge([(PLACE, PROMISE)]) == 0
        with pytest.raises(GuardRefused):
            first.bind(PLACE, PROMISE)


def test_an_import_is_taken_in_whole_or_not_at_all(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        entries: list[tuple[object, SigningRecord]] = [(PLACE, PROMISE), ("no place", PROMISE)]
        with pytest.raises(AttributeError):
            guard.merge(entries)  # type: ignore[arg-type]
        assert guard.records() == []


def test_an_import_onto_a_full_disk_says_so_and_takes_nothing_in(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        (pages,) = guard._db.execute("PRAGMA page_count").fetchone()
        guard._db.execute(f"PRAGMA max_page_count = {pages}")
        entries = [(place(i), promise(i)) for i in range(200)]
        with pytest.raises(sqlite3.Error) as full:
            guard.merge(entries)
        assert is_full(full.value)
        assert guard.records() == []


@pytest.mark.parametrize("field", ["chain_id", "genesis", "market", "account"])
def test_an_export_of_another_chain_or_key_is_refused(field: str) -> None:
    other = {
        "chain_id": 1,
        "genesis": b"h" * 32,
        "market": Address("0x" + "44" * 20),
        "account": Address("0x" + "55" * 20),
    }
    text = interchange.dumps(SCOPE, [(PLACE, PROMISE)])
    with pytest.raises(Mismatch, match=field):
        interchange.loads(text, replace(SCOPE, **{field: other[field]}))


@pytest.mark.parametrize(
    ("old", "new"),
    [("lockstep-guard", "other"), ('"version": 1', '"version": 2'), ('"promises"', '"claims"'), ("0x7474", "0x"),
     ('"torn": false', '"torn": 0'), ("{", "["), ('"nonce"', '"salt"')],
)  # fmt: skip
def test_a_file_that_is_no_export_is_refused(old: str, new: str) -> None:
    text = interchange.dumps(SCOPE, [(PLACE, PROMISE)])
    assert old in text
    with pytest.raises(UsageError) as refused:
        interchange.loads(text.replace(old, new, 1), SCOPE)
    assert refused.value.hint


def test_an_export_is_its_owners_alone_and_overwrites_nothing(tmp_path: Path) -> None:
    interchange.save(tmp_path / "export.json", "text")
    assert (tmp_path / "export.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError):
        interchange.save(tmp_path / "export.json", "other")
    assert (tmp_path / "export.json").read_text() == "text"


def test_a_home_is_trusted_once_it_has_listened_and_not_after_an_import(tmp_path: Path) -> None:
    with GuardMemory(tmp_path, SCOPE) as guard:
        assert not guard.trusted(), "a fresh home"
        guard.trust()
    with GuardMemory(tmp_path, SCOPE) as guard:
        assert guard.trusted()
        guard.merge([])
        assert not guard.trusted(), "what the other machine does now is in no file"


def test_a_copied_home_is_not_trusted(tmp_path: Path) -> None:
    here, there = homes(tmp_path)
    with GuardMemory(here, SCOPE) as guard:
        guard.bind(PLACE, PROMISE)
        guard.trust()
    shutil.copytree(here, there, dirs_exist_ok=True)
    with GuardMemory(there, SCOPE) as guard:
        assert not guard.trusted()
        assert guard.record(PLACE) == PROMISE
    with GuardMemory(here, SCOPE) as guard:
        assert guard.trusted(), "the original is"


def test_a_damaged_memory_stops_its_owner(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(DoctorError):
        GuardMemory(tmp_path, SCOPE)
    with pytest.raises(DoctorError):
        GuardMemory(tmp_path / "absent", SCOPE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"promises": [', '"promises": [null, '),
        ('"torn": false', '"torn": 1'),
        ('"metadata": {', '"metadata": 5, "more": {'),
        ('"version": 1', '"version": []'),
        ('"claim": "0x', '"claim": "0x00'),
        ('"trace_cid": "', '"trace_cid": 5, "x": "'),
        ("{", "[" * 100_000),
    ],
)
def test_damaged_exports_are_refused(before: str, after: str) -> None:
    whole = interchange.dumps(SCOPE, [(PLACE, PROMISE)])
    assert before in whole
    with pytest.raises(UsageError):
        interchange.loads(whole.replace(before, after, 1), SCOPE)
