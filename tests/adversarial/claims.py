"""False claims about a toy job: what a slot, or who merges, computed otherwise than the Program says."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from typing import Any

import numpy as np

from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.chain.devnet import CHAIN_ID
from lockstep.demo.cheats.lies import Cheat, LyingRun, cheat_of, inserted, wrong_partials
from lockstep.disputes.player import Side
from lockstep.execution.jobs import ClaimRun, payload_of, slot_run
from lockstep.market.held import HeldClaim
from lockstep.market.replay import computed_word
from lockstep.numerics.arrays import StepContext, to_array, to_bytes
from lockstep.numerics.scalar import Opcode as Code
from lockstep.numerics.trace import StepTrace
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.openings import Levels
from lockstep.protocol.programs.program import Const, Instr, Program
from lockstep.protocol.types import Cid, Digest, GameId, Seconds, StateRoot
from tests.adversarial.cheat import Outcome, Story
from tests.adversarial.court import Court, Where, published, with_trace
from tests.adversarial.lies import (
    Array,
    Change,
    Lie,
    Lying,
    Written,
    at,
    by_program,
    changed,
    edits,
    lying,
    named,
    next_of,
    outputs_of,
    recomputed,
    starts,
    with_op,
    with_word,
    word,
    words,
    written,
)
from tests.support.toyjob import SIZE, STEPS, TERMS
from worker.progress import Material

ENCODE = STEPS + 1
TRAINING = range(1, ENCODE)
FIRST_MOMENT, SECOND_MOMENT = 4, 5
"""Entries of the state's carry quarter."""
Changes = Mapping[int, Callable[[Material], Material]]
"""What slots publish otherwise than they computed it."""
Liar = Callable[[ClaimRun, Court], ClaimRun]
"""(an honest run, its market) -> what is claimed instead."""


# -- how a claim is told and found out ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convicts:
    """One slot lies in round `r`, an honest verifier finds it, and its game ends where it was told."""

    liar: Liar
    r: int = 0

    def __call__(self, court: Court) -> Outcome:
        """Plays it, after `r` honest rounds."""
        court.rounds(*range(self.r))
        if self.r:
            court.seal(self.r)
        honest = court.run(0, self.r)
        liar = self.liar(honest, court)
        (claim, *_) = court.claim({0: liar}, r=self.r)
        (game,) = court.audit_and_play()
        assert court.convicted(claim)
        for event in court.log(game):
            if isinstance(event, moves.Convicted) and event.finding.wrong is moves.Wrong.OP:
                found = computed_word(HeldClaim(honest, ()).whole(event.finding.t), event.finding)
                assert found == event.finding.contract_word, "anybody computes it again"
        return game, drawn(liar)


def merges(lie: Liar) -> Story:
    """The merge of an honest round is a lie; whoever merged is convicted, and merges no more in this job."""

    def story(court: Court) -> Outcome:
        court.claim()
        claim = court.merge(lambda honest: lie(honest, court))
        assert set(court.audits()) == {claim}
        (game,) = court.audit_and_play()
        assert court.convicted(claim)
        assert court.contracts.market.barred(court.job_id, court.address(court.merger()))
        return game, drawn(court.held[claim].run)

    return story


def drawn(liar: ClaimRun) -> Where | None:
    """Where a lie of the demo says that its game must end."""
    if not isinstance(liar, LyingRun) or liar.cheat is None:
        return None
    expected = liar.cheat.expectation
    return Where(expected.step, expected.op_index, expected.element, expected.chunk, "op")


def silent(change: Callable[[Court, Material], Material]) -> Story:
    """One slot publishes what it cannot defend, and keeps silent: its clock convicts it."""

    def story(court: Court) -> GameId:
        (claim, *_) = court.claim(change={0: lambda material: change(court, material)})
        court.silent.add(claim)
        (game,) = court.audit_and_play()
        assert court.convicted(claim)
        return game

    return story


