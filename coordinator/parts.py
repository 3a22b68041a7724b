"""What a coordinator stands on: chain, store, index, guard, key. Opened once per process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.context import Context
from coordinator.db import Database
from coordinator.guard import Guard
from coordinator.settings import CoordinatorSettings
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.keys import load_account
from lockstep.chain.rpc import connect
from lockstep.protocol.types import Address
from lockstep.storage import ContentStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from eth_account.signers.local import LocalAccount
    from web3 import Web3


@dataclass(frozen=True)
class Parts:
    """A coordinator's parts."""

    settings: CoordinatorSettings
    addresses: Addresses
    w3: Web3
    contracts: Contracts
    store: ContentStore
    database: Database
    guard: Guard
    account: LocalAccount

    @staticmethod
    def open(settings: CoordinatorSettings) -> Parts:
        """Open everything; raises the error tree's own error for whatever is missing, closed or wrong."""
        account = load_account(settings.home / "keystore.json", settings.shared.password())
        addresses = Addresses.load(Path(settings.shared.deployment).expanduser())
        w3 = connect(settings.shared.rpc, addresses.chain_id)
        return Parts(
            settings=settings,
            addresses=addresses,
            w3=w3,
            contracts=Contracts.at(w3, addresses),
            store=open_store(settings.shared.storage),
            database=Database(settings.database_url),
            guard=Guard(settings.home / "guard.sqlite"),
            account=account,
        )

    @property
    def me(self) -> Address:
        """The staking account."""
        return Address(self.account.address)

    def context(self, poke: Callable[[str], None]) -> Context:
        """What the API needs of this."""
        return Context(
            database=self.database,
            guard=self.guard,
            store=self.store,
            aggregator=self.me,
            max_blob_bytes=self.settings.max_blob_bytes,
            market=self.addresses.market,
            chain_id=self.addresses.chain_id,
            poke=poke,
        )

    def close(self) -> None:
        """Close what holds files open."""
        self.store.close()
        self.guard.close()
        self.database.close()
