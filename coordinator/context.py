"""The state that the API's requests share: the index, the nonces, the store, and a way to notify the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client.registry import Collector

from coordinator.bounded_store import StoreCalls
from coordinator.db import Database
from coordinator.descriptions import Descriptions
from coordinator.nonces import Nonces
from coordinator.page_cache import PageCache
from coordinator.published import PublishedMarket
from coordinator.quotas import Quotas
from coordinator.rates import RequestRates
from lockstep.protocol.types import Address, Digest
from lockstep.storage import ContentStore


@dataclass(frozen=True)
class ApiContext:
    """The parts of a coordinator that its API uses."""

    database: Database
    nonces: Nonces
    store: ContentStore
    aggregator: Address
    """The account that this coordinator stakes and merges with."""
    max_blob_bytes: int
    published: PublishedMarket
    """The market's published data."""
    signed_for: Callable[[Address, Digest, bytes], bool]
    """Returns True if an account's key, or its delegate's, signed a digest; may ask the chain."""
    notify: Callable[[str], None]
    """Notifies the worker about a job; never blocks, and may be lost."""
    quotas: Quotas = field(default_factory=Quotas)
    rates: RequestRates = field(default_factory=RequestRates)
    """Limits on the request rate of each address."""
    account: Collector | None = None
    """The collector of the account's metrics for `/metrics`."""
    backing: StoreCalls = field(default_factory=StoreCalls)
    """Calls to the store."""
    descriptions: Descriptions = field(default_factory=lambda: Descriptions(None))
    """Jobs' descriptions by their authors; empty by default."""
    kept: PageCache = field(default_factory=PageCache)
    """Rendered pages, and figures over all rows, whose data have not changed."""


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Ctx = Annotated[ApiContext, Depends(_context)]
"""The shared state, as the parameter of a route."""
