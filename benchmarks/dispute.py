"""Gas and transactions of direct games: one flip in every op kind of the three Programs of a GPT job, on Anvil.

    python benchmarks/dispute.py [--json] [--models gpt-0.1m ... gpt-124m llama-1.2b] [--products int8]
                                 [--hardest] [--largest]

No services: the worker's G_t has one wrong word, the challenger replays. Of each kind (and fold mode) the op that is
dearest to prove is taken. Of models that no machine here trains (benchmarks/lazy.py) leaves are made when a move shows
them, and each game is played twice: the defender lies, and the challenger. Receipts, hardfork Prague, so that
EIP-7623's calldata floor is counted in.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

# Run from a checkout: the arena is part of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import lazy
from benchmarks.float32 import WITHOUT_LIBRARY, Evm, evm, normal_operands
from benchmarks.limits import MAX_GAS, MAX_TRANSACTION_GAS, MAX_TRANSACTIONS
from lockstep.chain import games as chain_games
from lockstep.chain.devnet import HARDFORK
from lockstep.execution.jobs import (
    ClaimRun,
    Job,
    JobPrograms,
    carry_of,
    checkpoint_of,
    merge_run,
    payload_of,
    slot_run,
    subtree_root,
)
from lockstep.numerics import reference
from lockstep.numerics.scalar import Opcode as Code
from lockstep.numerics.trace import HashedContents, StepTrace, tensor_root
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import Game, game_id
from lockstep.protocol.dispute.honest import MaterialisedClaim
from lockstep.protocol.dispute.openings import CommittedTensor, Levels
from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import Receipt
from lockstep.protocol.market.prices import DEFENDER_GAS, GAME_GAS
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import (
    CHUNK,
    CODES,
    F32,
    I32,
    STOCHASTIC,
    Alias,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
)
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seed, StateRoot
from lockstep.storage.payload import INT8_FORMAT, Checkpoint
from tests.support import games
from tests.support.arena import CHALLENGE, Arena, Outcome, Terms, params_of

MAX_GROUP_GAS = 12_000
"""Gas of a qdot's group, beside the proof of its leaves."""
PRODUCTS = ("float32", "int8")
GROUP = 256
"""Codes of a qdot's largest group."""
SLOTS, INNER_STEPS, ROWS = 2, 1, 32


@dataclass(frozen=True)
class Row:
    """One game."""

    program: str
    op: int
    kind: str
    name: str
    elements: int
    terms: int
    element: int
    chunk: int
    convicted: bool
    exactly: bool
    """The finding names the op, element and chunk that were flipped; of a false challenge: that there is none."""
    transactions: int
    gas_total: int
    gas_max: int
    bytes: int
    """Bytes of all its transactions' data."""
    seconds: float
    """From the challenger's opening to the conviction, both sides' replay of the step and the chain included."""
    parameters: int
    gas: dict[str, list[int]]
    """By call."""


