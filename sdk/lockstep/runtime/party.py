"""Resources of a market process, opened once: chain, contracts, storage, its own key and outbox."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from lockstep.base.closing import Closing
from lockstep.base.redaction import redacted
from lockstep.chain import logcache
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.crosscheck import CrossCheck
from lockstep.chain.devnet import CHAIN_ID
from lockstep.chain.finality import relied_block
from lockstep.chain.gas import fees_now
from lockstep.chain.keys import KEYSTORE, load_account
from lockstep.chain.logcache import LogCache
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.execution.capacity import ChainPace
from lockstep.protocol.errors import ChainError, FundsError, TryLater
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.runtime.staking import OUTBOX, deposit
from lockstep.storage import open_store

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

    from lockstep.base.settings import Settings
    from lockstep.chain.contracts import Call, Market
    from lockstep.storage import ContentStore

MINED_SECONDS = 30.0
LOOKS_A_BLOCK = 4
LOOK_SECONDS = 3.0
"""Longest time between two requests for the latest block, in machine seconds."""
PACE_SEEN = 5
"""Number of recent gaps between blocks, in machine time, that determine how often the head is requested."""
PACE_BLOCKS = 12
"""Number of block gaps whose median is the block time: a devnet's jump in time is only one of them."""


@dataclass(frozen=True)
class Head:
    """The latest block."""

    number: int
    time: Seconds
    hash: str = ""
    """Hash of the block, which distinguishes blocks of equal number."""


class HeadTracker:
    """Tracks the latest block, with no more requests than the chain's pace requires."""

    def __init__(
        self, ask: Callable[[], Head], at_least: float, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        """`at_least` is the minimum number of machine seconds between two requests."""
        self._ask = ask
        self._at_least = at_least
        self._clock = clock
        self._head: Head | None = None
        self._next = self._came = 0.0
        self._gaps: deque[float] = deque(maxlen=PACE_SEEN)

    @property
    def still(self) -> float:
        """The machine seconds since a new block was last seen; 0 before the first."""
        return 0.0 if self._head is None else self._clock() - self._came

    def poll(self) -> Head:
        """Returns the latest block, possibly as of a moment ago. Raises `Unreachable`."""
        now = self._clock()
        if self._head is not None and now < self._next:
            return self._head
        head = self._ask()
        if self._head is not None and head.number > self._head.number:
            self._gaps.append((now - self._came) / (head.number - self._head.number))
        if head != self._head:
            self._came = now
        # Before the first gap is known, it is at least the time without a new block.
        gap = median(self._gaps) if self._gaps else now - self._came
        # Measured from before the request, so that a slow provider is not asked more often than it answers.
        self._next = now + max(self._at_least, min(gap / LOOKS_A_BLOCK, LOOK_SECONDS))
        self._head = head
        return head


@dataclass(frozen=True)
class Party(Closing):
    """One account's view of one deployment."""

    settings: Settings
    addresses: Addresses
    w3: Web3
    contracts: Contracts
    store: ContentStore
    account: LocalAccount
    outbox: Outbox
    check: CrossCheck | None = None
    """A second provider that must agree with the chain's provider; None: no check."""

    @staticmethod
    def open(settings: Settings, *, stored: bool = True) -> Party:
        """Opens all resources; raises the specific LockstepError for whatever is missing, closed or wrong.

        `stored` is False if nothing is read from storage, which then need not answer.
        """
        addresses = Addresses.load(settings.deployment)
        account = load_account(settings.home_dir / KEYSTORE, settings.password())
        w3 = connect(settings.rpc, addresses.chain_id)
        check = None
        if settings.rpc_check:
            other = connect(settings.rpc_check, addresses.chain_id)
            check = CrossCheck(other, redacted(settings.rpc), redacted(settings.rpc_check))
        contracts = Contracts.at(w3, addresses)
        store = open_store(settings.storage)
        if stored:
            store.check()
        outbox = Outbox(settings.home_dir / OUTBOX, w3, account, settings.max_fee_wei, settings.max_tip_wei)
        return Party(settings, addresses, w3, contracts, store, account, outbox, check)

    @property
    def address(self) -> Address:
        """The staking account."""
        return Address(self.account.address)

    def log_cache(self) -> LogCache:
        """Opens the copy of the chain's logs in the home; the caller closes it."""
        path = self.settings.home_dir / logcache.FILE_NAME
        return LogCache(path, self.w3, self.addresses, checked=self.check is not None)

    def head(self) -> Head:
        """Returns the latest block, whose timestamp is the only clock."""
        block = self.w3.eth.get_block("latest")
        return Head(int(block["number"]), Seconds(block["timestamp"]), block["hash"].hex())

    def relied(self, head: int) -> int:
        """Returns the last block that the setting `finality` trusts on a chain with this head; below zero if there is
        none. Raises TryLater, Unreachable."""
        return relied_block(self.w3, self.settings.finality, head)

    def chain_pace(self) -> ChainPace:
        """Returns the chain's pace: the median gap between recent blocks, and the times that the deployment
        guarantees."""
        return pace_of(self.w3, self.contracts.market)

    def base_fee(self) -> int:
        """Returns the base fee in wei per gas; 0 on a devnet, whose coin is worth nothing."""
        return base_fee_of(self.w3, self.addresses.chain_id)

    def deposit(self, amount: Wei, now: Seconds) -> Call:
        """Returns the transaction that deposits `amount` of the account's tokens as stake, allowance included."""
        return deposit(self.contracts, self.account, amount, now)

    def settle(self) -> list[str]:
        """Waits for transactions of an earlier process, since decisions depend only on the chain. Returns the keys that
        reverted."""
        idle = []
        for key in self.outbox.recover():
            try:
                self.outbox.wait(key, MINED_SECONDS)
            except (ChainError, FundsError, TryLater):
                idle.append(key)
        return idle

    def close(self) -> None:
        """Closes open files; sent transactions stay sent."""
        self.outbox.close()
        self.store.close()


def base_fee_of(w3: Web3, chain_id: int) -> int:
    """Returns the base fee in wei per gas; 0 on a devnet, whose coin is worth nothing."""
    return 0 if chain_id == CHAIN_ID else fees_now(w3).base


def pace_of(w3: Web3, market: Market) -> ChainPace:
    """Returns a chain's pace: the median gap between recent blocks, and the times that the deployment guarantees."""
    head = int(w3.eth.block_number)
    first = max(head - PACE_BLOCKS, 0)
    times = [int(w3.eth.get_block(n)["timestamp"]) for n in range(first, head + 1)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    promised = market.chain_times().inclusion
    return ChainPace(float(median(gaps)) if gaps else float(promised), float(promised))
