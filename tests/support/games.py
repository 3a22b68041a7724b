"""Small materialised Programs with every kind of op, and claims of honest and lying parties about them.

numpy computes outputs (`numerics.portable`); requests of a game are answered one element at a time by
`numerics.reference`, so that games test the specification.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from lockstep.numerics import portable, reference, scalar
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves, openings
from lockstep.protocol.dispute.moves import Resolved
from lockstep.protocol.dispute.openings import Contents, Levels
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.merkle import EMPTY, TensorHeader
from lockstep.protocol.programs.program import (
    CHUNK,
    F32,
    HEAD_BYTES,
    I32,
    Alias,
    Const,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
)
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed, StateRoot, Step, TensorRoot, TraceRoot, Wei

# -- a step, materialised ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lie:
    """One wrong word: flip `bits` of an op's element, or of one of its fold's chunks (`chunk` not None).

    The rest of the step is computed from the wrong word.
    """

    op: int
    element: int = 0
    bits: int = 1
    chunk: int | None = None


LIES = (
    Lie(0, element=412, bits=64),
    Lie(1, element=519, bits=1 << 31),
    Lie(2, element=300, bits=1 << 20),
    Lie(3, element=305, bits=1 << 20),
    Lie(4, element=640, bits=1 << 20),
    Lie(5, element=1, chunk=1),
    Lie(5, element=2, chunk=2, bits=1 << 20),
    Lie(6, element=1, chunk=1, bits=1 << 22),
    Lie(7),
    Lie(8, chunk=0),
    Lie(9, chunk=269),
    Lie(9, chunk=3),
    Lie(10, element=30, bits=0x240),
    Lie(11, element=8, bits=1 << 20),
    Lie(12, element=77, bits=0x240),
    Lie(13, element=4, bits=1 << 20),
    Lie(14, chunk=5, bits=1 << 20),
    Lie(15, element=6),
    Lie(16, element=258),
    Lie(17, element=0),
    Lie(18),
)
"""One lie in every op of `step_program`."""


def pack(words: Sequence[int]) -> bytes:
    """Packs words as little-endian bytes."""
    return struct.pack(f"<{len(words)}I", *words)


def tensor(dtype: int, shape: tuple[int, ...], words: Sequence[int]) -> Contents:
    """Returns a tensor of words."""
    return Contents(TensorHeader(dtype, shape), pack(words))


def root_of(held: Contents) -> Digest:
    """Returns a tensor's root."""
    return Digest(merkle.tensor_root_of_tree(held.header, held.levels[-1][0]))


