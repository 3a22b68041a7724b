"""Estimates a job's memory and traffic by role from only its Programs, without running or allocating anything.

    need = worker(programs, slots)
    need.total                      # bytes, at the process's peak
    memory().require(need.total, PROCESS_BYTES)
    share = Fitting(worker, path="cuda:0").share(programs, params)
    share.total                     # bytes of the device at its fullest
    share.need(worker, programs, slots).total   # bytes that are left to this machine's memory

A run holds its inputs, its results, and an arena with every other output from the op that writes it to its last reader.
numerics/kernels/plan/ plans the arena, and is used here too. The states that are alive in addition are those of the
roles' loops: `jobs.ClaimRun.states`, `worker.computing.train`, `replay.PublicData`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from lockstep.base.machine import Memory, memory, readable
from lockstep.execution.box.confinement import OFFERED
from lockstep.execution.jobs import PROCESSOR_PATHS
from lockstep.numerics import cuda
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.cuda.loaded import STATES, DeviceNeed, available, planned
from lockstep.numerics.resident import DeviceFailed
from lockstep.protocol.errors import ProgramInvalid, Unfit, UsageError
from lockstep.protocol.merkle import HASH_BYTES, LEAF_ELEMENTS, TensorHeader, ceil_log2
from lockstep.protocol.programs.program import Kind, Program
from lockstep.storage.payload import fitting as format_fitting
from lockstep.storage.payload import wire_length

if TYPE_CHECKING:
    from lockstep.execution.jobs import Job, JobPrograms
    from lockstep.numerics.cuda.device import Device
    from lockstep.protocol.jobs import JobParams

WORD_BYTES = 4
PROCESS_BYTES = 160_000_000
"""Bytes of a process without a job (interpreter, libraries, connections): 110 to 150 MB on Linux with Python 3.11."""
CHILD_BYTES = 50_000_000 if OFFERED else 0
"""Bytes of the child that runs a job's Programs, without the data it computes on: interpreter and libraries."""


@dataclass(frozen=True)
class ProgramMemory:
    """Memory of one run of a Program, in bytes."""

    arena: int
    """Bytes of outputs that are only read inside of the Program."""
    results: int
    """Bytes of the output state, without entries taken over from the input."""
    shown: int
    """Bytes for a game in place of `arena` and `results`: the roots of all ops, or one op's output and operands; and
    one op's tree.
    """
    constants: int


@dataclass(frozen=True)
class Need:
    """Peak memory of a process, in bytes, by its use."""

    constants: int = 0
    """Constants of the Programs: tables, and frozen parameters of an adapted model."""
    base: int = 0
    """The checkpoint from which a round starts: parameters and outer momentum."""
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
        """Bytes on the device that computes (or on the processor): all parts except those of the process and its
        child.
        """
        return self.total - self.process - self.child


Role = Callable[..., Need]
"""Maps (Programs, slots, memory of a Program's run) to the peak memory of one process in that role."""
Fits = Callable[["JobPrograms", "JobParams"], None]
"""Checks that this machine can hold a job; raises Unfit otherwise."""


@lru_cache(64)
def _bytes_of_run(header: bytes, descriptors: tuple[bytes, ...], constants: tuple[int, ...]) -> tuple[int, int, int]:
    try:
        return _native.bytes_of_run(header, descriptors, constants)
    except ValueError as error:
        raise ProgramInvalid(
            f"the Program is invalid: {error}", hint="call validate() to find the broken rule"
        ) from error


def of_program(program: Program) -> ProgramMemory:
    """Returns the memory of one run of a Program; raises ProgramInvalid if it could not be run."""
    constants = tuple(c.header.elements for c in program.consts)
    arena, results, shown = _bytes_of_run(program.header, program.descriptors, constants)
    return ProgramMemory(arena, results, shown + _tree_bytes(program), WORD_BYTES * sum(constants))


MemoryOf = Callable[[Program], ProgramMemory]


def worker(programs: JobPrograms, slots: int, of: MemoryOf = of_program) -> Need:
    """Memory of a worker, which trains a slot, defends its claim, and merges if the aggregator did not."""
    constants, base = _constants(programs), checkpoint_bytes(programs)
    payloads = slots * payload_bytes(programs, slots)
    return _fullest([*_of_slot(programs, constants, base, 0, of), *_of_merge(programs, constants, base, payloads, of)])


