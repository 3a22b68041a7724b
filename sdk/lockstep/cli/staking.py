"""`stake`, `unstake`, `withdraw`, `owner`: move the money of a program that stakes; `drain`: stops it without loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.amounts import amount_of, require_amount, tokens
from lockstep.base.lines import say
from lockstep.base.naming import address_of
from lockstep.base.networks import PROGRAMS
from lockstep.base.settings import resolve
from lockstep.cli import owner
from lockstep.cli.options import AccountFlags, Home, Json, Yes, role_of
from lockstep.cli.output import confirm, emit
from lockstep.cli.owner import For
from lockstep.protocol.errors import LockstepError, TryLater, Unreachable

if TYPE_CHECKING:
    from lockstep.runtime.staking import StakeChange, StakingAccount

Amount = Annotated[
    str, typer.Argument(metavar="AMOUNT", help='Number of tokens, e.g. 20.5; or "all".', show_default=False)
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="Time to wait for it to exit; 0: only ask it to.")
]
ALL = "all"
"""The amount that stands for everything available."""
DRAIN_SECONDS = 86_400.0
_TELL_SECONDS = 30.0


def add_to(app: typer.Typer) -> None:
    """Adds these commands to a program."""
    app.command("stake")(stake)
    app.command("unstake")(unstake)
    app.command("withdraw")(withdraw)
    app.command("drain")(drain)
    app.add_typer(owner.app)


def stake(context: typer.Context, amount: Amount, flags: AccountFlags, yes: Yes = False, as_json: Json = False) -> None:
    """Move tokens from the wallet into the account's stake."""
    from lockstep.runtime.staking import StakingAccount

    settings = flags.settings(role_of(context))
    _require(amount)
    with StakingAccount.open(settings) as staking:
        held = staking.holdings()
        wanted = held.wallet if amount == ALL else amount_of(amount)
        if held.owner is None and staking.is_first_stake():
            say(
                f"{held.address} has no owner: whoever obtains its key can withdraw its stake and earnings. "
                "`lockstep worker owner propose ADDRESS` names an owner whose key is kept elsewhere (verifiers and "
                "coordinators have the command, too)."
            )
        confirm(
            f"Stake {tokens(wanted)}? A claim that is proven wrong loses its stake, and so does silence in a dispute.",
            yes or as_json,
        )
        _tell(staking, staking.stake(wanted), "staked", as_json)


