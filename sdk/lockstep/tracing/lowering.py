"""Lowers an aten graph to the tensor graph: the table of rules, and the interface of a rule.

One rule per aten operation, registered by name in the modules that docs/lowerings.md lists. The table is versioned with
the op-set. Of torch's own decompositions only those listed in `decomposed.py` can influence a root.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.tracing.arithmetic import Products
from lockstep.tracing.capture import NO_VALUES, ORIGIN, SHAPES_HINT
from lockstep.tracing.graph import BOOL, F32, I32, Graph, Node, Origin

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
"""Maps an aten name ("aten.mm", "aten.add.Tensor") to its rule."""

MOST_REFUSALS = 20
"""Most refused lines that an error lists after the first."""
COPIED_BYTES = 1 << 20
"""Size up to which a constant is copied into the graph."""
_DTYPES = {torch.float32: F32, torch.int32: I32, torch.int64: I32, torch.bool: BOOL}
_NARROW = {torch.int8: 8, torch.uint8: 8, torch.int16: 16}
"""Bits of each small integer dtype: its values are i32, reduced to these bits after every operation."""
_REFUSED = {
    torch.float64: "use float32: float64 has no reproducible kernels",
    torch.float16: "use float32: a Program computes in binary32",
    torch.bfloat16: "use float32: a Program computes in binary32",
    **dict.fromkeys(
        (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
        "leave the cast out: a Program rounds to no float of 8 bits (but products of 8-bit integers: `arithmetic`)",
    ),
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for aten operations, named as torch prints them, without `.default`."""

    def register(function: Rule) -> Rule:
        RULES.update({f"aten.{name}": function for name in names})
        return function

    return register


class Unlowered:
    """An output of a torch operation that no rule computes; using it is an error."""

    def __init__(self, what: str) -> None:
        self.what = what


_REWRITE = "rewrite this line with supported operations"
_WAYS_OUT = {
    "aten._dirichlet_grad": "a Dirichlet or Beta sample has a gradient as a share of Gamma samples: "
    "g = torch.distributions.Gamma(concentration, 1.0).rsample(), then g / g.sum(-1, keepdim=True)"
}
"""Maps an operation without a rule to a specific hint."""


