"""The policy of the tracer: which products of a model are products of integers, and with how many limbs.

    [arithmetic]
    products = "int8"                                # "float32": none is

    [arithmetic.modules]                             # exceptions; the last pattern that matches decides
    "layers.*.mlp.down_proj" = "int8x2"              # two limbs, forward and backward
    "layers.*.self_attn:gradients" = "int8"
    "lm_head:forward" = "float32"
    "encoder.*:values" = "int8"                      # not causal: see VALUES

A product is named by its module's path, and `:forward`, `:gradients` or `:values`. Products outside of every module,
such as an optimizer's, stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import fx

from lockstep.base.naming import refuse_unknown
from lockstep.protocol.errors import UsageError
from lockstep.tracing.graph import F32, VIEWS, Node, Origin

FORMS = {"float32": 0, "int8": 1, "int8x2": 2}
"""Name of a product's arithmetic to its limbs; 0: no integers."""
PRODUCTS = ("float32", "int8")
LINEAR, HEAD, ATTENTION = "linear", "head", "attention"
VALUES = "values"
"""Probabilities times values, and what is like it: the terms of the sum are tokens.

Codes along tokens share a scale, so that the last token would move the results of all earlier ones: no causal model
would be causal, and no cache of keys and values would give the bits of a whole pass. A query over cached keys has no
mask, so that masks do not tell which products these are. A pattern reaches them by `:values` alone.
"""
INT8 = {
    (LINEAR, "forward"): 1,
    (LINEAR, "gradients"): 1,
    (HEAD, "forward"): 2,
    (HEAD, "gradients"): 2,
    (ATTENTION, "forward"): 1,
    (ATTENTION, "gradients"): 2,
    (VALUES, "values"): 0,
}
"""Limbs of `products = "int8"`. 92 % of the one-limb codes of a head's gradient, softmax - onehot, would be 0."""


