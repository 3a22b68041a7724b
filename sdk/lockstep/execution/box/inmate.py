"""The confined child's work: decodes, plans, measures, compares and runs a job's Programs by order of its parent.

Each verb of an order is a method of `Inmate`. Tensors are read from and written to locations that the parent states; an
answer contains only numbers, digests and text.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.base.mapping import mapped
from lockstep.execution import capacity, comparing, footprint, invalidity
from lockstep.execution.box import confinement, wire
from lockstep.execution.box.segments import Spot, array_at
from lockstep.execution.jobs import Job, JobPrograms, load_programs
from lockstep.execution.quoting import estimated
from lockstep.execution.rates import slot_operations
from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.executor import Executable
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LockstepError, ProgramInvalid, UsageError
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import Cid, Digest, JobId
from lockstep.storage import ContentStore
from lockstep.storage.cache import BlobCache
from lockstep.storage.containers import JobSpec, load_program
from lockstep.storage.payload import Checkpoint
from lockstep.storage.store import BlockCodec

MOST_TEXT = 2_000
"""Most characters of an error's text in an answer."""


class Unmapped(LockstepError):
    """The system refused to map shared memory or a blob."""


class Inmate:
    """Executes orders in one confined child."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._store = AskedStore(pipe)
        self._memory: dict[int, np.ndarray] = {}
        self._unmapped = ""
        """The reason why a segment could not be mapped; reported at the next order."""
        self._programs: dict[bytes, Program] = {}
        self._ready: dict[bytes, Executable] = {}
        self._spec: JobSpec | None = None
        self._schedule: JobPrograms | None = None
        self._params: JobParams | None = None
        self._job: Job | None = None
        self._threads, self._path = 1, "auto"

    def serve(self) -> None:
        """Executes orders until the parent closes the connection."""
        while True:
            try:
                order, handles = wire.ordered(self._pipe)
            except wire.Ended:
                return
            for (number, size, writes), handle in zip(order.get("news", ()), handles, strict=True):
                self._take(number, handle, size, writes)
            for number in order.get("gone", ()):
                self._memory.pop(number, None)
            for root in order.get("rest", ()):
                if root in self._ready:
                    self._ready[root].free_scratch()
            if order.get("verb"):
                confinement.busy_for(order["seconds"])
                wire.answer(self._pipe, self._done(getattr(self, order["verb"]), order["given"]))

    def _take(self, number: int, handle: int, size: int, writes: bool) -> None:
        try:
            self._memory[number] = mapped(handle, size, writes=writes)
        except OSError as error:
            self._unmapped = str(error.strerror)
        finally:
            os.close(handle)

    def _done(self, verb: Callable[..., dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._unmapped:
                raise Unmapped(self._unmapped)
            return {"done": verb(**given)}
        except LockstepError as error:
            # The parent knows fewer kinds of errors, so the nearest one is reported.
            kinds = [kind.__name__ for kind in type(error).__mro__]
            told = (kinds, error.message[:MOST_TEXT], error.hint[:MOST_TEXT])
        except MemoryError:
            told = (["MemoryError"], "", "")
        except Exception as error:
            told = (["Exception"], f"{type(error).__name__}: {error}"[:MOST_TEXT], "")
        return {"error": dict(zip(("kinds", "message", "hint"), told, strict=True))}

    # -- verbs: a job's Programs

    def load(self, params: JobParams, threads: int, path: str, role: footprint.Role) -> dict[str, Any]:
        """Decodes, checks and plans a job's Programs; raises the errors of `jobs.load_programs`."""
        self._threads, self._path, self._params = threads, path, params
        try:
            return self._planned(params, role)
        except ProgramInvalid as error:
            # If there is evidence, the parent repeats this search, which has then been seen to end.
            if invalidity.evidence_against(params, self._store) is None:
                raise
            return {"broken": error.message[:MOST_TEXT], "hint": error.hint[:MOST_TEXT]}

    def estimate(self) -> dict[str, Any]:
        """Estimates the pace of a step from this machine's rates."""
        assert self._schedule is not None, "loaded before"
        return _pace_fields(estimated(self._schedule, self._threads, self._path))

    def decode(self, cid: str, threads: int | None = None) -> dict[str, Any]:
        """Decodes and plans one more Program: a job's loss."""
        self._threads = threads or self._threads
        program = load_program(self._store, cid)
        validate(program)
        self._programs[program.root] = program
        self._executable(program.root)
        return {}

    # -- verbs: a job whose data came

    def furnish(self, job: JobId, dataset: Spot, shared: Sequence[Spot], outer: Sequence[Spot]) -> dict[str, Any]:
        """Receives a job's dataset and first checkpoint."""
        assert self._params is not None, "loaded before"
        assert self._spec is not None, "loaded before"
        assert self._schedule is not None, "loaded before"
        genesis = Checkpoint(tuple(map(self._at, shared)), tuple(map(self._at, outer)))
        self._job = Job(
            job, self._params, self._spec, self._schedule, self._at(dataset), genesis, self._threads, self._path,
            _compiled=self._ready,
        )  # fmt: skip
        return {}

    def measure(self, require: capacity.Require, chain: capacity.ChainPace, role: footprint.Role) -> dict[str, Any]:
        """Measures the pace of the job. Raises Unfit."""
        return _pace_fields(capacity.keep_up(self._furnished, require, chain, role))

    def compare(self) -> dict[str, Any]:
        """Compares the job's results with an independent implementation. Raises WrongBits."""
        comparing.check_job(self._furnished)
        return {}

    # -- verbs: one transition

    def run(
        self, program: bytes, state: Sequence[Spot | None], context: StepContext, dataset: Spot | None,
        into: dict[int, Spot],
    ) -> dict[str, Any]:  # fmt: skip
        """Runs a Program; `into` has the shared memory for each op's output."""
        made = {op: array_at(self._memory[place.segment], place) for op, place in into.items()}
        self._executable(program).write(self._state(state), context, self._rows(dataset), made)
        return {}

    def roots(
        self, program: bytes, state: Sequence[Spot | None], context: StepContext, dataset: Spot | None
    ) -> dict[str, Any]:
        """Returns the roots of all ops' outputs."""
        found = self._executable(program).roots(self._state(state), context, self._rows(dataset))
        return {"roots": b"".join(found)}

    def outputs(
        self, program: bytes, state: Sequence[Spot | None], context: StepContext, dataset: Spot | None,
        into: dict[int, Spot],
    ) -> dict[str, Any]:  # fmt: skip
        """Computes the outputs of some ops; `into` has the shared memory for each op's output."""
        made = self._executable(program).outputs(self._state(state), context, self._rows(dataset), frozenset(into))
        for op, place in into.items():
            self._write(place, made[op])
        return {}

    # -- inside

    def _planned(self, params: JobParams, role: footprint.Role) -> dict[str, Any]:
        self._spec, self._schedule = load_programs(params, self._store)
        programs = self._schedule
        for program in (programs.step, programs.encode, programs.merge):
            self._programs[program.root] = program
            self._executable(program.root)
        return {
            "operations": str(slot_operations(programs, params.role.inner_steps)),
            "memory": role(programs, params.role.slots).total,
            "results": footprint.of_program(programs.step).results,
        }

    @property
    def _furnished(self) -> Job:
        assert self._job is not None, "furnished before"
        return self._job

    def _executable(self, root: bytes) -> Executable:
        if root not in self._ready:
            self._ready[root] = paths.compile(self._programs[root], threads=self._threads, path=self._path)
        return self._ready[root]

    def _at(self, place: Spot) -> Array:
        array = array_at(self._memory[place.segment], place)
        array.flags.writeable = False
        return array

    def _state(self, places: Sequence[Spot | None]) -> list[Array | None]:
        """Returns the state's arrays; one tensor at two entries becomes one array."""
        known: dict[Spot, Array] = {}
        return [None if p is None else known.setdefault(p, self._at(p)) for p in places]

    def _rows(self, place: Spot | None) -> Array | None:
        return None if place is None else self._at(place)

    def _write(self, place: Spot, array: Array | None) -> None:
        assert array is not None, "an op puts out a tensor"
        np.copyto(array_at(self._memory[place.segment], place), array.reshape(place.shape))


