"""The dispute game's rules: from a claim down to one chunk of arithmetic.

The readable twin of contracts/DisputeGame.sol: the same names, the same order, the same sentences above the guards. All
functions are pure: `play(game, move, ...)` returns the next game and the events, or raises `MoveRefused` with the name
of the Solidity error. An `Arbiter` executes ops: the protocol itself has no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves, openings
from lockstep.protocol.dispute.moves import COMBINED, DEFENDERS, Finding, GameEvent, GamePhase, Move, Verdict, Wrong
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import NO_CLAIM, Body, Facts
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.programs.program import CHUNK, HEAD_BYTES, Alias, HeaderFields, Op, is_grouped
from lockstep.protocol.reverts import HINTS, ChainRevert, described
from lockstep.protocol.types import (
    Address,
    ClaimId,
    Digest,
    GameId,
    ProgramRoot,
    Seconds,
    Seed,
    StateRoot,
    Step,
    TensorRoot,
    TraceRoot,
    Wei,
)

MAX_EXTRA = 30 * 86_400
"""Most seconds that other games add to a clock: a limit on how long a game locks a stake."""
MAX_LEFT = (1 << 24) - 1
"""Most seconds that a clock's field holds: more than the longest clock plus MAX_EXTRA."""
LEVELS = 6
"""Most levels that one move descends, except the first move of TWO_MOVES."""
TWO_MOVES = 13
"""Number of levels that two moves descend, with 2^7 and 2^6 nodes."""

NOBODY = Address("0x" + 40 * "0")
EMPTY = merkle.EMPTY[0]
NO_TIME = Seconds(0)


class MoveRefused(ChainRevert):
    """The contract reverts a move; `rule` is the Solidity error's name, `values` its arguments."""

    def __init__(self, rule: str, *values: Any) -> None:
        super().__init__(rule, values, described(rule, values), HINTS[rule], f"chain.{rule}")


class Arbiter(Protocol):
    """Executes ops: numerics in Python, contracts/Arbiter.sol on chain."""

    def execute(
        self,
        statement: Statement,
        op: int,
        descriptor: bytes,
        element: int,
        chunk: int,
        openings: tuple[moves.Opening, ...],
        staged: int,
    ) -> int:
        """Computes the word of an element, or of one chunk of a fold of more than 256 terms."""

    def stage(
        self,
        statement: Statement,
        op: int,
        descriptor: bytes,
        element: int,
        openings: tuple[moves.Opening, ...],
        staged: int,
    ) -> int:
        """Adds the words of a map's next tensor operands to those staged before (`Game.staged`)."""

    def combine(self, mode: int, words: bytes) -> int:
        """Combines a fold's posted partials, at most 512, into its word: first in groups of 256."""


@dataclass(frozen=True)
class DisputedClaim:
    """The market's view of a claim and its job when a game opens; field by field the Solidity struct."""

    id: ClaimId
    defender: Address
    transitions: int
    """T, the number of transitions."""
    body: Body
    """The claim's contents."""
    state_zero: StateRoot
    """S_0, computed by the contract."""
    program: ProgramRoot
    """The root of the Program of the transitions 1 .. T - 1."""
    last_program: ProgramRoot
    """The root of the Program of transition T."""
    seed: Seed
    round: int
    slot: int
    dataset_root: TensorRoot
    dataset_rows: int
    row_length: int
    clock: Seconds
    step: Seconds
    bond: Wei
    open_games: int = 0
    """Number of the defender's open games on all of its claims, without the new one."""
    live: bool = True
    """True if a verdict on the claim still counts."""
    carried: moves.Proof = ()
    """The three words of the claim whose carry is in S_0; () if the carry is zero."""
    delegate: Address | None = None
    """The account that may also answer for the defender, if it has named one."""

    @property
    def trace_root(self) -> TraceRoot:
        """Merkle root over the leaves of S_1 .. S_T."""
        return self.body.trace_root

    def program_of(self, t: int) -> ProgramRoot:
        """Returns the root of the Program of transition t."""
        return self.last_program if t == self.transitions else self.program

    def facts(self, t: int, carried: moves.Proof) -> Facts:
        """Returns the market's facts about transition t, as a game requests them (JobMarket.factsOf)."""
        # The market reverts if `carried` is not what was claimed.
        if t == 1 and self.carried and carried != self.carried:
            raise MoveRefused("CommitmentMismatch")
        return Facts(
            self.program_of(t), self.state_zero, self.dataset_root, self.dataset_rows, self.row_length, self.seed,
            self.round, self.slot,
        )  # fmt: skip


