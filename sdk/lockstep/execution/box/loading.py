"""Loads a job so that a confined child decodes, plans, measures, compares and runs its Programs.

    job = load(job_id, params, store, threads, path, fits=fits)       # as `invalidity.load`, in a box
    job.box.measure(...), job.box.compare(job)                        # before it is joined
    job.executable(program).run(...)                                  # in the child, on shared memory

The parent decodes the same bytes only after the child has done so within its limits, and does not run them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.base.closing import Closing
from lockstep.base.decoding import anything, either, table, text, whole
from lockstep.base.escaping import on_one_line
from lockstep.base.log import Logger
from lockstep.base.machine import memory
from lockstep.execution import footprint, invalidity
from lockstep.execution.box.confinement import OFFERED, Allowance
from lockstep.execution.box.executable import BoxedExecutable
from lockstep.execution.box.folders import folder_of
from lockstep.execution.box.handle import Box, Cancelled, Overdue, Starved
from lockstep.execution.capacity import SHARE, ChainPace, Pace, Require
from lockstep.execution.footprint import Fitting
from lockstep.execution.jobs import PROCESSOR_PATHS, Job
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.selftest import check_machine
from lockstep.protocol.errors import Malformed, ProgramInvalid, TryLater, Unfit
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from lockstep.execution.box.segments import Form
    from lockstep.numerics.executor import Executable
    from lockstep.protocol.jobs import JobParams
    from lockstep.protocol.programs.program import Program
    from lockstep.storage import ContentStore

log = Logger(__name__)

LEAST_SECONDS = 30.0
"""Least time limit of an order in seconds, however short the job's windows: this machine may be busy."""
LOOK_SECONDS = 1800.0
"""Longest examination of one job in seconds, so that it does not delay others."""
PLAN_SECONDS = 300.0
"""Longest planning in seconds; the planner's own budget ends sooner."""
LOSS_SECONDS = 30.0
"""Longest computation of one slot's loss in seconds; a loss is only information."""
LEAST_BYTES = 512 << 20
"""Least memory of a child in bytes, for planning."""
MOST_IDLE = 4
"""Most idle children of a process; an ended child is restarted by its next order."""
TRIALS = 4.0
"""Time limit of measuring and comparing together, in rounds of work."""


