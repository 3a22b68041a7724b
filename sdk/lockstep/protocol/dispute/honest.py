"""Honest play: computes either side's next move from the game, its log and the player's own materialised step.

opening(...)    whether a claim is wrong, and where to begin
answer(...)     the defender: opens its own commitments
point(...)      the challenger: the first revealed node, in position order, that differs from its own
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves, openings
from lockstep.protocol.dispute.game import EMPTY, DisputedClaim, Game, levels, under
from lockstep.protocol.dispute.moves import COMBINED, GameEvent, GamePhase
from lockstep.protocol.dispute.openings import Known, Levels, MaterialisedStep
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.errors import Inconclusive
from lockstep.protocol.hashing import keccak
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.programs.program import CHUNK, Alias, Fold, Kind, Program, is_grouped
from lockstep.protocol.types import StateRoot, TraceRoot

_E = TypeVar("_E", bound=GameEvent)

STAGED_TERMS = 128
"""Number of terms from which a dot is executed before its proof: a verdict together with 256 terms costs over half a
million gas.
"""


class MaterialisedClaim(Protocol):
    """A claim as one party computed it: the challenger by replay, the defender as claimed."""

    @property
    def state_zero(self) -> StateRoot:
        """S_0."""

    @property
    def carried(self) -> moves.Proof:
        """The three words of the claim whose carry is in S_0; () if the carry is zero."""

    @property
    def trace(self) -> Sequence[StateRoot]:
        """S_1 .. S_T."""

    def step(self, t: int) -> MaterialisedStep:
        """Materialises transition t, from S_{t-1}."""


def trace_levels(trace: Sequence[StateRoot]) -> Levels:
    """Returns the Merkle levels of a trace; leaf(S_t) is at position t - 1."""
    return merkle.levels([merkle.leaf(s) for s in trace])


# -- the challenger opens ----------------------------------------------------------------------------------------------


def opening(
    claim: DisputedClaim, own: MaterialisedClaim, published: Sequence[StateRoot] | None, nonce: int
) -> moves.Open | None:
    """Returns the move that opens a game on a claim, or None if the claim is right.

    `published` is the list S_1 .. S_T stored with the payload, None if it is not available. A list whose root is not
    the claim's is ignored: the game then starts at the trace root.
    """
    if published is not None and (len(published) != claim.transitions or _root(published) != claim.trace_root):
        published = None
    if published is None:
        if _root(own.trace) == claim.trace_root:
            return None
        return moves.Open(claim.id, claim.body, nonce, 0, StateRoot(EMPTY), (), moves.NO_TRANSITION)
    t = next((t for t, (a, b) in enumerate(zip(published, own.trace, strict=True), 1) if a != b), None)
    if t is None:
        return None
    tree = trace_levels(published)
    transition = _transition(own, t, tuple(merkle.proof(tree, t - 2)) if t > 1 else own.carried)
    return moves.Open(claim.id, claim.body, nonce, t, published[t - 1], tuple(merkle.proof(tree, t - 1)), transition)


def _root(trace: Sequence[StateRoot]) -> TraceRoot:
    return TraceRoot(trace_levels(trace)[-1][0])


def _transition(own: MaterialisedClaim, t: int, prev_proof: moves.Proof) -> moves.Transition:
    program = own.step(t).program
    prev = own.trace[t - 2] if t > 1 else own.state_zero
    return moves.Transition(prev, prev_proof, program.header, program.ops_root, program.consts_root)


# -- what the log says -------------------------------------------------------------------------------------------------


class GameLog:
    """A game's events, interpreted in order."""

    def __init__(self, events: Sequence[GameEvent]) -> None:
        self.events = tuple(events)

    def last(self, kind: type[_E]) -> _E | None:
        """The latest event of a kind."""
        return next((e for e in reversed(self.events) if isinstance(e, kind)), None)

    @cached_property
    def statement(self) -> Statement:
        """Returns the disputed statement, with G_t once it is defended. Raises Inconclusive before t is known."""
        argued, defended = self.last(moves.Argued), self.last(moves.Defended)
        if argued is None:
            raise Inconclusive(
                "the game's log does not contain the disputed statement yet", hint="read the log to its end"
            )
        statement = Statement.decode(argued.statement)
        return statement.with_graph(defended.graph) if defended else statement

    @cached_property
    def posted(self) -> bytes:
        """Returns the partials posted last, followed by the node that they answered; empty before any are posted."""
        leaf = self.last(moves.LeafPosted)
        if leaf is None:
            return b""
        shown, node = b"", merkle.leaf(leaf.data)
        for event in self.events:
            if isinstance(event, moves.ElementPicked):
                node = under(node, event.element)
            elif isinstance(event, moves.PartialPicked):
                node = under(node, event.group)
            elif isinstance(event, moves.PartialsPosted):
                shown = event.words + node
                node = keccak(shown)
        return shown

    @cached_property
    def children(self) -> moves.Proof:
        """Returns the nodes of the last reveal."""
        shown = (moves.Defended, moves.Revealed, moves.TensorRevealed)
        return next((e.children for e in reversed(self.events) if isinstance(e, shown)), ())

    def descent(self, depth: int, first: type[GameEvent] | None) -> Iterator[tuple[int, int, moves.Proof]]:
        """Yields (height, index, children) for each reveal in one tree: the trace (`first` None), G (Defended), or a
        tensor.
        """
        begin = 0
        if first is not None:
            begin = next((i for i, e in enumerate(self.events) if isinstance(e, first)), len(self.events))
        height, index = depth, 0
        for event in self.events[begin:]:
            if isinstance(event, moves.Defended | moves.Revealed | moves.TensorRevealed):
                yield height, index, event.children
            elif isinstance(event, moves.Picked):
                height, index = height - levels(height), event.position
                if height == 0:
                    return


