"""The stake behind a job: the deposit that it needs, or the reason why this account cannot back it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.base.amounts import tokens
from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.market import prices
from lockstep.protocol.types import Address, Wei

if TYPE_CHECKING:
    from lockstep.protocol.jobs import JobParams
    from worker.policy import Policy


@dataclass(frozen=True)
class Funds:
    """An account's tokens that a job may lock: the free stake, the wallet and the net deposits, in wei."""

    address: Address
    free: Wei
    """Stake that nothing has locked."""
    wallet: Wei
    put_in: int
    """Wei that the account put into the vault and has not taken out again, lost stake included."""


@dataclass(frozen=True)
class Backing:
    """The stake of one job: its deposit, or the reason why the job is refused."""

    amount: Wei
    """To be deposited; nothing where the job is refused."""
    covered: Wei
    """The free stake after that deposit, or after the largest possible one where the job is refused."""
    code: str = ""
    """"policy" or "funds": why the job is refused; empty: it is backed."""
    message: str = ""


def least_stake(params: JobParams) -> Wei:
    """Returns the least stake for joining a round of the job, in wei: that of a claim and that of a merge."""
    return Wei(params.role.slot_stake + params.merge.stake)


def answer_unpaid(params: JobParams, base_fee: int) -> str:
    """Returns the reason why, at a base fee (wei per gas), this job does not cover the gas of answering a demand; empty
    if it does, or if gas costs nothing."""
    p = params.prices
    gas = prices.ANSWER_GAS
    # INVARIANT: a worker joins no job in which others have it answer demands at its own cost.
    if base_fee and not p.gas_price:
        return f"it pays nothing for gas: an answer to a demand takes {gas:,} of it and more"
    if base_fee > p.fee_cap:
        paid = prices.gas_cost(gas, p.gas_price, p.fee_cap, base_fee)
        costs = prices.ceil_div(gas * p.gas_price * base_fee, p.fee_cap)
        return f"an answer to a demand is paid {tokens(paid, 4)}, and its gas now is worth {tokens(costs, 4)}"
    return ""


def backing_of(params: JobParams, wanted: Wei, funds: Funds, policy: Policy) -> Backing:
    """Returns the deposit that makes `wanted` free, as far as wallet and --max-stake reach, or the refusal."""
    short = max(0, wanted - funds.free)
    allowed = policy.allowance(funds.put_in)
    # INVARIANT: no job moves more into the vault than the owner allowed, whatever it asks and however many ask.
    amount = min(short, funds.wallet) if allowed is None else min(short, funds.wallet, allowed)
    covered, least = funds.free + amount, least_stake(params)
    # INVARIANT: a worker joins only jobs whose merge it could stake: else a round that it trained in may fail.
    if covered >= least:
        return Backing(Wei(amount), Wei(covered))
    needs = f"a claim of this job and a merge lock {tokens(least)}"
    if amount < min(short, funds.wallet):
        left = f"{tokens(covered)} is what --max-stake leaves of {tokens(policy.max_stake or 0)}"
        return Backing(NOTHING, Wei(covered), "policy", f"{needs}; {left}")
    return Backing(NOTHING, Wei(covered), "funds", f"{needs}; {funds.address} has {tokens(covered)}")
