"""Runs a job: checks its Programs against the chain, and builds claims' states from public tensors.

Workers train, verifiers replay and aggregators merge with this code, so that equal inputs give equal bits. It does not
access a chain; `load` reads a content store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from lockstep.numerics import paths
from lockstep.numerics.arrays import DTYPES, StepContext
from lockstep.numerics.executor import Executable
from lockstep.numerics.resident import DeviceFailed, Resident
from lockstep.numerics.trace import HashedContents, StepTrace, entry_roots, layout_root, materialise
from lockstep.numerics.validate import check_programs
from lockstep.presets import DEVNET, Terms
from lockstep.protocol import merkle
from lockstep.protocol.errors import Malformed, Mismatch, PayloadInvalid, ProgramInvalid, UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS, Body
from lockstep.protocol.market import moving
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.defects import job_of
from lockstep.protocol.programs.program import Program
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import MERGE_SLOT, Address, Digest, JobId, Seed, StateRoot
from lockstep.storage.containers import MAX_TITLE, JobSpec, load_program, load_spec, read_title
from lockstep.storage.dataset import Dataset, load_dataset
from lockstep.storage.payload import F32_FORMAT, INT8_FORMAT, Checkpoint, format_of, load_checkpoint

if TYPE_CHECKING:
    from lockstep.protocol.jobs import JobParams
    from lockstep.storage import ContentStore

log = logging.getLogger(__name__)

Tensors = tuple[np.ndarray, ...]
State = Sequence[np.ndarray | None]
"""A state: one flat array of 4-byte words per entry, None = EMPTY. On a device it is a `numerics.resident.Resident`."""
Entries = list[np.ndarray | None]
"""A state under construction."""
_R = TypeVar("_R")
PROCESSOR_PATHS = ("auto", "scalar", "avx2", "avx512", "vnni", "neon", "dotprod")


class BackgroundTask(Generic[_R]):
    """A thread that runs one task at a time in parallel with its caller, e.g. writing a state during the next step.

    At most one task runs, so at most one state besides the caller's is alive. Leaving the context waits for the task;
    `wait` and leaving raise its error.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "background")
        self._under_way: Future[_R] | None = None

    def begin(self, work: Callable[[], _R]) -> None:
        """Starts a task after the previous one has ended."""
        self.wait()
        self._under_way = self._thread.submit(work)

    def wait(self) -> _R | None:
        """Waits for the running task and returns its result; None if there is none."""
        last, self._under_way = self._under_way, None
        return None if last is None else last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()


@dataclass(frozen=True)
class JobPrograms:
    """The three Programs of a job, selected by transition."""

    step: Program
    encode: Program
    merge: Program

    def name_of(self, slot: int, t: int, inner_steps: int) -> str:
        """Returns the name of the Program of transition t: "step", "encode" or "merge"."""
        if slot == MERGE_SLOT:
            return "merge"
        return "step" if t <= inner_steps else "encode"

    def of(self, slot: int, t: int, inner_steps: int) -> Program:
        """Returns the Program of transition t of a slot's claim or of a merge."""
        program: Program = getattr(self, self.name_of(slot, t, inner_steps))
        return program

    def slot_state(self, s: Sections, base: Checkpoint, steps_done: int, carried: Tensors | None = None) -> State:
        """Returns S_0 of a slot: live and anchor copies of the shared tensors, the carry (or zeros), the clock."""
        carry, clock = _filled(self.step.inputs[s.carry], carried), np.array(steps_done, dtype=np.int32)
        return _checked(self.step.inputs, s.slot_state(base.shared, base.shared, carry, clock))

    def merge_state(self, s: Sections, base: Checkpoint, payloads: Sequence[Tensors | None]) -> State:
        """Returns S_0 of a merge: shared, outer, each slot's payload (zeros if absent), the mask."""
        received = [_filled(self.encode.output_layout[s.payload], payload) for payload in payloads]
        mask = np.array([0.0 if p is None else 1.0 for p in payloads], dtype=np.float32)
        return _checked(self.merge.inputs, s.merge_state(base.shared, base.outer, received, mask))