@dataclass
class PlainStep:
    """A transition executed op by op, with at most one lie in an op and some replaced nodes in G."""

    program: Program
    inputs: tuple[Contents | None, ...]
    data: Contents
    statement: Statement
    """Fields of the statement; prev and graph are ignored."""
    lie: Lie | None = None
    tampered: dict[int, Digest] = field(default_factory=dict)
    """Maps positions in G to replacement nodes (a wrong alias, garbage in padding)."""
    _known: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Honest chunks of folds by (op, element)."""

    @cached_property
    def outputs(self) -> list[Contents]:
        """Returns every op's output, in order."""
        s, made = self.statement, list[Contents]()
        entries = [None if c is None else _words(c) for c in self.inputs]
        consts = [np.frombuffer(c.data, "<u4") for c in self.program.consts]
        rows = _words(self.data).reshape(s.dataset_rows, s.row_length)
        step = portable.NumpyStep(entries, consts, s.seed, (s.round, s.slot, int(s.t)), rows)
        for index, op in enumerate(self.program.ops):
            with np.errstate(all="ignore"):
                words = step.output(op).copy()
            if self.lie and self.lie.op == index:
                element = self.lie.element
                if self.lie.chunk is None:
                    words[element] ^= np.uint32(self.lie.bits)
                else:
                    words[element] = _combined(op, self._chunks(self._operands(made), index, op, element))
            step.outputs[index] = words
            made.append(Contents(op.header, words.astype("<u4").tobytes()))
        return made

    def _chunks(self, operands: reference.Operands, index: int, op: Op, element: int) -> list[int]:
        if (index, element) not in self._known:
            counts = op.header.elements == 1 and all(view.tag == Tag.IOTA for view in op.views)
            self._known[index, element] = _counted(op) if counts else _chunks_of(op, element, operands)
        words = list(self._known[index, element])
        if self.lie and (self.lie.op, self.lie.element) == (index, element) and self.lie.chunk is not None:
            return _with_visible_flip(op, words, self.lie.chunk, self.lie.bits)
        return words

    def _operands(self, made: list[Contents]) -> reference.Operands:
        held: dict[Tag, Callable[[int], Contents | Const]] = {
            Tag.OP: made.__getitem__, Tag.STATE: self.state, Tag.CONST: self.program.consts.__getitem__,
        }  # fmt: skip
        s, length = self.statement, self.statement.row_length
        dataset = reference.Rows(s.dataset_rows, lambda row, column: _word(self.data, row * length + column))
        return reference.Operands(
            lambda tag, index, at: _word(held[tag](index), at), s.seed, (s.round, s.slot, int(s.t)), dataset
        )

    @cached_property
    def prev(self) -> Levels:
        return merkle.levels([root_of(c) if c else EMPTY[0] for c in self.inputs])

    @cached_property
    def next(self) -> tuple[Contents | None, ...]:
        """Returns the output state."""
        named = {Alias.OP_KIND: lambda i: self.outputs[i], Alias.STATE_KIND: lambda i: self.inputs[i]}
        return tuple(named[a.kind](a.index) if a.kind else None for a in self.program.outputs)

    @cached_property
    def graph(self) -> Levels:
        leaves = [root_of(c) for c in self.outputs]
        leaves += [EMPTY[0]] * (self.program.state_block - len(leaves))
        leaves += [root_of(c) if c else EMPTY[0] for c in self.next]
        for position, node in self.tampered.items():
            leaves[position] = node
        return merkle.levels(leaves)

    @property
    def end(self) -> StateRoot:
        """Returns S_t according to this G."""
        up = self.program.depth - self.program.s_out
        return StateRoot(merkle.node_at(self.graph, self.program.s_out, (1 << up) - 1))

    def output(self, op: int) -> Contents:
        return self.outputs[op]

    def state(self, entry: int) -> Contents:
        held = self.inputs[entry]
        assert held is not None, f"entry {entry} of the state is EMPTY"
        return held

    def dataset(self) -> Contents:
        return self.data

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        described = self.program.ops[op]
        words = self._chunks(self._operands(self.outputs), op, described, element)
        if not described.is_grouped:
            return words
        return _level(described, words) if group is None else words[CHUNK * group : CHUNK * (group + 1)]


def _chunks_of(op: Op, element: int, operands: reference.Operands) -> list[int]:
    return [reference.chunk(op, element, c, operands) for c in range(op.chunks)]


@cache
def _counted(op: Op) -> list[int]:
    """Returns the chunks of a fold with one element that reads no tensor: equal in every step."""
    return _chunks_of(op, 0, reference.Operands(lambda *_: 0, Seed(bytes(32)), (0, 0, 0)))


def _combined(op: Op, words: list[int]) -> int:
    return reference.combine(op.mode, _level(op, words) if op.chunks > CHUNK else words)


def _with_visible_flip(op: Op, words: list[int], chunk: int, bits: int) -> list[int]:
    """Returns the chunks with one wrong, the flipped bit moved up until it changes the element.

    The chain's seed determines the data, and so whether rounding (or another chunk's maximum) hides a small flip.
    """
    for shift in range(32):
        lying = [*words]
        lying[chunk] ^= (bits << shift) & 0xFFFFFFFF
        if _combined(op, lying) != _combined(op, words):
            return lying
    raise AssertionError(f"no flip in chunk {chunk} shows")


def _level(op: Op, words: Sequence[int]) -> list[int]:
    return [reference.combine(op.mode, words[i : i + CHUNK]) for i in range(0, len(words), CHUNK)]


def _words(held: Contents) -> npt.NDArray[np.uint32]:
    return np.frombuffer(held.data, "<u4")


