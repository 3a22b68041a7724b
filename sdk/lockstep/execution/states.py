"""Stores states of claims on disk, so that a game's move continues from the nearest one instead of replaying the claim.

Each state is a file `<folder>/<claim>/<t>.state`: a line of JSON, then the tensors that S_0 does not share. Files are
replaced atomically and synced, and used only if their tensors hash to the requested root.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.files import write_atomically
from lockstep.base.log import Logger
from lockstep.execution.jobs import ClaimRun, Entries, Job, State
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.jobs import Body
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.types import ClaimId, Seed, StateRoot, TraceRoot
from lockstep.storage.tensors import head_line, read_tensors, tensor_at, words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

log = Logger(__name__)

SUFFIX = ".state"
OF_START = -1
"""Marks an entry whose tensor is that of S_0 at the same place, in place of an entry's number."""

Need = Mapping[ClaimId, "Collection[int]"]
"""States S_t that open games need, by claim, the claim with the earliest deadline first."""


@dataclass(frozen=True)
class _StateFile:
    """One state on disk."""

    claim: ClaimId
    t: int
    path: Path
    size: int
    used: float


class States:
    """States of claims in a folder of bounded size; those that no game needs are removed first. Safe for threads."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` bounds the bytes of all files together."""
        self._folder = folder
        self._limit = limit
        self._need: Need = {}
        self._lock = threading.Lock()

    def need(self, states: Need) -> None:
        """Sets the states that open games need: they are removed last."""
        self._need = {claim: frozenset(ts) for claim, ts in states.items()}

    def kept(self, claim: ClaimId) -> list[int]:
        """Returns every t > 0 whose S_t is on disk, in ascending order."""
        return sorted(f.t for f in self._of(claim) if f.t > 0)

    def save(self, claim: ClaimId, run: ClaimRun, t: int, state: State) -> bool:
        """Saves S_t if there is room among less needed states; returns True if it is on disk now."""
        path = self._path(claim, t)
        with self._lock:
            if path.exists():
                return True
            entries, parts = _packed(state, run.start if t else None)
            head: dict[str, Any] = {"t": t, "entries": entries}
            if t == 0:
                head |= {"slot": run.slot, "round": run.round, "seed": run.seed.hex(), "root": _root(run, state).hex()}
                head["carried"] = None if run.carried is None else [w.hex() for w in run.carried.words]
            line = head_line(head)
            size = len(line) + sum(len(p) for p in parts)
            if not self._make_room(_StateFile(claim, t, path, size, float("inf"))):
                return False
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(path, chain([line], parts))
            except (LockstepError, OSError) as error:
                # A full disk costs time in games, but is no error.
                log.warning(
                    "a state could not be written to disk: a dispute may have to replay the claim",
                    claim=claim.hex(),
                    t=t,
                    why=str(error),
                )
                return False
            return True

    def load(self, claim: ClaimId, run: ClaimRun, t: int, root: StateRoot) -> State | None:
        """Returns the tensors of S_t, t > 0; None if they are not stored or do not hash to `root`."""
        found = self._read(self._path(claim, t))
        if found is None:
            return None
        head, body = found
        try:
            state = _unpacked(run.program(t).output_layout, head["entries"], body, run.start)
        except (ValueError, KeyError, TypeError, IndexError):
            state = None
        # INVARIANT: a move is made only from a state that hashes to its root.
        if state is None or run.root(t, state) != root:
            log.warning("a kept state is damaged", claim=claim.hex(), t=t)
            self._path(claim, t).unlink(missing_ok=True)
            return None
        return state

    def start(self, claim: ClaimId, job: Job) -> ClaimRun | None:
        """Returns the claim's computation from its stored S_0; None if that is missing or damaged."""
        found = self._read(self._path(claim, 0))
        if found is None:
            return None
        head, body = found
        try:
            slot, number = int(head["slot"]), int(head["round"])
            carried = None
            if head["carried"] is not None:
                trace, out, out2 = (bytes.fromhex(w) for w in head["carried"])
                carried = Body(TraceRoot(trace), StateRoot(out), StateRoot(out2))
            layout = job.programs.of(slot, 1, job.params.role.inner_steps).inputs
            state = _unpacked(layout, head["entries"], body, None)
            run = ClaimRun(job, slot, number, Seed(bytes.fromhex(head["seed"])), state, carried)
            if run.root(0, state).hex() != head["root"]:
                raise ValueError("S_0 is damaged")
        except (LockstepError, ValueError, KeyError, TypeError, IndexError) as error:
            log.warning("a kept state is damaged", claim=claim.hex(), t=0, why=str(error))
            self._path(claim, 0).unlink(missing_ok=True)
            return None
        return run

    def forget(self, claim: ClaimId) -> None:
        """Removes the states of a claim that can no longer be challenged."""
        shutil.rmtree(self._folder / claim.hex(), ignore_errors=True)

    # -- inside

    def _path(self, claim: ClaimId, t: int) -> Path:
        return self._folder / claim.hex() / f"{t}{SUFFIX}"

    def _of(self, claim: ClaimId) -> Iterator[_StateFile]:
        for path in (self._folder / claim.hex()).glob(f"*{SUFFIX}"):
            try:
                told = path.stat()
                yield _StateFile(claim, int(path.name.removesuffix(SUFFIX)), path, told.st_size, told.st_mtime)
            except (OSError, ValueError):
                continue

    def _all(self) -> list[_StateFile]:
        found: list[_StateFile] = []
        for folder in self._folder.glob("*"):
            try:
                found += self._of(ClaimId(bytes.fromhex(folder.name)))
            except ValueError:
                continue
        return found

    def _make_room(self, new: _StateFile) -> bool:
        """Removes states that are needed less than `new`, as many as necessary; returns True if there is room now."""
        files = sorted(self._all(), key=self._rank)
        over = sum(f.size for f in files) + new.size - self._limit
        gone: list[_StateFile] = []
        for file in files:
            if over <= 0 or self._rank(file) >= self._rank(new):
                break
            gone.append(file)
            over -= file.size
        if over > 0:
            return False
        for file in gone:
            file.path.unlink(missing_ok=True)
        return True

    def _rank(self, file: _StateFile) -> tuple[int, int, float]:
        """Sort key, lowest removed first: claims without a game, then waypoints, then states for late deadlines."""
        order = list(self._need)
        if file.claim not in self._need:
            return 0, 0, file.used
        wanted = file.t == 0 or file.t in self._need[file.claim]
        return 1 + wanted, -order.index(file.claim), file.used

    def _read(self, path: Path) -> tuple[dict[str, Any], memoryview] | None:
        try:
            return read_tensors(path)
        except (OSError, ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class ClaimStates:
    """One claim's states on disk."""

    states: States
    claim: ClaimId

    def kept(self) -> list[int]:
        """Every t > 0 whose S_t is on disk."""
        return self.states.kept(self.claim)

    def save(self, run: ClaimRun, t: int, state: State) -> bool:
        """Saves S_t; returns True if it is on disk now."""
        return self.states.save(self.claim, run, t, state)

    def load(self, run: ClaimRun, t: int, root: StateRoot) -> State | None:
        """Returns the tensors of S_t if they are stored and hash to `root`."""
        return self.states.load(self.claim, run, t, root)


def _root(run: ClaimRun, state: State) -> StateRoot:
    return run.root(0, state)


def _packed(state: State, start: State | None) -> tuple[list[tuple[int, int]], list[memoryview]]:
    """Returns (one (entry, source) per tensor, the tensors to write); an object that occurs twice is written once."""
    entries: list[tuple[int, int]] = []
    parts: list[memoryview] = []
    first: dict[int, int] = {}
    for k, tensor in enumerate(state):
        if tensor is None:
            continue
        if start is not None and k < len(start) and tensor is start[k]:
            entries.append((k, OF_START))
        elif id(tensor) in first:
            entries.append((k, first[id(tensor)]))
        else:
            first[id(tensor)] = k
            entries.append((k, k))
            parts.append(words_of(tensor))
    return entries, parts


def _unpacked(
    layout: Sequence[TensorHeader | None], entries: Sequence[Sequence[int]], body: memoryview, start: State | None
) -> State:
    """Returns the tensors of a state. Raises ValueError if a file does not fit the layout."""
    state: Entries = [None] * len(layout)
    at = 0
    for k, source in entries:
        header = layout[k]
        if header is None:
            raise ValueError(f"entry {k} is EMPTY")
        if source == OF_START:
            if start is None:
                raise ValueError("S_0 names itself")
            state[k] = start[k]
        elif source == k:
            state[k], at = tensor_at(body, at, header)
        else:
            state[k] = state[source]
    if at != len(body):
        raise ValueError(f"{len(body)} bytes where {at} are due")
    return state