def _seconds(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise Malformed(f"{where} is not a number of seconds")
    return float(value)


_PACE = table({"step": _seconds, "shown": _seconds, "merge": _seconds})
_BYTES = whole(0, 1 << 62)
_PLANNED = either(
    table({"operations": text(64), "memory": _BYTES, "results": _BYTES}), table({"broken": text(), "hint": text()})
)


def load(
    job_id: JobId,
    params: JobParams,
    store: ContentStore,
    threads: int = 1,
    path: str = "auto",
    *,
    fits: Fitting | None = None,
) -> Job:
    """Loads a job as `invalidity.load`, with its Programs in a confined child if this system offers one.

    Raises the same errors; also Crashed if the job's child dies or is late, and TryLater if no child can be started.
    """
    if not OFFERED:
        return invalidity.load(job_id, params, store, threads, path, fits=fits)
    if path in PROCESSOR_PATHS:
        # A failure of this machine's own arithmetic is not the job's fault.
        check_machine(path)
    box = JobBox(job_id, params, store, threads, path, fits)
    try:
        try:
            box.plan()
        except ShownBroken as error:
            raise invalidity.proven(error, params, store) from None
        if path in PROCESSOR_PATHS:
            box.require()
            fits = None
        # The device's memory is planned in this process, now that the child has planned the same bytes.
        loaded = invalidity.load(job_id, params, store, threads, path, fits=fits)
    except BaseException:
        box.close()
        raise
    box.roots |= {program.root for program in (loaded.programs.step, loaded.programs.encode, loaded.programs.merge)}
    return replace(loaded, box=box)


class ShownBroken(ProgramInvalid):
    """The child process has found that a Program breaks a rule."""


@dataclass(frozen=True)
class Planned:
    """A job's Programs as its child has planned them."""

    operations: int
    """Operations of one slot of one round, the basis of price comparisons."""
    memory: int
    """Peak bytes of memory of the role."""
    results: int
    """Bytes of a step's output state."""


class Idle:
    """The idle children of this process, the longest idle first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[JobBox, None] = {}

    def add(self, box: JobBox) -> None:
        """Adds a box that has become idle, and ends the longest idle ones if there are too many."""
        with self._lock:
            self._boxes.pop(box, None)
            self._boxes[box] = None
            ended = list(self._boxes)[:-MOST_IDLE]
            for one in ended:
                del self._boxes[one]
        for one in ended:
            one.stop_idle()

    def remove(self, box: JobBox) -> None:
        """Removes a box that has an order or no child."""
        with self._lock:
            self._boxes.pop(box, None)


_IDLE = Idle()
_STARVED: dict[JobId, tuple[str, object]] = {}
"""Jobs whose child was killed by the kernel, with the unfinished work; completing it clears the entry."""
MOST_STARVED = 256
"""Most recent such jobs that are remembered."""


class JobBox(Closing):
    """One job's child process: started when needed, and again after it has ended."""

    def __init__(
        self, job: JobId, params: JobParams, store: ContentStore, threads: int, path: str, fits: Fitting | None
    ) -> None:
        """`fits` is a role with its memory limit; None stands for a worker without a limit."""
        self.job = job
        self._params = params
        self._store = store
        self._threads = threads
        self._path = path if path in PROCESSOR_PATHS else "auto"
        self._fits = fits
        self._box: Box | None = None
        self._planned: Planned | None = None
        self._losses: list[str] = []
        self.roots: set[bytes] = set()
        """Roots of the Programs that the child has."""
        self._beside: set[bytes] = set()
        """The subset of `roots` that no claim is about."""
        self._beside_until: float | None = None
        """End of their time limit by time.monotonic(); None: each run has its own limit."""
        self._bounds: dict[int, float] = {}
        """Time limit of each order in seconds, by thread; threads not listed use the job's limit."""
        self._state = threading.Lock()
        self._turn = threading.RLock()
        """Held while the child works: one thread at a time lays out segments."""
        self._ordered_by: int | None = None
        """The thread whose order the child executes."""
        self._closed = False

    # -- the look

    def plan(self) -> Planned:
        """Lets the child decode and plan the job's Programs."""
        with self._ordering():
            self._at_work()
        assert self._planned is not None, "it is at work"
        return self._planned

    def require(self) -> None:
        """Raises Unfit if this machine cannot hold the job."""
        if self._fits is not None:
            self._fits.judge(self.plan().memory)

    def estimate(self) -> Pace:
        """Estimates the pace of a step from this machine's rates, without running the job."""
        with self._ordering():
            found = self._call(self._at_work(), "estimate", seconds=self._plan_seconds, read=_PACE)
        return _pace(found)

    @property
    def operations(self) -> int:
        """Returns the operations of one slot of one round."""
        return (self._planned or self.plan()).operations

    def measure(
        self, job: Job, require: Require, chain: ChainPace, role: footprint.Role = footprint.worker,
        at_most: float = LOOK_SECONDS,
    ) -> Pace:  # fmt: skip
        """Measures the job's pace in the child, as `capacity.keep_up`.

        Raises Overdue after `at_most` seconds, or sooner by the job's windows.
        """
        given = {"require": require, "chain": chain, "role": role}
        found = self._look(job, "measure", given, _PACE, at_most)
        return _pace(found)

    def compare(self, job: Job, at_most: float = LOOK_SECONDS) -> None:
        """Checks the job in the child, as `comparing.check_job`. Raises WrongBits, and Overdue as `measure` does."""
        self._look(job, "compare", {}, table({}), at_most)

    def compare_first(self, job: Job, at_most: float = LOOK_SECONDS) -> None:
        """Checks on the processor, as far as possible, a job that a device computes in this process.

        Skips the check if memory is insufficient or the longest examination does not suffice. Raises Overdue after a
        shorter one.
        """
        try:
            # A child that needs more than the owner's limit would be killed, and the job then refused permanently.
            (self._fits or Fitting(footprint.worker)).judge(self.plan().memory)
            self.compare(job, at_most)
        except (Unfit, Overdue) as error:
            if isinstance(error, Overdue) and at_most < LOOK_SECONDS:
                raise
            log.info("a job's kernels are compared on its device only", job=self.job.hex(), why=error.message)

    def decode(self, cid: str) -> None:
        """Lets the child decode and plan one more Program, the loss under `cid`."""
        with self._ordering():
            self._losses.append(cid)
            try:
                self._call(self._at_work(), "decode", seconds=self._loss_plan_seconds, cid=cid, read=table({}))
            except BaseException:
                self._losses.remove(cid)
                raise

    def hold(self, program: Program) -> None:
        """Records that a Program which the child has was decoded in this process too."""
        self.roots.add(program.root)
        self._beside.add(program.root)

    @contextmanager
    def losses_until(self, ends: float | None) -> Iterator[None]:
        """Bounds the computation of losses within the block by a time of time.monotonic(); a late child is ended."""
        self._beside_until, before = ends, self._beside_until
        try:
            yield
        finally:
            self._beside_until = before

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bounds each transition that this thread orders within the block, from when it has the child to itself.

        A late child is ended, and Overdue raised.
        """
        me = threading.get_ident()
        self._bounds[me] = seconds
        try:
            yield
        finally:
            del self._bounds[me]

    # -- transitions

    def holds(self, program: Program) -> bool:
        """Returns True if the child has the Program."""
        return program.root in self.roots

    def executable(self, program: Program) -> Executable:
        """Returns an executable that runs a Program of the job in the child."""
        return BoxedExecutable(program, self._threads, self._path, box=self)

    def transit(
        self, verb: str, program: bytes, state: Sequence[Array | None], context: StepContext, dataset: Array | None,
        *, forms: Sequence[tuple[int, Form]] | None = None, read: Callable[[Any, str], Any] = anything,
    ) -> tuple[Any, list[Array]]:  # fmt: skip
        """Runs a transition in the child (`executable.Transitions`)."""
        with self._ordering():
            box = self._at_work()
            (*spots, rows), held = box.segments.given([*state, dataset])
            given: dict[str, Any] = {"program": program, "state": spots, "context": context, "dataset": rows}
            made: list[Array] = []
            if forms is not None:
                places, made = box.segments.room([form for _, form in forms])
                given["into"] = {op: spot for (op, _), spot in zip(forms, places, strict=True)}
            seconds = self._loss_seconds if program in self._beside else self._step_seconds
            seconds = min(seconds, self._bounds.get(threading.get_ident(), seconds))
            found = self._call(box, verb, seconds=seconds, read=read, **given)
            del held
            return found, made

    def free_scratch(self, program: bytes) -> None:
        """Releases a Program's memory in the child (`executable.Transitions`)."""
        box = self._box
        if box is not None:
            box.free_scratch(program)

    # -- the child

    def stop(self, order_of: int | None = None) -> None:
        """Ends the child and its work; waiting callers get Cancelled. The next use starts another child.

        `order_of` is a thread: the child is ended only while it works on that thread's order.
        """
        with self._state:
            # INVARIANT: who ends one piece of work ends no other: the child may be at work for a game by then.
            if order_of is not None and order_of != self._ordered_by:
                return
            box, self._box = self._box, None
        _IDLE.remove(self)
        if box is not None:
            box.leave()

    def stop_idle(self) -> None:
        """Ends the child unless it executes an order."""
        if self._turn.acquire(blocking=False):
            try:
                self.stop()
            finally:
                self._turn.release()

    def close(self) -> None:
        """Ends the child permanently."""
        with self._state:
            self._closed = True
        self.stop()

    @property
    def lacking(self) -> list[str]:
        """Returns the parts of the confinement that the kernel does not offer."""
        return [] if self._box is None else self._box.lacking

    # -- inside

    @contextmanager
    def _ordering(self) -> Iterator[None]:
        with self._turn:
            _IDLE.remove(self)
            with self._state:
                before, self._ordered_by = self._ordered_by, threading.get_ident()
            try:
                yield
            finally:
                with self._state:
                    self._ordered_by = before
                # INVARIANT: however many jobs a process looks at, few children wait.
                if self._box is not None:
                    _IDLE.add(self)

    def _at_work(self) -> Box:
        """Returns the child, with the job's Programs planned."""
        with self._state:
            box = self._box
        if box is not None and box.alive:
            return box
        if self._closed:
            raise Cancelled
        self.stop()
        box = self._started()
        with self._state:
            closed = self._closed
            if not closed:
                self._box = box
        if closed:
            box.close()
            raise Cancelled
        try:
            self._load(box)
        except BaseException:
            # INVARIANT: a child that lacks one of the job's Programs is given no order.
            with self._state:
                if self._box is box:
                    self._box = None
            box.close()
            raise
        return box

    def _started(self) -> Box:
        folder = folder_of(self.job)
        try:
            box = Box(self._allowance, self._store, folder.path)
        except BaseException:
            folder.close()
            raise
        # Any thread that still uses the child also uses its folder.
        weakref.finalize(box, folder.close)
        return box

    def _call(self, box: Box, verb: str, **given: Any) -> Any:
        """Calls the child as `Box.call`.

        Raises TryLater if the kernel kills the child, unless it does so twice in a row.
        """
        work = verb, given.get("program")
        try:
            found = box.call(verb, **given)
        except Starved as error:
            # INVARIANT: no job is refused because other work takes this machine's memory once.
            if _STARVED.setdefault(self.job, work) is not work:
                raise
            for longest in list(_STARVED)[:-MOST_STARVED]:
                _STARVED.pop(longest, None)
            raise TryLater(error.message, "free some memory: the job is retried automatically") from error
        if _STARVED.get(self.job) == work:
            del _STARVED[self.job]
        return found

    def _load(self, box: Box) -> None:
        role = footprint.worker if self._fits is None else self._fits.role
        found = self._call(
            box, "load", seconds=self._plan_seconds, read=_PLANNED, params=self._params, threads=self._threads,
            path=self._path, role=role,
        )  # fmt: skip
        if "broken" in found:
            raise ShownBroken(on_one_line(found["broken"]), on_one_line(found["hint"]))
        self._planned = Planned(_natural(found["operations"]), found["memory"], found["results"])
        for cid in self._losses:
            self._call(box, "decode", seconds=self._loss_plan_seconds, cid=cid, read=table({}))

    def _look(
        self, job: Job, verb: str, given: dict[str, Any], read: Callable[[Any, str], Any], at_most: float
    ) -> Any:  # fmt: skip
        seconds = min(self._look_seconds, at_most)
        with self._ordering():
            box = self._at_work()
            shared, outer = job.genesis.shared, job.genesis.outer
            (rows, *spots), held = box.segments.given([job.dataset, *shared, *outer])
            self._call(
                box, "furnish", seconds=seconds, read=table({}), job=job.id, dataset=rows,
                shared=spots[: len(shared)], outer=spots[len(shared) :],
            )  # fmt: skip
            found = self._call(box, verb, seconds=seconds, read=read, **given)
            del held
            return found

    @property
    def _allowance(self) -> Allowance:
        lent = None if self._fits is None else self._fits.limit
        total = memory().total
        role = self._params.role
        rows = footprint.WORD_BYTES * role.dataset_rows * role.row_length
        # With less memory than planning takes, a job would be refused permanently although it is only too large now.
        own = total if lent is None else min(max(lent, LEAST_BYTES), total)
        return Allowance(memory=own, shared=total + rows)

    @property
    def _plan_seconds(self) -> float:
        """Seconds allowed for planning a Program, at most half of the time to train."""
        return max(LEAST_SECONDS, min(SHARE * self._params.role.train_seconds, PLAN_SECONDS))

    @property
    def _loss_plan_seconds(self) -> float:
        """Returns the seconds allowed for planning a loss: at most those for planning a slot's Program."""
        return min(self._plan_seconds, LOSS_SECONDS)

    @property
    def _loss_seconds(self) -> float:
        left = LOSS_SECONDS if self._beside_until is None else self._beside_until - time.monotonic()
        return max(0.0, min(LOSS_SECONDS, left))

    @property
    def _look_seconds(self) -> float:
        p = self._params
        return max(LEAST_SECONDS, min(TRIALS * (p.role.train_seconds + p.merge.turn_seconds), LOOK_SECONDS))

    @property
    def _step_seconds(self) -> float:
        """Seconds allowed for a transition: the longest window of the job, after which its result is useless."""
        p = self._params
        return float(max(LEAST_SECONDS, p.role.train_seconds, p.windows.clock_seconds, p.windows.audit_seconds))


def _pace(found: dict[str, float]) -> Pace:
    return Pace(float(found["step"]), float(found["shown"]), merge=float(found["merge"]))


def _natural(words: str) -> int:
    if not words.isdecimal():
        raise Malformed("the count of operations is not a number")
    return int(words)
