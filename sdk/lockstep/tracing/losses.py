"""Rules for losses other than the squared error and the negative log-likelihood (`layers.py`)."""

from __future__ import annotations

from math import prod
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.activations import soft_plus
from lockstep.tracing.graph import F32, Node
from lockstep.tracing.layers import MEAN, nll_loss, nll_loss_backward, reduced
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.pointwise import sigmoid


def _weighted(low: Lowering, each: Node, weight: Node | None) -> Node:
    return each if weight is None else low.f(Opcode.FMUL, each, weight)


def _share(low: Lowering, grad: Node, reduction: int, count: int) -> Node:
    return low.f(Opcode.FMUL, grad, 1 / count) if reduction == MEAN else grad


@rule("smooth_l1_loss")
def smooth_l1_loss(low: Lowering, x: Node, target: Node, reduction: int = MEAN, beta: float = 1.0) -> Node:
    """d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2 (Girshick 2015, equation 3)."""
    d = low.f(Opcode.FABS, low.f(Opcode.FSUB, x, target))
    if beta == 0:
        return reduced(low, d, reduction)
    near = low.f(Opcode.FMUL, low.f(Opcode.FMUL, d, d), 0.5 / beta)
    each = low.select(low.test(Opcode.FLT, d, float(beta)), near, low.f(Opcode.FSUB, d, 0.5 * beta), F32)
    return reduced(low, each, reduction)


@rule("smooth_l1_loss_backward")
def smooth_l1_loss_backward(low: Lowering, grad: Node, x: Node, target: Node, reduction: int, beta: float) -> Node:
    """grad (x - target) / beta, between -grad and grad."""
    d = low.f(Opcode.FSUB, x, target)
    slope = low.f(Opcode.FMUL, d, 1 / beta) if beta else low.f(Opcode.FMUL, d, float("inf"))
    bounded = low.f(Opcode.FMIN, low.f(Opcode.FMAX, slope, -1.0), 1.0)
    bounded = bounded if beta else low.select(low.test(Opcode.FEQ, d, 0.0), 0.0, bounded, F32)
    return low.f(Opcode.FMUL, _share(low, grad, reduction, prod(low.shape)), bounded)


@rule("huber_loss")
def huber_loss(low: Lowering, x: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    """d^2 / 2 where d = |x - target| <= delta, else delta (d - delta / 2) (Huber 1964, section 1)."""
    d = low.f(Opcode.FABS, low.f(Opcode.FSUB, x, target))
    near, far = (
        low.f(Opcode.FMUL, low.f(Opcode.FMUL, d, d), 0.5),
        low.f(Opcode.FMUL, low.f(Opcode.FSUB, d, 0.5 * delta), float(delta)),
    )
    return reduced(low, low.select(low.test(Opcode.FLE, d, float(delta)), near, far, F32), reduction)


@rule("huber_loss_backward")
def huber_loss_backward(low: Lowering, grad: Node, x: Node, target: Node, reduction: int, delta: float) -> Node:
    """grad (x - target), between -delta grad and delta grad."""
    d = low.f(Opcode.FSUB, x, target)
    bounded = low.f(Opcode.FMIN, low.f(Opcode.FMAX, d, -float(delta)), float(delta))
    return low.f(Opcode.FMUL, _share(low, grad, reduction, prod(low.shape)), bounded)


@rule("binary_cross_entropy_with_logits")
def bce_with_logits(
    low: Lowering,
    x: Node,
    target: Node,
    weight: Node | None = None,
    pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    """(1 - target) x + (1 + (pos_weight - 1) target) log(1 + exp(-x)), times weight."""
    tail = soft_plus(low, low.f(Opcode.FNEG, x))
    if pos_weight is not None:
        tail = low.f(Opcode.FMUL, tail, low.f(Opcode.FFMA, low.f(Opcode.FSUB, pos_weight, 1.0), target, 1.0))
    each = low.f(Opcode.FADD, low.f(Opcode.FMUL, low.f(Opcode.FSUB, 1.0, target), x), tail)
    return reduced(low, _weighted(low, each, weight), reduction)


_FLOOR = -100.0
"""Lower bound on the logarithm of a probability, as in torch."""


@rule("binary_cross_entropy")
def bce(low: Lowering, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN) -> Node:
    """-target log(x) - (1 - target) log(1 - x), times weight."""
    left = low.f(Opcode.FMAX, low.f(Opcode.FLOG, x), _FLOOR)
    right = low.f(Opcode.FMAX, low.f(Opcode.FLOG, low.f(Opcode.FSUB, 1.0, x)), _FLOOR)
    mixed = low.f(
        Opcode.FADD, low.f(Opcode.FMUL, target, left), low.f(Opcode.FMUL, low.f(Opcode.FSUB, 1.0, target), right)
    )
    each = low.f(Opcode.FNEG, mixed)
    return reduced(low, _weighted(low, each, weight), reduction)


@rule("binary_cross_entropy_backward")
def bce_backward(
    low: Lowering, grad: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    """grad (x - target) / (x (1 - x)), times weight."""
    spread = low.f(Opcode.FMAX, low.f(Opcode.FMUL, low.f(Opcode.FSUB, 1.0, x), x), 1e-12)
    each = low.f(Opcode.FDIV, low.f(Opcode.FSUB, x, target), spread)
    return low.f(Opcode.FMUL, _share(low, grad, reduction, prod(low.shape)), _weighted(low, each, weight))


@rule("soft_margin_loss")
def soft_margin_loss(low: Lowering, x: Node, target: Node, reduction: int = MEAN) -> Node:
    """log(1 + exp(-target x))."""
    return reduced(low, soft_plus(low, low.f(Opcode.FNEG, low.f(Opcode.FMUL, target, x))), reduction)


@rule("soft_margin_loss_backward")
def soft_margin_loss_backward(low: Lowering, grad: Node, x: Node, target: Node, reduction: int) -> Node:
    """-grad target sigmoid(-target x)."""
    s = sigmoid(low, low.f(Opcode.FNEG, low.f(Opcode.FMUL, target, x)))
    return low.f(
        Opcode.FMUL, _share(low, grad, reduction, prod(low.shape)), low.f(Opcode.FNEG, low.f(Opcode.FMUL, target, s))
    )


def _classes_last(low: Lowering, x: Node) -> Node:
    """Moves the class axis last: [N, C, ...] -> [N, ..., C]."""
    return low.graph.permute(x, [0, *range(2, len(x.shape)), 1])


@rule("nll_loss2d_forward")
def nll_loss_of_images(low: Lowering, log_p: Node, *rest: Any) -> tuple[Node, Node]:
    """-log_p[n, target, ...], reduced over the positions whose target is not `ignore`. Returns (loss, their number)."""
    return nll_loss(low, _classes_last(low, log_p), *rest)


@rule("nll_loss2d_backward")
def nll_loss_of_images_backward(low: Lowering, grad: Node, log_p: Node, *rest: Any) -> Node:
    """Returns -grad at the target's class, 0 elsewhere."""
    wide = low.shape
    low.shape = (wide[0], *wide[2:], wide[1])
    last = nll_loss_backward(low, grad, _classes_last(low, log_p), *rest)
    low.shape = wide
    return low.graph.permute(last, [0, len(wide) - 1, *range(1, len(wide) - 1)])