def posts(garbage: Callable[[StepTrace], StepTrace]) -> Story:
    """Step 2 of a right claim is challenged, and defended with a tree that has garbage in it.

    Nobody would do so on purpose: it shows that a verdict follows from what is posted, and that S_t alone saves nobody.
    """

    def story(court: Court) -> GameId:
        (claim, *_) = court.claim()
        assert court.audits() == {}, "every claim is right"
        honest = court.held[claim]
        game = court.open_at(claim, 2, "verifier")
        posted = HeldClaim(honest.run, honest.trace)
        posted.keep(2, garbage(honest.whole(2)))  # type: ignore[arg-type]
        defender = court.seat(game, Side.DEFENDER, posted, "worker-0").turn
        court.play(game, defender, court.challenger(game, honest))
        return game

    return story


def of(lie: Lie) -> Liar:
    """The run with that lie in it."""
    return lambda honest, _: lying(honest, lie)


def at_once(*liars: Liar, change: Changes | None = None) -> Callable[[Court], list[GameId]]:
    """The first slots lie, each otherwise, in one round; each has its own game."""

    def story(court: Court) -> list[GameId]:
        lies = {slot: liar(court.run(slot), court) for slot, liar in enumerate(liars)}
        claims = court.claim(lies, change=change)
        assert set(court.audits()) == set(claims[: len(liars)]), "a right claim is right without a list, too"
        played = court.audit_and_play()
        assert all(court.convicted(claim) for claim in claims[: len(liars)])
        return played

    return story


def tells(lie: Lie) -> Convicts:
    """The lie is told in slot 0 of round 0."""
    return Convicts(of(lie))


def demo(name: str, first: int = 0) -> Liar:
    """The demo's lie of that name; of those in step 1, the first from seed `first` on that S_1 does not round away."""

    return lambda honest, court: demo_lie(name, honest, first)[1]


def demo_lie(name: str, honest: ClaimRun, first: int = 0) -> tuple[Cheat, ClaimRun]:
    """Returns the demo's lie of that name, and the claim that tells it, as `demo` chooses them."""
    for seed in count(first):
        lie = cheat_of(name, honest.job.programs, honest.job.params, seed, CHAIN_ID)
        made = lie.run(honest)
        if lie.expectation.step > 1 or lie.stale or _first_root(made) != _first_root(honest):
            return lie, made
    raise AssertionError("there are always other seeds")


def _first_root(run: ClaimRun) -> StateRoot:
    return run.root(1, run.advance(1, run.start))


# -- words and tensors -------------------------------------------------------------------------------------------------


def flips(name: str, bit: int) -> Lie:
    """One bit of the moment `name` is flipped in step 3, after the step has used it."""
    return edits(3, {name: word(5, lambda old: old ^ 1 << bit)})


def puts(value: int) -> Lie:
    """That word stands for one element of the second moment, and the steps after go on from it."""
    return edits(1, {"v": word(2, lambda _: value)})


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


WORDS = {
    "NaN": 0x7FC00000, "NaN with a payload": 0xFFC0DEAD, "infinity": _bits(np.inf), "-infinity": _bits(-np.inf),
    "-0": _bits(-0.0), "smallest subnormal": 1, "largest subnormal": _bits(-np.finfo(np.float32).tiny) - 1,
}  # fmt: skip


def drawn_at_random(array: Array, step: StepTrace) -> Array:
    """Another tensor for every step."""
    return np.random.default_rng(step.context.t).normal(size=array.shape).astype(np.float32)


def nearer(array: Array, step: StepTrace) -> Array:
    """Every step ends a little nearer to weights of a spoofer's choice.

    Zhang et al. (2022), "Adversarial Examples for Proof-of-Learning": pick the final weights, then optimise a path
    whose single steps pass a threshold. Here there is no threshold.
    """
    tolerance = 1e-4
    moved = (array + np.float32(tolerance / 2) * np.sign(np.ones_like(array) - array)).astype(np.float32)
    assert np.abs(moved - array).max() < tolerance, "a verifier with a tolerance would accept it"
    return moved


MADE_UP = edits(TRAINING, dict.fromkeys(("m", "v", "p"), drawn_at_random))
SPOOFED = edits(TRAINING, {"p": nearer})


def poisoned(payload: Array, step: StepTrace) -> Array:
    """A hundred-thousandth of its length further in a direction of the attacker's choice."""
    direction = np.where(np.arange(payload.size) % 2, 1, -1).astype(np.float32)
    push = (np.float32(1e-5 * np.linalg.norm(payload)) * direction).reshape(payload.shape)
    moved = (payload + push).astype(np.float32)
    assert 0 < np.linalg.norm(moved - payload) < 1e-4 * np.linalg.norm(payload), "within any tolerance"
    return moved