def _word(held: Contents | Const, at: int) -> int:
    return int(struct.unpack_from("<I", held.data, 4 * at)[0])


@dataclass
class PlainClaim:
    """T transitions from a start, with one lie in a step; later states are computed from it."""

    programs: tuple[Program, ...]
    """The Program of each transition."""
    start: tuple[Contents | None, ...]
    data: Contents
    seed: Seed
    round: int = 0
    slot: int = 0
    lie_at: int = 0
    """The step t with the lie; 0 for none."""
    lie: Lie | None = None
    tampered: dict[int, Digest] = field(default_factory=dict)

    @cached_property
    def steps(self) -> tuple[PlainStep, ...]:
        state, made = self.start, []
        rows, length = self.data.header.shape
        for t, program in enumerate(self.programs, 1):
            statement = Statement(
                StateRoot(EMPTY[0]), EMPTY[0], program.ops_root, program.consts_root, tensor_root(self.data),
                self.seed, rows, length, self.round, self.slot, Step(t), program.root, program.header[:HEAD_BYTES],
            )  # fmt: skip
            lies = t == self.lie_at
            step = PlainStep(
                program, state, self.data, statement, self.lie if lies else None, self.tampered if lies else {}
            )
            made.append(step)
            state = step.next
        return tuple(made)

    @cached_property
    def trace(self) -> tuple[StateRoot, ...]:
        return tuple(step.end for step in self.steps)

    @property
    def state_zero(self) -> StateRoot:
        return StateRoot(self.steps[0].prev[-1][0])

    @property
    def carried(self) -> moves.Proof:
        return ()

    def step(self, t: int) -> PlainStep:
        return self.steps[t - 1]


def tensor_root(held: Contents) -> TensorRoot:
    """Computes a tensor's root anew."""
    return merkle.tensor_root(held.header.dtype, held.header.shape, held.data)


# -- Programs ----------------------------------------------------------------------------------------------------------


def f32(x: float) -> int:
    """Returns the word nearest to x."""
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def _view(tag: Tag, index: int, *strides: int, offset: int = 0) -> View:
    return View(tag, index, offset, strides)


S = scalar.Opcode
FOUND = 8
"""Number of values that the folds produce."""
N, LENGTH, ROWS = 520, 300, 7
"""Parameters, row length, dataset rows: no multiples of a leaf; N is two leaves and eight words."""


def counted(ops: Sequence[Op]) -> tuple[Op, ...]:
    total, out = 0, []
    for op in ops:
        total += op.header.elements
        out.append(Op(**{**{f: getattr(op, f) for f in op.__dataclass_fields__}, "cumulative": total}))
    return tuple(out)


