"""The coordinator's own options, in addition to those of every process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockstep.base.naming import refuse_unknown
from lockstep.base.redaction import redacted, urls_of
from lockstep.base.settings import FOLDER_FILE, Settings, read_toml, resolve
from lockstep.protocol.errors import UsageError

PREFIX = "LOCKSTEP_COORDINATOR_"
DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8700,
    "database": "",
    "broker": "",
    "max_blob_bytes": 64 << 20,
    "poll_seconds": 1.0,
    "requests_per_second": 50.0,
    "demands": 8,
    "public_url": "",
    "public_rpc": "",
    "public_gateways": "",
}


@dataclass(frozen=True)
class CoordinatorSettings:
    """Flag > LOCKSTEP_COORDINATOR_* > coordinator_* of ./lockstep.toml > default."""

    shared: Settings
    """RPC, storage, deployment, home, password file, threads, device."""
    host: str
    port: int
    """0: any free one; the `ready` line names it."""
    database: str
    """SQLAlchemy URL; "" is SQLite under the home."""
    broker: str
    """Celery broker URL; "" is a folder in the home."""
    max_blob_bytes: int
    """The largest blob that is relayed."""
    poll_seconds: float
    """Seconds between two polls of the chain."""
    requests_per_second: float
    """Request limit of each address; 0: no limit, for a server behind a proxy with its own."""
    demands: int = 8
    """The most payloads of a round that are demanded on chain, because they are not there and receipts leave them out;
    0: none. A demand in vain saves the requester the slot's price."""
    public_url: str = ""
    """Public URL of this server; "": the URL of each request."""
    public_rpc: str = ""
    """Comma-separated RPC URLs to publish; "": those of `rpc` on this machine that contain no key."""
    public_gateways: str = ""
    """Comma-separated trustless gateways to publish, in addition to this server."""

    @property
    def home(self) -> Path:
        """The coordinator's directory."""
        return self.shared.home_dir

    @property
    def database_url(self) -> str:
        """The URL of the index's database."""
        return self.database or f"sqlite:///{self.home / 'index.sqlite'}"

    @property
    def home_name(self) -> str:
        """A name that distinguishes this home from others with the same database or broker: 16 hex digits."""
        return sha256(f"{socket.gethostname()}:{self.home.resolve()}".encode()).hexdigest()[:16]

    def environment(self) -> dict[str, str]:
        """Returns the variables that give a child process the same settings; secret where a URL holds a password."""
        shared = {f"LOCKSTEP_{name.upper()}": str(value) for name, value in self.shared.__dict__.items()}
        own = {f"{PREFIX}{name.upper()}": str(getattr(self, name)) for name in DEFAULTS}
        return shared | own


def resolve_coordinator(**flags: Any) -> CoordinatorSettings:
    """Settings from flags (None = not given), environment, file, defaults; raises UsageError."""
    file = read_toml(Path(FOLDER_FILE))  # which `resolve` takes, or refuses, below
    refuse_unknown(
        (name for name in file if name.startswith("coordinator_")),
        [f"coordinator_{name}" for name in DEFAULTS],
        FOLDER_FILE,
    )
    values: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        given = flags.pop(name, None)
        fallback = file.get(f"coordinator_{name}", default)
        value = given if given is not None else os.environ.get(PREFIX + name.upper(), fallback)
        try:
            values[name] = type(default)(value)
        except ValueError as error:
            raise UsageError(f"{name} is {value!r}", hint=f"{name} is a {type(default).__name__}") from error
    if not 0 <= values["port"] < 1 << 16:
        raise UsageError(f"port is {values['port']}", hint="use 0 (any free port) to 65535")
    if values["poll_seconds"] <= 0 or values["max_blob_bytes"] < 1:
        raise UsageError("poll_seconds and max_blob_bytes must be positive", hint="leave them out for the defaults")
    if not 0 <= values["requests_per_second"] < float("inf"):
        raise UsageError("requests_per_second is not a rate", hint="use 0 (no limit) or more")
    if values["demands"] < 0:
        raise UsageError("demands must not be negative", hint="0 demands no payload")
    for name in ("public_url", "public_rpc", "public_gateways"):
        values[name] = _published(name, values[name])
    return CoordinatorSettings(shared=resolve("coordinator", **flags), **values)


def _published(name: str, text: str) -> str:
    """Parses URLs that are shown to strangers, without a trailing slash; raises UsageError."""
    urls = [url.rstrip("/") for url in urls_of(text)]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise UsageError(f"{name} is not a URL: {redacted(url)}", hint="a URL looks like https://lockstep.example")
        # INVARIANT: no password is published.
        if parts.username is not None or parts.password is not None:
            raise UsageError(f"{name} contains a user name: {redacted(url)}", hint="remove it: this URL is public")
    if name == "public_url" and len(urls) > 1:
        raise UsageError("public_url has several URLs", hint="give one")
    return ",".join(urls)
