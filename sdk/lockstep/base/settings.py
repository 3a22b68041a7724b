"""A process's settings: flag > environment > ./lockstep.toml > network > user's config.toml > default.

>>> resolve(rpc="http://127.0.0.1:8545", storage="dir:///tmp/blocks").rpc
'http://127.0.0.1:8545'
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from lockstep.base import networks, published, trust
from lockstep.base.amounts import fee_of
from lockstep.base.decoding import file_bytes, from_toml
from lockstep.base.files import open_regular, open_to_others
from lockstep.base.naming import nearest, refuse_unknown
from lockstep.base.redaction import hide, redacted
from lockstep.protocol.errors import DoctorError, KeyStoreError, Malformed, UsageError
from lockstep.protocol.types import Wei

DEVICE = re.compile(r"auto|cpu|cuda:(0|[1-9]\d{0,2})|emulated")
"""Valid names of computing devices (`numerics.devices`)."""
FINALITIES = ("latest", "safe", "finalized")
"""Block tags of nodes; the chain itself determines "safe" and "finalized"."""

MAX_PASSWORD_BYTES = 1 << 16


@dataclass(frozen=True)
class Settings:
    """Options that every process takes (docs/processes.md)."""

    rpc: str = field(repr=False)
    """Comma-separated URLs; each may contain a key: `base.redaction.redacted` returns the part that may be shown."""
    storage: str = field(repr=False)
    deployment: str
    home: str
    password_file: str
    coordinator: str
    threads: int
    listen_seconds: int
    """Chain seconds for which a home that cannot know what its key signed listens; 0: it does not listen."""
    memory_mib: int = 0
    """The limit on the memory of claims under a game; 0: a quarter of the machine's."""
    disk_mib: int = 16_384
    """The limit on disk space under the home for the states of claims under a game."""
    cache_mib: int = 65_536
    """The limit on blobs in the user's cache, which all processes share."""
    rpc_check: str = field(default="", repr=False)
    """Comma-separated URLs of a second provider that must agree with `rpc`; "": no check."""
    device: str = "auto"
    """The device that computes: "auto", "cpu", "cuda:N" or "emulated"."""
    max_memory_mib: int = 0
    """The limit on the memory of a job that a worker joins; 0: the machine's."""
    max_stake: str = ""
    """The limit on a worker's whole stake: an amount, or "all"."""
    jobs_from: str = ""
    """Comma-separated addresses of requesters; empty: anybody's jobs."""
    min_price: str = ""
    """An amount: the least that a slot pays a worker for 10^15 operations."""
    metrics: str = ""
    """HOST:PORT of a worker's or a verifier's /metrics; empty: none."""
    max_fee: str = ""
    """"40 gwei": the most that is paid for a unit of gas, tip included; what would cost more waits. Empty: the highest
    fee that any job refunds."""
    max_tip: str = ""
    """"2 gwei": the most of the fee that goes to a block's proposer, half of it at first; empty: 1 gwei, more for a
    stuck transaction."""
    finality: str = "3"
    """The part of the chain that a role relies on: "latest", "safe", "finalized", or a number of blocks behind the
    latest. A worker commits to a claim once the block that drew its seed is in it: no reorganisation then makes the
    commitment one of another seed. A worker and a verifier leave, and `train watch` ends, once the block that settled
    the last of it is in it; `unstake` and `withdraw` tell whether theirs is."""
    hours: str = ""
    """"22-6": the local hours in which a worker joins rounds; empty: always."""
    download_mbit: int = 100
    """A worker's download bandwidth in Mbit per second, at which a round's payloads must arrive in time; 0:
    unlimited."""
    max_unpaid: int = 3
    """The number of a requester's rounds in which a worker's work was public and unpaid, from which no more of its jobs
    are joined; ten paid rounds offset one. 0: no limit."""

    @property
    def path(self) -> str:
        """The path for `paths.compile`: the selected device, or the processor's widest kernels."""
        return "auto" if self.device in ("auto", "cpu") else self.device

    @property
    def finality_text(self) -> str:
        """Describes the finality setting: "finalized", or "3 blocks deep"."""
        return f"{self.finality} blocks deep" if self.finality.isdigit() else self.finality

    @property
    def max_fee_wei(self) -> Wei | None:
        """The bound on the price per gas, in wei; None: the highest fee that any job refunds."""
        return fee_of(self.max_fee, "max_fee") if self.max_fee else None

    @property
    def max_tip_wei(self) -> Wei | None:
        """The bound on the tip per gas, in wei; None: no separate bound."""
        return fee_of(self.max_tip, "max_tip") if self.max_tip else None

    @property
    def memory_bytes(self) -> int | None:
        """The limit on the memory of claims under a game; None: a quarter of the machine's."""
        return self.memory_mib << 20 if self.memory_mib else None

    @property
    def disk_bytes(self) -> int:
        """The limit on the disk space of states of claims under a game."""
        return self.disk_mib << 20

    @property
    def download_bytes(self) -> int | None:
        """A worker's download bandwidth in bytes per second; None: unlimited, as for content in a local folder."""
        if not self.download_mbit or self.storage.startswith("dir://"):
            return None
        return self.download_mbit * 10**6 // 8

    @property
    def cache_bytes(self) -> int:
        """The limit on blobs in the user's cache."""
        return self.cache_mib << 20

    @property
    def home_path(self) -> Path:
        """The path of the process's directory, whether it exists or not."""
        return Path(self.home).expanduser()

    @property
    def home_dir(self) -> Path:
        """The process's directory, created with mode 0700; raises UsageError if that cannot be."""
        path = self.home_path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be used as a home: {error.strerror}", hint="pass another --home"
            ) from error
        return path

    def password(self) -> str:
        """The keystore's password; raises KeyStoreError if its file cannot be read."""
        if not self.password_file:
            raise KeyStoreError("no password file", hint="pass --password-file FILE or set LOCKSTEP_PASSWORD_FILE")
        try:
            path = Path(self.password_file).expanduser()
            # INVARIANT: no password is taken that others of this machine can read, as no node key is.
            if open_to_others(path):
                raise KeyStoreError(f"others can read {path}", f"chmod 600 {path}, and another password if it is known")
            # A pipe opened for this process, as by a shell's <(..), has a writer; a named pipe may never have one.
            handed = str(path) == "/dev/stdin" or str(path.parent) in ("/dev/fd", "/proc/self/fd")
            with path.open("rb") if handed else open_regular(path) as file:
                data = file.read(MAX_PASSWORD_BYTES + 1)
            if len(data) > MAX_PASSWORD_BYTES:
                raise KeyStoreError(
                    f"the password file {self.password_file} has more than {MAX_PASSWORD_BYTES} bytes",
                    hint="the file must contain only the password",
                )
            return data.decode().replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        except OSError as error:
            raise KeyStoreError(
                f"the password file {self.password_file} cannot be read: {error.strerror}",
                hint="check its path and mode: a regular file, or /dev/stdin",
            ) from error
        except UnicodeDecodeError as error:
            raise KeyStoreError(
                f"the password file {self.password_file} is not text", hint="it holds the password, in UTF-8"
            ) from error


