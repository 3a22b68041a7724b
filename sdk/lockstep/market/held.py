"""A claim as one party computed it, whose steps are materialised on demand and cached in memory and on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.execution.jobs import ClaimRun, State
from lockstep.numerics.arrays import Array
from lockstep.numerics.trace import StepTrace, TensorCache
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.openings import CommittedTensor, Levels, MaterialisedStep
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import StateRoot, TensorRoot

if TYPE_CHECKING:
    from lockstep.execution.states import ClaimStates

WAYPOINTS = 16
"""Number of states along a claim that a replay leaves on disk, so that a later game replays only a part of the
claim."""


class NotCached(Exception):
    """Raised if a move needs data that is not in memory and takes time to compute."""


@dataclass(eq=False)
class HeldClaim:
    """A claim as one party computed it, with its steps materialised on demand.

    A cache has states and single tensors of steps, which can be recomputed; with `states`, states for games are also on
    disk. The tree of a materialised step stays in memory.
    """

    run: ClaimRun
    trace: Sequence[StateRoot]
    """S_1 .. S_T of this computation."""
    cache: MemoryCache = field(default_factory=MemoryCache, repr=False)
    """A cache that all claims of a process share."""
    states: ClaimStates | None = field(default=None, repr=False)
    wanted: frozenset[int] = frozenset()
    """Transitions that open games dispute."""
    _trees: dict[int, Tree] = field(default_factory=dict, repr=False)
    _pinned: dict[int, MaterialisedStep] = field(default_factory=dict, repr=False)
    """Steps that cannot be recomputed from the run."""

    @staticmethod
    def of(run: ClaimRun) -> HeldClaim:
        """Runs a claim to its end."""
        return HeldClaim(run, [root for _, _, root in run.states()])

    @cached_property
    def state_zero(self) -> StateRoot:
        """The root of S_0, the claim's initial state."""
        return self.run.root(0, self.run.start)

    @property
    def carried(self) -> moves.Proof:
        """The body of the claim whose carry is in S_0, as words; empty if the carry is zero."""
        return () if self.run.carried is None else self.run.carried.words

    def step(self, t: int) -> MaterialisedStep:
        """Returns transition t, for one move, with everything that a game may request."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            self.whole(t)
        return ShownStep(self._trees[t], self.place(t), lambda: self.whole(t))

    def cached(self, t: int) -> MaterialisedStep:
        """Returns transition t as far as it is in memory; raises NotCached, now or on access, for missing data."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            raise NotCached
        return ShownStep(self._trees[t], self.place(t), lambda: self._in_memory(t))

    def has(self, t: int) -> bool:
        """Returns True if transition t can be materialised without a replay: S_{t-1} is in memory."""
        return t in self._pinned or any((self, kind, t) in self.cache for kind in ("step", "state"))

    def whole(self, t: int) -> StepTrace:
        """Returns transition t from the tensors of S_{t-1}, which are recomputed if they were evicted."""
        known: StepTrace | None = self.cache.get((self, "step", t))
        if known is not None:
            return known
        before = self.approach(t)
        assert before is not None, "nothing limits the time"
        return self.hold(t, before)

    def hold(self, t: int, before: State) -> StepTrace:
        """Materialises transition t from the tensors of S_{t-1} and builds its tree."""
        self._keep_state(t, before)
        step = replace(self.run.materialise(t, before), place=self.place(t))
        if t not in self._trees:
            self._trees[t] = Tree(step.program, step.graph, step.prev)
        # Its state was cached just now, and takes no memory of its own.
        self.cache.drop((self, "state", t))
        self.cache.put((self, "step", t), step, bytes_of(before, self.run.start), lambda: t in self.wanted)
        return step

    def place(self, t: int) -> TensorCache:
        """Returns the cache that holds the tensors of transition t between moves."""
        return TensorCache(self.cache, (self, "tensors", t), lambda: t in self.wanted)

    def keep(self, t: int, step: MaterialisedStep) -> None:
        """Pins a transition that was materialised elsewhere."""
        self._pinned[t] = step

    def approach(self, t: int, seconds: float = inf) -> State | None:
        """Returns the tensors of S_{t-1}, computed from the nearest stored state; None if that takes longer than
        `seconds`.

        Intermediate states are stored, so that the next call continues from there.
        """
        began = time.monotonic()
        k, state = self._nearest(t)
        while k < t:
            if time.monotonic() - began > seconds:
                self._put_state(k, state)
                return None
            state = self.run.advance(k, state)
            k += 1
            if k in self.wanted or (k - 1) % self._stride == 0:
                self._keep_state(k, state)
        self._keep_state(t, state)
        return state

    @property
    def _stride(self) -> int:
        return -(-self.run.transitions // WAYPOINTS)

    def _nearest(self, t: int) -> tuple[int, State]:
        """Returns (k, the tensors of S_{k-1}) for the largest available k <= t."""
        on_disk = [] if self.states is None else [s + 1 for s in self.states.kept() if s < t]
        for k in sorted({*on_disk, *range(2, t + 1)}, reverse=True):
            state = self._shelved(k)
            if state is None and k in on_disk and self.states is not None:
                state = self.states.load(self.run, k - 1, self.trace[k - 2])
                if state is not None:
                    self._put_state(k, state)
            if state is not None:
                return k, state
        return 1, self.run.start

    def _in_memory(self, t: int) -> StepTrace:
        known: StepTrace | None = self.cache.get((self, "step", t))
        if known is None:
            raise NotCached
        return replace(known, made=InMemory())

    def _shelved(self, t: int) -> State | None:
        """Returns the tensors of S_{t-1} if they are in memory."""
        step: StepTrace | None = self.cache.get((self, "step", t))
        state: State | None = self.cache.get((self, "state", t)) if step is None else list(step.before)
        return state

    def _keep_state(self, t: int, before: State) -> None:
        """Stores S_{t-1} on disk if `states` is given, and in the cache if a game disputes t or the disk does not have
        it.
        """
        if t == 1:
            return
        on_disk = self.states is not None and self.states.save(self.run, t - 1, before)
        if not on_disk or t in self.wanted:
            self._put_state(t, before)

    def _put_state(self, t: int, before: State) -> None:
        if t > 1 and (self, "step", t) not in self.cache:
            before = list(before)  # a device's memory is reserved for computing
            size = bytes_of(before, self.run.start)
            self.cache.put((self, "state", t), before, size, lambda: t in self.wanted)


@dataclass(frozen=True)
class Tree:
    """The part of a materialised step that stays in memory."""

    program: Program
    graph: Levels
    prev: Levels


class InMemory:
    """Outputs of a step's ops (`trace.OpOutputs`) that must not be computed: every access raises NotCached."""

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """Raises NotCached: the roots of a materialised step are in its tree."""
        raise NotCached

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """Raises NotCached: outputs in memory are found before this is called."""
        raise NotCached


class ShownStep:
    """A step during one move: its tree, and tensors from the cache; the whole step is recomputed only if a tensor is
    missing.
    """

    def __init__(self, tree: Tree, place: TensorCache, find: Callable[[], StepTrace]) -> None:
        self.program = tree.program
        self.graph = tree.graph
        self.prev = tree.prev
        self._place = place
        self._find = find

    @property
    def root(self) -> StateRoot:
        """The root of S_t, the state after the step."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    def output(self, op: int) -> CommittedTensor:
        """Returns the output tensor of an op."""
        found = self._place.get(op)
        return self._step.output(op) if found is None else found

    def state(self, entry: int) -> CommittedTensor:
        """Returns a tensor of S_{t-1}, the state before the step."""
        return self._step.state(entry)

    def dataset(self) -> CommittedTensor:
        """Returns the job's dataset."""
        return self._step.dataset()

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """Returns one level of a fold's partial results, as words."""
        return self._step.partials(op, element, group)

    @cached_property
    def _step(self) -> StepTrace:
        # A copy, so that the tensors that this move reads live exactly as long as the move.
        return replace(self._find())


@dataclass(frozen=True)
class CachedClaim:
    """A held claim restricted to what is in memory; raises NotCached for the rest."""

    known: HeldClaim | None
    """The held claim; None if the claim is not in memory at all."""

    @property
    def state_zero(self) -> StateRoot:
        """The root of S_0, the claim's initial state."""
        return self._held.state_zero

    @property
    def carried(self) -> moves.Proof:
        """The body of the claim whose carry is in S_0, as words."""
        return self._held.carried

    @property
    def trace(self) -> Sequence[StateRoot]:
        """S_1 .. S_T."""
        return self._held.trace

    def step(self, t: int) -> MaterialisedStep:
        """Returns transition t as far as it is in memory."""
        return self._held.cached(t)

    @property
    def _held(self) -> HeldClaim:
        if self.known is None:
            raise NotCached
        return self.known
