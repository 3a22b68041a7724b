"""Lays out a model's parameters in flat tensors, and initialises them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.numerics import tables
from lockstep.numerics.tables import width_of
from lockstep.protocol.errors import UsageError
from lockstep.protocol.merkle import LEAF_ELEMENTS, tensor_root
from lockstep.protocol.programs.program import F32, I32
from lockstep.training.wrappers import bare, named_buffers, named_parameters, unwrapped

MAX_LIMBS = 2
"""The most limbs (pairs of codes and scales) of one weight."""
SHARD_ELEMENTS = 1 << 30
"""Largest flat tensor of a job: half of a tensor's limit, so that offsets and strides fit in 31 bits."""
MEAN, FIRST, LARGEST, SMALLEST = "mean", "first", "max", "min"
MERGES = (MEAN, FIRST, LARGEST, SMALLEST)
"""The rules by which a merge combines the accepted slots' values of a buffer."""
MERGE_RULES = "merge_rules"
"""Attribute of a module: {pattern of the names of its buffers: rule}."""
NOTHING_WRITTEN: Mapping[str, str] = {}
MAX_INTEGER = 1 << 24
"""Integers of smaller magnitude are exact in binary32."""


class _Unallocated(TorchFunctionMode):
    """Makes torch create tensors without allocating memory for them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """Builds models in its block without weights: parameters have only shapes (torch's meta device), buffers values.

    This suffices for tracing models of any size. Weights are allocated by `torch.empty` and then filled, which does
    nothing here; buffers are computed.
    """
    with _Unallocated():
        yield


@dataclass(frozen=True)
class Parameter:
    """One parameter's place in the flat tensors."""

    name: str
    offset: int
    """Elements before it in its shard."""
    shape: tuple[int, ...]
    shard: int = 0
    merge: str = MEAN
    """The rule of `MERGES` by which merges combine it, if it is a statistic."""
    is_complex: bool = False
    """True: complex numbers; the last axis of its shape has the real and the imaginary part."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The order of a model's parameters in one flat tensor, or in several, its shards, if one would be too large.

    Parameters of whole leaves come first, so that a matrix row spans as few 1 KiB leaves as possible: each leaf is one
    more opening in a dispute. A shard is rounded up to whole leaves; the rest stays zero.
    """

    parameters: tuple[Parameter, ...]
    sizes: tuple[int, ...]
    """Elements of each shard, multiples of 256."""
    statistics: tuple[Parameter, ...] = ()
    """Buffers and frozen parameters that a step writes: parts of one more flat tensor after the shards, if there are
    any."""

    @property
    def size(self) -> int:
        """Elements of all shards."""
        return sum(self.sizes)

    @property
    def held(self) -> tuple[int, ...]:
        """Elements of each tensor of a checkpoint: the shards, then the statistics."""
        own = sum(s.elements for s in self.statistics)
        return (*self.sizes, -(-own // LEAF_ELEMENTS) * LEAF_ELEMENTS) if own else self.sizes

    @property
    def used(self) -> int:
        """The number of elements that are parameters, without padding and statistics."""
        return sum(p.elements for p in self.parameters)

    @property
    def own(self) -> tuple[int, ...]:
        """Elements of each shard that are parameters; the rest, at its end, is padding."""
        ends = [0] * len(self.sizes)
        for p in self.parameters:
            ends[p.shard] = max(ends[p.shard], p.offset + p.elements)
        return tuple(ends)

    def start(self, parameter: Parameter) -> int:
        """Returns a parameter's offset in the concatenated shards."""
        return sum(self.sizes[: parameter.shard]) + parameter.offset

    def cut(self, flat: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Splits a concatenated tensor into views of the shards, and of the statistics if `flat` has them."""
        sizes = self.sizes if flat.size == self.size else self.held
        return tuple(np.split(flat, np.cumsum(sizes)[:-1]))

    def buffers(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns views of the statistics in a checkpoint's tensors, f32 by name."""
        return {s.name: tensors[-1][s.offset : s.offset + s.elements].view(s.shape) for s in self.statistics}

    def joined(self, buffers: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Concatenates named statistics into one flat tensor, padded with zeros to its length; [] if there are none."""
        if not self.statistics:
            return []
        flat = torch.cat([buffers[s.name].reshape(-1).to(torch.float32) for s in self.statistics])
        rest = self.held[-1] - flat.numel()
        return [torch.cat([flat, torch.zeros(rest)]) if rest else flat]

    def split(self, *shards: torch.Tensor) -> dict[str, torch.Tensor]:
        """Splits shards into views of the parameters, by name."""
        return {p.name: shards[p.shard][p.offset : p.offset + p.elements].view(p.shape) for p in self.parameters}

    def shards(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Joins tensors by name into the shards."""
        parts: list[list[torch.Tensor]] = [[] for _ in self.sizes]
        for p in self.parameters:
            parts[p.shard].append(tensors[p.name].reshape(-1))
        for part, size in zip(parts, self.sizes, strict=True):
            used = sum(t.numel() for t in part)
            if size > used:
                part.append(torch.zeros(size - used))
        return [torch.cat(part) for part in parts]

    def kept(
        self, read: Collection[str], before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the shards `after` an update, but with parameters that are not among `read` as `before`.

        torch's optimizers do the same if a gradient is None: parameters that the loss never reads do not decay.
        """
        shards = list(after)
        for p in self.parameters:
            if p.name not in read:
                end, old, new = p.offset + p.elements, before[p.shard], shards[p.shard]
                parts = [new[: p.offset], old[p.offset : end], new[end:]]
                shards[p.shard] = torch.cat([part for part in parts if part.numel()])
        return shards

    def join(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """Joins tensors by name into the concatenated shards."""
        shards = self.shards(tensors)
        return shards[0] if len(shards) == 1 else torch.cat(shards)

    def describe(self) -> list[dict[str, Any]]:
        """Returns `parameters` of a job's spec: each {name, offset, shape}, and the tensor if there are several."""
        several = len(self.held) > 1
        return [
            {
                "name": p.name,
                "offset": p.offset,
                "shape": list(p.shape),
                **({"shard": p.shard} if several else {}),
                **({"complex": True} if p.is_complex else {}),
            }
            for p in (*self.parameters, *self.statistics)
        ]


def unallocated(layout: Layout) -> list[torch.Tensor]:
    """Returns the shards as flat f32 tensors without values."""
    return [torch.empty(size, device="meta") for size in layout.sizes]


def unallocated_statistics(layout: Layout) -> list[torch.Tensor]:
    """Returns the tensor of statistics without values, if there are any."""
    return [torch.empty(size, device="meta") for size in layout.held[len(layout.sizes) :]]


def layout_of(
    model: torch.nn.Module, shard_elements: int = SHARD_ELEMENTS, written: Mapping[str, str] = NOTHING_WRITTEN
) -> Layout:
    """Returns the place of each parameter of a model; a tied one has one place, a frozen one (no `requires_grad`) none.

    Each goes into the first shard with room for it. Raises UsageError for one larger than a shard. Statistics are those
    of batch norms, and the buffers and frozen parameters `written`: names with the lines that write them.
    """
    trained = {name: p for name, p in named_parameters(model).items() if p.requires_grad}
    named = [(name, (*p.shape, 2) if p.is_complex() else tuple(p.shape)) for name, p in trained.items()]
    if not named:
        raise UsageError(f"{type(model).__name__} has nothing to train", "set requires_grad on at least one parameter")
    ordered = sorted(named, key=lambda item: prod(item[1]) % LEAF_ELEMENTS != 0)
    places: list[Parameter] = []
    ends = [0]
    for name, shape in ordered:
        # INVARIANT: a parameter lies in one shard.
        if prod(shape) > shard_elements:
            raise UsageError(
                f"the parameter {name} of shape {shape} has {prod(shape)} elements",
                f"a tensor of a job has at most {shard_elements}: split the parameter",
            )
        shard = next((k for k, end in enumerate(ends) if end + prod(shape) <= shard_elements), len(ends))
        if shard == len(ends):
            ends.append(0)
        places.append(Parameter(name, ends[shard], shape, shard, is_complex=trained[name].is_complex()))
        ends[shard] += prod(shape)
    sizes = tuple(-(-end // LEAF_ELEMENTS) * LEAF_ELEMENTS for end in ends)
    return Layout(tuple(places), sizes, _statistics(model, written, len(sizes), shard_elements))


def _statistics(
    model: torch.nn.Module, written: Mapping[str, str], shard: int, shard_elements: int
) -> tuple[Parameter, ...]:
    """Returns the places of what a step writes in addition to the parameters: buffers first, in the model's order."""
    norms, state = running_statistics(model), writable(model)
    rules = _merge_rules(model, state)
    found: list[Parameter] = []
    at = 0
    for name, value in state.items():
        if name not in norms and name not in written:
            continue
        _refuse_unfit(name, value, written.get(name, ""))
        whole = name not in norms and not value.is_floating_point()
        found.append(Parameter(name, at, tuple(value.shape), shard, rules.get(name, FIRST if whole else MEAN)))
        at += value.numel()
    if at > shard_elements:
        raise UsageError(
            f"a step writes {at} elements in addition to the parameters",
            f"a tensor of a job has at most {shard_elements}: use a smaller queue, codebook or teacher",
        )
    return tuple(found)


def complex_parameters(model: torch.nn.Module) -> list[str]:
    """Returns the names of a model's complex parameters, which a state holds as real views."""
    return [name for name, p in model.named_parameters(remove_duplicate=False) if p.is_complex()]


@contextmanager
def complex_again(model: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Makes parameters that are held as real views complex for the call: a pair while it is traced."""
    placed = []
    for name in names:
        path, _, own = name.rpartition(".")
        held = model.get_submodule(path)._parameters
        real, pair = held[own], torch.view_as_complex(held[own])  # type: ignore[arg-type]
        placed.append((held, own, real, pair))
        held[own] = pair  # type: ignore[assignment]
    try:
        yield
    finally:
        for held, own, real, pair in placed:
            # What a call has put in its place is seen there.
            if held[own] is pair:
                held[own] = real


def writable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns what a step may write in addition to trained parameters, by name: buffers, then frozen parameters."""
    frozen = {name: p for name, p in named_parameters(model).items() if not p.requires_grad}
    return {**named_buffers(model), **frozen}


def _refuse_unfit(name: str, value: torch.Tensor, place: str) -> None:
    here = f" at {place}" if place else ""
    # INVARIANT: what a step writes is part of its state.
    if value.is_complex() or value.layout != torch.strided:
        raise UsageError(
            f"the step writes {name}, a tensor of {value.dtype if value.is_complex() else value.layout}{here}",
            "a state holds only real, dense tensors: store torch.view_as_real(x), or x.to_dense()",
        )
    if not value.is_floating_point() and not value.is_meta and value.numel() and value.dtype != torch.bool:
        most = max(abs(int(value.max())), abs(int(value.min())))
        if most >= MAX_INTEGER:
            raise UsageError(
                f"the step writes {name}, integers up to {most}{here}",
                f"a state holds binary32 numbers, exact below {MAX_INTEGER}: use smaller integers",
            )


def _merge_rules(model: torch.nn.Module, names: Collection[str]) -> dict[str, str]:
    """Returns the rules that modules set for their buffers and frozen parameters, by full names; an outer module takes
    precedence. Raises UsageError for a pattern that matches nothing, or an unknown rule."""
    rules: dict[str, str] = {}
    with bare(model) as own:
        for path, module in reversed(list(own.named_modules())):
            prefix, given = f"{path}." if path else "", getattr(module, MERGE_RULES, None)
            for pattern, rule in given.items() if isinstance(given, Mapping) else ():
                found = [n for n in names if n.startswith(prefix) and fnmatchcase(n[len(prefix) :], pattern)]
                if rule not in MERGES or not found:
                    raise UsageError(
                        f"{prefix}{MERGE_RULES} has {{{pattern!r}: {rule!r}}}",
                        f"give a pattern that matches a buffer, and one of {', '.join(MERGES)}",
                    )
                rules.update({name: str(rule) for name in found})
    return rules


def running_statistics(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the statistics of batch norms in training mode, by name: mean, variance and the counter of batches."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.running_mean is not None]
    own = {id(b) for m in norms for b in m.buffers(recurse=False)}
    return {name: b for name, b in named_buffers(model).items() if id(b) in own}


def first_statistics(model: torch.nn.Module, layout: Layout) -> tuple[NDArray[np.float32], ...]:
    """Returns the tensor of the model's current statistics; () if a step writes none.

    Raises UsageError if they were built without values.
    """
    state = writable(model)
    if any(state[s.name].is_meta for s in layout.statistics):
        raise UsageError(f"{type(model).__name__} has no running statistics to start from", "build it with its weights")
    return tuple(t.numpy() for t in layout.joined({s.name: state[s.name].detach() for s in layout.statistics}))


def frozen_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters that a model does not train, by name: constants of its step, other floats as float32,
    complex ones as their real view."""
    return {name: _in_float32(p) for name, p in named_parameters(model).items() if not p.requires_grad}


def _in_float32(p: torch.Tensor) -> torch.Tensor:
    if p.dtype == torch.float32 or not (p.is_floating_point() or p.is_complex()):
        return p.detach()
    # While a function is traced, too, a constant is a tensor with values.
    with _disable_current_modes():
        return real_view(p.detach()).float()


def real_view(x: torch.Tensor) -> torch.Tensor:
    """Returns complex numbers with a last axis of two parts, as in torch's optimizers; other tensors unchanged."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def describe_frozen(model: torch.nn.Module, roots: Collection[str], layout: Layout) -> list[dict[str, Any]]:
    """Returns the frozen part of a job's `parameters`: those outside the layout, for a step whose constants have these
    roots, each that of a flat tensor.

    Each is {name, root, shape}; or {name, limbs, shape} for a weight that the step stores only as codes: pairs of the
    roots of codes and scales along its last axis, whose values add up. Raises UsageError for a parameter that is in no
    constant.
    """
    described = []
    written = {s.name for s in layout.statistics}
    pairs = {name for name, p in named_parameters(model).items() if p.is_complex()}
    for name, p in frozen_parameters(model).items():
        if name in written:
            continue
        values = p.contiguous().numpy().astype("<f4", copy=False)
        head = {"name": name, "shape": list(p.shape), **({"complex": True} if name in pairs else {})}
        root = _flat_root(F32, values)
        if root in roots:
            described.append({**head, "root": root})
            continue
        limbs = _limbs(values, roots) if values.ndim > 1 else []
        # INVARIANT: whoever has a job's Programs and a checkpoint has its whole model.
        if not limbs:
            raise UsageError(f"the step does not read the frozen parameter {name}", "remove it, or train it")
        described.append({**head, "limbs": limbs})
    return described


def _limbs(values: NDArray[np.float32], roots: Collection[str]) -> list[list[str]]:
    """Returns the roots of a table's codes and scales that are among `roots`, then those of the remainder."""
    found: list[list[str]] = []
    while len(found) < MAX_LIMBS:
        codes, scales = tables.quantised(values, width_of(values.shape[-1]))
        pair = [_flat_root(I32, codes), _flat_root(F32, scales)]
        if not set(pair) <= set(roots):
            break
        found.append(pair)
        values = values - tables.restored(codes, scales, values.shape[-1])
    return found


def _flat_root(dtype: int, values: NDArray[Any]) -> str:
    words = np.ascontiguousarray(values).reshape(-1)
    return tensor_root(dtype, words.shape, words.view(np.uint8).data).hex()


def initial_parameters(model: torch.nn.Module, seed: int) -> NDArray[np.float32]:
    """Returns the initial concatenated shards, which depend only on the layout and the seed, on every machine.

    Matrices are normal in all but the far tails (sums of twelve uniforms, Irwin-Hall) with the model's
    `initial_scale(name, shape)`; vectors are ones for weights of norms and zeros for biases. A model without
    `initial_scale` starts from its own weights; raises UsageError if it was built without any.
    """
    model = unwrapped(model)
    layout = layout_of(model)
    if not hasattr(model, "initial_scale"):
        if any(p.is_meta for p in model.parameters()):
            raise UsageError(f"{type(model).__name__} has no weights to start from", "build it with its weights")
        return layout.join({name: real_view(p.detach()).float() for name, p in named_parameters(model).items()}).numpy()
    flat = np.zeros(layout.size, np.float32)
    for index, parameter in enumerate(layout.parameters):
        start = layout.start(parameter)
        part = flat[start : start + parameter.elements]
        if len(parameter.shape) < 2:
            part[:] = 1.0 if parameter.name.endswith("weight") else 0.0
        else:
            scale = model.initial_scale(parameter.name, parameter.shape)  # type: ignore[operator]
            if scale:
                part[:] = np.float32(scale) * _normal(seed, index, parameter.elements)
    return flat


def _normal(seed: int, stream: int, count: int) -> NDArray[np.float32]:
    """Mean 0, variance 1: twelve 21-bit uniforms of a Philox counter (Salmon 2011) summed exactly, minus 6."""
    words = np.random.Philox(key=(stream << 64) | (seed & (2**64 - 1))).random_raw(4 * count).reshape(count, 4)
    total = np.zeros(count, np.int64)
    for shift in (0, 21, 42):
        total += ((words >> np.uint64(shift)) & np.uint64(2**21 - 1)).astype(np.int64).sum(1)
    # The sum has 25 bits: halved first, it is exact in binary32, and so is the scaling by a power of two.
    return (((total - 6 * 2**21 + 6) >> 1).astype(np.float32)) * np.float32(2.0**-20)


def tensors(layout: Layout, flat: NDArray[np.float32]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, copy of its part) of every parameter, complex if the parameter is."""
    for p in layout.parameters:
        start = layout.start(p)
        part = torch.from_numpy(flat[start : start + p.elements].reshape(p.shape).copy())
        yield p.name, torch.view_as_complex(part) if p.is_complex else part
