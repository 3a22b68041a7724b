"""Functions whose gradient or control flow no rule has, as formulas of torch's own operations.

`functions.Replaced` calls what is in `FORMULAS`; `without_loops` is for functions of Python that ask data how to go on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import following


def _reduced(each: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return each
    return each.mean() if reduction == "mean" else each.sum()


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction that torch's two deprecated arguments mean, else the one that is named."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def multi_margin_loss(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - x[target] + x[c])^p, times weight[target], over classes c but the target's; divided by all."""
    rows, at = input.reshape(-1, input.shape[-1]), target.reshape(-1, 1)
    beyond = F.relu(margin - rows.gather(1, at) + rows) ** p
    if weight is not None:
        beyond = beyond * weight[at]
    each = torch.where(torch.arange(rows.shape[1]) == at, 0.0, beyond).sum(1) / rows.shape[1]
    return _reduced(each.reshape(target.shape), _reduction(size_average, reduce, reduction))


def multilabel_margin_loss(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, 1 - x[j] + x[c]), over the classes j before the target's first -1 and all other c; divided by all."""
    rows, at = input.reshape(-1, input.shape[-1]), target.reshape(-1, input.shape[-1])
    wanted = (at < 0).cumsum(1) == 0
    at = torch.where(wanted, at, 0)
    named = ((at.unsqueeze(2) == torch.arange(rows.shape[1])) & wanted.unsqueeze(2)).any(1)
    beyond = F.relu(1 - rows.gather(1, at).unsqueeze(2) + rows.unsqueeze(1))
    counted = wanted.unsqueeze(2) & ~named.unsqueeze(1)
    each = torch.where(counted, beyond, 0.0).sum((1, 2)) / rows.shape[1]
    return _reduced(each.reshape(input.shape[:-1]), _reduction(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (x - target)^2 / var) / 2 (Nix and Weigend 1994, equation 6); var is at least eps, with its gradient.

    A negative variance, which torch refuses, counts as eps.
    """
    spread = input.new_full((), var) if isinstance(var, (int, float)) else var
    spread = spread.unsqueeze(-1) if spread.dim() == input.dim() - 1 and spread.dim() else spread
    spread = spread + (spread.clamp(min=eps) - spread).detach()
    each = 0.5 * (spread.log() + (input - target) ** 2 / spread)
    return _reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:  # noqa: A002  (torch's name)
    """Each part along an axis, scaled to a norm of `maxnorm` where it has a larger one."""
    axes = [i for i in range(input.dim()) if i != dim % input.dim()]
    size = torch.linalg.vector_norm(input, p, axes, keepdim=True)
    return input * torch.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


def nanquantile(
    input: Tensor,  # noqa: A002  (torch's name)
    q: Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Quantiles of what is not NaN: of each row in order, NaNs as infinities behind all others."""
    rows = input.reshape(-1) if dim is None else input.movedim(dim, -1)
    known = ~rows.isnan()
    shares = torch.as_tensor(q, dtype=input.dtype).reshape(-1)
    rank = (known.sum(-1, keepdim=True) - 1).clamp(min=0) * shares
    if interpolation in ("lower", "higher", "nearest"):
        rank = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[interpolation](rank)
    ordered = torch.where(known, rows, math.inf).sort(-1).values
    below, above = (ordered.gather(-1, at.long()) for at in (rank.floor(), rank.ceil()))
    part = 0.5 * (rank != rank.floor()) if interpolation == "midpoint" else rank - rank.floor()
    found = torch.where(known.any(-1, keepdim=True), torch.lerp(below, above, part), math.nan).movedim(-1, 0)
    if keepdim:
        found = (
            found.reshape(-1, *(1,) * input.dim())
            if dim is None
            else found.unsqueeze(1).movedim(1, dim % input.dim() + 1)
        )
    return found if isinstance(q, Tensor) and q.dim() else found.squeeze(0)


def random_(self: Tensor, *bounds: int, generator: torch.Generator | None = None, **named: int) -> Tensor:
    """Writes uniform integers: between two bounds, below one, or up to 2^24 where a float has none."""
    start, end = named.get("from", 0), named.get("to")
    if bounds:
        start, end = (bounds[0], named.get("to", bounds[-1])) if len(bounds) > 1 or "to" in named else (0, bounds[0])
    if end is None and self.dtype not in (torch.float32, torch.bool):
        raise LoweringError("a draw of integers without bounds", hint="give random_ both bounds")
    if end is None:
        end = (1 << 24) + 1 if self.dtype == torch.float32 else 2
    return self.copy_(torch.randint(start, end, self.shape, generator=generator))


def poisson(input: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: A002  (torch's name)
    """Refuses: how many words a draw takes depends on the rate."""
    raise LoweringError(
        "a Poisson number (aten.poisson), which takes as many words as it is large,",
        hint="count arrivals, K far above the largest rate: "
        "(torch.empty(*rate.shape, K).exponential_().cumsum(-1) < rate.unsqueeze(-1)).sum(-1)",
    )


def for_each(name: str) -> Callable[..., Any]:
    """Returns `torch._foreach_NAME` as the method NAME of each tensor of a list; a list among the arguments has one for
    each."""

    def formula(self: Sequence[Tensor], *args: Any, **named: Any) -> Any:
        def at(i: int, x: Any) -> Any:
            return x[i] if isinstance(x, list | tuple) else x

        found = [
            getattr(x, name)(*(at(i, a) for a in args), **{k: at(i, v) for k, v in named.items()})
            for i, x in enumerate(self)
        ]
        return None if name.endswith("_") else found

    return formula


FOR_EACH = (
    "add", "sub", "mul", "div", "lerp", "neg", "sqrt", "add_", "sub_", "mul_", "div_", "lerp_", "copy_", "zero_",
)  # fmt: skip

FORMULAS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, f"_foreach_{name}"): for_each(name) for name in FOR_EACH},
    F.multi_margin_loss: multi_margin_loss,
    F.multilabel_margin_loss: multilabel_margin_loss,
    F.gaussian_nll_loss: gaussian_nll_loss,
    torch.renorm: renorm,
    Tensor.renorm: renorm,
    torch.nanquantile: nanquantile,
    Tensor.nanquantile: nanquantile,
    torch.poisson: poisson,
    Tensor.random_: random_,
}


