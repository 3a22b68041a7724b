"""Lies about what a Program computes: each changes an honest run at one place and agrees with itself from there on.

A lie is a Program that stands in for the honest one at a transition. It computes one tensor per honest op, so the
liar's step tree has the honest shape and it can defend itself down to the leaf; everything after the place is computed
honestly from what stands there. `expectation` says beforehand where a game about the lie must end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.chain.devnet import CHAIN_ID
from lockstep.execution.jobs import ClaimRun, JobPrograms, State
from lockstep.numerics import codes, scalar
from lockstep.numerics.arrays import Array, to_array, to_bytes
from lockstep.numerics.scalar import Opcode as Code
from lockstep.numerics.trace import OpOutputs, StepTrace
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import (
    CHUNK,
    CODES,
    F32,
    STOCHASTIC,
    Alias,
    Const,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Tag,
    View,
)
from lockstep.protocol.programs.rules import MAX_INSTRS
from lockstep.protocol.types import TensorRoot

Lies = Mapping[tuple[int, int], tuple[int, ...]]
"""Partials that combine to a lie, by (op, element)."""

INTEGERS = 'they are about jobs with products = "int8"'
"""The hint of a lie about codes."""

CARRIES = "they are about strategies with a carry: --strategy sparseloco"
"""The hint of a lie about a carry."""

TEN = 0x41200000
"""10.0 as a binary32 word."""

MERGE_LIE_INSTRS = 2
"""The instructions that the lie about a merge adds to a map."""

SUMS = (Fold.DOT, Fold.SUM, Fold.QDOT)
"""Folds whose chunks are added up in float32."""

NUDGES = (1, -1)
"""The ways that a lie about one word may move it: the first that S_t does not round away is taken."""


@dataclass(frozen=True)
class Expectation:
    """The place where a game about the lie must end."""

    program: str
    """"step", "encode" or "merge"; "slot" where no game is needed."""
    step: int
    """t; 0 where no game is needed."""
    op_index: int | None
    """None: the game does not come so far."""
    op_kind: str | None = None
    op_name: str | None = None
    element: int | None = None
    """None: any (the first that differs)."""
    chunk: int | None = None
    verdict: str = "fraud"

    def to_dict(self) -> dict[str, Any]:
        """Returns the expectation as printed on stdout."""
        return asdict(self)


@dataclass(frozen=True)
class Forgery:
    """A Program that replaces the honest one."""

    program: Program
    hidden: int | None = None
    """An op of `program` that the honest one lacks, if any: the one after it stands in its place."""


@dataclass(frozen=True)
class Nudge:
    """A lie about one word that is slightly off: its place is known before the run, its direction only when the word
    is."""

    t: int
    op: int
    element: int
    chunk: int | None = None
    """The chunk with the wrong terms, in a fold of more than one chunk."""
    code: int | None = None
    """The code that is off, where the word has four of them."""

    def moved(self, word: int, way: int) -> int | None:
        """Returns the next word in direction `way`, or the word with the next code; None if there is none."""
        if self.code is None:
            beside = (word + way) & scalar.MASK
            return None if scalar.is_nan(word) or scalar.is_nan(beside) else beside
        four = codes.unpacked(word)
        four[self.code] += way
        return None if abs(four[self.code]) > codes.LARGEST else codes.packed(four)


@dataclass(frozen=True)
class Swap:
    """A lie that exchanges a value with a zero beside it; the run determines which value."""

    t: int
    op: int
    nth: int
    """The number of the value among those that could, modulo their count."""

    def place(self, words: NDArray[np.uint32]) -> int | None:
        """The first element of a pair, an even and the next one, of which one word alone is 0; None if there is none.

        A block of a sparse format is even, so that it keeps as many words as it had.
        """
        pairs = words[: words.size // 2 * 2].reshape(-1, 2)
        found = np.flatnonzero((pairs == 0).sum(1) == 1)
        return 2 * int(found[self.nth % found.size]) if found.size else None


@dataclass(frozen=True)
class Cheat:
    """One lie about one job, its place fixed by a seed."""

    name: str
    expectation: Expectation
    forgeries: Mapping[int, Forgery] = field(default_factory=dict)
    """By t."""
    nudge: Nudge | Swap | None = None
    silent: bool = False
    """The liar never answers a challenge."""
    signs_twice: bool = False
    """The liar signs a second claim beside the one that it makes."""
    stale: bool = False
    """The liar starts from the zero carry of its period's first round, whatever it has put out since."""

    def run(self, honest: ClaimRun) -> LyingRun:
        """Returns the lying computation of a claim."""
        start: State = honest.start
        if self.stale and honest.carried is not None:
            carry = honest.job.params.sections.carry
            start = [*start]
            start[carry] = [None if x is None else np.zeros_like(x) for x in start[carry]]
        return LyingRun(honest.job, honest.slot, honest.round, honest.seed, start, honest.carried, cheat=self)


