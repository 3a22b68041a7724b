"""A coordinator's backup: one file of the data that no chain has, made while the coordinator runs, restored atomically.

    backup     of the home: keystore, node key, guard, nonces, outbox; of the database: signed claims, announcements,
               receipts. Everything else is read from the chain again (`reindex`) or computed again.
    restore    staged beside its place, then the database in one transaction, then each file by a rename. After a kill
               the same command continues; `up` refuses a home in between.

The file is a zip with a manifest that holds the digest of every entry and its own. It contains the node's key in plain
text and the staking key as an encrypted keystore, so only its owner may read it (mode 0600).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import inspect, select

from coordinator.db import Database
from coordinator.models import AnnouncementRow, IndexTable, ReceiptRow, SignedClaimRow
from coordinator.nonces import FILE_NAME as NONCES
from lockstep.base.decoding import MAX_FILE_BYTES, U64, from_json, mapping, refusing, table, text, whole
from lockstep.base.files import open_regular, remove_unlocked, sync_folder, written_alone
from lockstep.chain.keys import KEYSTORE, NODE_KEY, account_address
from lockstep.protocol.errors import DoctorError, GuardRefused, Malformed, Mismatch, UsageError
from lockstep.protocol.types import Address
from lockstep.runtime.guard.memory import FILE_NAME as GUARD
from lockstep.runtime.staking import OUTBOX

FORMAT, VERSION = "lockstep-coordinator-backup", 1
MANIFEST = "manifest.json"
RESTORING = "restoring"
"""The folder of a home that is being restored; with a manifest in it the restore has begun to change the home."""
SCRATCH, LOCK = ".backup-", "backup.lock"
"""The prefix of folders with a backup's copies, and the lock file that guards them."""
KEYS = (KEYSTORE, NODE_KEY)
DATABASES = (OUTBOX, NONCES, GUARD)
"""Listed in the order of copying: the guard comes last, so that its copy is the newest."""
TABLES: tuple[type[IndexTable], ...] = (SignedClaimRow, AnnouncementRow, ReceiptRow)
DAMAGED = (zipfile.BadZipFile, KeyError, EOFError, RuntimeError, NotImplementedError, ValueError, zlib.error)
"""The exceptions with which zipfile reports a damaged file."""
HINT = "name the file that `lockstep coordinator backup` wrote"

_MANIFEST = table(
    {
        "format": text(64), "version": whole(0, U64), "chain_id": whole(0, U64), "market": text(64),
        "account": text(64), "entries": mapping(text(64)), "digest": text(64),
    }
)  # fmt: skip


