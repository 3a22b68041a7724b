"""The parent's side of one confined child: starts it, sends orders with a timeout, and ends it.

    with Box(limits, store) as box:
        box.call("load", seconds=60, params=params, ...)      # raises what the work raised, Crashed, or Cancelled

Every answer of a child is parsed as untrusted input. A child that dies, is late or sends an invalid answer is not used
again.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.base.closing import Closing
from lockstep.base.decoding import Reader, anything, either, one_of, several, table, text, whole
from lockstep.base.escaping import on_one_line
from lockstep.base.machine import readable
from lockstep.execution.box import wire
from lockstep.execution.box.confinement import Allowance
from lockstep.execution.box.segments import Segments
from lockstep.protocol.errors import (
    BlobCorrupt,
    Crashed,
    DoctorError,
    LockstepError,
    Malformed,
    Mismatch,
    PayloadInvalid,
    ProgramInvalid,
    TryLater,
    Unfit,
    UsageError,
    WrongBits,
)
from lockstep.protocol.types import Cid
from lockstep.storage import ContentStore

START_SECONDS = 120.0
"""Time limit for a child to start, in seconds, even on a busy machine."""
HINT = "the job is refused here; `retry`, of the program that looked at it, has it tried again"
TELLS = "`lockstep doctor` tells more"
CHILD, INMATE = "lockstep.execution.box.child", "lockstep.execution.box.inmate"
ISOLATED = (sys.executable, "-I")
"""Python without the user's site packages and environment variables, so that a child runs only installed code."""
INSTALLED = "it runs `python -I`, which reads no PYTHONPATH: install lockstep into the environment of that Python"
KILLED = "the kernel ended it, as when memory runs out (SIGKILL)"
GRACE_SECONDS = 10.0
"""Seconds after which a child that has closed its end of the connection is killed."""
SAYS = {
    error.__name__: error
    for error in (LockstepError, UsageError, ProgramInvalid, Unfit, WrongBits, Mismatch, BlobCorrupt, PayloadInvalid)
}
"""Errors that a child may report as its own; the store's errors come from the parent."""
_WANTS: Reader[Any] = table({"want": one_of("block", "blob", "refresh"), "cid": text(256), "size": whole(0, 1 << 40)})
_ERROR = table({"kinds": several(text(64), 16), "message": text(), "hint": text()})
_ANSWER = either(
    table({"done": anything}), either(table({"error": _ERROR}), _WANTS)
)  # fmt: skip
_READY = either(table({"ready": several(text(), 16)}), table({"refused": whole(0, 1 << 16)}))
PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EINTR})
"""Temporary system errors: too few processes, too little memory, too many files."""
LEAST_ASKED = 1 << 12
"""Least bytes that a request counts for."""


class Starved(Crashed):
    """The kernel killed the child process or refused it memory: the machine lacks memory, or the job needs too much."""


class Overdue(Crashed):
    """The child process was killed because its work exceeded the time limit."""


class Cancelled(Exception):
    """This process has ended the child or its work."""


_LIVE: weakref.WeakSet[Box] = weakref.WeakSet()


def end_all() -> None:
    """Ends every child of this process; calls in progress raise Cancelled."""
    for box in list(_LIVE):
        box.cancel()