DEFAULTS: dict[str, Any] = {
    "rpc": "http://127.0.0.1:8545",
    "rpc_check": "",
    "storage": "dir://~/.lockstep/blocks",
    "deployment": "deployment.json",
    "home": "~/.lockstep",
    "password_file": "",
    "coordinator": "",
    "threads": 1,
    "listen_seconds": 120,
    "memory_mib": 0,
    "disk_mib": 16_384,
    "device": "auto",
    "cache_mib": 65_536,
    "max_fee": "",
    "max_tip": "",
    "finality": "3",
    "max_memory_mib": 0,
    "max_stake": "",
    "jobs_from": "",
    "min_price": "",
    "hours": "",
    "download_mbit": 100,
    "max_unpaid": 3,
    "metrics": "",
}


RENAMED = {"confirmations": "finality"}
"""Maps old names of settings, which existing homes may still use, to new ones."""
FOLDER_FILE = "lockstep.toml"
URLS = ("rpc", "rpc_check", "storage", "coordinator")
"""Settings that may contain a key."""
NETWORK = "network"
"""The setting that names a market (`base.networks`, `base.published`) and replaces several settings."""


def resolve(role: str = "requester", **flags: Any) -> Settings:
    """Resolves settings from flags (None = not given), LOCKSTEP_*, ./lockstep.toml, the network, config.toml, defaults.

    `role` selects the home that a network names. Raises UsageError.
    """
    config = networks.config_folder() / "config.toml"
    sources: list[dict[str, Any]] = [
        {name: value for name, value in flags.items() if value is not None},
        _renamed(
            {
                name: os.environ[key]
                for name in [*DEFAULTS, NETWORK, *RENAMED]
                if (key := f"LOCKSTEP_{name.upper()}") in os.environ
            }
        ),
        _renamed(folder_settings(flags.get("home"))),
    ]
    user = _renamed(read_toml(config))
    refuse_unknown(user, [*DEFAULTS, NETWORK], str(config))
    sources += [_network([*sources, user], role), user, DEFAULTS]
    values: dict[str, Any] = {}
    for name in URLS:
        hide(str(next(source[name] for source in sources if name in source)))
    for name, default in DEFAULTS.items():
        value = next(source[name] for source in sources if name in source)
        try:
            values[name] = type(default)(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{name} is {value!r}", hint=f"{name} must be of type {type(default).__name__}") from error
    if values["threads"] < 1:
        raise UsageError(f"threads is {values['threads']}", hint="use at least 1")
    if values["listen_seconds"] < 0:
        raise UsageError(f"listen_seconds is {values['listen_seconds']}", hint="give 0 (no listening) or more")
    for name in ("memory_mib", "disk_mib", "cache_mib", "max_memory_mib", "download_mbit", "max_unpaid"):
        if values[name] < 0:
            raise UsageError(f"{name} is {values[name]}", hint="give 0 or more")
    for name in ("max_fee", "max_tip"):
        if values[name]:
            fee_of(values[name], name)
    values["finality"] = finality_of(values["finality"])
    if values["device"] == "cuda":
        values["device"] = "cuda:0"
    if not DEVICE.fullmatch(values["device"]):
        raise UsageError(f"device is {values['device']!r}", hint="use auto, cpu, cuda:0, cuda:1, ..., or emulated")
    if values["coordinator"] and not values["coordinator"].startswith(("http://", "https://")):
        raise UsageError(
            f"coordinator is {redacted(values['coordinator'])}", hint="an http(s) URL, or nothing: none is needed"
        )
    return Settings(**values)


def folder_settings(home: str | None = None) -> dict[str, Any]:
    """Reads the settings of the folder's own file; raises UsageError for an unknown name, or for one that needs trust.

    `home` is the home that the command names.
    """
    path = Path(FOLDER_FILE)
    data, values = read_settings(path)
    refuse_unknown((n for n in values if not n.startswith("coordinator_")), [*DEFAULTS, NETWORK, *RENAMED], FOLDER_FILE)
    trust.require(path, data, values, home or os.environ.get("LOCKSTEP_HOME") or DEFAULTS["home"])
    return values


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings under their new names; a value under the new name wins."""
    return {RENAMED[name]: value for name, value in given.items() if name in RENAMED} | {
        name: value for name, value in given.items() if name not in RENAMED
    }


def finality_of(text: str) -> str:
    """Checks a `finality`; returns it in lower case. Raises UsageError."""
    lowered = text.strip().lower()
    # Ten digits would exceed the blocks of any chain.
    if lowered in FINALITIES or re.fullmatch(r"\d{1,9}", lowered, re.ASCII):
        return lowered
    raise UsageError(f"finality is {text!r}", hint=f"{nearest(lowered, FINALITIES)}; or give a number of blocks")


def named_network() -> str | None:
    """Returns the network that `--network` or the environment names (cli/main.py passes the option on in the
    environment)."""
    return os.environ.get(f"LOCKSTEP_{NETWORK.upper()}") or None


def _network(sources: list[dict[str, Any]], role: str) -> dict[str, str]:
    """Returns the settings of the named network; the local market's if it runs and no setting names another market."""
    name = next((str(source[NETWORK]) for source in sources if NETWORK in source), "")
    if published.is_url(name):
        return _published(name, sources)
    if name:
        return networks.values_of(name, role)
    elsewhere = any(key in source for source in sources for key in ("rpc", "deployment"))
    return {} if elsewhere or not networks.local_file().exists() else networks.values_of(networks.LOCAL, role)


def _published(url: str, sources: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the settings that a coordinator publishes; raises UsageError if no source has the chain's RPC
    endpoint."""
    found = published.values_of(url, cache_directory() / "deployments")
    if "rpc" not in found and not any("rpc" in source for source in sources):
        raise UsageError(
            f"{redacted(url)} publishes no RPC endpoint of its chain", hint="name one: --rpc URL, or LOCKSTEP_RPC"
        )
    return found


def cache_location() -> Path:
    """Returns the path of the user's cache, existing or not; `LOCKSTEP_CACHE` names another."""
    named = os.environ.get("LOCKSTEP_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("lockstep"))


def cache_directory() -> Path:
    """Returns the user's cache, created if necessary; raises DoctorError unless only the user can access it."""
    path = cache_location()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
    except OSError as error:
        raise DoctorError(f"{path} cannot be a cache: {error.strerror}", hint="set LOCKSTEP_CACHE") from error
    # INVARIANT: nobody but the user can place code or blobs where they are loaded from.
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise DoctorError(f"{path} is open to others", hint=f"chmod 700 {path}, or set LOCKSTEP_CACHE")
    return path


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a settings file; {} if it does not exist. Raises UsageError if it cannot be read."""
    return read_settings(path)[1]


def read_settings(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Reads a settings file's text and contents, both empty if it does not exist. Raises UsageError if it cannot be
    read."""
    if not path.exists():
        return b"", {}
    try:
        data = file_bytes(path)
        return data, from_toml(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="repair or remove the file") from error
    except Malformed as error:
        raise UsageError(f"{path} cannot be read: {error.message}", hint="repair or remove the file") from error
