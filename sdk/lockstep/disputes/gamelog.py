"""Describes a game's log in words: each move, who made it, the facts that it shows, and the game's position.

All functions are pure functions of the events, in the chain's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.chain.games import LoggedEvent
from lockstep.disputes.bisection import positions, shown_word
from lockstep.disputes.player import Side
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import GameEvent, GamePhase, Verdict, Wrong
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.jobs import NEVER
from lockstep.protocol.programs.program import CHUNK, HeaderFields, Op
from lockstep.protocol.types import Address, Seconds

VERDICTS = {Verdict.FRAUD: "fraud", Verdict.TIMEOUT: "timeout", Verdict.REJECTED: "rejected", Verdict.VOID: "void"}

DUE = {
    GamePhase.TRACE_REVEAL: "to show the next nodes of the trace",
    GamePhase.TRACE_PICK: "to pick the first node of the trace that differs",
    GamePhase.ADJACENT: "to name the state before the picked one",
    GamePhase.DEFEND: "to show the step's tree",
    GamePhase.GRAPH_REVEAL: "to show the next nodes of the step",
    GamePhase.GRAPH_PICK: "to pick the first node of the step that differs",
    GamePhase.TENSOR: "to show the op's output",
    GamePhase.TENSOR_REVEAL: "to show the next nodes of the tensor",
    GamePhase.TENSOR_PICK: "to pick the first node of the tensor that differs",
    GamePhase.LEAF: "to post the leaf",
    GamePhase.ELEMENT: "to pick the first element that differs, or to have the contract compute it",
    GamePhase.PARTIALS: "to post the fold's partials",
    GamePhase.PARTIAL_PICK: "to pick the first partial that differs",
    GamePhase.LOW_PARTIALS: "to post the partials of the picked group",
    GamePhase.PROOF: "to have the contract compute the element",
    GamePhase.ALIAS: "to show what the state's entry should be",
    GamePhase.PADDING: "to show that the position should be empty",
}
"""Description of the move that is due in each phase."""

PROOFS = frozenset({GamePhase.PROOF, GamePhase.ALIAS, GamePhase.PADDING})
"""The phases that end with a proof."""

_CALLS: dict[type[GameEvent], tuple[str, Side | None]] = {
    moves.Opened: ("open", Side.CHALLENGER),
    moves.Argued: ("adjacent", Side.CHALLENGER),
    moves.Defended: ("defend", Side.DEFENDER),
    moves.Revealed: ("reveal", Side.DEFENDER),
    moves.Picked: ("pick", Side.CHALLENGER),
    moves.TensorRevealed: ("revealTensor", Side.DEFENDER),
    moves.LeafPosted: ("postLeaf", Side.DEFENDER),
    moves.ElementPicked: ("pickElement", Side.CHALLENGER),
    moves.PartialsPosted: ("postPartials", Side.DEFENDER),
    moves.PartialPicked: ("pickPartial", Side.CHALLENGER),
    moves.Staged: ("stage", Side.CHALLENGER),
    moves.Convicted: ("proveOp", Side.CHALLENGER),
    moves.Resolved: ("resolve", None),
}
"""Maps an event to the move that logs it and the moving side; None if either side may make the move."""
_PROOF_CALLS = {Wrong.OP: "proveOp", Wrong.ALIAS: "proveAlias", Wrong.PADDING: "provePadding"}
_FOLLOWS = {moves.Argued: moves.Opened, moves.Staged: moves.ElementPicked, moves.Resolved: moves.Convicted}
"""Maps an event to the event that the same move logs before it."""


def continues(event: str, last: str) -> bool:
    """True if an event of this name is of the move that has just logged `last` in the same transaction.

    It decides what counts as one move, wherever moves are counted.
    """
    return any((event, last) == (later.__name__, before.__name__) for later, before in _FOLLOWS.items())


@dataclass(frozen=True)
class MoveMade:
    """One move of a game as it was mined."""

    call: str
    side: Side | None
    """The side that made the move; None if anyone may make it."""
    events: tuple[GameEvent, ...]
    shows: str
    """The facts that the move makes known, in words."""
    block: int
    transaction: bytes
    time: Seconds = NEVER
    gas: int = 0
    sender: Address | None = None

    @property
    def by(self) -> str:
        """Returns the side that made the move, as text."""
        return "anybody" if self.side is None else self.side.value

    def to_dict(self) -> dict[str, Any]:
        """Returns the move as JSON."""
        return {
            "move": self.call,
            "by": self.by,
            "sender": self.sender,
            "shows": self.shows,
            "block": self.block,
            "time": self.time,
            "transaction": "0x" + self.transaction.hex(),
            "gas": self.gas,
        }


@dataclass(frozen=True)
class GamePlace:
    """The position that a game has reached; fields that are not known yet are None."""

    t: int | None = None
    wrong: Wrong | None = None
    """The kind of the picked position: an op, an entry of the state block, or padding."""
    position: int | None = None
    """Index of the op in the Program, of the entry in the state block, or of the leaf that should be empty."""
    leaf: int | None = None
    element: int | None = None
    group: int | None = None
    chunk: int | None = None
    claimed: bytes | None = None
    """The claimed word, or the claimed node of an entry or of padding."""
    computed: bytes | None = None
    """The word that the contract computed."""


def moves_of(entries: Sequence[LoggedEvent], transitions: int, op: Op | None = None) -> list[MoveMade]:
    """Returns a game's log as moves, each with the facts that it shows."""
    made: list[MoveMade] = []
    told = EventDescriber(transitions, op)
    for entry in entries:
        event = entry.event
        shows = told.of(event)
        call, side = _CALLS[type(event)]
        if isinstance(event, moves.Convicted):
            call = _PROOF_CALLS.get(event.finding.wrong, call)
        last = made[-1] if made else None
        if (
            last is not None
            and continues(type(event).__name__, type(last.events[-1]).__name__)
            and last.transaction == entry.transaction
        ):
            name = call if isinstance(event, moves.Staged) else last.call
            made[-1] = replace(last, call=name, events=(*last.events, event), shows=f"{last.shows}; {shows}")
            continue
        made.append(MoveMade(call, side, (event,), shows, entry.block, entry.transaction))
    return made