@dataclass(frozen=True)
class Game:
    """One game: challenger, then field by field the Solidity struct.

    The contract stores `verdict` and `spent` separately.
    """

    challenger: Address
    """The account that opened the game; it is the end of the game's id, not one of the stored words."""
    claim: ClaimId
    defender: Address
    size: int = 0
    """Size of the descended tree: T until a step is defended, then the number of ops, then the elements of the op's
    output.
    """
    t: int = 0
    """The transition in dispute; 0 until it is known."""
    terms: int = 0
    """K, the terms of a fold; 0 for other kinds."""
    node: Digest = EMPTY
    """The node that the next move answers.

    For an element with partials it is keccak(leaf node, element u64); once they are posted keccak(words, that node);
    for a group of them keccak(that, group u64).
    """
    statement: Digest = EMPTY
    """keccak of the statement's bytes; below an op keccak of that and of the op's descriptor; the claim's trace root
    until t is known.
    """
    phase: GamePhase = GamePhase.NONE
    rem: int = 0
    """Levels left below `node` in the descended tree."""
    deadline: Seconds = NO_TIME
    """End of the mover's clock."""
    verdict: Verdict = Verdict.NONE
    left_defender: Seconds = NO_TIME
    left_challenger: Seconds = NO_TIME
    word: int = 0
    """Claimed bits of the picked element if it has at most 256 terms, or of the picked group of chunks."""
    position: int = 0
    """Position of `node` in its tree; from phase ELEMENT on the flat element."""
    spent: int = 0
    """Gas of the challenger's moves so far; the chain meters it, so it is 0 here."""
    op: int = 0
    """Position of the op in G."""
    group: int = 0
    """The picked group of a fold that has partials of groups."""
    block: int = 0
    """Position in G of the state block's first entry."""
    staged: int = 0
    """Words of a map's first tensor operands: the k-th in bits 32k and up, their number in bits 248 and up.

    For a fold, one executed chunk: its word, the chunk from bit 32, 1 in bit 248.
    """

    @property
    def standing(self) -> moves.GameState:
        """Returns the game's state in the form that movers send."""
        parties = (
            sum(getattr(self, name) << at for name, (at, _) in PARTIES.items()) | int(self.defender, 16) << DEFENDER_AT
        )
        turn = sum(getattr(self, name) << at for name, (at, _) in TURN.items())
        return moves.GameState(self.claim, parties, self.node, self.statement, turn, self.staged)

    @property
    def stored(self) -> tuple[bytes, int, Verdict]:
        """Returns what the contract stores: hash of the state while the game is open, gas, verdict."""
        is_open = self.phase not in (GamePhase.NONE, GamePhase.CLOSED)
        return (self.standing.digest if is_open else bytes(28)), self.spent, self.verdict

    @property
    def defender_moves(self) -> bool:
        """True if the defender moves next."""
        return self.phase in DEFENDERS

    @property
    def mover(self) -> Address:
        """The account that moves next."""
        return self.defender if self.defender_moves else self.challenger


PARTIES = {"terms": (0, 32), "t": (32, 32), "size": (64, 32)}
TURN = {
    "phase": (0, 8), "rem": (8, 8), "deadline": (16, 40), "left_defender": (56, 24), "left_challenger": (80, 24),
    "word": (104, 32), "position": (136, 32), "op": (168, 16), "group": (184, 8), "block": (192, 32),
}  # fmt: skip
"""Fields of a game that share a word: lowest bit and number of bits (contracts/libraries/GameStates.sol)."""
DEFENDER_AT = 96
"""Lowest bit of the defender's address in `parties`."""


