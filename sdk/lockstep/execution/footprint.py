"""The memory and the traffic of a job, by role, from its Programs alone: nothing is run, no tensor is made.

    need = worker(programs, slots)
    need.total                      # bytes, as the process stands at its fullest
    memory().require(need.total, PROCESS_BYTES)

A run holds its inputs, what it leaves, and an arena in which every other output lies from the op that writes it to its
last reader (numerics/kernels/planner.cpp plans it; the same code is asked here). Which states are alive beside it is
what the roles' loops keep: `jobs.ClaimRun.states`, `worker.computing.train`, `replay.PublicData`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from lockstep.base.machine import memory, readable
from lockstep.execution.box.confinement import OFFERED
from lockstep.numerics.built import kernels as _native
from lockstep.protocol.errors import ProgramInvalid, Unfit
from lockstep.protocol.merkle import HASH_BYTES, LEAF_ELEMENTS, TensorHeader, ceil_log2
from lockstep.protocol.programs.program import Program
from lockstep.storage.payload import fitting as format_fitting
from lockstep.storage.payload import wire_length

if TYPE_CHECKING:
    from lockstep.execution.jobs import ClaimSchedule
    from lockstep.protocol.jobs import JobParams

WORD_BYTES = 4
PROCESS_BYTES = 160_000_000
"""Interpreter, libraries and connections of one process without a job: 110 to 150 MB on Linux with Python 3.11."""
CHILD_BYTES = 50_000_000 if OFFERED else 0
"""The child that runs a job's Programs, beside what it computes on: its interpreter, its libraries' own data."""


@dataclass(frozen=True)
class ProgramMemory:
    """Memory of one run of a Program, in bytes."""

    arena: int
    """Outputs of ops that nothing outside reads, while somebody inside does."""
    results: int
    """The output state, without what it takes from the input."""
    shown: int
    """A game's need in place of `arena` and `results`: the roots of all ops, or one op's output and its operands; and
    one op's tree."""
    constants: int


@dataclass(frozen=True)
class Need:
    """Peak memory of a process, in bytes, by its use."""

    constants: int = 0
    """Constants of the Programs: tables, and the frozen parameters of an adapted model."""
    base: int = 0
    """The checkpoint that a round starts from: parameters and outer momentum."""
    states: int = 0
    payloads: int = 0
    """Decoded payloads of all slots that are kept."""
    arena: int = 0
    shown: int = 0
    """Memory to materialise one step for a game."""
    process: int = PROCESS_BYTES
    child: int = CHILD_BYTES

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def computing(self) -> int:
        """The part that lies where the job computes; a device's memory must hold it."""
        return self.total - self.process - self.child


Role = Callable[["ClaimSchedule", int], Need]
"""(Programs, slots) -> peak memory of one process in that role."""
Fits = Callable[["ClaimSchedule", "JobParams"], None]
"""Raises Unfit if a job cannot be held."""


@lru_cache(64)
def _bytes_of_run(header: bytes, descriptors: tuple[bytes, ...], constants: tuple[int, ...]) -> tuple[int, int, int]:
    try:
        return _native.bytes_of_run(header, descriptors, constants)
    except ValueError as error:
        raise ProgramInvalid(f"the Program cannot be run: {error}", hint="validate() names the rule") from error


