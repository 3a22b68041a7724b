"""Prints the chain's events about a worker, one JSON line on stdout for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lockstep.base.lines import event
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.types import MERGE_SLOT, Address

if TYPE_CHECKING:
    from lockstep.chain.events import Event
    from lockstep.market.ledger import Ledger

TOLD = {
    ("StakeVault", "Deposited"): "staked",
    ("JobMarket", "Joined"): "joined",
    ("JobMarket", "Committed"): "committed",
    ("JobMarket", "Revealed"): "revealed",
    ("JobMarket", "Merged"): "merged",
    ("JobMarket", "Paid"): "paid",
    ("JobMarket", "Convicted"): "convicted",
    ("StakeVault", "Slashed"): "slashed",
    ("StakeVault", "Withdrawn"): "withdrawn",
    ("DisputeGame", "Opened"): "disputed",
    ("DisputeGame", "Resolved"): "resolved",
}


class WorkerEventPrinter:
    """Prints the chain's events that concern one account."""

    def __init__(self, me: Address) -> None:
        self._me = me
        self._games: set[bytes] = set()
        """Games about this account's claims."""

    def print_events(self, events: Iterable[Event], ledger: Ledger) -> None:
        """Prints the events that concern this account."""
        for e in events:
            tell(e, self._me, _holder(e, ledger), e.args.get("game") in self._games)
            if e.name == "Opened" and e.args["defender"] == self._me:
                self._games.add(e.args["game"])


def tell(e: Event, me: Address, holder: Address | None, game_is_mine: bool) -> None:
    """Prints an event if it concerns `me`. `holder` is the account that holds the slot named by the event, if it names
    one."""
    name = TOLD.get((e.contract, e.name))
    if name is None:
        return
    about = e.args.get("account") or e.args.get("worker") or e.args.get("defender") or holder
    if about != me and not (e.name == "Resolved" and game_is_mine):
        return
    fields: dict[str, object] = {
        k: _shown(k, v)
        for k, v in e.args.items()
        if k in ("job", "round", "slot", "claim", "game", "amount", "verdict", "key")
    }
    if fields.get("slot") == MERGE_SLOT:
        fields["slot"] = "merge"
    event(name, time=e.time, **fields)


def _shown(name: str, value: Any) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if name == "amount":
        return str(value)
    return Verdict(value).name.lower() if name == "verdict" else value


def _holder(e: Event, ledger: Ledger) -> Address | None:
    """Returns the holder of the slot that an event names; None if there is none."""
    job = ledger.jobs.get(e.args.get("job", b""))
    r = job.rounds.get(e.args["round"]) if job and "slot" in e.args else None
    return r.holders[e.slot][0] if r and e.slot in r.holders else None
