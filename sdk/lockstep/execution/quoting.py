"""Quotes the memory, traffic, time and money that a job takes of each party, before anyone pays.

    figures = figures_of(job, params, chain, threads=1, budget_seconds=20)
    figures.to_dict()               # `lockstep train quote --json`; docs/training.md has the fields

Everything except the time follows from the Programs and the terms. The time of a step is measured if the step fits this
machine and the budget, else estimated from this machine's rates; `how` states which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.base.amounts import tokens
from lockstep.base.machine import Memory, memory, readable
from lockstep.execution import footprint
from lockstep.execution.capacity import ChainPace, Pace, require_claimant, require_prompt, require_witness
from lockstep.execution.footprint import PROCESS_BYTES, ROLES, Need
from lockstep.execution.jobs import Job, JobPrograms, TrainingJob, slot_run
from lockstep.execution.rates import ProgramWork, rates, work_of
from lockstep.protocol.errors import Unfit
from lockstep.protocol.jobs import NO_JOB, NO_SEED, JobParams
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import Kind, Program
from lockstep.storage.containers import program_length
from lockstep.storage.payload import F32_FORMAT, Checkpoint, wire_length

SECONDS = 20.0
"""Default limit in seconds on measuring a step."""
RECEIPT_BYTES = 256
"""Bytes of a receipt as sent: speaker, mask, signature."""
ROOT_BYTES = 32
SHOWN = 3.0
"""Time to materialise a step for a game, in trained steps: ops are not fused, and each move runs its ops again."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one party transfers."""

    download: int
    upload: int


@dataclass(frozen=True)
class Timing:
    """The time of one step."""

    seconds: float
    shown_seconds: float
    """Seconds to materialise the step for a game, with the trees over all its tensors."""
    how: Literal["measured", "estimated"]
    operations: int
    tokens: int
    """Number of tokens that the step draws from the dataset."""
    threads: int


@dataclass(frozen=True)
class RoleVerdict:
    """Verdict on this machine's fitness for a role."""

    fits: bool
    why: str = ""
    """The requirement that the machine does not meet; empty if it is fit."""


@dataclass(frozen=True)
class Cost:
    """Amounts of a job, in the token's smallest unit."""

    escrow: int
    deposit: int
    slot_price: int
    merge_price: int
    witness_fees: int
    """Fees of all witnesses of one round."""
    slot_stake: int
    merge_stake: int
    witness_stake: int
    bond: int
    """Bond of a challenger, without the current gas of a game."""
    per_token: str
    """Escrow per token drawn, as a decimal; empty if none is drawn."""


