"""The contracts' storage as immutable values, and the draft that a transaction writes.

A `State` is a value: it can be stored, compared and branched. A transaction reads and writes a `Draft`, which copies a
record on the first write. `Draft.close` returns the next State, which shares unchanged tables with the previous one. A
transaction that reverts discards its draft.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lockstep.protocol.dispute.game import NO_GAME, Arbiter, Game
from lockstep.protocol.jobs import ZERO, ZERO_ADDRESS, Claim, JobParams, JobState, JobStatus, Round
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.types import Asked, Audit, Demand, Duty, Lock, Unbond, Witness
from lockstep.protocol.reverts import overflow
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, GameId, JobId, Seconds

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FOLD_AT = 32
"""Number of recent changes that a table stores separately, before it copies itself; or up to the square root of its
size.
"""


class Table(Generic[K, V]):
    """A Solidity mapping as an immutable value: a key that was never written has the table's zero."""

    __slots__ = ("_new", "_old", "zero")

    def __init__(self, zero: V, old: dict[K, V] | None = None, new: dict[K, V] | None = None) -> None:
        self.zero = zero
        self._old: dict[K, V] = old or {}
        self._new: dict[K, V] = new or {}

    def __getitem__(self, key: K) -> V:
        if key in self._new:
            return self._new[key]
        return self._old.get(key, self.zero)

    def get(self, key: K, default: V | None = None) -> V | None:
        """Returns the entry, or `default` if it is zero."""
        found = self[key]
        return default if found == self.zero else found

    def __contains__(self, key: K) -> bool:
        return self[key] != self.zero

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Table({dict(self.items())})"

    def items(self) -> Iterator[tuple[K, V]]:
        """Yields every entry that is not zero."""
        new = self._new
        # The older part has no zeros: they are dropped when changes are folded in.
        for key, value in self._old.items():
            if key not in new:
                yield key, value
            elif (latest := new[key]) != self.zero:
                yield key, latest
        for key, value in new.items():
            if key not in self._old and value != self.zero:
                yield key, value

    def values(self) -> Iterator[V]:
        """Yields every value that is not zero."""
        return (value for _, value in self.items())

    def with_(self, changes: dict[K, V]) -> Table[K, V]:
        """Returns the table after `changes`; the zero value deletes an entry."""
        new = {**self._new, **changes}
        if len(new) <= FOLD_AT or len(new) ** 2 <= len(self._old):
            return Table(self.zero, self._old, new)
        folded = {**self._old, **new}
        return Table(self.zero, {key: value for key, value in folded.items() if value != self.zero})


class Overlay(Generic[K, V]):
    """A table in a draft: reads fall through to the State, writes stay in the overlay."""

    __slots__ = ("_table", "changes")

    def __init__(self, table: Table[K, V]) -> None:
        self._table = table
        self.changes: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        """Returns the record for reading; `edit` returns one whose fields may be written."""
        if key in self.changes:
            return self.changes[key]
        return self._table[key]

    def __setitem__(self, key: K, value: V) -> None:
        self.changes[key] = value

    def __delitem__(self, key: K) -> None:
        self.changes[key] = self._table.zero

    def __contains__(self, key: K) -> bool:
        return self[key] != self._table.zero

    def edit(self, key: K) -> V:
        """Returns this transaction's own copy of the record, for writing, like a storage pointer."""
        if key not in self.changes:
            self.changes[key] = copy(self._table[key])
        elif self.changes[key] is self._table.zero:
            self.changes[key] = copy(self._table.zero)
        return self.changes[key]

    def close(self) -> Table[K, V]:
        """Returns the table with the written records."""
        return self._table.with_(self.changes) if self.changes else self._table


class NoArbiter:
    """Arbiter for deployments on which no game reaches an execution; every call raises."""

    def _refuse(self, *asked: Any, **named: Any) -> int:
        raise LookupError("this deployment has no arbiter")

    execute = stage = combine = _refuse


