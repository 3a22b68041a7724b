"""The moves of the dispute game, with the events that answer them: what is sent to the contract, what its log says.

Twin of contracts/interfaces/IDisputeGame.sol. A move's `call` and `arguments(game)` are the contract's function and its
arguments in order; an event's fields are the log's, without the game's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.types import Address, ClaimId, Digest, GameId, ProgramRoot, StateRoot, Step

Proof = tuple[Digest, ...]
"""Siblings from a node upward."""
COMBINED = 2**32 - 1
"""Stands in a chunk's place for the combination of all that were posted."""


class GamePhase(IntEnum):
    """The move that a game awaits. One number a phase, as in IDisputeGame.sol."""

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
    """The kind of fault proved: in an op's element, in an entry of the state block, in a position that must be EMPTY,
    or by two claims signed for the same work."""

    OP = 0
    ALIAS = 1
    PADDING = 2
    EQUIVOCATION = 3


# -- what moves carry


class GameState(NamedTuple):
    """A game as it stands, in the six words that movers show and events say (`Game.standing` makes them)."""

    claim: ClaimId
    parties: int
    node: Digest
    statement: Digest
    turn: int
    staged: int

    @property
    def digest(self) -> bytes:
        """The first 224 bits of keccak of its words, which the contract stores of an open game."""
        words = (word if isinstance(word, bytes) else word.to_bytes(32, "big") for word in self)
        return keccak(b"".join(words))[:28]


@dataclass(frozen=True)
class Opening:
    """One verified leaf of an operand."""

    header: bytes
    """dtype u8 ‖ rank u8 ‖ dims u32 each, of the opened tensor."""
    data: bytes
    """One leaf of its contents."""
    leaf_proof: Proof
    """From the leaf to the tensor's tree."""
    root_proof: Proof
    """From the tensor root to G (op), S_{t-1} (state), consts_root (constant); empty for the dataset."""
    leaf_index: int

    def abi(self) -> tuple[Any, ...]:
        """The Solidity struct."""
        return (self.header, self.data, list(self.leaf_proof), list(self.root_proof), self.leaf_index)


@dataclass(frozen=True)
class Transition:
    """A transition's Program and the state before it (Solidity: `Step`)."""

    prev: StateRoot
    prev_proof: Proof
    """leaf(prev) is at position t - 2 of the trace; for t = 1 the words of the claim whose carry is in S_0, if any."""
    header: bytes
    ops_root: Digest
    consts_root: Digest

    def abi(self) -> tuple[Any, ...]:
        """The Solidity struct."""
        return (self.prev, list(self.prev_proof), self.header, self.ops_root, self.consts_root)


NO_TRANSITION = Transition(StateRoot(bytes(32)), (), b"", Digest(bytes(32)), Digest(bytes(32)))
"""The transition that `open` carries where t is not known."""


# -- the moves


@dataclass(frozen=True)
class Move:
    """One transaction of a game."""

    call: ClassVar[str] = ""

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        """The contract function's arguments, in order."""
        raise NotImplementedError


@dataclass(frozen=True)
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
        body = (self.body.trace_root, self.body.out, self.body.out2)
        return (self.claim, body, self.nonce, self.t, self.next, list(self.next_proof), self.transition.abi())


@dataclass(frozen=True)
class Answer(Move):
    """A move in a game that is open."""

    standing: GameState
    """The game as it stands."""


@dataclass(frozen=True)
class Reveal(Answer):
    """The defender shows the descendants of the node."""

    call = "reveal"
    children: Proof

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, list(self.children))


@dataclass(frozen=True)
class Pick(Answer):
    """The challenger points at the i-th of the nodes just revealed."""

    call = "pick"
    i: int
    child: Digest
    siblings: Proof

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.i, self.child, list(self.siblings))


@dataclass(frozen=True)
class Adjacent(Answer):
    """The challenger names the state before the picked leaf of the trace."""

    call = "adjacent"
    transition: Transition

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.transition.abi())


@dataclass(frozen=True)
class Defend(Answer):
    """The defender shows G_t, whose state block is S_t, with its first descendants."""

    call = "defend"
    context: bytes
    graph: Digest
    state: StateRoot
    block_proof: Proof
    children: Proof

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (
            game, self.standing, self.context, self.graph, self.state, list(self.block_proof), list(self.children),
        )  # fmt: skip


@dataclass(frozen=True)
class RevealTensor(Answer):
    """The defender shows the tree of the picked op's output, with its first descendants."""

    call = "revealTensor"
    context: bytes
    descriptor: bytes
    descriptor_proof: Proof
    tree: Digest
    children: Proof

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (
            game, self.standing, self.context, self.descriptor, list(self.descriptor_proof), self.tree,
            list(self.children),
        )  # fmt: skip


@dataclass(frozen=True)
class PostLeaf(Answer):
    """The defender shows the picked leaf."""

    call = "postLeaf"
    data: bytes

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.data)


@dataclass(frozen=True)
class PickElement(Answer):
    """The challenger points at word i of the posted leaf, the element of a fold that has partials."""

    call = "pickElement"
    i: int

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.i)