def step_program(inner: int = 135_000) -> Program:
    """Returns a Program with every op kind, fold mode and source; state [live w, live m][anchor w, anchor m][carry
    2][clock].

    `inner` is the number of terms of the integer fold: above 131,072 it has two levels of partials.
    """
    ops = counted(
        (
            Op(Kind.DRAW, I32, (2, LENGTH), ()),
            Op(Kind.RANDOM, I32, (N,), (), p0=7),
            # 2: uniform noise, scaled by a constant table.
            Op(
                Kind.MAP, F32, (N,), (_view(Tag.OP, 1, 1), _view(Tag.CONST, 1, 1)),
                instrs=(Instr(S.I2F, 0), Instr(S.IMM, imm=f32(2.0**-31)), Instr(S.FMUL, 2, 3), Instr(S.FMUL, 4, 1)),
            ),
            # 3: w of each token; tokens beyond N give +0.
            Op(Kind.GATHER, F32, (2, LENGTH), (_view(Tag.OP, 0, LENGTH, 1), _view(Tag.STATE, 0, 0, 0)), p0=N, p1=1),
            Op(
                Kind.CONCAT, F32, (N + LENGTH,), (_view(Tag.OP, 2, 1), _view(Tag.OP, 3, 1, offset=LENGTH)),
                sizes=(N, LENGTH),
            ),
            # 5: windows of 520 terms that straddle leaves.
            Op(Kind.FOLD, F32, (3,), (_view(Tag.OP, 4, 100, 1, offset=50), _view(Tag.STATE, 0, 0, 1)), (N,), Fold.DOT),
            Op(Kind.FOLD, F32, (2,), (_view(Tag.OP, 3, LENGTH, 1),), (LENGTH,), Fold.SUM),
            Op(Kind.FOLD, F32, (), (_view(Tag.OP, 2, 1, offset=17),), (100,), Fold.MAX),
            Op(Kind.FOLD, F32, (), (_view(Tag.OP, 2, 1),), (LENGTH,), Fold.MIN),
            Op(Kind.FOLD, I32, (), (_view(Tag.IOTA, 0, 3, offset=5),), (inner,), Fold.ISUM),
            # 10: the noise and w as codes, nine groups of 64 with a ragged one, and their product.
            Op(Kind.QUANT, I32, (144,), (_view(Tag.OP, 2, 0, 1),), (N,), Quant.CODES, p0=16),
            Op(Kind.QUANT, F32, (9,), (_view(Tag.OP, 2, 0, 1),), (N,), Quant.SCALES, p0=16),
            Op(Kind.QUANT, I32, (144,), (_view(Tag.STATE, 0, 0, 1),), (N,), Quant.CODES_POWER, p0=16, p1=(1 << 31) + 3),
            Op(Kind.QUANT, F32, (9,), (_view(Tag.STATE, 0, 0, 1),), (N,), Quant.SCALES_POWER, p0=16),
            Op(
                Kind.FOLD, F32, (),
                (_view(Tag.OP, 10, 16), _view(Tag.OP, 12, 16), _view(Tag.OP, 11, 1), _view(Tag.OP, 13, 1)),
                (9,), Fold.QDOT, p0=16,
            ),
            # 15: what the folds found, carried.
            Op(
                Kind.CONCAT, F32, (FOUND,),
                (*(_view(Tag.OP, i, stride) for i, stride in ((5, 1), (6, 1), (7, 0), (8, 0), (14, 0))),),
                sizes=(3, 2, 1, 1, 1),
            ),
            # 16: m' = 0.9 m + noise * dot, of four full leaves.
            Op(
                Kind.MAP, F32, (N,),
                (
                    _view(Tag.STATE, 1, 1), _view(Tag.OP, 2, 1), _view(Tag.STATE, 0, 1), _view(Tag.STATE, 2, 1),
                    _view(Tag.OP, 5, 0, offset=2),
                ),
                instrs=(
                    Instr(S.IMM, imm=f32(0.9)), Instr(S.FMUL, 0, 5), Instr(S.FFMA, 1, 4, 6), Instr(S.FSUB, 2, 3),
                    Instr(S.FTANH, 8), Instr(S.FADD, 7, 9),
                ),
            ),
            # 17: w' = w - rate(t) m', the rate from a table by the clock; context and iota are read too.
            Op(
                Kind.MAP, F32, (N,),
                (
                    _view(Tag.STATE, 0, 1), _view(Tag.OP, 16, 1), _view(Tag.CONST, 0, 0, offset=1),
                    _view(Tag.CONTEXT, 0, 0, offset=2), _view(Tag.IOTA, 0, 1),
                ),
                instrs=(
                    Instr(S.IADD, 3, 4), Instr(S.I2F, 5), Instr(S.FEXP, 2), Instr(S.FDIV, 7, 6), Instr(S.FNEG, 8),
                    Instr(S.FFMA, 9, 1, 0),
                ),
            ),
            Op(Kind.MAP, I32, (), (_view(Tag.STATE, 6), _view(Tag.IOTA, 0, offset=1)), instrs=(Instr(S.IADD, 0, 1),)),
        )
    )  # fmt: skip
    vector, clock = TensorHeader(F32, (N,)), TensorHeader(I32, ())
    inputs = (vector, vector, vector, vector, TensorHeader(F32, (FOUND,)), clock, clock, None)
    consts = (
        Const(TensorHeader(F32, (4,)), pack([f32(-6.0), f32(-5.0), f32(-4.0), f32(-3.0)])),
        Const(vector, pack([f32(0.01 * (1 + i % 5)) for i in range(N)])),
    )
    outputs = (
        Alias(1, 17), Alias(1, 16), Alias(2, 2), Alias(2, 3), Alias(1, 15), Alias(1, 9), Alias(1, 18), Alias(0),
    )  # fmt: skip
    return Program(ops, inputs, outputs, consts)


