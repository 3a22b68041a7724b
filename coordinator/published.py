"""The market's public data, from which a stranger can verify it: /api/v1/network, and the commands on the pages.

Published are the deployment, RPC endpoints and gateways. The coordinator's own store and its RPC URL, which may hold a
key, are not: content is read from here (/ipfs/CID), and an endpoint is named by its operator, or is on this machine.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass

from fastapi import Request

from coordinator.schema import DeploymentOut, NetworkOut
from coordinator.settings import CoordinatorSettings
from lockstep.base.published import on_loopback
from lockstep.base.redaction import redacted, urls_of
from lockstep.chain.addresses import Addresses

HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?")
"""The Host headers that may appear in a command: no character has a meaning in a shell or in HTML."""


@dataclass(frozen=True)
class PublishedMarket:
    """The public data of a market."""

    addresses: Addresses
    rpc_urls: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    url: str = ""
    """The server's public URL; "": the URL of each request."""

    @staticmethod
    def of(settings: CoordinatorSettings, addresses: Addresses) -> PublishedMarket:
        """Returns what the operator publishes; by default the RPC endpoints on this machine whose URLs hold no key."""
        # INVARIANT: a URL that may hold a key is published only if its operator wrote it down as public.
        named = urls_of(settings.public_rpc) or [
            url for url in urls_of(settings.shared.rpc) if on_loopback(url) and redacted(url) == url.rstrip("/")
        ]
        return PublishedMarket(addresses, tuple(named), tuple(urls_of(settings.public_gateways)), settings.public_url)

    def document(self) -> NetworkOut:
        """The answer of /api/v1/network."""
        return NetworkOut(
            deployment=DeploymentOut(**asdict(self.addresses)), rpc_urls=list(self.rpc_urls),
            gateways=list(self.gateways),
        )  # fmt: skip

    def url_of(self, request: Request) -> str:
        """Returns the server's URL: the configured one, or the one that the client has requested."""
        if self.url:
            return self.url
        host = request.headers.get("host", "")
        if not HOST.fullmatch(host):
            name, port = request.scope.get("server") or ("127.0.0.1", None)
            name = f"[{name}]" if ":" in name else name
            host = f"{name}:{port}" if port else name
        return f"{'https' if request.url.scheme == 'https' else 'http'}://{host}"


def command(words: str, url: str) -> str:
    """Returns a `lockstep` command that reads everything else from this server, ready to be copied."""
    return f"lockstep {words} --network {shlex.quote(url)}"