@dataclass(frozen=True)
class TrainingJob:
    """A training job as ordered by a requester: Programs, data, first weights and terms."""

    programs: JobPrograms
    dataset: Dataset
    genesis: Checkpoint | None
    """The first weights; None if they were not created: such a job can be quoted but not submitted."""
    model: Mapping[str, Any]
    """The model's config.json."""
    parameters: tuple[Mapping[str, Any], ...]
    """{name, offset, shape} of each parameter in the flat tensor, with its shard if there are several."""
    strategy: Mapping[str, Any]
    inner_steps: int
    """H, the steps of a slot in a round."""
    rounds: int
    slots: int
    min_slots: int
    shared_depth: int
    payload_depth: int
    carry: bool = False
    """True if a slot publishes its carry with its payload, so that its owner's next round starts from it."""
    aggregator: Address = ZERO_ADDRESS
    """The account that merges first; the zero address: only slot owners merge."""
    terms: Terms = DEVNET
    loss: Program | None = None
    """The mean loss over the rows of one step, given a slot's state; observers compute it. None if there is no loss."""
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    """The policy that selects integer products (`tracing.arithmetic`); empty if there are none."""
    wire_format: str = F32_FORMAT
    """The preferred format of payloads, by a name that `storage.payload.format_of` knows."""
    title: str = ""
    """The job's name for people; empty without one. Constructing a job raises UsageError for a title that no spec may
    hold."""

    def __post_init__(self) -> None:
        checked_title(self.title)

    @property
    def sections(self) -> Sections:
        """The parts of the job's states."""
        return Sections(self.shared_depth, self.payload_depth, self.slots)

    @property
    def model_name(self) -> str:
        """The model as its configuration calls it; "-" for one that it does not name."""
        named = (self.model.get(key) for key in ("model_type", "class", "model", "kind"))
        return next((str(name) for name in named if name), "-")

    def __repr__(self) -> str:
        size = f"{self.rounds} rounds of {self.slots} slots, {self.inner_steps} steps each"
        return f"<TrainingJob: {self.model_name}, {size}>"


def checked_title(title: Any) -> str:
    """Returns a job's title, "" for none; raises UsageError for one that no spec may hold."""
    try:
        return "" if isinstance(title, str) and not title else read_title(title, "title")
    except Malformed as error:
        raise UsageError(error.message, f"a title is one line of at most {MAX_TITLE} characters") from error


@dataclass(frozen=True)
class CarryIn:
    """The carry from which a slot starts in addition to its base, from its owner's claim in the previous round."""

    body: Body
    """Body of that claim, which a game shows to the contract."""
    tensors: Tensors = field(repr=False)


class Confined(Protocol):
    """Interface of a confined process that runs another party's Programs (`box.loading.JobBox`)."""

    @property
    def operations(self) -> int:
        """Operations of one slot in one round."""

    def measure(self, job: Job, require: Any, chain: Any, role: Any = ..., at_most: float = ...) -> Any:
        """Measures the job's pace in that process, as `capacity.keep_up`. Raises Overdue after `at_most` seconds."""

    def compare(self, job: Job, at_most: float = ...) -> None:
        """Checks the job's results in that process, as `comparing.check_job`.

        Raises Overdue after `at_most` seconds.
        """

    def compare_first(self, job: Job, at_most: float = ...) -> None:
        """Checks, as far as the processor can, the results of a job that a device computes.

        Raises Overdue after `at_most` seconds.
        """

    def holds(self, program: Program) -> bool:
        """Returns True if the process has this Program: it is the job's, or was decoded there."""

    def executable(self, program: Program) -> Executable:
        """Returns an executable for a Program that the process has."""

    def decode(self, cid: str) -> None:
        """Decodes and plans one more Program in the process."""

    def hold(self, program: Program) -> None:
        """Records that a Program was decoded in this process too."""

    def losses_until(self, ends: float | None) -> AbstractContextManager[None]:
        """Bounds the computation of losses within the block by a time of time.monotonic()."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Bounds each transition that this thread orders within the block; a late one raises Overdue."""

    def stop(self, order_of: int | None = None) -> None:
        """Ends the process and its work, or only the work of one thread; the next use starts another process."""

    def close(self) -> None:
        """Ends the process permanently."""


