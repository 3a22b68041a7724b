"""Rules for layers whose kernels torch would select itself: norms, softmax, losses, embedding, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.program import Fold
from lockstep.tracing.graph import F32, Node
from lockstep.tracing.indexing import scattered, take
from lockstep.tracing.lowering import Lowering, Unlowered, rule
from lockstep.tracing.masked import may_be_empty, may_be_infinite
from lockstep.tracing.reductions import average, kept, total

# --- normalisation -----------------------------------------------------------------------------------------


def _last(x: Node, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - len(shape), len(x.shape)))


@rule("native_layer_norm")
def layer_norm(
    low: Lowering, x: Node, shape: Sequence[int], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba 2016, equation 4).

    Returns (result, mean, 1 / sqrt(variance + eps)).
    """
    axes = _last(x, shape)
    mean = average(low, x, axes)
    centred = low.f(Opcode.FSUB, x, mean)
    variance = average(low, low.f(Opcode.FMUL, centred, centred), axes)
    rstd = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FSQRT, low.f(Opcode.FADD, variance, eps)))
    y = low.f(Opcode.FMUL, centred, rstd)
    y = y if weight is None else low.f(Opcode.FMUL, y, weight)
    return y if bias is None else low.f(Opcode.FADD, y, bias), mean, rstd


@rule("native_layer_norm_backward")
def layer_norm_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    shape: Sequence[int],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    wanted: Sequence[bool],
) -> tuple[Node, Any, Any]:
    """Returns the gradients of x, weight and bias."""
    axes = _last(x, shape)
    outer = tuple(range(len(x.shape) - len(shape)))
    normed = low.f(Opcode.FMUL, low.f(Opcode.FSUB, x, mean), rstd)
    # Without a bias, the sum of grad * weight * normed uses the forward's own output.
    scaled = normed if weight is None else low.f(Opcode.FMUL, normed, weight)
    inner = grad if weight is None else low.f(Opcode.FMUL, grad, weight)
    along = average(low, low.f(Opcode.FMUL, grad, scaled), axes)
    rest = low.f(Opcode.FSUB, low.f(Opcode.FSUB, inner, average(low, inner, axes)), low.f(Opcode.FMUL, normed, along))
    empty = Unlowered("a gradient that was not asked for")
    grad_weight = low.graph.reshape(total(low, low.f(Opcode.FMUL, grad, normed), outer), shape) if wanted[1] else empty
    grad_bias = low.graph.reshape(total(low, grad, outer), shape) if wanted[2] else empty
    return low.f(Opcode.FMUL, rest, rstd), grad_weight, grad_bias


# --- softmax -----------------------------------------------------------------------------------------------


LARGEST = 3.4028234663852886e38
"""The largest finite float32."""


def _peak(low: Lowering, x: Node, axes: Sequence[int]) -> Node:
    return kept(low, x, axes, low.graph.fold(Fold.MAX, axes, x))


@rule("_softmax")
def softmax(low: Lowering, x: Node, dim: int, *_args: Any) -> Node:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    axes = low.axes(x, dim)
    raised = low.f(Opcode.FEXP, low.f(Opcode.FSUB, x, _peak(low, x, axes)))
    return _weights(low, raised, total(low, raised, axes))


def _weights(low: Lowering, raised: Node, mass: Node) -> Node:
    weights = low.f(Opcode.FDIV, raised, mass)
    low.products.weighs(weights)
    return weights


@rule("_safe_softmax")
def safe_softmax(low: Lowering, x: Node, dim: int, *_args: Any) -> Node:
    """Softmax that gives zeros for a row of -inf; attention needs it for a query without visible keys."""
    axes = low.axes(x, dim)
    if not may_be_empty(low, x, axes):
        return softmax(low, x, dim)
    raised = low.f(Opcode.FEXP, low.f(Opcode.FSUB, x, low.f(Opcode.FMAX, _peak(low, x, axes), -LARGEST)))
    # The largest term of every other row is exp(0), so its sum is at least 1.
    return _weights(low, raised, low.f(Opcode.FMAX, total(low, raised, axes), 1.0))


@rule("_softmax_backward_data")
def softmax_backward(low: Lowering, grad: Node, y: Node, dim: int, _dtype: Any) -> Node:
    """y (grad - sum(grad y))."""
    axes = low.axes(y, dim)
    return low.f(Opcode.FMUL, y, low.f(Opcode.FSUB, grad, total(low, low.f(Opcode.FMUL, grad, y), axes)))


@rule("_log_softmax")
def log_softmax(low: Lowering, x: Node, dim: int, *_args: Any) -> Node:
    """x - max - log(sum(exp(x - max)))."""
    axes = low.axes(x, dim)
    shifted = low.f(Opcode.FSUB, x, _peak(low, x, axes))
    return low.f(Opcode.FSUB, shifted, low.f(Opcode.FLOG, total(low, low.f(Opcode.FEXP, shifted), axes)))


