"""Arithmetic policy of a job: selects the matrix products that run in integers, and their number of limbs.

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
"""Maps the name of a product's arithmetic to its number of integer limbs; 0 is float32."""
PRODUCTS = ("float32", "int8")
LINEAR, HEAD, ATTENTION = "linear", "head", "attention"
VALUES = "values"
"""Class of products whose sum runs over tokens, such as attention probabilities times values.

Quantised codes along tokens share a scale, so the last token would change the results of all earlier tokens: the model
would no longer be causal, and decoding with a cache of keys and values would not give the bits of a full pass. A query
over cached keys has no mask, so masks do not identify these products. Only a pattern that ends in `:values` selects
them.
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
"""Limbs of each class of products under `products = "int8"`.

With one limb 92 % of the codes of a head's gradient, softmax - onehot, would be 0.
"""


@dataclass(frozen=True)
class Arithmetic:
    """The `[arithmetic]` table of a job's description."""

    products: str = "float32"
    """Default arithmetic: "float32" or "int8"."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Maps a pattern of product names to "float32", "int8" or "int8x2"; the last pattern that matches a product
    wins.
    """

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
        """Parses the `[arithmetic]` table. Raises UsageError for an unknown name."""
        refuse_unknown(table, ["products", "modules"], "[arithmetic]")
        modules = table.get("modules", {})
        if not isinstance(modules, Mapping):
            raise UsageError(f"arithmetic.modules is {modules!r}", "write a table: [arithmetic.modules]")
        return cls(table.get("products", "float32"), dict(modules))

    def to_dict(self) -> dict[str, Any]:
        """Returns the table that `of` parses into this value."""
        return {"products": self.products, **({"modules": dict(self.modules)} if self.modules else {})}


FLOAT32 = Arithmetic()


class Products:
    """Applies the policy to one job, and records the names of its products so that unmatched patterns can be
    reported.
    """

    def __init__(self, arithmetic: Arithmetic = FLOAT32) -> None:
        self.arithmetic = arithmetic
        self.names: dict[str, str] = {}
        """Maps the name of each product to its class."""
        self._classes: dict[tuple[str, str], str] = {}
        self._operands: dict[tuple[str, str], set[int]] = {}
        self._mixed: dict[int, bool] = {}
        self._of_data: dict[int, bool] = {}

    def read(self, graph: fx.Graph, origin_of: str) -> None:
        """Marks as heads the products whose results feed a log-softmax, before any product is lowered."""
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
        """Returns the number of integer limbs for the product of a and b; 0 is float32."""
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
        """Records of the product of a and b whether both factors are computed from data."""
        if self.arithmetic.products != "float32":
            self._mixed[_base(product).index] = all(_reaches(x, self._of_data, _is_data) for x in (a, b))

    def weighs(self, weights: Node) -> None:
        """Records the result of a softmax."""
        self._mixed[_base(weights).index] = True

    def _mixes(self, x: Node) -> bool:
        """True if x depends on a softmax, or on a product of two computed tensors, without passing through a
        parameter's product.
        """
        return _reaches(x, self._mixed, lambda _: False)

    def is_gradient(self, origin: Origin, x: Node) -> bool:
        """True if x is a gradient inside a product's backward pass, and not an operand of the forward pass."""
        return origin.backward and _base(x).index not in self._operands.get(_place(origin), ())

    def refuse_unused(self) -> None:
        """Raises UsageError for a pattern that matches no traced product."""
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
    """True if the node depends on a node for which `found` holds. `known` caches the answers."""
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
    """Returns the product that reaches this node through views, casts, a bias or a scalar factor alone."""
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
"""Aten operations that compute each element of the result from one element of their first argument."""