def _pace_fields(pace: capacity.Pace) -> dict[str, Any]:
    return {"step": pace.step, "shown": pace.shown, "merge": pace.merge}


class AskedStore(ContentStore):
    """The parent's store: every block comes through the parent, which verifies and counts it."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe

    @property
    def url(self) -> str:
        """Empty: no other process can reach this store."""
        return ""

    def check(self) -> None:
        """Does nothing: the parent has checked the store."""

    @cached_property
    def cache(self) -> BlobCache:
        """Returns the parent's cache, restricted to what a child may use."""
        return AskedCache(self._asked)

    def fetch_block(self, cid: Cid) -> bytes:
        """Fetches one block through the parent."""
        return bytes(self._asked({"want": "block", "cid": cid, "size": 0})[0])

    def blob(self, cid: str, size: int) -> memoryview:
        """Returns a blob, mapped from the parent's cache if it is large."""
        data, handles = self._asked({"want": "blob", "cid": cid, "size": size})
        if not handles:
            return memoryview(data)
        try:
            return mapped(handles[0], size).data
        except OSError as error:
            raise Unmapped(str(error.strerror)) from error
        finally:
            os.close(handles[0])

    def blobs(self, wanted: Sequence[tuple[Cid, int]]) -> list[memoryview]:
        """Fetches several blobs through the parent, one after the other."""
        return [self.blob(*pair) for pair in wanted]

    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        """Raises UsageError: a confined child stores nothing."""
        raise UsageError("a confined child stores nothing")

    def put_stream(self, file: BinaryIO) -> Cid:
        """Raises UsageError: a confined child stores nothing."""
        raise UsageError("a confined child stores nothing")

    def has(self, cid: str) -> bool:
        """Returns False: the child has no blocks of its own."""
        return False

    def _asked(self, what: dict[str, Any]) -> tuple[bytes, list[int]]:
        wire.answer(self._pipe, what)
        answered, handles = wire.ordered(self._pipe)
        if isinstance(answered, LockstepError):
            raise answered
        return answered, handles


class AskedCache(BlobCache):
    """The parent's cache of blobs, read-only."""

    def __init__(self, ask: Callable[[dict[str, Any]], object]) -> None:
        super().__init__(Path("/"), 0)
        self._ask = ask

    def tree(self, cid: Cid, compute: Callable[[], Digest]) -> Digest:
        """Computes the root each time: a child's results are not cached."""
        return compute()

    def refresh(self, cid: Cid) -> None:
        """Asks the parent to compare its file of a blob with the CID."""
        self._ask({"want": "refresh", "cid": cid, "size": 0})
