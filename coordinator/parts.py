"""The parts of a coordinator: its party on chain, an index, nonces and a guard. Opened once per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.registry import Collector

from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.descriptions import Descriptions
from coordinator.nonces import FILE_NAME, Nonces
from coordinator.published import PublishedMarket
from coordinator.rates import RequestRates
from coordinator.settings import CoordinatorSettings
from lockstep.protocol.types import Address
from lockstep.runtime.guard.memory import GuardMemory, Scope
from lockstep.runtime.party import Party


@dataclass(frozen=True)
class CoordinatorParts:
    """A coordinator's parts."""

    settings: CoordinatorSettings
    party: Party
    """Chain, storage, key, outbox."""
    database: Database
    nonces: Nonces
    guard: GuardMemory

    @staticmethod
    def open(settings: CoordinatorSettings) -> CoordinatorParts:
        """Opens all parts; raises the specific LockstepError for whatever is missing, closed or wrong."""
        party = Party.open(settings.shared)
        guard = GuardMemory(settings.home, Scope.of(party.w3, party.addresses, party.address))
        return CoordinatorParts(
            settings, party, Database(settings.database_url), Nonces(settings.home / FILE_NAME), guard
        )

    @property
    def me(self) -> Address:
        """The staking account."""
        return self.party.address

    def context(self, notify: Callable[[str], None], account: Collector | None = None) -> ApiContext:
        """Returns the API's context over these parts; `account`: the collector of the account's metrics."""
        return ApiContext(
            database=self.database,
            nonces=self.nonces,
            store=self.party.store,
            aggregator=self.me,
            max_blob_bytes=self.settings.max_blob_bytes,
            published=PublishedMarket.of(self.settings, self.party.addresses),
            signed_for=self.party.contracts.signed_for,
            notify=notify,
            account=account,
            rates=RequestRates(self.settings.requests_per_second),
            descriptions=Descriptions(self.party.store),
        )

    def close(self) -> None:
        """Closes the party, the nonces, the guard and the database."""
        self.party.close()
        self.nonces.close()
        self.guard.close()
        self.database.close()
