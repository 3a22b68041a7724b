"""Named markets: addresses of a chain, its contracts, a store and keys, in one file of the user.

    [sepolia]                                   # ~/.config/lockstep/networks.toml
    rpc = "https://rpc.example/KEY,https://other.example"
    storage = "http://127.0.0.1:5001"
    deployment = "sepolia.json"                 # relative to this file
    coordinator = "https://lockstep.example"
    home = "~/.lockstep/sepolia/{role}"         # a role's own folder: requester, worker, verifier, coordinator
    password_file = "~/.lockstep/sepolia/{role}/password"
    max_fee = "40 gwei"                         # a unit of gas costs no more; what would, waits
    max_tip = "2 gwei"
    finality = "finalized"                      # or "safe", "latest", or a number of blocks in quotes

`local` is the market that `lockstep local up` runs on this machine. It needs no entry, and is the default while it runs
and no other market is named.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from lockstep.base.decoding import file_bytes, from_toml
from lockstep.base.naming import nearest, refuse_unknown
from lockstep.base.redaction import shown
from lockstep.protocol.errors import Malformed, UsageError

LOCAL = "local"
FIELDS = (
    "rpc", "storage", "deployment", "coordinator", "home", "password_file", "max_fee", "max_tip", "finality"
)  # fmt: skip
PROGRAMS = ("worker", "verifier", "coordinator")
"""The programs that take part with an account of their own; each is also a command."""
ROLES = ("requester", *PROGRAMS)
_PATHS = ("deployment", "home", "password_file")


def config_folder() -> Path:
    """Returns the folder of the user's networks.toml and config.toml; `LOCKSTEP_CONFIG` names another."""
    named = os.environ.get("LOCKSTEP_CONFIG")
    return Path(named).expanduser() if named else Path(platformdirs.user_config_dir("lockstep"))


def local_folder() -> Path:
    """Returns the folder of the local market; `LOCKSTEP_LOCAL` names another."""
    return Path(os.environ.get("LOCKSTEP_LOCAL") or "~/.lockstep/local").expanduser()


def local_file() -> Path:
    """Returns the path of the local market's entry, a file that exists while that market runs."""
    return local_folder() / "network.toml"


def values_of(name: str, role: str) -> dict[str, str]:
    """Returns the settings of a network, with the role's own home; raises UsageError."""
    file = local_file() if name == LOCAL else config_folder() / "networks.toml"
    tables = _read(file)
    if name == LOCAL and not tables:
        raise UsageError("no local market is up", hint="`lockstep local up` starts one")
    if name not in tables:
        raise UsageError(f"network {name!r} is not defined in {file}", hint=nearest(name, [*tables, LOCAL]))
    return {key: _value(file, key, text, role) for key, text in tables[name].items()}


def terms_of(deployment: str) -> str | None:
    """Returns the preset of terms for a market, named by the path of its deployment: the local market's own; None for
    any other."""
    if not local_file().exists():
        return None
    return LOCAL if deployment == values_of(LOCAL, "requester")["deployment"] else None


def _read(file: Path) -> dict[str, dict[str, str]]:
    """Returns every network of a file; none if the file does not exist."""
    try:
        found = from_toml(file_bytes(file))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="repair or remove the file") from error
    except Malformed as error:
        raise UsageError(f"{file} cannot be read: {error.message}", hint="repair or remove the file") from error
    for name, table in found.items():
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {name!r} belongs to no network", hint="put a line [NAME] before it")
        refuse_unknown(table, FIELDS, f"{file}, [{name}]")
        for key, text in table.items():
            if not isinstance(text, str):
                raise UsageError(f"{file}, [{name}]: {key} is {shown(text)!r}", hint="a text in quotes")
    return found


def _value(file: Path, key: str, text: str, role: str) -> str:
    text = text.replace("{role}", role)
    return str(file.parent / Path(text).expanduser()) if key in _PATHS and text else text