def known(own: Levels, depth: int, log: GameLog, first: type[GameEvent] | None) -> Known:
    """Returns the defender's tree, as far as the log shows it."""
    tree = Known(own, depth)
    for height, index, children in log.descent(depth, first):
        tree.learn(height, index, children)
    return tree


# -- the defender ------------------------------------------------------------------------------------------------------


def answer(game: Game, events: Sequence[GameEvent], own: MaterialisedClaim) -> moves.Answer | None:
    """Returns the defender's next move, or None if it is not its turn."""
    log = GameLog(events)
    if game.phase == GamePhase.TRACE_REVEAL:
        return moves.Reveal(game.standing, descendants(trace_levels(own.trace), game.rem, game.position))
    if game.phase not in moves.DEFENDERS:
        return None
    statement = log.statement
    step = own.step(statement.t)
    if game.phase == GamePhase.DEFEND:
        return _defend(game, statement, own.trace[statement.t - 1], step)
    if game.phase == GamePhase.GRAPH_REVEAL:
        return moves.Reveal(game.standing, descendants(step.graph, game.rem, game.position))
    if game.phase == GamePhase.TENSOR:
        return _reveal_tensor(game, statement, step)
    tensor = step.output(game.op)
    if game.phase == GamePhase.TENSOR_REVEAL:
        return moves.Reveal(game.standing, descendants(tensor.levels, game.rem, game.position))
    if game.phase == GamePhase.LEAF:
        return moves.PostLeaf(game.standing, tensor.leaf(game.position))
    group = None if game.phase == GamePhase.PARTIALS else game.group
    words = step.partials(game.op, game.position, group)
    return moves.PostPartials(game.standing, struct.pack(f">{len(words)}I", *words))


def _defend(game: Game, statement: Statement, state: StateRoot, step: MaterialisedStep) -> moves.Defend:
    program, graph = step.program, step.graph
    # Proves from the state block up to the shown nodes, if it is below them.
    up, below = program.depth - program.s_out, program.depth - levels(program.depth) - program.s_out
    proof = merkle.proof(graph, (1 << up) - 1, program.s_out)[: max(below, 0)]
    children = descendants(graph, program.depth, 0)
    return moves.Defend(game.standing, statement.encode(), graph[-1][0], state, tuple(proof), children)


def _reveal_tensor(game: Game, statement: Statement, step: MaterialisedStep) -> moves.RevealTensor:
    program, op = step.program, game.position
    tree = step.output(op).levels
    children = descendants(tree, len(tree) - 1, 0) if len(tree) > 1 else ()
    proof = tuple(merkle.proof(program.ops_levels, op))
    return moves.RevealTensor(game.standing, statement.encode(), program.descriptors[op], proof, tree[-1][0], children)


def descendants(tree: Levels, height: int, index: int) -> moves.Proof:
    """Returns the nodes that one reveal shows: all descendants, r levels down, of node `index` at `height`."""
    down = levels(height)
    return tuple(merkle.node_at(tree, height - down, (index << down) + i) for i in range(1 << down))


# -- the challenger ----------------------------------------------------------------------------------------------------


def point(game: Game, events: Sequence[GameEvent], own: MaterialisedClaim) -> moves.Answer | None:
    """Returns the challenger's next move; None if it is not its turn, or if nothing differs and so nothing can be
    proven.
    """
    log = GameLog(events)
    if game.phase == GamePhase.TRACE_PICK:
        return _pick(game, log, trace_levels(own.trace))
    if game.phase == GamePhase.ADJACENT:
        return _adjacent(game, log, own)
    if game.phase == GamePhase.PADDING:
        return moves.ProvePadding(game.standing)
    if game.phase in moves.DEFENDERS or game.phase in (GamePhase.NONE, GamePhase.CLOSED):
        return None
    statement = log.statement
    step = own.step(statement.t)
    if game.phase == GamePhase.GRAPH_PICK:
        return _pick(game, log, step.graph)
    if game.phase == GamePhase.TENSOR_PICK:
        return _pick(game, log, step.output(game.op).levels)
    if game.phase == GamePhase.ELEMENT and game.terms > CHUNK:
        return _pick_element(game, log, step)
    graph = known(step.graph, step.program.depth, log, moves.Defended)
    if game.phase == GamePhase.ALIAS:
        return _prove_alias(game, statement, step, graph)
    if game.phase == GamePhase.PARTIAL_PICK:
        return _pick_partial(game, log, statement, step)
    return _prove_op(game, log, statement, step, graph)