@dataclass(frozen=True)
class Job:
    """All public data of which a claim of this job is a function, except its base, payloads and seed."""

    id: JobId
    params: JobParams
    spec: JobSpec
    programs: JobPrograms
    dataset: np.ndarray
    """The dataset, i32 (N, L)."""
    genesis: Checkpoint
    threads: int = 1
    path: str = "auto"
    """Path of the kernels: one of PROCESSOR_PATHS, "cuda:N" or "emulated". Neither path nor threads affect the bits."""
    box: Confined | None = field(default=None, repr=False, compare=False)
    """The process that runs the Programs on the processor; None for this one."""
    _compiled: dict[bytes, Executable] = field(default_factory=dict, repr=False, compare=False)
    _processor: dict[bytes, Executable] = field(default_factory=dict, repr=False, compare=False)
    """Executables for the processor, by Program root, for Programs that the device cannot run or materialise."""

    def executable(self, program: Program) -> Executable:
        """Returns the compiled Program; it is compiled once per job, for the processor if the device has no room."""
        if program.root not in self._compiled:
            self._compiled[program.root] = self._compile(program)
        return self._compiled[program.root]

    def showing(self, program: Program) -> Executable:
        """Returns the executable that materialises a Program's transitions for games: the device's, or the processor's
        if the device lacks memory.
        """
        executable = self.executable(program)
        return executable if executable.shows else self._on_processor(program)

    def turn_to(self, program: Program | None) -> None:
        """Releases the memory that other Programs keep for their next run, before `program` runs; None releases that of
        all.
        """
        for compiled in (self._compiled, self._processor):
            for root, executable in list(compiled.items()):
                if program is None or root != program.root:
                    executable.free_scratch()

    def places(self, program: Program) -> tuple[str, str]:
        """Returns the devices that run a Program and that materialise it for games, as `--device` names them."""
        executable = self._compiled[program.root]
        return executable.place, executable.place if executable.shows else "cpu"

    def give_up(self, program: Program, failure: DeviceFailed) -> Executable:
        """Replaces a failed device by the processor, so that a claim at stake is still defended."""
        log.warning("the device failed, and the CPU takes over the Program: %s", failure)
        self._compiled[program.root] = self._on_processor(program)
        return self._compiled[program.root]

    def _compile(self, program: Program) -> Executable:
        if self.path in PROCESSOR_PATHS:
            return self._on_processor(program)
        try:
            return paths.compile(program, threads=self.threads, path=self.path)
        except DeviceFailed as failure:
            log.warning("the CPU runs a Program that the device cannot hold: %s", failure)
        except UsageError as error:
            log.warning("the CPU runs a Program that the device has no kernels for: %s", error)
        return self._on_processor(program)

    def _on_processor(self, program: Program) -> Executable:
        if program.root not in self._processor:
            path = self.path if self.path in PROCESSOR_PATHS else "auto"
            self._processor[program.root] = (
                self.box.executable(program)
                if self.box is not None and self.box.holds(program)
                else paths.compile(program, threads=self.threads, path=path)
            )
        return self._processor[program.root]

    @property
    def wire_format(self) -> str:
        """The preferred format of payloads: `wire` of the strategy, which is part of the job's spec."""
        return wire_of(self.spec)

    @property
    def payload_layout(self) -> tuple[TensorHeader | None, ...]:
        """Headers of the tensors that a merge reads from each slot; None = EMPTY."""
        return self.programs.encode.output_layout[self.params.sections.payload]

    @property
    def carry_layout(self) -> tuple[TensorHeader | None, ...]:
        """Headers of the carry that the owner's next round reads; all EMPTY without a carry."""
        return self.programs.encode.output_layout[self.params.sections.carried]

    def payload_roots(self, payload: Tensors, carry: Tensors = ()) -> tuple[Digest, Digest]:
        """Returns (out, out2) of a slot's claim: the subtree roots of its decoded payload and of its carry."""
        return self.payload_root(payload), self.carry_root(carry)

    def payload_root(self, payload: Tensors) -> Digest:
        """Returns `out` of a slot's claim. Raises Mismatch for tensors of another layout."""
        return subtree_root(self.payload_layout, payload)

    def carry_root(self, carry: Tensors) -> Digest:
        """Returns `out2` of a slot's claim. Raises Mismatch for tensors of another layout."""
        return subtree_root(self.carry_layout, carry)

    def checkpoint_roots(self, checkpoint: Checkpoint) -> tuple[Digest, Digest]:
        """Returns (shared, outer): the roots that a merge claims and from which the next round starts."""
        layout, sections = self.programs.merge.output_layout, self.params.sections
        return (
            subtree_root(layout[sections.shared], checkpoint.shared),
            subtree_root(layout[sections.outer], checkpoint.outer),
        )