@dataclass(frozen=True)
class Arithmetic:
    """`[arithmetic]` of a job."""

    products: str = "float32"
    """"float32" or "int8"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Pattern of products to "float32", "int8" or "int8x2"; the last one that matches a product decides."""

    def __post_init__(self) -> None:
        if self.products not in PRODUCTS:
            raise UsageError(f"arithmetic.products is {self.products!r}", f"one of {', '.join(PRODUCTS)}")
        for pattern, form in self.modules.items():
            if not isinstance(form, str) or form not in FORMS:
                raise UsageError(f"arithmetic.modules: {pattern} is {form!r}", f"one of {', '.join(FORMS)}")
        if self.modules and self.products == "float32":
            raise UsageError('arithmetic.modules has no effect with products = "float32"', 'write products = "int8"')

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Arithmetic:
        """Reads the table of a description. UsageError for a name that it does not know."""
        refuse_unknown(table, ["products", "modules"], "[arithmetic]")
        modules = table.get("modules", {})
        if not isinstance(modules, Mapping):
            raise UsageError(f"arithmetic.modules is {modules!r}", "write a table: [arithmetic.modules]")
        return cls(table.get("products", "float32"), dict(modules))

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `of`."""
        return {"products": self.products, **({"modules": dict(self.modules)} if self.modules else {})}


FLOAT32 = Arithmetic()


class Products:
    """The policy applied to one job: remembers which products there are, so that a wrong name is told."""

    def __init__(self, arithmetic: Arithmetic = FLOAT32) -> None:
        self.arithmetic = arithmetic
        self.names: dict[str, str] = {}
        """Name of each product to its class."""
        self._classes: dict[tuple[str, str], str] = {}
        self._operands: dict[tuple[str, str], set[int]] = {}
        self._mixed: dict[int, bool] = {}
        self._of_data: dict[int, bool] = {}

    def read(self, graph: fx.Graph, origin_of: str) -> None:
        """Marks the products whose results a log-softmax reads as heads, before any of them is lowered."""
        self._classes.clear()
        self._operands.clear()
        self._mixed.clear()
        self._of_data.clear()
        for node in graph.nodes:
            if str(node.target).startswith("aten._log_softmax."):
                head = _head_of(node)
                origin = None if head is None else head.meta.get(origin_of)
                if origin is not None:
                    self._classes[_place(origin)] = HEAD

    def limbs(self, origin: Origin, a: Node, b: Node) -> int:
        """The limbs of the product of a and b; 0: float32."""
        if self.arithmetic.products == "float32" or not origin.inside:
            return 0
        place = _place(origin)
        fixed = any(_base(x).kind in ("state", "const") for x in (a, b))
        if not origin.backward:
            self._classes.setdefault(place, LINEAR if fixed else ATTENTION)
            self._operands.setdefault(place, set()).update(_base(x).index for x in (a, b))
        kind = self._classes.get(place, LINEAR)
        when = "gradients" if origin.backward else "forward"
        if not origin.backward and not fixed and (self._mixes(a) or self._mixes(b)):
            kind = when = VALUES
        name = f"{origin.module}:{when}"
        self.names[name] = kind
        limbs = INT8[kind, when]
        for pattern, form in self.arithmetic.modules.items():
            if _matches(pattern, name):
                limbs = FORMS[form]
        return limbs

    def made(self, product: Node, a: Node, b: Node) -> None:
        """Remembers what became of the product of a and b."""
        if self.arithmetic.products != "float32":
            self._mixed[_base(product).index] = all(_reaches(x, self._of_data, _is_data) for x in (a, b))

    def weighs(self, weights: Node) -> None:
        """Remembers the result of a softmax."""
        self._mixed[_base(weights).index] = True

    def _mixes(self, x: Node) -> bool:
        """True if x comes from a softmax or from a product of data with data, and not through one of a parameter."""
        return _reaches(x, self._mixed, lambda _: False)

    def is_gradient(self, origin: Origin, x: Node) -> bool:
        """True if x is the gradient of a product in a backward: no operand of the forward."""
        return origin.backward and _base(x).index not in self._operands.get(_place(origin), ())

    def refuse_unused(self) -> None:
        """Raises UsageError for a pattern that names no product of what was traced."""
        for pattern in self.arithmetic.modules:
            if not any(_matches(pattern, name) for name in self.names):
                known = sorted({name.rpartition(":")[0] for name in self.names})
                shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
                raise UsageError(f"arithmetic.modules: {pattern} names no product", f"products are of {shown}")


def _matches(pattern: str, name: str) -> bool:
    module, _, when = name.rpartition(":")
    return fnmatchcase(name, pattern) if ":" in pattern else when != VALUES and fnmatchcase(module, pattern)


def _place(origin: Origin) -> tuple[str, str]:
    return origin.module, origin.place


def _is_data(node: Node) -> bool:
    return node.kind == "draw" or (node.kind == "state" and node.dtype != F32)


def _reaches(start: Node, known: dict[int, bool], found: Callable[[Node], bool]) -> bool:
    """True if a node is computed from one that is `found`; `known` answers for some, and remembers."""
    stack = [start]
    while stack:
        node = stack[-1]
        waiting = [a for a in node.args if a.index not in known]
        if node.index not in known and not found(node) and waiting:
            stack += waiting
            continue
        known.setdefault(node.index, found(node) or any(known[a.index] for a in node.args if a.index in known))
        stack.pop()
    return known[start.index]


def _base(node: Node) -> Node:
    while node.kind in VIEWS:
        node = node.args[0]
    return node


def _head_of(reader: fx.Node) -> fx.Node | None:
    """The product whose result reaches the node through views, casts, a bias or a factor alone."""
    node: object = reader
    while isinstance(node, fx.Node) and node.args:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            return node
        if name not in _TRANSPARENT:
            return None
        node = node.args[0]
    return None


_TRANSPARENT = frozenset({
    "_log_softmax", "view", "_unsafe_view", "reshape", "slice", "select", "transpose", "t", "permute", "clone",
    "_to_copy", "alias", "detach", "add", "mul", "div", "unsqueeze", "squeeze", "expand", "index", "masked_fill",
})  # fmt: skip
"""Operations of aten, of whose first argument every element becomes one of the result by itself."""
