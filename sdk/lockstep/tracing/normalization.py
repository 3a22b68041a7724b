"""Rules for batch and group norm, with their gradients (layer norm is in `layers.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.tracing.graph import Node
from lockstep.tracing.lowering import Lowering, Unlowered, rule
from lockstep.tracing.reductions import average, total

_UNASKED = "a gradient that was not asked for"


def _rstd(low: Lowering, variance: Node, eps: float) -> Node:
    return low.f(Opcode.FDIV, 1.0, low.f(Opcode.FSQRT, low.f(Opcode.FADD, variance, eps)))


def _moments(low: Lowering, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node]:
    """Returns the mean and 1 / sqrt(variance + eps) over axes, which stay with extent 1."""
    mean = average(low, x, axes)
    centred = low.f(Opcode.FSUB, x, mean)
    return mean, _rstd(low, average(low, low.f(Opcode.FMUL, centred, centred), axes), eps)


def _affine(low: Lowering, x: Node, weight: Node | None, bias: Node | None) -> Node:
    """x weight + bias per channel, for x [N, C, ...]."""
    x = x if weight is None else low.f(Opcode.FMUL, x, _by_channel(low, weight, x))
    return x if bias is None else low.f(Opcode.FADD, x, _by_channel(low, bias, x))


def _by_channel(low: Lowering, v: Node, x: Node) -> Node:
    """Reshapes [C] to [1, C, 1, ...], to broadcast against x [N, C, ...]."""
    return low.graph.reshape(v, (1, *v.shape, *(1,) * (len(x.shape) - 2)))


# --- batch norm --------------------------------------------------------------------------------------------


@rule("native_batch_norm")
def batch_norm(
    low: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    training: bool,
    _momentum: float,
    eps: float,
) -> tuple[Node | None, ...]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with moments per channel (Ioffe and Szegedy 2015, algorithm
    1).

    In training the moments are those of the batch, and are returned; otherwise the running moments, which are not
    written here.
    """
    # INVARIANT: running statistics that a step would write are never taken for constants.
    if training and (running_mean is not None or running_var is not None):
        raise LoweringError(
            "it writes running statistics",
            hint="use track_running_stats=False, a GroupNorm, model.eval(), or torch.nn.functional.batch_norm "
            "with the statistics in the state",
        )
    if training:
        mean, rstd = _moments(low, x, _all_but_channel(x), eps)
        saved: list[Node | None] = [low.graph.reshape(v, (x.shape[1],)) for v in (mean, rstd)]
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = _by_channel(low, running_mean, x), _by_channel(low, _rstd(low, running_var, eps), x)
        saved = [None, None]
    return _affine(low, low.f(Opcode.FMUL, low.f(Opcode.FSUB, x, mean), rstd), weight, bias), *saved