def verifier(programs: JobPrograms, slots: int, of: MemoryOf = of_program) -> Need:
    """Memory of a verifier, which replays every claim, merges included, and plays the games about them."""
    return worker(programs, slots, of)


def aggregator(programs: JobPrograms, slots: int, of: MemoryOf = of_program) -> Need:
    """Memory of an aggregator, which fetches the payloads of a round, merges them and defends the merge."""
    payloads = slots * payload_bytes(programs, slots)
    constants = of_program(programs.merge).constants
    return _fullest(_of_merge(programs, constants, checkpoint_bytes(programs), payloads, of))


ROLES: dict[str, Role] = {"worker": worker, "verifier": verifier, "aggregator": aggregator}


@dataclass(frozen=True)
class DeviceShare:
    """A role's memory on the device that computes.

    States, decoded payloads and tensors opened in a game also take this machine's memory.
    """

    needs: Mapping[bytes, DeviceNeed]
    """Needs by Program root; Programs not listed run on the processor, because the device has no kernels for them."""
    dataset: int
    memory: Memory
    """The device's memory, without this job's."""

    @staticmethod
    def planned(role: Role, programs: JobPrograms, params: JobParams, path: str) -> DeviceShare:
        """Plans the share of a job on the device `path`, from only its Programs."""
        device, needs = cuda.open_device(path), dict[bytes, DeviceNeed]()
        held = _memory_of(device)
        for program in _programs(role, programs):
            with suppress(UsageError):
                needs[program.root] = planned(program, device, held.available).need
        return DeviceShare(needs, _rows(role, programs, params, needs), held)

    @staticmethod
    def loaded(role: Role, job: Job) -> DeviceShare:
        """Returns the share of a job whose Programs are already on the device, as far as it had room."""
        executables = [job.executable(program) for program in _programs(role, job.programs)]
        needs: dict[bytes, DeviceNeed] = {e.program.root: e.need for e in executables if isinstance(e, CudaExecutable)}
        held = _memory_of(cuda.open_device(job.path))
        present = sum(need.fixed for need in needs.values()) if held.total else 0
        rows = _rows(role, job.programs, job.params, needs)
        return DeviceShare(needs, rows, replace(held, available=held.available + present))

    @property
    def total(self) -> int:
        """Peak bytes of the device: one Program computes, and the others keep their memory."""
        return self._kept + max((need.step - need.fixed for need in self.needs.values()), default=0)

    def need(self, role: Role, programs: JobPrograms, slots: int) -> Need:
        """Returns the peak memory of this machine besides the device.

        Raises Unfit if a worker's device lacks memory.
        """
        try:
            self.memory.require(self.total)
        except Unfit:
            # A role that joins nothing may fall back to the processor.
            if role is worker:
                raise
            return role(programs, slots)
        return role(programs, slots, self.beside)

    def beside(self, program: Program) -> ProgramMemory:
        """Returns the part of a Program's run that is in this machine's memory."""
        whole, need = of_program(program), self.needs.get(program.root)
        if need is None:
            return whole
        # As when a worker checks a step: the states before and after it are both present.
        if self._kept + need.shown - need.fixed + STATES * need.state > self.memory.available:
            # The processor's child receives a copy of the state.
            return replace(whole, arena=0, shown=whole.results + whole.shown)
        largest = max((program.held_bytes([op]) for op in range(len(program.ops))), default=0)
        return replace(whole, arena=0, shown=largest + _tree_bytes(program))

    @property
    def _kept(self) -> int:
        return self.dataset + sum(need.fixed for need in self.needs.values())


@dataclass(frozen=True)
class Fitting:
    """Checks that this machine, and its device if one computes, has the memory for a role.

    Raises Unfit with the figure; `jobs.load` calls it before it fetches dataset and checkpoint.
    """

    role: Role
    limit: int | None = None
    """Bytes that the machine's owner allows, without a device's; None for all."""
    path: str = "auto"
    """The path of the kernels, as in `Job`."""

    def __call__(self, programs: JobPrograms, params: JobParams) -> None:
        """Raises Unfit if a job cannot be held."""
        share, slots = self.share(programs, params), params.role.slots
        need = self.role(programs, slots) if share is None else share.need(self.role, programs, slots)
        self.judge(need.total)

    def share(self, programs: JobPrograms, params: JobParams) -> DeviceShare | None:
        """Returns the device's share of a job's memory; None if the processor computes."""
        return None if self.path in PROCESSOR_PATHS else DeviceShare.planned(self.role, programs, params, self.path)

    def judge(self, total: int) -> None:
        """Raises Unfit if `total` bytes exceed the limit or the machine's memory."""
        if self.limit is not None and total > self.limit:
            raise Unfit(
                f"this job takes {readable(total)} of memory, and the limit is {readable(self.limit)}",
                hint="raise --max-memory",
            )
        # The child has planned the Program by then.
        memory().require(total, PROCESS_BYTES + CHILD_BYTES)


