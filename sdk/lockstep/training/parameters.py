"""A model's parameters as one flat tensor: where each lies, and what it starts as."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.protocol.merkle import LEAF_ELEMENTS, tensor_root
from lockstep.protocol.program import F32


@dataclass(frozen=True)
class Parameter:
    """One parameter's place in the flat tensor."""

    name: str
    offset: int
    """Elements before it."""
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The order of a model's parameters in the flat tensor.

    Parameters of whole leaves come first, so that a row of a matrix lies in as few 1 KiB leaves as it can: each leaf
    costs the court an opening. The size is rounded up to whole leaves; the rest stays zero.
    """

    parameters: tuple[Parameter, ...]
    size: int
    """Elements of the flat tensor, a multiple of 256."""

    @property
    def used(self) -> int:
        """Elements that are parameters."""
        return sum(p.elements for p in self.parameters)

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of a flat tensor by name."""
        return {p.name: flat[p.offset : p.offset + p.elements].view(p.shape) for p in self.parameters}

    def join(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """One flat tensor of tensors by name."""
        parts = [tensors[p.name].reshape(-1) for p in self.parameters]
        if self.size > self.used:
            parts.append(torch.zeros(self.size - self.used))
        return torch.cat(parts)

    def describe(self) -> list[dict[str, Any]]:
        """`parameters` of a job's spec: {name, offset, shape} each."""
        return [{"name": p.name, "offset": p.offset, "shape": list(p.shape)} for p in self.parameters]


def layout_of(model: torch.nn.Module) -> Layout:
    """Where each parameter of a model lies; tied parameters once, frozen ones (no `requires_grad`) nowhere."""
    named = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise UsageError(f"{type(model).__name__} has nothing to train", "every parameter is frozen")
    ordered = sorted(named, key=lambda item: prod(item[1]) % LEAF_ELEMENTS != 0)
    places, offset = [], 0
    for name, shape in ordered:
        places.append(Parameter(name, offset, shape))
        offset += prod(shape)
    return Layout(tuple(places), -(-offset // LEAF_ELEMENTS) * LEAF_ELEMENTS)


def frozen_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a model has but does not train, by name: constants of its step."""
    return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}


def describe_frozen(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The rest of a job's `parameters`: {name, root, shape} each, the root that of a flat constant."""
    described = []
    for name, p in frozen_parameters(model).items():
        words = p.contiguous().numpy().astype("<f4", copy=False).reshape(-1).data
        described.append({"name": name, "root": tensor_root(F32, (p.numel(),), words).hex(), "shape": list(p.shape)})
    return described


def initial_parameters(model: torch.nn.Module, seed: int) -> NDArray[np.float32]:
    """The flat tensor at the start: a function of the layout and the seed alone, on every machine.

    Matrices are normal in all but the far tails (sums of twelve uniforms, Irwin-Hall) with the model's
    `initial_scale(name, shape)`; vectors are ones for weights of norms and zeros for biases. A model without
    `initial_scale` starts from the weights that it has.
    """
    layout = layout_of(model)
    if not hasattr(model, "initial_scale"):
        return layout.join({name: p.detach().float() for name, p in model.named_parameters()}).numpy()
    flat = np.zeros(layout.size, np.float32)
    for index, parameter in enumerate(layout.parameters):
        part = flat[parameter.offset : parameter.offset + parameter.elements]
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
    """(name, copy of its part) of every parameter."""
    for p in layout.parameters:
        yield p.name, torch.from_numpy(flat[p.offset : p.offset + p.elements].reshape(p.shape).copy())