@rule("native_batch_norm_backward")
def batch_norm_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    mean: Node | None,
    rstd: Node | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Returns the gradients of x, weight and bias."""
    if not training:
        assert running_var is not None
        mean, rstd = running_mean, _rstd(low, running_var, eps)
    assert mean is not None
    assert rstd is not None
    axes, scale = _all_but_channel(x), _by_channel(low, rstd, x)
    normed = low.f(Opcode.FMUL, low.f(Opcode.FSUB, x, _by_channel(low, mean, x)), scale)
    sum_grad, sum_along = total(low, grad, axes), total(low, low.f(Opcode.FMUL, grad, normed), axes)
    inner = grad
    if training:
        share = 1 / prod(x.shape[i] for i in axes)
        inner = low.f(Opcode.FSUB, inner, low.f(Opcode.FMUL, sum_grad, share))
        inner = low.f(Opcode.FSUB, inner, low.f(Opcode.FMUL, normed, low.f(Opcode.FMUL, sum_along, share)))
    if weight is not None:
        scale = low.f(Opcode.FMUL, scale, _by_channel(low, weight, x))
    channels = (x.shape[1],)
    grad_weight = low.graph.reshape(sum_along, channels) if wanted[1] else Unlowered(_UNASKED)
    grad_bias = low.graph.reshape(sum_grad, channels) if wanted[2] else Unlowered(_UNASKED)
    return low.f(Opcode.FMUL, inner, scale), grad_weight, grad_bias


def _all_but_channel(x: Node) -> tuple[int, ...]:
    return tuple(i for i in range(len(x.shape)) if i != 1)


# --- group norm --------------------------------------------------------------------------------------------


@rule("native_group_norm")
def group_norm(
    low: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    n: int,
    channels: int,
    _positions: int,
    groups: int,
    eps: float,
) -> tuple[Node, ...]:
    """Normalises each image's groups of channels (Wu and He 2018, equation 5).

    Returns (result, mean, 1 / sqrt(variance + eps)).
    """
    grouped = low.graph.reshape(x, (n, groups, x.elements // (n * groups)))
    mean, rstd = _moments(low, grouped, (2,), eps)
    normed = low.graph.reshape(low.f(Opcode.FMUL, low.f(Opcode.FSUB, grouped, mean), rstd), x.shape)
    return _affine(low, normed, weight, bias), *(low.graph.reshape(v, (n, groups)) for v in (mean, rstd))


@rule("native_group_norm_backward")
def group_norm_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    n: int,
    channels: int,
    _positions: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Node, Any, Any]:
    """Returns the gradients of x, weight and bias."""
    shape, one = (n, groups, x.elements // (n * groups)), (n, groups, 1)
    scale = low.graph.reshape(rstd, one)
    normed = low.f(Opcode.FMUL, low.f(Opcode.FSUB, low.graph.reshape(x, shape), low.graph.reshape(mean, one)), scale)
    inner = low.graph.reshape(_affine(low, grad, weight, None), shape)
    along = average(low, low.f(Opcode.FMUL, inner, normed), (2,))
    rest = low.f(Opcode.FSUB, low.f(Opcode.FSUB, inner, average(low, inner, (2,))), low.f(Opcode.FMUL, normed, along))
    axes = _all_but_channel(x)
    weighted = low.f(Opcode.FMUL, grad, low.graph.reshape(normed, x.shape))
    grad_weight = low.graph.reshape(total(low, weighted, axes), (channels,)) if wanted[1] else Unlowered(_UNASKED)
    grad_bias = low.graph.reshape(total(low, grad, axes), (channels,)) if wanted[2] else Unlowered(_UNASKED)
    return low.graph.reshape(low.f(Opcode.FMUL, rest, scale), x.shape), grad_weight, grad_bias


# --- weight norm -------------------------------------------------------------------------------------------


def _others(x: Node, dim: int) -> tuple[int, ...]:
    return tuple(i for i in range(len(x.shape)) if i != dim % len(x.shape))


@rule("_weight_norm_interface")
def weight_norm(low: Lowering, v: Node, g: Node, dim: int = 0) -> tuple[Node, Node]:
    """Returns (g v / |v|, |v|), with norms over all axes but one (Salimans and Kingma 2016, equation 2)."""
    norms = low.f(Opcode.FSQRT, total(low, low.f(Opcode.FMUL, v, v), _others(v, dim)))
    return low.f(Opcode.FMUL, v, low.f(Opcode.FDIV, g, norms)), low.graph.reshape(norms, g.shape)


@rule("_weight_norm_interface_backward")
def weight_norm_backward(low: Lowering, grad: Node, v: Node, g: Node, norms: Node, dim: int) -> tuple[Node, Node]:
    """Returns the gradients of v and g (Salimans and Kingma 2016, equation 3)."""
    along = total(low, low.f(Opcode.FMUL, grad, v), _others(v, dim))
    norms = low.graph.reshape(norms, along.shape)
    of_g = low.f(Opcode.FDIV, along, norms)
    unit = low.f(Opcode.FDIV, v, norms)
    scale = low.f(Opcode.FDIV, low.graph.reshape(g, along.shape), norms)
    of_v = low.f(Opcode.FMUL, scale, low.f(Opcode.FSUB, grad, low.f(Opcode.FMUL, unit, of_g)))
    return of_v, low.graph.reshape(of_g, g.shape)