@dataclass(frozen=True)
class ClaimRun:
    """The computation of one claim: S_0 and T transitions."""

    job: Job
    slot: int
    """Slot number; MERGE_SLOT for a merge."""
    round: int
    seed: Seed
    start: State = field(repr=False)
    """Tensors of S_0."""
    carried: Body | None = None
    """Body of the claim whose carry it starts from; None if it starts from zeros."""

    @property
    def transitions(self) -> int:
        """T: H + 1 for a slot, 1 for a merge."""
        return 1 if self.slot == MERGE_SLOT else self.job.params.role.inner_steps + 1

    def program(self, t: int) -> Program:
        """Returns the Program of transition t (1..T)."""
        return self.job.programs.of(self.slot, t, self.job.params.role.inner_steps)

    def context(self, t: int) -> StepContext:
        """Returns the values that `random`, `draw` and context operands read at transition t."""
        return StepContext(seed=bytes(self.seed), round=self.round, slot=self.slot, t=t)

    def advance(self, t: int, state: State) -> State:
        """Computes the tensors of S_t from those of S_{t-1}."""
        return self.compute(self.program(t), t, state)

    def compute(self, program: Program, t: int, state: State) -> State:
        """Runs a Program on S_{t-1}'s tensors at transition t.

        On a device the results stay there; if the device fails, the processor takes over.
        """
        self.job.turn_to(program)
        try:
            return self.job.executable(program).advance(state, self.context(t), self.job.dataset)
        except DeviceFailed as failure:
            executable = self.job.give_up(program, failure)
        return executable.advance(list(state), self.context(t), self.job.dataset)

    def root(self, t: int, state: State, threads: int = 1) -> StateRoot:
        """Returns the root of S_t from its tensors; t = 0 is S_0."""
        layout = self.program(1).inputs if t == 0 else self.program(t).output_layout
        return state.root(layout) if isinstance(state, Resident) else layout_root(layout, state, threads)

    def leaf(self, t: int, state: State, word: int) -> StateLeaf:
        """Returns the leaf that a witness's `word` selects, proven to S_t, whose tensors are in `state`; t is 1
        to H.
        """
        program, threads = self.program(t), self.job.threads
        tensors = list(state)
        roots = entry_roots(program.output_layout, tensors, threads)

        def levels(entry: int) -> Sequence[merkle.Level]:
            tensor = tensors[entry]
            assert tensor is not None, "a tensor that moves is there"
            return HashedContents(tensor).levels

        return moving.leaf_of(program, word, roots, levels)

    def materialise(self, t: int, state: State) -> StepTrace:
        """Materialises transition t for a game: G_t, tensors, leaves, partials. `state` has S_{t-1}'s tensors."""
        return self.show(self.program(t), t, state)

    def show(self, program: Program, t: int, state: State) -> StepTrace:
        """Materialises a step as `materialise`, with another Program in place of transition t's; the processor replaces
        a failed device.
        """
        # Materialising takes the memory that was kept for the next run.
        self.job.turn_to(None)
        instead = partial(self.job.give_up, program)
        return materialise(self.job.showing(program), state, self.context(t), self.job.dataset, instead)

    def states(self, after: int = 0, state: State | None = None) -> Generator[tuple[int, State, StateRoot]]:
        """Yields (t, tensors of S_t, root of S_t) for t = after + 1 .. T, from the tensors of S_after (default: from
        S_0).

        Each state is hashed, by all threads, before the next one is computed, so that two are alive at a time. Closing
        the generator early frees its memory.
        """
        current = self.start if state is None else state
        try:
            for t in range(after + 1, self.transitions + 1):
                current = self.advance(t, current)
                yield t, current, self.root(t, current, self.job.threads)
        finally:
            self.job.turn_to(None)

    def state_before(self, t: int) -> State:
        """Returns the tensors of S_{t-1}, recomputed from S_0."""
        current = self.start
        for earlier in range(1, t):
            current = self.advance(earlier, current)
        return current