class Wide:
    """A constant whose dtype no node has; other constants may be computed from it."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Lowering:
    """The interface of a rule: the graph, and the dtype and shape of the result that torch computed."""

    def __init__(self, products: Products | None = None) -> None:
        self.graph = Graph()
        self.products = products or Products()
        self.dtype = F32
        self.shape: tuple[int, ...] = ()
        self.draws = 0
        """Number of draws from torch's generator so far."""
        self._integral: dict[int, Node] = {}
        self._constants: set[fx.Node] = set()
        """Nodes of the aten graph that depend on no input."""
        self._fixed: dict[fx.Node, torch.Tensor] = {}
        """Evaluated constants of the aten graph."""
        self._made: dict[int, fx.Node] = {}
        """Maps the index of a tensor-graph node to the constant aten node that it was made from."""

    # --- values -------------------------------------------------------------------------------------------

    def cast(self, x: Node | float, dtype: str) -> Node:
        """Converts a number or node to the dtype; floats are truncated to integers, as in torch."""
        g = self.graph
        if not isinstance(x, Node):
            return g.number(bool(x) if dtype == BOOL else x, dtype)
        if x.dtype == dtype or (x.dtype == BOOL and dtype == I32):
            return x
        if dtype == F32:
            return g.apply(Opcode.I2F, x, dtype=F32)
        if dtype == BOOL:
            zero = g.number(0, x.dtype)
            same = g.apply(Opcode.FEQ if x.dtype == F32 else Opcode.IEQ, x, zero, dtype=BOOL)
            return self.negation(same)
        # F2I itself rounds to the nearest integer, so a value that was just rounded needs no second rounding.
        return g.apply(Opcode.F2I, self._integral.get(x.index) or self.truncate(x), dtype=I32)

    def f(self, op: Opcode, *args: Node | float) -> Node:
        """Applies a float operation to nodes or numbers."""
        return self.graph.apply(op, *(self.cast(a, F32) for a in args), dtype=F32)

    def i(self, op: Opcode, *args: Node | float) -> Node:
        """Applies an integer operation to nodes or numbers."""
        return self.graph.apply(op, *(self.cast(a, I32) for a in args), dtype=I32)

    def test(self, op: Opcode, a: Node | float, b: Node | float) -> Node:
        """Compares two values: FLT, FLE, FEQ for floats, ILT, ILE, IEQ for integers."""
        dtype = F32 if op in (Opcode.FLT, Opcode.FLE, Opcode.FEQ) else I32
        return self.graph.apply(op, self.cast(a, dtype), self.cast(b, dtype), dtype=BOOL)

    def select(self, condition: Node, a: Node | float, b: Node | float, dtype: str) -> Node:
        """Returns a where the condition holds, else b."""
        return self.graph.apply(Opcode.SELECT, condition, self.cast(a, dtype), self.cast(b, dtype), dtype=dtype)

    def negation(self, condition: Node) -> Node:
        """Returns the logical negation of a bool."""
        return self.graph.apply(Opcode.IEQ, condition, self.graph.number(0, BOOL), dtype=BOOL)

    def rounded(self, x: Node) -> Node:
        """Rounds to the nearest integer, ties to even; integral and non-finite values are unchanged."""
        near = self.cast(self.graph.apply(Opcode.F2I, x, dtype=I32), F32)
        result = self.select(self.test(Opcode.FLT, self.f(Opcode.FABS, x), 2.0**23), near, x, F32)
        self._integral[result.index] = x
        return result

    def truncate(self, x: Node) -> Node:
        """Rounds towards zero."""
        near = self.rounded(x)
        beyond = self.test(Opcode.FLT, self.f(Opcode.FABS, x), self.f(Opcode.FABS, near))
        toward = self.select(
            self.test(Opcode.FLT, near, 0.0), self.f(Opcode.FADD, near, 1.0), self.f(Opcode.FSUB, near, 1.0), F32
        )
        return self.select(beyond, toward, near, F32)

    def axes(self, x: Node, dims: int | Sequence[int] | None) -> tuple[int, ...]:
        """Normalises torch's dimension arguments (negative, single, or None for all) to ascending axes."""
        rank = len(x.shape)
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(rank))
        listed = [dims] if isinstance(dims, int) else list(dims)
        return tuple(sorted(d % rank if rank else 0 for d in listed)) if rank else ()

    # --- the walk -----------------------------------------------------------------------------------------

    def run(self, module: fx.GraphModule, inputs: Sequence[Node]) -> list[Node | None]:
        """Lowers the graph and returns the nodes of its results. Raises one LoweringError for all operations that are
        refused.

        Operations that depend on a refused one are not tried; they are reported only if they have no rule.
        """
        self.products.read(module.graph, ORIGIN)
        env: dict[fx.Node, Any] = {}
        given = iter(inputs)
        refused: list[tuple[Origin, str, LoweringError]] = []
        lost: set[fx.Node] = set()
        for node in module.graph.nodes:
            self.graph.origin = node.meta.get(ORIGIN, Origin())
            if node.op == "get_attr" or (_is_pure(node) and self._constants.issuperset(node.all_input_nodes)):
                self._constants.add(node)
            if node.op == "output":
                if refused:
                    raise _joined(refused)
                results = fx.node.map_arg(node.args[0], lambda n: env[n])
                return [_one(r) for r in _sequence(results)]
            try:
                if not lost.isdisjoint(node.all_input_nodes):
                    lost.add(node)
                    self._rule_of(node)
                    continue
                env[node] = next(given) if node.op == "placeholder" else self._value(module, node, env)
            except LoweringError as error:
                refused.append((self.graph.origin, _rule_name(node), error))
                lost.add(node)
                continue
            if node in self._constants and isinstance(env[node], Node):
                self._made.setdefault(env[node].index, node)
        raise AssertionError("a graph ends in an output node")

    def _value(self, module: fx.GraphModule, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return self._constant(self._fixed.setdefault(node, getattr(module, str(node.target))), node)
        if node.target is operator.getitem:
            return env[node.args[0]][node.args[1]]  # type: ignore[index]
        return self._call(node, env)

    def _rule_of(self, node: fx.Node) -> Rule:
        found = RULES.get(_rule_name(node))
        if found is None and node.target is not operator.getitem:
            value = node.meta.get("val")
            if not _is_sized(value):
                raise self.error(node, "its shape depends on data", SHAPES_HINT)
            if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                raise self.error(
                    node, "a number of Python that depends on data", "keep it a tensor: torch.where, .sum()"
                )
            raise self.error(node, "no rule lowers it", _WAYS_OUT.get(_rule_name(node), _REWRITE))
        return found  # type: ignore[return-value]

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        name = self.graph.origin.aten or str(node.target)
        if _rule_name(node) not in RULES and (fixed := self._constant_of(node)) is not None:
            return self._constant(fixed, node)
        found = self._rule_of(node)
        expected = node.meta.get("val")
        first = expected[0] if isinstance(expected, (tuple, list)) else expected
        if isinstance(first, torch.Tensor):
            wide = first.dtype not in _DTYPES or any(isinstance(env[n], Wide) for n in node.all_input_nodes)
            if wide and (fixed := self._evaluated(node)) is not None:
                return self._constant(fixed, node)
            self.dtype, self.shape = self._dtype_of(first, node), tuple(first.shape)
            if first.numel() == 0 and first is expected:
                return self.graph.number(0, self.dtype, self.shape)
        args = fx.node.map_arg(node.args, lambda n: self._narrow(env[n], n))
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self._narrow(env[n], n))
        for value in fx.node.map_aggregate(args, lambda a: a):
            if isinstance(value, Unlowered):
                raise self.error(node, f"it needs {value.what}", "only the values are available")
        try:
            result = found(self, *args, **kwargs)
        except LoweringError as error:
            raise self.error(node, error.message, error.hint) from error
        except OverflowError as error:
            raise self.error(node, str(error), "integers of a Program have 32 bits") from error
        except TypeError as error:
            raise self.error(node, f"its arguments have no rule ({error})", f"call {name} with its defaults") from error
        result = self._cut(expected, result)
        self._check(node, expected, result)
        return result

    def _cut(self, expected: Any, result: Any) -> Any:
        """Wraps integers of fewer than 32 bits around, where torch's result has such a dtype."""
        if isinstance(result, (tuple, list)):
            return type(result)(map(self._cut, expected, result))
        bits = _NARROW.get(expected.dtype) if isinstance(expected, torch.Tensor) else None
        if bits is None or not isinstance(result, Node):
            return result
        if not expected.dtype.is_signed:
            return self.i(Opcode.IAND, result, (1 << bits) - 1)
        return self.i(Opcode.ISHR, self.i(Opcode.ISHL, result, 32 - bits), 32 - bits)

    def _check(self, node: fx.Node, expected: Any, result: Any) -> None:
        """Raises LoweringError if a rule's results differ from torch's in dtype or shape."""
        several = isinstance(result, (tuple, list))
        pairs = zip(expected, result, strict=False) if several else [(expected, result)]
        for tensor, made in pairs:
            if not isinstance(tensor, torch.Tensor) or not isinstance(made, Node):
                continue
            is_float = tensor.dtype not in _NARROW and _DTYPES.get(tensor.dtype, F32) == F32
            # INVARIANT: a rule's result is what torch said it is; integers read as floats would be other numbers.
            if (made.dtype == F32) != is_float or made.shape != tuple(tensor.shape):
                raise self.error(
                    node,
                    f"its rule makes {made.dtype} {list(made.shape)} of {tensor.dtype} {list(tensor.shape)}",
                    "convert its arguments to float32 first",
                )

    def fixed(self, x: Node) -> torch.Tensor | None:
        """Returns the value of a node that depends on no input; None if it depends on one or has no value."""
        made = self._made.get(x.index)
        return None if made is None else self._evaluated(made)

    def _evaluated(self, node: fx.Node) -> torch.Tensor | None:
        """Evaluates, with torch, an aten node that depends on constants alone; None for any other node."""
        if node in self._fixed:
            return self._fixed[node]
        if node not in self._constants:
            return None
        target: Any = node.target
        given = {n: self._evaluated(n) for n in node.all_input_nodes}
        if any(v is None or v.is_meta for v in given.values()):
            return None
        args: Any = fx.node.map_arg(node.args, lambda n: given[n])
        kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: given[n])
        with torch.no_grad():
            value = target(*args, **kwargs)
        if not isinstance(value, torch.Tensor):
            return None
        self._fixed[node] = value
        return value

    def _constant_of(self, node: fx.Node) -> torch.Tensor | None:
        """Evaluates an operation without a rule on constants alone (windows, tables) in float64, and rounds once."""
        first = node.meta.get("val")
        if node not in self._constants or not isinstance(first, torch.Tensor) or first.dtype not in _DTYPES:
            return None
        target: Any = node.target
        given = {n: self._evaluated(n) for n in node.all_input_nodes}
        # An operation that writes to a constant is not evaluated: it is refused for its missing rule.
        if target._schema.is_mutable or any(v is None or v.is_meta for v in given.values()):
            return None
        wide = {n: v.double() if v is not None and v.is_floating_point() else v for n, v in given.items()}
        args, kwargs = fx.node.map_aggregate(
            fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: wide[n]),
            lambda a: torch.float64 if a == torch.float32 else a,
        )
        kept = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                value = target(*args, **kwargs)
        finally:
            torch.set_default_dtype(kept)
        self._fixed[node] = value.to(first.dtype)
        return self._fixed[node]

    def _narrow(self, value: Any, node: fx.Node) -> Any:
        """Converts a constant of another dtype to a node, rounded once."""
        if not isinstance(value, Wide):
            return value
        tensor = value.value
        if tensor.is_complex():
            raise self.error(node, f"its result is {tensor.dtype}", "use two tensors of float32")
        return self._constant(tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64), node)

    def error(self, node: fx.Node, why: str, hint: str) -> LoweringError:
        """Returns an error that names the module, the aten operation and the user's forward line."""
        return refusal(node.meta.get(ORIGIN, Origin()), _rule_name(node), why, hint)

    def _dtype_of(self, tensor: torch.Tensor, node: fx.Node) -> str:
        if tensor.dtype not in _DTYPES and tensor.dtype not in _NARROW:
            hint = _REFUSED.get(tensor.dtype, "a Program knows float32, int32 and bool")
            raise self.error(node, f"its result is {tensor.dtype}", hint)
        if not _is_sized(tensor):
            raise self.error(node, "its shape depends on data", SHAPES_HINT)
        return _DTYPES.get(tensor.dtype, I32)

    def _constant(self, tensor: torch.Tensor, node: fx.Node) -> Any:
        if tensor.is_meta:
            raise self.error(node, "a constant has no values", NO_VALUES)
        if tensor.dtype not in _DTYPES:
            return Wide(tensor)
        dtype = self._dtype_of(tensor, node)
        if tensor.numel() == 0:
            return self.graph.number(0, dtype, tuple(tensor.shape))
        values = tensor.detach().contiguous().numpy()
        if dtype != F32 and (values.astype(np.int64) != values.astype(np.int32)).any():
            raise self.error(node, "an integer constant exceeds 32 bits", "integers of a Program have 32 bits")
        words = values.astype("<f4" if dtype == F32 else "<i4", copy=False).reshape(-1).view(np.uint8)
        # A large constant is a frozen model's own memory; small tables are copied, because buffers may be written to
        # later.
        data = words.data.toreadonly() if words.nbytes > COPIED_BYTES else words.tobytes()
        return self.graph.const(dtype, tuple(tensor.shape), data)