class Box(Closing):
    """One child process. Several threads may use it, one at a time; any of them may `cancel`."""

    def __init__(
        self, limits: Allowance, store: ContentStore | None = None, folder: Path | None = None, *, walls: bool = True
    ) -> None:
        """`folder` is the only place that it may write. Raises TryLater if no child can be started now, DoctorError if
        this system cannot start any.

        `walls` False disables confinement, for tests on systems that do not offer it.
        """
        self.segments = Segments()
        self.lacking: list[str] = []
        """Parts of the confinement that the kernel does not offer."""
        self._store = store
        self._limits = limits
        self._asked = 0
        self._store_error: LockstepError | None = None
        self._busy = threading.Lock()
        self._cancelled = threading.Event()
        self._left = threading.Event()
        """Set once the last user must close the child."""
        self._end: str | None = None
        """The reason why the child is dead; None while it is alive."""
        self._rests: list[bytes] = []
        ours, theirs = socket.socketpair()
        self._wire = ours
        with theirs:
            try:
                self._process = _started(theirs, folder)
            except OSError as error:
                ours.close()
                raise _refused(error.errno or 0) from error
        _LIVE.add(self)
        try:
            self._hello(folder, walls)
        except BaseException:
            self.close()
            raise

    def call(self, verb: str, *, seconds: float, read: Reader[Any] = anything, **given: Any) -> Any:
        """Sends an order to the child and returns its answer, parsed by `read`.

        Raises the work's error if a child may report it; Crashed if the child dies, does not answer within `seconds` or
        sends an invalid answer; Cancelled once this process has ended it. Time spent waiting for the store does not
        count.
        """
        try:
            return self._answered(verb, given, seconds, read)
        finally:
            if self._left.is_set():
                self.leave()

    def _answered(self, verb: str, given: Mapping[str, Any], seconds: float, read: Reader[Any]) -> Any:
        with self._busy:
            try:
                return read(self._called(verb, given, seconds), "the answer")
            except wire.Ended as error:
                why = self._death()
                raise self._dead(why, Starved if why == KILLED else Crashed) from error
            except wire.Late as error:
                raise self._dead(f"it was not done after {seconds:.0f} s", Overdue) from error
            except (OverflowError, Malformed) as error:
                raise self._dead(f"its answer is malformed: {error}") from error

    def free_scratch(self, root: bytes) -> None:
        """Releases the memory that the child keeps for a Program's next run, at its next order."""
        self._rests.append(root)

    @property
    def alive(self) -> bool:
        """False once the child is dead."""
        return self._end is None and not self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends the child and its work; a call in progress raises Cancelled."""
        self._cancelled.set()
        self._kill()

    def close(self) -> None:
        """Ends the child, and waits until no thread uses it."""
        self.cancel()
        with self._busy:
            self._clear()

    def leave(self) -> None:
        """Ends the child without waiting; the thread that uses it closes it."""
        self._left.set()
        self.cancel()
        if self._busy.acquire(blocking=False):
            try:
                self._clear()
            finally:
                self._busy.release()

    # -- inside

    def _clear(self) -> None:
        with suppress(OSError):
            self._wire.close()
            self.segments.close()
        self._process.wait()

    def _hello(self, folder: Path | None, walls: bool) -> None:
        until = time.monotonic() + START_SECONDS
        try:
            wire.order(self._wire, (self._limits, folder, walls), until=until)
            said = _READY(wire.answered(self._wire, until), "the greeting")
        except (wire.Ended, wire.Late, OverflowError, Malformed) as error:
            why = self._death() if isinstance(error, wire.Ended) else "it says nothing that could be read"
            if not self._cancelled.is_set() and (missing := _missing()):
                raise DoctorError(f"no confined process could be started: {missing}", INSTALLED) from error
            raise TryLater(f"no confined process could be started: {why}", TELLS) from error
        if "refused" in said:
            raise _refused(said["refused"])
        self.lacking = said["ready"]

    def _called(self, verb: str, given: Mapping[str, Any], seconds: float) -> Any:
        if not self.alive:
            raise wire.Ended
        self._store_error, until = None, time.monotonic() + seconds
        self._tell(until, verb=verb, given=given, seconds=seconds)
        while True:
            said = _ANSWER(wire.answered(self._wire, until), "the answer")
            # INVARIANT: who has ended the child gets no result: it outlives its end by a moment, and may answer.
            if self._cancelled.is_set():
                raise Cancelled
            if "done" in said:
                return said["done"]
            if "error" in said:
                raise self._raised(**said["error"])
            until = self._serve(said["want"], Cid(said["cid"]), said["size"], until)

    def _tell(self, until: float, **order: Any) -> None:
        news, gone = self.segments.news, self.segments.gone
        while len(news) > wire.MOST_HANDLES:
            self._send_news([news.pop(0) for _ in range(wire.MOST_HANDLES)], {}, until)
        order |= {"gone": gone[:], "rest": self._rests[:]}
        gone.clear()
        self._rests.clear()
        self._send_news([news.pop(0) for _ in range(len(news))], order, until)

    def _send_news(self, news: list[Any], order: dict[str, Any], until: float) -> None:
        described = [(segment.number, segment.size, segment.memory is not None) for segment in news]
        wire.order(self._wire, {"news": described, **order}, [segment.handle for segment in news], until)
        # INVARIANT: however many tensors are kept, no open file is: a child started anew is given them anew.
        for segment in news:
            segment.shut()

    def _serve(self, want: str, cid: Cid, size: int, until: float) -> float:
        """Sends requested content to the child; returns `until`, extended by the time spent waiting for the store."""
        self._asked += max(size, LEAST_ASKED)
        # INVARIANT: a child is handed no more than its job may hold.
        if self._store is None or self._asked > self._limits.memory + self._limits.shared:
            raise Malformed(f"it asks for more than {readable(self._limits.memory)}")
        began, found, handles = time.monotonic(), b"", list[int]()
        # INVARIANT: a child that asks on after the store has failed has the store waited for no more.
        if self._store_error is None:
            try:
                found, handles = self._fetched(self._store, want, cid, size)
            except LockstepError as error:
                self._store_error = error
        until += time.monotonic() - began
        failed = self._store_error
        try:
            # INVARIANT: a child that does not read what it asked for is late as any other.
            answer = found if failed is None else LockstepError(failed.message, failed.hint)
            wire.order(self._wire, answer, handles, until)
        finally:
            for handle in handles:
                os.close(handle)
        return until

    def _fetched(self, store: ContentStore, want: str, cid: Cid, size: int) -> tuple[bytes, list[int]]:
        """Returns (bytes, descriptors of open files in place of bytes) of content."""
        if want == "refresh":
            store.cache.refresh(cid)
            return b"", []
        if want == "block":
            block = store.fetch_block(cid)
            self._asked += len(block)
            return block, []
        blob = store.blob(cid, size)
        try:
            return b"", [os.open(store.cache.folder / cid, os.O_RDONLY | os.O_CLOEXEC)]
        except (OSError, LockstepError):
            return bytes(blob), []

    def _raised(self, kinds: Sequence[str], message: str, hint: str) -> LockstepError:
        """Returns the error that a child reports, or the parent's own store error that caused it."""
        if self._store_error is not None:
            return self._store_error
        if "Unmapped" in kinds:
            return self._dead(f"it could not be given more memory: {on_one_line(message)}", Starved)
        if "MemoryError" in kinds:
            return self._dead(f"it needs more than {readable(self._limits.memory)} of memory")
        kind_of_error = next((SAYS[kind] for kind in kinds if kind in SAYS), LockstepError)
        return kind_of_error(on_one_line(message), on_one_line(hint))

    def _dead(self, why: str, kind: type[Crashed] = Crashed) -> LockstepError:
        self._kill()
        if self._cancelled.is_set():
            raise Cancelled
        self._end = self._end or why
        return kind(f"what runs its Programs was ended: {self._end}", HINT)

    def _death(self) -> str:
        """Describes how the child died."""
        if self._end is not None:
            return self._end
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "it left its parent"
        number = -code if code < 0 else code - 128
        try:
            name = signal.Signals(number).name
        except ValueError:
            return f"exit status {code}"
        return KILLED if name == "SIGKILL" else name

    def _kill(self) -> None:
        with suppress(OSError):
            self._process.kill()