def slot_run(
    job: Job, base: Checkpoint, seed: Seed, round_: int, slot: int, carried: CarryIn | None = None
) -> ClaimRun:
    """Returns a slot's computation from the round's base checkpoint and its owner's carry."""
    tensors, body = (None, None) if carried is None else (carried.tensors, carried.body)
    start = job.programs.slot_state(job.params.sections, base, round_ * job.params.role.inner_steps, tensors)
    return ClaimRun(job, slot, round_, seed, start, body)


def merge_run(job: Job, base: Checkpoint, payloads: Sequence[Tensors | None], seed: Seed, round_: int) -> ClaimRun:
    """Returns a merge's computation from the round's base checkpoint and its accepted payloads, in slot order."""
    return ClaimRun(job, MERGE_SLOT, round_, seed, job.programs.merge_state(job.params.sections, base, payloads))


def payload_of(job: Job, final: State) -> Tensors:
    """Returns the tensors that a merge reads of a slot, from the state after `encode`."""
    return tensors_of(final[job.params.sections.payload])


def carry_of(job: Job, final: State) -> Tensors:
    """Returns the tensors of the carry, from the state after `encode`; () without a carry."""
    return tensors_of(final[job.params.sections.carried])


def checkpoint_of(job: Job, final: State) -> Checkpoint:
    """Returns the next checkpoint, from the state after `merge`."""
    return Checkpoint(tensors_of(final[job.params.sections.shared]), tensors_of(final[job.params.sections.outer]))


def tensors_of(section: State) -> Tensors:
    """Returns the entries of a section that are not EMPTY."""
    return tuple(tensor for tensor in section if tensor is not None)


def trace_root(roots: Sequence[StateRoot]) -> Digest:
    """Returns the Merkle root over leaf(S_1) .. leaf(S_T)."""
    return merkle.tree([merkle.leaf(r) for r in roots])


def subtree_root(layout: Sequence[TensorHeader | None], tensors: Sequence[np.ndarray]) -> Digest:
    """Returns the root over a layout's entries, filled by the tensors where not EMPTY. Raises Mismatch."""
    return Digest(layout_root(layout, _checked(layout, _filled(layout, tuple(tensors)))))


def load(
    job_id: JobId,
    params: JobParams,
    store: ContentStore,
    threads: int = 1,
    path: str = "auto",
    *,
    fits: Callable[[JobPrograms, JobParams], None] | None = None,
) -> Job:
    """Fetches a job's parts by CID, checks every root against the chain, validates every Program.

    Raises Mismatch if a part differs from what the chain names, ProgramInvalid if a Program could not be defended.
    Errors of `fits` are raised before dataset and checkpoint are fetched.
    """
    spec, programs = load_programs(params, store)
    if fits is not None:
        fits(programs, params)
    dataset = load_dataset(store, spec.dataset, root=params.role.dataset_root).rows
    if dataset.shape != (params.role.dataset_rows, params.role.row_length):
        raise Mismatch("the dataset has another shape than the job names", hint="do not run the job")
    job = Job(job_id, params, spec, programs, dataset, Checkpoint((), ()), threads, path)
    job = replace(job, genesis=fetch_checkpoint(job, store, spec.genesis, params.genesis.shared, params.genesis.outer))
    _check_zeros(job)
    return job