@dataclass(frozen=True)
class LyingRun(ClaimRun):
    """A claim's computation with a lie in it."""

    cheat: Cheat | None = None
    _nudged: dict[int, tuple[Forgery | None, Lies]] = field(default_factory=dict, repr=False, compare=False)

    def advance(self, t: int, state: State) -> State:
        """Computes the tensors of S_t from those of S_{t-1}, with the lie."""
        forgery, _ = self._forgery(t, state)
        if forgery is None:
            return super().advance(t, state)
        return self.compute(forgery.program, t, state)

    def materialise(self, t: int, state: State) -> StepTrace:
        """Returns the step that the liar shows as transition t."""
        forgery, lies = self._forgery(t, state)
        if forgery is None:
            return super().materialise(t, state)
        step = self.show(forgery.program, t, state)
        made = Behind(step.made, forgery.hidden)
        return LyingStep(self.program(t), step.before, made, step.context, step.rows, lies=lies)

    @property
    def shows(self) -> bool:
        """False if the lie is about a word of the first step and S_1 rounds it away: known before the run."""
        assert self.cheat is not None, "a lying run has a lie"
        nudge = self.cheat.nudge
        return not isinstance(nudge, Nudge) or nudge.t > 1 or self._forgery(1, self.start)[0] is not None

    @property
    def lied(self) -> bool:
        """True if the run, as far as it was computed, differs from the honest one."""
        assert self.cheat is not None, "a lying run has a lie"
        if self.cheat.stale:
            return self.carried is not None
        return self.cheat.nudge is None or any(forgery is not None for forgery, _ in self._nudged.values())

    def _forgery(self, t: int, state: State) -> tuple[Forgery | None, Lies]:
        assert self.cheat is not None, "a lying run has a lie"
        nudge = self.cheat.nudge
        if nudge is None or t != nudge.t:
            return self.cheat.forgeries.get(t), {}
        if t not in self._nudged:
            found = self._swapped(nudge, state) if isinstance(nudge, Swap) else self._nudges(nudge, state)
            self._nudged[t] = next(found, (None, {}))
        return self._nudged[t]

    def _swapped(self, swap: Swap, state: State) -> Iterator[tuple[Forgery, Lies]]:
        """The lie about a pair, if there is a pair."""
        honest = super().materialise(swap.t, state)
        words = honest.output(swap.op).words
        at = swap.place(words)
        if at is not None:
            yield _set(honest.program, swap.op, {at: int(words[at + 1]), at + 1: int(words[at])}), {}

    def _nudges(self, nudge: Nudge, state: State) -> Iterator[tuple[Forgery, Lies]]:
        """Lies about one word that S_t shows; none if every one is rounded away (the claim is then honest)."""
        honest = super().materialise(nudge.t, state)
        word = int(honest.output(nudge.op).words[nudge.element])
        for way in NUDGES:
            lie = nudge.moved(word, way)
            if lie is None:
                continue
            lies: Lies = {}
            if nudge.chunk is not None:
                mode = honest.program.ops[nudge.op].mode
                partials = wrong_partials(mode, honest.partials(nudge.op, nudge.element), nudge.chunk, lie)
                if partials is None:
                    continue
                lies = {(nudge.op, nudge.element): partials}
            forgery = _nudged(honest.program, nudge, lie - word)
            lying = self.compute(forgery.program, nudge.t, state)
            if self.root(nudge.t, lying) != honest.root:
                yield forgery, lies