def encode_program() -> Program:
    """Returns the encode: payload = (w - anchor, m), the carry continues: out = node(payload), out2 = node(carry)."""
    ops = counted(
        (Op(Kind.MAP, F32, (N,), (_view(Tag.STATE, 0, 1), _view(Tag.STATE, 2, 1)), instrs=(Instr(S.FSUB, 0, 1),)),)
    )
    return Program(ops, step_program().inputs, (Alias(1, 0), Alias(2, 1), Alias(2, 4), Alias(2, 5)))


def start_state() -> tuple[Contents | None, ...]:
    """Returns S_0 of a slot: the base twice, a zero carry, clock 0."""
    w = tensor(F32, (N,), [f32(((i * 37) % 101 - 50) / 64) for i in range(N)])
    m = tensor(F32, (N,), [f32(((i * 53) % 89 - 44) / 1024) for i in range(N)])
    return (w, m, w, m, tensor(F32, (FOUND,), [0] * FOUND), tensor(I32, (), [0]), tensor(I32, (), [0]), None)


def dataset() -> Contents:
    """Returns rows of tokens, some beyond the table."""
    return tensor(I32, (ROWS, LENGTH), [(i * 7919) % (N + 40) for i in range(ROWS * LENGTH)])


# -- playing -----------------------------------------------------------------------------------------------------------

WORKER = Address("0x" + "11" * 20)
CHALLENGER = Address("0x" + "22" * 20)
CLOCK = Seconds(120)
START = Seconds(1_000)


def claim_of(held: PlainClaim, programs: tuple[Program, ...] | None = None) -> game.DisputedClaim:
    """Returns the market's view of a claim with the trace of `held`."""
    programs = programs or held.programs
    rows, length = held.data.header.shape
    body = Body(TraceRoot(honest.trace_levels(held.trace)[-1][0]), NO_STATE, NO_STATE)
    return game.DisputedClaim(
        ClaimId(bytes([7]) * 32), WORKER, len(held.trace), body,
        held.state_zero, programs[0].root, programs[-1].root, held.seed, held.round, held.slot, tensor_root(held.data),
        rows, length, CLOCK, Seconds(10), Wei(1),
    )  # fmt: skip


@dataclass
class Match:
    """One game between two policies on the Python twin: moves, events, and the game after each."""

    claim: game.DisputedClaim
    arbiter: game.Arbiter = field(default_factory=ReferenceArbiter)
    now: Seconds = START
    seconds_per_move: int = 1
    state: game.Game | None = None
    log: list[moves.GameEvent] = field(default_factory=list)
    played: list[moves.Move] = field(default_factory=list)

    def play(self, move: moves.Move, sender: Address) -> None:
        """Plays a move. Raises MoveRefused."""
        self.now = Seconds(self.now + self.seconds_per_move)
        self.state, events = game.play(self.state, move, sender, self.now, self.claim, self.arbiter)
        self.log += events
        self.played.append(move)

    def run(self, opening: moves.Open, defender: Policy, challenger: Policy) -> Resolved:
        """Opens a game, then alternates until it is closed; a side that returns None runs out of time."""
        self.play(opening, CHALLENGER)
        while True:
            assert self.state is not None
            if self.state.phase == moves.GamePhase.CLOSED:
                return next(e for e in self.log if isinstance(e, Resolved))
            policy = defender if self.state.defender_moves else challenger
            move = policy(self.state, self.log)
            if move is None:
                self.now = self.state.deadline
                self.play(moves.Resolve(self.state.standing), CHALLENGER)
            else:
                self.play(move, self.state.mover)

    @property
    def finding(self) -> moves.Finding | None:
        """Returns the finding of the deciding proof."""
        return next((e.finding for e in self.log if isinstance(e, moves.Convicted)), None)