def anothers_payload(honest: ClaimRun, court: Court) -> ClaimRun:
    """Honest steps, and then the payload that slot 1 computed."""
    *_, (_, final, _) = court.run(1).states()
    (theirs,) = payload_of(court.job, final)
    return lying(honest, edits(ENCODE, {"difference": lambda array, _: theirs.reshape(array.shape)}))


def interpolated(honest: ClaimRun, court: Court) -> ClaimRun:
    """Three steps of five are run; parameters and moments go in a straight line from S_0 to the state after them."""
    start: Any = honest.start
    end: Any = honest.state_before(4)

    def between(entry: int) -> Change:
        a, b = start[entry], end[entry]
        return lambda _, step: (a + np.float32(step.context.t / STEPS) * (b - a)).astype(np.float32)

    entries = {"m": FIRST_MOMENT, "v": SECOND_MOMENT, "p": 0}
    return lying(honest, edits(TRAINING, {name: between(entry) for name, entry in entries.items()}))


def other_entry(entry: int, shown: str | int) -> Lie:
    """In step 2 a state entry holds the output of another op (a name) or another tensor of S_{t-1} (a number)."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        other = step.output(named(step.program, shown)).array if isinstance(shown, str) else step.before[shown]
        after = tuple(other if k == entry else tensor for k, tensor in enumerate(next_of(step)))
        return written(step, outputs_of(step), after)

    return at(2, lie)


def ones(name: str) -> Callable[[StepTrace], StepTrace]:
    """Ones for the output of an op that no state entry names."""

    def garbage(step: StepTrace) -> StepTrace:
        place = named(step.program, name)
        outputs = tuple(np.ones_like(a) if i == place else a for i, a in enumerate(outputs_of(step)))
        return written(step, outputs, next_of(step))

    return garbage


@dataclass(frozen=True)
class Littered(StepTrace):
    """A step whose G holds garbage at one position, which must be EMPTY."""

    position: int = 0

    @cached_property
    def graph(self) -> Levels:
        """Levels over the 2^D leaves of G_t."""
        clean = super().graph
        leaves = [merkle.node_at(clean, 0, i) for i in range(1 << self.program.depth)]
        leaves[self.position] = Digest(b"\x47" * 32)
        return merkle.levels(leaves, self.program.depth)


def behind_the_ops(which: int) -> Callable[[Program], int]:
    """The first (0) or the last (-1) position between the ops and the state block."""
    return lambda program: range(len(program.ops), program.state_block)[which]


def litters(which: int) -> Callable[[StepTrace], StepTrace]:
    """Garbage there."""

    def garbage(step: StepTrace) -> StepTrace:
        place = behind_the_ops(which)(step.program)
        return Littered(step.program, step.before, step.made, step.context, step.rows, position=place)

    return garbage


# -- other Programs ----------------------------------------------------------------------------------------------------


def no_decay(program: Program) -> Program:
    """The first column of the optimizer's table, what a step leaves of a parameter, is 1."""
    table = next(i for i, c in enumerate(program.consts) if len(c.header.shape) == 2 and c.header.shape[1] == 2)
    values = to_array(program.consts[table].header, program.consts[table].data).copy()
    values[:, 0] = np.float32(1)
    consts = list(program.consts)
    consts[table] = Const(consts[table].header, to_bytes(values))
    return replace(program, consts=tuple(consts))


def other_beta(name: str, old: float, new: float) -> Lie:
    """The moment `name` with another constant."""

    def program(honest: Program) -> Program:
        index = named(honest, name)
        op = honest.ops[index]
        instrs = tuple(replace(i, imm=_bits(new)) if (i.op, i.imm) == (Code.IMM, _bits(old)) else i for i in op.instrs)
        assert instrs != op.instrs, "the constant is there"
        return with_op(honest, index, replace(op, instrs=instrs))

    return at(TRAINING, by_program(program))


