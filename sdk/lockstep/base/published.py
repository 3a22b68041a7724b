"""Settings of a market that is named by its coordinator's URL, from data that the coordinator publishes.

    GET URL/api/v1/network
    {"deployment": {"chain_id": 31337, "token": "0x...", ...}, "rpc_urls": ["http://127.0.0.1:8545"], "gateways": []}

The coordinator is trusted only to identify the market: events, code and states are read from the chain, and content is
verified by its CID. The option --rpc replaces an RPC endpoint that the user does not trust.
"""

from __future__ import annotations

import json
import time
from functools import cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from lockstep.base.decoding import U64, either, from_json, mapping, refusing, several, table, text, whole
from lockstep.base.files import write_atomically
from lockstep.base.redaction import hide, redacted
from lockstep.protocol.errors import Unreachable, UsageError

PATH = "/api/v1/network"
MAX_BYTES = 1 << 16
ANSWER_SECONDS = 10.0
"""Time limit of a whole answer in seconds, from the request to its last byte."""
MOST_URLS = 8
GATEWAY = "gateway+"
"""Prefix of a gateway's URL in a list of stores (`storage.open_store`). A coordinator is a gateway too."""
_DOCUMENT = table(
    {
        "deployment": mapping(either(text(), whole(0, U64))),
        "rpc_urls": several(text(), MOST_URLS),
        "gateways": several(text(), MOST_URLS),
    }
)


def is_url(network: str) -> bool:
    """Returns True if a network is named by its coordinator's URL."""
    return network.startswith(("http://", "https://"))


def on_loopback(url: str) -> bool:
    """Returns True if a URL's host is this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def values_of(url: str, folder: Path) -> dict[str, str]:
    """Returns the settings that a coordinator publishes; writes the deployment's file into `folder`.

    "rpc" is missing if the coordinator publishes none. Requested once per process. Raises UsageError, Unreachable,
    DoctorError.
    """
    url = url.rstrip("/")
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"not the URL of a coordinator: {redacted(url)}", "a URL looks like https://lockstep.example")
    hide(url)
    with refusing(UsageError, f"the answer of {redacted(url)}{PATH}", "is it a coordinator of this release?"):
        found = _DOCUMENT(from_json(fetched(url, PATH), MAX_BYTES), "the answer")
    file = json.dumps(found["deployment"], indent=2).encode() + b"\n"
    path = folder / f"{sha256(file).hexdigest()[:32]}.json"
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, [file])
    values = {
        "deployment": str(path),
        "storage": ",".join(GATEWAY + each for each in (url, *(g for g in found["gateways"] if _reachable(g, url)))),
        "coordinator": url,
    }
    if rpc := ",".join(each for each in found["rpc_urls"] if _reachable(each, url)):
        values["rpc"] = rpc
    return values


def _reachable(each: str, url: str) -> bool:
    # INVARIANT: a server elsewhere sends nobody to a port of their own machine.
    return is_url(each) and "," not in each and (on_loopback(url) or not on_loopback(each))


def fetched(url: str, path: str) -> bytes:
    """Fetches a path from a coordinator, within MAX_BYTES and ANSWER_SECONDS.

    Raises `Unreachable` if the coordinator does not answer, `UsageError` if it has no such path.
    """
    import httpx2

    until = time.monotonic() + ANSWER_SECONDS
    try:
        with (
            httpx2.Client(follow_redirects=False, timeout=ANSWER_SECONDS) as client,
            client.stream("GET", url + path, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status_code >= 500 or answer.status_code == 429:
                raise Unreachable(f"{redacted(url)} fails: HTTP {answer.status_code}", "try again shortly")
            if answer.status_code != 200:
                raise UsageError(
                    f"{redacted(url)} is not a coordinator: HTTP {answer.status_code} for {path}",
                    "give the address of a coordinator's home page",
                )
            body = bytearray()
            for piece in answer.iter_raw():
                body += piece
                # INVARIANT: no server makes a reader hold more, or wait longer, than that.
                if len(body) > MAX_BYTES or time.monotonic() > until:
                    break
            return bytes(body)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unreachable(
            f"{redacted(url)} did not answer: {type(error).__name__}", "is the coordinator up, and its URL right?"
        ) from error