@dataclass(frozen=True)
class BackupOwner:
    """The chain, market and account that a backup belongs to."""

    chain_id: int
    market: Address
    account: Address

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as in the manifest."""
        return {"chain_id": self.chain_id, "market": self.market.lower(), "account": self.account.lower()}


@dataclass(frozen=True)
class Kept:
    """The counts of what a backup holds."""

    files: int
    rows: int
    bytes: int


def back_up(home: Path, database: Database, chain_id: int, market: Address, file: Path) -> Kept:
    """Copies the contents of a home and its database into `file`, while the coordinator may be running.

    Raises UsageError if the file exists, KeyStoreError if the home has no key, DoctorError if it cannot be written.
    """
    whose = BackupOwner(chain_id, market, account_address(home / KEYSTORE))
    if file.exists():
        raise UsageError(f"{file} exists", "a backup overwrites nothing: name another file")
    rows = 0
    with _scratch(home) as copies:
        # INVARIANT: what is promised by a row is in the copy of whatever promised it: that one is copied later.
        for kind in TABLES:
            rows += _dump(database, kind, copies / _entry(kind))
        for name in KEYS:
            if (home / name).exists():
                shutil.copyfile(home / name, copies / name)
        for name in DATABASES:
            if (home / name).exists():
                _copy(home / name, copies / name)
        entries = {each.name: _digest(each) for each in sorted(copies.iterdir())}
        manifest = {"format": FORMAT, "version": VERSION, **whose.to_dict(), "entries": entries}
        _pack(copies, manifest | {"digest": _of(manifest)}, file)
    return Kept(len(entries) - len(TABLES), rows, file.stat().st_size)


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """Provides a folder for the copies of one backup at a time, and removes those of killed processes, which contain
    keys."""
    with (home / LOCK).open("ab") as lock:
        # The lock ends with its holder, however that ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in home.glob(f"{SCRATCH}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=home) as scratch:
            yield Path(scratch)


def restore(home: Path, database: Database, chain_id: int, market: Address, file: Path) -> Kept:
    """Restores a backup into a home that has no guard; the caller holds the home's lock.

    Raises UsageError for a file that is not a backup, Mismatch for a damaged one or another market's, GuardRefused
    if the home has a guard: an older guard in its place would sign again what is signed.
    """
    manifest = _manifest(file)
    if (manifest["chain_id"], manifest["market"]) != (chain_id, market.lower()):
        raise Mismatch(
            f"the backup is of market {manifest['market']} on chain {manifest['chain_id']}",
            "name the deployment that it is of",
        )
    staged, begun = home / RESTORING, None
    if (staged / MANIFEST).exists():
        begun = (staged / MANIFEST).read_text()
    if begun is not None and begun != manifest["digest"]:
        raise UsageError("the home is half restored from another backup", "restore that one to its end first")
    if begun is None:
        _require_room(home, manifest)
        _stage(file, manifest, staged)
    rows = 0
    for kind in TABLES:
        rows += _load(database, kind, staged / _entry(kind))
    names = [name for name in (*KEYS, *DATABASES) if name in manifest["entries"]]
    for name in names:
        if (staged / name).exists():
            os.replace(staged / name, home / name)
    sync_folder(home)
    # The manifest's name goes first: without it, what is left of the folder says nothing.
    os.unlink(staged / MANIFEST)
    shutil.rmtree(staged)
    sync_folder(home)
    return Kept(len(names), rows, file.stat().st_size)


def require_whole(home: Path) -> None:
    """Raise DoctorError if a restore of the home was cut off."""
    if (home / RESTORING / MANIFEST).exists():
        raise DoctorError(
            f"a restore of {home} was interrupted",
            "run the same `lockstep coordinator restore FILE` again: it continues",
        )


# -- out


def _entry(kind: type[IndexTable]) -> str:
    return f"{kind.__tablename__}.jsonl"


def _dump(database: Database, kind: type[IndexTable], path: Path) -> int:
    columns, rows = kind.__table__.columns, 0
    with database.reading() as session, path.open("w") as out:
        query = select(kind.__table__).order_by(*inspect(kind).primary_key)
        for row in session.execute(query.execution_options(yield_per=1000)):
            out.write(json.dumps({c.name: row._mapping[c] for c in columns}) + "\n")
            rows += 1
    return rows


def _copy(source: Path, target: Path) -> None:
    """Copies an SQLite database that other processes may write, consistently, into one file."""
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as origin, closing(sqlite3.connect(target)) as to:
        origin.backup(to)
        to.execute("PRAGMA journal_mode=DELETE")
        if source.name == GUARD:
            # INVARIANT: a restored guard trusts nobody: what was signed after the copy is not in it.
            to.execute("DELETE FROM trust")
            to.commit()


def _pack(folder: Path, manifest: dict[str, Any], file: Path) -> None:
    """Writes the zip atomically."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        remove_unlocked(file.parent.glob(f".{escape(file.name)}.*.part"))
        with written_alone(part) as out:
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
                packed.writestr(MANIFEST, json.dumps(manifest, indent=1))
                for name in manifest["entries"]:
                    packed.write(folder / name, name)
            out.flush()
            os.fsync(out.fileno())
            os.link(part, file)
        sync_folder(file.parent)
    except FileExistsError as error:
        raise UsageError(f"{file} exists", "a backup overwrites nothing: name another file") from error
    except OSError as error:
        raise DoctorError(
            f"{file} cannot be written: {error.strerror}", "name another folder, or free space"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


# -- in


def _manifest(file: Path) -> dict[str, Any]:
    """Returns a backup's manifest, after checking every entry against it."""
    try:
        with refusing(UsageError, str(file), HINT), open_regular(file) as opened, zipfile.ZipFile(opened) as packed:
            manifest: dict[str, Any] = _MANIFEST(from_json(packed.read(MANIFEST), MAX_FILE_BYTES), "the manifest")
            if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
                raise Malformed(f"its format is {manifest['format']}, version {manifest['version']}")
            known = {*KEYS, *DATABASES, *(_entry(kind) for kind in TABLES)}
            if not set(manifest["entries"]) <= known or not {_entry(kind) for kind in TABLES} <= set(
                manifest["entries"]
            ):
                raise Malformed("its entries are not those of a backup")
            body = {name: value for name, value in manifest.items() if name != "digest"}
            damaged = _of(body) != manifest["digest"]
            for name, digest in manifest["entries"].items():
                with packed.open(name) as entry:
                    damaged = damaged or sha256(b"".join(_pieces(entry))).hexdigest() != digest
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}", HINT) from error
    except DAMAGED as error:
        raise Mismatch(
            f"{file} is damaged or not a backup: {type(error).__name__}", "use another copy of it"
        ) from error
    if damaged:
        raise Mismatch(
            f"{file} is damaged: its contents do not match the hashes in its manifest", "use another copy of it"
        )
    return manifest


def _require_room(home: Path, manifest: dict[str, Any]) -> None:
    for name in DATABASES:
        if (home / name).exists():
            raise GuardRefused(
                f"{home} already has a {name}", "restore into an empty home, or move the old one away permanently"
            )
    if (home / KEYSTORE).exists() and account_address(home / KEYSTORE).lower() != manifest["account"]:
        raise UsageError(f"{home} has the key of another account", "restore into an empty home")


def _stage(file: Path, manifest: dict[str, Any], staged: Path) -> None:
    """Unpacks the backup next to its destination; the manifest is written last and marks the copy as complete."""
    if staged.exists():
        shutil.rmtree(staged)
    staged.mkdir(mode=0o700)
    with zipfile.ZipFile(file) as packed:
        for name in manifest["entries"]:
            with packed.open(name) as entry:
                _write(staged / name, _pieces(entry))
    _write(staged / f"{MANIFEST}.part", [manifest["digest"].encode()])
    sync_folder(staged)
    os.replace(staged / f"{MANIFEST}.part", staged / MANIFEST)
    sync_folder(staged)


def _write(path: Path, pieces: Any) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        for piece in pieces:
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())


def _load(database: Database, kind: type[IndexTable], path: Path) -> int:
    """Add the rows that the database lacks; returns how many there are in the backup."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    with database.session() as session:
        for row in rows:
            if kind is SignedClaimRow:
                # Its number is that of arrival here.
                row.pop("id")
                same = select(SignedClaimRow.id).where(
                    SignedClaimRow.claim == row["claim"], SignedClaimRow.digest == row["digest"]
                )
                present = session.scalar(same) is not None
            else:
                key = tuple(row[c.name] for c in inspect(kind).primary_key)
                present = session.get(kind, key) is not None
            if not present:
                session.add(kind(**row))
                session.flush()
    return len(rows)


def _pieces(entry: Any) -> Iterator[bytes]:
    while piece := entry.read(1 << 20):
        yield piece


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return sha256(b"".join(_pieces(file))).hexdigest()


def _of(manifest: dict[str, Any]) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
