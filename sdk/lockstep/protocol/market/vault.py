"""The vault: deposits, locks, slashes and pays tokens.

Twin of contracts/StakeVault.sol: same names, same order, same sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market import prices, token
from lockstep.protocol.market.calls import MAX_UINT
from lockstep.protocol.market.job_rules import MAX_LOCK
from lockstep.protocol.market.state import Draft, added, checked
from lockstep.protocol.market.types import BURN, Keeper, Lock, Unbond
from lockstep.protocol.reverts import Reverted, revert
from lockstep.protocol.types import Address, Seconds, Wei

MAX_UNBOND = Wei((1 << 192) - 1)
"""Largest amount that the field for unbonding stake holds."""
MAX_ESCROWED = Wei((1 << 128) - 1)
"""Largest sum of escrows that the vault's field holds."""


class Refund(NamedTuple):
    """A refund of gas out of a stake."""

    account: Address
    amount: int
    """Gas when passed to the market, tokens when passed to the vault."""


# -- anyone, for themselves


def deposit(d: Draft, sender: Address, amount: int) -> None:
    """Converts the sender's tokens to free stake."""
    d.free[sender] = added(d.free[sender], amount)

    _emit(d, "Deposited", sender, amount)

    _pull(d, sender, amount)


def deposit_with_permit(d: Draft, sender: Address, amount: int, deadline: int, v: int, r: bytes, s: bytes) -> None:
    """Deposits as `deposit` does, with an EIP-2612 permit for the vault."""
    _permit(d, sender, amount, deadline, v, r, s)
    deposit(d, sender, amount)


def request_unbond(d: Draft, sender: Address, amount: int) -> None:
    """Moves free stake to unbonding; a further request restarts the delay for all unbonding stake."""
    request_unbond_for(d, sender, sender, amount)


def withdraw_unbonded(d: Draft, sender: Address) -> None:
    """Pays out unbonding stake after the delay, to the sender's owner if it has one."""
    _pay_out_unbonded(d, sender)


def withdraw(d: Draft, sender: Address) -> int:
    """Pays out the sender's credits, to its owner if it has one."""
    return _pay_out(d, sender, _payee(d, sender))


def burn(d: Draft, sender: Address) -> int:
    """Transfers burned tokens to an address without a known key."""
    return _pay_out(d, BURN, BURN)


def register_node(d: Draft, sender: Address, key: bytes) -> None:
    """Registers the sender's key for signed requests."""
    _emit(d, "NodeRegistered", sender, key)


def set_delegate(d: Draft, sender: Address, delegate: Address) -> None:
    """Sets the account that may sign and answer for the sender; the zero address for none."""
    set_delegate_for(d, sender, sender, delegate)


def set_owner(d: Draft, sender: Address, owner: Address) -> None:
    """Sets the sender's owner, once and immediately. (`propose_owner` requires the new owner's acceptance.)"""
    standing = d.owner_of[sender]
    # INVARIANT: an account names its owner once; from then on the owner alone hands it on.
    if standing != ZERO_ADDRESS:
        raise revert("NotOwner", sender, standing)
    if owner in (ZERO_ADDRESS, d.at.vault):
        raise revert("OwnerInvalid", owner)

    _own(d, sender, owner)


# -- an owner, for its accounts


def request_unbond_for(d: Draft, sender: Address, account: Address, amount: int) -> None:
    """Moves free stake of the account to unbonding, as `request_unbond`; its owner calls it."""
    _only_owner(d, sender, account)
    available = d.free[account]
    # INVARIANT: stake leaves only from what no claim and no game has locked.
    if amount > available:
        raise revert("StakeTooLow", account, amount, available)
    total = added(d.unbonding[account].amount, amount)
    if total > MAX_UNBOND:
        raise revert("AmountTooLarge", total)
    available_at = d.block.time + d.at.unbond_seconds

    d.free[account] = available - amount
    d.unbonding[account] = Unbond(Wei(total), Seconds(available_at))

    _emit(d, "UnbondRequested", account, total, available_at)


def withdraw_unbonded_for(d: Draft, sender: Address, account: Address) -> None:
    """Pays unbonded stake of the account to its owner."""
    _only_owner(d, sender, account)
    _pay_out_unbonded(d, account)