def _refused(number: int) -> LockstepError:
    """Returns the error for a system error at the start of a child."""
    why = f"no confined process could be started: {os.strerror(number)}"
    # INVARIANT: what will never be is not waited for: its owner is told.
    return TryLater(why, TELLS) if number in PASSING else DoctorError(why, TELLS)


def _missing() -> str:
    """Returns Python's message if a module that a child needs is missing; "" otherwise."""
    try:
        found = subprocess.run(
            [*ISOLATED, "-c", f"import {CHILD}, {INMATE}"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START_SECONDS, env=_environment("/nonexistent"),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    reason = on_one_line(found.stderr.strip().rpartition("\n")[2])
    return reason if reason.startswith("ModuleNotFoundError") else ""


def _environment(place: str) -> dict[str, str]:
    """Returns the environment of a child whose own files are at `place`."""
    passed = {name: os.environ[name] for name in ("PATH", "CXX", "LOCKSTEP_FUSED") if name in os.environ}
    return {
        **passed, "LANG": "C.UTF-8", "HOME": place, "TMPDIR": place, "LOCKSTEP_CACHE": place,
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "4",
    }  # fmt: skip


def _started(theirs: socket.socket, folder: Path | None) -> subprocess.Popen[bytes]:
    # INVARIANT: no secret of the parent's environment, and no open file of it, reaches a child.
    return subprocess.Popen(
        [*ISOLATED, "-m", CHILD, str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd="/" if folder is None else folder, start_new_session=True,
        env=_environment("/nonexistent" if folder is None else str(folder)),
    )  # fmt: skip
