"""Restores attributes that a model changes during a forward call, and refuses state that a Program cannot hold.

    self.table = positions.cos()             # kept at the first call, read by the next ones
    self.balance = share.square().sum()      # left behind for the loss

During a trace a call stores fake tensors. A second trace starts from what the first one stored: real values where they
depend on constants alone, fake tensors where they depend on data. If the second trace reads a fake one, or a value that
every call changes, then the step has state outside of its Program, and the trace is refused.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import KnownValues, following

MAX_ENTRIES = 1 << 16
"""Upper bound on the entries of one dict or list, and on the number of dicts and lists of a model, that are
examined.
"""
_DEPTH = 4
"""Depth to which nested objects are examined; the module itself counts."""
_CLOSED = (torch.Tensor, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, logging.Logger)
_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
HINT = "return it from forward, or compute it from the rows of the step: parameters alone last from step to step"


@dataclass
class _Holder:
    """A dict or list of a model, with its contents before a trace."""

    name: str
    entries: Any
    held: Any

    def restore(self) -> None:
        """Restores the contents from before the trace."""
        if isinstance(self.entries, list):
            self.entries[:] = self.held
        elif not _same_entries(self.entries, self.held):
            self.entries.clear()
            self.entries.update(self.held)

    def changed(self) -> dict[Any, Any]:
        """Returns the entries that differ from those before the trace; for a list the whole list, under the key
        None.
        """
        if isinstance(self.entries, list):
            same = len(self.entries) == len(self.held) and all(map(_is, self.entries, self.held))
            return {} if same else {None: list(self.entries)}
        return {k: v for k, v in self.entries.items() if k not in self.held or self.held[k] is not v}


@dataclass
class _Left:
    """An attribute that one trace changed; the next trace starts from its value."""

    name: str
    holder: Any
    key: Any
    value: Any
    refused: bool
    """True if the value depends on data: a trace that reads it is refused."""


_ACTIVE: dict[int, _Left] = {}
"""Attributes left by earlier traces, by the storages of their tensors; only while traces are in progress."""


@dataclass
class Attributes:
    """The attributes of one model during all traces of a job."""

    model: torch.nn.Module
    left: list[_Left] = field(default_factory=list)
    """Attributes that the first trace changed."""
    _traced: bool = False
    _storages: list[int] = field(default_factory=list)

    def __enter__(self) -> Attributes:
        return self

    def __exit__(self, *_error: object) -> None:
        for storage in self._storages:
            _ACTIVE.pop(storage, None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Saves the attributes and restores them on exit; inside, they have the values that the trace before left."""
        holders = _holders(self.model)
        try:
            self._place()
            yield
            known = following()
            if known is not None and self._traced:
                self._refuse_changing(known)
            elif known is not None:
                self._note(holders, known)
                self._traced = True
        finally:
            for holder in holders:
                holder.restore()

    def _place(self) -> None:
        for left in self.left:
            if left.key is None and isinstance(left.holder, list):
                left.holder[:] = left.value
            else:
                left.holder[left.key] = left.value
            for x in tree_leaves(left.value):
                if isinstance(x, torch.Tensor):
                    _ACTIVE[x.untyped_storage()._cdata] = left
                    self._storages.append(x.untyped_storage()._cdata)

    def _note(self, holders: list[_Holder], known: KnownValues) -> None:
        for holder in holders:
            changed = holder.changed()
            # A partial update could leave the model in a state that no real call produces.
            if not any(_is_opaque(known, value) for value in changed.values()):
                for key, value in changed.items():
                    name = f"{holder.name}.{key}".strip(".") if key is not None else holder.name
                    of_data = tree_any(lambda x: isinstance(x, FakeTensor) and known.real(x) is None, value)
                    self.left.append(_Left(name, holder.entries, key, _settled(known, value), of_data))

    def _refuse_changing(self, known: KnownValues) -> None:
        """Marks as refused each constant that the second trace changes again: it would change at every step."""
        for left in self.left:
            if isinstance(left.holder, dict) and isinstance(left.value, torch.Tensor):
                now = left.holder.get(left.key)
                value = known.real(now) if isinstance(now, torch.Tensor) else None
                with _disable_current_modes():
                    left.refused |= now is not left.value and (value is None or not _equal(value, left.value))