@dataclass
class FlippedStep:
    """An honest step with one wrong word in one op's output; a fold's wrong word comes of one wrong chunk."""

    honest: StepTrace
    op: int
    element: int
    chunk: int
    bits: int = 1

    @property
    def program(self) -> Program:
        return self.honest.program

    @property
    def prev(self) -> Levels:
        return self.honest.prev

    @cached_property
    def graph(self) -> Levels:
        leaves = [merkle.node_at(self.honest.graph, 0, i) for i in range(1 << self.program.depth)]
        leaves[self.op] = Digest(tensor_root(self._flipped.array))
        return merkle.levels(leaves)

    @cached_property
    def _flipped(self) -> HashedContents:
        array = self.honest.output(self.op).array.copy()
        array.reshape(-1).view(np.uint32)[self.element] = self.word
        return HashedContents(array)

    @cached_property
    def word(self) -> int:
        """The word that the claim gives the element."""
        described = self.program.ops[self.op]
        if described.chunks <= 1:
            return int(self.honest.output(self.op).words[self.element]) ^ self.bits
        return reference.joined(described.mode, self.partials(self.op, self.element, None))

    def output(self, op: int) -> CommittedTensor:
        return self._flipped if op == self.op else self.honest.output(op)

    def state(self, entry: int) -> CommittedTensor:
        return self.honest.state(entry)

    def dataset(self) -> CommittedTensor:
        return self.honest.dataset()

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        words = self.honest.partials(op, element, group)
        if (op, element) != (self.op, self.element):
            return words
        if not self.program.ops[op].is_grouped:
            words[self.chunk] ^= self.bits
        elif group is None:
            low = self.partials(op, element, self.chunk // CHUNK)
            words[self.chunk // CHUNK] = reference.combine(self.program.ops[op].mode, low)
        elif group == self.chunk // CHUNK:
            words[self.chunk % CHUNK] ^= self.bits
        return words


@dataclass
class Held:
    """A claim whose one step of interest is given; the others are honest."""

    run: ClaimRun
    trace: Sequence[StateRoot]
    state_zero: StateRoot
    flipped: dict[int, FlippedStep] = field(default_factory=dict)
    _steps: dict[int, StepTrace] = field(default_factory=dict)

    @property
    def carried(self) -> moves.Proof:
        return ()

    @staticmethod
    def of(run: ClaimRun) -> Held:
        return Held(run, [root for _, _, root in run.states()], run.root(0, run.start))

    def step(self, t: int) -> Any:
        return self.flipped.get(t) or self.honest(t)

    def honest(self, t: int) -> StepTrace:
        if t not in self._steps:
            self._steps[t] = self.run.materialise(t, self.run.state_before(t))
        return self._steps[t]


def dearest(program: Program) -> Iterator[int]:
    """For each kind (and fold mode) of op in a Program, the index of the op that takes most to prove."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for i, op in enumerate(program.ops):
        kinds.setdefault((op.kind, op.mode), []).append(i)
    for _, indices in sorted(kinds.items()):
        yield max(indices, key=lambda i: _price(program.ops[i]))


def _price(op: Op) -> tuple[int, int, int, int]:
    opened, terms = sum(v.tag < Tag.IOTA for v in op.views), min(op.k_terms, CHUNK)
    if op.is_qdot:
        terms = CODES * op.p0
    elif op.kind == Kind.QUANT:
        # Rounded stochastically it draws two words more.
        terms = min(CODES * op.p0, op.k_extents[0]) + (op.p1 >= STOCHASTIC)
    return terms, opened, len(op.instrs) + op.k_terms, op.header.elements


def kind_of(op: Op) -> str:
    """ "map", "fold dot", "quant codes", ..."""
    modes: dict[Kind, type[Fold | Quant]] = {Kind.FOLD: Fold, Kind.QUANT: Quant}
    kind = Kind(op.kind)
    mode = f" {modes[kind](op.mode).name.lower()}" if kind in modes else ""
    return kind.name.lower() + mode


def flip(honest: StepTrace, op: int) -> FlippedStep:
    """A wrong word in the middle of an op's output: the lowest bit that its fold does not round away."""
    described = honest.program.ops[op]
    chunk = max(described.chunks - 2, 0)
    middle = described.header.elements // 2
    for bits in (1 << i for i in range(31)):
        flipped = FlippedStep(honest, op, middle, chunk, bits)
        if flipped.word != int(honest.output(op).words[middle]):
            return flipped
    raise AssertionError(f"no flip of op {op} shows")


def play(
    arena: Arena,
    name: str,
    claim: ClaimId,
    held: Held,
    t: int,
    op: int,
    due: moves.Verdict = moves.Verdict.FRAUD,
) -> Row:
    """One game on a claim, after which the chain is as before; FRAUD is due where the defender lies, REJECTED where the
    challenger does."""
    mark = arena.devnet.snapshot()
    # Nothing is kept of earlier games: each side materialises the step for this one.
    held._steps.clear()
    begun = time.monotonic()
    flipped = flip(held.honest(t), op)
    liar = Held(held.run, held.trace, held.state_zero, {t: flipped}, held._steps)
    known = chain_games.claim(arena.contracts.market, claim, arena.bodies[claim])
    opening = games.open_at(known, held, t)
    defender, challenger = (liar, held) if due == moves.Verdict.FRAUD else (held, liar)
    outcome = arena.play(opening, games.defends(defender), challenging(arena, opening, challenger, due))
    seconds = time.monotonic() - begun
    arena.devnet.revert(mark)
    return _row(name, flipped.program, flipped, outcome, seconds, flipped.state(0).header.elements, due)


def _row(
    name: str,
    program: Program,
    place: FlippedStep | lazy.Place,
    outcome: Outcome,
    seconds: float,
    parameters: int,
    due: moves.Verdict = moves.Verdict.FRAUD,
) -> Row:
    op, found = program.ops[place.op], outcome.finding
    if due == moves.Verdict.FRAUD:
        exactly = found is not None and (
            (found.wrong, found.position, found.element, found.chunk, found.program)
            == (moves.Wrong.OP, place.op, place.element, place.chunk, program.root)
        )
    else:
        exactly = found is None and outcome.verdict == due
    gas: dict[str, list[int]] = {}
    for spent in outcome.spent:
        gas.setdefault(spent.call.split(".")[1], []).append(spent.gas)
    return Row(
        name, place.op, kind_of(op), program.name_of(place.op), op.header.elements, op.k_terms, place.element,
        place.chunk, outcome.verdict == moves.Verdict.FRAUD, exactly, len(outcome.spent), outcome.gas, outcome.worst,
        sum(spent.bytes for spent in outcome.spent), seconds, parameters, gas,
    )  # fmt: skip


# -- the job -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The GPT that is trained."""

    layers: int = 4
    width: int = 128
    context: int = 64
    rows: int = 8
    products: str = "float32"
    """The arithmetic of the model's products: "float32" or "int8"."""


def job_of(shape: Shape) -> Job:
    """A GPT job with its three Programs, random tokens and random parameters."""
    import torch

    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models.gpt import GPT, GPTConfig
    from lockstep.training.parameters import initial_parameters
    from lockstep.training.strategies import diloco

    config = GPTConfig(context=shape.context, layers=shape.layers, width=shape.width)
    model = GPT(config)

    def loss(called: Any, rows: torch.Tensor) -> torch.Tensor:
        logits = called(rows[:, :-1])
        return torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocabulary), rows[:, 1:].reshape(-1))

    batch = Batch(rows=shape.rows, row_length=shape.context + 1)
    spec = diloco.DiLoCo(inner_steps=INNER_STEPS, payload=INT8_FORMAT)
    built = build_programs(model, loss, spec, batch=batch, rounds=1, slots=SLOTS, arithmetic=Arithmetic(shape.products))
    flat = initial_parameters(model, 0)
    dataset = np.random.default_rng(0).integers(0, config.vocabulary, (ROWS, shape.context + 1), dtype=np.int32)
    genesis = Checkpoint((flat,), (np.zeros_like(flat),))
    schedule = JobPrograms(built.step, built.encode, built.merge)
    # A game reads nothing of the spec, and roots follow from the parts: the parameters are made last.
    unplaced: Any = None
    job = Job(JobId(bytes(32)), _shapes(), unplaced, schedule, dataset, genesis)
    return Job(JobId(bytes(32)), params_of(terms_of(job), SLOTS), unplaced, schedule, dataset, genesis)