@dataclass(frozen=True)
class PostPartials(Answer):
    """The defender shows one level of a fold."""

    call = "postPartials"
    words: bytes
    """Big-endian, 4 bytes each."""

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.words)


@dataclass(frozen=True)
class PickPartial(Answer):
    """The challenger points at word i of the posted partials of groups."""

    call = "pickPartial"
    i: int
    posted: bytes
    """The posted partials, the node that they answered behind them."""

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.i, self.posted)


@dataclass(frozen=True)
class _Execution(Answer):
    """A move that shows an op's operands (Solidity: `Proof`)."""

    descriptor: bytes
    chunk: int
    """The chunk's index among the posted partials, or COMBINED; in phase ELEMENT the word's in the leaf; else 0."""
    posted: bytes
    """The posted partials, the node that they answered behind them; in phase ELEMENT the posted leaf; else empty."""
    openings: tuple[Opening, ...]
    """Openings of the element or chunk; of a combination that is the element the posted leaf, as the data of one."""
    context: bytes

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        proof = (self.descriptor, self.chunk, self.posted, [o.abi() for o in self.openings], self.context)
        return (game, self.standing, proof)


@dataclass(frozen=True)
class Stage(_Execution):
    """The challenger opens the next tensor operands of a map, for `ProveOp` to find."""

    call = "stage"


@dataclass(frozen=True)
class ProveOp(_Execution):
    """The challenger has the picked element or chunk executed."""

    call = "proveOp"


@dataclass(frozen=True)
class ProveAlias(Answer):
    """The challenger shows what the picked entry of the state block should be."""

    call = "proveAlias"
    context: bytes
    header: bytes
    """The Program's."""
    value: Digest
    proof: Proof

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing, self.context, self.header, self.value, list(self.proof))


@dataclass(frozen=True)
class ProvePadding(Answer):
    """The challenger states that the picked leaf must be EMPTY."""

    call = "provePadding"

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing)


@dataclass(frozen=True)
class Resolve(Answer):
    """Anyone ends a game whose mover's clock has run out, or whose claim was decided elsewhere."""

    call = "resolve"

    def arguments(self, game: GameId) -> tuple[Any, ...]:
        return (game, self.standing)


# -- the events


@dataclass(frozen=True)
class GameEvent:
    """One log entry of a game."""

    said: ClassVar[tuple[str, ...]] = ()
    """The fields that the contract logs beside the game as it then stands, which says the others."""


@dataclass(frozen=True)
class Opened(GameEvent):
    said = ("claim", "challenger", "defender", "nonce", "t")
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int


@dataclass(frozen=True)
class Argued(GameEvent):
    """t is known from here on; `node` is the leaf of S_t in the trace."""

    said = ("statement",)
    t: Step
    node: Digest
    statement: bytes


@dataclass(frozen=True)
class Defended(GameEvent):
    said = ("state", "children")
    graph: Digest
    state: StateRoot
    children: Proof


@dataclass(frozen=True)
class Revealed(GameEvent):
    said = ("children",)
    node: Digest
    children: Proof


@dataclass(frozen=True)
class Picked(GameEvent):
    phase: GamePhase
    position: int
    node: Digest


@dataclass(frozen=True)
class TensorRevealed(GameEvent):
    said = ("children",)
    op: int
    tree: Digest
    children: Proof


@dataclass(frozen=True)
class LeafPosted(GameEvent):
    said = ("data",)
    data: bytes


@dataclass(frozen=True)
class ElementPicked(GameEvent):
    element: int

    def word(self, leaf: bytes) -> int:
        """The claimed word, in the leaf that was posted."""
        at = 4 * (self.element % LEAF_ELEMENTS)
        return int.from_bytes(leaf[at : at + 4], "little")


@dataclass(frozen=True)
class PartialsPosted(GameEvent):
    said = ("words",)
    words: bytes


@dataclass(frozen=True)
class PartialPicked(GameEvent):
    group: int
    claimed: int


@dataclass(frozen=True)
class Staged(GameEvent):
    """Some tensor operands of the picked element are known."""

    staged: int
    """As in the game."""


@dataclass(frozen=True)
class Finding:
    """The claimed value, the contract's own, and the place where they differ."""

    wrong: Wrong
    program: ProgramRoot
    t: int
    position: int
    """The position of the op in G, of the entry in the state block, or of the padding leaf in its tree."""
    element: int
    chunk: int
    """Counted over the whole fold; COMBINED if what is wrong is how the partials combine."""
    claimed_bits: Digest
    contract_bits: Digest

    @property
    def one_chunk(self) -> int | None:
        """The chunk; None where what is wrong is how the partials combine."""
        return None if self.chunk == COMBINED else self.chunk

    @property
    def claimed_word(self) -> int:
        """The claimed value of an op's element."""
        return int.from_bytes(self.claimed_bits[-4:], "big")

    @property
    def contract_word(self) -> int:
        """The contract's value of it."""
        return int.from_bytes(self.contract_bits[-4:], "big")


@dataclass(frozen=True)
class Convicted(GameEvent):
    claim: ClaimId
    finding: Finding


@dataclass(frozen=True)
class Resolved(GameEvent):
    claim: ClaimId
    verdict: Verdict
    winner: Address
