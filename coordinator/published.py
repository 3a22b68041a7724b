"""The market as strangers need it to check it from this server's URL alone: /api/v1/network, the pages' commands.

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
"""A Host header that may stand in a command: nothing of it means anything to a shell, or to HTML."""


@dataclass(frozen=True)
class PublishedMarket:
    """The part of a market that anybody may know."""

    addresses: Addresses
    rpc_urls: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    url: str = ""
    """This server's, as strangers reach it; "": as each of them has asked for it."""

    @staticmethod
    def of(settings: CoordinatorSettings, addresses: Addresses) -> PublishedMarket:
        """Returns what the operator publishes; unless told otherwise, this machine's RPC endpoints without a key."""
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
        """This server's URL: its operator's word, or what the client has asked for."""
        if self.url:
            return self.url
        host = request.headers.get("host", "")
        if not HOST.fullmatch(host):
            name, port = request.scope.get("server") or ("127.0.0.1", None)
            name = f"[{name}]" if ":" in name else name
            host = f"{name}:{port}" if port else name
        return f"{'https' if request.url.scheme == 'https' else 'http'}://{host}"


def command(words: str, url: str) -> str:
    """A `lockstep` command that takes everything else from this server: it works as it is copied."""
    return f"lockstep {words} --network {shlex.quote(url)}"
