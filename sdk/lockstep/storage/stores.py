"""Opens the content store for a URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lockstep.base.redaction import NO_URL, hide, redacted
from lockstep.protocol.errors import UsageError
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.store import ContentStore

_GATEWAY = re.compile(r"(?:^|,)\s*gateway\+")
"""Marks the beginning of each gateway's URL in a list; a folder's name may contain a comma."""


def open_store(url: str) -> ContentStore:
    """Returns the store for `url`, without contacting it (`check` does that).

    dir:///path, dir://~/path       a directory of blocks on this machine
    /ip4/127.0.0.1/tcp/5001/http    a Kubo RPC by multiaddr (Kubo itself or `lockstep storage serve`)
    http://127.0.0.1:5001           the same by URL
    gateway+https://host            a trustless gateway, read only; several after one of the above, with commas
    """
    hide(url)
    written, *gateways = _GATEWAY.split(url)
    if not gateways:
        return _one(url)
    from lockstep.storage.gateway import GatewayStore, Readable

    return Readable(_one(written) if written else None, [GatewayStore(each.strip()) for each in gateways])


def _one(url: str) -> ContentStore:
    if url.startswith("/"):
        from lockstep.storage.kubo import KuboStore

        return KuboStore(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "dir" and parts.netloc in ("", "~") and parts.path.startswith("/"):
        return DirectoryStore(Path(parts.netloc + unquote(parts.path)).expanduser())
    if parts.scheme in ("http", "https"):
        from lockstep.storage.kubo import KuboStore, multiaddr_of_url

        return KuboStore(multiaddr_of_url(url))
    name = redacted(url)
    raise UsageError(
        "this is not a storage URL" if name == NO_URL else f"not a storage URL: {name}",
        "use dir:///absolute/path, http://host:port of a Kubo RPC, or its multiaddr /ip4/127.0.0.1/tcp/5001/http; "
        "optionally followed by comma-separated gateways: gateway+https://host",
    )