Policy = Callable[[game.Game, Sequence[moves.GameEvent]], moves.Move | None]


def defends(held: honest.MaterialisedClaim) -> Policy:
    """Returns a policy that opens its own commitments, true or not."""
    return lambda state, log: honest.answer(state, log, held)


def challenges(held: honest.MaterialisedClaim) -> Policy:
    """Returns a policy that points at the first difference from `held`."""
    return lambda state, log: honest.point(state, log, held)


def silent(state: game.Game, log: Sequence[moves.GameEvent]) -> None:
    """Returns no move."""


def random_challenger(rng: random.Random, held: PlainClaim, concede: float = 0.05) -> Policy:
    """Returns a policy that points at random permitted nodes, with true proofs for what it points at."""

    def choose(state: game.Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        seen = honest.GameLog(log)
        if rng.random() < concede:
            return None
        if state.phase in (moves.GamePhase.TRACE_PICK, moves.GamePhase.GRAPH_PICK, moves.GamePhase.TENSOR_PICK):
            i = rng.randrange(len(seen.children))
            siblings = tuple(merkle.proof(merkle.levels(seen.children), i))
            return moves.Pick(state.standing, i, seen.children[i], siblings)
        if state.phase == moves.GamePhase.ELEMENT and state.terms > CHUNK:
            posted = seen.last(moves.LeafPosted)
            assert posted is not None
            return moves.PickElement(state.standing, rng.randrange(len(posted.data) // 4))
        if state.phase == moves.GamePhase.PARTIAL_PICK and rng.random() < 0.8:
            posted_words = seen.last(moves.PartialsPosted)
            assert posted_words is not None
            return moves.PickPartial(state.standing, rng.randrange(len(posted_words.words) // 4), seen.posted)
        if state.phase in (moves.GamePhase.ELEMENT, moves.GamePhase.PARTIAL_PICK, moves.GamePhase.PROOF):
            return _any_proof(rng, state, seen, held)
        return honest.point(state, log, held)

    return choose


def _any_proof(rng: random.Random, state: game.Game, log: honest.GameLog, held: PlainClaim) -> moves.ProveOp:
    """Returns a well-formed execution of the picked node, right or wrong."""
    step = held.step(log.statement.t)
    descriptor, context = step.program.descriptors[state.op], log.statement.encode()
    leaf, partials = log.last(moves.LeafPosted), log.last(moves.PartialsPosted)
    assert leaf is not None
    element, chunk, shown = state.position, 0, b""
    if partials is not None:
        chunk, shown = rng.randrange(len(partials.words) // 4), log.posted
        if state.phase == moves.GamePhase.PARTIAL_PICK or rng.random() < 0.2:
            combined = honest.combination(state, log, log.statement, step)
            assert combined is not None, "a leaf was posted"
            return combined
    elif state.phase == moves.GamePhase.ELEMENT:
        chunk, shown = rng.randrange(len(leaf.data) // 4), leaf.data
        element = CHUNK * element + chunk
    graph = honest.known(step.graph, step.program.depth, log, moves.Defended)
    at = CHUNK * state.group + chunk if partials is not None else 0
    opened = openings.build(step, graph, log.statement, state.op, element, at)
    return moves.ProveOp(state.standing, descriptor, chunk, shown, opened, context)


def open_at(claim: game.DisputedClaim, held: honest.MaterialisedClaim, t: int, nonce: int = 0) -> moves.Open:
    """Returns the opening of a game on transition t (0: on the trace), wrong or not; `held` has the claim's trace."""
    if t == 0:
        return moves.Open(claim.id, claim.body, nonce, 0, StateRoot(EMPTY[0]), (), moves.NO_TRANSITION)
    tree = honest.trace_levels(held.trace)
    program = held.step(t).program
    prev = held.trace[t - 2] if t > 1 else held.state_zero
    proof = tuple(merkle.proof(tree, t - 2)) if t > 1 else held.carried
    transition = moves.Transition(prev, proof, program.header, program.ops_root, program.consts_root)
    return moves.Open(claim.id, claim.body, nonce, t, held.trace[t - 1], tuple(merkle.proof(tree, t - 1)), transition)
