"""Computes, while a function is traced, the values of constants and of everything that depends on constants alone.

A fake tensor has no value. For each fake tensor that depends on no input, a real tensor is computed too. Conditions and
shapes that depend on constants (positions, masks, buffers) are then the same as in eager torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.graph import Origin
from lockstep.tracing.host import HINT

MAX_ELEMENTS = 1 << 18
"""Largest number of elements of a constant whose value is tracked."""
_A = torch.ops.aten
_VALUES = (_A._local_scalar_dense.default, _A.equal.default)
"""Operations whose result is a Python value."""
_SHAPED_BY_VALUES = (
    _A.nonzero.default, _A.masked_select.default, _A.repeat_interleave.Tensor, _A.bincount.default,
    _A._unique2.default, _A.unique_dim.default, _A.unique_consecutive.default,
)  # fmt: skip
"""Operations whose result's shape depends on values; on constants they give a constant."""
_LIFTS = (_A.lift.default, _A.lift_fresh.default, _A.lift_fresh_copy.default)
"""Operations that wrap a tensor which the traced function has created from Python numbers."""
_PUTS = (_A.index_put.default, _A.index_put_.default, _A._index_put_impl_.default, _A._unsafe_index_put.default)
UNKEPT_WRITE = "a write to a tensor that is no part of the state"
UNKEPT_HINT = "buffers are constants of a Program: pass what changes to the function, and return it"
WIDE = {torch.float64, torch.float16, torch.bfloat16}
"""Float types that are converted to float32 when they are combined with data."""


