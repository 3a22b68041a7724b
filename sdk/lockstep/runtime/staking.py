"""Manages an account's money in a market: wallet, stake, deposits and withdrawals.

    with StakingAccount.open(settings) as staking:
        staking.stake(amount)         # wallet -> free stake: one transaction, by a permit where the token has it
        staking.unstake(amount)       # free -> unbonding, for the vault's delay
        staking.withdraw()            # unbonding that is over, and what was earned -> wallet

An account may have an owner, a key stored elsewhere (contracts/StakeVault.sol). Then only the owner can unbond, and
tokens that leave the vault go to the owner's wallet; owners call `open(settings, account)`.

Only one command at a time works in a home, and none while a program runs there. The next command of the same kind
completes an interrupted one, and sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN, tokens
from lockstep.base.durations import moment
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.finality import relied_block
from lockstep.chain.keys import KEYSTORE, load_account
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import ChainError, FundsError, NotOwner, TryLater, UsageError
from lockstep.protocol.jobs import NOTHING, ZERO_ADDRESS
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.runtime.guard import lock

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from lockstep.base.settings import Settings
    from lockstep.chain.journal import SentReceipt

OUTBOX = "outbox.sqlite"
_PENDING = "pending/"
"""Part of the outbox keys of transactions whose outcome no command has reported yet."""
_STAKED = "stake/by-hand/"
PERMIT_SECONDS = 3600
"""Chain seconds after its signature within which a deposit must be mined."""


@dataclass(frozen=True)
class Holdings:
    """An account's balances by place, in wei of the token; `coin` is in wei of the chain's coin."""

    address: Address
    coin: Wei
    """The chain's own coin, which pays for gas."""
    wallet: Wei
    free: Wei
    """Stake that is not locked."""
    unbonding: Wei
    available_at: Seconds
    """Chain time from which unbonding stake can be withdrawn."""
    credits: Wei
    """Earnings, refunds and prizes that are not withdrawn yet."""
    owner: Address | None = None
    """The account that alone may unbond and that receives withdrawals; None: the account itself."""
    proposed_owner: Address | None = None
    """The account to which ownership is offered and that has not accepted yet."""

    @staticmethod
    def of(contracts: Contracts, account: Address) -> Holdings:
        """Reads the balances at the latest block."""
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
            owner=vault.owner_of(account),
            proposed_owner=vault.proposed_owner_of(account),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the balances as JSON; amounts are decimal strings in wei."""
        return {
            "address": self.address,
            "coin": str(self.coin),
            "wallet": str(self.wallet),
            "free": str(self.free),
            "unbonding": str(self.unbonding),
            "available_at": self.available_at or None,
            "credits": str(self.credits),
            "owner": self.owner,
            "proposed_owner": self.proposed_owner,
        }

    def lines(self) -> list[str]:
        """Returns the balances as lines of text."""
        unbonding = f"{tokens(self.unbonding)}, from {moment(self.available_at)}" if self.unbonding else "nothing"
        owner = "none: the account's own key withdraws" if self.owner is None else f"{self.owner}: it alone unbonds"
        if self.proposed_owner is not None:
            owner += f"; offered to {self.proposed_owner}"
        return [
            f"account    {self.address}",
            f"wallet     {tokens(self.wallet)}, and {tokens(self.coin, 4, COIN)} for gas",
            f"stake      {tokens(self.free)} free",
            f"unbonding  {unbonding}",
            f"credits    {tokens(self.credits)} to withdraw",
            f"owner      {owner}",
        ]


@dataclass(frozen=True)
class StakeChange:
    """Result of a command on an account's money."""

    amount: Wei
    transactions: tuple[str, ...]
    """Hashes of the transactions, 0x-prefixed."""
    completed: bool
    """True if an earlier command sent these transactions and was killed before it reported them."""
    keys: tuple[str, ...] = ()
    """The transactions' keys in the outbox."""


