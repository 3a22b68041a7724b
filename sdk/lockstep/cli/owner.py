"""`owner`: names the key that receives an account's withdrawals, kept apart from the key that signs its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.naming import address_of
from lockstep.cli.options import AccountFlags, ChainFlags, Commands, Home, Json, Yes, role_of
from lockstep.cli.output import confirm, emit
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Address

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.runtime.staking import StakeChange, StakingAccount

app = Commands(
    name="owner", help="Name the owner's key, kept elsewhere, that stake and earnings go to.", no_args_is_help=True
)

For = Annotated[
    str | None, typer.Option("--for", metavar="ADDRESS", help="The account that this home's key owns or will own.")
]
Owner = Annotated[str, typer.Argument(metavar="ADDRESS", help="The owner's address.", show_default=False)]
OrNobody = Annotated[str, typer.Argument(metavar="ADDRESS", help='An address, or "none".', show_default=False)]


@app.command("set")
def set_(context: typer.Context, owner: Owner, flags: AccountFlags, yes: Yes = False, as_json: Json = False) -> None:
    """Name the owner of this home's account, once and with immediate effect; safer is `propose`, which waits until the
    owner's key accepts."""
    from eth_utils.address import is_checksum_address

    named = address_of(owner, "the owner")
    if not is_checksum_address(owner):
        raise UsageError(
            f"{owner} has no checksum: a mistyped digit would lose the account's money",
            hint="copy the address with its capitals, as `lockstep key show` prints it; or use `owner propose`",
        )
    with _staking(context, flags, None) as staking:
        confirm(
            f"Name {named} the owner of {staking.address}? Only the owner will be able to withdraw stake and earnings, "
            "and to name another owner.",
            yes or as_json,
        )
        _tell(staking, staking.set_owner(named), as_json)


@app.command("propose")
def propose(
    context: typer.Context, owner: OrNobody, *, operator: For = None, flags: AccountFlags, as_json: Json = False
) -> None:
    """Offer an account to a new owner: nothing changes until that key accepts."""
    offered = None if owner == "none" else address_of(owner, "the owner", hint="none: nobody")
    with _staking(context, flags, operator) as staking:
        _tell(staking, staking.propose_owner(offered), as_json)


@app.command("accept")
def accept(context: typer.Context, *, operator: For = None, flags: AccountFlags, as_json: Json = False) -> None:
    """Become the owner of the account that was offered to this home's key (`--for`)."""
    if operator is None:
        raise UsageError("no account is named", hint="give --for ADDRESS, the account that was offered")
    with _staking(context, flags, operator) as staking:
        _tell(staking, staking.accept_owner(), as_json)


@app.command("delegate")
def delegate(
    context: typer.Context, who: OrNobody, *, operator: For = None, flags: AccountFlags, as_json: Json = False
) -> None:
    """Let another key play games about an account's claims, e.g. if the account's own key is lost."""
    named = None if who == "none" else address_of(who, "the delegate", hint="none: nobody")
    with _staking(context, flags, operator) as staking:
        _tell(staking, staking.set_delegate(named), as_json)


@app.command("show")
def show(
    context: typer.Context, *, operator: For = None, flags: ChainFlags, home: Home = None, as_json: Json = False
) -> None:
    """Show an account's owner, the proposed owner, and its delegate; reads no key."""
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.keys import KEYSTORE, account_address
    from lockstep.chain.rpc import connect

    settings = flags.settings(role_of(context), home=home)
    account = account_address(settings.home_path / KEYSTORE) if operator is None else address_of(operator, "--for")
    addresses = Addresses.load(settings.deployment)
    contracts = Contracts.at(connect(settings.rpc, addresses.chain_id), addresses)
    found = _account_fields(contracts, account)
    emit(found, as_json, text="\n".join(_lines(found)))


def _staking(context: typer.Context, flags: AccountFlags, operator: str | None) -> Any:
    from lockstep.runtime.staking import StakingAccount

    return StakingAccount.open(
        flags.settings(role_of(context)), None if operator is None else address_of(operator, "--for")
    )


def _account_fields(contracts: Contracts, account: Address) -> dict[str, Any]:
    vault = contracts.vault
    delegate = vault.delegate_of(account)
    return {
        "address": account,
        "owner": vault.owner_of(account),
        "proposed_owner": vault.proposed_owner_of(account),
        "delegate": delegate if int(delegate, 16) else None,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        f"account   {found['address']}",
        f"owner     {found['owner'] or 'none: whoever has the key of the account can withdraw its money'}",
        f"offered   {found['proposed_owner'] or 'to nobody'}",
        f"delegate  {found['delegate'] or 'none'}",
    ]


def _tell(staking: StakingAccount, moved: StakeChange, as_json: bool) -> None:
    """Prints the new state, then marks the transactions as reported."""
    found = _account_fields(staking.contracts, staking.address)
    head = ["sent by an earlier, interrupted command: nothing else was done"] if moved.completed else []
    data = {**found, "completed": moved.completed, "transactions": list(moved.transactions)}
    emit(data, as_json, text="\n".join([*head, *_lines(found)]))
    staking.reported(moved)