@dataclass(frozen=True)
class Figures:
    """The figures of a quote."""

    trained: int
    """Number of parameters that the job trains."""
    frozen: int
    memory: dict[str, Need]
    """Peak memory by role."""
    machine: Memory
    once: int
    """Bytes that each party fetches at the start: Programs, dataset, first checkpoint."""
    round: dict[str, Traffic]
    """Traffic by role, in each round."""
    step: Timing
    round_seconds: float
    """Seconds for a slot's steps, its encoding and the check of one step."""
    train_seconds: int
    """Seconds that the job allows for them."""
    verdicts: dict[str, RoleVerdict]
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures as JSON: amounts are decimal strings, bytes and seconds numbers."""
        return {
            "parameters": {"trained": self.trained, "frozen": self.frozen},
            "memory": {role: {"total": need.total, **asdict(need)} for role, need in self.memory.items()},
            "machine": {"memory": self.machine.total, "available": self.machine.available},
            "traffic": {"once": self.once, "round": {role: asdict(t) for role, t in self.round.items()}},
            "step": asdict(self.step),
            "round": {"seconds": self.round_seconds, "train_seconds": self.train_seconds},
            "fits": {role: asdict(verdict) for role, verdict in self.verdicts.items()},
            "cost": {k: str(v) for k, v in asdict(self.cost).items()},
        }

    def lines(self) -> list[str]:
        """Returns the figures as lines of text for people."""
        needs = ", ".join(f"{role} {readable(need.total)}" for role, need in self.memory.items())
        moved = ", ".join(f"{r} {readable(t.download)} down, {readable(t.upload)} up" for r, t in self.round.items())
        here = "; ".join(f"no {r} here: {v.why}" for r, v in self.verdicts.items() if not v.fits) or "every role fits"
        frozen = f", {self.frozen:,} frozen" if self.frozen else ""
        each = ""
        if self.cost.per_token:
            each = f"; {tokens(round(float(self.cost.per_token) * 1e6), 3)} for a million tokens of the dataset"
        return [
            f"parameters   {self.trained:,} trained{frozen}",
            f"memory       {needs}",
            f"traffic      once {readable(self.once)}; a round: {moved}",
            f"step         {self.step.seconds:.3g} s {self.step.how} with {self.step.threads} thread(s)",
            f"             {self.step.operations:.3g} operations, {self.step.tokens:,} tokens",
            f"round        {self.round_seconds:.3g} s of {self.train_seconds} s",
            f"here         {here}",
            f"cost         escrow {tokens(self.cost.escrow)}, deposit {tokens(self.cost.deposit)}{each}",
            f"             slot {tokens(self.cost.slot_price)}, merge {tokens(self.cost.merge_price)}",
            f"stakes       slot {tokens(self.cost.slot_stake)}, merge {tokens(self.cost.merge_stake)}",
            f"             witness {tokens(self.cost.witness_stake)}, bond {tokens(self.cost.bond)}",
        ]


def figures_of(
    job: TrainingJob, params: JobParams, chain: ChainTimes, *, threads: int = 1, budget_seconds: float = SECONDS
) -> Figures:
    """Returns the figures of a job, which needs no weights; `chain` holds the times that the deployment promises."""
    held = memory()
    needs = {name: role(job.programs, params.role.slots) for name, role in ROLES.items()}
    step = _timing(job, params, needs["worker"], held, threads, budget_seconds)
    pace = Pace(step.seconds, step.shown_seconds, merge=estimated(job.programs, threads).merge)
    return Figures(
        trained=sum(_elements(p["shape"]) for p in job.parameters if "offset" in p),
        frozen=sum(_elements(p["shape"]) for p in job.parameters if "offset" not in p),
        memory=needs,
        machine=held,
        once=_once(job),
        round=_traffic(job, params),
        step=step,
        round_seconds=params.role.transitions * pace.step + pace.shown,
        train_seconds=params.role.train_seconds,
        verdicts=_verdicts(needs, held, params, pace, chain),
        cost=_cost(params, step.tokens),
    )


# -- time


def _timing(
    job: TrainingJob, params: JobParams, need: Need, held: Memory, threads: int, budget_seconds: float
) -> Timing:
    work, pace = work_of(job.programs.step), estimated(job.programs, threads)
    estimate = pace.step
    timing = Timing(estimate, pace.shown, "estimated", work.operations, drawn_tokens(job.programs.step), threads)
    room = held.available + PROCESS_BYTES - need.total
    # The first run is not counted, and an estimate may be wrong by a factor of two.
    if room < 0 or 4 * estimate > budget_seconds:
        return timing
    seconds = _tried(job, params, threads, budget_seconds)
    ratio = seconds / estimate
    return Timing(seconds, ratio * timing.shown_seconds, "measured", work.operations, timing.tokens, threads)


def estimated(programs: JobPrograms, threads: int, path: str = "auto") -> Pace:
    """Estimates a job's pace from this machine's measured rates, without running it."""
    work, machine = work_of(programs.step), rates(threads, path)
    shown = ProgramWork(work.products, work.terms, footprint.WORD_BYTES * programs.step.ops[-1].cumulative)
    seconds = machine.seconds(work)
    merged = machine.seconds(work_of(programs.merge))
    return Pace(seconds, max(SHOWN * seconds, machine.seconds(shown)), merge=merged)


def _tried(job: TrainingJob, params: JobParams, threads: int, budget_seconds: float) -> float:
    """Returns the seconds of the quickest of several first steps, with hashing, from random weights: values do not
    affect the time.
    """
    layout, draws = job.programs.merge.output_layout, np.random.default_rng(0)

    def tensors(part: Sequence[TensorHeader | None], scale: float) -> tuple[NDArray[np.float32], ...]:
        return tuple(np.float32(scale) * draws.standard_normal(h.shape, np.float32) for h in part if h is not None)

    start = Checkpoint(tensors(layout[params.sections.shared], 0.02), tensors(layout[params.sections.outer], 0.0))
    spec: Any = None
    run = slot_run(Job(NO_JOB, params, spec, job.programs, job.dataset.rows, start, threads), start, NO_SEED, 0, 0)
    step: Callable[[], object] = lambda: run.root(1, run.advance(1, run.start))  # noqa: E731 - timed below
    ends = time.monotonic() + budget_seconds
    step()
    taken: list[float] = []
    while not taken or (len(taken) < 3 and time.monotonic() + max(taken) < ends):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return min(taken)


def drawn_tokens(step: Program) -> int:
    """Returns the tokens, or numbers, of the dataset that one run of a step Program draws."""
    return sum(op.header.elements for op in step.ops if op.kind == Kind.DRAW)


# -- memory and windows


def _verdicts(
    needs: dict[str, Need], held: Memory, params: JobParams, pace: Pace, chain: ChainTimes
) -> dict[str, RoleVerdict]:
    promised = ChainPace(promised=float(chain.inclusion))

    def judged(role: str, *checks: Callable[[], None]) -> RoleVerdict:
        try:
            held.require(needs[role].total, PROCESS_BYTES)
            for check in checks:
                check()
        except Unfit as error:
            return RoleVerdict(False, error.message)
        return RoleVerdict(True)

    return {
        "worker": judged(
            "worker", lambda: require_claimant(params, pace, promised), lambda: require_prompt(params, pace)
        ),
        "verifier": judged(
            "verifier", lambda: require_witness(params, pace, promised) if params.role.witnesses else None
        ),
        "aggregator": judged("aggregator"),
    }


# -- traffic


def _traffic(job: TrainingJob, params: JobParams) -> dict[str, Traffic]:
    payload = footprint.payload_wire_bytes(job.programs, params, job.wire_format)
    beside = job.programs.encode.output_layout[params.sections.carried]
    carry = wire_length(beside, F32_FORMAT) if params.role.carries else 0
    base, trace = footprint.checkpoint_bytes(job.programs), ROOT_BYTES * params.role.transitions
    return {
        # A slot's owner fetches the others' payloads in order to attest them.
        "worker": Traffic(
            base + footprint.fetched_bytes(job.programs, params, job.wire_format),
            payload + carry + trace + RECEIPT_BYTES,
        ),
        # A verifier starts a replay from the previous round's carry.
        "verifier": Traffic(
            base + params.role.slots * (payload + carry + trace), RECEIPT_BYTES if params.role.witnesses else 0
        ),
        "aggregator": Traffic(params.role.slots * payload, base),
    }


def _once(job: TrainingJob) -> int:
    programs = (job.programs.step, job.programs.encode, job.programs.merge)
    tokens = job.dataset.row_count * job.dataset.row_tokens * job.dataset.token_bytes
    outputs = job.programs.merge.output_layout
    return sum(program_length(p) for p in programs) + tokens + sum(4 * h.elements for h in outputs if h)


# -- money


def _digits(value: Fraction) -> str:
    """Returns six significant digits without an exponent, which an amount in JSON must not have."""
    return format(Decimal(f"{float(value):.6g}"), "f")


def _cost(params: JobParams, tokens: int) -> Cost:
    drawn = params.schedule.rounds * params.role.slots * params.role.inner_steps * tokens
    return Cost(
        escrow=params.escrow,
        deposit=params.deposit,
        slot_price=params.role.slot_price,
        merge_price=params.merge.price,
        witness_fees=params.role.witnesses * params.role.witness_fee,
        slot_stake=params.role.slot_stake,
        merge_stake=params.merge.stake,
        witness_stake=params.prices.witness_stake,
        bond=params.prices.bond,
        per_token=_digits(Fraction(params.escrow, drawn)) if drawn else "",
    )


def _elements(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