def of_program(program: Program) -> ProgramMemory:
    """Returns the memory of one run of a Program; raises ProgramInvalid if it could not be run."""
    constants = tuple(c.header.elements for c in program.consts)
    arena, results, shown = _bytes_of_run(program.header, program.descriptors, constants)
    leaves = max((-(-op.header.elements // LEAF_ELEMENTS) for op in program.ops), default=0)
    # A tree has about two digests a leaf; those of one op are there at a time.
    return ProgramMemory(arena, results, shown + 2 * HASH_BYTES * leaves, WORD_BYTES * sum(constants))


def worker(programs: ClaimSchedule, slots: int) -> Need:
    """Memory of a worker, which trains a slot, defends its claim, and merges if the aggregator did not."""
    constants, base = _constants(programs), checkpoint_bytes(programs)
    payloads = slots * payload_bytes(programs, slots)
    return _fullest([*_of_slot(programs, constants, base, 0), *_of_merge(programs, constants, base, payloads)])


def verifier(programs: ClaimSchedule, slots: int) -> Need:
    """Memory of a verifier, which replays every claim, merges included, and plays the games about them."""
    return worker(programs, slots)


def aggregator(programs: ClaimSchedule, slots: int) -> Need:
    """Memory of an aggregator, which fetches the payloads of a round, merges them and defends the merge."""
    merge = of_program(programs.merge)
    payloads = slots * payload_bytes(programs, slots)
    return _fullest(_of_merge(programs, merge.constants, checkpoint_bytes(programs), payloads))


ROLES: dict[str, Role] = {"worker": worker, "verifier": verifier, "aggregator": aggregator}


@dataclass(frozen=True)
class Fitting:
    """A check that this machine has a role's memory; the processor runs a Program that no device can hold.

    Raises Unfit with the figure; `jobs.load` calls it before it fetches dataset and checkpoint.
    """

    role: Role
    limit: int | None = None
    """Bytes that the machine's owner lends; None: all."""

    def __call__(self, programs: ClaimSchedule, params: JobParams) -> None:
        """Raises Unfit if a job cannot be held."""
        self.judge(self.role(programs, params.role.slots).total)

    def judge(self, total: int) -> None:
        """Raises Unfit if so many bytes cannot be held."""
        if self.limit is not None and total > self.limit:
            raise Unfit(
                f"this job takes {readable(total)} of memory, and {readable(self.limit)} are lent",
                hint="raise --max-memory",
            )
        # The child has planned it by then.
        memory().require(total, PROCESS_BYTES + CHILD_BYTES)


def fitting(role: Role, limit: int | None = None) -> Fitting:
    """Returns the check of a role."""
    return Fitting(role, limit)


def checkpoint_bytes(programs: ClaimSchedule) -> int:
    """Returns the bytes of a checkpoint: shared and outer tensors as 4-byte words."""
    return _bytes(programs.merge.output_layout)


def payload_bytes(programs: ClaimSchedule, slots: int) -> int:
    """Returns the bytes of a slot's decoded payload, without the carry beside it; the merge is of `slots` slots."""
    width = len(programs.merge.inputs) // 4 >> ceil_log2(slots)
    return _bytes(programs.encode.output_layout[:width])


def payload_wire_bytes(programs: ClaimSchedule, params: JobParams, wire_format: str) -> int:
    """Returns the bytes of a slot's payload as it travels, without the carry beside it; the most where they vary."""
    layout = programs.encode.output_layout[params.sections.payload]
    return wire_length(layout, format_fitting(layout, wire_format), params.role.carries)


def fetched_bytes(programs: ClaimSchedule, params: JobParams, wire_format: str) -> int:
    """Returns the bytes of the others' payloads, which a slot's owner fetches in each round."""
    return (params.role.slots - 1) * payload_wire_bytes(programs, params, wire_format)


def _constants(programs: ClaimSchedule) -> int:
    # Mapped, and read by the executor where they are: once a machine, however many processes use them.
    return sum(of_program(p).constants for p in (programs.step, programs.encode, programs.merge))


def _of_slot(programs: ClaimSchedule, constants: int, base: int, payloads: int) -> list[Need]:
    """A slot's steps with its encoding, and a step as a game shows it."""
    step, encode = of_program(programs.step), of_program(programs.encode)
    # An executor keeps its arena and a state's buffers for its next run, until the job turns to another Program.
    return [
        # The state that is read and the one that is written; what came before is hashed and on disk by then.
        Need(constants, base, 2 * step.results, payloads, step.arena),
        Need(constants, base, step.results + encode.results, payloads, encode.arena),
        # A step as a game shows it, from the state before it.
        Need(constants, base, step.results, payloads, 0, step.shown),
    ]


def _of_merge(programs: ClaimSchedule, constants: int, base: int, payloads: int) -> list[Need]:
    """A merge, and the same as a game shows it."""
    merge = of_program(programs.merge)
    return [
        Need(constants, base, merge.results, payloads, merge.arena),
        Need(constants, base, 0, payloads, 0, merge.shown),
    ]


def _fullest(needs: Iterable[Need]) -> Need:
    return max(needs, key=lambda need: need.total)


def _bytes(layout: Sequence[TensorHeader | None]) -> int:
    return WORD_BYTES * sum(h.elements for h in layout if h is not None)
