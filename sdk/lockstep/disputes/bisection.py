"""Shows the bisection of a game as a tree: each halved range, with both sides' statements about the halves.

    trace of S_1 .. S_T -> positions of G_t -> leaves of a tensor -> elements of a leaf -> chunks of a fold

A pure function of the game's log. The defender shows both halves; the challenger picks the first node that differs, and
thereby agrees with everything to its left. The nodes to its right are undecided.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import GameEvent, Wrong
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.programs.program import CHUNK, F32, HeaderFields, Op
from lockstep.protocol.types import Digest

Label = Callable[[int, int], str]
"""Names the positions first .. last for people."""


class Agreement(StrEnum):
    """The challenger's verdict on a range that the defender has shown."""

    DIFFERS = "differs"
    AGREES = "agrees"
    UNSAID = "unsaid"


@dataclass
class Range:
    """Consecutive positions of one tree, or a part of a leaf or a fold."""

    label: str
    agreement: Agreement
    node: Digest | None = None
    """The node that the defender shows for the range."""
    first: int | None = None
    last: int | None = None
    parts: list[Range] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the range and its parts as JSON."""
        return {
            "label": self.label,
            "challenger": self.agreement.value,
            "node": None if self.node is None else self.node.hex(),
            "first": self.first,
            "last": self.last,
            "parts": [part.to_dict() for part in self.parts],
        }

    @property
    def deepest(self) -> Range:
        """Returns the smallest range that is known to differ."""
        inner = next((p for p in self.parts if p.agreement is Agreement.DIFFERS), None)
        return self if inner is None else inner.deepest


@dataclass
class PickedNode:
    """One reveal of the defender, and the node that the challenger picked from it."""

    children: moves.Proof
    picked: int | None = None
    """The picked node's position in its level of the tree; None before the pick."""

    @property
    def down(self) -> int:
        """Tree levels between the node in question and the revealed nodes."""
        return ceil_log2(len(self.children))


@dataclass
class Descent:
    """The reveals and picks of a game within one tree."""

    tree: str
    """"trace", "step" or "tensor"."""
    looks: list[PickedNode] = field(default_factory=list)


def descents(events: Sequence[GameEvent]) -> Iterator[Descent]:
    """Yields the trees that a game has descended, in order."""
    current: Descent | None = None
    for event in events:
        if isinstance(event, moves.Opened) and event.t == 0:
            current = Descent("trace")
        elif isinstance(event, moves.Defended | moves.TensorRevealed):
            if current is not None:
                yield current
            current = Descent("step" if isinstance(event, moves.Defended) else "tensor")
        if current is None:
            continue
        if isinstance(event, moves.Defended | moves.TensorRevealed | moves.Revealed) and event.children:
            current.looks.append(PickedNode(event.children))
        elif isinstance(event, moves.Picked) and current.looks:
            current.looks[-1].picked = event.position
    if current is not None:
        yield current


def bisection(events: Sequence[GameEvent], transitions: int, op: Op | None = None) -> Range:
    """Returns the whole tree, from the claim's trace down to the game's current position.

    `op` is the picked op, if known.
    """
    argued = _last(events, moves.Argued)
    header = None if argued is None else Statement.decode(argued.statement).fields
    root = Range(states(1, transitions), Agreement.DIFFERS, first=1, last=transitions)
    opened = _last(events, moves.Opened)
    if opened is not None and opened.t:
        root.parts = _named_by_opening(opened.t, transitions, _last(events, moves.Argued))
    for descent in descents(events):
        if descent.tree == "trace":
            _cut(root, descent, ceil_log2(transitions), lambda a, b: trace_positions(a, b, transitions), begin=1)
        elif descent.tree == "step" and argued is not None and header is not None:
            at = root.deepest
            step = Range(f"G_{argued.t}: {positions(0, (1 << header.depth) - 1, header)}", Agreement.DIFFERS)
            at.parts.append(step)
            _cut(step, descent, header.depth, lambda a, b: positions(a, b, header))
        elif descent.tree == "tensor":
            _tensor(root, descent, _last(events, moves.TensorRevealed), op)
    _below_the_leaf(root, events, op)
    return root


