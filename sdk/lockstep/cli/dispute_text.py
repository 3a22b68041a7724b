"""Formats games as text: a table, a summary, a tree."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lockstep.base.amounts import tokens
from lockstep.base.durations import moment
from lockstep.base.escaping import on_one_line
from lockstep.base.lines import event
from lockstep.base.naming import short
from lockstep.cli.screen import Screen
from lockstep.disputes.bisection import Agreement, Range, described, shown_word
from lockstep.disputes.gamelog import DUE, Side
from lockstep.market.narrator import ALERT, BAD, GOOD, QUIET, STRONG, Line, clock, countdown
from lockstep.protocol.dispute.moves import Wrong
from lockstep.protocol.types import MERGE_SLOT, Seconds

if TYPE_CHECKING:
    from lockstep.disputes.following import Follower, Sighting
    from lockstep.disputes.progress import Dispute, ListedGame

WIDTH = 120
STYLES_OF_SIDES = {Side.CHALLENGER: "", Side.DEFENDER: "cyan", None: GOOD}
STYLES = {Agreement.DIFFERS: BAD, Agreement.AGREES: GOOD, Agreement.UNSAID: QUIET}


def rendered(thing: Any) -> str:
    """Renders an object of rich as text, with colours only on a terminal."""
    terminal = sys.stdout.isatty()
    target = StringIO()
    width = None if terminal else WIDTH
    # On a terminal NO_COLOR decides, as everywhere.
    colours = None if terminal else True
    console = Console(file=target, force_terminal=terminal, width=width, no_color=colours, highlight=False)
    drawn = [each if each.control or each.text == "\n" else _legible(each) for each in console.render(thing)]
    console.print(Segments(drawn), end="")
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def _legible(segment: Segment) -> Segment:
    """Escapes control characters in a part of a line: they can only come from untrusted text."""
    return Segment(on_one_line(segment.text), segment.style)


def _account(account: str) -> str:
    """Shortens an address for a table."""
    return f"{account[:8]}..{account[-4:]}"


def place_of_claim(row: ListedGame) -> str:
    """Returns the claim's round and slot: "0/2" or "0/merge"."""
    return f"{row.claim.round}/{'merge' if row.claim.slot == MERGE_SLOT else row.claim.slot}"


def state(row: ListedGame, now: Seconds) -> str:
    """Returns the side to move and the move that is due; or how the game ended."""
    if row.mover is None:
        return row.verdict
    if row.late(now):
        return f"the {row.mover.value}'s clock has run out: anybody may resolve"
    return f"{row.mover.value} {DUE[row.stored.phase]}"


def clocks(row: ListedGame, now: Seconds) -> str:
    """Returns the time left on the challenger's and on the defender's clock."""
    left = [row.left(side, now) for side in (Side.CHALLENGER, Side.DEFENDER)]
    return " / ".join("-" if seconds is None else countdown(seconds) for seconds in left)


def named_clocks(row: ListedGame, now: Seconds) -> str:
    """Returns the time left on each clock, with its side's name."""
    challenger, defender = clocks(row, now).split(" / ")
    return f"challenger {challenger}, defender {defender}"


def table(rows: Sequence[ListedGame], now: Seconds, ended: bool) -> str:
    """Returns a table of games, one line each."""
    if not rows:
        return "no games were opened" if ended else "no games are open; --all also shows those that are over"
    drawn = Table(box=None, pad_edge=False)
    for name in ("game", "job", "round/slot", "challenger", "defender", "state", "clocks c / d", "verdict"):
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(
            short(row.id), short(row.claim.job), place_of_claim(row), _account(row.opened.challenger),
            _account(row.opened.defender), state(row, now), clocks(row, now), row.verdict,
        )  # fmt: skip
    return rendered(drawn)


def card(found: Dispute, now: Seconds, command: str) -> str:
    """Returns a summary of one game."""
    stake = "no longer locked" if found.stake is None else tokens(found.stake)
    lines = [
        f"game        {found.id.hex()}",
        f"claim       {found.opened.claim.hex()}",
        f"job         {found.claim.job.hex()}, round/slot {place_of_claim(found)}",
        f"challenger  {found.opened.challenger}, bond {tokens(found.bond)}",
        f"defender    {found.opened.defender}, stake {stake}",
        "",
        *_state_lines(found, now),
        *_place_lines(found),
        "",
        rendered(_moves(found)),
        _gas_line(found),
        "",
        *[f"{p.what:23} {tokens(p.amount)}{'' if p.account is None else f'  {p.account}'}" for p in found.money],
        "",
        f"check it yourself: {command}",
    ]
    return "\n".join(lines)


def _state_lines(found: Dispute, now: Seconds) -> list[str]:
    if found.mover is None:
        won = "" if found.winner is None else f", won by {found.winner}"
        return [f"verdict     {found.verdict}{won}"]
    deadline = found.stored.deadline
    return [
        f"turn        {state(found, now)}",
        f"deadline    {countdown(deadline - now)} left, {moment(deadline)} ({deadline})",
        f"clocks      {named_clocks(found, now)}",
    ]


