"""An account's money at a market: the wallet, the stake and where it is, and the ways in and out.

    with Purse.open(settings) as purse:
        purse.stake(amount)         # wallet -> free stake: one transaction, by a permit
        purse.unstake(amount)       # free -> unbonding, for the vault's delay
        purse.withdraw()            # unbonding that is over, and what was earned -> wallet

One purse at a time works in a home, and none beside a program that runs there. A command that was cut off is
completed by the next one of its kind: nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.keys import KEYSTORE, load_account
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.node.guard import lock
from lockstep.protocol.errors import ChainError, FundsError, TryLater
from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.types import Address, Seconds, Wei

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from lockstep.base.settings import Settings
    from lockstep.chain.journal import SentReceipt

OUTBOX = "outbox.sqlite"
_PENDING = "pending/"
"""Within the keys of transactions whose outcome nobody was told of."""
PERMIT_SECONDS = 3600
"""For how long a deposit may be mined after it was signed."""


@dataclass(frozen=True)
class Holdings:
    """Where an account's money is; tokens but for `coin`, all in the smallest unit."""

    address: Address
    coin: Wei
    """The chain's own coin, which pays for gas."""
    wallet: Wei
    free: Wei
    """Stake that nothing has locked."""
    unbonding: Wei
    available_at: Seconds
    """Chain time from which unbonding stake can be withdrawn."""
    credits: Wei
    """Earned, refunded or won, and not withdrawn."""

    @staticmethod
    def of(contracts: Contracts, account: Address) -> Holdings:
        """As the latest block has them."""
        vault, w3 = contracts.vault, contracts.vault.w3
        unbonding, available_at = vault.unbonding(account)
        return Holdings(
            address=account,
            coin=Wei(w3.eth.get_balance(w3.to_checksum_address(account))),
            wallet=contracts.token.balance_of(account),
            free=vault.free(account),
            unbonding=unbonding,
            available_at=available_at if unbonding else Seconds(0),
            credits=vault.credits(account),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON: amounts are decimal strings of the smallest unit."""
        return {
            "address": self.address,
            "coin": str(self.coin),
            "wallet": str(self.wallet),
            "free": str(self.free),
            "unbonding": str(self.unbonding),
            "available_at": self.available_at or None,
            "credits": str(self.credits),
        }

    def lines(self) -> list[str]:
        """As people read it."""
        unbonding = f"{tokens(self.unbonding)}, from {moment(self.available_at)}" if self.unbonding else "nothing"
        return [
            f"account    {self.address}",
            f"wallet     {tokens(self.wallet)}, and {tokens(self.coin, 4, 'ETH')} for gas",
            f"stake      {tokens(self.free)} free",
            f"unbonding  {unbonding}",
            f"credits    {tokens(self.credits)} to withdraw",
        ]


@dataclass(frozen=True)
class Moved:
    """What a command did to an account's money."""

    amount: Wei
    transactions: tuple[str, ...]
    """Their hashes, 0x-prefixed."""
    completed: bool
    """Whether this is what an earlier command had sent, which was cut off before it said so."""
    keys: tuple[str, ...] = ()
    """Of the outbox."""


@dataclass(frozen=True)
class Purse:
    """One account at one deployment, and nothing else running in its home."""

    contracts: Contracts
    account: LocalAccount
    outbox: Outbox

    @staticmethod
    @contextmanager
    def open(settings: Settings, who: str = "money command") -> Iterator[Purse]:
        """Raises KeyStoreError, GuardRefused if a program runs in the home, Unreachable, ChainError."""
        with ExitStack() as stack:
            stack.enter_context(lock.held(settings.home_dir, who))
            account = load_account(settings.home_dir / KEYSTORE, settings.password())
            addresses = Addresses.load(settings.deployment)
            w3 = connect(settings.rpc, addresses.chain_id)
            outbox = Outbox(settings.home_dir / OUTBOX, w3, account)
            stack.callback(outbox.close)
            yield Purse(Contracts.at(w3, addresses), account, outbox)

    @property
    def address(self) -> Address:
        """The staking account."""
        return Address(self.account.address)

    def holdings(self) -> Holdings:
        """Where its money is now."""
        return Holdings.of(self.contracts, self.address)

    def now(self) -> Seconds:
        """Chain time."""
        return Seconds(self.contracts.vault.w3.eth.get_block("latest")["timestamp"])

    def stake(self, amount: Wei) -> Moved:
        """Wallet -> free stake. Raises FundsError if the wallet holds less."""
        if (completed := self._complete("stake/by-hand/")) is not None:
            return completed
        held = self.contracts.token.balance_of(self.address)
        if held < amount:
            raise FundsError(
                f"{self.address} holds {tokens(held)}, less than {tokens(amount)}", hint="send the account more tokens"
            )
        return self._send("stake/by-hand/", deposit(self.contracts, self.account, amount, self.now()), amount)

    def unstake(self, amount: Wei) -> Moved:
        """Free stake -> unbonding; what unbonds already waits anew with it. Raises FundsError if less is free."""
        if (completed := self._complete("unstake/")) is not None:
            return completed
        free = self.contracts.vault.free(self.address)
        if free < amount:
            raise FundsError(
                f"{tokens(free)} are free, less than {tokens(amount)}",
                hint="what claims and games have locked comes free when they are over: `lockstep worker status`",
            )
        return self._send("unstake/", self.contracts.vault.request_unbond(amount), amount)

    def withdraw(self) -> Moved:
        """Credits, and unbonding that is over -> wallet. Raises TryLater while there is only unbonding that is not
        over, FundsError if there is nothing at all."""
        earlier = self._complete("withdraw/")
        held, now, vault = self.holdings(), self.now(), self.contracts.vault
        unbonded = held.unbonding if now >= held.available_at else NOTHING
        calls = [(unbonded, "stake", vault.withdraw_unbonded()), (held.credits, "credits", vault.withdraw())]
        due = [(amount, name, call) for amount, name, call in calls if amount]
        if not due and earlier is not None:
            return earlier
        if not due and held.unbonding:
            raise TryLater(
                f"{tokens(held.unbonding)} unbond until {moment(held.available_at)}, chain time {moment(now)}",
                hint="withdraw then; nothing else has to be done",
            )
        if not due:
            raise FundsError("there is nothing to withdraw", hint=f"{tokens(held.free)} are staked: unstake them first")
        moved = [self._send(f"withdraw/{name}/", call, amount) for amount, name, call in due]
        every = [*([earlier] if earlier else []), *moved]
        return Moved(
            Wei(sum(m.amount for m in every)), tuple(h for m in every for h in m.transactions), earlier is not None,
            tuple(k for m in every for k in m.keys),
        )  # fmt: skip

    def send_tokens(self, to: Address, amount: Wei) -> Moved:
        """Wallet -> another address."""
        if (completed := self._complete("transfer/")) is not None:
            return completed
        return self._send("transfer/", self.contracts.token.transfer(to, amount), amount)

    def mint(self, amount: Wei) -> Moved:
        """Out of nothing -> wallet, where the token is a test token; raises what the token refuses it by."""
        if (completed := self._complete("mint/")) is not None:
            return completed
        return self._send("mint/", self.contracts.token.mint(self.address, amount), amount)

    def told(self, moved: Moved) -> None:
        """Note that the caller knows of it; until then, the next command of its kind tells it and does nothing new."""
        for key in moved.keys:
            kind = key[: key.index(_PENDING)]
            self.outbox.rename(key, f"{kind}{len(self.outbox.keys(kind))}")

    # -- inside

    def _send(self, kind: str, call: Call, amount: Wei) -> Moved:
        key = f"{kind}{_PENDING}{amount}"
        return Moved(amount, (self.outbox.send(call, key).transaction,), False, (key,))

    def _complete(self, kind: str) -> Moved | None:
        """Wait for what earlier commands of this kind sent before they were cut off; None if there is nothing.

        What reverted is forgotten: it did nothing.
        """
        done: list[SentReceipt] = []
        for key in self.outbox.keys(kind):
            if _PENDING not in key:
                continue
            try:
                done.append(self.outbox.wait(key))
            except (ChainError, FundsError):
                self.outbox.forget(key)
        if not done:
            return None
        amount = sum(int(r.key.partition(_PENDING)[2]) for r in done)
        return Moved(Wei(amount), tuple(r.transaction for r in done), True, tuple(r.key for r in done))


def deposit(contracts: Contracts, account: LocalAccount, amount: Wei, now: Seconds) -> Call:
    """The transaction that moves so much of the account's tokens into its stake, allowance included."""
    vault = contracts.vault
    permit = contracts.token.sign_permit(account, vault.address, amount, Seconds(now + PERMIT_SECONDS))
    return vault.deposit_with_permit(amount, permit)


def moment(time: int) -> str:
    """A chain time as people read it: 2026-03-01 12:00:00 UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"