def hardest_job() -> Job:
    """Tensors of 2^20 elements, a G of depth 10: a map of six operands, 32 instructions and eight functions, and a fold
    whose chunks lie across two leaves of each operand."""
    n, filler = 1 << 20, 505
    copies = [Op(Kind.MAP, F32, (n,), (View(Tag.STATE, k, 0, (1,)),), instrs=(Instr(Code.MOV, 0),)) for k in range(6)]
    small = [Op(Kind.MAP, F32, (), (), instrs=(Instr(Code.IMM, imm=i),)) for i in range(filler)]
    reads = tuple(View(Tag.OP, k, 0, (1,)) for k in range(6))
    functions = [Instr(Code.FTANH, k) for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    chained = [Instr(Code.FFMA, 6 + i, i % 6, 13) for i in range(24)]
    dot = (View(Tag.OP, 0, 100, (4096, 1)), View(Tag.OP, 1, 57, (0, 1)))
    ops = (
        *copies, *small, Op(Kind.MAP, F32, (n,), reads, instrs=(*functions, *chained)),
        Op(Kind.FOLD, F32, (200,), dot, (4096,), Fold.DOT),
    )  # fmt: skip
    vector = TensorHeader(F32, (n,))
    inputs = (vector, vector, vector, vector, vector, vector, TensorHeader(I32, ()), None)
    outputs = (Alias(1, len(ops) - 2), *(Alias(2, k) for k in range(1, 7)), Alias(0))
    encode = Program((copies[0],), inputs, (Alias(1, 0), Alias(0)))
    schedule = JobPrograms(Program(ops, inputs, outputs), encode, encode)
    values = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    genesis = Checkpoint((values[0], values[1]), (values[0], values[1]))
    dataset = np.zeros((ROWS, 4), dtype=np.int32)
    unplaced: Any = None
    return Job(JobId(bytes(32)), _shapes(), unplaced, schedule, dataset, genesis)


def run_hardest(arena: Arena) -> Iterator[Row]:
    """The two dearest proofs that the validator admits, at the size that a game must afford."""
    job = hardest_job()
    runs: dict[int, Held] = {}

    def trace(seed: Seed, slot: int) -> Sequence[StateRoot]:
        if 0 not in runs:
            runs[0] = Held.of(slot_run(job, job.genesis, seed, 0, 0))
        return runs[0].trace

    def out(slot: int) -> tuple[StateRoot, StateRoot]:
        last = runs[0].honest(2)
        return StateRoot(merkle.node_at(last.graph, 0, 2)), StateRoot(merkle.EMPTY[0])

    claims = arena.claims(terms_of(job), SLOTS, trace, out)
    program = job.programs.step
    for op in (len(program.ops) - 2, len(program.ops) - 1):
        yield play(arena, "hardest", claims[0], runs[0], 1, op)


def _shapes() -> Any:
    from types import SimpleNamespace

    role = SimpleNamespace(payload_depth=0, slots=SLOTS, carry_period=0, inner_steps=INNER_STEPS)
    return SimpleNamespace(genesis=SimpleNamespace(shared_depth=1), role=role, sections=Sections(1, 0, SLOTS))


def terms_of(job: Job) -> Terms:
    """Returns the job's terms as the market takes them."""
    shared = subtree_root(job.programs.step.inputs[:2], job.genesis.shared)
    outer = subtree_root((job.programs.step.inputs[0], None), job.genesis.outer[:1])
    start = slot_run(job, job.genesis, Seed(bytes(32)), 0, 0)
    zero_carry = start.materialise(1, start.start).prev[1][2]
    rows, length = job.dataset.shape
    programs = job.programs
    return Terms(
        programs.step, programs.encode, programs.merge, tensor_root(job.dataset), rows, length, StateRoot(shared),
        StateRoot(outer), StateRoot(zero_carry), 1, 0, INNER_STEPS,
    )  # fmt: skip


def run(
    shape: Shape, arena: Arena, ops_of: Callable[[Program], Iterable[int]] = dearest, *, both: bool = False
) -> Iterator[Row]:
    """One game about each op that `ops_of` names of each Program, with a defender who lies; `both`: and one with a
    challenger who does."""
    dues = (moves.Verdict.FRAUD, moves.Verdict.REJECTED) if both else (moves.Verdict.FRAUD,)
    job = job_of(shape)
    runs: dict[int, ClaimRun] = {}
    ends: dict[int, Any] = {}

    def trace(seed: Seed, slot: int) -> Sequence[StateRoot]:
        runs[slot] = slot_run(job, job.genesis, seed, 0, slot)
        roots = []
        for _, state, root in runs[slot].states():
            roots.append(root)
            ends[slot] = state
        return roots

    def out(slot: int) -> tuple[StateRoot, StateRoot]:
        out, out2 = job.payload_roots(payload_of(job, ends[slot]), carry_of(job, ends[slot]))
        return StateRoot(out), StateRoot(out2)

    claims = arena.claims(terms_of(job), SLOTS, trace, out)
    held = Held.of(runs[0])
    for name, t in (("step", 1), ("encode", 2)):
        for op in ops_of(held.honest(t).program):
            for due in dues:
                yield play(arena, name, claims[0], held, t, op, due)

    merging = merge_run(job, job.genesis, [payload_of(job, ends[s]) for s in range(SLOTS)], runs[0].seed, 0)
    final = next(state for _, state, _ in merging.states())
    shared, outer = job.checkpoint_roots(checkpoint_of(job, final))
    merged = arena.merge(arena.last_job(), StateRoot(shared), StateRoot(outer))
    held = Held.of(merging)
    for op in ops_of(held.honest(1).program):
        for due in dues:
            yield play(arena, "merge", merged, held, 1, op, due)


MODELS = {
    "gpt-0.1m": Shape(layers=2, width=64, context=32, rows=4),
    "gpt-0.8m": Shape(layers=4, width=128, context=64, rows=8),
    "gpt-10m": Shape(layers=6, width=384, context=64, rows=4),
}
BATCHES = (3, 16)
"""Slots of a round whose receipts are sent one by one, and together."""
ROUND = ("startRound", "join", "seal", "commit", "reveal", "attest", "freeze", "merge", "finalize")
"""The market's verbs in a round."""


def run_lazy(size: lazy.Size, arena: Arena, products: str = "float32") -> Iterator[Row]:
    """Two games for each kind of op of a model's step, and two about its largest tensor. No tensor is made."""
    made = lazy.traced(size, 1, SLOTS, INNER_STEPS, products)
    largest = max(range(len(made.step.ops)), key=lambda op: made.step.ops[op].header.elements)
    rows, _ = lazy.dataset_of(size.row_length, ROWS)
    yield from _both_ways(arena, made, rows, (*dearest(made.step), largest))


def run_largest(arena: Arena) -> Iterator[Row]:
    """The dearest games that the validator admits: about codes, a qdot, a map and a dot."""
    program = lazy.largest_program()
    copy = Program((program.ops[0],), program.inputs, (Alias(Alias.OP_KIND, 0), Alias(0)))
    made = lazy.Traced(program, copy, copy, 1, 0, (1 << 31) - 1)
    rows, _ = lazy.dataset_of(4, ROWS)
    yield from _both_ways(arena, made, rows, range(len(program.ops) - 4, len(program.ops)))


def _both_ways(arena: Arena, made: lazy.Traced, rows: np.ndarray, ops: Sequence[int]) -> Iterator[Row]:
    """A game about each op with a defender who lies, then one with a challenger who does."""
    program, sections = made.step, Sections(made.shared_depth, made.payload_depth, SLOTS)
    start = lazy.start_of(program)
    shared, carry = (lazy.roots_of(start[section]) for section in (sections.live, sections.carry))
    terms = Terms(
        program, made.encode, made.merge, tensor_root(rows), rows.shape[0], rows.shape[1], shared, shared, carry,
        made.shared_depth, made.payload_depth, INNER_STEPS,
    )  # fmt: skip
    # What the claim ends in no game is about.
    out, out2 = StateRoot(merkle.EMPTY[0]), StateRoot(merkle.EMPTY[1])
    last = StateRoot(merkle.node(out, out2))
    for op in ops:
        held: list[lazy.LazyClaim] = []

        def trace(seed: Seed, slot: int, op: int = op, held: list[lazy.LazyClaim] = held) -> Sequence[StateRoot]:
            step = lazy.LazyStep(program, rows, seed, lazy.place_of(program, op))
            held.append(lazy.LazyClaim(step, [step.root, last]))
            return held[-1].trace

        claims = arena.claims(terms, SLOTS, trace, lambda slot: (out, out2))
        honest, lying = held[0], lazy.LazyClaim(lazy.lie_of(held[0].first), held[0].trace)
        for defender, challenger, due in (
            (lying, honest, moves.Verdict.FRAUD),
            (honest, lying, moves.Verdict.REJECTED),
        ):
            mark, begun = arena.devnet.snapshot(), time.monotonic()
            known = chain_games.claim(arena.contracts.market, claims[0], arena.bodies[claims[0]])
            opening = games.open_at(known, challenger, 1)
            outcome = arena.play(opening, games.defends(defender), challenging(arena, opening, challenger, due))
            seconds = time.monotonic() - begun
            yield _row("step", program, honest.first.place, outcome, seconds, made.parameters, due)
            arena.devnet.revert(mark)


def challenging(arena: Arena, opening: moves.Open, held: MaterialisedClaim, due: moves.Verdict) -> games.Policy:
    """Points at the first difference from `held`. A challenger who is wrong comes as far as the proof, which the
    contract must refuse: its clock runs out."""
    game = game_id(opening.claim, Address(arena.challenger.address), opening.nonce)
    points = games.challenges(held)

    def choose(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        move = points(state, log)
        if due == moves.Verdict.FRAUD or not isinstance(move, moves.ProveOp):
            return move
        try:
            arena.send(chain_games.call(arena.contracts.game, move, game), arena.challenger)
        except ChainError as refused:
            if "EqualBits" not in str(refused):
                raise
            return None
        raise AssertionError("a wrong challenge was proved")

    return choose


def result(model: str, parameters: int, products: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The worst of a model's games, number by number; `ratio` is the dearest game by the limit."""
    gas = max(row.gas_total for row in rows)
    return {
        "model": model, "parameters": parameters, "games": len(rows),
        "transactions": max(row.transactions for row in rows), "gas_total": gas,
        "gas_max": max(row.gas_max for row in rows), "bytes": max(row.bytes for row in rows),
        "seconds": round(max(row.seconds for row in rows), 2), "convicted_exactly": all(row.exactly for row in rows),
        "ratio": round(gas / MAX_GAS[products], 3),
    }  # fmt: skip


def settle(arena: Arena) -> dict[str, Any]:
    """Ends the round that `run` left merged; what an honest claim and a slot of a settled round cost."""
    arena.devnet.advance(CHALLENGE)
    arena.send(arena.contracts.market.call("finalize", arena.last_job(), 0), arena.worker)
    spent: dict[str, list[int]] = {}
    for one in arena.spent:
        contract, call = one.call.split(".")
        if contract == "JobMarket" and call in ROUND:
            spent.setdefault(call, []).append(one.gas)
    a_slot = sum(map(sum, spent.values())) / SLOTS
    return {
        "commit": max(spent["commit"]), "reveal": max(spent["reveal"]), "slots": SLOTS,
        "settled_round_per_slot": round(a_slot),
    }  # fmt: skip


def receipts() -> list[dict[str, Any]]:
    """Gas of the receipts for a round: a transaction each, and one with all of them."""
    terms = terms_of(job_of(MODELS["gpt-0.1m"]))
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena.start(Path(folder))
        try:
            return [_receipts(arena, terms, slots) for slots in BATCHES]
        finally:
            arena.stop()


def _receipts(arena: Arena, terms: Terms, slots: int) -> dict[str, Any]:
    """`ratio` is what the one transaction costs of the many."""
    out, out2 = StateRoot(merkle.EMPTY[0]), StateRoot(merkle.EMPTY[1])
    # A reveal says that the last root is of the outputs; what was trained nobody asks here.
    roots = [out] * terms.inner_steps + [StateRoot(merkle.node(out, out2))]
    arena.claims(terms, slots, lambda seed, slot: roots, lambda slot: (out, out2))
    job, market = arena.last_job(), arena.contracts.market
    attempt, everything = market.round(job, 0).attempt, (1 << slots) - 1
    given = arena.contracts.sign_receipts(arena.worker, job, 0, attempt, everything, range(slots))

    def gas(batches: Sequence[Sequence[Receipt]]) -> int:
        mark, before = arena.devnet.snapshot(), len(arena.spent)
        for batch in batches:
            arena.send(market.attest(job, 0, batch), arena.worker)
        arena.devnet.revert(mark)
        return sum(one.gas for one in arena.spent[before:])

    each, together = gas([[one] for one in given]), gas([given])
    return {
        "slots": slots, "one_by_one": each, "together": together, "saved_per_slot": (each - together) // slots,
        "ratio": round(together / each, 3),
    }  # fmt: skip


def arithmetic() -> dict[str, float]:
    """Mean gas on the EVM: a multiplication with addition, an exponential, all maps of one AdamW element, and a group
    of 256 products of codes."""
    program = job_of(MODELS["gpt-0.1m"]).programs.step
    moved = [program.ops[alias.index] for alias in program.outputs if alias.kind == Alias.OP_KIND]
    maps = [op for op in moved if op.kind == Kind.MAP and op.header.elements > 1]
    codes = [Code(instr.op) for op in maps for instr in op.instrs]
    with evm() as chain:
        gas = {
            code: float(chain.gas(code, *normal_operands(code, 1000, 0)).mean())
            for code in {*codes, Code.FFMA, Code.FEXP} - WITHOUT_LIBRARY
        }
        group = group_gas(chain, 300)
    element = sum(gas.get(code, 0.0) for code in codes)
    return {"fma": gas[Code.FFMA], "exp": gas[Code.FEXP], "adamw_element": round(element, 1), **group}


def group_gas(chain: Evm, count: int) -> dict[str, float]:
    """Gas of a group of 256 random codes and two scales beside the proof of its leaves: the mean and the most."""
    rng = np.random.default_rng(0)
    held = np.concatenate(
        [
            rng.integers(-127, 128, (count, 2 * GROUP)).astype(np.int8).view(np.uint8),
            rng.standard_normal((count, 2)).astype(">f4").view(np.uint8).reshape(count, 8),
        ],
        axis=1,
    )
    gas = chain.with_harness("CodesHarness").read("gasUsed(uint256,bytes)", GROUP, held.tobytes())
    return {"qdot_group": round(float(gas.mean()), 1), "qdot_group_max": int(gas.max())}


def measure(names: Sequence[str], products: str, *, quiet: bool) -> dict[str, Any]:
    """Every game of the named models, on a chain each."""
    results, rows, claims = [], [], {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            arena = Arena.start(Path(folder))
            try:
                games_ = []
                small = name in MODELS
                if small:
                    played = run(replace(MODELS[name], products=products), arena)
                else:
                    played = run_lazy(lazy.SIZES[name], arena, products)
                for row in played:
                    games_.append(row)
                    if not quiet:
                        _print(row)
                if small:
                    claims[name] = settle(arena)
            finally:
                arena.stop()
        results.append(result(name, games_[0].parameters, products, games_))
        rows += games_
    return {
        "hardfork": HARDFORK, "products": products, "results": results, "claims": claims, "receipts": receipts(),
        "arithmetic": arithmetic(), "games": [asdict(row) for row in rows],
    }  # fmt: skip


def main() -> None:
    """Prints the tables, or with --json one line. Exit 1 if a flip is not convicted or a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *lazy.SIZES], default=[*MODELS, *lazy.SIZES])
    parser.add_argument(
        "--products", choices=PRODUCTS, default="float32", help="the arithmetic of the models' products"
    )
    parser.add_argument("--hardest", action="store_true", help="also the two dearest proofs that a validator admits")
    parser.add_argument("--largest", action="store_true", help="also the dearest games that a validator admits")
    given = parser.parse_args()
    data = measure(given.models, given.products, quiet=given.json)
    over = [r["model"] for r in data["results"] if not (r["convicted_exactly"] and within(r, given.products))]
    if data["arithmetic"]["qdot_group_max"] > MAX_GROUP_GAS:
        over.append("a group of a qdot")
    if given.hardest:
        with tempfile.TemporaryDirectory() as folder:
            arena = Arena.start(Path(folder))
            try:
                hardest = list(run_hardest(arena))
            finally:
                arena.stop()
        data["hardest"] = [asdict(row) for row in hardest]
        over += [row.kind for row in hardest if not (row.exactly and within(asdict(row), "float32"))]
        if not given.json:
            for row in hardest:
                _print(row)
    if given.largest:
        with tempfile.TemporaryDirectory() as folder:
            arena = Arena.start(Path(folder))
            try:
                largest = list(run_largest(arena))
            finally:
                arena.stop()
        data["largest"] = [asdict(row) | {"defender": defenders(row)} for row in largest]
        over += [
            row.kind for row in largest
            if not row.exactly or row.gas_total > GAME_GAS or defenders(row) > DEFENDER_GAS
        ]  # fmt: skip
        if not given.json:
            for row in largest:
                _print(row)
    if given.json:
        print(json.dumps({"ok": not over, "data": data}))
    else:
        for key in ("results", "claims", "receipts", "arithmetic"):
            print(f"{key}: {json.dumps(data[key])}")
    if over:
        sys.exit(f"beyond a limit, or not convicted where the flip is: {', '.join(over)}")


def defenders(row: Row) -> int:
    """Gas of the defender's moves."""
    return sum(sum(row.gas.get(call, ())) for call in ("defend", "reveal", "revealTensor", "postLeaf", "postPartials"))


def within(row: Mapping[str, Any], products: str) -> bool:
    """Returns True if games keep the limits."""
    limits = {"transactions": MAX_TRANSACTIONS, "gas_total": MAX_GAS[products], "gas_max": MAX_TRANSACTION_GAS}
    return all(row[name] <= limit for name, limit in limits.items())


def _print(row: Row) -> None:
    place = f"{row.program} op {row.op} {row.kind}"
    shape = f"{row.elements} elements" + (f" of {row.terms} terms" if row.terms else "")
    right = "convicted exactly" if row.convicted else "a false challenge, rejected"
    verdict = right if row.exactly else "NOT WHAT IS DUE"
    spent = f"{row.transactions:3} tx {row.gas_total:9,} gas, worst {row.gas_max:8,}"
    print(f"{place:28} {shape:34} {spent}  {verdict}", flush=True)


if __name__ == "__main__":
    main()
