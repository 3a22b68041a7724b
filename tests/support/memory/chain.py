"""A simulated chain in memory: a transaction pool, mined blocks, and reorganisations.

    submit(raw) -> pool -> mine() -> block, receipts, logs        `head.world` is the state that all read

It is as strict as a node: a transaction executes in a later block than its sender read; nonces, fees, balances and
sizes are checked; a block hash is forgotten after 256 blocks; a reorganisation reverts logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from lockstep.chain.deployment import create_address
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.calls import Block
from lockstep.protocol.types import Address, Seconds
from tests.support.memory.machine import (
    ChainState,
    Machine,
    Message,
    MessageResult,
    TransactionLog,
    floor_gas,
    intrinsic_gas,
)

GENESIS_TIME = Seconds(1_800_000_000)
GAS_LIMIT = 30_000_000
FIRST_BASE_FEE = 1_000_000_000
BASE_FEE_CHANGE = 8
"""EIP-1559: a full block raises the base fee by an eighth, an empty one lowers it by one."""
ELASTICITY = 2
TRANSACTION_BYTES = 131_072
"""The largest transaction that nodes relay (geth's txMaxSize)."""
REPLACEMENT_PERCENT = 10
"""The percentage by which a transaction must outbid the waiting one that it replaces."""


class TransactionRefused(Exception):
    """Raised for a transaction that no node accepts into its pool, with the text of real nodes."""


@dataclass(frozen=True)
class Transaction:
    """One transaction, signed or sent by an account that the chain acts for."""

    hash: bytes
    sender: Address
    nonce: int
    to: Address | None
    data: bytes
    value: int
    gas: int
    max_fee: int
    """Wei per gas."""
    tip: int
    size: int

    def price(self, base_fee: int) -> int:
        """Returns the transaction's price per gas in a block of this base fee."""
        return min(self.max_fee, base_fee + self.tip)


@dataclass(frozen=True)
class MinedReceipt:
    """A mined transaction's place and outcome."""

    transaction: Transaction
    index: int
    outcome: MessageResult
    price: int
    cumulative: int
    """Gas of the block up to and including this transaction."""
    first_log: int
    created: Address | None


@dataclass(frozen=True)
class Mined:
    """A mined block: its header fields, the chain's state after it, and its receipts."""

    number: int
    hash: bytes
    parent: bytes
    time: Seconds
    base_fee: int
    world: ChainState
    receipts: tuple[MinedReceipt, ...] = ()

    @property
    def gas_used(self) -> int:
        """The gas that all the block's transactions used."""
        return self.receipts[-1].cumulative if self.receipts else 0

    def logs(self) -> Iterator[tuple[int, MinedReceipt, TransactionLog]]:
        """Yields (index in the block, the transaction's receipt, the log)."""
        for receipt in self.receipts:
            for i, entry in enumerate(receipt.outcome.logs):
                yield receipt.first_log + i, receipt, entry


@dataclass
class Manners:
    """The behaviour of the simulated chain and its provider."""

    block_seconds: int = 0
    """Seconds of `clock` between blocks; 0: a block for every transaction, at once."""
    automine: bool = True
    """With `block_seconds` 0: True mines a transaction at once, False leaves it in the pool until `mine`."""
    interval: int = 1
    """Seconds of chain time between blocks, unless a clock determines more."""
    pace: int = 0
    """Number of requests after which an empty block is mined; 0: none is."""
    order: str = "fifo"
    """The pool's order: fifo, fees (the highest tip first) or random. Nonces of one account stay in order."""
    log_blocks: int = 0
    """The widest range of eth_getLogs, in blocks; 0: unlimited."""
    safe: int = 0
    finalized: int = 0
    """Number of blocks by which the block "finalized" is behind the head."""
    down: str = ""
    """"refused": no connection; "silent": no answer in time; empty: the provider answers."""


class Hashes(Mapping[int, bytes]):
    """The hashes of earlier blocks, as a block sees them."""

    def __init__(self, blocks: Sequence[Mined]) -> None:
        self._blocks = blocks

    def __getitem__(self, number: int) -> bytes:
        return self._blocks[number].hash

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._blocks)))

    def __len__(self) -> int:
        return len(self._blocks)


