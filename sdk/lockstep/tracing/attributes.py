"""Attributes of a model that its calls change: after a trace they are what they were before.

    self.table = positions.cos()             # kept at the first call, read by the next ones
    self.balance = share.square().sum()      # left behind for the loss

What a call leaves is fake while it is traced. A second trace starts where a second step would: from the values of what
is computed of constants alone, and from the fake tensors of what depends on data. If it reads one of these, or a value
that every call changes, the step has a state that its Program has not, and is refused.
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
"""The most entries of a dict or list, and the most dicts and lists of a model, that are looked at."""
_DEPTH = 4
"""Objects inside of one another that are looked at, a module the first."""
_CLOSED = (torch.Tensor, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, logging.Logger)
_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
HINT = "return it from forward, or compute it from the rows of the step: parameters alone last from step to step"


@dataclass
class _Holder:
    """A dict or a list of a model, and what it held before a trace."""

    name: str
    entries: Any
    held: Any

    def restore(self) -> None:
        """Gives it the same entries again."""
        if isinstance(self.entries, list):
            self.entries[:] = self.held
        elif not _same_entries(self.entries, self.held):
            self.entries.clear()
            self.entries.update(self.held)

    def changed(self) -> dict[Any, Any]:
        """Its entries that are others than before; of a list all of them, under the key None."""
        if isinstance(self.entries, list):
            same = len(self.entries) == len(self.held) and all(map(_is, self.entries, self.held))
            return {} if same else {None: list(self.entries)}
        return {k: v for k, v in self.entries.items() if k not in self.held or self.held[k] is not v}


@dataclass
class _Left:
    """A value that a trace left behind, and that a second one starts from."""

    name: str
    holder: Any
    key: Any
    value: Any
    refused: bool
    """True: no Program may read it."""


_STANDING: dict[int, _Left] = {}
"""Values that traces in progress start from, by the storages of their tensors."""


@dataclass
class Attributes:
    """The attributes of one model, for the traces of one job."""

    model: torch.nn.Module
    left: list[_Left] = field(default_factory=list)
    """Attributes that the first trace has left."""
    _traced: bool = False
    _storages: list[int] = field(default_factory=list)

    def __enter__(self) -> Attributes:
        return self

    def __exit__(self, *_error: object) -> None:
        for storage in self._storages:
            _STANDING.pop(storage, None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Attributes are afterwards what they are now; inside, what the trace before has left of them."""
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
                    _STANDING[x.untyped_storage()._cdata] = left
                    self._storages.append(x.untyped_storage()._cdata)

    def _note(self, holders: list[_Holder], known: KnownValues) -> None:
        for holder in holders:
            changed = holder.changed()
            # What is there in parts alone may be no state that a model can be in.
            if not any(_is_opaque(known, value) for value in changed.values()):
                for key, value in changed.items():
                    name = f"{holder.name}.{key}".strip(".") if key is not None else holder.name
                    of_data = tree_any(lambda x: isinstance(x, FakeTensor) and known.real(x) is None, value)
                    self.left.append(_Left(name, holder.entries, key, _settled(known, value), of_data))

    def _refuse_changing(self, known: KnownValues) -> None:
        """A constant that a second trace changes again: a step would go on from there."""
        for left in self.left:
            if isinstance(left.holder, dict) and isinstance(left.value, torch.Tensor):
                now = left.holder.get(left.key)
                value = known.real(now) if isinstance(now, torch.Tensor) else None
                with _disable_current_modes():
                    left.refused |= now is not left.value and (value is None or not _equal(value, left.value))


class Caches:
    """Caches of functions (`functools.lru_cache`): afterwards none holds what a trace has computed."""

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
    """Raises LoweringError for a tensor, which a graph reads, that only the step before knows."""
    left = _STANDING.get(tensor.untyped_storage()._cdata)
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
    """True of what no second trace can start from: a constant that is too large to be followed, an object."""
    return any(
        known.is_constant(x) and known.real(x) is None if isinstance(x, FakeTensor)
        else not isinstance(x, (*_PLAIN, torch.Tensor))
        for x in tree_leaves(value)
    )  # fmt: skip


def _settled(known: KnownValues, value: Any) -> Any:
    """The value, its constants as they are in eager torch."""

    def settle(x: Any) -> Any:
        real = known.real(x) if isinstance(x, FakeTensor) else None
        if real is None:
            return x
        with _disable_current_modes(), torch.no_grad():
            return real.clone()

    return tree_map(settle, value)


def _holders(model: torch.nn.Module) -> list[_Holder]:
    """The dicts and lists that a model consists of: attributes of modules and other objects, and what is in them."""
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
        # Registries of a module have no names that users know.
        for key, inner in entries.items() if isinstance(entries, dict) else enumerate(entries):
            if not isinstance(inner, (*_PLAIN, torch.Tensor)):
                hidden = isinstance(key, str) and key in ("_buffers", "_parameters", "_modules")
                stack.append((name if hidden else f"{name}.{key}".lstrip("."), inner, depth))
    return found
