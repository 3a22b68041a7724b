"""Moves of the dispute game as sent to the contract, and the events that it logs.

Twin of contracts/interfaces/IDisputeGame.sol. A move's `call` and `arguments(game)` are the contract's function and its
arguments in order; an event's fields are the log's, without the game's id.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, dataclass_transform

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.types import Address, ClaimId, Digest, GameId, ProgramRoot, StateRoot, Step

Proof = tuple[Digest, ...]
"""Sibling hashes from a node upward."""
COMBINED = 2**32 - 1
"""Value in place of a chunk's index, for the combination of all posted partials."""


class GamePhase(IntEnum):
    """The move that a game waits for; numbered as in IDisputeGame.sol."""

    NONE = 0
    TRACE_REVEAL = 1
    TRACE_PICK = 2
    ADJACENT = 3
    DEFEND = 4
    GRAPH_REVEAL = 5
    GRAPH_PICK = 6
    TENSOR = 7
    TENSOR_REVEAL = 8
    TENSOR_PICK = 9
    LEAF = 10
    ELEMENT = 11
    PARTIALS = 12
    PARTIAL_PICK = 13
    LOW_PARTIALS = 14
    PROOF = 15
    ALIAS = 16
    PADDING = 17
    CLOSED = 18


DEFENDERS = frozenset(
    {
        GamePhase.TRACE_REVEAL, GamePhase.DEFEND, GamePhase.GRAPH_REVEAL, GamePhase.TENSOR, GamePhase.TENSOR_REVEAL,
        GamePhase.LEAF, GamePhase.PARTIALS, GamePhase.LOW_PARTIALS,
    }
)  # fmt: skip
"""The phases in which the defender moves."""


class Verdict(IntEnum):
    """The outcome of a game."""

    NONE = 0
    FRAUD = 1
    TIMEOUT = 2
    REJECTED = 3
    VOID = 4


class Wrong(IntEnum):
    """The kind of fault proven: a wrong element of an op, a wrong entry of the state block, a position that must be
    EMPTY, or two claims signed for the same work.
    """

    OP = 0
    ALIAS = 1
    PADDING = 2
    EQUIVOCATION = 3


# -- what moves carry


class GameState(NamedTuple):
    """A game's state in the six words that moves show and events carry (`Game.standing` encodes them)."""

    claim: ClaimId
    parties: int
    node: Digest
    statement: Digest
    turn: int
    staged: int

    @property
    def digest(self) -> bytes:
        """Returns the first 224 bits of keccak of the words; the contract stores it for an open game."""
        words = (word if isinstance(word, bytes) else word.to_bytes(32, "big") for word in self)
        return keccak(b"".join(words))[:28]


@dataclass(frozen=True)
class Opening:
    """One verified leaf of an operand."""

    header: bytes
    """Header of the opened tensor: dtype u8 ‖ rank u8 ‖ dims u32 each."""
    data: bytes
    """Bytes of one leaf of the tensor."""
    leaf_proof: Proof
    """Proof from the leaf to the tensor's tree."""
    root_proof: Proof
    """Proof from the tensor root to G (op), S_{t-1} (state) or consts_root (constant); empty for the dataset."""
    leaf_index: int


@dataclass(frozen=True)
class Transition:
    """A transition's Program and the state before it (Solidity: `Step`)."""

    prev: StateRoot
    prev_proof: Proof
    """Proof that leaf(prev) is at position t - 2 of the trace; for t = 1 the words of the claim whose carry is in S_0,
    if any.
    """
    header: bytes
    ops_root: Digest
    consts_root: Digest


NO_TRANSITION = Transition(StateRoot(bytes(32)), (), b"", Digest(bytes(32)), Digest(bytes(32)))
"""Placeholder of `open` for an unknown transition."""


# -- the moves


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Move:
    """One transaction in a game; subclasses are frozen dataclasses."""

    call: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        """Returns the contract function's arguments in order: the game, then the fields, structs as tuples."""
        return (game, *astuple(self))


class Open(Move):
    """The challenger opens a game on transition t of a claim, or on the whole trace (t = 0)."""

    call = "open"
    claim: ClaimId
    body: Body
    """The claim's contents."""
    nonce: int
    t: int
    next: StateRoot
    """S_t as claimed."""
    next_proof: Proof
    transition: Transition

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return astuple(self)


class Answer(Move):
    """A move in an open game."""

    standing: GameState
    """The state of the game that the move answers."""


class Reveal(Answer):
    """The defender shows the descendants of the node."""

    call = "reveal"
    children: Proof


class Pick(Answer):
    """The challenger points at the i-th of the nodes just revealed."""

    call = "pick"
    i: int
    child: Digest
    siblings: Proof


class Adjacent(Answer):
    """The challenger names the state before the picked leaf of the trace."""

    call = "adjacent"
    transition: Transition


class Defend(Answer):
    """The defender shows G_t, whose state block is S_t, with its first descendants."""

    call = "defend"
    context: bytes
    graph: Digest
    state: StateRoot
    block_proof: Proof
    children: Proof