def with_map(name: str, instrs: Sequence[Instr], shown: bool) -> Lie:
    """Whoever reads an op reads a map of it (registers: 0 the value, 1 its flat index); it is `shown` in its place."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace | None:
        place = named(step.program, name)
        hidden = place if shown else place + 1
        forged = by_program(lambda honest: inserted(honest, place, instrs), lambda op: op if op < hidden else op + 1)
        return forged(run, t, step)

    return lie


def payload(*instrs: Instr) -> Lie:
    """The difference that a payload is, changed."""
    return at(ENCODE, with_map("difference", instrs, shown=True))


NOISE = (Instr(Code.I2F, 1), Instr(Code.IMM, imm=_bits(0.001)), Instr(Code.FMUL, 2, 3), Instr(Code.FADD, 0, 4))
FLIPPED = (Instr(Code.FNEG, 0),)


def rounded(bits: int) -> Lie:
    """The gradient's product reads errors rounded to nearest even, `bits` bits of each word cut: 16 is bf16, 13 TF32.

    Rounding to nearest even adds half of what is cut, less one where the last kept bit is even.
    """
    instrs = (
        Instr(Code.IMM, imm=bits), Instr(Code.ISHR, 0, 2), Instr(Code.IMM, imm=1), Instr(Code.IAND, 3, 4),
        Instr(Code.IMM, imm=(1 << bits - 1) - 1), Instr(Code.IADD, 5, 6), Instr(Code.IADD, 0, 7),
        Instr(Code.IMM, imm=0xFFFFFFFF << bits & 0xFFFFFFFF), Instr(Code.IAND, 8, 9),
    )  # fmt: skip
    return at(TRAINING, with_map("error", instrs, shown=False))


def backwards(program: Program) -> Program:
    """The gradient's product from the last term to the first, in honest chunks."""
    fold = named(program, "gradient")
    features, error = program.ops[fold].views
    views = (
        replace(features, offset=TERMS - 1, strides=(*features.strides[:-1], -features.strides[-1])),
        replace(error, offset=TERMS - 1, strides=(*error.strides[:-1], -error.strides[-1])),
    )
    return with_op(program, fold, replace(program.ops[fold], views=views))


class NeighboursSlot(ClaimRun):
    """The computation of slot 1, claimed for another."""

    def context(self, t: int) -> StepContext:
        """The neighbour's."""
        return replace(super().context(t), slot=1)


def neighbours_slot(own: ClaimRun, court: Court) -> ClaimRun:
    """What the neighbour computed for its slot."""
    return NeighboursSlot(own.job, own.slot, own.round, own.seed, own.start)


# -- other states ------------------------------------------------------------------------------------------------------


def moments(first: float | None = None, second: float | None = None) -> Liar:
    """Each of the moments begins at that value in all its elements; None: as it should."""

    def liar(honest: ClaimRun, court: Court) -> ClaimRun:
        values = {FIRST_MOMENT: first, SECOND_MOMENT: second}
        return starts(honest, {k: lambda old, v=v: np.full_like(old, v) for k, v in values.items() if v is not None})

    return liar


def carry_of_round(r: int, slot: int = 0) -> Liar:
    """The moments with which a slot begins another round."""

    def liar(honest: ClaimRun, court: Court) -> ClaimRun:
        other = court.run(slot, r).start
        return starts(
            honest, {FIRST_MOMENT: lambda _: other[FIRST_MOMENT], SECOND_MOMENT: lambda _: other[SECOND_MOMENT]}
        )

    return liar


def leaping(honest: ClaimRun, court: Court) -> ClaimRun:
    """The right first moment, and a second one that lets the first step leap."""
    return starts(honest, {SECOND_MOMENT: lambda old: old * np.float32(1e-3)})


def stale_base(honest: ClaimRun, court: Court) -> ClaimRun:
    """Trained from the genesis instead of from what round 0 merged."""
    return slot_run(court.job, court.job.genesis, honest.seed, honest.round, honest.slot)


def omits(slot: int) -> Liar:
    """The merge with zeros in a slot's place, and a mask that says so."""

    def lie(honest: ClaimRun, court: Court) -> ClaimRun:
        payloads, lanes = len(honest.start) // 2, 1 << honest.job.params.role.slot_depth
        mask = word(slot, lambda _: 0)
        return starts(honest, {payloads + slot: np.zeros_like, payloads + lanes: lambda old: mask(old, None)})

    return lie