@dataclass(frozen=True)
class Deployment:
    """The constants of a deployment: the contracts' addresses and creation arguments, and the machine's functions."""

    chain_id: int
    token: Address
    vault: Address
    market: Address
    game: Address
    validator: Address
    witnesses: Address
    availability: Address
    unbond_seconds: Seconds
    arbiter_address: Address = ZERO_ADDRESS
    chain: ChainTimes = field(default_factory=ChainTimes)
    recover: Callable[[Digest, bytes], Address] = lambda digest, signature: ZERO_ADDRESS
    """Recovers the signer of a digest from a signature r ‖ s ‖ v; returns ZERO_ADDRESS where ECDSA.tryRecover fails."""
    arbiter: Arbiter = field(default_factory=NoArbiter)
    """Executes ops; the protocol itself has no arithmetic."""


class _Overlaid(Generic[K, V]):
    """Descriptor of a draft's table, laid over the State's on first use."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, draft: Draft, owner: type | None = None) -> Overlay[K, V]:
        overlay: Overlay[K, V] = Overlay(getattr(draft.before, self.name))
        draft.__dict__[self.name] = overlay
        return overlay


@dataclass(frozen=True)
class State:
    """Everything that the contracts store, with one table per mapping under the contracts' names."""

    at: Deployment

    # the token
    balances: Table[Address, int]
    allowances: Table[tuple[Address, Address], int]
    """Allowances by (owner, spender)."""
    permits: Table[Address, int]
    """Number of permits that an owner has used."""

    # StakeVault
    free: Table[Address, int]
    credits: Table[Address, int]
    delegate_of: Table[Address, Address]
    owner_of: Table[Address, Address]
    """The address that alone unbonds and receives tokens that leave the vault; zero: the account itself."""
    proposed_owner_of: Table[Address, Address]
    unbonding: Table[Address, Unbond]
    locks: Table[bytes, Lock]

    # JobMarket
    jobs: Table[JobId, JobState]
    params: Table[JobId, JobParams | None]
    rounds: Table[tuple[JobId, int], Round]
    claims: Table[ClaimId, Claim]
    barred: Table[tuple[JobId, Address], bool]
    """Accounts convicted of a merge of the job, which may not merge in it again."""
    rewound: Table[AuditId, bool]
    """Audits in rounds voided by a convicted merge. Witnesses who agreed are still paid."""

    # Witnesses
    enrolled: Table[tuple[JobId, Address], Witness]
    lists: Table[JobId, tuple[Address, ...]]
    audits: Table[AuditId, Audit]
    duties: Table[tuple[AuditId, int], Duty]
    drawing: Table[JobId, AuditId | None]
    """The audit whose beacon is fixed and which is not drawn yet."""

    # Availability, Validator
    demands: Table[Digest, Demand]
    asked: Table[ClaimId, Asked]
    seeds: Table[Digest, Digest]
    """Random words of demands, stored before the beacon block's hash was forgotten."""
    committed_at: Table[tuple[str, Digest], int]
    """By (contract, digest): the block in which an act was committed."""

    # DisputeGame
    games: Table[GameId, Game]
    games_on: Table[tuple[ClaimId, int], GameId | None]
    """Games on a claim in order of opening."""
    first_live: Table[ClaimId, int]
    """Index of the first game on a claim that may be live: all before it are closed."""
    defending: Table[Address, int]
    """Number of open games that an account defends, on any claims."""

    total_supply: int = 0
    """The token's supply."""
    total_escrow: int = 0
    """Sum of the escrows of all jobs in the vault."""
    base_fees: int = 0
    """Base fees of the last seals (prices.push)."""

    @staticmethod
    def empty(at: Deployment) -> State:
        """Returns the state of a new deployment."""
        return State(
            at, Table(0), Table(0), Table(0),
            Table(0), Table(0), Table(ZERO_ADDRESS), Table(ZERO_ADDRESS), Table(ZERO_ADDRESS), Table(Unbond()),
            Table(Lock()),
            Table(JobState(ZERO_ADDRESS, JobStatus.NONE)), Table(None), Table(Round()), Table(Claim()), Table(False),
            Table(False),
            Table(Witness()), Table(()), Table(Audit()), Table(Duty()), Table(None),
            Table(Demand()), Table(Asked()), Table(ZERO), Table(0),
            Table(NO_GAME), Table(None), Table(0), Table(0),
        )  # fmt: skip

    @property
    def owed(self) -> int:
        """Returns the total that the vault must be able to pay; equals `balances[at.vault]` unless tokens were sent to
        it directly.
        """
        parts = (self.free, self.credits)
        locked = sum(lock.amount for lock in self.locks.values())
        unbonding = sum(unbond.amount for unbond in self.unbonding.values())
        return sum(sum(part.values()) for part in parts) + locked + unbonding + self.total_escrow


