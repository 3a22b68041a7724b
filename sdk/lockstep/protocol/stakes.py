"""The vault's books, pure. Twin of contracts/StakeVault.sol: same names, same order, same sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from lockstep.protocol.economics import split_slash
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, Seconds, Wei

BURN = Address("0x000000000000000000000000000000000000dEaD")


class Keeper(IntEnum):
    """The contracts that lock stake: the market claims, the game bonds, the others theirs."""

    MARKET = 0
    GAME = 1
    WITNESSES = 2
    AVAILABILITY = 3


@dataclass(frozen=True)
class Lock:
    """Stake or a bond held under one key."""

    account: Address
    amount: Wei
    keeper: Keeper
    """Which contract locked: it alone unlocks or takes."""


@dataclass(frozen=True)
class Unbond:
    """Stake on its way out."""

    amount: Wei
    available_at: Seconds


@dataclass
class Books:
    """Every balance of one vault. free + locked + unbonding + credits + escrow = the tokens it holds."""

    unbond_seconds: Seconds
    free: defaultdict[Address, int] = field(default_factory=lambda: defaultdict(int))
    credits: defaultdict[Address, int] = field(default_factory=lambda: defaultdict(int))
    unbonding: dict[Address, Unbond] = field(default_factory=dict)
    locks: dict[bytes, Lock] = field(default_factory=dict)
    delegate_of: dict[Address, Address] = field(default_factory=dict)
    """Who may sign and post for an account."""
    total_escrow: int = 0
    tokens: int = 0
    """What the token would say that the vault holds."""

    # -- anyone, for themselves

    def deposit(self, sender: Address, amount: Wei) -> None:
        """Tokens become free stake."""
        self.free[sender] += amount
        self.tokens += amount

    def request_unbond(self, sender: Address, amount: Wei, now: Seconds) -> None:
        """Moves free stake to unbonding; a further request restarts the delay for all of it."""
        available = self.free[sender]
        # INVARIANT: stake leaves only from what no claim and no game has locked.
        if amount > available:
            raise revert("StakeTooLow", sender, amount, available)
        before = self.unbonding.get(sender, Unbond(Wei(0), Seconds(0)))

        self.free[sender] = available - amount
        self.unbonding[sender] = Unbond(Wei(before.amount + amount), Seconds(now + self.unbond_seconds))

    def withdraw_unbonded(self, sender: Address, now: Seconds) -> Wei:
        """Pays the unbonding stake out, once the delay has passed."""
        unbond = self.unbonding.get(sender)
        if unbond is None or unbond.amount == 0:
            raise revert("NothingDue")
        # INVARIANT: unbonding outlasts every challenge window and both clocks.
        if now < unbond.available_at:
            raise revert("Unbonding", unbond.available_at)

        del self.unbonding[sender]
        self.tokens -= unbond.amount
        return unbond.amount

    def withdraw(self, sender: Address) -> Wei:
        """Pays the sender's credits out; for BURN, anybody pushes them."""
        amount = self.credits[sender]
        if amount == 0:
            raise revert("NothingDue")

        self.credits[sender] = 0
        self.tokens -= amount
        return Wei(amount)

    # -- the keepers

    def lock(self, account: Address, key: bytes, amount: Wei, keeper: Keeper = Keeper.MARKET) -> None:
        """Locks free stake of `account` under an unused key."""
        # INVARIANT: one lock backs one claim or one game, never two.
        if key in self.locks:
            raise revert("AlreadyLocked", key)
        available = self.free[account]
        if amount > available:
            raise revert("StakeTooLow", account, amount, available)

        self.free[account] = available - amount
        self.locks[key] = Lock(account, amount, keeper)

    def increase(self, key: bytes, amount: Wei) -> None:
        """Adds free stake of the lock's account to it. Twin of `raise`, a word that Python keeps."""
        held = self.locks.get(key)
        if held is None:
            raise revert("NotLocked", key)
        available = self.free[held.account]
        if amount > available:
            raise revert("StakeTooLow", held.account, amount, available)

        self.free[held.account] = available - amount
        self.locks[key] = replace(held, amount=Wei(held.amount + amount))

    def unlock(self, key: bytes, keeper: Keeper = Keeper.MARKET) -> None:
        """Gives a lock back to its account's free stake."""
        taken = self._take(key, keeper)

        self.free[taken.account] += taken.amount

    def take_bond(self, key: bytes, defender: Address, amount: int | None = None, keeper: Keeper = Keeper.GAME) -> None:
        """A lost challenge or demand. Takes `amount` of the bond, all of it if it holds less (None: all of it): 60 %
        (rounded down) of that to the defender, the rest is burned; the lock keeps what was not taken."""
        # INVARIANT: a stake behind a claim is never taken as a bond.
        if keeper == Keeper.MARKET:
            raise revert("Unauthorized", keeper)
        held = self._take(key, keeper)
        taken = held.amount if amount is None else min(amount, held.amount)
        to_defender = taken * 60 // 100

        if taken < held.amount:
            self.locks[key] = replace(held, amount=Wei(held.amount - taken))
        self.credits[defender] += to_defender
        self.credits[BURN] += taken - to_defender

    def slash(
        self,
        key: bytes,
        owed: Wei,
        winners: Sequence[Address],
        refunds: Sequence[tuple[Address, Wei]],
        requester: Address,
    ) -> None:
        """A convicted claim: `owed` becomes escrow, for work that fell with it. Of the rest, 30 % to one to three
        winners, by 2 : 1 : 1; 20 % to the requester, of which up to 10 % pay `refunds`, in order; every part rounded
        down, what is left is burned."""
        taken = self._take(key, Keeper.MARKET)
        # INVARIANT: work that falls with a claim is paid before anybody shares its stake.
        self.total_escrow += owed
        # INVARIANT: slashed = owed to work + burned + to the challengers + to the requester; of the rest at least half
        # is burned.
        parts = split_slash(Wei(taken.amount - owed), len(winners), [amount for _, amount in refunds])

        for (account, _), amount in zip(refunds, parts.refunds, strict=True):
            self.credits[account] += amount
        for account, amount in zip(winners, parts.winners, strict=True):
            self.credits[account] += amount
        self.credits[requester] += parts.requester
        self.credits[BURN] += parts.burned

    def slash_liveness(self, key: bytes, amount: Wei, keeper: Keeper = Keeper.MARKET) -> None:
        """No reveal, or a broken duty: `amount` of the lock is burned, the rest is free again."""
        taken = self._take(key, keeper)
        if amount > taken.amount:
            raise revert("StakeTooLow", taken.account, amount, taken.amount)

        self.credits[BURN] += amount
        self.free[taken.account] += taken.amount - amount

    def escrow(self, amount: Wei) -> None:
        """A job's escrow comes in from its requester."""
        self.total_escrow += amount
        self.tokens += amount

    def credit(self, account: Address, amount: Wei) -> None:
        """Turns escrow into a credit of `account`."""
        # INVARIANT: pay and refunds together never exceed the escrow.
        if amount > self.total_escrow:
            raise revert("EscrowTooLow", amount, self.total_escrow)

        self.total_escrow -= amount
        self.credits[account] += amount

    # -- views

    @property
    def owed(self) -> int:
        """Everything that the vault must be able to pay: equals `tokens`."""
        locked = sum(lock.amount for lock in self.locks.values())
        unbonding = sum(unbond.amount for unbond in self.unbonding.values())
        return sum(self.free.values()) + locked + unbonding + sum(self.credits.values()) + self.total_escrow

    # -- inside

    def _take(self, key: bytes, keeper: Keeper) -> Lock:
        """Removes the lock of `key` and returns it; the caller of this says where its amount goes."""
        taken = self.locks.get(key)
        if taken is None:
            raise revert("NotLocked", key)
        # INVARIANT: the contract that locked is the one that unlocks or takes.
        if taken.keeper != keeper:
            raise revert("WrongKeeper", key)

        del self.locks[key]
        return taken