def _place_lines(found: Dispute) -> list[str]:
    place = found.place
    if place.t is None and place.wrong is not None:
        return [f"place       leaf {place.position} of the trace, which must be empty"]
    if place.t is None:
        return ["place       in the trace; the step is not known yet"]
    lines = [f"place       step {place.t} of {found.claim.transitions}, Program {found.program_name}"]
    if place.wrong is Wrong.OP:
        name = "" if found.program is None or place.position is None else f" {found.program.name_of(place.position)}"
        lines[0] += f", op {place.position}{name}{described(found.op)}"
        for what, value in (("leaf", place.leaf), ("element", place.element), ("chunk", place.chunk)):
            lines[0] += "" if value is None else f", {what} {value}"
    elif place.wrong is not None:
        lines[0] += f", {place.wrong.name.lower()} {place.position}"
    for name, bits in (("claimed", place.claimed), ("contract", place.computed)):
        if bits is not None:
            lines.append(f"{name:11} {_word(found, bits)}")
    return lines


def _moves(found: Dispute) -> Table:
    drawn = Table(box=None, pad_edge=False)
    for name in ("block", "by", "move", "gas", "transaction", "shows"):
        drawn.add_column(name, justify="right" if name in ("block", "gas") else "left", overflow="fold")
    for move in found.made:
        transaction = f"0x{short(move.transaction)}"
        drawn.add_row(str(move.block), move.by, move.call, f"{move.gas:,}", transaction, move.shows)
    return drawn


def _gas_line(found: Dispute) -> str:
    gas = [move.gas for move in found.made]
    return f"{len(gas)} transactions, {sum(gas):,} gas, at most {max(gas, default=0):,} in one"


def drawn(found: Dispute, root: Range, now: Seconds) -> str:
    """Returns the bisection as a tree, with the game's end or its next move."""
    head = f"game {short(found.id)} about claim {short(found.opened.claim)}, round/slot "
    top = Tree(Text(f"{head}{place_of_claim(found)}"), guide_style="dim")
    _grow(top, root)
    top.add(Text(state(found, now), style="bold"))
    return rendered(top)


def checked(data: dict[str, Any]) -> str:
    """Returns the line of `lockstep dispute check`: the place, and the three numbers."""
    op, chunk = data["op"], "" if data["chunk"] is None else f", chunk {data['chunk']}"
    return (
        f"{data['verdict'].upper()} {data['game']}: step {data['step']} of Program {data['program']}, "
        f"op {op['index']} ({op['kind']} {op['name']}), element {data['element']}{chunk}: claimed "
        f"{data['claimed_bits']}, the contract computed {data['contract_bits']}, this machine {data['computed_bits']}"
    )


def _grow(tree: Tree, part: Range) -> None:
    shown = "" if part.node is None else f"  {part.node.hex()[:8]}"
    branch = tree.add(Text(f"{part.label}{shown}  {part.agreement.value}", style=STYLES[part.agreement]))
    for inner in part.parts:
        _grow(branch, inner)


class GameScreen:
    """Displays watched games: lines on stdout, and on a terminal their running clocks below them."""

    def __init__(self, follower: Follower, now: Seconds, as_json: bool, replay: Callable[[str], str]) -> None:
        """`replay` returns the command that reproduces a claim."""
        self._follower = follower
        self._as_json = as_json
        self._replay = replay
        self._screen = Screen(None if as_json else self._running)
        self.at(now)

    def at(self, now: Seconds) -> None:
        """Sets the chain time, at a new block."""
        self._now, self._read_at = now, time.monotonic()

    def tell(self, seen: Sighting) -> None:
        """Prints one line; at a game's end, also the command that reproduces its result."""
        if self._as_json:
            event(seen.kind.value, **seen.to_dict(self._now))
            return
        self._screen.tell(line(seen, self._now))
        if seen.move is None:
            command = self._replay(seen.dispute.opened.claim.hex())
            self._screen.tell(Line(f"check it yourself: {command}", STRONG))

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._screen.__exit__(*raised)

    def _running(self) -> list[Line]:
        """Returns a line with the clocks of each running game, which advance by machine time between blocks."""
        now = Seconds(self._now + int(time.monotonic() - self._read_at))
        games = [d for d in self._follower.latest.values() if d.running]
        return [Line(f"{short(d.id)} {state(d, now)}: {named_clocks(d, now)}", STRONG) for d in games]


def line(seen: Sighting, now: Seconds, *, timed: bool = True) -> Line:
    """Formats one event of a game; `timed` adds the chain's time of day."""
    dispute, move = seen.dispute, seen.move
    name = short(dispute.id)
    if move is None:
        numbers = [_word(dispute, bits) for bits in (dispute.place.claimed, dispute.place.computed)]
        told = "" if dispute.place.computed is None else f": claimed {numbers[0]}, the contract computed {numbers[1]}"
        return Line(f"{name} {dispute.verdict}{told}", BAD if told else STRONG)
    undone = "undone by a reorganisation: " if seen.kind == "undone" else ""
    left = ""
    if seen.latest and dispute.running:
        left = f" ({state(dispute, now)}, {countdown(dispute.stored.deadline - now)} left)"
    style = ALERT if undone else STYLES_OF_SIDES.get(move.side, "")
    head = f"{clock(move.time)}  " if timed else ""
    return Line(f"{head}{name} {move.by:10} {move.call:12} {undone}{move.shows}{left}", style)


def _word(dispute: Dispute, bits: bytes | None) -> str:
    if bits is None:
        return ""
    of_op = dispute.place.wrong is Wrong.OP
    return shown_word(int.from_bytes(bits[-4:], "big"), dispute.op) if of_op else f"0x{bits.hex()}"