@dataclass
class _Mark:
    """The state that a snapshot keeps."""

    blocks: list[Mined]
    pool: dict[tuple[Address, int], Transaction]
    shift: int


@dataclass
class MemoryChain:
    """The simulated chain. It is thread-safe: one lock guards the pool, the blocks and the clock."""

    machine: Machine
    manners: Manners = field(default_factory=Manners)
    genesis_time: Seconds = GENESIS_TIME
    seed: int = 0
    clock: Callable[[], float] | None = None
    """An external clock in seconds; None: time passes only with blocks."""

    def __post_init__(self) -> None:
        self.lock = RLock()
        self.blocks: list[Mined] = []
        self.pool: dict[tuple[Address, int], Transaction] = {}
        self.known: dict[bytes, tuple[int, int]] = {}
        """Transaction -> (block, index)."""
        self.shift = 0
        """Seconds by which the clock was advanced."""
        self.next_time: int | None = None
        self.next_base_fee: int | None = None
        self.next_hash: bytes | None = None
        self.metered: dict[bytes, int] = {}
        """Maps a transaction to the gas that an Anvil has metered in its move, if known."""
        self._forks = 0
        self._marks: list[_Mark] = []
        self._random = random.Random(self.seed)
        first = keccak(f"lockstep {self.machine.chain_id} {self.seed} {self.genesis_time}".encode())
        self.blocks.append(Mined(0, first, bytes(32), self.genesis_time, FIRST_BASE_FEE, ChainState()))

    # -- reading

    @property
    def head(self) -> Mined:
        """The latest block."""
        return self.blocks[-1]

    @property
    def world(self) -> ChainState:
        """The state after the latest block."""
        return self.head.world

    def environment(self, mined: Mined) -> Block:
        """Returns the block environment of a call in a block."""
        return Block(mined.number, mined.time, Hashes(self.blocks), mined.base_fee)

    def pending(self) -> tuple[Mined, Block]:
        """Builds the block that would be mined now from the pool, without keeping it."""
        with self.lock:
            mined = self._made(self._time(), self._base_fee(), bytes(32), self._waiting())
            return mined, Block(mined.number, mined.time, Hashes(self.blocks), mined.base_fee)

    def find(self, transaction: bytes) -> tuple[Mined, MinedReceipt] | None:
        """Returns a mined transaction's block and receipt."""
        with self.lock:
            place = self.known.get(transaction)
            return (self.blocks[place[0]], self.blocks[place[0]].receipts[place[1]]) if place is not None else None

    def next_nonce(self, account: Address, *, pending: bool) -> int:
        """Returns the nonce of an account's next transaction; `pending` counts those that wait and can follow."""
        with self.lock:
            nonce = self.world.nonces[account]
            while pending and (account, nonce) in self.pool:
                nonce += 1
            return nonce

    # -- the pool

    def submit(self, transaction: Transaction) -> None:
        """Adds a transaction to the pool. Raises `TransactionRefused`."""
        with self.lock:
            if transaction.hash in self.known or self.pool.get(_place(transaction)) == transaction:
                raise TransactionRefused("transaction already imported")
            if transaction.size > TRANSACTION_BYTES:
                raise TransactionRefused(
                    f"oversized data: transaction size {transaction.size}, limit {TRANSACTION_BYTES}"
                )
            if transaction.nonce < self.world.nonces[transaction.sender]:
                raise TransactionRefused("nonce too low")
            if transaction.gas > GAS_LIMIT:
                raise TransactionRefused("exceeds block gas limit")
            needed = max(intrinsic_gas(transaction.data, transaction.to is None), floor_gas(transaction.data))
            if transaction.gas < needed:
                raise TransactionRefused(f"intrinsic gas too low: {transaction.gas} given, {needed} needed")
            if transaction.tip > transaction.max_fee:
                raise TransactionRefused("max priority fee per gas higher than max fee per gas")
            if transaction.max_fee < self._base_fee() and self.manners.automine and not self.manners.block_seconds:
                raise TransactionRefused("max fee per gas less than block base fee")
            if self.world.coins[transaction.sender] < transaction.gas * transaction.max_fee + transaction.value:
                raise TransactionRefused("insufficient funds for gas * price + value")
            self._replace(transaction)
            if self.manners.automine and not self.manners.block_seconds and self._waiting():
                self.mine()

    def _replace(self, transaction: Transaction) -> None:
        waiting = self.pool.get(_place(transaction))
        if waiting is not None:
            least = 100 + REPLACEMENT_PERCENT
            if 100 * transaction.max_fee < least * waiting.max_fee or 100 * transaction.tip < least * waiting.tip:
                raise TransactionRefused("replacement transaction underpriced")
        self.pool[_place(transaction)] = transaction

    def drop(self, transaction: bytes) -> None:
        """Removes a transaction from the pool, as a node with a full pool does."""
        with self.lock:
            self.pool = {place: t for place, t in self.pool.items() if t.hash != transaction}

    def _waiting(self) -> list[Transaction]:
        """Returns the transactions that the next block may take, in order: nonces follow and fees suffice."""
        base_fee, nonces = self._base_fee(), dict[Address, int]()
        queue = list(self.pool.values())
        if self.manners.order == "fees":
            queue.sort(key=lambda t: -t.price(base_fee))
        elif self.manners.order == "random":
            self._random.shuffle(queue)
        chosen: list[Transaction] = []
        moved = True
        while moved:
            moved = False
            for transaction in queue:
                nonce = nonces.get(transaction.sender, self.world.nonces[transaction.sender])
                if transaction.nonce != nonce or transaction.max_fee < base_fee:
                    continue
                chosen.append(transaction)
                nonces[transaction.sender] = nonce + 1
                moved = True
        return chosen

    # -- mining

    def mine(self, blocks: int = 1) -> Mined:
        """Mines blocks; the first of them includes the pool's transactions."""
        with self.lock:
            for _ in range(blocks):
                mined = self._made(self._time(), self._base_fee(), None, self._waiting())
                self._append(mined)
            return self.head

    def catch_up(self) -> None:
        """Mines the blocks that are due by the clock."""
        with self.lock:
            if not self.manners.block_seconds or self.clock is None:
                return
            while self._now() >= self.head.time + self.manners.block_seconds:
                self.next_time = self.head.time + self.manners.block_seconds
                self.mine()

    def _made(self, time: Seconds, base_fee: int, hash_: bytes | None, transactions: Sequence[Transaction]) -> Mined:
        parent = self.head
        number = parent.number + 1
        block = Block(number, time, Hashes(self.blocks), base_fee)
        world, receipts, gas, logs = parent.world, list[MinedReceipt](), 0, 0
        for transaction in transactions:
            price = transaction.price(base_fee)
            affordable = world.coins[transaction.sender] >= transaction.gas * price + transaction.value
            follows = world.nonces[transaction.sender] == transaction.nonce
            if not follows or not affordable or gas + transaction.gas > GAS_LIMIT:
                continue
            outcome, new = self._executed(world, block, transaction, price)
            world, gas = outcome.world, gas + outcome.gas
            receipts.append(MinedReceipt(transaction, len(receipts), outcome, price, gas, logs, new))
            logs += len(outcome.logs)
        if hash_ is None:
            body = b"".join(receipt.transaction.hash for receipt in receipts)
            head = b"".join(n.to_bytes(8, "big") for n in (number, time, base_fee, self._forks))
            hash_, self.next_hash = self.next_hash or keccak(parent.hash + head + body), None
        return Mined(number, hash_, parent.hash, time, base_fee, world, tuple(receipts))

    def _executed(
        self, world: ChainState, block: Block, transaction: Transaction, price: int
    ) -> tuple[MessageResult, Address | None]:
        sender = transaction.sender
        new = None if transaction.to is not None else create_address(sender, transaction.nonce)
        counted = replace(world, nonces=world.nonces.with_({sender: transaction.nonce + 1}))
        metered = self.metered.get(transaction.hash)
        message = Message(sender, transaction.to, transaction.data, transaction.gas, transaction.value, metered)
        outcome = self.machine.run(counted, block, message, new)
        coins = outcome.world.coins
        paid = coins.with_({sender: max(0, coins[sender] - outcome.gas * price)})
        return replace(outcome, world=replace(outcome.world, coins=paid)), new if outcome.succeeded else None

    def _append(self, mined: Mined) -> None:
        self.blocks.append(mined)
        self.next_time = self.next_base_fee = None
        if self.clock is None:
            self.shift = 0
        for receipt in mined.receipts:
            self.known[receipt.transaction.hash] = (mined.number, receipt.index)
            self.pool.pop(_place(receipt.transaction), None)

    def _now(self) -> int:
        return int(self.clock()) + self.shift if self.clock is not None else 0

    def _time(self) -> Seconds:
        """Returns the time of the next block."""
        if self.next_time is not None:
            return Seconds(max(self.next_time, self.head.time + 1))
        if self.clock is not None:
            return Seconds(max(self._now(), self.head.time + 1))
        return Seconds(self.head.time + max(1, self.manners.interval) + self.shift)

    def _base_fee(self) -> int:
        """Computes the next base fee from the latest block's gas (EIP-1559)."""
        if self.next_base_fee is not None:
            return self.next_base_fee
        parent, target = self.head, GAS_LIMIT // ELASTICITY
        delta = parent.base_fee * abs(parent.gas_used - target) // target // BASE_FEE_CHANGE
        if parent.gas_used > target:
            return parent.base_fee + max(1, delta)
        return parent.base_fee - delta if parent.gas_used < target else parent.base_fee

    # -- what a test does to a chain

    def write(self, **changes: Any) -> None:
        """Replaces tables of the state after the latest block."""
        with self.lock:
            self.blocks[-1] = replace(self.head, world=replace(self.world, **changes))

    def advance(self, seconds: int) -> None:
        """Makes the next block this many seconds later."""
        with self.lock:
            self.shift += seconds

    def snapshot(self) -> int:
        """Returns a mark for `revert`."""
        with self.lock:
            self._marks.append(_Mark(list(self.blocks), dict(self.pool), self.shift))
            return len(self._marks)

    def revert(self, mark: int) -> bool:
        """Restores the state at a mark and drops it and later marks; returns False if there is no such mark."""
        with self.lock:
            if not 0 < mark <= len(self._marks):
                return False
            kept = self._marks[mark - 1]
            del self._marks[mark - 1 :]
            self.blocks[:] = kept.blocks
            self.known = {r.transaction.hash: (b.number, r.index) for b in self.blocks for r in b.receipts}
            self.pool, self.shift = dict(kept.pool), kept.shift
            return True

    def reorganise(self, depth: int, *, keep: bool = False) -> None:
        """Replaces the last `depth` blocks by as many others.

        With `keep` their transactions return to the pool and are mined again; otherwise they are lost until they are
        sent again.
        """
        with self.lock:
            times = [mined.time for mined in self.blocks[-depth:]] if depth else []
            gone = [r.transaction for mined in self.blocks[-depth:] for r in mined.receipts] if depth else []
            self._truncate(len(self.blocks) - depth)
            self._forks += 1
            if keep:
                self.pool |= {_place(transaction): transaction for transaction in gone}
            for time in times:
                self.next_time = time
                self._append(self._made(self._time(), self._base_fee(), None, self._waiting() if keep else []))

    def _truncate(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("the first block stays")
        del self.blocks[blocks:]
        self.known = {hash_: place for hash_, place in self.known.items() if place[0] < blocks}


def _place(transaction: Transaction) -> tuple[Address, int]:
    return transaction.sender, transaction.nonce
