"""Decides whether a folder's `lockstep.toml` is trusted: in a cloned example it could choose keys, chain and money.

Every file may set harmless options (HARMLESS). A file in a folder that the user has named as the home may set all
options. Otherwise the user must have accepted this exact file (`lockstep trust`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from lockstep.base.files import write_atomically
from lockstep.base.networks import config_folder
from lockstep.protocol.errors import UsageError

HARMLESS = frozenset({"threads", "device", "memory_mib", "disk_mib", "cache_mib", "max_memory_mib"})
MOST = 1024
"""Most files that are remembered; the oldest is dropped."""


def require(path: Path, data: bytes, values: Mapping[str, Any], home: str) -> None:
    """Raises UsageError if a file sets more than harmless options and the user has not trusted it.

    `home` is the home that the command or the environment names, or the default; never one that the file names.
    """
    grave = sorted(set(values) - HARMLESS)
    if not grave or _is_home(path, home) or _line(path, data) in _lines():
        return
    # INVARIANT: no file that came with a folder decides over a user's keys, chain or money, whatever home it names.
    raise UsageError(
        f"{path} of this folder sets {', '.join(grave)}, and this folder is not trusted",
        hint="read it, then `lockstep trust`; or work in another folder",
    )


def accept(path: Path, data: bytes) -> None:
    """Trusts the file's settings until its contents change."""
    folder = config_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = str(path.resolve())
    kept = [line for line in _lines() if line.partition(" ")[2] != place]
    write_atomically(folder / "trusted", ["".join(f"{line}\n" for line in [*kept, _line(path, data)][-MOST:]).encode()])


def _is_home(path: Path, home: str) -> bool:
    return Path(home).expanduser().resolve() == path.absolute().parent.resolve()


def _line(path: Path, data: bytes) -> str:
    return f"{sha256(data).hexdigest()} {path.resolve()}"


def _lines() -> list[str]:
    file = config_folder() / "trusted"
    return file.read_text().splitlines() if file.exists() else []
