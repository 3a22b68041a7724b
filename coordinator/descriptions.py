"""Reads the authors' descriptions of jobs, and the names of operations in their Programs, from the store.

One thread reads, one job after the other; a request waits a moment for what is new and then does without. What is kept
is bounded: strangers write these files.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from coordinator.disputes import ENCODE, MERGE, STEP, NamedOp, role_of
from coordinator.models import JobRow, unhex
from coordinator.schema import DescriptionOut
from lockstep.base.log import Logger
from lockstep.execution.rates import work_of
from lockstep.protocol.programs.program import Kind, Program
from lockstep.storage import ContentStore, cid_of_digest
from lockstep.storage.containers import JobSpec, decode_program
from lockstep.storage.dataset import load_manifest

WAIT_SECONDS = 1.0
"""Seconds that a request waits for a description that was never read."""
AGAIN_SECONDS = 60.0
"""Seconds after which unavailable data are requested again."""
KEPT = 1024
WAITING = 64
PROGRAM_BYTES = 16 << 20
"""A larger Program file is not read, nor a file with more constants beside it: its job is shown without names."""
WORDS = 80
"""The most characters that are shown of an author's text."""
NAMES = ("kind", "name", "model")
"""The fields that say which model or strategy it is: they come first, without their names."""
FIELDS = 6
"""The most fields of a model or a strategy that are shown."""

log = Logger(__name__)


@dataclass(frozen=True)
class _Wanted:
    key: Hashable
    read: Callable[[], Any]


class Descriptions:
    """Caches requested descriptions and operations; thread-safe."""

    def __init__(self, store: ContentStore | None, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._store = store
        self._wait_seconds = wait_seconds
        self._queue: queue.Queue[_Wanted] = queue.Queue(WAITING)
        self._known: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()
        """By request: the answer (None if there is none) and the time at which it was found."""
        self._pending: set[Hashable] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def of(self, job: JobRow, *, wait: bool = True) -> DescriptionOut | None:
        """Returns a job's description; None while it is unavailable."""
        spec, root = str(job.params.get("spec", {}).get("digest", "")), str(role_of(job).get("step_program", ""))
        found: DescriptionOut | None = self._get(("job", spec, root), lambda: self._described(spec, root), wait)
        if found is None:
            return None
        rows: str | None = self._get(("rows", spec), lambda: self._rows(spec), wait)
        return found.model_copy(update={"rows": rows}) if rows else found

    def op(self, job: JobRow, program: str | None, position: int | None) -> NamedOp | None:
        """Returns an operation of one of a job's Programs; None while it is unavailable."""
        if program is None or position is None:
            return None
        spec, role = str(job.params.get("spec", {}).get("digest", "")), role_of(job)
        roots = {STEP: role.get("step_program"), ENCODE: role.get("encode_program")}
        root = str(job.params.get("merge", {}).get("program") if program == MERGE else roots[program])
        key = ("op", spec, program, root, position)
        found: NamedOp | None = self._get(key, lambda: self._named(spec, program, root, position), True)
        return found

    # -- reading

    def _described(self, digest: str, root: str) -> DescriptionOut:
        spec = self._spec(digest)
        step = self._program(spec, STEP, root)
        drawn = sum(op.header.elements for op in step.ops if op.kind == Kind.DRAW)
        return DescriptionOut(
            title=spec.title, model=_words(spec.model), strategy=_words(spec.strategy),
            arithmetic=_words(spec.arithmetic) or "float32", tokens_per_step=drawn,
            operations_per_step=work_of(step).operations,
        )  # fmt: skip

    def _rows(self, digest: str) -> str:
        """Returns the fields of a row; empty for rows of tokens."""
        assert self._store is not None, "asked for by `_get`"
        form = load_manifest(self._store, self._spec(digest).dataset).form
        return "" if form is None else str(form)[:WORDS]

    def _named(self, digest: str, program: str, root: str, position: int) -> NamedOp | None:
        found = self._program(self._spec(digest), program, root)
        if position >= len(found.ops):
            return None
        return NamedOp(found.ops[position], found.name_of(position)[:WORDS])

    def _spec(self, digest: str) -> JobSpec:
        assert self._store is not None, "asked for by `_get`"
        block = self._store.fetch_block(cid_of_digest(unhex(digest), "dag-cbor"))
        return JobSpec.decode(block, unhex(digest))

    def _program(self, spec: JobSpec, name: str, root: str) -> Program:
        assert self._store is not None, "asked for by `_get`"
        # INVARIANT: what is named is an operation of the Program that the job commits to.
        return decode_program(
            self._store.get(spec.programs[name], max_bytes=PROGRAM_BYTES), unhex(root), self._store,
            most_beside=PROGRAM_BYTES,
        )  # fmt: skip

    # -- keeping

    def _get(self, key: Hashable, read: Callable[[], Any], wait: bool) -> Any:
        if self._store is None:
            return None
        with self._changed:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                if known[0] is not None or time.monotonic() - known[1] < AGAIN_SECONDS:
                    return known[0]
            if key not in self._pending:
                self._ask(_Wanted(key, read))
            if wait and known is None and key in self._pending:
                self._changed.wait_for(lambda: key not in self._pending, self._wait_seconds)
                return self._known.get(key, (None, 0.0))[0]
        return None

    def _ask(self, wanted: _Wanted) -> None:
        try:
            self._queue.put_nowait(wanted)
        except queue.Full:
            return
        self._pending.add(wanted.key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="descriptions", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            wanted = self._queue.get()
            found = None
            try:
                found = wanted.read()
            except Exception as error:
                log.info("a job's files cannot be read", why=f"{type(error).__name__}: {error}"[:200])
            with self._changed:
                self._known[wanted.key] = (found, time.monotonic())
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
                self._pending.discard(wanted.key)
                self._changed.notify_all()


def _words(fields: Any) -> str:
    """Formats the first plain values of an author's mapping as one line, the model's or strategy's name first."""
    if not isinstance(fields, dict):
        return ""
    first = sorted(fields.items(), key=lambda item: item[0] not in NAMES)
    plain = [(k, v) for k, v in first if isinstance(v, str | int | float) and not isinstance(v, bool)]
    said = [str(v)[:WORDS] if k in NAMES else f"{str(k)[:WORDS]} {str(v)[:WORDS]}" for k, v in plain[:FIELDS]]
    return ", ".join(said)
