"""Where a process finds its world: flag > environment > ./lockstep.toml > default.

>>> resolve(rpc="http://127.0.0.1:8545", storage="dir:///tmp/blocks").rpc
'http://127.0.0.1:8545'
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.protocol.errors import KeyStoreError, UsageError
from lockstep.protocol.types import Address

DEVNET_CHAIN_ID = 31337
"""Anvil's; lies refuse to run on any other chain."""


@dataclass(frozen=True)
class Deployment:
    """Addresses of one deployment of the contracts."""

    chain_id: int
    token: Address
    vault: Address
    market: Address
    game: Address
    arbiter: Address
    block: int
    """First block that can hold an event of these contracts."""

    @staticmethod
    def load(path: str | Path) -> Deployment:
        """Read a deployment file; raises UsageError if it is missing or not one."""
        try:
            return Deployment(**json.loads(Path(path).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"no deployment in {path}: {error}",
                hint="pass --deployment FILE as written by `lockstep demo` or the deployer",
            ) from error

    def dump(self) -> str:
        """The file's text."""
        return json.dumps(self.__dict__, indent=1)


@dataclass(frozen=True)
class Settings:
    """Options that every process takes (docs/programs.md)."""

    rpc: str
    storage: str
    deployment: str
    home: str
    password_file: str
    coordinator: str
    threads: int

    @property
    def home_dir(self) -> Path:
        """The process's directory, created with mode 0700."""
        path = Path(self.home).expanduser()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def password(self) -> str:
        """The keystore's password; raises KeyStoreError if its file cannot be read."""
        if not self.password_file:
            raise KeyStoreError("no password file", hint="pass --password-file FILE or set LOCKSTEP_PASSWORD_FILE")
        try:
            return Path(self.password_file).read_text().rstrip("\n")
        except OSError as error:
            raise KeyStoreError(f"the password file cannot be read: {error}", hint="check its path and mode") from error


DEFAULTS: dict[str, Any] = {
    "rpc": "http://127.0.0.1:8545",
    "storage": "dir://~/.lockstep/blocks",
    "deployment": "deployment.json",
    "home": "~/.lockstep",
    "password_file": "",
    "coordinator": "",
    "threads": 1,
}


def resolve(**flags: Any) -> Settings:
    """Settings from flags (None = not given), LOCKSTEP_*, ./lockstep.toml, defaults; raises UsageError."""
    file = read_toml(Path("lockstep.toml"))
    values: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        value = flags.get(name)
        if value is None:
            value = os.environ.get(f"LOCKSTEP_{name.upper()}")
        if value is None:
            value = file.get(name, default)
        try:
            values[name] = type(default)(value)
        except ValueError as error:
            raise UsageError(f"{name} is {value!r}", hint=f"{name} must be of type {type(default).__name__}") from error
    if values["threads"] < 1:
        raise UsageError(f"threads is {values['threads']}", hint="at least one kernel thread")
    return Settings(**values)


def read_toml(path: Path) -> dict[str, Any]:
    """A settings file's contents, {} if there is none; raises UsageError if it cannot be read."""
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="mend or remove the file") from error
