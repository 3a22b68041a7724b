"""Assigns values to nodes: symbolic expressions at first, windows on memory once a consumer needs them stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.protocol.programs.rules import MAX_AXES
from lockstep.tracing.affine import Inst, Val, Views
from lockstep.tracing.emission import Emission
from lockstep.tracing.fusion import is_dear_under
from lockstep.tracing.graph import Node


class Placement:
    """The current value of each node.

    A node that must be stored in another layout is stored once, for all later readers.
    """

    def __init__(self, views: Views, emission: Emission) -> None:
        self._views = views
        self._emission = emission
        self._vals: dict[int, Val] = {}

    def put(self, node: Node, val: Val) -> None:
        """Sets the value of a node."""
        self._vals[node.index] = val

    def value(self, node: Node) -> Val:
        """Returns the current value of a node; a view follows its base."""
        if node.index in self._vals:
            return self._vals[node.index]
        base = node.args[0]
        val = self.value(base)
        if isinstance(val.body, Inst) and is_dear_under(node, val.body):
            val = self.stored(base)
        result = self.seen(node, val)
        if result is None or (sum(result.varying) > MAX_AXES and sum(val.varying) <= MAX_AXES):
            result = self.seen(node, self.stored(base))
        if result is None:
            # A broadcast value was not stored in full, and only a full copy can be split this way.
            result = self.seen(node, self.stored(base, range(len(base.shape))))
        assert result is not None, f"a {node.kind} of a contiguous tensor is a view"
        return result

    def seen(self, node: Node, val: Val) -> Val | None:
        """Returns the value of a view node, given its argument's; None if the axes cannot be split as needed."""
        match node.kind:
            case "permute":
                return self._views.permute(val, node.attrs[0])
            case "reshape":
                return self._views.reshape(val, node.shape)
            case "expand":
                return self._views.expand(val, node.shape)
            case "flip":
                return self._views.flip(val, node.attrs[0])
        axis, *steps = node.attrs
        if node.kind == "window":
            return self._views.cut(val, axis, node.shape[axis : axis + 2], steps)
        start, step = steps
        return self._views.cut(val, axis, (node.shape[axis],), (step,), start)

    def stored(self, node: Node, keep: Sequence[int] = ()) -> Val:
        """Stores a node, contiguous in its own order; axes of broadcast dimensions are left out unless listed in
        `keep`.
        """
        self._vals[node.index] = self._emission.map(self.value(node), node, keep)
        return self._vals[node.index]

    def stored_as(self, fits: Callable[[Val], bool], node: Node, dims: Sequence[int]) -> Val:
        """Stores a node; broadcast `dims` are written out if the value does not satisfy `fits` otherwise."""
        val = self.stored(node)
        return val if fits(val) else self.stored(node, dims)

    def fitting(self, fits: Callable[[Val], bool], node: Node, dims: Sequence[int] = ()) -> Val:
        """Returns the node's value if it satisfies `fits`, else a stored copy that does."""
        val = self.value(node)
        return val if fits(val) else self.stored_as(fits, node, dims)

    def unified(self, nodes: Sequence[Node]) -> list[Val]:
        """Returns values of one logical shape over the same iteration axes."""
        vals = [self.value(n) for n in nodes]
        result = self._views.unify(vals)
        if result is None or any(sum(val.varying) > MAX_AXES for val in result):
            vals = [self.stored(n) if any(len(d) > 1 for d in v.dims) else v for n, v in zip(nodes, vals, strict=True)]
            result = self._views.unify(vals)
        assert result is not None, "contiguous tensors of one shape have nesting axes"
        return result