@dataclass(frozen=True)
class StakingAccount:
    """One account at one deployment, with its home locked against other processes."""

    contracts: Contracts
    account: LocalAccount
    outbox: Outbox
    operator: Address | None = None
    """The managed account, if it is not the account of the signing key."""
    finality: str = "latest"
    """The blocks that count as final, as in the setting."""

    @staticmethod
    @contextmanager
    def open(
        settings: Settings, operator: Address | None = None, who: str = "money command"
    ) -> Iterator[StakingAccount]:
        """Opens the account of a home; raises KeyStoreError, GuardRefused if a program runs in the home, Unreachable,
        ChainError."""
        with ExitStack() as stack:
            stack.enter_context(lock.held(settings.home_dir, who))
            account = load_account(settings.home_dir / KEYSTORE, settings.password())
            addresses = Addresses.load(settings.deployment)
            w3 = connect(settings.rpc, addresses.chain_id)
            outbox = Outbox(settings.home_dir / OUTBOX, w3, account, settings.max_fee_wei, settings.max_tip_wei)
            stack.callback(outbox.close)
            own = operator is None or operator == account.address
            yield StakingAccount(
                Contracts.at(w3, addresses), account, outbox, None if own else operator, settings.finality
            )

    @property
    def address(self) -> Address:
        """The staking account."""
        return self.operator or self.key

    @property
    def key(self) -> Address:
        """The account that signs the transactions."""
        return Address(self.account.address)

    def holdings(self) -> Holdings:
        """Reads the account's balances from the latest block."""
        return Holdings.of(self.contracts, self.address)

    def wallet(self) -> Wei:
        """Returns the tokens in the wallet of the signing key, in wei."""
        return self.contracts.token.balance_of(self.key)

    def is_first_stake(self) -> bool:
        """Returns True if no stake was deposited from this home by a command before."""
        return not self.outbox.keys(_STAKED)

    def now(self) -> Seconds:
        """Chain time."""
        return Seconds(self.contracts.vault.w3.eth.get_block("latest")["timestamp"])

    def stake(self, amount: Wei) -> StakeChange:
        """Deposits tokens from the wallet as free stake of the key's own account. Raises FundsError if the wallet holds
        less."""
        if (completed := self._complete(_STAKED)) is not None:
            return completed
        held = self.wallet()
        if held < amount:
            raise FundsError(
                f"{self.key} holds {tokens(held)}, less than {tokens(amount)}", hint="send the account more tokens"
            )
        return self._send(_STAKED, deposit(self.contracts, self.account, amount, self.now()), amount)

    def unstake(self, amount: Wei) -> StakeChange:
        """Starts to unbond free stake, and restarts the delay of stake that is already unbonding.

        Raises FundsError if less is free, NotOwner if another account is the owner.
        """
        kind = self._of("unstake/")
        if (completed := self._complete(kind)) is not None:
            return completed
        self.own()
        free = self.contracts.vault.free(self.address)
        if free < amount:
            raise FundsError(
                f"{tokens(free)} are free, less than {tokens(amount)}",
                hint="what claims and games have locked comes free when they are over: `lockstep worker status`",
            )
        vault = self.contracts.vault
        call = vault.request_unbond_for(self.operator, amount) if self.operator else vault.request_unbond(amount)
        return self._send(kind, call, amount)

    def withdraw(self) -> StakeChange:
        """Withdraws credits and unbonded stake to the wallet of the owner, or of the account if it has none.

        Raises TryLater if all stake is still unbonding, FundsError if there is nothing to withdraw.
        """
        kind = self._of("withdraw/")
        earlier = self._complete(kind)
        if self.operator is not None:
            self.own()
        held, now, vault = self.holdings(), self.now(), self.contracts.vault
        unbonded = held.unbonding if now >= held.available_at else NOTHING
        of = self.operator
        calls = [
            (unbonded, "stake", vault.withdraw_unbonded_for(of) if of else vault.withdraw_unbonded()),
            (held.credits, "credits", vault.withdraw_for(of) if of else vault.withdraw()),
        ]
        due = [(amount, name, call) for amount, name, call in calls if amount]
        if not due and earlier is not None:
            return earlier
        if not due and held.unbonding:
            raise TryLater(
                f"{tokens(held.unbonding)} unbond until {moment(held.available_at)}, chain time {moment(now)}",
                hint="withdraw then; nothing else has to be done",
            )
        if not due:
            raise FundsError("there is nothing to withdraw", hint=f"{tokens(held.free)} are staked: unstake first")
        moved = [self._send(f"{kind}{name}/", call, amount) for amount, name, call in due]
        every = [*([earlier] if earlier else []), *moved]
        return StakeChange(
            Wei(sum(m.amount for m in every)), tuple(h for m in every for h in m.transactions), earlier is not None,
            tuple(k for m in every for k in m.keys),
        )  # fmt: skip

    def send_tokens(self, to: Address, amount: Wei) -> StakeChange:
        """Transfers tokens from the key's own wallet to another address."""
        if (completed := self._complete("transfer/")) is not None:
            return completed
        return self._send("transfer/", self.contracts.token.transfer(to, amount), amount)

    def mint(self, amount: Wei) -> StakeChange:
        """Mints test tokens into the wallet; raises the error of a token that refuses it."""
        if (completed := self._complete("mint/")) is not None:
            return completed
        return self._send("mint/", self.contracts.token.mint(self.address, amount), amount)

    # -- the owner

    def own(self) -> None:
        """Raises NotOwner unless this key controls the account: as its owner, or as the account itself if it has no
        owner."""
        owner = self.contracts.vault.owner_of(self.address)
        if self.key == (owner or self.address):
            return
        if owner is None:
            raise NotOwner(
                f"{self.key} does not own {self.address}, which has no owner",
                hint=f"give the command from that account's home, or there: `lockstep worker owner propose {self.key}`",
            )
        if self.operator is None:
            raise NotOwner(
                f"{self.address} has an owner, {owner}: its own key can unbond nothing and name nobody",
                hint=f"give the command from the owner's home, with --for {self.address}",
            )
        raise NotOwner(
            f"{self.address} is owned by {owner}, not by {self.key}", hint="give the command from the owner's home"
        )

    def set_owner(self, owner: Address) -> StakeChange:
        """Sets the account's owner, once and immediately."""
        if (completed := self._complete("owner/set/")) is not None:
            return completed
        standing = self.contracts.vault.owner_of(self.address)
        if standing is not None:
            raise NotOwner(
                f"{self.address} has an owner already: {standing}",
                hint=f"it alone can hand the account on: `lockstep worker owner propose ADDRESS --for {self.address}`",
            )
        self._fits(owner)
        return self._send("owner/set/", self.contracts.vault.set_owner(owner), NOTHING)

    def propose_owner(self, owner: Address | None) -> StakeChange:
        """Offers ownership of the account to another account; None withdraws the offer."""
        kind = self._of("owner/propose/")
        if (completed := self._complete(kind)) is not None:
            return completed
        self.own()
        if owner is not None:
            self._fits(owner)
        return self._send(kind, self.contracts.vault.propose_owner(self.address, owner or ZERO_ADDRESS), NOTHING)

    def accept_owner(self) -> StakeChange:
        """Accepts the ownership that was offered to this key."""
        kind = self._of("owner/accept/")
        if (completed := self._complete(kind)) is not None:
            return completed
        offered = self.contracts.vault.proposed_owner_of(self.address)
        if offered != self.key:
            raise NotOwner(
                f"{self.address} is offered to {offered or 'nobody'}, not to {self.key}",
                hint=f"its owner, or it itself, first offers it: `lockstep worker owner propose {self.key}`",
            )
        return self._send(kind, self.contracts.vault.accept_owner(self.address), NOTHING)

    def set_delegate(self, delegate: Address | None) -> StakeChange:
        """Sets the account that may play games and sign receipts for this one in addition to its own key; None for
        none.
        """
        kind = self._of("owner/delegate/")
        if (completed := self._complete(kind)) is not None:
            return completed
        self.own()
        call = self.contracts.vault.set_delegate_for(self.address, delegate or ZERO_ADDRESS)
        return self._send(kind, call, NOTHING)

    def _fits(self, owner: Address) -> None:
        """Raises UsageError if the new owner is a contract of the market, which cannot sign."""
        addresses = self.contracts.addresses
        name = next((name for name in CONTRACTS if getattr(addresses, name).lower() == owner.lower()), None)
        if name is not None:
            raise UsageError(f"{owner} is the market's {name}, which can own nothing", hint="name an account of yours")

    def reported(self, moved: StakeChange) -> None:
        """Marks transactions as reported; until then, the next command of their kind reports them and sends nothing
        new."""
        for key in moved.keys:
            kind = key[: key.index(_PENDING)]
            self.outbox.rename(key, f"{kind}{len(self.outbox.keys(kind))}")

    def final(self, moved: StakeChange) -> bool:
        """Returns True if the blocks of these transactions are final by the setting. Raises TryLater, Unreachable."""
        w3 = self.contracts.vault.w3
        relied = relied_block(w3, self.finality, int(w3.eth.block_number))
        return all(self.outbox.wait(key).block <= relied for key in moved.keys)

    # -- inside

    def _of(self, kind: str) -> str:
        """Returns the outbox key prefix of a kind of transaction; it contains the managed account if that is not the
        signer's.
        """
        return kind if self.operator is None else f"for/{self.operator.lower()}/{kind}"

    def _send(self, kind: str, call: Call, amount: Wei) -> StakeChange:
        key = f"{kind}{_PENDING}{amount}"
        return StakeChange(amount, (self.outbox.send(call, key).transaction,), False, (key,))

    def _complete(self, kind: str) -> StakeChange | None:
        """Waits for transactions of killed commands of this kind, and returns their result; None if there are none.

        Reverted ones are forgotten, since they had no effect.
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
        return StakeChange(Wei(amount), tuple(r.transaction for r in done), True, tuple(r.key for r in done))


def deposit(contracts: Contracts, account: LocalAccount, amount: Wei, now: Seconds) -> Call:
    """Returns the transaction that deposits the account's tokens as stake, allowance included.

    A token without permits is approved first, by a transaction of its own.
    """
    vault, token = contracts.vault, contracts.token
    permit = token.permit_or_none(account, vault.address, amount, Seconds(now + PERMIT_SECONDS))
    if permit is None:
        return replace(vault.deposit(amount), before=token.approvals(Address(account.address), vault.address, amount))
    return vault.deposit_with_permit(amount, permit)
