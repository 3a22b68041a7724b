"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from lockstep.protocol.errors import UsageError
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.store import ContentStore


def open_store(url: str) -> ContentStore:
    """The store at `url`; nothing is contacted yet (`check` does that).

    dir:///path, dir://~/path       a directory of blocks on this machine
    /ip4/127.0.0.1/tcp/5001/http    a Kubo RPC by multiaddr (Kubo itself or `lockstep storage serve`)
    http://127.0.0.1:5001           the same by URL
    """
    if url.startswith("/"):
        from lockstep.storage.kubo import KuboStore

        return KuboStore(url)
    parts = urlsplit(url)
    if parts.scheme == "dir" and parts.netloc in ("", "~") and parts.path.startswith("/"):
        return DirectoryStore(Path(parts.netloc + unquote(parts.path)).expanduser())
    if parts.scheme in ("http", "https"):
        from lockstep.storage.kubo import KuboStore, multiaddr_of_url

        return KuboStore(multiaddr_of_url(url))
    raise UsageError(
        f"not a storage URL: {url!r}",
        "use dir:///absolute/path, http://host:port of a Kubo RPC, or its multiaddr /ip4/127.0.0.1/tcp/5001/http",
    )
