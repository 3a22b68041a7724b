"""Compiled loops for an executor: interpreted until their library is there, the same bits before and after.

A Program that runs once is never compiled for. On its second run a compiler of this machine starts to build its loops
in the background, unless another process did already; they replace the interpreter between two runs. Each is tried
against the interpreter first: a compiler that errs costs speed, never a bit.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from lockstep.numerics import libraries, loops
from lockstep.numerics.built import COMPILED
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.loops import LoopExpression
from lockstep.protocol.errors import DoctorError, LockstepError, UsageError

log = logging.getLogger(__name__)

MODES = ("auto", "off", "require")
LEAST_ELEMENTS = 4096
"""Elements of the smallest loop that is worth a function of its own."""
LEAST_WORK = 1 << 22
"""Instructions x elements of a run below which nothing is compiled: some milliseconds."""
MOST_COST = 1 << 13
"""The most that is given to a compiler (`loops.cost`): some 20 seconds; models of everyday have a twentieth."""

FLAGS = (
    *("-std=c++20", "-O3", "-shared", "-fPIC", "-nostdlib"),
    *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"),
)
"""The flags of CMakeLists.txt, and those for a library that needs no other."""
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
        *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
    ),
}
ISA_FLAGS["vnni"] = ISA_FLAGS["avx512"]
ISA_FLAGS["neon"] = ISA_FLAGS["dotprod"] = ()  # what a compiler for AArch64 assumes


def mode_of(asked: str | None) -> str:
    """Returns the mode asked for, else LOCKSTEP_FUSED, else "auto"; raises UsageError for an unknown one."""
    mode = asked if asked is not None else os.environ.get("LOCKSTEP_FUSED", "auto")
    if mode not in MODES:
        raise UsageError(f"fused is {mode!r}", hint=f"one of {', '.join(MODES)}; LOCKSTEP_FUSED sets the default")
    return mode


def _within(most: int, expressions: Iterable[LoopExpression]) -> set[LoopExpression]:
    """Returns as many of the first expressions as have functions of no more than this cost together."""
    kept: set[LoopExpression] = set()
    for expression in expressions:
        most -= loops.cost(expression)
        if most < 0:
            break
        kept.add(expression)
    return kept


class Fusion:
    """The compiled loops of one executor on one kernel path."""

    def __init__(self, executor: _native.Executor, path: str, mode: str) -> None:
        self._executor = executor
        self._path = _native.best_isa() if path == "auto" else path
        self._runs = 0
        self._found: dict[int, LoopExpression] = {}
        self._library: ctypes.CDLL | None = None
        self.compiled = False
        """True: the loops run compiled code."""
        if mode == "off":
            return
        if mode == "require" and not COMPILED:
            raise DoctorError(
                "this installation has no compiled kernels, so no loops to compile",
                hint="install a wheel that has them, or leave LOCKSTEP_FUSED at auto",
            )
        self._find_loops(everything=mode == "require")
        if mode == "require":
            self._library = libraries.build(self._recipe())
            self._attach()

    def before_run(self) -> None:
        """Before a run: attaches a compiled library if there is one; on the second run, starts to build one."""
        if self.compiled or not self._found:
            return
        self._runs += 1
        if self._runs == 1:
            self._quietly(self._find)
        if self._library is not None:
            self._quietly(self._attach)
        elif self._runs == 2:
            threading.Thread(target=self._quietly, args=(self._build,), name="lockstep-fuse", daemon=True).start()

    def _find_loops(self, everything: bool) -> None:
        told = self._executor.loops()
        work = sum(elements * len(instrs) for elements, _, instrs, _, _ in told)
        if not everything and work < LEAST_WORK:
            return
        found, worth = {}, Counter[LoopExpression]()
        for i, (elements, operands, instrs, results, streams) in enumerate(told):
            if everything or elements >= LEAST_ELEMENTS:
                found[i] = LoopExpression(operands, instrs, results, streams)
                worth[found[i]] += elements * len(instrs)
        if not everything:
            # INVARIANT: a stranger's Program keeps a compiler busy for a bounded time.
            kept = _within(MOST_COST, [expression for expression, _ in worth.most_common()])
            found = {i: expression for i, expression in found.items() if expression in kept}
        self._found = found

    def _expressions(self) -> Sequence[LoopExpression]:
        return list(dict.fromkeys(self._found.values()))

    def _recipe(self) -> libraries.BuildRecipe:
        compiler = libraries.find_compiler()
        if compiler is None:
            raise DoctorError(
                "no C++ compiler", hint="install g++ or clang++, or set CXX; without one maps are interpreted"
            )
        return libraries.BuildRecipe(loops.source(self._expressions()), (*FLAGS, *ISA_FLAGS[self._path]), compiler)

    def _find(self) -> None:
        self._library = libraries.cached(self._recipe())

    def _build(self) -> None:
        self._library = libraries.build(self._recipe(), nice=True)

    def _attach(self) -> None:
        library, self._library = self._library, None
        place = {expression: i for i, expression in enumerate(self._expressions())}
        for i, expression in self._found.items():
            address = ctypes.cast(getattr(library, loops.name(place[expression])), ctypes.c_void_p).value
            if address is None or not self._executor.attach(i, address, self._path):
                raise DoctorError(
                    f"loop {i}, compiled on this machine, gives other bits than the interpreter",
                    hint="set CXX to another compiler, or LOCKSTEP_FUSED=off",
                )
        self.compiled = True

    def _quietly(self, action: Callable[[], None]) -> None:
        """Runs an action and only logs its failure, which costs speed alone; it is not tried again."""
        try:
            action()
        except (LockstepError, OSError, AttributeError) as error:
            self._found = {}
            log.debug("maps stay interpreted: %s", error)
