"""Lies of an aggregator, for devnets alone: the merge's output is perturbed, and defended down to the leaf.

The lie is a Program that stands in for the merge Program: one op of it, a tensor of the next shared state, comes out
one ulp off in every element. It computes one tensor per honest op, so the liar's step tree has the honest shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from lockstep.base.settings import DEVNET_CHAIN_ID
from lockstep.execution.jobs import ClaimRun, Schedule, State
from lockstep.numerics.scalar import Op as Code
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import F32, Alias, Instr, Kind, Program

MAX_INSTRUCTIONS = 32
"""Of a map; the lie takes two."""


@dataclass(frozen=True)
class Expectation:
    """Where a game about the lie must end."""

    program: str
    step: int
    """t."""
    op_index: int
    op_kind: str
    op_name: str
    element: int | None = None
    """None: any (the first that differs)."""
    chunk: int | None = None
    verdict: str = "fraud"

    def to_dict(self) -> dict[str, Any]:
        """As it is written to stdout."""
        return asdict(self)


@dataclass(frozen=True)
class Cheat:
    """One lie about one job's merges."""

    name: str
    expectation: Expectation
    forged: Program
    """Runs in the place of the merge Program; the same ops but for one."""

    def run(self, honest: ClaimRun) -> ClaimRun:
        """The lying run of a merge."""
        return LyingRun(honest.job, honest.slot, honest.round, honest.seed, honest.start, cheat=self)


@dataclass(frozen=True)
class LyingRun(ClaimRun):
    """A merge's computation with a lie in it."""

    cheat: Cheat | None = None

    def advance(self, t: int, state: State) -> State:
        """The tensors of the checkpoint as the liar has them."""
        return self.compute(self._forged, t, state)

    def materialise(self, t: int, state: State) -> StepTrace:
        """What the liar shows of the merge: the forged Program's tensors under the honest Program's name."""
        return replace(self.show(self._forged, t, state), program=self.program(t))

    @property
    def _forged(self) -> Program:
        assert self.cheat is not None, "a lying run has a lie"
        return self.cheat.forged


def lying_aggregator(programs: Schedule, params: JobParams, random: Random) -> Cheat:
    """One tensor of the next shared state is one ulp off in every element."""
    merge = programs.merge
    shared = merge.outputs[: 1 << params.genesis.shared_depth]
    candidates = sorted({a.index for a in shared if a.kind == Alias.OP_KIND and _can_lie(merge, a.index)})
    if not candidates:
        raise UsageError("this job's merge has no map to lie in", hint="try another cheat")
    at = random.choice(candidates)
    op = merge.ops[at]
    result = len(op.views) + len(op.instrs) - 1
    off = (Instr(Code.IMM, imm=1), Instr(Code.IADD, result, result + 1))
    ops = (*merge.ops[:at], replace(op, instrs=op.instrs + off), *merge.ops[at + 1 :])
    expectation = Expectation("merge", 1, at, op.kind.name.lower(), merge.name_of(at))
    return Cheat("lying-aggregator", expectation, replace(merge, ops=ops))


CHEATS: dict[str, Callable[[Schedule, JobParams, Random], Cheat]] = {"lying-aggregator": lying_aggregator}


def check(name: str, chain_id: int) -> None:
    """Raises UsageError unless `name` is a lie and the chain a devnet."""
    # INVARIANT: lies run on devnets alone.
    if chain_id != DEVNET_CHAIN_ID:
        raise UsageError(
            f"cheats refuse chain {chain_id}", hint=f"LOCKSTEP_CHEAT is for devnets (chain {DEVNET_CHAIN_ID}); unset it"
        )
    if name not in CHEATS:
        raise UsageError(f"no cheat is called {name!r}", hint=f"one of {', '.join(CHEATS)}")


def named(environment: Mapping[str, str], chain_id: int) -> Callable[[Schedule, JobParams], Cheat] | None:
    """The lie that LOCKSTEP_CHEAT names, its place drawn from LOCKSTEP_CHEAT_SEED; None if it names none."""
    name = environment.get("LOCKSTEP_CHEAT", "none")
    if name in ("", "none"):
        return None
    check(name, chain_id)
    seed = environment.get("LOCKSTEP_CHEAT_SEED", "0")
    if not seed.isdecimal():
        raise UsageError(f"LOCKSTEP_CHEAT_SEED is {seed!r}", hint="a number")
    return lambda programs, params: cheat_of(name, programs, params, int(seed), chain_id)


def cheat_of(name: str, programs: Schedule, params: JobParams, seed: int, chain_id: int) -> Cheat:
    """The lie `name` about a job, its place drawn from `seed`; raises UsageError off devnets."""
    check(name, chain_id)
    return CHEATS[name](programs, params, Random(f"lockstep/{name}/{seed}"))


def _can_lie(program: Program, index: int) -> bool:
    op = program.ops[index]
    return op.kind == Kind.MAP and op.dtype == F32 and len(op.instrs) + 2 <= MAX_INSTRUCTIONS