def unstake(
    context: typer.Context,
    amount: Amount,
    *,
    operator: For = None,
    flags: AccountFlags,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Start to unbond free stake; it can be withdrawn after the vault's delay."""
    from lockstep.runtime.staking import StakingAccount

    settings = flags.settings(role_of(context))
    _require(amount)
    with StakingAccount.open(settings, None if operator is None else address_of(operator, "--for")) as staking:
        held = staking.holdings()
        wanted = held.free if amount == ALL else amount_of(amount)
        if held.unbonding:
            confirm(
                f"{tokens(held.unbonding)} are unbonding already, and their delay would restart. Continue?",
                yes or as_json,
            )
        _tell(staking, staking.unstake(wanted), "unbonding", as_json)


def withdraw(
    context: typer.Context,
    *,
    to: Annotated[str | None, typer.Option(help="Then send the wallet's whole balance to this address.")] = None,
    operator: For = None,
    flags: AccountFlags,
    as_json: Json = False,
) -> None:
    """Withdraw earnings and unbonded stake to the wallet: the owner's, if the account has one."""
    from lockstep.runtime.staking import StakingAccount

    settings = flags.settings(role_of(context))
    target = None if to is None else address_of(to, "--to")
    with StakingAccount.open(settings, None if operator is None else address_of(operator, "--for")) as staking:
        try:
            moved = staking.withdraw()
        except TryLater as error:
            # What lies in the wallet need not wait for the stake.
            if target is None or not staking.wallet():
                raise
            say(error.message)
        else:
            if as_json and target is not None:
                # One envelope on stdout: that of what is sent on.
                say(f"{tokens(moved.amount)} withdrawn")
                staking.reported(moved)
            else:
                _tell(staking, moved, "withdrawn", as_json)
        if target is not None:
            _tell(staking, staking.send_tokens(target, staking.wallet()), "sent", as_json)


def drain(context: typer.Context, home: Home = None, wait: Wait = DRAIN_SECONDS, as_json: Json = False) -> None:
    """Drain the program in this home: it joins nothing more, and exits once nothing is at stake."""
    from lockstep.runtime.guard import lock

    path = resolve(role_of(context), home=home).home_path
    found = lock.holder(path)
    if found is None:
        emit({"home": str(path), "running": False}, as_json, text=f"nothing runs in {path}")
        return
    if found.who not in PROGRAMS:
        raise TryLater(f"a {found.who} works in {path}", hint="wait until it has finished")
    os.kill(found.pid, signal.SIGTERM)
    say(
        f"process {found.pid} ({found.who}) exits once nothing is at stake, even if this command is stopped with Ctrl-C"
    )
    if not _left(path, wait):
        raise TryLater(
            f"process {found.pid} still runs: its claims can still be challenged",
            hint="`lockstep worker status` shows until when; run drain again to keep waiting",
        )
    emit({"home": str(path), "running": False, "pid": found.pid}, as_json, text=f"nothing runs in {path} any more")


def _require(amount: str) -> None:
    """Raises UsageError for an invalid amount, before a key or a chain is needed."""
    if amount != ALL:
        require_amount(amount)


def _left(home: Path, seconds: float) -> bool:
    from lockstep.runtime.guard import lock

    deadline, told, said = time.monotonic() + seconds, time.monotonic(), ""
    while lock.holder(home) is not None:
        if time.monotonic() >= deadline:
            return False
        now = _waits_for(home)
        if now != said or time.monotonic() - told > _TELL_SECONDS:
            say(now or "waiting: something is at stake")
            told, said = time.monotonic(), now
        time.sleep(0.2)
    return True


def _waits_for(home: Path) -> str:
    """Returns a draining program's note on what is at stake and until when, from its home; empty if there is none."""
    from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
    from lockstep.base.durations import moment

    try:
        noted: Any = from_json(file_bytes(home / "notes.json"), MAX_FILE_BYTES)
        state = noted["state"]
        if state["code"] != "draining":
            return ""
        until = "" if state["next"] is None else f", free by {moment(int(state['next']))} if nobody challenges"
        return f"{state['message']}{until}"
    except (OSError, LockstepError, LookupError, TypeError, ValueError):
        # A courtesy: nothing is decided by it.
        return ""


def _tell(staking: StakingAccount, moved: StakeChange, what: str, as_json: bool) -> None:
    """Prints the result, then marks the transactions as reported."""
    from lockstep.base.durations import moment

    held = staking.holdings()
    data: dict[str, Any] = {what: str(moved.amount), "completed": moved.completed}
    final, unknown = _final(staking, moved)
    data |= {"transactions": list(moved.transactions), "final": final, "holdings": held.to_dict()}
    head = f"{tokens(moved.amount)} {what}"
    if what == "withdrawn" and held.owner is not None:
        head += f" to the owner, {held.owner}"
    if moved.completed:
        head += ", sent by an earlier, interrupted command: nothing else was done"
    if what == "unbonding":
        head += f": `withdraw` pays them out from {moment(held.available_at)} on"
    lines = [head, *held.lines()]
    if unknown:
        lines.append(f"The money has moved, but it is not known yet if that is final: {unknown}.")
    if not final:
        lines.append(
            f"The chain can still revert this (finality is {staking.finality}): keep this home, whose next command "
            "would send it again."
        )
    emit(data, as_json, text="\n".join(lines))
    staking.reported(moved)


def _final(staking: StakingAccount, moved: StakeChange) -> tuple[bool, str]:
    """Returns (True if the transactions' blocks are final, the reason if that is unknown)."""
    # INVARIANT: a provider that names no final block makes no failure of what is done.
    try:
        return staking.final(moved), ""
    except (TryLater, Unreachable) as error:
        return False, error.message if not error.hint else f"{error.message} ({error.hint})"
