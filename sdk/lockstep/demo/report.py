"""The parties and the money at a demo's end; everything from logs of its chain. `lockstep.disputes` reads its games.

Amounts are decimal strings of the token's smallest unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.market.types import Outcome
from lockstep.protocol.types import Address, Wei

if TYPE_CHECKING:
    from lockstep.chain.contracts import Vault
    from lockstep.chain.events import Event


@dataclass(frozen=True)
class Participant:
    """Somebody who takes part."""

    role: str
    address: Address
    cheat: str | None = None


def deposited(events: Sequence[Event], account: Address) -> Wei:
    """Returns the stake that an account deposited."""
    return Wei(sum(e.args["amount"] for e in events if e.name == "Deposited" and e.args["account"] == account))


def stake_of(vault: Vault, events: Sequence[Event], account: Address) -> Wei:
    """Returns the rest of an account's stake: free, locked, unbonding, or paid out again."""
    paid_out = sum(e.args["amount"] for e in events if e.name == "Unbonded" and e.args["account"] == account)
    return Wei(vault.free(account) + vault.unbonding(account)[0] + _locked(events, account) + paid_out)


def _locked(events: Sequence[Event], account: Address) -> int:
    """Stake and bonds under locks that nothing has ended."""
    open_locks: dict[bytes, int] = {}
    for event in events:
        if event.name == "Locked" and event.args["account"] == account:
            open_locks[event.args["key"]] = event.args["amount"]
        elif event.name in ("Unlocked", "Slashed", "BondTaken"):
            open_locks.pop(event.args["key"], None)
    return sum(open_locks.values())


def money(events: Sequence[Event], witness_fee: Wei = NOTHING) -> dict[str, str]:
    """Escrow and slashes, summed over the log; raises nothing: whether they add up is the reader's to check.

    Work that fell with a convicted claim is paid from the slash. A duty that closes after the job is done is paid, or
    its fee goes back to the requester.
    """
    created = [e for e in events if e.name == "JobCreated"]
    done = [e for e in events if e.name == "JobDone"]
    slashed = [e for e in events if e.name == "Slashed"]
    bonds = [e for e in events if e.name == "BondTaken"]
    ended = next((i for i, e in enumerate(events) if e.name == "JobDone"), len(events))
    late = [e for e in events[ended:] if e.name == "DutyClosed" and not _is_fee(e)]
    totals = {
        "escrow_in": sum(e.args["escrow"] for e in created),
        "deposit_in": sum(e.args["deposit"] for e in created),
        "deposit_returned": sum(e.args["returned"] for e in done),
        "paid_out": sum(e.args["amount"] for e in events if e.name == "Paid" or _is_fee(e)),
        "witness_fees": sum(e.args["amount"] for e in events if _is_fee(e)),
        "refunded": sum(e.args["refunded"] for e in done) + len(late) * witness_fee,
        "slashed": sum(e.args["amount"] for e in slashed),
        "burned": sum(e.args["burned"] for e in slashed),
        "to_challenger": sum(e.args["to_challenger"] for e in slashed),
        "to_requester": sum(e.args["to_requester"] for e in slashed),
        "to_work": sum(e.args["owed"] for e in slashed),
        "bonds_lost": sum(e.args["amount"] for e in bonds),
        "bonds_burned": sum(e.args["burned"] for e in bonds),
        "bonds_to_defender": sum(e.args["to_defender"] for e in bonds),
    }
    return {name: str(amount) for name, amount in totals.items()}


def adds_up(totals: Mapping[str, str]) -> bool:
    """To the wei: escrow + slashed for work = paid + refunded, deposit = returned, slashed = burned + challengers +
    requester + work, bonds = burned + defenders."""
    n = {name: int(amount) for name, amount in totals.items()}
    return (
        n["escrow_in"] + n["to_work"] == n["paid_out"] + n["refunded"]
        and n["deposit_in"] == n["deposit_returned"]
        and n["slashed"] == n["burned"] + n["to_challenger"] + n["to_requester"] + n["to_work"]
        and n["bonds_lost"] == n["bonds_burned"] + n["bonds_to_defender"]
    )


def earned(events: Sequence[Event], account: Address) -> Wei:
    """Returns the job's pay to an account for slots, merges and its duties as a witness."""
    paid = sum(e.args["amount"] for e in events if e.name == "Paid" and e.args["account"] == account)
    return Wei(paid + fees(events, account))


def fees(events: Sequence[Event], account: Address) -> Wei:
    """Returns the job's pay to an account for its duties as a drawn witness."""
    return Wei(sum(e.args["amount"] for e in events if _is_fee(e) and e.args["account"] == account))


def _is_fee(event: Event) -> bool:
    return event.name == "DutyClosed" and event.args["outcome"] == Outcome.PAID


def received_from_slash(events: Sequence[Event], account: Address, requester: Address) -> Wei:
    """Returns the tokens that slashes and lost bonds gave an account."""
    total = 0
    for event in events:
        if event.name == "Slashed":
            if _challenger(events, event.args["key"]) == account:
                total += event.args["to_challenger"]
            if requester == account:
                total += event.args["to_requester"]
        elif event.name == "BondTaken" and _defender(events, event.args["key"]) == account:
            total += event.args["to_defender"]
    return Wei(total)


def _challenger(events: Sequence[Event], claim: bytes) -> Address | None:
    for event in events:
        if event.name == "Convicted" and event.contract == "JobMarket" and event.args["claim"] == claim:
            return Address(event.args["challenger"])
    return None


def _defender(events: Sequence[Event], game: bytes) -> Address | None:
    for event in events:
        if event.name == "Opened" and event.args["game"] == game:
            return Address(event.args["defender"])
    return None