def unpacked(word: int, shared: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Unpacks the fields that share a word, by name."""
    return {name: word >> at & (1 << bits) - 1 for name, (at, bits) in shared.items()}


NO_GAME = Game(NOBODY, NO_CLAIM, NOBODY)
"""The value for a game that was never opened."""

Played = tuple[Game, tuple[GameEvent, ...]]


def game_id(claim: ClaimId, challenger: Address, nonce: int) -> GameId:
    """Returns the first 96 bits of keccak of the ABI encoding of (claim, challenger, nonce), then the challenger."""
    account = bytes.fromhex(challenger[2:])
    return GameId(keccak(claim + bytes(12) + account + nonce.to_bytes(32, "big"))[:12] + account)


def challenger_of(id_: GameId) -> bytes:
    """Returns the 20 bytes of the account that opened a game."""
    return id_[12:]


def levels(rem: int) -> int:
    """Returns r, the levels that one move descends: equal parts of at most 6; 13 levels take two moves."""
    parts = 2 if rem == TWO_MOVES else -(-rem // LEVELS)
    return -(-rem // parts) if parts else 0


def budget(claim: DisputedClaim, *, defender: bool) -> Seconds:
    """Returns a clock's seconds: T, and for the defender tau (one materialised step) more for each of its open games on
    any claim.
    """
    # INVARIANT: every game that an account defends lengthens its clock in the next: many games starve nobody.
    extra = min(claim.step * claim.open_games, MAX_EXTRA) if defender else 0
    return Seconds(min(claim.clock + extra, MAX_LEFT))


def play(
    game: Game | None, move: Move, sender: Address, now: Seconds, claim: DisputedClaim, arbiter: Arbiter
) -> Played:
    """Plays a move; returns the next game with its events. Raises `MoveRefused` where the contract reverts."""
    if isinstance(move, moves.Open):
        return _open(game, move, sender, now, claim)
    if game is None:
        raise MoveRefused("PhaseWrong", GamePhase.NONE)
    if not isinstance(move, moves.Answer):
        raise TypeError(f"{type(move).__name__} is no move of the game")
    if game.phase in (GamePhase.NONE, GamePhase.CLOSED):
        raise MoveRefused("PhaseWrong", game.phase)
    # INVARIANT: a move answers the game as it stands.
    if move.standing != game.standing:
        raise MoveRefused("StandingStale", game.standing.digest)
    if isinstance(move, moves.Resolve):
        return _resolve(game, now, claim)
    rule = _RULES[type(move)]
    # One call may serve several phases; the Solidity function accepts the game's current phase.
    if game.phase not in rule.phases:
        raise MoveRefused("PhaseWrong", game.phase)
    begun = _move(game, sender, now, claim)
    if not _executes(game, move):
        raise MoveRefused("PhaseWrong", game.phase)
    return rule.apply(begun, move, now, claim, arbiter)


# -- opening -----------------------------------------------------------------------------------------------------------


def _open(game: Game | None, move: moves.Open, sender: Address, now: Seconds, claim: DisputedClaim) -> Played:
    # INVARIANT: a claim, a challenger and a nonce name one game.
    if game is not None:
        raise MoveRefused("GameExists", game_id(move.claim, sender, move.nonce))
    # The market reverts if the body is not what was claimed (JobMarket.onOpen).
    if move.body != claim.body:
        raise MoveRefused("CommitmentMismatch")
    # INVARIANT: a game is about one of the claim's transitions, or about all of them (t = 0).
    if move.t > claim.transitions:
        raise MoveRefused("StepOutOfRange", move.t)
    opened = Game(
        sender, claim.id, claim.defender, claim.transitions, left_defender=budget(claim, defender=True),
        left_challenger=budget(claim, defender=False),
    )  # fmt: skip
    event = moves.Opened(claim.id, sender, claim.defender, move.nonce, move.t)
    depth = ceil_log2(claim.transitions)
    if move.t == 0:
        opened = replace(opened, node=Digest(claim.trace_root), statement=Digest(claim.trace_root), rem=depth)
        return _turn(opened, GamePhase.TRACE_REVEAL if depth else GamePhase.ADJACENT, now), (event,)
    node = merkle.leaf(move.next)
    # INVARIANT: the step's end is the claim's own.
    _require_proof(claim.trace_root, node, move.t - 1, depth, move.next_proof)
    argued, events = _argue(replace(opened, node=node), claim, Step(move.t), move.transition, now)
    return argued, (event, *events)


def _adjacent(game: Game, move: moves.Adjacent, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    return _argue(game, claim, Step(game.position + 1), move.transition, now)


def _argue(game: Game, claim: DisputedClaim, t: Step, step: moves.Transition, now: Seconds) -> Played:
    """Fixes the dispute to transition t, from `step.prev` to the S_t under the trace leaf `node`."""
    facts = claim.facts(t, step.prev_proof)
    if t == 1:
        # INVARIANT: the first step starts at the state that the contract computes.
        if step.prev != facts.state_zero:
            raise MoveRefused("ProofInvalid")
    else:
        # INVARIANT: the step's start is the claim's own.
        depth = ceil_log2(claim.transitions)
        _require_proof(claim.trace_root, merkle.leaf(step.prev), t - 2, depth, step.prev_proof)
    # INVARIANT: the job names the Program of every transition.
    if merkle.program_root(step.header, step.ops_root, step.consts_root) != facts.program:
        raise MoveRefused("ProofInvalid")
    if len(step.header) < HEAD_BYTES:
        raise MoveRefused("DescriptorInvalid")
    statement = Statement(
        step.prev, EMPTY, step.ops_root, step.consts_root, facts.dataset_root, facts.seed, facts.dataset_rows,
        facts.row_length, facts.round, facts.slot, t, facts.program, step.header[:HEAD_BYTES],
    ).encode()  # fmt: skip
    argued = replace(game, statement=keccak(statement), t=int(t))
    return _turn(argued, GamePhase.DEFEND, now), (moves.Argued(t, game.node, statement),)


# -- the defender's moves ----------------------------------------------------------------------------------------------


def _defend(game: Game, move: moves.Defend, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    statement = _require_statement(game, move.context)
    h = statement.fields
    # INVARIANT: what is defended is the S_t of the claim's trace.
    if merkle.leaf(move.state) != game.node:
        raise MoveRefused("ProofInvalid")
    _require_block(h, move)
    defended = replace(
        game, statement=keccak(statement.with_graph(move.graph).encode()), node=move.graph, rem=h.depth, position=0,
        size=h.n, block=(1 << h.depth) - (1 << h.s_out),
    )  # fmt: skip
    return _turn(defended, GamePhase.GRAPH_PICK, now), (moves.Defended(move.graph, move.state, move.children),)


def _reveal(game: Game, move: moves.Reveal, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    _require_children(game.node, game.rem, move.children)
    return _turn(game, GamePhase(game.phase + 1), now), (moves.Revealed(game.node, move.children),)


def _reveal_tensor(
    game: Game, move: moves.RevealTensor, now: Seconds, claim: DisputedClaim, arbiter: Arbiter
) -> Played:
    statement = _require_statement(game, move.context)
    # INVARIANT: the descriptor is the Program's own.
    depth = ceil_log2(statement.fields.n)
    _require_proof(statement.ops_root, merkle.leaf(move.descriptor), game.position, depth, move.descriptor_proof)
    op = Op.decode(move.descriptor)
    # INVARIANT: dtype, rank and dims of an op's output come from its descriptor, never from a mover.
    if Digest(merkle.tensor_root_of_tree(op.header, move.tree)) != game.node:
        raise MoveRefused("ProofInvalid")
    size, terms, depth = _counted(op.header.elements), _counted(op.k_terms), op.header.depth
    if depth:
        _require_children(move.tree, depth, move.children)
    revealed = replace(
        game, statement=_below(move.context, move.descriptor), node=move.tree, rem=depth, position=0, size=size,
        terms=terms, op=game.position,
    )  # fmt: skip
    event = moves.TensorRevealed(game.position, move.tree, move.children)
    return _turn(revealed, GamePhase.TENSOR_PICK if depth else GamePhase.LEAF, now), (event,)


def _post_leaf(game: Game, move: moves.PostLeaf, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    # INVARIANT: a leaf has 1 KiB, the last one what is left.
    _require_length(min(4 * (game.size - CHUNK * game.position), merkle.LEAF_BYTES), len(move.data))
    # INVARIANT: the bytes are those that the leaf commits to.
    if merkle.leaf(move.data) != game.node:
        raise MoveRefused("ProofInvalid")
    return _turn(game, GamePhase.ELEMENT, now), (moves.LeafPosted(move.data),)


def _post_partials(
    game: Game, move: moves.PostPartials, now: Seconds, claim: DisputedClaim, arbiter: Arbiter
) -> Played:
    # INVARIANT: a level has as many partials as the fold's terms imply.
    group = None if game.phase == GamePhase.PARTIALS else game.group
    _require_length(4 * partial_count(game.terms, group), len(move.words))
    posted = replace(game, node=keccak(move.words + game.node))
    first = game.phase == GamePhase.PARTIALS and is_grouped(game.terms)
    return _turn(posted, GamePhase.PARTIAL_PICK if first else GamePhase.PROOF, now), (moves.PartialsPosted(move.words),)


def partial_count(terms: int, group: int | None) -> int:
    """Returns the number of partials that a fold posts: of its first level (None), or of its `group`-th group."""
    chunks = -(-terms // CHUNK)
    if not is_grouped(terms):
        return chunks
    return -(-chunks // CHUNK) if group is None else min(chunks - CHUNK * group, CHUNK)


# -- the challenger's moves --------------------------------------------------------------------------------------------


def _pick(game: Game, move: moves.Pick, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    down = levels(game.rem)
    # INVARIANT: what is picked is one of the nodes that were revealed.
    _require_length(down, len(move.siblings))
    if not merkle.verify(game.node, move.child, move.i, move.siblings):
        raise MoveRefused("ProofInvalid")
    rem, position = game.rem - down, (game.position << down) | move.i
    picked = replace(game, node=move.child, rem=rem, position=position)
    then = GamePhase(game.phase - 1) if rem else _bottom(game, position)
    return _turn(picked, then, now), (moves.Picked(then, position, move.child),)


def _bottom(game: Game, position: int) -> GamePhase:
    """Returns the phase that disputes the leaf at `position` of the descended tree."""
    if game.phase == GamePhase.TRACE_PICK:
        return GamePhase.ADJACENT if position < game.size else GamePhase.PADDING
    if game.phase == GamePhase.TENSOR_PICK:
        return GamePhase.LEAF if position < -(-game.size // CHUNK) else GamePhase.PADDING
    if position < game.size:
        return GamePhase.TENSOR
    return GamePhase.ALIAS if position >= game.block else GamePhase.PADDING


def _pick_element(game: Game, move: moves.PickElement, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    picked = _picked_element(game, move.i)
    picked = replace(picked, node=under(game.node, picked.position))
    return _turn(picked, GamePhase.PARTIALS, now), (moves.ElementPicked(picked.position),)


def _picked_element(game: Game, i: int) -> Game:
    words = min(game.size - CHUNK * game.position, CHUNK)
    # INVARIANT: an element that is picked was posted.
    if i >= words:
        raise MoveRefused("LengthWrong", words, i)
    return replace(game, position=game.position * CHUNK + i)


def _pick_partial(game: Game, move: moves.PickPartial, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    word = _word_at(_posted(game.node, move.posted), move.i)
    picked = replace(game, group=move.i, word=word, node=under(game.node, move.i))
    return _turn(picked, GamePhase.LOW_PARTIALS, now), (moves.PartialPicked(move.i, word),)


def _stage(game: Game, move: moves.Stage, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    picks = game.phase == GamePhase.ELEMENT
    game, statement = _execution(game, move)
    events = (moves.ElementPicked(game.position),) if picks else ()
    if game.terms == 0:
        staged = arbiter.stage(statement, game.op, move.descriptor, game.position, move.openings, game.staged)
    else:
        _, chunk = _claimed(game, move)
        word = arbiter.execute(statement, game.op, move.descriptor, game.position, chunk, move.openings, game.staged)
        staged = openings.staged_chunk(chunk, word)
    return _turn(replace(game, staged=staged), GamePhase.PROOF, now), (*events, moves.Staged(staged))


def _prove_op(game: Game, move: moves.ProveOp, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    game, statement = _execution(game, move)
    claimed, chunk = _claimed(game, move)
    if game.terms and game.staged >> 32 == openings.staged_chunk(chunk, 0) >> 32:
        computed = game.staged & 0xFFFFFFFF
    # INVARIANT: partials combine to the word that they explain.
    elif chunk == COMBINED:
        computed = arbiter.combine(Op.decode(move.descriptor).mode, move.posted[:-32])
    else:
        computed = arbiter.execute(
            statement, game.op, move.descriptor, game.position, chunk, move.openings, game.staged
        )
    # INVARIANT: equal bits convict nobody.
    if computed == claimed:
        raise MoveRefused("EqualBits", _bits(computed))
    found = Finding(
        Wrong.OP, statement.program, statement.t, game.op, game.position, chunk, _bits(claimed), _bits(computed)
    )
    return _convict(game, found)


def _executes(game: Game, move: moves.Answer) -> bool:
    """Returns False for a move that comes too early: operands shown before partials are posted, or an element picked
    that the proof itself must pick.
    """
    if game.phase == GamePhase.ELEMENT:
        return (game.terms > CHUNK) == isinstance(move, moves.PickElement)
    if game.phase == GamePhase.PARTIAL_PICK and isinstance(move, moves.Stage | moves.ProveOp):
        return isinstance(move, moves.ProveOp) and move.chunk == COMBINED
    return True


def _execution(game: Game, move: moves.Stage | moves.ProveOp) -> tuple[Game, Statement]:
    """Begins a move that shows an op's operands. If no partials exist below a leaf, the move also picks the element."""
    # INVARIANT: a game argues about one statement, and below an op about that op.
    if _below(move.context, move.descriptor) != game.statement:
        raise MoveRefused("StatementWrong")
    if game.phase == GamePhase.ELEMENT:
        game = _picked_element(game, move.chunk)
        # INVARIANT: the bytes are those that the leaf commits to.
        if merkle.leaf(move.posted) != game.node:
            raise MoveRefused("ProofInvalid")
        game = replace(game, word=openings.word_of(move.posted, move.chunk))
    return game, Statement.decode(move.context)


def _claimed(game: Game, move: moves.Stage | moves.ProveOp) -> tuple[int, int]:
    """Returns (claimed word, chunk): of the element, of the chunk that the proof names among the posted words, or of
    their combination.
    """
    if game.terms <= CHUNK:
        return game.word, 0
    words = _posted(game.node, move.posted)
    if move.chunk != COMBINED:
        return _word_at(words, move.chunk), CHUNK * game.group + move.chunk
    if game.phase == GamePhase.PROOF and is_grouped(game.terms):
        return game.word, COMBINED
    # INVARIANT: an element reads exactly the openings that its descriptor implies.
    if len(move.openings) != 1:
        raise MoveRefused("OpeningsWrong", len(move.openings))
    leaf = move.openings[0].data
    # INVARIANT: the bytes are those that the leaf commits to.
    if under(merkle.leaf(leaf), game.position) != move.posted[len(words) :]:
        raise MoveRefused("ProofInvalid")
    return openings.word_of(leaf, game.position), COMBINED


def under(node: Digest, place: int) -> Digest:
    """Returns the node of a pick in a leaf or among partials; each pick has its own node, so that an answer fits only
    one pick.
    """
    return keccak(node + place.to_bytes(8, "big"))


def _posted(node: Digest, posted: bytes) -> bytes:
    """Returns the partials in `posted`, without the trailing node that they answered."""
    # INVARIANT: the words are those that were posted.
    if keccak(posted) != node:
        raise MoveRefused("ProofInvalid")
    return posted[:-32]


def _prove_alias(game: Game, move: moves.ProveAlias, now: Seconds, claim: DisputedClaim, arbiter: Arbiter) -> Played:
    statement = _require_statement(game, move.context)
    h, entry, value = statement.fields, game.position - game.block, move.value
    # INVARIANT: the state table is the Program's own.
    if merkle.program_root(move.header, statement.ops_root, statement.consts_root) != statement.program:
        raise MoveRefused("ProofInvalid")
    # As in Program.decodeHeader: exactly one header, with nothing after it.
    if len(move.header) != h.length:
        raise MoveRefused("DescriptorInvalid")
    named = h.alias(move.header, entry)
    if named.kind == Alias.EMPTY_KIND:
        value = EMPTY
    elif named.kind == Alias.OP_KIND:
        _require_proof(statement.graph, value, named.index, h.depth, move.proof)
    else:
        _require_proof(statement.prev, value, named.index, h.s_in, move.proof)
    # INVARIANT: equal bits convict nobody.
    if value == game.node:
        raise MoveRefused("EqualBits", value)
    return _convict(game, Finding(Wrong.ALIAS, statement.program, statement.t, entry, 0, 0, game.node, value))


def _prove_padding(
    game: Game, move: moves.ProvePadding, now: Seconds, claim: DisputedClaim, arbiter: Arbiter
) -> Played:
    # INVARIANT: equal bits convict nobody; padding is EMPTY.
    if game.node == EMPTY:
        raise MoveRefused("EqualBits", EMPTY)
    found = Finding(Wrong.PADDING, ProgramRoot(EMPTY), game.t, game.position, 0, 0, game.node, EMPTY)
    return _convict(game, found)


# -- the end -----------------------------------------------------------------------------------------------------------


def _resolve(game: Game, now: Seconds, claim: DisputedClaim) -> Played:
    # INVARIANT: a claim is convicted once; games on it that come too late cost their challengers nothing.
    if not claim.live:
        return _close(game, Verdict.VOID)
    # INVARIANT: only a mover whose clock has run out loses without an argument.
    if now <= game.deadline:
        raise MoveRefused("ClockRunning", game.deadline)
    return _close(game, Verdict.TIMEOUT if game.defender_moves else Verdict.REJECTED)


def _convict(game: Game, found: Finding) -> Played:
    closed, events = _close(game, Verdict.FRAUD)
    return closed, (moves.Convicted(game.claim, found), *events)


def closed(challenger: Address, claim: ClaimId, verdict: Verdict) -> Game:
    """Returns the record of a game that has ended."""
    return Game(challenger, claim, NOBODY, phase=GamePhase.CLOSED, verdict=verdict)


def _close(game: Game, verdict: Verdict) -> Played:
    winners = {Verdict.REJECTED: game.defender, Verdict.VOID: NOBODY}
    return closed(game.challenger, game.claim, verdict), (
        moves.Resolved(game.claim, verdict, winners.get(verdict, game.challenger)),
    )


# -- turns -------------------------------------------------------------------------------------------------------------


def _move(game: Game, sender: Address, now: Seconds, claim: DisputedClaim) -> Game:
    """Begins a move: checks the time and the mover, and stops the mover's clock."""
    # INVARIANT: a move counts only while the mover's clock runs.
    if now > game.deadline:
        raise MoveRefused("ClockExpired", game.deadline)
    left = Seconds(game.deadline - now)
    if game.defender_moves:
        # INVARIANT: the defender or its delegate answers.
        if sender not in (game.defender, claim.delegate):
            raise MoveRefused("Unauthorized", sender)
        return replace(game, left_defender=left)
    # INVARIANT: the challenger alone points.
    if sender != game.challenger:
        raise MoveRefused("Unauthorized", sender)
    return replace(game, left_challenger=left)


def _turn(game: Game, phase: GamePhase, now: Seconds) -> Game:
    """Ends a move: starts the clock of the side that moves in `phase`."""
    left = game.left_defender if phase in DEFENDERS else game.left_challenger
    return replace(game, phase=phase, deadline=Seconds(now + left))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _require_children(node: Digest, rem: int, children: moves.Proof) -> None:
    # INVARIANT: a reveal shows exactly the 2^r descendants, r levels down, of the node that it answers.
    _require_length(1 << levels(rem), len(children))
    if merkle.tree(children) != node:
        raise MoveRefused("ProofInvalid")


def _require_block(h: HeaderFields, move: moves.Defend) -> None:
    """Checks that the shown nodes end in S_t, or that the proof leads from S_t to the last of them."""
    up, shown = h.depth - h.s_out, levels(h.depth)
    _require_length(1 << shown, len(move.children))
    level = min(up, shown)
    tree = merkle.levels(move.children, shown)
    # INVARIANT: S_t is the last aligned block of 2^s_out leaves of G_t.
    _require_proof(tree[shown - level][-1], move.state, (1 << up - level) - 1, up - level, move.block_proof)
    # INVARIANT: what is shown are the descendants of G_t.
    if tree[-1][0] != move.graph:
        raise MoveRefused("ProofInvalid")


def _require_length(expected: int, given: int) -> None:
    if expected != given:
        raise MoveRefused("LengthWrong", expected, given)


def _require_proof(root: bytes, x: bytes, index: int, depth: int, proof: moves.Proof) -> None:
    # INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
    if len(proof) != depth or not merkle.verify(root, x, index, proof):
        raise MoveRefused("ProofInvalid")


def _require_statement(game: Game, context: bytes) -> Statement:
    # INVARIANT: a game argues about one statement.
    if keccak(context) != game.statement:
        raise MoveRefused("StatementWrong")
    return Statement.decode(context)


def _counted(count: int) -> int:
    # INVARIANT: elements and terms of an op are counted in 32 bits.
    if count >= 1 << 32:
        raise MoveRefused("DescriptorInvalid")
    return count


def _below(context: bytes, descriptor: bytes) -> Digest:
    """Returns the hash of a dispute below an op: of the statement's hash and the op's descriptor."""
    return keccak(keccak(context) + descriptor)


def _word_at(words: bytes, i: int) -> int:
    # INVARIANT: a partial that is picked was posted.
    if 4 * i >= len(words):
        raise MoveRefused("LengthWrong", len(words) // 4, i)
    return int.from_bytes(words[4 * i : 4 * i + 4], "big")


def _bits(word: int) -> Digest:
    return Digest(word.to_bytes(32, "big"))


# -- the table of docs/protocol.md, section 6 --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rule:
    phases: frozenset[GamePhase]
    apply: Callable[[Game, Any, Seconds, DisputedClaim, Arbiter], Played]


def _rule(apply: Callable[[Game, Any, Seconds, DisputedClaim, Arbiter], Played], *phases: GamePhase) -> _Rule:
    return _Rule(frozenset(phases), apply)


_RULES: dict[type[moves.Answer], _Rule] = {
    moves.Reveal: _rule(_reveal, GamePhase.TRACE_REVEAL, GamePhase.GRAPH_REVEAL, GamePhase.TENSOR_REVEAL),
    moves.Pick: _rule(_pick, GamePhase.TRACE_PICK, GamePhase.GRAPH_PICK, GamePhase.TENSOR_PICK),
    moves.Adjacent: _rule(_adjacent, GamePhase.ADJACENT),
    moves.Defend: _rule(_defend, GamePhase.DEFEND),
    moves.RevealTensor: _rule(_reveal_tensor, GamePhase.TENSOR),
    moves.PostLeaf: _rule(_post_leaf, GamePhase.LEAF),
    moves.PickElement: _rule(_pick_element, GamePhase.ELEMENT),
    moves.PostPartials: _rule(_post_partials, GamePhase.PARTIALS, GamePhase.LOW_PARTIALS),
    moves.PickPartial: _rule(_pick_partial, GamePhase.PARTIAL_PICK),
    moves.Stage: _rule(_stage, GamePhase.ELEMENT, GamePhase.PARTIAL_PICK, GamePhase.PROOF),
    moves.ProveOp: _rule(_prove_op, GamePhase.ELEMENT, GamePhase.PARTIAL_PICK, GamePhase.PROOF),
    moves.ProveAlias: _rule(_prove_alias, GamePhase.ALIAS),
    moves.ProvePadding: _rule(_prove_padding, GamePhase.PADDING),
}
