"""Computes the coin and tokens that an account needs before it can work, those it has, and where to send the rest.

    need = missing_of(account, settings, None, None)     # of --max-stake, else of the open job that locks most
    need.enough                                          # True if nothing is missing

Coin covers the gas of a hundred rounds and of GAMES defended games: a party that cannot pay for a move loses its stake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN, Currency, amount_of, market_currency, tokens
from lockstep.base.naming import identified, short
from lockstep.chain import gas
from lockstep.chain.devnet import CHAIN_ID
from lockstep.protocol.errors import ChainError, FundsError, UsageError
from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.market.prices import DEFENDER_GAS
from lockstep.protocol.types import JobId, Wei
from lockstep.runtime.staking import Holdings, StakingAccount
from worker import decide
from worker.backing import least_stake
from worker.policy import ALL

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.chain.gas import Fees
    from worker.account import Account

ROUNDS, GAMES = 100, 2
LOOK_SECONDS = 1.0
SET_BALANCE = "anvil_setBalance"


@dataclass(frozen=True)
class Requirement:
    """The coin and tokens that an account holds, and those that it needs."""

    held: Holdings
    chain_id: int
    token: str
    """Address of the token's contract."""
    staked: int
    """Tokens in the vault already: free, locked or lost."""
    wanted: Wei
    """Tokens, in the wallet and in the vault together."""
    least: Wei
    """The part of `wanted` without which no round of the job is joined."""
    why: str
    """The reason for the amount of tokens."""
    fees: Fees

    @property
    def coin_wanted(self) -> Wei:
        """Wei of coin that the account needs for gas."""
        units = ROUNDS * gas.gas_of(gas.WORKER_ROUND) + GAMES * DEFENDER_GAS
        return self.fees.cost(gas.WORKER_ONCE + gas.WORKER_END, units)

    @property
    def coin_missing(self) -> Wei:
        """Wei of coin that must be sent to the account."""
        return Wei(max(0, self.coin_wanted - self.held.coin))

    @property
    def tokens_missing(self) -> Wei:
        """Wei of tokens that must be sent to the account."""
        return Wei(max(0, self.wanted - self.staked - self.held.wallet))

    @property
    def enough(self) -> bool:
        """True if nothing is missing."""
        return not self.coin_missing and not self.tokens_missing

    def to_dict(self) -> dict[str, Any]:
        """Returns the requirement as JSON; amounts are decimal strings."""
        return {
            "enough": self.enough,
            "address": self.held.address,
            "chain_id": self.chain_id,
            "token_contract": self.token,
            "for": self.why,
            "coin": {
                "held_amount": str(self.held.coin), "wanted_amount": str(self.coin_wanted),
                "missing_amount": str(self.coin_missing),
            },
            "tokens": {
                "held_amount": str(self.held.wallet), "staked": str(self.staked), "wanted_amount": str(self.wanted),
                "least_amount": str(self.least), "missing_amount": str(self.tokens_missing),
            },
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Returns the requirement as lines of text."""

        def row(name: str, missing: Wei, currency: Currency, rest: str) -> str:
            send = f"send {tokens(missing, currency=currency)}" if missing else "enough"
            return f"{name:<8} {send}: {rest}"

        coin = f"{tokens(self.held.coin, 4, COIN)} held, {tokens(self.coin_wanted, 4, COIN)} wanted"
        wallet = f"{tokens(self.held.wallet)} in the wallet, {tokens(self.staked)} staked, {tokens(self.wanted)} wanted"
        return [
            f"account  {self.held.address}, on chain {self.chain_id}",
            row("coin", self.coin_missing, COIN, f"{coin} for {ROUNDS} rounds and {GAMES} games"),
            row("tokens", self.tokens_missing, market_currency(), f"{wallet} {self.why}"),
            f"token    {self.token}",
        ]


def missing_of(account: Account, settings: Settings, only: str | None, stated: Fees | None) -> Requirement:
    """Returns the needs of one job, of --max-stake, or of the open job that locks most.

    Raises UsageError, NotFoundError.
    """
    contracts, me = account.contracts, account.address
    open_jobs = {job: known for job, known in account.ledger.jobs.items() if not known.done}
    limit = settings.max_stake.strip()
    if only is not None:
        job = JobId(identified(only, open_jobs, "open job", "`lockstep train list` shows every job"))
        params = contracts.market.params(job)
        wanted, least, why = decide.stake_wanted(params), least_stake(params), f"for job {short(job)}"
    elif limit and limit.lower() != ALL:
        wanted, least = amount_of(limit, "max_stake", least=0), NOTHING
        why = "for --max-stake"
    else:
        every = [contracts.market.params(job) for job in open_jobs]
        wanted = max(map(decide.stake_wanted, every), default=NOTHING)
        least = min(map(least_stake, every), default=NOTHING)
        why = "for the open job that locks most" if every else "while no job is open; name --max-stake"
    return Requirement(
        held=Holdings.of(contracts, me), chain_id=contracts.addresses.chain_id, token=contracts.token.address,
        staked=account.ledger.deposits.get(me, 0), wanted=wanted, least=least, why=why,
        fees=stated or gas.fees_now(contracts.vault.w3),
    )  # fmt: skip


def wait_for(look: Callable[[], Requirement], seconds: float) -> Requirement:
    """Polls until nothing is missing or `seconds` have passed; returns the latest requirement."""
    deadline = time.monotonic() + seconds
    while not (need := look()).enough and time.monotonic() < deadline:
        time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
    return need


def give(account: Account, settings: Settings, need: Requirement) -> None:
    """Mints the missing coin and tokens on a local test chain; raises UsageError on any other chain.

    A repetition after a kill gives nothing twice: coin is set to an amount, and the outbox completes the transactions
    that it has sent.
    """
    w3, send = account.contracts.vault.w3, "; ".join(need.lines()[1:3])
    # INVARIANT: nothing is given away but on the chain of local tests.
    if need.chain_id != CHAIN_ID:
        raise UsageError(f"chain {need.chain_id} has no faucet", hint=f"send it from another account: {send}")
    if need.coin_missing:
        answer = w3.provider.make_request(SET_BALANCE, [need.held.address, hex(need.coin_wanted)])  # type: ignore[arg-type]
        if "error" in answer:
            raise UsageError("this chain has no faucet for its coin", hint=f"send it from another account: {send}")
    if need.tokens_missing:
        with StakingAccount.open(settings) as staking:
            try:
                moved = staking.mint(need.tokens_missing)
            except (ChainError, FundsError) as error:
                raise UsageError(
                    f"the token cannot be minted: {error.message}", hint=f"send it from another account: {send}"
                ) from error
            staking.reported(moved)