def checkpoint_bytes(programs: JobPrograms) -> int:
    """Returns the bytes of a checkpoint: shared and outer tensors as 4-byte words."""
    return _bytes(programs.merge.output_layout)


def payload_bytes(programs: JobPrograms, slots: int) -> int:
    """Returns the bytes of a slot's decoded payload, without the carry; the merge has `slots` slots."""
    width = len(programs.merge.inputs) // 4 >> ceil_log2(slots)
    return _bytes(programs.encode.output_layout[:width])


def payload_wire_bytes(programs: JobPrograms, params: JobParams, wire_format: str) -> int:
    """Returns the stored bytes of a slot's payload, without the carry; the most if they vary."""
    layout = programs.encode.output_layout[params.sections.payload]
    return wire_length(layout, format_fitting(layout, wire_format), params.role.carries)


def fetched_bytes(programs: JobPrograms, params: JobParams, wire_format: str) -> int:
    """Returns the bytes of other slots' payloads that a slot's owner fetches in each round."""
    return (params.role.slots - 1) * payload_wire_bytes(programs, params, wire_format)


def _constants(programs: JobPrograms) -> int:
    # The dataset is mapped and read in place: once per machine, however many processes use it.
    return sum(of_program(p).constants for p in (programs.step, programs.encode, programs.merge))


def _programs(role: Role, programs: JobPrograms) -> tuple[Program, ...]:
    """Returns the Programs that a role runs."""
    return (programs.merge,) if role is aggregator else (programs.step, programs.encode, programs.merge)


def _rows(role: Role, programs: JobPrograms, params: JobParams, needs: Mapping[bytes, DeviceNeed]) -> int:
    """Returns the bytes of the dataset on a device, if a Program that it runs draws rows."""
    draws = any(op.kind == Kind.DRAW for p in _programs(role, programs) if p.root in needs for op in p.ops)
    return WORD_BYTES * params.role.dataset_rows * params.role.row_length if draws else 0


def _memory_of(device: Device) -> Memory:
    """Returns the memory of a device available to this process; zero for a failed device, which is not an error."""
    try:
        return Memory(device.memory.total, available(device), device.label)
    except DeviceFailed:
        return Memory(0, 0, f"{device.label}, which failed,")


def _tree_bytes(program: Program) -> int:
    """Returns the bytes of a tree, about two digests per leaf; one op's tree exists at a time."""
    return 2 * HASH_BYTES * max((-(-op.header.elements // LEAF_ELEMENTS) for op in program.ops), default=0)


def _of_slot(programs: JobPrograms, constants: int, base: int, payloads: int, of: MemoryOf = of_program) -> list[Need]:
    """Returns the needs of training a slot with its encoding, and of materialising one step for a game."""
    step, encode = of(programs.step), of(programs.encode)
    # An executor keeps its arena and a state's buffers for its next run, until the job changes to another Program.
    return [
        # The state that is read and the state that is written; earlier states are hashed and on disk by then.
        Need(constants, base, 2 * step.results, payloads, step.arena),
        Need(constants, base, step.results + encode.results, payloads, encode.arena),
        # A step materialised for a game, from the state before it.
        Need(constants, base, step.results, payloads, 0, step.shown),
    ]


def _of_merge(programs: JobPrograms, constants: int, base: int, payloads: int, of: MemoryOf = of_program) -> list[Need]:
    """Returns the needs of computing a merge, and of materialising it for a game."""
    merge = of(programs.merge)
    return [
        Need(constants, base, merge.results, payloads, merge.arena),
        Need(constants, base, 0, payloads, 0, merge.shown),
    ]


def _fullest(needs: Iterable[Need]) -> Need:
    return max(needs, key=lambda need: need.total)


def _bytes(layout: Sequence[TensorHeader | None]) -> int:
    return WORD_BYTES * sum(h.elements for h in layout if h is not None)