@dataclass
class EventDescriber:
    """Describes the events of a game's log, in order."""

    transitions: int
    op: Op | None = None
    _header: HeaderFields | None = None
    _tree: str = "trace"
    _height: int | None = None
    _shown: int = 0
    """Number of nodes in the last reveal."""
    _leaf: bytes = b""
    """The last posted leaf."""

    def of(self, event: GameEvent) -> str:
        """Describes the facts that an event makes known."""
        match event:
            case moves.Opened():
                self._height = (self.transitions - 1).bit_length()
                return "a game about the whole trace" if not event.t else f"a game about step {event.t}"
            case moves.Argued():
                self._header = Statement.decode(event.statement).fields
                return f"step {event.t} is argued: its start is agreed, its end is not"
            case moves.Defended():
                self._tree, self._height = "step", None if self._header is None else self._header.depth
                return self._reveals(event.children)
            case moves.Revealed():
                return self._reveals(event.children)
            case moves.TensorRevealed():
                self._tree = "tensor"
                self._height = None if self.op is None else self.op.header.depth
                return f"output of op {event.op}: {self._reveals(event.children) if event.children else 'one leaf'}"
            case moves.Picked():
                return self._picks(event)
            case moves.LeafPosted():
                self._leaf = event.data
                return f"{len(event.data) // 4} elements of the leaf"
            case moves.ElementPicked():
                return f"element {event.element} differs: claimed {shown_word(event.word(self._leaf), self.op)}"
            case moves.PartialsPosted():
                return f"{len(event.words) // 4} partials, said to combine to the claimed word"
            case moves.PartialPicked():
                return f"group {event.group} of chunks differs: claimed {shown_word(event.claimed, self.op)}"
            case moves.Staged():
                return "a part of the operands is proved"
            case moves.Convicted():
                return self._convicts(event.finding)
            case moves.Resolved():
                return VERDICTS.get(event.verdict, event.verdict.name.lower())
        return type(event).__name__

    def _reveals(self, children: moves.Proof) -> str:
        self._shown = len(children)
        return f"{len(children)} nodes of the {self._tree}"

    def _picks(self, event: moves.Picked) -> str:
        down = max(0, self._shown - 1).bit_length()
        which = f"node {event.position & ((1 << down) - 1)} of {self._shown} differs"
        if self._height is None:
            return f"{which}, those before it agree"
        self._height -= down
        first, last = event.position << self._height, ((event.position + 1) << self._height) - 1
        return f"{which}: {self._range(first, last)}"

    def _range(self, first: int, last: int) -> str:
        if self._tree == "step" and self._header is not None:
            return positions(first, last, self._header)
        if self._tree == "tensor":
            end = CHUNK * (last + 1) - 1
            if self.op is not None:
                end = min(end, self.op.header.elements - 1)
            return f"elements {CHUNK * first} to {end}"
        if first >= self.transitions:
            return "behind the trace"
        end = min(last + 1, self.transitions)
        return f"S_{first + 1}" if end == first + 1 else f"S_{first + 1} to S_{end}"

    def _convicts(self, found: moves.Finding) -> str:
        if found.wrong is Wrong.OP:
            words = [
                shown_word(int.from_bytes(b[-4:], "big"), self.op) for b in (found.claimed_bits, found.contract_bits)
            ]
            part = "the partials' combination" if found.one_chunk is None else f"chunk {found.chunk}"
            return (
                f"op {found.position}, element {found.element}, {part}: claimed {words[0]}, "
                f"the contract computes {words[1]}"
            )
        return f"{found.wrong.name.lower()} {found.position} is not what the Program says"


def place_of(events: Sequence[GameEvent]) -> GamePlace:
    """Returns the position that a log has reached."""
    place, header, leaf = GamePlace(), None, b""
    for event in events:
        match event:
            case moves.Argued():
                header = Statement.decode(event.statement).fields
                place = replace(place, t=int(event.t))
            case moves.Picked() if event.phase == GamePhase.TENSOR:
                place = replace(place, wrong=Wrong.OP, position=event.position)
            case moves.Picked() if event.phase == GamePhase.ALIAS and header is not None:
                block = (1 << header.depth) - (1 << header.s_out)
                place = replace(place, wrong=Wrong.ALIAS, position=event.position - block, claimed=event.node)
            case moves.Picked() if event.phase == GamePhase.PADDING:
                place = replace(place, wrong=Wrong.PADDING, position=event.position, claimed=event.node)
            case moves.Picked() if event.phase == GamePhase.LEAF:
                place = replace(place, leaf=event.position)
            case moves.LeafPosted():
                leaf = event.data
            case moves.ElementPicked():
                word = event.word(leaf).to_bytes(4, "big")
                place = replace(place, element=event.element, leaf=event.element // CHUNK, claimed=word)
            case moves.PartialPicked():
                place = replace(place, group=event.group, claimed=event.claimed.to_bytes(4, "big"))
            case moves.Convicted():
                found = event.finding
                place = replace(
                    place, t=found.t or place.t, wrong=found.wrong, position=found.position,
                    claimed=found.claimed_bits, computed=found.contract_bits,
                )  # fmt: skip
                if found.wrong is Wrong.OP:
                    place = replace(place, element=found.element, chunk=found.one_chunk)
    return place