def _adaptive_log_softmax(self: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    """The log-probability of each row's class, out of those of all; torch takes only the clusters that occur."""
    rows = input_.reshape(-1, input_.shape[-1])
    output = self.log_prob(rows).gather(1, target_.reshape(-1, 1)).reshape(target_.shape)
    return nn.modules.adaptive._ASMoutput(output, (-output).mean())


def _normal_cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def _decided(condition: Any, what: str, hint: str) -> bool:
    """The truth value of a condition that no data decide."""
    if not isinstance(condition, Tensor):
        return bool(condition)
    known = following()
    value = None if known is None else known.real(condition)
    # INVARIANT: a Program's control flow is fixed.
    if value is None:
        raise LoweringError(f"{what}, whose condition depends on data,", hint=hint)
    with _disable_current_modes():
        return bool(value)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """The branch of `torch.cond` that a constant chooses."""
    hint = "compute both branches and choose: torch.where(pred, a, b), each of arguments at which it is finite"
    return (true_fn if _decided(pred, "torch.cond", hint) else false_fn)(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any, additional: Any = ()) -> Any:
    """The turns of `while_loop` that constants count."""
    hint = "take a fixed number of turns, and keep what is done: x = torch.where(going_on, turned(x), x)"
    found = carried
    while _decided(cond_fn(*carried, *additional), "while_loop", hint):
        found = body_fn(*carried, *additional)
        carried = tree_leaves(found)
    return found


def _by_rows(*_args: Any, **_named: Any) -> Any:
    """Refuses: torch's operator traces its function for itself."""
    raise LoweringError(
        "a scan or map of torch._higher_order_ops",
        hint="write the loop: rows = [f(row) for row in x.unbind(0)], then torch.stack(rows)",
    )


_LOOPS = {"cond": ("cond_op", _cond), "while_loop": ("while_loop_op", _while_loop), "scan": ("scan_op", _by_rows),
          "map": ("map_impl", _by_rows)}  # fmt: skip
"""Module of torch._higher_order_ops to the operator in it, and what stands in its place."""


@contextmanager
def without_loops() -> Iterator[None]:
    """Truncated normals are inverted, adaptive softmaxes take all classes, and control flow is followed; torch goes on
    until data suffice."""
    init, layer = nn.init, nn.AdaptiveLogSoftmaxWithLoss
    kept = init._no_grad_trunc_normal_, layer.forward
    # The package has functions of the modules' names.
    modules = {name: sys.modules[f"torch._higher_order_ops.{name}"] for name in _LOOPS}
    operators = {name: getattr(modules[name], operator) for name, (operator, _) in _LOOPS.items()}

    def truncated(tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> Tensor:
        """Between the quantiles of both bounds (Devroye 1986, section II.2.1)."""
        if not isinstance(tensor, FakeTensor):
            return kept[0](tensor, mean, std, a, b, generator)
        low, high = (_normal_cdf((bound - mean) / std) for bound in (a, b))
        with torch.no_grad():
            u = torch.empty_like(tensor).uniform_(low, high)
            return tensor.copy_((mean + std * torch.special.ndtri(u)).clamp(a, b))

    init._no_grad_trunc_normal_, layer.forward = truncated, _adaptive_log_softmax  # type: ignore[method-assign]
    for name, (operator, ours) in _LOOPS.items():
        setattr(modules[name], operator, ours)
    try:
        yield
    finally:
        for name, (operator, _) in _LOOPS.items():
            setattr(modules[name], operator, operators[name])
        init._no_grad_trunc_normal_, layer.forward = kept  # type: ignore[method-assign]
