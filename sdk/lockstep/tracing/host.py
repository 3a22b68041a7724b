"""Detects random draws of the host during a trace: the Program would hold a single draw as a constant.

Generator states are compared before and after: those of `random`, `numpy.random` and torch, and of every existing
`random.Random`, `numpy.random.Generator` and `RandomState`. Reads of the system's entropy are detected too. A generator
that the function itself creates from a fixed seed is allowed: it draws the same numbers in every step.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import random
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import compress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

_CACHE = functools._lru_cache_wrapper
_PACKAGES = ("sympy", "mpmath")
"""Packages that torch uses for symbolic shapes: their draws do not come from the model."""
_SITE = str(Path(torch.__file__).parent.parent)
_OF_LIBRARIES = tuple(str(Path(_SITE, name)) for name in ("torch", "numpy", *_PACKAGES))
_STANDARD = sysconfig.get_paths()["stdlib"]
_OWN = str(Path(__file__).parent)
_CAPTURE = str(Path(__file__).with_name("capture.py"))
HINT = (
    "a Program would repeat this draw in every step: draw with torch.rand or lockstep.tracing.random_words, "
    "which the job's seed feeds, or turn the draw off (transformers: apply_spec_augment=False)"
)
_STATES: dict[type, tuple[str, Callable[[Any], Any]]] = {
    random.Random: ("random", lambda g: g.getstate()),
    np.random.RandomState: ("numpy.random.RandomState", lambda g: g.get_state(legacy=False)),
    np.random.Generator: ("numpy.random.Generator", lambda g: g.bit_generator.state),
    torch.Generator: ("torch.Generator", lambda g: g.get_state().numpy()),
}
"""Maps a generator's type to (its name, a function that returns its state)."""


_COUNTED: ContextVar[list[Any] | None] = ContextVar("counted", default=None)


@contextmanager
def counting_once() -> Iterator[None]:
    """Lets the traces inside search all objects for generators once, and afterwards only new objects.

    Objects that exist at the first search are excluded from garbage collection until then (`gc.freeze`). If other code
    has frozen objects, every trace searches all objects.
    """
    if _COUNTED.get() is not None or gc.get_freeze_count():
        yield
        return
    token = _COUNTED.set([])
    try:
        yield
    finally:
        _COUNTED.reset(token)
        gc.unfreeze()


def _watched() -> list[Any]:
    """Returns the generators and function caches of this process."""
    counted = _COUNTED.get()
    objects = gc.get_objects()
    found = list(compress(objects, map({*_STATES, _CACHE}.__contains__, map(type, objects))))
    del objects
    if counted is None:
        return found
    if not counted:
        counted += found
        gc.freeze()
        return found
    known = set(map(id, counted))
    return [*counted, *(x for x in found if id(x) not in known)]


class HostDraws:
    """Watches the generators of this process; one object for each trace."""

    def __init__(self) -> None:
        watched = _watched()
        self.caches = [c for c in watched if type(c) is _CACHE]
        """Functions with cached results (`functools.lru_cache`)."""
        found = [g for g in watched if type(g) is not _CACHE]
        own = getattr(sys.modules.get("sympy.core.random"), "rng", None)
        everywhere = [random._inst, np.random.mtrand._rand, torch.default_generator]
        self.generators = [*everywhere, *(g for g in found if g is not own)]
        self.entropy = False
        self.states = [self._state(g) for g in self.generators]
        self.suspects: list[Any] = []

    @staticmethod
    def _state(generator: Any) -> bytes:
        read = _STATES[type(generator)][1]
        if type(generator) is not torch.Generator:
            return pickle.dumps(read(generator))
        with _disable_current_modes():
            return pickle.dumps(read(generator))

    def drawn(self) -> str | None:
        """Returns the name of a generator that has drawn since the last call; None if none has."""
        states = [self._state(g) for g in self.generators]
        self.suspects = [g for g, a, b in zip(self.generators, self.states, states, strict=True) if a != b]
        self.states, entropy, self.entropy = states, self.entropy, False
        if self.suspects:
            return _STATES[type(self.suspects[0])][0]
        return "the system's entropy" if entropy else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Detects reads of the system's entropy by this thread, except during imports: seeds of unseeded generators."""
        thread, original = threading.get_ident(), os.urandom

        def urandom(size: int) -> bytes:
            # Torch imports modules while it traces, and names some by uuid4; those draws must not cause a second trace.
            self.entropy |= threading.get_ident() == thread and not _imports(sys._getframe(1))
            return original(size)

        kept = random._urandom  # type: ignore[attr-defined]
        os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
        try:
            yield
        finally:
            os.urandom, random._urandom = original, kept  # type: ignore[attr-defined]

    def located(
        self, run: Callable[[], None], place: Callable[[FrameType], Callable[[], tuple[str, str]]]
    ) -> list[str]:
        """Runs the function again, up to the first draw, and returns [generator name, then what `place` gives for its
        line]; [] if nothing is drawn.

        After every line it checks only the generators that the last call of `drawn` found, at the end all of them.
        Draws of another thread, or during an import, may not recur in this second run.
        """
        everything, self.generators, self.entropy = self.generators, self.suspects, False
        others = [self._state(g) for g in everything]
        self.states = [self._state(g) for g in self.generators]
        found: list[str] = []
        last: list[Callable[[], tuple[str, str]]] = [lambda: ("", "")]

        def look() -> None:
            if not found and (name := self.drawn()):
                found.extend((name, *last[0]()))
                raise _Drawn

        def local(frame: FrameType, event: str, _arg: Any) -> Any:
            look()
            if event == "line":
                last[0] = place(frame)
            return local

        def tracer(frame: FrameType, _event: str, _arg: Any) -> Any:
            return local if _is_model(frame.f_code) else None

        before, collects = sys.gettrace(), gc.isenabled()
        # A finalizer swallows what `look` raises in it, and Python then ends the tracing.
        gc.disable()
        try:
            sys.settrace(tracer)
            try:
                run()
            finally:
                sys.settrace(before)
                if collects:
                    gc.enable()
            look()
            self.generators, self.states = everything, others
            look()
        except _Drawn:
            pass
        return found


class _Drawn(BaseException):
    """Raised when a draw was found, so that the rest of the function does not run."""


def _imports(frame: FrameType | None) -> bool:
    """True inside an import statement of the traced function: an import runs once, not in every step."""
    while frame is not None and frame.f_code.co_filename != _CAPTURE:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _is_model(code: CodeType) -> bool:
    """True if the code may draw on behalf of a model: it belongs neither to Python, torch, numpy nor this package."""
    name = code.co_filename
    if name.startswith(_STANDARD):
        return "-packages" in name and not name.startswith(_OF_LIBRARIES)
    return not name.startswith((_OWN, "<", *_OF_LIBRARIES))
