"""Prints a run: a line for each event and each loss on a terminal, JSON Lines for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.base.lines import event, say
from lockstep.base.naming import short
from lockstep.cli.screen import Screen
from lockstep.cli.why import Silence, impatient, titles_of
from lockstep.market.narrator import ALERT, UNTOLD, Line, clock, of_chain, of_divergence, of_loss
from lockstep.market.progress import Progress, windows_of
from lockstep.protocol.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.client import JobHandle
    from lockstep.execution.losses import MergedLoss

BARS = "▁▂▃▄▅▆▇█"


def follow(handle: JobHandle, losses: bool, as_json: bool) -> None:
    """Prints a job's events until it is done, and the loss after each merge. Raises the errors of reading the chain."""
    if as_json:
        _stream(handle, losses)
        return
    params = handle.params
    progress = Progress(params.schedule.rounds, params.role.slots, windows_of(params))
    head, since = int(handle.net.w3.eth.get_block("latest")["timestamp"]), time.monotonic()

    def below() -> list[Line]:
        return progress.lines(head + int(time.monotonic() - since))

    curve: list[MergedLoss] = []
    silence = Silence(handle)
    (title,) = titles_of([handle])
    with Screen(below) as screen:
        if title:
            screen.tell(Line(f"job {short(handle.id)}: {title}"))
        for seen in impatient(handle.watch()):
            if seen is None:
                for line in silence.explanation():
                    screen.tell(Line(line, ALERT))
                continue
            silence.broken()
            # Chain time can be moved on: no event lies ahead of it.
            if seen.time > head + time.monotonic() - since:
                head, since = seen.time, time.monotonic()
            progress.see(seen.name, seen.args, seen.time)
            if seen.name not in UNTOLD:
                screen.tell(of_chain(seen.name, seen.args).after(f"{clock(seen.time)}  "))
            if losses and seen.name in ("Sealed", "Merged"):
                found = _losses(handle, curve, screen)
                for at in range(len(found)):
                    if found[at] not in curve:
                        upto = sparkline([x.loss for x in found[: at + 1]])
                        screen.tell(of_loss(found[at], upto).after(f"{clock(seen.time)}  "))
                if (lost := _lost(found, curve)) is not None:
                    screen.tell(of_divergence(lost, handle.id.hex()).after(f"{clock(seen.time)}  "))
                curve = found


def _stream(handle: JobHandle, losses: bool) -> None:
    from lockstep.chain.plain import plain

    curve: list[MergedLoss] = []
    silence = Silence(handle)
    for seen in impatient(handle.watch()):
        if seen is None:
            for line in silence.explanation():
                say(line)
            continue
        silence.broken()
        event(seen.name, block=seen.block, chain_time=seen.time, **plain(seen.contract, seen.name, seen.args))
        if losses and seen.name in ("Sealed", "Merged"):
            found = _losses(handle, curve, None)
            for one in found:
                if one not in curve:
                    event("loss", **one.to_dict())
            if (lost := _lost(found, curve)) is not None:
                say(of_divergence(lost, handle.id.hex()).text)
            curve = found


def _lost(found: Sequence[MergedLoss], told: Sequence[MergedLoss]) -> float | None:
    """Returns the latest loss if it is not finite and was not reported before."""
    new = [each.loss for each in found if each not in told]
    return new[-1] if new and not math.isfinite(new[-1]) else None


def loss_lines(curve: Sequence[MergedLoss], job: str) -> list[str]:
    """Returns the losses as lines of text, with a curve."""
    lost = _lost(curve, ())
    advice = [] if lost is None else [of_divergence(lost, job).text]
    return [*(of_loss(found).text for found in curve), sparkline([x.loss for x in curve]), *advice]


def sparkline(values: Sequence[float]) -> str:
    """Returns values as a curve in one line of text."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] if v in finite else "?" for v in values)


def _losses(handle: JobHandle, known: list[MergedLoss], screen: Screen | None) -> list[MergedLoss]:
    """Returns the losses so far; one that cannot be computed yet does not end the watch."""
    try:
        return list(handle.losses(known))
    except LockstepError as error:
        text = f"  the loss cannot be computed at present: {error.message}"
        if screen is None:
            say(text)
        else:
            screen.tell(Line(text, ALERT))
        return known