def _named_by_opening(t: int, transitions: int, argued: moves.Argued | None) -> list[Range]:
    """Returns the ranges of a game that opens at step t: the challenger agrees with every state before it."""
    parts = [Range(states(1, t - 1), Agreement.AGREES, first=1, last=t - 1)] if t > 1 else []
    parts.append(Range(states(t, t), Agreement.DIFFERS, None if argued is None else argued.node, t, t))
    if t < transitions:
        parts.append(Range(states(t + 1, transitions), Agreement.UNSAID, first=t + 1, last=transitions))
    return parts


def _cut(root: Range, descent: Descent, depth: int, label: Label, begin: int = 0) -> None:
    """Halves `root` down to the last picked node. `begin` is the number shown for the first position."""
    at, height, index = root.deepest, depth, 0
    for look in descent.looks:
        if look.picked is None:
            return
        down = look.down
        shown = merkle.levels(look.children, down)
        for k in range(1, down + 1):
            height, path = height - 1, look.picked >> (down - k)
            halves = []
            for half in (path & ~1, path | 1):
                first, last = half << height, ((half + 1) << height) - 1
                agreement = Agreement.DIFFERS if half == path else Agreement.AGREES if half < path else Agreement.UNSAID
                node = merkle.node_at(shown, down - k, half - (index << k))
                halves.append(Range(label(first, last), agreement, node, first + begin, last + begin))
            at.parts = halves
            at = halves[path & 1]
        index = look.picked


def _tensor(root: Range, descent: Descent, revealed: moves.TensorRevealed | None, op: Op | None) -> None:
    if revealed is None:
        return
    elements = None if op is None else op.header.elements
    gone = sum(look.down for look in descent.looks)
    depth = gone if op is None else op.header.depth
    tensor = Range(f"output of op {revealed.op}{described(op)}", Agreement.DIFFERS, revealed.tree)
    root.deepest.parts.append(tensor)
    _cut(tensor, descent, depth, lambda a, b: leaves(a, b, elements))


