"""A backup holds what no chain gives back; restored whole or not at all, whatever is killed, damaged or of another."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from coordinator import backup
from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.models import AnnouncementRow, ClaimRow, EventRow, JobRow, ReceiptRow, RoundRow, SignedClaimRow
from coordinator.nonces import Nonces
from lockstep.chain.keys import KEYSTORE, NODE_KEY, account_address, create_account
from lockstep.protocol.errors import AuthError, DoctorError, GuardRefused, LockstepError, Mismatch, UsageError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, Seconds, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard.memory import GuardMemory, RecordKey, Scope, SigningRecord
from lockstep.runtime.identity import NodeKey
from tests.support.world import World

from .conftest import CHAIN_ID, JOB, MARKET, WORKER

WHERE = (CHAIN_ID, MARKET)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home at work: key, node key, two promises, a used nonce."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    create_account(home / KEYSTORE, "right", bytes([1]) * 32, work=2)
    NodeKey.open(home / NODE_KEY)
    with GuardMemory(home, scope(home)) as memory:
        for n in range(2):
            memory.bind(*promise(n))
        memory.trust()
    nonces = Nonces(home / "nonces.sqlite")
    nonces.use_nonce(Address(WORKER.address), b"n" * 16, Seconds(10**10))
    nonces.close()
    return home


def scope(home: Path) -> Scope:
    return Scope(CHAIN_ID, bytes(32), MARKET, account_address(home / KEYSTORE))


def promise(n: int) -> tuple[RecordKey, SigningRecord]:
    word = bytes([n + 1]) * 32
    place = RecordKey(ClaimId(word), Seed(word), StateRoot(word))
    return place, SigningRecord(TraceRoot(word), Digest(word), Digest(word), word, Cid(""), Cid(""))


def add(database: Database, n: int) -> None:
    """A signed claim, its announcement and a receipt."""
    with database.session() as session:
        claim = f"0x{n:064x}"
        body: dict[str, Any] = {"n": n}
        session.add(SignedClaimRow(claim=claim, digest=f"0x{n + 1:064x}", body=body, time=n))
        session.add(AnnouncementRow(claim=claim, worker=WORKER.address, node="0x" + "00" * 32, body=body, time=n))
        session.add(
            ReceiptRow(
                job=JOB, round=n, attempt=0, who=1, account=WORKER.address, mask=str(1 << 63), signature="0x", time=n
            )
        )


def rows(database: Database) -> list[Any]:
    """Everything of the three tables, but for the numbers of arrival."""
    found: list[Any] = []
    with database.reading() as session:
        for kind in backup.TABLES:
            every = (row._asdict() for row in session.execute(select(kind.__table__)))
            found += [(kind.__tablename__, {k: v for k, v in row.items() if k != "id"}) for row in every]
    return sorted(found, key=repr)


def fresh(tmp_path: Path) -> tuple[Path, Database]:
    """Another machine: an empty home, an empty database."""
    other = tmp_path / "other"
    shutil.rmtree(other, ignore_errors=True)
    other.mkdir(mode=0o700)
    database = Database(f"sqlite:///{other / 'index.sqlite'}")
    database.migrate()
    return other, database


def assert_all_there(other: Path, restored: Database, home: Path, before: list[Any]) -> None:
    assert rows(restored) == before
    assert (other / KEYSTORE).read_bytes() == (home / KEYSTORE).read_bytes()
    assert (other / NODE_KEY).read_bytes() == (home / NODE_KEY).read_bytes()
    assert stat.S_IMODE((other / NODE_KEY).stat().st_mode) == 0o600
    with GuardMemory(other, scope(other)) as memory:
        assert memory.records() == [promise(0), promise(1)]
        assert not memory.trusted(), "a restored guard has to listen"
    nonces = Nonces(other / "nonces.sqlite")
    with pytest.raises(AuthError):
        nonces.use_nonce(Address(WORKER.address), b"n" * 16, Seconds(10**10))
    nonces.close()
    assert not (other / backup.RESTORING).exists()


def test_what_is_restored_is_what_was(home: Path, database: Database, tmp_path: Path) -> None:
    for n in range(5):
        add(database, n)
    file = tmp_path / "one.backup"
    kept = backup.back_up(home, database, *WHERE, file)
    assert (kept.files, kept.rows) == (4, 15)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(p.name for p in home.iterdir() if p.name.startswith(".")) == [], "nothing is left in the home"
    other, restored = fresh(tmp_path)
    assert backup.restore(other, restored, *WHERE, file).rows == 15
    assert_all_there(other, restored, home, rows(database))
    restored.close()


def test_after_a_loss_the_chain_gives_the_rest_back(home: Path, tmp_path: Path) -> None:
    """Backed up, destroyed, restored, indexed anew: the index is as it was, and so is what no chain holds."""
    world = World.start()
    world.to(Phase.REVEALING)
    where = (world.contracts.addresses.chain_id, world.contracts.addresses.market)
    before = Database(f"sqlite:///{home / 'index.sqlite'}")
    before.migrate()
    Indexer(before, world.devnet.w3, world.contracts.addresses).catch_up()
    add(before, 1)
    backup.back_up(home, before, *where, tmp_path / "one.backup")
    kept, index = rows(before), indexed(before)
    before.close()
    shutil.rmtree(home)
    home.mkdir(mode=0o700)
    after = Database(f"sqlite:///{home / 'index.sqlite'}")
    after.migrate()
    backup.restore(home, after, *where, tmp_path / "one.backup")
    assert not any(indexed(after).values()), "the backup holds no index"
    Indexer(after, world.devnet.w3, world.contracts.addresses).reindex()
    assert (rows(after), indexed(after)) == (kept, index)
    assert all(index.values()), "events, jobs, rounds and claims"
    after.close()


def indexed(database: Database) -> dict[str, list[Any]]:
    """What comes from the chain."""
    with database.reading() as session:
        return {
            kind.__tablename__: sorted(map(tuple, session.execute(select(kind.__table__))), key=repr)
            for kind in (EventRow, JobRow, RoundRow, ClaimRow)
        }


def test_into_the_database_that_survived_nothing_comes_twice(home: Path, database: Database, tmp_path: Path) -> None:
    add(database, 1)
    file = tmp_path / "one.backup"
    backup.back_up(home, database, *WHERE, file)
    add(database, 2)
    before = rows(database)
    other = tmp_path / "other"
    other.mkdir()
    backup.restore(other, database, *WHERE, file)
    assert rows(database) == before


@pytest.mark.slow
def test_a_backup_under_load_holds_what_was_accepted_before_it(home: Path, database: Database, tmp_path: Path) -> None:
    accepted: list[int] = []
    stop = threading.Event()

    def load() -> None:
        n = 0
        nonces = Nonces(home / "nonces.sqlite")
        while not stop.is_set():
            nonces.use_nonce(Address(WORKER.address), n.to_bytes(16, "big"), Seconds(10**10))
            add(database, n)
            accepted.append(n)
            n += 1
        nonces.close()

    writer = threading.Thread(target=load)
    writer.start()
    try:
        for number in range(3):
            while len(accepted) < 10 * (number + 1):
                pass
            sure = len(accepted)
            file = tmp_path / f"{number}.backup"
            backup.back_up(home, database, *WHERE, file)
            other, restored = fresh(tmp_path)
            backup.restore(other, restored, *WHERE, file)
            with restored.reading() as session:
                claims = session.scalars(select(SignedClaimRow.body).order_by(SignedClaimRow.id)).all()
            assert [c["n"] for c in claims] == list(range(len(claims))), "no gap, in the order of arrival"
            assert len(claims) >= sure, "whatever was accepted before is there"
            with closing(sqlite3.connect(other / "nonces.sqlite")) as nonces:
                (used,) = nonces.execute("SELECT count(*) FROM used").fetchone()
            assert used > len(claims), "the nonce of everything that is there is used"
            restored.close()
    finally:
        stop.set()
        writer.join()


@pytest.mark.slow
def test_killed_at_every_step_it_goes_on_or_nothing_happened(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Database(f"sqlite:///{tmp_path / 'origin.sqlite'}")
    origin.migrate()
    for n in range(3):
        add(origin, n)
    file, before = tmp_path / "one.backup", rows(origin)
    backup.back_up(home, origin, *WHERE, file)
    steps = 0
    while True:
        other, restored = fresh(tmp_path)
        restored.close()
        child = os.fork()
        if child == 0:
            _die_at(steps, partial(backup.restore, other, restored, *WHERE, file))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        steps += 1
        if (other / backup.RESTORING / backup.MANIFEST).exists():
            with pytest.raises(DoctorError, match="cut off"):
                backup.require_whole(other)
        else:
            # Either nothing of it is there, or all of it.
            assert (other / KEYSTORE).exists() == (other / "guard.sqlite").exists()
        if not (other / "guard.sqlite").exists() or (other / backup.RESTORING / backup.MANIFEST).exists():
            backup.restore(other, restored, *WHERE, file)
        shutil.rmtree(other / backup.RESTORING, ignore_errors=True)
        assert_all_there(other, restored, home, before)
        restored.close()
    assert steps > 25, "every rename, write, fsync and commit"
    origin.close()


def test_a_backup_killed_at_any_step_leaves_no_copy_of_a_key_once_another_one_is_made(
    home: Path, tmp_path: Path
) -> None:
    origin = Database(f"sqlite:///{tmp_path / 'origin.sqlite'}")
    origin.migrate()
    add(origin, 1)
    target, steps, left = tmp_path / "backups", 0, 0
    target.mkdir()
    file, kept = target / "one.backup", {path.name for path in home.iterdir()} | {backup.LOCK}
    while True:
        child = os.fork()
        if child == 0:
            _die_at(steps, partial(backup.back_up, home, origin, *WHERE, file))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        steps += 1
        left += len(list(home.glob(f"{backup.SCRATCH}*"))) + len(list(target.glob(".*.part")))
        file.unlink(missing_ok=True)
        backup.back_up(home, origin, *WHERE, file)
        # SQLite's own files stay as long as nobody opens the home again.
        assert {path.name for path in home.iterdir() if path.suffix not in (".sqlite-wal", ".sqlite-shm")} == kept
        assert list(target.iterdir()) == [file]
        file.unlink()
    assert steps > 5
    assert left > 5, "a kill leaves copies"
    origin.close()


def test_a_backup_waits_for_the_one_that_is_being_made(home: Path) -> None:
    with backup._scratch(home) as first:
        (first / KEYSTORE).touch()
        entered: list[bool] = []

        def second() -> None:
            with backup._scratch(home):
                entered.append(first.exists())

        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        assert (entered, (first / KEYSTORE).exists()) == ([], True), "a living one keeps its copies"
    waiting.join(20)
    assert entered == [False]


def _die_at(step: int, work: Any) -> None:
    """Run in a child that is gone, with nothing cleaned up, at its step-th system call of these."""
    left = step

    def counted(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*args, **more)

        return call

    try:
        for name in ("replace", "unlink", "fsync", "open", "mkdir", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        backup._load = counted(backup._load)  # type: ignore[assignment]
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.fixture
def file(home: Path, tmp_path: Path) -> Path:
    origin = Database(f"sqlite:///{tmp_path / 'origin.sqlite'}")
    origin.migrate()
    add(origin, 1)
    backup.back_up(home, origin, *WHERE, tmp_path / "one.backup")
    origin.close()
    return tmp_path / "one.backup"


def test_a_damaged_file_is_refused_wherever_it_is_damaged(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    other, restored = fresh(tmp_path)
    damaged = tmp_path / "damaged"
    cases = [whole[:at] for at in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    cases += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(40, len(whole), len(whole) // 60)]
    refused = 0
    for case in cases:
        damaged.write_bytes(case)
        try:
            backup.restore(other, restored, *WHERE, damaged)
        except (Mismatch, UsageError) as error:
            refused += bool(error.hint)
            assert not (other / KEYSTORE).exists(), "nothing is restored"
            continue
        # A bit of a zip that names no content: a date, an attribute. The contents are whole.
        assert (other / KEYSTORE).exists()
        restored.close()
        other, restored = fresh(tmp_path)
    assert refused > len(cases) // 2
    restored.close()


def test_another_chains_another_accounts_and_a_home_with_a_guard_are_refused(
    file: Path, home: Path, tmp_path: Path
) -> None:
    other, restored = fresh(tmp_path)
    refusals: list[tuple[type[LockstepError], tuple[int, Address]]] = [
        (Mismatch, (5, MARKET)), (Mismatch, (CHAIN_ID, Address("0x" + "99" * 20))),
    ]  # fmt: skip
    for error, where in refusals:
        with pytest.raises(error):
            backup.restore(other, restored, *where, file)
    create_account(other / KEYSTORE, "right", bytes([2]) * 32, work=2)
    with pytest.raises(UsageError, match="another account"):
        backup.restore(other, restored, *WHERE, file)
    with pytest.raises(GuardRefused):
        backup.restore(home, restored, *WHERE, file)
    with pytest.raises(UsageError, match="exists"):
        backup.back_up(home, restored, *WHERE, file)
    for name in ("none", "text"):
        (tmp_path / "text").write_text("no zip")
        with pytest.raises((UsageError, Mismatch)):
            backup.restore(other, restored, *WHERE, tmp_path / name)
    restored.close()
