"""Torch functions without a rule for their gradient or control flow, rewritten in basic torch operations.

`functions.Replaced` calls the functions in `FORMULAS`. `without_loops` replaces Python functions whose control flow
depends on data.
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
    """Resolves torch's two deprecated reduction arguments; returns the named reduction if they are absent."""
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
    """Sum of max(0, margin - x[target] + x[c])^p weight[target] over the classes c other than the target, divided by
    the number of classes.
    """
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
    """Sum of max(0, 1 - x[j] + x[c]) over the classes j before the target's first -1 and all other classes c, divided
    by the number of classes.
    """
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
    """(log(var) + (x - target)^2 / var) / 2 (Nix and Weigend 1994, equation 6).

    The variance is clamped from below to eps, and keeps its gradient. Torch refuses a negative variance; here it counts
    as eps.
    """
    spread = input.new_full((), var) if isinstance(var, (int, float)) else var
    spread = spread.unsqueeze(-1) if spread.dim() == input.dim() - 1 and spread.dim() else spread
    spread = spread + (spread.clamp(min=eps) - spread).detach()
    each = 0.5 * (spread.log() + (input - target) ** 2 / spread)
    return _reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:  # noqa: A002  (torch's name)
    """Rescales each slice along an axis to norm `maxnorm` where its norm is larger."""
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
    """Quantiles of the elements that are not NaN: sorts each row with NaNs last, as infinities."""
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
    """Fills with uniform integers: between two bounds, below one bound, or by default up to 2^24 in a float tensor."""
    start, end = named.get("from", 0), named.get("to")
    if bounds:
        start, end = (bounds[0], named.get("to", bounds[-1])) if len(bounds) > 1 or "to" in named else (0, bounds[0])
    if end is None and self.dtype not in (torch.float32, torch.bool):
        raise LoweringError("a draw of integers without bounds", hint="give random_ both bounds")
    if end is None:
        end = (1 << 24) + 1 if self.dtype == torch.float32 else 2
    return self.copy_(torch.randint(start, end, self.shape, generator=generator))


def poisson(input: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: A002  (torch's name)
    """Refuses `torch.poisson`: the number of random words per draw would depend on the rate."""
    raise LoweringError(
        "a Poisson number (aten.poisson), which takes as many words as it is large,",
        hint="count arrivals, K far above the largest rate: "
        "(torch.empty(*rate.shape, K).exponential_().cumsum(-1) < rate.unsqueeze(-1)).sum(-1)",
    )


def for_each(name: str) -> Callable[..., Any]:
    """Returns `torch._foreach_NAME` as a loop that calls the method NAME of each tensor.

    A list argument has one entry per tensor.
    """

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
    """The log-probability of each row's target class, over all clusters; torch evaluates only the clusters that
    occur.
    """
    rows = input_.reshape(-1, input_.shape[-1])
    output = self.log_prob(rows).gather(1, target_.reshape(-1, 1)).reshape(target_.shape)
    return nn.modules.adaptive._ASMoutput(output, (-output).mean())


def _normal_cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def _decided(condition: Any, what: str, hint: str) -> bool:
    """Returns the truth value of a condition. Raises LoweringError if it depends on data."""
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
    """Follows the branch of `torch.cond` that a constant condition selects."""
    hint = "compute both branches and choose: torch.where(pred, a, b), each of arguments at which it is finite"
    return (true_fn if _decided(pred, "torch.cond", hint) else false_fn)(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any, additional: Any = ()) -> Any:
    """Unrolls `while_loop`, whose condition must depend on constants alone."""
    hint = "take a fixed number of turns, and keep what is done: x = torch.where(going_on, turned(x), x)"
    found = carried
    while _decided(cond_fn(*carried, *additional), "while_loop", hint):
        found = body_fn(*carried, *additional)
        carried = tree_leaves(found)
    return found


def _by_rows(*_args: Any, **_named: Any) -> Any:
    """Refuses the operator: torch traces its function separately."""
    raise LoweringError(
        "a scan or map of torch._higher_order_ops",
        hint="write the loop: rows = [f(row) for row in x.unbind(0)], then torch.stack(rows)",
    )


_LOOPS = {"cond": ("cond_op", _cond), "while_loop": ("while_loop_op", _while_loop), "scan": ("scan_op", _by_rows),
          "map": ("map_impl", _by_rows)}  # fmt: skip
"""Maps a module of torch._higher_order_ops to (its operator, our replacement)."""


@contextmanager
def without_loops() -> Iterator[None]:
    """Replaces functions whose control flow depends on data: truncated normals, adaptive softmax, `cond`,
    `while_loop`.
    """
    init, layer = nn.init, nn.AdaptiveLogSoftmaxWithLoss
    kept = init._no_grad_trunc_normal_, layer.forward
    # The package exports functions under its modules' names, so attributes are looked up with `import_module`.
    modules = {name: sys.modules[f"torch._higher_order_ops.{name}"] for name in _LOOPS}
    operators = {name: getattr(modules[name], operator) for name, (operator, _) in _LOOPS.items()}

    def truncated(tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> Tensor:
        """Samples a truncated normal by inverting the distribution function between both bounds (Devroye 1986, section
        II.2.1).
        """
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
