"""`trace`: a torch function becomes a Program.

    def step(parameters, moment):
        ...
        return new_parameters, new_moment

    program = trace(step, torch.zeros(1000), torch.zeros(1000))

The root follows from the function's arithmetic alone: not from names, hash seeds, threads or the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep.protocol.errors import LoweringError, ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import F32, I32, Alias, Const, Op, Program, Tag
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
    windows,
)
from lockstep.tracing import graph as g
from lockstep.tracing.arithmetic import Products
from lockstep.tracing.capture import capture
from lockstep.tracing.graph import Node
from lockstep.tracing.lowering import Lowering, input_dtype, refusal
from lockstep.tracing.schedule import OpDraft, Schedule


def trace(fn: Callable[..., Any], *examples: torch.Tensor | None, products: Products | None = None) -> Program:
    """The Program of `fn(*examples) -> sequence of tensors or None`.

    Each example gives the dtype and shape of one entry of the input state (float32 or int32, rank 0 or 1) and needs no
    values (`device="meta"`): time and memory grow with the operations, not with the elements. None is an EMPTY entry,
    which `fn` receives as None. What `fn` returns is the output state, None again for EMPTY; both are padded with
    EMPTY to a power of two. `torch.autograd.grad` may run inside. `products` says which products are of integers; by
    default none is. Raises LoweringError, with the module, the aten operation and the line of the forward, for an
    operation that cannot become a Program, or breaks a bound of `protocol.programs.rules`.
    """
    given = [(i, e) for i, e in enumerate(examples) if e is not None]
    entries: list[TensorHeader | None] = [None] * _padded(len(examples))
    low = Lowering(products)
    nodes = []
    for i, example in given:
        dtype = input_dtype(example, i)
        entries[i] = TensorHeader(F32 if dtype == g.F32 else I32, tuple(example.shape))
        rules.check_input(i, entries[i])
        nodes.append(low.graph.state(i, dtype, tuple(example.shape)))

    def dense(*tensors: torch.Tensor) -> list[Any]:
        full: list[torch.Tensor | None] = [None] * len(examples)
        for (i, _), tensor in zip(given, tensors, strict=True):
            full[i] = tensor
        results = fn(*full)
        return list(results) if isinstance(results, (tuple, list)) else [results]

    module = capture(dense, [e for _, e in given])
    outputs = _flat(low.run(module, nodes))
    outputs += [None] * (_padded(len(outputs)) - len(outputs))
    schedule = Schedule()
    aliases = schedule.run(outputs)
    for what, state in (("input", entries), ("output", outputs)):
        rules.check_width(what, len(state))
    return _assemble(schedule, tuple(entries), aliases)


def _padded(count: int) -> int:
    return 1 << ceil_log2(max(count, 1))


def _flat(outputs: Sequence[Node | None]) -> list[Node | None]:
    for k, node in enumerate(outputs):
        if node is not None and len(node.shape) > 1:
            raise LoweringError(f"output {k} has shape {node.shape}", hint="state tensors are flat: reshape(-1) it")
    return list(outputs)


def _assemble(schedule: Schedule, entries: tuple[TensorHeader | None, ...], aliases: tuple[Alias, ...]) -> Program:
    """The Program without ops and constants that no output needs."""
    needed: set[int] = set()
    stack = [a.index for a in aliases if a.kind == Alias.OP_KIND]
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            stack += [v.index for v in schedule.drafts[index].views if v.tag == Tag.OP]
    order = sorted(needed)
    new_op = {old: new for new, old in enumerate(order)}
    used = sorted({v.index for i in order for v in schedule.drafts[i].views if v.tag == Tag.CONST})
    new_const = {old: new for new, old in enumerate(used)}
    ops, elements = [], 0
    for old in order:
        op = _op(schedule.drafts[old], new_op, new_const)
        elements += op.header.elements
        ops.append(replace(op, cumulative=elements))
        try:
            _check_bounds(len(ops), ops[-1])
        except ProgramInvalid as broken:
            origin = schedule.origins[old]
            raise refusal(origin, origin.aten or op.kind.name.lower(), broken.message, broken.hint) from broken
    tables = [schedule.consts[i] for i in used]
    consts = [Const(TensorHeader(F32 if n.dtype == g.F32 else I32, n.shape), n.attrs[0].data) for n in tables]
    outputs = tuple(Alias(a.kind, new_op[a.index]) if a.kind == Alias.OP_KIND else a for a in aliases)
    return Program(
        tuple(ops),
        entries,
        outputs,
        tuple(consts),
        tuple(schedule.origins[i].name or schedule.drafts[i].kind.name.lower() for i in order),
        tuple(schedule.origins[i].place for i in order),
    )


def _check_bounds(count: int, op: Op) -> None:
    """Raises ProgramInvalid if the Program outgrows a bound with this op, its last of `count`."""
    rules.check_op_count(count)
    rules.check_shape(op)
    rules.check_kind(op)
    rules.check_total(op.cumulative)


def _op(draft: OpDraft, new_op: dict[int, int], new_const: dict[int, int]) -> Op:
    renumbered = {Tag.OP: new_op, Tag.CONST: new_const}
    views = tuple(replace(v, index=renumbered[v.tag][v.index]) if v.tag in renumbered else v for v in draft.views)
    return Op(
        draft.kind,
        draft.dtype,
        draft.extents,
        views,
        draft.k_extents,
        draft.mode,
        draft.instrs,
        draft.p0,
        draft.p1,
        draft.sizes,
    )