def _below_the_leaf(root: Range, events: Sequence[GameEvent], op: Op | None) -> None:
    picked, posted = _last(events, moves.ElementPicked), _last(events, moves.LeafPosted)
    convicted = _last(events, moves.Convicted)
    if picked is None and convicted is not None and convicted.finding.wrong is Wrong.OP:
        # The proof itself picked the element.
        picked = moves.ElementPicked(convicted.finding.element)
    if picked is not None and posted is not None:
        begin = picked.element // CHUNK * CHUNK
        label = f"element {picked.element}: claimed {shown_word(picked.word(posted.data), op)}"
        root.deepest.parts = _first_of("element", begin, begin + len(posted.data) // 4 - 1, picked.element, label)
    _partials(root, events, op)
    if convicted is not None:
        found = convicted.finding
        if found.wrong is Wrong.OP:
            due = f"the contract computes {shown_word(found.contract_word, op)}"
        else:
            due = f"the Program says 0x{found.contract_bits.hex()}"
        root.deepest.parts.append(Range(due, Agreement.DIFFERS))


def _partials(root: Range, events: Sequence[GameEvent], op: Op | None) -> None:
    """Adds the ranges of a fold's partial results: groups of chunks, then chunks. The proof determines the chunk."""
    posted = [e for e in events if isinstance(e, moves.PartialsPosted)]
    group, convicted = _last(events, moves.PartialPicked), _last(events, moves.Convicted)
    if group is not None and posted:
        label = f"group {group.group} of 256 chunks: claimed {shown_word(group.claimed, op)}"
        root.deepest.parts = _first_of("group", 0, len(posted[0].words) // 4 - 1, group.group, label)
    if convicted is not None and posted and convicted.finding.wrong is Wrong.OP:
        begin = 0 if group is None else CHUNK * group.group
        chunk = convicted.finding.one_chunk
        claimed = shown_word(convicted.finding.claimed_word, op)
        last = begin + len(posted[-1].words) // 4 - 1
        if chunk is None:
            label = f"the combination of {span('chunk', begin, last)}: claimed {claimed}"
            root.deepest.parts = [Range(label, Agreement.DIFFERS, first=begin, last=last)]
        else:
            root.deepest.parts = _first_of("chunk", begin, last, chunk, f"chunk {chunk}: claimed {claimed}")


def _first_of(name: str, first: int, last: int, picked: int, label: str) -> list[Range]:
    """Splits a row of posted values at the picked one: all before it is agreed."""
    parts = []
    if picked > first:
        parts.append(Range(span(name, first, picked - 1), Agreement.AGREES, first=first, last=picked - 1))
    parts.append(Range(label, Agreement.DIFFERS, first=picked, last=picked))
    if picked < last:
        parts.append(Range(span(name, picked + 1, last), Agreement.UNSAID, first=picked + 1, last=last))
    return parts


def _last(events: Sequence[GameEvent], kind: type[Any]) -> Any:
    return next((e for e in reversed(events) if isinstance(e, kind)), None)


# -- words for people --------------------------------------------------------------------------------------------------


def span(name: str, first: int, last: int) -> str:
    """Names a range of items: "element 3" or "elements 3 to 9"."""
    plural = "entries" if name == "entry" else f"{name}s"
    return f"{name} {first}" if first == last else f"{plural} {first} to {last}"


def states(first: int, last: int) -> str:
    """Names a range of a trace's states."""
    return f"S_{first}" if first == last else f"S_{first} to S_{last}"


def trace_positions(first: int, last: int, transitions: int) -> str:
    """Names a range of positions in the trace's tree: S_t lies at t - 1; positions after S_T are empty."""
    if first >= transitions:
        return "behind the trace"
    behind = " and what is behind" if last >= transitions else ""
    return states(first + 1, min(last + 1, transitions)) + behind


def positions(first: int, last: int, header: HeaderFields) -> str:
    """Names a range of positions of G_t: ops, padding, entries of the state block."""
    block = (1 << header.depth) - (1 << header.s_out)
    parts = []
    if first < header.n:
        parts.append(span("op", first, min(last, header.n - 1)))
    if last >= header.n and first < block:
        parts.append("padding")
    if last >= block:
        parts.append(span("entry", max(first, block) - block, last - block) + " of the state")
    return ", ".join(parts)


def leaves(first: int, last: int, elements: int | None) -> str:
    """Names a range of a tensor's leaves by their elements."""
    end = CHUNK * (last + 1) - 1
    if elements is not None:
        if CHUNK * first >= elements:
            return "behind the tensor"
        end = min(end, elements - 1)
    return span("element", CHUNK * first, end)


def described(op: Op | None) -> str:
    """Returns kind and shape of an op in words; empty if the op is not known."""
    if op is None:
        return ""
    shape = " x ".join(str(e) for e in op.extents) or "scalar"
    return f" ({op.kind.name.lower()}, {'f32' if op.dtype == F32 else 'i32'} {shape})"


def shown_word(word: int, op: Op | None) -> str:
    """Formats a word as its bits and, where the dtype is known, as a number."""
    value = value_of(word, op)
    if value is None:
        return f"0x{word:08x}"
    return f"0x{word:08x} = {value:.9g}" if isinstance(value, float) else f"0x{word:08x} = {value}"


def value_of(word: int, op: Op | None) -> float | int | None:
    """Decodes a word as a number; None where the op, and so its dtype, is not known."""
    if op is None:
        return None
    data = word.to_bytes(4, "big")
    if op.dtype == F32:
        return float(struct.unpack(">f", data)[0])
    return int.from_bytes(data, "big", signed=True)
