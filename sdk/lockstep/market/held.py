"""A claim as a party holds it: computed once, its steps materialised on demand, what is in memory first."""

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
"""States along a claim that a replay leaves on disk: the next game, on any step, replays a part of it alone."""


class NotCached(Exception):
    """A move needs what takes time to make."""


@dataclass(eq=False)
class HeldClaim:
    """A claim as one party computed it, its steps materialised on demand.

    What that takes (states, single tensors of steps) lies in a cache and can be made again; states that games argue
    from are on disk too, where `states` says so. A step's tree, once made, stays.
    """

    run: ClaimRun
    trace: Sequence[StateRoot]
    """S_1 .. S_T of this computation."""
    cache: MemoryCache = field(default_factory=MemoryCache, repr=False)
    """Shared by all claims of a process."""
    states: ClaimStates | None = field(default=None, repr=False)
    wanted: frozenset[int] = frozenset()
    """Transitions that open games are about."""
    _trees: dict[int, Tree] = field(default_factory=dict, repr=False)
    _pinned: dict[int, MaterialisedStep] = field(default_factory=dict, repr=False)
    """Steps that cannot be made again from the run."""

    @staticmethod
    def of(run: ClaimRun) -> HeldClaim:
        """Run a claim to its end."""
        return HeldClaim(run, [root for _, _, root in run.states()])

    @cached_property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return self.run.root(0, self.run.start)

    @property
    def carried(self) -> moves.Proof:
        """The words of the claim whose carry is in S_0; none if that is zero."""
        return () if self.run.carried is None else self.run.carried.words

    def step(self, t: int) -> MaterialisedStep:
        """Transition t with all that a game may ask of it, for one move."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            self.whole(t)
        return ShownStep(self._trees[t], self.place(t), lambda: self.whole(t))

    def cached(self, t: int) -> MaterialisedStep:
        """Transition t, as far as it is in memory; what is not raises NotCached, here or when it is asked for."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            raise NotCached
        return ShownStep(self._trees[t], self.place(t), lambda: self._in_memory(t))

    def has(self, t: int) -> bool:
        """Tells if transition t can be shown without a replay: S_{t-1} is in memory."""
        return t in self._pinned or any((self, kind, t) in self.cache for kind in ("step", "state"))

    def whole(self, t: int) -> StepTrace:
        """Transition t from the tensors of S_{t-1}, which are computed again if they had to go."""
        known: StepTrace | None = self.cache.get((self, "step", t))
        if known is not None:
            return known
        before = self.approach(t)
        assert before is not None, "nothing limits the time"
        return self.hold(t, before)

    def hold(self, t: int, before: State) -> StepTrace:
        """Materialise transition t from the tensors of S_{t-1}, where they are at hand; its tree is made now."""
        self._keep_state(t, before)
        step = replace(self.run.materialise(t, before), place=self.place(t))
        if t not in self._trees:
            self._trees[t] = Tree(step.program, step.graph, step.prev)
        # Its state is the one that was kept just now, and takes no memory of its own.
        self.cache.drop((self, "state", t))
        self.cache.put((self, "step", t), step, bytes_of(before, self.run.start), lambda: t in self.wanted)
        return step

    def place(self, t: int) -> TensorCache:
        """Returns the cache that holds the tensors of transition t between moves."""
        return TensorCache(self.cache, (self, "tensors", t), lambda: t in self.wanted)

    def keep(self, t: int, step: MaterialisedStep) -> None:
        """Keep a transition that was materialised elsewhere."""
        self._pinned[t] = step

    def approach(self, t: int, seconds: float = inf) -> State | None:
        """The tensors of S_{t-1}, from the nearest state that is kept; None if it takes longer than `seconds`.

        What was done in that time is kept: the next call goes on from there.
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
        """(k, the tensors of S_{k-1}), k <= t as large as can be had."""
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
        """The tensors of S_{t-1}, if they are in memory."""
        step: StepTrace | None = self.cache.get((self, "step", t))
        state: State | None = self.cache.get((self, "state", t)) if step is None else list(step.before)
        return state

    def _keep_state(self, t: int, before: State) -> None:
        """S_{t-1} in the cache if a game is about t, on disk if there is one."""
        if t == 1:
            return
        on_disk = self.states is not None and self.states.save(self.run, t - 1, before)
        if not on_disk or t in self.wanted:
            self._put_state(t, before)

    def _put_state(self, t: int, before: State) -> None:
        if t > 1 and (self, "step", t) not in self.cache:
            before = list(before)  # a device's memory is for what it computes
            size = bytes_of(before, self.run.start)
            self.cache.put((self, "state", t), before, size, lambda: t in self.wanted)


@dataclass(frozen=True)
class Tree:
    """The part of a materialised step that stays in memory."""

    program: Program
    graph: Levels
    prev: Levels


class InMemory:
    """The outputs of a step's ops (`trace.Made`) while none may be computed: raises NotCached."""

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of a step that was made, out of its tree."""
        raise NotCached

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """Raises NotCached: outputs in memory are found before this is called."""
        raise NotCached


class ShownStep:
    """A step as one move sees it: its tree, and tensors from where they lie; the step itself only if one is missing."""

    def __init__(self, tree: Tree, place: TensorCache, find: Callable[[], StepTrace]) -> None:
        self.program = tree.program
        self.graph = tree.graph
        self.prev = tree.prev
        self._place = place
        self._find = find

    @property
    def root(self) -> StateRoot:
        """S_t."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    def output(self, op: int) -> CommittedTensor:
        """The output of an op."""
        found = self._place.get(op)
        return self._step.output(op) if found is None else found

    def state(self, entry: int) -> CommittedTensor:
        """A tensor of S_{t-1}."""
        return self._step.state(entry)

    def dataset(self) -> CommittedTensor:
        """The job's dataset."""
        return self._step.dataset()

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """One level of a fold's partials."""
        return self._step.partials(op, element, group)

    @cached_property
    def _step(self) -> StepTrace:
        # A copy: what this move asks for lives as long as it does, and no longer.
        return replace(self._find())


@dataclass(frozen=True)
class CachedClaim:
    """A held claim of which only what is in memory may be asked for: raises NotCached for the rest."""

    known: HeldClaim | None
    """None: not even that."""

    @property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return self._held.state_zero

    @property
    def carried(self) -> moves.Proof:
        """The words of the claim whose carry is in S_0."""
        return self._held.carried

    @property
    def trace(self) -> Sequence[StateRoot]:
        """S_1 .. S_T."""
        return self._held.trace

    def step(self, t: int) -> MaterialisedStep:
        """Transition t, as far as it is in memory."""
        return self._held.cached(t)

    @property
    def _held(self) -> HeldClaim:
        if self.known is None:
            raise NotCached
        return self.known