@rule("_log_softmax_backward_data")
def log_softmax_backward(low: Lowering, grad: Node, y: Node, dim: int, _dtype: Any) -> Node:
    """grad - exp(y) sum(grad)."""
    axes = low.axes(y, dim)
    return low.f(Opcode.FSUB, grad, low.f(Opcode.FMUL, low.f(Opcode.FEXP, y), total(low, grad, axes)))


@rule("logsumexp")
def logsumexp(low: Lowering, x: Node, dims: Any, keepdim: bool = False) -> Node:
    """max + log(sum(exp(x - max)))."""
    axes = low.axes(x, dims)
    peak = _peak(low, x, axes)
    if may_be_infinite(low, x, axes):
        # Next to a finite value, exp(-inf) = 0 and exp(inf) = inf already give the correct result.
        peak = low.f(Opcode.FMIN, low.f(Opcode.FMAX, peak, -LARGEST), LARGEST)
    terms = total(low, low.f(Opcode.FEXP, low.f(Opcode.FSUB, x, peak)), axes)
    return low.graph.reshape(low.f(Opcode.FADD, peak, low.f(Opcode.FLOG, terms)), low.shape)


# --- losses ------------------------------------------------------------------------------------------------

NONE, MEAN, SUM = 0, 1, 2
"""Codes of a loss's reduction, as in torch."""


def reduced(low: Lowering, each: Node, reduction: int) -> Node:
    """Returns the loss of each element, their mean, or their sum."""
    if reduction == NONE:
        return each
    axes = tuple(range(len(each.shape)))
    return low.graph.reshape((average if reduction == MEAN else total)(low, each, axes), ())


@rule("nll_loss_forward")
def nll_loss(
    low: Lowering, log_p: Node, target: Node, weight: Node | None, reduction: int, ignore: int
) -> tuple[Node, Node]:
    """-weight[target_i] log_p[i, target_i], reduced over targets other than `ignore`. Returns (loss, total weight)."""
    last = len(log_p.shape) - 1
    table = low.graph.permute(log_p, [last, *range(last)])
    counted = low.negation(low.test(Opcode.IEQ, target, ignore))
    chosen = low.f(Opcode.FNEG, low.graph.gather(table, target))
    share = low.cast(counted, F32)
    if weight is not None:
        each = take(low, weight, target)
        chosen, share = low.f(Opcode.FMUL, chosen, each), low.select(counted, each, 0.0, F32)
    picked = low.select(counted, chosen, 0.0, F32)
    axes = tuple(range(len(target.shape)))
    count = low.graph.reshape(total(low, share, axes), ())
    if reduction == NONE:
        return picked, count
    loss = low.graph.reshape(total(low, picked, axes), ())
    return (low.f(Opcode.FDIV, loss, count) if reduction == MEAN else loss), count


@rule("nll_loss_backward")
def nll_loss_backward(
    low: Lowering,
    grad: Node,
    log_p: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignore: int,
    count: Node,
) -> Node:
    """Returns -weight grad at the target's class, 0 elsewhere."""
    each = low.f(Opcode.FNEG, low.f(Opcode.FDIV, grad, count) if reduction == MEAN else grad)
    if weight is not None:
        each = low.f(Opcode.FMUL, each, take(low, weight, target))
    last = len(log_p.shape) - 1
    one = (*target.shape, 1)
    hit = low.test(Opcode.IEQ, low.graph.iota(log_p.shape, last), low.graph.reshape(target, one))
    if 0 <= ignore < log_p.shape[last]:
        counted = low.negation(low.test(Opcode.IEQ, target, ignore))
        hit = low.i(Opcode.IAND, hit, low.graph.reshape(counted, one))
    spread = low.graph.reshape(each, one) if each.shape else each
    return low.graph.expand(low.select(hit, spread, 0.0, F32), low.shape)


@rule("mse_loss")
def mse_loss(low: Lowering, x: Node, target: Node, reduction: int = MEAN) -> Node:
    """(x - target)^2, reduced."""
    difference = low.f(Opcode.FSUB, x, target)
    return reduced(low, low.f(Opcode.FMUL, difference, difference), reduction)


@rule("mse_loss_backward")
def mse_loss_backward(low: Lowering, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    """2 grad (x - target), divided by the number of elements for a mean."""
    factor = 2 / prod(low.shape) if reduction == MEAN else 2.0
    return low.f(Opcode.FMUL, low.f(Opcode.FMUL, grad, factor), low.f(Opcode.FSUB, x, target))


# --- embedding ---------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(low: Lowering, weight: Node, index: Node, *_args: Any, **_kwargs: Any) -> Node:
    """weight[index]."""
    return take(low, weight, index)


@rule("embedding_dense_backward")
def embedding_backward(low: Lowering, grad: Node, index: Node, rows: int, padding: int, by_frequency: bool) -> Node:
    """Sums grad by row of the table: a one-hot matrix times grad."""
    if by_frequency:
        raise LoweringError(
            "an embedding gradient scaled by frequency is not supported", hint="leave scale_grad_by_freq off"
        )
    return scattered(low, grad, index, rows, padding)
