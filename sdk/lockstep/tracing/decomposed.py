"""Aten operations that are decomposed, by torch's decompositions or ours, into operations that have rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

_A = torch.ops.aten
_RATIONAL = (
    (0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084),
    (0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
    (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326, 0.00085092367,
     -1.5247877e-07),
)  # fmt: skip
"""Torch's coefficients of the numerator and denominator: polynomials in log(alpha), whose coefficients are polynomials
in log(x / alpha).
"""


def standard_gamma_grad(alpha: Tensor, x: Tensor) -> Tensor:
    """The derivative of a Gamma(alpha, 1) sample with respect to alpha, -dF/dalpha / pdf (Figurnov 2018, equation 5).

    As in torch: a series for small x, a saddle-point expansion for large alpha (Rice), a rational function otherwise.
    """
    term, first, second = torch.ones_like(x), 1 / alpha, 1 / (alpha * alpha)
    for i in range(1, 6):
        term = term * (-x / i)
        first, second = first + term / (alpha + i), second + term / ((alpha + i) * (alpha + i))
    series = -x * x.exp() * ((x.log() - torch.digamma(alpha)) * first - second)
    series = torch.where(series.isnan(), 0.0, series)
    square, root, apart = alpha * alpha, (8 * alpha).sqrt(), alpha - x
    middle = 1440 * square + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x)
    middle = (1 + 24 * alpha * (1 + 12 * alpha)) * middle / (1244160 * square * square)
    ratio = (x / alpha).log()
    beside = (-apart - alpha * ratio) ** -1.5
    beside = ratio * (root / apart + torch.where(x < alpha, -beside, beside))
    beside = beside - (2 / alpha).sqrt() * (alpha + x) / (apart * apart)
    saddle = -(1 + (1 + 1 / (24 * alpha)) / (12 * alpha)) * x * beside / root
    saddle = torch.where((0.9 * alpha <= x) & (x <= 1.1 * alpha), middle, saddle)
    v = alpha.log()
    c = [a + ratio * (b + ratio * d) for a, b, d in zip(*_RATIONAL, strict=True)]
    above, below = (k[0] + v * (k[1] + v * (k[2] + v * k[3])) for k in (c[:4], c[4:]))
    return torch.where(x < 0.8, series, torch.where(alpha > 8, saddle, (above / below).exp()))


DECOMPOSED: dict[Any, Any] = get_decompositions(
    [
        _A.addmv, _A.addr, _A.block_diag, _A.diag_embed, _A.index_copy, _A.linalg_cross, _A.narrow_copy, _A.rot90,
        _A.trace, _A.vdot,
    ]
) | {_A._standard_gamma_grad.default: standard_gamma_grad}  # fmt: skip
"""Maps an aten operation to its decomposition. An operation with a rule must not be listed."""