class Draft:
    """A State being written by one transaction in one block.

    It has an attribute for each table and total of State under the same name, so that views accept both.
    """

    balances = _Overlaid[Address, int]()
    allowances = _Overlaid[tuple[Address, Address], int]()
    permits = _Overlaid[Address, int]()
    free = _Overlaid[Address, int]()
    credits = _Overlaid[Address, int]()
    delegate_of = _Overlaid[Address, Address]()
    owner_of = _Overlaid[Address, Address]()
    proposed_owner_of = _Overlaid[Address, Address]()
    unbonding = _Overlaid[Address, Unbond]()
    locks = _Overlaid[bytes, Lock]()
    jobs = _Overlaid[JobId, JobState]()
    params = _Overlaid[JobId, "JobParams | None"]()
    rounds = _Overlaid[tuple[JobId, int], Round]()
    claims = _Overlaid[ClaimId, Claim]()
    barred = _Overlaid[tuple[JobId, Address], bool]()
    rewound = _Overlaid[AuditId, bool]()
    enrolled = _Overlaid[tuple[JobId, Address], Witness]()
    lists = _Overlaid[JobId, tuple[Address, ...]]()
    audits = _Overlaid[AuditId, Audit]()
    duties = _Overlaid[tuple[AuditId, int], Duty]()
    drawing = _Overlaid[JobId, "AuditId | None"]()
    demands = _Overlaid[Digest, Demand]()
    asked = _Overlaid[ClaimId, Asked]()
    seeds = _Overlaid[Digest, Digest]()
    committed_at = _Overlaid[tuple[str, Digest], int]()
    games = _Overlaid[GameId, Game]()
    games_on = _Overlaid[tuple[ClaimId, int], "GameId | None"]()
    first_live = _Overlaid[ClaimId, int]()
    defending = _Overlaid[Address, int]()

    def __init__(self, before: State, block: Block, data: bytes = b"", gas: int = 0) -> None:
        self.before = before
        self.block = block
        self.data = data
        """Data of the transaction's call."""
        self.gas = gas
        """Metered gas of the move."""
        self.at = before.at
        self.total_supply = before.total_supply
        self.total_escrow = before.total_escrow
        self.base_fees = before.base_fees
        self.events: list[Emitted] = []

    def emit(self, contract: str, name: str, *values: Any) -> None:
        """Appends a log entry."""
        self.events.append(Emitted(contract, name, values))

    def close(self) -> State:
        """Returns the State after the transaction."""
        written = {name: part.close() for name, part in self.__dict__.items() if isinstance(part, Overlay)}
        # Equivalent to dataclasses.replace, which takes ten times as long.
        after = object.__new__(State)
        after.__dict__.update(self.before.__dict__)
        after.__dict__.update(
            written, total_supply=self.total_supply, total_escrow=self.total_escrow, base_fees=self.base_fees
        )
        return after


Reader = State | Draft
"""The argument of a view: State and Draft have the same tables under the same names."""


def checked(value: int, bits: int = 256) -> int:
    """Returns `value`; reverts, as Solidity's checked arithmetic, unless it is an unsigned integer of `bits` bits."""
    if not 0 <= value < 1 << bits:
        raise overflow()
    return value


def added(value: int, more: int) -> int:
    """Returns the sum; reverts on overflow, as Solidity does."""
    if not 0 <= value + more <= MAX_UINT:
        raise overflow()
    return value + more