class Caches:
    """Clears, on exit, every `functools.lru_cache` that holds results of the trace."""

    def __init__(self, wrappers: list[Any]) -> None:
        foreign = ("torch.", "sympy.", "mpmath.")
        users = [w for w in wrappers if not str(w.__module__).startswith(foreign)]
        self._misses = [(w, w.cache_info().misses) for w in users]

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        for wrapper, misses in self._misses:
            if wrapper.cache_info().misses != misses and _holds_fake(wrapper, 4):
                wrapper.cache_clear()


def _holds_fake(value: Any, depth: int) -> bool:
    return isinstance(value, FakeTensor) or (
        depth > 0
        and not isinstance(value, _CLOSED)
        and any(_holds_fake(inner, depth - 1) for inner in gc.get_referents(value))
    )


def refuse_left(tensor: torch.Tensor) -> None:
    """Raises LoweringError if the graph reads a tensor that only the previous step could know."""
    left = _ACTIVE.get(tensor.untyped_storage()._cdata)
    if left is not None and left.refused:
        raise LoweringError(f"an attribute that the step before has left ({left.name})", hint=HINT)
    if left is None and isinstance(tensor, FakeTensor):
        raise LoweringError(
            "a tensor that an earlier call has left outside of the model",
            hint="keep it on the module, or compute it at every call",
        )


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return isinstance(b, FakeTensor) or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))


def _is(a: Any, b: Any) -> bool:
    return a is b


def _same_entries(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return len(a) == len(b) and all(k in a and a[k] is v for k, v in b.items())


def _is_opaque(known: KnownValues, value: Any) -> bool:
    """True if a second trace cannot start from the value: an untracked (large) constant, or an arbitrary object."""
    return any(
        known.is_constant(x) and known.real(x) is None if isinstance(x, FakeTensor)
        else not isinstance(x, (*_PLAIN, torch.Tensor))
        for x in tree_leaves(value)
    )  # fmt: skip


def _settled(known: KnownValues, value: Any) -> Any:
    """Replaces fake tensors that depend on constants alone by their real values."""

    def settle(x: Any) -> Any:
        real = known.real(x) if isinstance(x, FakeTensor) else None
        if real is None:
            return x
        with _disable_current_modes(), torch.no_grad():
            return real.clone()

    return tree_map(settle, value)


def _holders(model: torch.nn.Module) -> list[_Holder]:
    """Returns the dicts and lists of a model: attributes of modules and of other objects, and containers inside
    them.
    """
    paths = {id(m): name for name, m in model.named_modules()}
    found: list[_Holder] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("", model, _DEPTH)]
    while stack and len(found) < MAX_ENTRIES:
        name, value, depth = stack.pop()
        if id(value) in seen or depth == 0:
            continue
        seen.add(id(value))
        entries = value
        if not isinstance(value, dict | list):
            if isinstance(value, _CLOSED) or not isinstance(getattr(value, "__dict__", None), dict):
                continue
            entries, name = vars(value), paths.get(id(value), name)
            depth = _DEPTH - 1 if isinstance(value, torch.nn.Module) else depth - 1
        if len(entries) > MAX_ENTRIES:
            continue
        found.append(_Holder(name, entries, entries.copy()))
        # A module's registries have no names that users know.
        for key, inner in entries.items() if isinstance(entries, dict) else enumerate(entries):
            if not isinstance(inner, (*_PLAIN, torch.Tensor)):
                hidden = isinstance(key, str) and key in ("_buffers", "_parameters", "_modules")
                stack.append((name if hidden else f"{name}.{key}".lstrip("."), inner, depth))
    return found