def refusal(origin: Origin, operation: str, why: str, hint: str) -> LoweringError:
    """Returns the error that an operation cannot become a Program, with its module and line."""
    return LoweringError(
        f"module `{origin.module or '(top level)'}` uses {operation}, which cannot become a Program: "
        f"{why}; at {origin.place or 'an unknown line'}",
        hint=hint,
    )


def _joined(refused: Sequence[tuple[Origin, str, LoweringError]]) -> LoweringError:
    """Combines all refusals into one error: the most frequently refused line first, then the others by name."""
    lines: dict[tuple[str, str], list[tuple[str, LoweringError]]] = {}
    for origin, operation, error in refused:
        lines.setdefault((origin.module, origin.place or operation), []).append((operation, error))
    ranked = sorted(lines.items(), key=lambda line: -len(line[1]))
    (_, first), *others = ranked
    error = first[0][1]
    if not others:
        return error
    more = [f"{found[0][0]} at {place}" for (_, place), found in others[:MOST_REFUSALS]]
    left = len(others) - len(more)
    also = "; ".join(more) + (f"; and {left} more" if left else "")
    return LoweringError(f"{error.message}. Also refused: {also}", hint=error.hint)


def input_dtype(tensor: torch.Tensor, index: int) -> str:
    """Returns the dtype of a state tensor. Raises LoweringError for a dtype that a Program does not support."""
    if tensor.dtype not in _DTYPES or tensor.dtype == torch.bool:
        raise LoweringError(
            f"state tensor {index} has dtype {tensor.dtype}",
            hint=_REFUSED.get(tensor.dtype, "state tensors are float32 or int32"),
        )
    if tensor.dim() > 1 or math.prod(tensor.shape) == 0:
        raise LoweringError(
            f"state tensor {index} has shape {tuple(tensor.shape)}",
            hint="state tensors are flat: rank 0 or 1, not empty",
        )
    return _DTYPES[tensor.dtype]


def _is_sized(value: Any) -> bool:
    """True if no result has a shape that depends on data."""
    return all(isinstance(d, int) for x in _sequence(value) if isinstance(x, torch.Tensor) for d in x.shape)


def _is_pure(node: fx.Node) -> bool:
    """True if torch computes the node as a pure function of its inputs."""
    target: Any = node.target
    pure = node.op == "call_function" and isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return pure and torch.Tag.nondeterministic_seeded not in target.tags


def _rule_name(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _sequence(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _one(result: Any) -> Node | None:
    if result is not None and not isinstance(result, Node):
        raise LoweringError("the function returns something that is not a tensor", hint="return tensors or None")
    return result