def wire_of(spec: JobSpec) -> str:
    """Returns the preferred format of a job's payloads, from its spec."""
    return str(spec.strategy.get("wire", INT8_FORMAT))


def load_programs(params: JobParams, store: ContentStore) -> tuple[JobSpec, JobPrograms]:
    """Loads a job's spec and Programs, checked as by `load`, without its dataset and base.

    Separately stored constants of a Program are fetched if they fit this machine's memory.
    """
    spec = load_spec(params, store)
    roots = {"step": params.role.step_program, "encode": params.role.encode_program, "merge": params.merge.program}
    # A fourth Program, `loss`, is for observers (execution/losses.py); no claim is about it.
    if set(spec.programs) - {"loss"} != set(roots):
        raise ProgramInvalid(
            f"the spec names Programs {sorted(spec.programs)}", hint="it must name step, encode and merge"
        )
    programs = JobPrograms(**{k: load_program(store, spec.programs[k], roots[k]) for k in roots})
    check_programs(programs.step, programs.encode, programs.merge, job_of(params))
    _check_wire(spec)
    return spec, programs


def _check_wire(spec: JobSpec) -> None:
    try:
        format_of((), wire_of(spec))
    except PayloadInvalid as error:
        # INVARIANT: every party of a job can read what its slots publish.
        raise Mismatch(f"the job's strategy: {error.message}", hint="do not run the job, or update") from error


def _check_zeros(job: Job) -> None:
    for what, layout, named in (
        ("carry", job.programs.step.inputs[job.params.sections.carry], job.params.role.zero_carry),
        ("payload", job.payload_layout, job.params.role.zero_payload),
    ):
        # INVARIANT: what the contract puts in the place of a carry or a payload is zero, as its parties compute it.
        if subtree_root(layout, zeros_of(layout)) != named:
            raise Mismatch(
                f"the job's zero-{what} root does not match its Programs",
                hint="do not run the job: honest claims about it would be convicted",
            )


def fetch_checkpoint(job: Job, store: ContentStore, cid: str, shared: bytes, outer: bytes) -> Checkpoint:
    """Fetches a checkpoint by CID. Raises Mismatch if its roots are not those on chain, and the store's errors."""
    layout, sections = job.programs.merge.output_layout, job.params.sections
    layouts = layout[sections.shared], layout[sections.outer]
    try:
        return check_checkpoint(job, load_checkpoint(store, cid, *layouts), shared, outer)
    except Mismatch:
        found = load_checkpoint(store, cid, *layouts, fresh=True)
        return check_checkpoint(job, found, shared, outer)


def check_checkpoint(job: Job, checkpoint: Checkpoint, shared: bytes, outer: bytes) -> Checkpoint:
    """Returns the checkpoint if its roots are those on chain. Raises Mismatch otherwise."""
    if job.checkpoint_roots(checkpoint) != (shared, outer):
        raise Mismatch(
            "a checkpoint does not hash to the roots on chain", hint="fetch it elsewhere, or recompute the merge"
        )
    return checkpoint


def _filled(layout: Sequence[TensorHeader | None], tensors: Tensors | None = None) -> Entries:
    """Returns a subtree's entries, filled by the tensors or by zeros where the layout is not EMPTY."""
    given = iter(zeros_of(layout) if tensors is None else tensors)
    return [None if h is None else next(given, None) for h in layout]


def zeros_of(layout: Sequence[TensorHeader | None]) -> Tensors:
    """Returns zeros for the entries of a layout that are not EMPTY."""
    return tuple(np.zeros(h.shape, DTYPES[h.dtype]) for h in layout if h is not None)


def _checked(layout: Sequence[TensorHeader | None], state: State) -> State:
    # INVARIANT: every tensor of a state has the length that the Program's state table names.
    for k, (header, array) in enumerate(zip(layout, state, strict=True)):
        if (header is None) != (array is None) or (
            header is not None and array is not None and array.size != header.elements
        ):
            got = "nothing" if array is None else f"{array.size} elements"
            due = "nothing" if header is None else f"{header.elements}"
            raise Mismatch(f"state entry {k} holds {got} instead of {due}", hint="the tensors are from another job")
    return state
