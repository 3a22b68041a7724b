"""`trace` converts a torch function to a Program.

    def step(parameters, moment):
        ...
        return new_parameters, new_moment

    program = trace(step, torch.zeros(1000), torch.zeros(1000))

The root follows from the function's arithmetic alone: not from names, hash seeds, threads or the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lockstep.protocol.errors import LoweringError
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import F32, I32, Program
from lockstep.tracing import (  # noqa: F401  (each fills the table of rules)
    activations,
    indexing,
    layers,
    linear,
    losses,
    normalization,
    ordering,
    pointwise,
    randomness,
    reductions,
    resampling,
    shapes,
    special,
    windows,
)
from lockstep.tracing import graph as g
from lockstep.tracing.arithmetic import Products
from lockstep.tracing.capture import capture
from lockstep.tracing.graph import Node
from lockstep.tracing.lowering import Lowering, input_dtype
from lockstep.tracing.selection import Selection


def trace(fn: Callable[..., Any], *examples: torch.Tensor | None, products: Products | None = None) -> Program:
    """Returns the Program of `fn(*examples) -> sequence of tensors or None`.

    Each example gives the dtype and shape of one entry of the input state (float32 or int32, rank 0 or 1). Examples
    need no values (`device="meta"`): time and memory grow with the number of operations, not of elements. None stands
    for an EMPTY entry, which `fn` receives as None. The results of `fn` are the output state, None again for EMPTY;
    both states are padded with EMPTY to a power of two. `torch.autograd.grad` may run inside. `products` selects the
    products that run in integers; by default none does. Raises LoweringError, with the module, the aten operation and
    the line of the forward, for an operation that cannot become a Program or exceeds a bound of
    `protocol.programs.rules`.
    """
    return Captured.of(fn, *examples).lowered(products).program()


@dataclass(frozen=True)
class Captured:
    """A function's aten graph, from which Programs with several arithmetics follow."""

    module: fx.GraphModule
    examples: tuple[torch.Tensor | None, ...]

    @staticmethod
    def of(fn: Callable[..., Any], *examples: torch.Tensor | None) -> Captured:
        """Captures `fn(*examples)`; raises LoweringError where torch cannot."""
        given = [(i, e) for i, e in enumerate(examples) if e is not None]
        for i, example in given:
            rules.check_input(i, _header(example, i))

        def dense(*tensors: torch.Tensor) -> list[Any]:
            full: list[torch.Tensor | None] = [None] * len(examples)
            for (i, _), tensor in zip(given, tensors, strict=True):
                full[i] = tensor
            results = fn(*full)
            return list(results) if isinstance(results, (tuple, list)) else [results]

        return Captured(capture(dense, [e for _, e in given]), examples)

    def lowered(self, products: Products | None = None) -> Lowered:
        """Lowers the graph; `products` selects the products that run in integers."""
        low = Lowering(products)
        entries: list[TensorHeader | None] = [None] * _padded(len(self.examples))
        nodes = []
        for i, example in enumerate(self.examples):
            if example is not None:
                entries[i] = _header(example, i)
                nodes.append(low.graph.state(i, input_dtype(example, i), tuple(example.shape)))
        return Lowered(tuple(entries), tuple(_flat(low.run(self.module, nodes))))


@dataclass(frozen=True)
class Lowered:
    """The tensor graph of a function's results, for Programs that return all or some of them."""

    entries: tuple[TensorHeader | None, ...]
    results: tuple[Node | None, ...]

    def program(self, kept: Sequence[int] | None = None) -> Program:
        """Returns the Program of all results, or of the `kept` ones, by their positions."""
        outputs = list(self.results) if kept is None else [self.results[i] for i in kept]
        outputs += [None] * (_padded(len(outputs)) - len(outputs))
        for what, state in (("input", self.entries), ("output", outputs)):
            rules.check_width(what, len(state))
        return Selection(outputs).program(self.entries)


def _header(example: torch.Tensor, i: int) -> TensorHeader:
    return TensorHeader(F32 if input_dtype(example, i) == g.F32 else I32, tuple(example.shape))


def _padded(count: int) -> int:
    return 1 << ceil_log2(max(count, 1))


def _flat(outputs: Sequence[Node | None]) -> list[Node | None]:
    for k, node in enumerate(outputs):
        if node is not None and len(node.shape) > 1:
            raise LoweringError(f"output {k} has shape {node.shape}", hint="state tensors are flat: reshape(-1) it")
    return list(outputs)
