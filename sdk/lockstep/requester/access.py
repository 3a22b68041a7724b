"""Access to one deployment of the market: reads it, and sends the transactions of one account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lockstep.base.amounts import Currency
from lockstep.base.networks import terms_of
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.events import EventReader
from lockstep.chain.keys import KEYSTORE, load_account
from lockstep.chain.logcache import users_cache
from lockstep.chain.rpc import connect
from lockstep.market.ledger import Ledger, ledger_of
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Address, Wei
from lockstep.storage import ContentStore, open_store

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

    from lockstep.base.settings import Settings
    from lockstep.chain.outbox import Outbox


class MarketAccess:
    """One deployment of the market, and one account that reads it and sends to it."""

    def __init__(
        self,
        w3: Web3,
        contracts: Contracts,
        store: ContentStore,
        account: LocalAccount | Callable[[], LocalAccount],
        home: Path,
        max_fee_wei: int | None = None,
        max_tip_wei: int | None = None,
        finality: str = "latest",
        terms: str | None = None,
        rpc: str = "",
    ) -> None:
        """`account`: the key, or a function that opens it when something must be signed. Reading needs none.

        `max_fee_wei`, `max_tip_wei`: the bounds of `chain.outbox`. `finality`: as in the settings. `terms`: the preset
        of a job's terms on this market; None: the default of descriptions. `rpc`: the URLs of the chain's providers,
        which key their logs in the user's cache; without them no logs are cached.
        """
        self._rpc = rpc
        self.terms = terms
        self.finality = finality
        self._bounds = (max_fee_wei, max_tip_wei)
        self.w3 = w3
        self.contracts = contracts
        self.store = store
        self._account = account
        self.home = home

    @classmethod
    def at(
        cls, settings: Settings, addresses: Addresses | None = None, *, account: LocalAccount | None = None
    ) -> Self:  # fmt: skip
        """Opens the market at the settings' locations, of which only the chain must answer.

        `addresses` and `account` replace the settings' deployment and key.
        """
        terms = None if addresses else terms_of(settings.deployment)
        addresses = addresses or Addresses.load(settings.deployment)
        w3 = connect(settings.rpc, addresses.chain_id)
        contracts, store = Contracts.at(w3, addresses), open_store(settings.storage)
        key = account or (lambda: load_account(settings.home_path / KEYSTORE, settings.password()))
        return cls(
            w3, contracts, store, key, settings.home_path, settings.max_fee_wei, settings.max_tip_wei,
            settings.finality, terms, settings.rpc,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Network: market {self.contracts.addresses.market} on chain {self.contracts.addresses.chain_id}>"

    @property
    def currency(self) -> Currency:
        """The market's token: its symbol and decimals. Terms are scaled to it: `presets.LOCAL.in_decimals(6)`."""
        return self.contracts.token.currency

    @cached_property
    def account(self) -> LocalAccount:
        """The account that signs; raises KeyStoreError if the key cannot be opened."""
        return self._account() if callable(self._account) else self._account

    def outbox(self) -> Outbox:
        """The account's transactions; they survive this process. Raises UsageError if the home cannot be made."""
        from lockstep.chain.outbox import Outbox

        self._make_home()
        return Outbox(self.home / "outbox.sqlite", self.w3, self.account, *self._bounds)

    def withdraw(self) -> Wei:
        """Withdraws what the vault owes the account: refunds, and its share of slashes. Returns the amount."""
        vault = self.contracts.vault
        owed = vault.credits(Address(self.account.address))
        if owed:
            self._send(vault.withdraw(), f"withdraw/{self.w3.eth.get_transaction_count(self.account.address)}")
        return owed

    def _send(self, call: Call, key: str) -> None:
        """Sends a transaction and waits until it is mined; each `key` is sent once."""
        outbox = self.outbox()
        try:
            outbox.send(call, key)
        finally:
            outbox.close()

    def ledger(self) -> Ledger:
        """Returns every job's current state, reconstructed from the chain's events."""
        with self.reader() as reader:
            return ledger_of(reader)

    def opened(self) -> Ledger:
        """Returns only every job's id and requester, which takes less time."""
        with self.reader("JobCreated") as reader:
            return ledger_of(reader)

    @contextmanager
    def reader(self, *names: str) -> Iterator[EventReader]:
        """Opens a reader of the market's events, all or those named; the user's cache keeps final blocks' logs."""
        addresses = self.contracts.addresses
        if not self._rpc:
            yield EventReader(self.w3, addresses, names=names)
            return
        with users_cache(self._rpc, self.w3, addresses) as cache:
            yield EventReader(self.w3, addresses, cache=cache, names=names)

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"{self.home} cannot be used as a home: {error.strerror}", hint="name a writable folder"
            ) from error
