"""How a run looks in a terminal: a line for what happens, a line for each loss; JSON Lines for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.cli.output import event, say
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import MERGE_SLOT

if TYPE_CHECKING:
    from lockstep.chain.events import Event
    from lockstep.client import JobHandle
    from lockstep.execution.losses import MergedLoss

BARS = "▁▂▃▄▅▆▇█"


def follow(handle: JobHandle, losses: bool, as_json: bool) -> None:
    """Print a job's events until it is done, and the loss after each merge. Raises what reading the chain raises."""
    from lockstep.chain.plain import plain

    curve: list[MergedLoss] = []
    for seen in handle.watch():
        if as_json:
            fields = plain(seen.contract, seen.name, seen.args)
            event(seen.name, block=seen.block, chain_time=seen.time, **fields)
        elif line := _line(seen):
            say(line)
        if losses and seen.name in ("Sealed", "Merged"):
            curve = _looked(handle, curve, as_json)


def loss_lines(curve: Sequence[MergedLoss]) -> list[str]:
    """The losses as people read them, with a curve."""
    rows = [f"{x.merges:>3} merges  loss {x.loss:.6f}" + (f"  claim {x.claim[:16]}" if x.claim else "") for x in curve]
    return [*rows, sparkline([x.loss for x in curve])]


def sparkline(values: Sequence[float]) -> str:
    """A curve of one line: the lowest value lowest."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] if v in finite else "?" for v in values)


def _looked(handle: JobHandle, known: list[MergedLoss], as_json: bool) -> list[MergedLoss]:
    """Losses that are new, printed. One that cannot be had yet is no failure of the watch."""
    try:
        curve = list(handle.losses(known))
    except LockstepError as error:
        say(f"  the loss cannot be computed now: {error.message}")
        return known
    for found in curve:
        if found not in known:
            if as_json:
                event("loss", **found.to_dict())
            else:
                upto = sparkline([x.loss for x in curve[: curve.index(found) + 1]])
                say(f"  loss {found.loss:.6f} after {found.merges} merges  {upto}")
    return curve


def _line(seen: Event) -> str:
    """What happened, in the field's words; empty for what says nothing new to a requester."""
    args: Mapping[str, Any] = seen.args
    r = args.get("round")
    slot = "the merge" if args.get("slot") == MERGE_SLOT else f"slot {args.get('slot')}"
    texts = {
        "JobCreated": lambda: f"opened: escrow {tokens(args['escrow'])}, deposit {tokens(args['deposit'])}",
        "RoundStarted": lambda: f"round {r} opens for joining",
        "Joined": lambda: f"round {r}: {_short(args['worker'])} takes {slot}",
        "Sealed": lambda: f"round {r}: the seed is drawn, workers train",
        "Revealed": lambda: f"round {r}: {slot} is claimed",
        "Frozen": lambda: f"round {r}: {int(args['mask']).bit_count()} payloads are accepted",
        "Merged": lambda: f"round {r}: merged by {_short(args['worker'])}",
        "Paid": lambda: f"round {r}: {tokens(args['amount'])} to {_short(args['account'])} for {slot}",
        "Convicted": lambda: f"round {r}: {slot} is convicted",
        "RoundFinal": lambda: f"round {r} is final",
        "RoundFailed": lambda: f"round {r} failed: nobody is paid",
        "RoundVoid": lambda: f"round {r} is void: a merge before it was convicted",
        "JobDone": lambda: f"done: {tokens(args['refunded'])} refunded, deposit {tokens(args['returned'])} back",
    }
    made = texts.get(seen.name)
    return "" if made is None else f"{_clock(seen.time)}  {made()}"


def _short(address: object) -> str:
    return str(address)[:8]


def _clock(time: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"