def withdraw_for(d: Draft, sender: Address, account: Address) -> int:
    """Pays credits of the account to its owner."""
    _only_owner(d, sender, account)
    return _pay_out(d, account, _payee(d, account))


def set_delegate_for(d: Draft, sender: Address, account: Address, delegate: Address) -> None:
    """Sets the account's delegate, so that games can be answered even if the account's key is lost."""
    _only_owner(d, sender, account)

    d.delegate_of[account] = delegate

    _emit(d, "Delegated", account, delegate)


def propose_owner(d: Draft, sender: Address, account: Address, owner: Address) -> None:
    """Offers ownership of the account, which `accept_owner` accepts; the zero address withdraws the offer."""
    _only_owner(d, sender, account)

    d.proposed_owner_of[account] = owner

    _emit(d, "OwnerProposed", account, owner)


def accept_owner(d: Draft, sender: Address, account: Address) -> None:
    """Makes the sender, to which ownership was offered, the account's owner."""
    # INVARIANT: nobody comes to own another's account but by its owner's word and by a key of its own.
    if sender != d.proposed_owner_of[account]:
        raise revert("Unauthorized", sender)

    _own(d, account, sender)


# -- the keepers


def lock(d: Draft, sender: Address, account: Address, key: bytes, amount: int) -> None:
    """Locks free stake of `account` under an unused key."""
    keeper = _keeper(d, sender)
    # INVARIANT: one lock backs one claim or one game, never two.
    if d.locks[key].account != ZERO_ADDRESS:
        raise revert("AlreadyLocked", key)
    available = d.free[account]
    if amount > available:
        raise revert("StakeTooLow", account, amount, available)
    if amount > MAX_LOCK:
        raise revert("AmountTooLarge", amount)

    d.free[account] = available - amount
    d.locks[key] = Lock(account, Wei(amount), keeper)

    _emit(d, "Locked", key, account, amount)


def raise_(d: Draft, sender: Address, key: bytes, amount: int) -> None:
    """Adds free stake of the lock's account to it."""
    _only_market(d, sender)
    held = d.locks[key]
    if held.account == ZERO_ADDRESS:
        raise revert("NotLocked", key)
    available = d.free[held.account]
    if amount > available:
        raise revert("StakeTooLow", held.account, amount, available)
    total = held.amount + amount
    if total > MAX_LOCK:
        raise revert("AmountTooLarge", total)

    d.free[held.account] = available - amount
    d.locks[key] = replace(held, amount=Wei(total))

    _emit(d, "Locked", key, held.account, amount)


def unlock(d: Draft, sender: Address, key: bytes) -> None:
    """Returns a lock's amount to its account's free stake."""
    taken = _take(d, sender, key)

    d.free[taken.account] += taken.amount

    _emit(d, "Unlocked", key, taken.account, taken.amount)


def take_bond(d: Draft, sender: Address, key: bytes, defender: Address, amount: int = MAX_UINT) -> None:
    """Takes `amount` of the bond of a lost challenge or demand, or all if the bond is smaller: 60 % (rounded down) goes
    to the defender, the rest is burned. The remainder stays locked.
    """
    # INVARIANT: a stake behind a claim is never taken as a bond.
    if _keeper(d, sender) == Keeper.MARKET:
        raise revert("Unauthorized", sender)
    held = _take(d, sender, key)
    taken = min(amount, held.amount)
    to_defender = prices.BOND_PERCENT_DEFENDER * taken // 100
    burned = taken - to_defender

    if taken < held.amount:
        d.locks[key] = replace(held, amount=Wei(held.amount - taken))
    d.credits[defender] += to_defender
    d.credits[BURN] += burned

    _emit(d, "BondTaken", key, held.account, taken, burned, to_defender)
    _emit(d, "Credited", defender, to_defender)


def pay_bond(d: Draft, sender: Address, key: bytes, account: Address, amount: int) -> None:
    """Pays `amount` of a demand's bond to `account` as credit, once answered; the rest becomes free stake."""
    # INVARIANT: a stake behind a claim is never taken as a bond.
    if _keeper(d, sender) == Keeper.MARKET:
        raise revert("Unauthorized", sender)
    held = _take(d, sender, key)
    paid = min(amount, held.amount)

    d.free[held.account] += held.amount - paid
    d.credits[account] += paid

    _emit(d, "BondTaken", key, held.account, paid, 0, paid)
    _emit(d, "Credited", account, paid)
    _emit(d, "Unlocked", key, held.account, held.amount - paid)


