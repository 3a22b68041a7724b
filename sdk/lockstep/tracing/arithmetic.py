"""The policy of the tracer: which products of a model are products of integers, and with how many limbs.

    [arithmetic]
    products = "int8"                                # "float32": none is

    [arithmetic.modules]                             # exceptions; the last pattern that matches decides
    "layers.*.mlp.down_proj" = "int8x2"              # two limbs, forward and backward
    "layers.*.self_attn:gradients" = "int8"
    "lm_head:forward" = "float32"

A product is named by its module's path, and `:forward` or `:gradients`. Products outside of every module, such as an
optimizer's, stay in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import fx

from lockstep.base.naming import refuse_unknown
from lockstep.protocol.errors import UsageError
from lockstep.tracing.graph import VIEWS, Node, Origin

FORMS = {"float32": 0, "int8": 1, "int8x2": 2}
"""Name of a product's arithmetic to its limbs; 0: no integers."""
PRODUCTS = ("float32", "int8")
LINEAR, HEAD, ATTENTION = "linear", "head", "attention"
INT8 = {
    (LINEAR, "forward"): 1,
    (LINEAR, "gradients"): 1,
    (HEAD, "forward"): 2,
    (HEAD, "gradients"): 2,
    (ATTENTION, "forward"): 1,
    (ATTENTION, "gradients"): 2,
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
            raise UsageError('arithmetic.modules beside products = "float32"', 'write products = "int8"')

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Arithmetic:
        """Reads the table of a description. UsageError for a name that it does not know."""
        refuse_unknown(table, ["products", "modules"], "[arithmetic]")
        modules = table.get("modules", {})
        if not isinstance(modules, Mapping):
            raise UsageError(f"arithmetic.modules is {modules!r}", "a table is due: [arithmetic.modules]")
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

    def read(self, graph: fx.Graph, origin_of: str) -> None:
        """Finds the heads of a graph, whose results a log-softmax reads, before its products are lowered."""
        self._classes.clear()
        self._operands.clear()
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
        if not origin.backward:
            fixed = any(_base(x).kind in ("state", "const") for x in (a, b))
            self._classes.setdefault(place, LINEAR if fixed else ATTENTION)
            self._operands.setdefault(place, set()).update(_base(x).index for x in (a, b))
        kind = self._classes.get(place, LINEAR)
        when = "gradients" if origin.backward else "forward"
        name = f"{origin.module}:{when}"
        self.names[name] = kind
        limbs = INT8[kind, when]
        for pattern, form in self.arithmetic.modules.items():
            if _matches(pattern, name):
                limbs = FORMS[form]
        return limbs

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
    return fnmatchcase(name if ":" in pattern else name.rpartition(":")[0], pattern)


def _place(origin: Origin) -> tuple[str, str]:
    return origin.module, origin.place


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