def _pick(game: Game, log: GameLog, own: Levels) -> moves.Pick | None:
    down = levels(game.rem)
    i = _first_difference(log.children, descendants(own, game.rem, game.position))
    if i is None:
        return None
    siblings = tuple(merkle.proof(merkle.levels(log.children, down), i))
    return moves.Pick(game.standing, i, log.children[i], siblings)


def _adjacent(game: Game, log: GameLog, own: MaterialisedClaim) -> moves.Adjacent:
    t = game.position + 1
    tree = known(trace_levels(own.trace), ceil_log2(len(own.trace)), log, None)
    return moves.Adjacent(game.standing, _transition(own, t, tree.proof(t - 2) if t > 1 else own.carried))


def _pick_element(game: Game, log: GameLog, step: MaterialisedStep) -> moves.PickElement | None:
    posted = log.last(moves.LeafPosted)
    if posted is None:
        return None
    i = _first_difference(_words(posted.data), _words(step.output(game.op).leaf(game.position)))
    return None if i is None else moves.PickElement(game.standing, i)


def _pick_partial(
    game: Game, log: GameLog, statement: Statement, step: MaterialisedStep
) -> moves.PickPartial | moves.ProveOp | None:
    posted = log.last(moves.PartialsPosted)
    if posted is None:
        return None
    i = _first_difference(_partials(posted.words), step.partials(game.op, game.position, None))
    if i is None:
        return combination(game, log, statement, step)
    return moves.PickPartial(game.standing, i, log.posted)


def combination(game: Game, log: GameLog, statement: Statement, step: MaterialisedStep) -> moves.ProveOp | None:
    """Returns the proof that the posted partials do not combine to the claimed word; None before a leaf is posted.

    It applies if the partials equal the player's own: these combine to the player's word, which differs from the
    claimed one.
    """
    leaf = log.last(moves.LeafPosted)
    if leaf is None:
        return None
    whole = game.phase == GamePhase.PARTIAL_PICK or not is_grouped(game.terms)
    opened = (moves.Opening(b"", leaf.data, (), (), 0),) if whole else ()
    described, context = step.program.descriptors[game.op], statement.encode()
    return moves.ProveOp(game.standing, described, COMBINED, log.posted, opened, context)


def _prove_op(
    game: Game, log: GameLog, statement: Statement, step: MaterialisedStep, graph: Known
) -> moves.Stage | moves.ProveOp | None:
    program, element, chunk, shown = step.program, game.position, 0, b""
    if game.phase == GamePhase.ELEMENT:
        picked, leaf = _pick_element(game, log, step), log.last(moves.LeafPosted)
        if picked is None or leaf is None:
            return None
        element, chunk, shown = CHUNK * element + picked.i, picked.i, leaf.data
    elif game.terms > CHUNK:
        posted = log.last(moves.PartialsPosted)
        if posted is None:
            return None
        group = game.group if is_grouped(game.terms) else None
        first = _first_difference(_partials(posted.words), step.partials(game.op, element, group))
        if first is None:
            return combination(game, log, statement, step)
        chunk, shown = first, log.posted
    # The operands of an op are computed together with its output.
    step.output(game.op)
    at = CHUNK * game.group + chunk if game.terms > CHUNK else 0
    opened = openings.build(step, graph, statement, game.op, element, at, game.staged)
    described, context = program.descriptors[game.op], statement.encode()
    if program.ops[game.op].kind == Kind.MAP:
        if not game.staged and sum(len(opening.data) for opening in opened) > openings.STAGED_BYTES:
            return moves.Stage(game.standing, described, chunk, shown, opened[: len(opened) // 2], context)
    elif game.staged:
        opened = ()
    elif program.ops[game.op].mode == Fold.DOT and game.terms > STAGED_TERMS and program.ops[game.op].kind == Kind.FOLD:
        return moves.Stage(game.standing, described, chunk, shown, opened, context)
    return moves.ProveOp(game.standing, described, chunk, shown, opened, context)


def _prove_alias(game: Game, statement: Statement, step: MaterialisedStep, graph: Known) -> moves.ProveAlias:
    program: Program = step.program
    named = program.outputs[game.position - game.block]
    value = EMPTY
    proof: moves.Proof = ()
    if named.kind == Alias.OP_KIND:
        value, proof = graph.at(0, named.index), graph.proof(named.index)
    elif named.kind == Alias.STATE_KIND:
        value, proof = merkle.node_at(step.prev, 0, named.index), tuple(merkle.proof(step.prev, named.index))
    return moves.ProveAlias(game.standing, statement.encode(), program.header, value, proof)


def _first_difference(theirs: Sequence[object], own: Sequence[object]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(theirs, own, strict=True)) if a != b), None)


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data)


def _partials(words: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(words) // 4}I", words)