def slash(
    d: Draft,
    sender: Address,
    key: bytes,
    owed: int,
    winners: Sequence[Address],
    refunds: Sequence[Refund],
    requester: Address,
) -> None:
    """Slashes the stake of a convicted claim: `owed` becomes escrow, for work that became void with it. Of the rest, 30
    % goes to one to three winners, by 2 : 1 : 1; 20 % to the requester, of which up to 10 % pay `refunds`, in order.
    Every part is rounded down, and the remainder is burned."""
    _only_market(d, sender)
    taken = _take(d, sender, key)
    # INVARIANT: work that falls with a claim is paid before anybody shares its stake.
    to_challenger, to_requester = _shares(d, checked(taken.amount - owed), winners, refunds, requester)
    # INVARIANT: slashed = owed to work + burned + to the challengers + to the requester; of the rest at least half is
    # burned.
    burned = taken.amount - owed - to_challenger - to_requester

    d.total_escrow += owed
    d.credits[BURN] += burned

    _emit(d, "Slashed", key, taken.account, taken.amount, burned, to_challenger, to_requester, owed)


def _shares(
    d: Draft, rest: int, winners: Sequence[Address], refunds: Sequence[Refund], requester: Address
) -> tuple[int, int]:
    """Credits 30 % to the winners and 20 % to the requester; refunds, which also go to challengers, reduce the
    requester's part.
    """
    refunded = _refund(d, refunds, prices.SLASH_PERCENT_REFUNDS * rest // 100)
    to_challenger = _share(d, winners, prices.SLASH_PERCENT_WINNERS * rest // 100) + refunded
    to_requester = prices.SLASH_PERCENT_REQUESTER * rest // 100 - refunded
    _credit(d, requester, to_requester)
    return to_challenger, to_requester


def _share(d: Draft, winners: Sequence[Address], prize: int) -> int:
    """Splits the prize 2 : 1 : 1, depending on the number of winners."""
    weights, shared = len(winners) + 1, 0
    for i, winner in enumerate(winners):
        part = (1 if i else 2) * prize // weights
        shared += part
        _credit(d, winner, part)
    return shared


def _refund(d: Draft, refunds: Sequence[Refund], left: int) -> int:
    """Pays the refunds in order, until `left` is spent."""
    refunded = 0
    for account, amount in refunds:
        if not left:
            break
        part = min(amount, left)
        refunded, left = refunded + part, left - part
        if part:
            _credit(d, account, part)
    return refunded


def _credit(d: Draft, account: Address, amount: int) -> None:
    d.credits[account] += amount

    _emit(d, "Credited", account, amount)


def slash_liveness(d: Draft, sender: Address, key: bytes, amount: int) -> None:
    """Punishes a missing reveal or a broken duty: burns `amount` of the lock and frees the rest."""
    taken = _take(d, sender, key)
    if amount > taken.amount:
        raise revert("StakeTooLow", taken.account, amount, taken.amount)

    d.credits[BURN] += amount
    d.free[taken.account] += taken.amount - amount

    _emit(d, "Slashed", key, taken.account, amount, amount, 0, 0, 0)
    _emit(d, "Unlocked", key, taken.account, taken.amount - amount)


def escrow(d: Draft, sender: Address, account: Address, amount: int) -> None:
    """Takes a job's escrow from its requester."""
    _only_market(d, sender)
    total = added(d.total_escrow, amount)
    if total > MAX_ESCROWED:
        raise revert("AmountTooLarge", total)

    d.total_escrow = total

    _emit(d, "Escrowed", account, amount)

    _pull(d, account, amount)


def escrow_with_permit(
    d: Draft, sender: Address, account: Address, amount: int, deadline: int, v: int, r: bytes, s: bytes
) -> None:
    """Takes a job's escrow as `escrow` does, with an EIP-2612 permit for the vault."""
    _only_market(d, sender)
    _permit(d, account, amount, deadline, v, r, s)
    escrow(d, sender, account, amount)


def credit(d: Draft, sender: Address, account: Address, amount: int) -> None:
    """Converts escrow to a credit of `account`."""
    _only_market(d, sender)
    held = d.total_escrow
    # INVARIANT: pay and refunds together never exceed the escrow.
    if amount > held:
        raise revert("EscrowTooLow", amount, held)

    d.total_escrow = held - amount
    _credit(d, account, amount)


# -- inside


def _keeper(d: Draft, sender: Address) -> Keeper:
    """Returns the keeper contract that calls; reverts if the sender is not a keeper."""
    if sender == d.at.market:
        return Keeper.MARKET
    if sender == d.at.game:
        return Keeper.GAME
    if sender == d.at.witnesses:
        return Keeper.WITNESSES
    # INVARIANT: stake is locked, unlocked and taken by the four contracts that this one was born with.
    if sender != d.at.availability:
        raise revert("Unauthorized", sender)
    return Keeper.AVAILABILITY


def _only_market(d: Draft, sender: Address) -> None:
    # INVARIANT: escrow, credits of pay and slashes of claims move by the market's rules alone.
    if sender != d.at.market:
        raise revert("Unauthorized", sender)


def _take(d: Draft, sender: Address, key: bytes) -> Lock:
    """Removes the lock of `key` and returns it; the caller distributes its amount."""
    keeper = _keeper(d, sender)
    taken = d.locks[key]
    if taken.account == ZERO_ADDRESS:
        raise revert("NotLocked", key)
    # INVARIANT: the contract that locked is the one that unlocks or takes.
    if keeper != taken.keeper:
        raise revert("WrongKeeper", key)

    del d.locks[key]
    return taken


def _only_owner(d: Draft, sender: Address, account: Address) -> None:
    """Reverts unless the sender is the account's owner, or the account itself if it has none."""
    owner = _payee(d, account)
    # INVARIANT: where there is an owner, the account's own key neither unbonds nor names a delegate or an owner.
    if sender != owner:
        raise revert("NotOwner", account, owner)


def _payee(d: Draft, account: Address) -> Address:
    owner = d.owner_of[account]
    # INVARIANT: what leaves the vault for an account goes to its owner, whoever asks for it.
    return account if owner == ZERO_ADDRESS else owner


def _own(d: Draft, account: Address, owner: Address) -> None:
    d.owner_of[account] = owner
    # INVARIANT: a proposal falls with the owner that made it.
    del d.proposed_owner_of[account]

    _emit(d, "OwnerSet", account, owner)


def _pay_out_unbonded(d: Draft, account: Address) -> None:
    unbond = d.unbonding[account]
    if unbond.amount == 0:
        raise revert("NothingDue")
    # INVARIANT: unbonding outlasts every challenge window and both clocks.
    if d.block.time < unbond.available_at:
        raise revert("Unbonding", unbond.available_at)

    del d.unbonding[account]

    _emit(d, "Unbonded", account, unbond.amount)

    token.transfer(d, d.at.vault, _payee(d, account), unbond.amount)


def _pay_out(d: Draft, account: Address, to: Address) -> int:
    amount = d.credits[account]
    if amount == 0:
        raise revert("NothingDue")

    del d.credits[account]

    _emit(d, "Withdrawn", account, amount)

    token.transfer(d, d.at.vault, to, amount)
    return amount


def _pull(d: Draft, account: Address, amount: int) -> None:
    before = d.balances[d.at.vault]
    token.transfer_from(d, d.at.vault, account, d.at.vault, amount)
    received = checked(d.balances[d.at.vault] - before)
    # INVARIANT: what the books say is what the token holds: no token that takes a fee on the way.
    if received != amount:
        raise revert("TokenMismatch", amount, received)


def _permit(d: Draft, owner: Address, amount: int, deadline: int, v: int, r: bytes, s: bytes) -> None:
    """Applies a permit.

    It may have been submitted before; then the allowance exists, and the following transfer decides.
    """
    # A permit that is refused is refused before its first write.
    try:
        token.permit(d, d.at.vault, owner, d.at.vault, amount, deadline, v, r, s)
    except Reverted:
        return


def _emit(d: Draft, name: str, *values: object) -> None:
    d.emit("StakeVault", name, *values)