def doubled(honest: ClaimRun, court: Court) -> ClaimRun:
    """The merge of twice the state."""
    return starts(honest, dict.fromkeys(range(len(honest.start)), lambda old: old * 2))


# -- traces ------------------------------------------------------------------------------------------------------------


def random_roots(court: Court, m: Material) -> Material:
    """Random roots up to a true S_T: there is no G to defend the first of them with."""
    roots = (StateRoot(merkle.leaf(bytes([t]) * 32)) for t in range(len(m.roots) - 1))
    return with_trace(court, m, (*roots, m.roots[-1]))


def withholds(cid: Callable[[Court], Cid]) -> Story:
    """A liar withholds its list, and an honest claim withholds its own: one game, and it begins at the trace root."""

    def story(court: Court) -> GameId:
        hidden = published(cid(court))
        claims = court.claim({0: lying(court.run(0), flips("m", 4))}, change={0: hidden, 1: hidden})
        assert set(court.audits()) == {claims[0]}, "a right claim is right without a list, too"
        (game,) = court.audit_and_play()
        begins_at_the_root(court, game)
        return game

    return story


def damaged(court: Court) -> Cid:
    """A list of the right length that is nobody's trace."""
    return court.store.put(b"\x5a" * 32 * court.params.role.transitions)


def begins_at_the_root(court: Court, game: GameId) -> None:
    """The game does not name a transition when it is opened."""
    assert next(e for e in court.log(game) if isinstance(e, moves.Opened)).t == 0


# -- partials ----------------------------------------------------------------------------------------------------------

_CHUNK = 1


@dataclass(frozen=True)
class Padded(Written):
    """A step whose one gradient word is a lie, with partials that combine to it."""

    cell: tuple[int, int] = (0, 0)
    """(op, element)."""
    shown: tuple[int, ...] = ()

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """Of the lie: the words that were made up."""
        return list(self.shown) if (op, element) == self.cell else super().partials(op, element, group)


def made_up_for(run: Lying, t: int, step: StepTrace) -> Padded:
    """A gradient's element a little off, made up for by the partial of one chunk: the first that S_1 shows."""
    op = named(step.program, "gradient")
    for bit, element in product((0, 1, 2, 4, 8), range(SIZE)):
        off = int(words(step.output(op).array)[element]) ^ 1 << bit
        shown = wrong_partials(step.program.ops[op].mode, step.partials(op, element), _CHUNK, off)
        if shown is None:
            continue
        made = recomputed(run, changed(step, {op: with_word(step.output(op).array, element, off)}), op)
        if made.root != step.root:
            return Padded(
                step.program, step.before, made.made, step.context, step.rows, next=next_of(made), cell=(op, element),
                shown=shown,
            )  # fmt: skip
    raise AssertionError("no wrong gradient shows")


def partials(right: bool) -> Story:
    """Partials that combine to a lie are convicted at their chunk, where too few, too many and none are refused;
    `right`: right ones are posted, which do not combine to the claimed word."""

    def story(court: Court) -> Outcome:
        court.claim({0: lying(court.run(0), at(1, made_up_for))})
        claim, found = court.accused()
        step = court.held[claim].whole(1)
        assert isinstance(step, Padded)
        game, answers = court.open(claim, found), list[object]()
        defender = court.defender(game)

        def turn(now: Seconds) -> moves.Move | None:
            state, lie = games.read(court.contracts.game, game), list(step.shown)

            def post(words: Sequence[int]) -> Call:
                move = moves.PostPartials(state.standing, struct.pack(f">{len(words)}I", *words))
                return games.call(court.contracts.game, move, game)

            if state.phase != moves.GamePhase.PARTIALS or answers:
                return defender(now)
            if right:
                answers.append(court.send(post(found.held.step(1).partials(*step.cell, None)), "worker-0"))
                return moves.Resolve(state.standing)
            answers.extend(court.refused(post(bad), "worker-0") for bad in (lie[:-1], [*lie, 0], []))
            return defender(now)

        court.play(game, turn, court.challenger(game, found.held))
        assert right or answers == ["LengthWrong"] * 3
        return game, Where(1, *step.cell, moves.COMBINED if right else _CHUNK, "op")

    return story