@dataclass(frozen=True)
class Behind:
    """A forged Program's outputs (`trace.OpOutputs`), numbered as the honest Program's ops."""

    forged: OpOutputs
    hidden: int | None

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of all outputs but the hidden one's."""
        return tuple(root for i, root in enumerate(self.forged.roots) if i != self.hidden)

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """The outputs of some ops."""
        behind = {op: op if self.hidden is None or op < self.hidden else op + 1 for op in ops}
        made = self.forged.arrays(frozenset(behind.values()))
        return {op: made[at] for op, at in behind.items()}


@dataclass(frozen=True)
class LyingStep(StepTrace):
    """A step as the liar opens it in a game: the honest Program over the forged Program's tensors."""

    lies: Lies = field(default_factory=dict)

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """Returns one level of a fold's partials; for a lie, the words that combine to it."""
        return list(self.lies.get((op, element), ())) or super().partials(op, element, group)


# -- the lies ----------------------------------------------------------------------------------------------------------


def skipped_step(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """Step t passes its state on unchanged, except for the clock."""
    t = random.randint(1, params.role.inner_steps)
    step, ops = programs.step, list(programs.step.ops)
    entries = {k: a.index for k, a in _trained(step, params)}
    for k, op in entries.items():
        ops[op] = _copy_of_state(step.ops[op], k)
    forgery = Forgery(replace(step, ops=tuple(ops)))
    return Cheat("skipped-step", _expect("step", step, t, min(entries.values())), {t: forgery})


def one_ulp(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One word of one gradient is one ulp off; of a sum of chunks, by terms of a later chunk."""
    step = programs.step
    # The first step: where its moments are zero, one ulp of a gradient is seldom rounded away (measured on the demo's
    # GPT: 1 of 14 there, 4 of 14 at step 2). Where it is, another place is drawn.
    t = 1
    op = random.choice(_gradients(step, params))
    element = random.randrange(step.ops[op].header.elements)
    chunks = step.ops[op].chunks
    chunk = random.randrange(1, chunks) if chunks > 1 else None
    return Cheat("one-ulp", _expect("step", step, t, op, element, chunk), nudge=Nudge(t, op, element, chunk))


def wrong_code(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One code of an operand of a product of integers is off by one, where the product reads it."""
    step, t = programs.step, 1
    op = random.choice(_codes(step, params))
    words, term = step.ops[op].extents[-1], random.randrange(step.ops[op].k_extents[0])
    row = random.randrange(step.ops[op].header.elements // words)
    element = row * words + term // CODES
    return Cheat("wrong-code", _expect("step", step, t, op, element), nudge=Nudge(t, op, element, code=term % CODES))


def nearest_instead_of_stochastic(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """Every code of a gradient is the nearest one: nothing is drawn for it."""
    step = programs.step
    first = _first(step, _is_random, "rounds nothing at random", INTEGERS)
    ops = tuple(replace(op, p1=0) if _is_random(op) else op for op in step.ops)
    steps = dict.fromkeys(range(1, params.role.inner_steps + 1), Forgery(replace(step, ops=ops)))
    return Cheat("nearest-instead-of-stochastic", _expect("step", step, 1, first), steps)


def other_data(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """Step 1 trains on rows that were not drawn for it."""
    step = programs.step
    draw = _first(step, lambda op: op.kind == Kind.DRAW, "draws no data")
    shifted = replace(step.ops[draw], p0=step.ops[draw].p0 + random.randrange(1 << 16, 1 << 24))
    return Cheat("other-data", _expect("step", step, 1, draw), {1: Forgery(_with_op(step, draw, shifted))})


def wrong_lr(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """Every step uses 1.5 times the learning rate."""
    step = programs.step
    table = learning_rate(step, params)
    reader = _first(step, lambda op: any(v.tag == Tag.CONST and v.index == table for v in op.views), "reads no table")
    consts = list(step.consts)
    row = step.ops[reader].p1 if step.ops[reader].kind == Kind.GATHER else 1
    consts[table] = _faster(consts[table], row)
    forgery = Forgery(replace(step, consts=tuple(consts)))
    steps = dict.fromkeys(range(1, params.role.inner_steps + 1), forgery)
    return Cheat("wrong-lr", _expect("step", step, 1, reader), steps)


def scaled_payload(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """The payload is multiplied by ten."""
    encode, t = programs.encode, params.role.inner_steps + 1
    op = _difference(encode, params)
    forged = inserted(encode, op, (Instr(Code.IMM, imm=TEN), Instr(Code.FMUL, 0, 2)))
    return Cheat("scaled-payload", _expect("encode", encode, t, op), {t: Forgery(forged, op)})


def wrong_index(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One value of the payload stands one place beside its own."""
    encode, t = programs.encode, params.role.inner_steps + 1
    op = random.choice(sorted(_computed(encode, params.sections.payload)))
    swap = Swap(t, op, random.randrange(1 << 30))
    return Cheat("wrong-index", _expect("encode", encode, t, op), nudge=swap)


def tampered_residual(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One tensor that the slot keeps for its next round is multiplied by ten: the payload's residual, or a momentum."""
    encode, t, sections = programs.encode, params.role.inner_steps + 1, params.sections
    kept = _computed(encode, sections.carried) - _computed(encode, sections.payload)
    found = sorted(op for op in kept if encode.ops[op].dtype == F32)
    if not found:
        raise UsageError("this job's encode computes nothing that a slot keeps", hint=CARRIES)
    op = random.choice(found)
    forged = inserted(encode, op, (Instr(Code.IMM, imm=TEN), Instr(Code.FMUL, 0, 2)))
    return Cheat("tampered-residual", _expect("encode", encode, t, op), {t: Forgery(forged, op)})


def stale_carry(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """The slot claims to start from its latest carry, but starts from zero."""
    if not params.role.carries:
        raise UsageError("this job's slots keep nothing from round to round", hint=CARRIES)
    step = programs.step
    carry = range(len(step.inputs))[params.sections.carry]
    reader = _first(step, lambda op: any(v.tag == Tag.STATE and v.index in carry for v in op.views), "reads no carry")
    return Cheat("stale-carry", _expect("step", step, 1, reader), stale=True)


def silent(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One word is one ulp off, and the liar never answers a challenge."""
    lie = one_ulp(programs, params, random)
    ended = Expectation("step", lie.expectation.step, None, verdict="timeout")
    return replace(lie, name="silent", expectation=ended, silent=True)


def two_signatures(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """The claim is right, but the worker signs another one for the same slot, as two machines with one key would."""
    return Cheat("two-signatures", Expectation("slot", 0, None, verdict="equivocation"), signs_twice=True)


def lying_aggregator(programs: JobPrograms, params: JobParams, random: Random) -> Cheat:
    """One tensor of the next shared state is one ulp off in every element."""
    merge = programs.merge
    candidates = sorted(op for op in _computed(merge, params.sections.shared) if _can_lie(merge, op))
    if not candidates:
        raise UsageError("this job's merge has no map to lie in", hint="try another cheat")
    at = random.choice(candidates)
    op = merge.ops[at]
    result = len(op.views) + len(op.instrs) - 1
    off = (Instr(Code.IMM, imm=1), Instr(Code.IADD, result, result + 1))
    forged = _with_op(merge, at, replace(op, instrs=op.instrs + off))
    return Cheat("lying-aggregator", _expect("merge", merge, 1, at), {1: Forgery(forged)})


Lie = Callable[[JobPrograms, JobParams, Random], Cheat]

OF_SLOTS: dict[str, Lie] = {
    "skipped-step": skipped_step,
    "one-ulp": one_ulp,
    "other-data": other_data,
    "wrong-lr": wrong_lr,
    "scaled-payload": scaled_payload,
    "wrong-code": wrong_code,
    "nearest-instead-of-stochastic": nearest_instead_of_stochastic,
    "tampered-residual": tampered_residual,
    "stale-carry": stale_carry,
    "wrong-index": wrong_index,
    "silent": silent,
    "two-signatures": two_signatures,
}
OF_MERGES: dict[str, Lie] = {"lying-aggregator": lying_aggregator}


def require_devnet(chain_id: int) -> None:
    """Raises UsageError off devnets."""
    # INVARIANT: lies run on devnets alone.
    if chain_id != CHAIN_ID:
        raise UsageError(f"cheats refuse chain {chain_id}", hint=f"they are for devnets (chain {CHAIN_ID})")


def cheat_of(name: str, programs: JobPrograms, params: JobParams, seed: int, chain_id: int, draw: int = 0) -> Cheat:
    """Returns the lie `name` about a job, at draw number `draw` from `seed`; raises UsageError off devnets, or if there
    is no such lie."""
    require_devnet(chain_id)
    known = OF_SLOTS | OF_MERGES
    if name not in known:
        raise UsageError(f"no cheat is called {name!r}", hint=f"one of {', '.join(known)}")
    return known[name](programs, params, Random(f"lockstep/{name}/{seed}" + (f"/{draw}" if draw else "")))


# -- Programs that lie -------------------------------------------------------------------------------------------------


def inserted(program: Program, at: int, instrs: Sequence[Instr]) -> Program:
    """Returns the Program with a map after op `at` that all readers of the op read instead.

    The expression's registers: 0 the op's value, 1 the flat element; then one per instruction.
    """
    strides, step = [0] * len(program.ops[at].extents), 1
    for axis in reversed(range(len(strides))):
        strides[axis], step = step, step * program.ops[at].extents[axis]
    views = (View(Tag.OP, at, 0, tuple(strides)), View(Tag.IOTA, 0, 0, tuple(strides)))
    target = program.ops[at]
    tap = Op(Kind.MAP, target.dtype, target.extents, views, instrs=tuple(instrs))
    later = [_rewired(op, at) for op in program.ops[at + 1 :]]
    outputs = tuple(
        replace(a, index=a.index + 1) if a.kind == Alias.OP_KIND and a.index >= at else a for a in program.outputs
    )
    ops = _counted([*program.ops[: at + 1], tap, *later])
    return Program(ops, program.inputs, outputs, program.consts)


def wrong_partials(mode: int, honest: Sequence[int], chunk: int, lie: int) -> tuple[int, ...] | None:
    """Returns at most 256 partials that combine to `lie` and differ from the honest ones only in `chunk`; None if no
    word does that.

    The combination never falls as one of its terms rises, so the term is found by bisection over the floats in order.
    """
    words = list(honest)

    def combined(rank: int) -> int:
        words[chunk] = _word_of_rank(rank)
        acc = 0
        for word in words:
            acc = scalar.fadd(acc, word)
        return _rank_of_word(acc)

    if mode not in SUMS or len(words) > CHUNK or any(scalar.is_nan(w) for w in honest):
        return None
    low, high = _rank_of_word(scalar.NEGATIVE_INFINITY) + 1, _rank_of_word(scalar.INFINITY) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if combined(middle) >= _rank_of_word(lie) else (middle + 1, high)
    found = combined(low) == _rank_of_word(lie)
    return tuple(words) if found and words[chunk] != honest[chunk] else None


def learning_rate(program: Program, params: JobParams) -> int:
    """Returns the index of the constant with the learning rates: a table read for the parameters, not for the
    moments."""
    trained, live = _trained(program, params), params.sections.live
    of_live = set().union(*(_consts_behind(program, a.index) for k, a in trained if k < live.stop))
    of_moments = set().union(*(_consts_behind(program, a.index) for k, a in trained if k >= live.stop))
    tables = sorted(c for c in of_live - of_moments if program.consts[c].header.dtype == F32)
    if not tables:
        raise UsageError("this job's step has no learning-rate table", hint="try another cheat")
    return tables[0]


def _nudged(program: Program, nudge: Nudge, off: int) -> Forgery:
    expression = (
        Instr(Code.IMM, imm=nudge.element),
        Instr(Code.IEQ, 1, 2),
        Instr(Code.IMM, imm=off & scalar.MASK),
        Instr(Code.IADD, 0, 4),
        Instr(Code.SELECT, 3, 5, 0),
    )
    return Forgery(inserted(program, nudge.op, expression), nudge.op)


def _set(program: Program, op: int, words: Mapping[int, int]) -> Forgery:
    """Returns a forgery with other words at some elements of an op's output."""
    expression: list[Instr] = []
    value = 0
    for element, word in words.items():
        at = 2 + len(expression)
        expression += [
            Instr(Code.IMM, imm=element),
            Instr(Code.IEQ, 1, at),
            Instr(Code.IMM, imm=word),
            Instr(Code.SELECT, at + 1, at + 2, value),
        ]
        value = at + 3
    return Forgery(inserted(program, op, expression), op)


def _expect(
    name: str, program: Program, t: int, op: int, element: int | None = None, chunk: int | None = None
) -> Expectation:
    return Expectation(name, t, op, program.ops[op].kind.name.lower(), program.name_of(op), element, chunk)


def _trained(step: Program, params: JobParams) -> list[tuple[int, Alias]]:
    """Entries of the live tensors and the carry that a step computes."""
    entries = list(enumerate(step.outputs))
    kept = [*entries[params.sections.live], *entries[params.sections.carry]]
    found = [(k, alias) for k, alias in kept if alias.kind == Alias.OP_KIND]
    if not found:
        raise UsageError("this job's step trains nothing", hint="try another cheat")
    return found


def _gradients(step: Program, params: JobParams) -> list[int]:
    """Folds whose elements reach the state through maps and concats alone, those of several chunks preferred.

    A word of these is a gradient's: nothing sums it away. Gradients of one-hot rows are left out, they are mostly zero.
    """
    near = _behind(step, [a.index for _, a in _trained(step, params)], through=(Kind.MAP, Kind.CONCAT))
    folds = [i for i in near if step.ops[i].kind == Kind.FOLD and step.ops[i].dtype == F32]
    wide = [i for i in folds if step.ops[i].header.elements > 1 and not _is_one_hot(step, step.ops[i])]
    chunked = [i for i in wide if step.ops[i].mode in SUMS and 1 < step.ops[i].chunks <= CHUNK]
    return chunked or wide or folds or [min(a.index for _, a in _trained(step, params))]


def _codes(step: Program, params: JobParams) -> list[int]:
    """Codes that products read whose elements reach the state through maps and concats alone."""
    near = _behind(step, [a.index for _, a in _trained(step, params)], through=(Kind.MAP, Kind.CONCAT))
    read = [v.index for i in near if step.ops[i].is_qdot for v in step.ops[i].views[:2] if v.tag == Tag.OP]
    made = [i for i in _behind(step, read, through=(Kind.CONCAT,)) if step.ops[i].kind == Kind.QUANT]
    if not made:
        raise UsageError("this job's step quantises nothing", hint=INTEGERS)
    return made


def _is_random(op: Op) -> bool:
    return op.kind == Kind.QUANT and op.p1 >= STOCHASTIC


def _behind(program: Program, ops: Sequence[int], through: Sequence[Kind]) -> list[int]:
    """Returns, in order, `ops` and the ops from which they are computed, following operands only through ops of some
    kinds."""
    found, open_ = set(ops), list(ops)
    while open_:
        at = open_.pop()
        if program.ops[at].kind in through:
            fresh = {v.index for v in program.ops[at].views if v.tag == Tag.OP} - found
            found |= fresh
            open_ += fresh
    return sorted(found)


def _consts_behind(program: Program, op: int) -> set[int]:
    behind = _behind(program, [op], through=(Kind.MAP, Kind.CONCAT, Kind.GATHER))
    return {v.index for i in behind for v in program.ops[i].views if v.tag == Tag.CONST}


def _is_one_hot(program: Program, fold: Op) -> bool:
    """Returns True if an operand is 1 where integers are equal, else 0: so an embedding's gradient is written."""
    for view in fold.views:
        source = program.ops[view.index] if view.tag == Tag.OP else None
        while source is not None and source.kind == Kind.MAP and len(source.instrs) <= 1 and len(source.views) == 1:
            inner = source.views[0]
            source = program.ops[inner.index] if inner.tag == Tag.OP else None
        if source is not None and source.kind == Kind.MAP and any(i.op == Code.IEQ for i in source.instrs):
            return True
    return False


def _computed(program: Program, section: slice) -> set[int]:
    """Returns the ops whose outputs are in a section of the Program's output."""
    return {a.index for a in program.outputs[section] if a.kind == Alias.OP_KIND}


def _can_lie(program: Program, index: int) -> bool:
    op = program.ops[index]
    return op.kind == Kind.MAP and op.dtype == F32 and len(op.instrs) + MERGE_LIE_INSTRS <= MAX_INSTRS


def _difference(encode: Program, params: JobParams) -> int:
    """The first op behind the payload that reads the trained parameters."""
    live = params.sections.live
    payload = [a.index for a in encode.outputs[params.sections.payload] if a.kind == Alias.OP_KIND]
    behind = _behind(encode, payload, through=tuple(Kind))

    def reads_live(op: Op) -> bool:
        return op.dtype == F32 and any(v.tag == Tag.STATE and v.index < live.stop for v in op.views)

    return next((i for i in behind if reads_live(encode.ops[i])), min(payload))


def _first(program: Program, holds: Callable[[Op], bool], without: str, hint: str = "try another cheat") -> int:
    found = next((i for i, op in enumerate(program.ops) if holds(op)), None)
    if found is None:
        raise UsageError(f"this job's step {without}", hint=hint)
    return found


def _copy_of_state(op: Op, entry: int) -> Op:
    view = View(Tag.STATE, entry, 0, (1,) * len(op.extents))
    return Op(Kind.MAP, op.dtype, op.extents, (view,), instrs=(Instr(Code.MOV),), cumulative=op.cumulative)


def _with_op(program: Program, index: int, op: Op) -> Program:
    return replace(program, ops=(*program.ops[:index], op, *program.ops[index + 1 :]))


def _rewired(op: Op, at: int) -> Op:
    views = tuple(replace(v, index=v.index + 1) if v.tag == Tag.OP and v.index >= at else v for v in op.views)
    return replace(op, views=views)


def _counted(ops: Sequence[Op]) -> tuple[Op, ...]:
    total, counted = 0, []
    for op in ops:
        total += op.header.elements
        counted.append(replace(op, cumulative=total))
    return tuple(counted)


def _faster(table: Const, row: int) -> Const:
    """The table (rows of `row` words) with its rates half as large again: of several columns the smallest, for decays
    and corrections are near one and rates are not."""
    values = to_array(table.header, table.data).copy()
    columns = values.reshape(-1, max(row, 1))
    rates = int(np.abs(columns).mean(axis=0).argmin())
    columns[:, rates] *= np.float32(1.5)
    return Const(table.header, to_bytes(values))


def _rank_of_word(word: int) -> int:
    """Maps floats in order to consecutive integers: -inf .. -0 .. +0 .. +inf, -0 just below +0."""
    return word if word < scalar.SIGN else -1 - (word & ~scalar.SIGN & scalar.MASK)


def _word_of_rank(rank: int) -> int:
    return rank if rank >= 0 else scalar.SIGN | (-1 - rank)