class KnownValues(TorchDispatchMode):
    """Tracks the values of constants; one object for each trace."""

    def __init__(
        self, place: Callable[[], str] = str, origin: Callable[[], Origin] = Origin, *, zeros_have_values: bool = False
    ) -> None:
        """`place` returns the user's line that is traced, `origin` also its module.

        `zeros_have_values`: zero tangents are ordinary tensors.
        """
        super().__init__()
        self._place_of, self._origin_of = place, origin
        self.unkept: tuple[str, Origin] | None = None
        """The first write to a tensor from outside of the trace: (description, origin); None if there was none."""
        self._zeros_have_values = zeros_have_values
        self.tangents = False
        """True once forward-mode differentiation has created a zero tensor without values."""
        self.narrowed: tuple[str, str] | None = None
        """The first type conversion: (description, the line that asked for the type); None if there was none."""
        self.sized_at: str | None = None
        """The line of the first operation whose result's shape depends on data; None if there was none."""
        self._values: Any = WeakTensorKeyDictionary()
        self._written: set[int] = set()
        """Storages of tracked values into which data were written: their values are no longer known."""
        self.writes: Counter[int] = Counter()
        """Number of writes to each storage."""
        self._outside: dict[int, torch.Tensor] = {}
        """Tensors from outside of the trace that an operation has read, by their storages."""
        self._large: Any = WeakTensorKeyDictionary()
        """Constants that are too large to be tracked, and constants computed from such."""

    def real(self, x: torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a tensor that depends on no input; None if it depends on one or is too large."""
        if not isinstance(x, FakeTensor) and functorch.is_functorch_wrapped_tensor(x):
            # A row of a batch has no value of its own; a tensor wrapped by torch.func has the value of the wrapped
            # tensor.
            return None if functorch.is_batchedtensor(x) else self.real(functorch.get_unwrapped(x))
        value = self._values.get(x) if isinstance(x, FakeTensor) else x
        if value is None or value.is_meta or type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return None
        if value.numel() > MAX_ELEMENTS or value.untyped_storage()._cdata in self._written:
            return None
        return value  # not detached: a mode below would make that a fake

    def is_constant(self, x: torch.Tensor) -> bool:
        """True if a tensor depends on no input, even if its value is not tracked."""
        return not isinstance(x, FakeTensor) or self.real(x) is not None or x in self._large

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _A._efficientzerotensor.default:
            self.tangents = True
            func = _A.zeros.default if self._zeros_have_values else func
        self.writes.update(x.untyped_storage()._cdata for x in written_to(func, args, kwargs or {}))
        leaves, spec = tree_flatten((args, kwargs or {}))
        if any(isinstance(x, torch.Generator) for x in leaves):
            raise LoweringError(f"a draw from a torch.Generator ({func}) is not supported", hint=HINT)
        if any(_is_narrowed(x) for x in leaves) and self._meets_data(func, leaves):
            self._refuse_write(func, args)
            leaves = self._narrow(func, leaves)
            args, kwargs = tree_unflatten(leaves, spec)
        values = [self.real(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        unknown = any(v is None and isinstance(x, torch.Tensor) for x, v in zip(leaves, values, strict=True))
        by_mask = func is _A.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if unknown and self.sized_at is None and (func in _SHAPED_BY_VALUES or by_mask):
            self.sized_at = self._place_of()
        if unknown or func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            if func._schema.is_mutable:
                self._forget(func, args, kwargs or {})
            if func is _A.index.Tensor or (func in _PUTS and _puts_several(*args)):
                args = (args[0], self._placed(args[1]), *args[2:])
            result = func(*args, **(kwargs or {}))
            if unknown and _is_pure(func) and all(self.is_constant(x) for x in leaves if isinstance(x, torch.Tensor)):
                self._large.update({r: True for r in tree_leaves(result) if isinstance(r, FakeTensor)})
            return result
        given, named = tree_unflatten(values, spec)
        if func in _VALUES or func in _SHAPED_BY_VALUES or by_mask:
            with _disable_current_modes(), torch.no_grad():
                return func(*given, **named)
        if func not in _LIFTS:
            outside = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)]
            self._outside.update({x.untyped_storage()._cdata: x for x in outside})
        if any(self._is_outside(x) for x in written_to(func, given, named)):
            self.unkept = self.unkept or (f"{UNKEPT_WRITE} ({str(func).removesuffix('.default')})", self._origin_of())
            # The write goes to a copy: the trace ends with a refusal, and the user's tensor keeps its value.
            given, named = tree_map(self._copied, (given, named))
            args, kwargs = tree_map(lambda x: x if isinstance(x, FakeTensor) else self._copied(x), (args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._follow(func, result, given, named)
        return result

    def _is_outside(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.untyped_storage()._cdata in self._outside

    def _copied(self, x: Any) -> Any:
        if not self._is_outside(x):
            return x
        with _disable_current_modes(), torch.no_grad():
            return x.clone()

    def note(self, what: str) -> None:
        """Records the first type conversion."""
        self.narrowed = self.narrowed or (what, self._place_of())

    def _meets_data(self, func: Any, leaves: list[Any]) -> bool:
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        return not all(map(self.is_constant, tensors)) or torch.Tag.nondeterministic_seeded in func.tags

    def _refuse_write(self, func: Any, args: Any) -> None:
        """Raises LoweringError for a write of data to a constant of another dtype: later reads would not see a
        float32.
        """
        for given, argument in zip(args, func._schema.arguments, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and any(map(_is_narrowed, tree_leaves(given))):
                kind = tree_leaves(given)[0].dtype
                raise LoweringError(f"a write of data to a constant of {kind} ({func})", hint="make it of float32")

    def _narrow(self, func: Any, leaves: list[Any]) -> list[Any]:
        """Returns the arguments of an operation on data, with constants rounded once and dtypes replaced by those of a
        Program.
        """
        explicit = func is _A._to_copy.default
        floats = any(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in leaves)
        found: list[Any] = []
        for x in leaves:
            asked = x.dtype if isinstance(x, torch.Tensor) else x
            if not _is_narrowed(x) or (isinstance(x, torch.Tensor) and not self.is_constant(x)):
                found.append(x)
                continue
            if explicit or isinstance(x, torch.dtype) or (asked == torch.float64 and x.dim() > 0) or not floats:
                self.note(f"{asked} is taken as {torch.float32}")
            found.append(torch.float32 if isinstance(x, torch.dtype) else _A._to_copy.default(x, dtype=torch.float32))
        return found

    def _placed(self, indices: Any) -> list[Any]:
        """Returns the indices with each constant mask replaced by the positions at which it is true."""
        placed: list[Any] = []
        for index in indices:
            value = None if index is None or index.dtype != torch.bool else self.real(index)
            if value is None:
                placed.append(index)
                continue
            with _disable_current_modes(), torch.no_grad():
                placed += value.nonzero(as_tuple=True)
        return placed

    def _follow(self, func: Any, result: Any, given: Any, named: Any) -> None:
        fakes = [r for r in tree_leaves(result) if isinstance(r, FakeTensor)]
        if not fakes or any(f.numel() > MAX_ELEMENTS for f in fakes):
            self._large.update(dict.fromkeys(fakes, True))
            return
        with _disable_current_modes(), torch.no_grad():
            found = tree_leaves(func(*given, **named))
        for fake, value in zip(fakes, (v for v in found if isinstance(v, torch.Tensor)), strict=True):
            self._values[fake] = value

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        for x in written_to(func, args, kwargs):
            self._lose(x)

    def _lose(self, x: Any) -> None:
        if isinstance(x, FakeTensor):
            self._large.pop(x, None)
        value = self._values.get(x) if isinstance(x, FakeTensor) else None
        if value is not None:
            self._written.add(value.untyped_storage()._cdata)


def written_to(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors that an operation writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    written = [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [x for x in tree_leaves(written) if isinstance(x, torch.Tensor)]


def following() -> KnownValues | None:
    """Returns the tracked values of the trace in progress; None outside of a trace."""
    return next((m for m in reversed(_get_current_dispatch_mode_stack()) if isinstance(m, KnownValues)), None)


def _puts_several(_x: Any, _indices: Any, values: torch.Tensor, accumulate: bool = False, *_unsafe: bool) -> bool:
    """True if each position gets its own value. A single value for all positions is a selection by the mask."""
    return accumulate or (values.dim() > 0 and all(isinstance(n, int) for n in values.shape) and values.numel() > 1)


def _is_narrowed(x: Any) -> bool:
    """True for a dtype, or a tensor of a dtype, that is converted when it is combined with data."""
    if isinstance(x, torch.dtype):
        return x in WIDE
    return isinstance(x, torch.Tensor) and x.dtype in WIDE


def _is_pure(func: Any) -> bool:
    """True if the operation is a pure function of its arguments."""
    return (
        func.namespace == "aten" and not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
    )
