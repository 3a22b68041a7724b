"""A support bundle: the facts about a program and its home that a supporter needs, without secrets.

Only named facts are collected: no file of the home is copied. All text passes a `Cleaner`, which removes the home's
keys and password in every spelling, and everything in URLs except scheme, host and port.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sqlite3
import sys
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from errno import EEXIST
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.decoding import file_bytes
from lockstep.base.files import open_regular
from lockstep.base.machine import memory
from lockstep.base.redaction import HIDDEN, hide, redacted, scrubbed, spellings_of, urls_of
from lockstep.base.settings import URLS
from lockstep.chain.addresses import Addresses
from lockstep.chain.keys import KEYSTORE, NODE_KEY, load_account, load_node_key
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.runtime.staking import OUTBOX

if TYPE_CHECKING:
    from lockstep.base.settings import Settings

PACKAGES = (
    "lockstep-compute", "numpy", "torch", "web3", "eth-account", "requests", "typer", "structlog", "pynacl",
    "cuda-bindings",
)  # fmt: skip
OUTBOX_COLUMNS = ("key", "nonce", "label", "recipient", "value", "gas", "tip", "max_fee", "hashes", "state", "receipt")
"""The outbox columns in a bundle; signed bytes and call data are left out."""
FOLDER = "lockstep-support"
LEAST_CHARACTERS = 4
"""Length below which spellings of a secret are not searched for: they would match ordinary words."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^/\s\"'<>\\)\]}][^\s\"'<>\\)\]}]*", re.IGNORECASE)
Part = Callable[[], Any]
"""Returns one file of the bundle: its text, or a value that becomes JSON."""


@dataclass(frozen=True)
class Cleaner:
    """Removes secrets from a text."""

    spelled: frozenset[str]
    """Every secret, in each spelling of LEAST_CHARACTERS or more."""

    @staticmethod
    def of(settings: Settings) -> Cleaner:
        """Returns the cleaner for a home's keys and password, and for the URLs that the settings name."""
        for urls in (settings.rpc, settings.rpc_check, settings.storage, settings.coordinator):
            if "://" in urls:
                hide(urls)
        home, secrets = settings.home_path, set[bytes]()
        for file in (Path(settings.password_file).expanduser(), home / NODE_KEY):
            with suppress(OSError, LockstepError):
                # Both as in the file and as used.
                secrets |= {data := file_bytes(file), data.strip()}
        with suppress(LockstepError):
            secrets.add(bytes(load_node_key(home / NODE_KEY)))
        # Without the password the account's key is not known in this process, and the keystore itself is never in a
        # bundle.
        with suppress(LockstepError):
            secrets.add(bytes(load_account(home / KEYSTORE, settings.password()).key))
        spelled = {text for secret in secrets if secret for text in spellings_of(secret)}
        return Cleaner(frozenset(text for text in spelled if len(text) >= LEAST_CHARACTERS))

    def clean(self, text: str) -> str:
        """Returns the text without secrets, and with no part of a URL beyond its host."""
        text = scrubbed(text)
        for secret in sorted(self.spelled, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return _URL.sub(lambda found: redacted(found[0]), text)


def write(path: Path, parts: Mapping[str, Part], cleaner: Cleaner) -> list[dict[str, Any]]:
    """Writes the bundle atomically with mode 0600; returns {name, bytes, error} of each file.

    A part that fails is replaced by its error, since bundles are made when something does not work. Raises UsageError
    if the file exists or cannot be written.
    """
    files, listed = dict[str, bytes](), list[dict[str, Any]]()
    for name, part in parts.items():
        made, error = _made(part)
        text = made if isinstance(made, str) else json.dumps(made, indent=1, default=str)
        files[name] = cleaner.clean(text).encode(errors="replace")
        listed.append({"name": name, "bytes": len(files[name]), "error": error})
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # An existing file is never overwritten.
        if path.exists():
            raise FileExistsError(EEXIST, "the file exists")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(f"{FOLDER}/{name}")
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
        beside.rename(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name a new file with --out") from error
    finally:
        beside.unlink(missing_ok=True)
    return listed


def _made(part: Part) -> tuple[Any, str]:
    """Returns (a part's value, "") or (its failure as JSON, the failure's code)."""
    try:
        return part(), ""
    except LockstepError as failure:
        return {"error": failure.to_dict()}, failure.code
    except Exception as failure:
        return {"error": {"code": "bug", "message": f"{type(failure).__name__}: {failure}"}}, "bug"


def versions() -> dict[str, Any]:
    """Returns the versions of Python, the system and PACKAGES, with the machine's processors and memory."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    held = memory()
    return {
        "python": sys.version, "platform": platform.platform(), "processors": os.cpu_count(),
        "memory": held.total, "available": held.available, "packages": {name: found(name) for name in PACKAGES},
    }  # fmt: skip


def settings_of(settings: Settings) -> dict[str, Any]:
    """Returns every setting; URLs are reduced to their hosts, and the password to its file's name."""
    shown = {name: redacted(getattr(settings, name)) if getattr(settings, name) else "" for name in URLS}
    return settings.__dict__ | shown


def outbox_of(settings: Settings) -> list[dict[str, Any]]:
    """Returns every transaction that the home sent, without its bytes."""
    path = settings.home_path / OUTBOX
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
        rows = database.execute(f"SELECT {', '.join(OUTBOX_COLUMNS)} FROM transactions ORDER BY nonce")
        return [dict(zip(OUTBOX_COLUMNS, row, strict=True)) for row in rows]


def notes_of(settings: Settings) -> str:
    """Returns the text of the home's notes.json, in which a program notes its own state; "{}" if it cannot be read."""
    try:
        return (settings.home_path / "notes.json").read_text(errors="replace")
    except OSError:
        return "{}"


def heads_of(settings: Settings) -> list[dict[str, Any]]:
    """Returns the latest block of each RPC endpoint."""
    chain_id, found = Addresses.load(settings.deployment).chain_id, []
    for url in urls_of(f"{settings.rpc},{settings.rpc_check}"):
        try:
            block = connect(url, chain_id, timeout=5).eth.get_block("latest")
            found.append({"endpoint": redacted(url), "block": block["number"], "hash": block["hash"].hex(),
                          "time": block["timestamp"]})  # fmt: skip
        except LockstepError as error:
            found.append({"endpoint": redacted(url), "error": error.message})
    return found


def tail(path: Path, lines: int) -> str:
    """Returns the last lines of a log file."""
    try:
        with open_regular(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - lines * 2000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="--log names a file") from error