class RevealTensor(Answer):
    """The defender shows the tree of the picked op's output, with its first descendants."""

    call = "revealTensor"
    context: bytes
    descriptor: bytes
    descriptor_proof: Proof
    tree: Digest
    children: Proof


class PostLeaf(Answer):
    """The defender shows the picked leaf."""

    call = "postLeaf"
    data: bytes


class PickElement(Answer):
    """The challenger points at word i of the posted leaf, the element of a fold that has partials."""

    call = "pickElement"
    i: int


class PostPartials(Answer):
    """The defender shows one level of a fold."""

    call = "postPartials"
    words: bytes
    """The partials as big-endian words of 4 bytes each."""


class PickPartial(Answer):
    """The challenger points at word i of the posted partials of groups."""

    call = "pickPartial"
    i: int
    posted: bytes
    """The posted partials, followed by the node that they answered."""


class _Execution(Answer):
    """A move that shows an op's operands (Solidity: `Proof`)."""

    descriptor: bytes
    chunk: int
    """The chunk's index among the posted partials, or COMBINED; in phase ELEMENT the word's index in the leaf;
    else 0.
    """
    posted: bytes
    """The posted partials, followed by the node that they answered; in phase ELEMENT the posted leaf; else empty."""
    openings: tuple[Opening, ...]
    """Openings of the element or chunk; for a combination that is the element, one opening with the posted leaf as its
    data.
    """
    context: bytes

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, astuple(self)[1:])


class Stage(_Execution):
    """The challenger opens the next tensor operands of a map, for a later `ProveOp`."""

    call = "stage"


class ProveOp(_Execution):
    """The challenger lets the contract execute the picked element or chunk."""

    call = "proveOp"


class ProveAlias(Answer):
    """The challenger shows what the picked entry of the state block should be."""

    call = "proveAlias"
    context: bytes
    header: bytes
    """The header of the Program."""
    value: Digest
    proof: Proof


class ProvePadding(Answer):
    """The challenger states that the picked leaf must be EMPTY."""

    call = "provePadding"


class Resolve(Answer):
    """Anyone ends a game whose mover's clock has run out, or whose claim was decided elsewhere."""

    call = "resolve"


# -- the events


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class GameEvent:
    """One log entry of a game; subclasses are frozen dataclasses."""

    logged: ClassVar[tuple[str, ...]] = ()
    """Fields that the contract logs in addition to the game's state, which contains the others."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Opened(GameEvent):
    logged = ("claim", "challenger", "defender", "nonce", "t")
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int


class Argued(GameEvent):
    """The transition t is known from here on; `node` is the leaf of S_t in the trace."""

    logged = ("statement",)
    t: Step
    node: Digest
    statement: bytes


class Defended(GameEvent):
    logged = ("state", "children")
    graph: Digest
    state: StateRoot
    children: Proof


class Revealed(GameEvent):
    logged = ("children",)
    node: Digest
    children: Proof


class Picked(GameEvent):
    phase: GamePhase
    position: int
    node: Digest


class TensorRevealed(GameEvent):
    logged = ("children",)
    op: int
    tree: Digest
    children: Proof


class LeafPosted(GameEvent):
    logged = ("data",)
    data: bytes


class ElementPicked(GameEvent):
    element: int

    def word(self, leaf: bytes) -> int:
        """Returns the claimed word in the posted leaf."""
        at = 4 * (self.element % LEAF_ELEMENTS)
        return int.from_bytes(leaf[at : at + 4], "little")


class PartialsPosted(GameEvent):
    logged = ("words",)
    words: bytes


class PartialPicked(GameEvent):
    group: int
    claimed: int


class Staged(GameEvent):
    """Some tensor operands of the picked element are known."""

    staged: int
    """The same value as `Game.staged`."""


@dataclass(frozen=True)
class Finding:
    """The claimed value, the contract's own, and where they differ."""

    wrong: Wrong
    program: ProgramRoot
    t: int
    position: int
    """Position of the op in G, of the entry in the state block, or of the padding leaf in its tree."""
    element: int
    chunk: int
    """Index over the whole fold; COMBINED if the combination of the partials is wrong."""
    claimed_bits: Digest
    contract_bits: Digest

    @property
    def one_chunk(self) -> int | None:
        """Returns the index of the wrong chunk; None if only the combination of the partials is wrong."""
        return None if self.chunk == COMBINED else self.chunk

    @property
    def claimed_word(self) -> int:
        """Returns the claimed value of an op's element."""
        return int.from_bytes(self.claimed_bits[-4:], "big")

    @property
    def contract_word(self) -> int:
        """Returns the contract's value of an op's element."""
        return int.from_bytes(self.contract_bits[-4:], "big")


class Convicted(GameEvent):
    claim: ClaimId
    finding: Finding


class Resolved(GameEvent):
    claim: ClaimId
    verdict: Verdict
    winner: Address
