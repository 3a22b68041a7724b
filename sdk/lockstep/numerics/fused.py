"""Compiles an executor's loops in the background; interpreted until then, with the same bits before and after.

A Program that runs once is not compiled. On its second run a C++ compiler starts to build its loops in the background,
unless the cache has them; between two runs they replace the interpreter. Each loop is first compared with the
interpreter: a compiler bug costs speed, never a bit.
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
"""Least elements of a loop that gets a compiled function."""
LEAST_WORK = 1 << 22
"""Least instructions x elements of a run for which loops are compiled: some milliseconds of work."""
MOST_COST = 1 << 13
"""Largest cost (`loops.cost`) that is compiled, about 20 seconds of compiling; an ordinary model has a twentieth
of it.
"""

FLAGS = (
    *("-std=c++20", "-O3", "-shared", "-fPIC", "-nostdlib"),
    *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"),
)
"""Flags of CMakeLists.txt, and flags for a library without dependencies."""
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
        *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
    ),
}
ISA_FLAGS["vnni"] = ISA_FLAGS["avx512"]
ISA_FLAGS["neon"] = ISA_FLAGS["dotprod"] = ()  # AArch64 compilers assume this by default


def mode_of(asked: str | None) -> str:
    """Returns the mode asked for, else LOCKSTEP_FUSED, else "auto"; raises UsageError for an unknown one."""
    mode = asked if asked is not None else os.environ.get("LOCKSTEP_FUSED", "auto")
    if mode not in MODES:
        raise UsageError(f"fused is {mode!r}", hint=f"one of {', '.join(MODES)}; LOCKSTEP_FUSED sets the default")
    return mode


def _within(most: int, expressions: Iterable[LoopExpression]) -> set[LoopExpression]:
    """Returns as many of the first expressions as together cost no more than `most`."""
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
        """True once the loops run compiled code."""
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
        """Called before each run: attaches a compiled library if it is ready; on the second run starts to build it."""
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
        described = self._executor.loops()
        work = sum(elements * len(instrs) for elements, _, instrs, _, _ in described)
        if not everything and work < LEAST_WORK:
            return
        found, worth = {}, Counter[LoopExpression]()
        for i, (elements, operands, instrs, results, streams) in enumerate(described):
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
        """Runs an action and only logs a failure, which costs speed alone; the action is not repeated."""
        try:
            action()
        except (LockstepError, OSError, AttributeError) as error:
            self._found = {}
            log.debug("maps stay interpreted: %s", error)
