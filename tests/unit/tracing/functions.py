"""Cases of activations, losses, resampling and what else is made of other rules.

`GRADIENTS` and `VALUES` are rows of the tables of `test_gradients.py`, named by their rules.
"""

from __future__ import annotations

import logging

import torch
from torch.nn import functional as F  # noqa: N812

from tests.unit.tracing.helpers import Case, m, ramp
from tests.unit.tracing.windows import images, lines

A = torch.ops.aten
logger = logging.getLogger(__name__)
N = 24
IN = torch.tensor([5, -7, 0, 3, 12, -1, 3])
CLASSES = torch.tensor([3, 0, 5, 2])
PIXELS = torch.tensor([[[3, 0, 2], [1, 1, 0], [2, 3, 1]], [[0, 0, 1], [3, 2, 2], [1, 0, 3]]])
AT = torch.tensor([[2, 0], [1, 5], [3, 3], [0, 1]])


def unit(x: torch.Tensor) -> torch.Tensor:
    """Strictly between 0 and 1."""
    return x.sigmoid()


def chain(x: torch.Tensor, *functions: Case) -> torch.Tensor:
    """The functions of x side by side, so that each has a gradient of its own."""
    return torch.cat([f(x).reshape(-1) for f in functions])  # type: ignore[attr-defined]


def square(x: torch.Tensor) -> torch.Tensor:
    """[3, 3], far from singular."""
    return x[:9].view(3, 3) / 4 + 2 * torch.eye(3)


def solid(x: torch.Tensor) -> torch.Tensor:
    """[1, 2, 2, 2, 3]."""
    return x.view(1, 2, 2, 2, 3)


def resized(x: torch.Tensor, mode: str, **kwargs: object) -> torch.Tensor:
    """Images of another size, larger along one axis and smaller along the other."""
    return F.interpolate(images(x), size=(5, 2), mode=mode, **kwargs)  # type: ignore[arg-type]


GRADIENTS: dict[str, Case] = {
    "log1p expm1 exp2": lambda x: (x * x).log1p() + x.expm1() + A.exp2(x),
    "logaddexp": lambda x: torch.logaddexp(x, 3 * x.flip(0)),
    "xlogy.Tensor": lambda x: torch.xlogy(x, x * x + 0.5),
    "erfc": lambda x: x.erfc(),
    "sinh cosh asinh": lambda x: x.sinh() + x.cosh() * x.asinh(),
    "acosh atanh": lambda x: (x * x + 1.5).acosh() + (x / 4).atanh(),
    "tan atan": lambda x: (x / 3).tan() + x.atan() + (9 * x).atan(),
    "asin acos": lambda x: (x / 4).asin() * (x / 3).acos(),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "softplus softplus_backward": lambda x: chain(x, F.softplus, lambda y: F.softplus(40 * y, beta=2, threshold=10)),
    "log_sigmoid_forward log_sigmoid_backward": lambda x: F.logsigmoid(5 * x),
    "elu elu_backward": lambda x: chain(x, F.elu, F.selu),
    "leaky_relu leaky_relu_backward": lambda x: F.leaky_relu(x, 0.2),
    "_prelu_kernel _prelu_kernel_backward": lambda x: F.prelu(m(x), x[:6]),
    "hardtanh hardtanh_backward": lambda x: chain(x, F.hardtanh, lambda y: F.relu6(4 * y)),
    "hardsigmoid hardsigmoid_backward": lambda x: F.hardsigmoid(3 * x),
    "hardswish hardswish_backward": lambda x: F.hardswish(3 * x),
    "mish mish_backward": lambda x: F.mish(3 * x),
    "glu glu_backward": lambda x: chain(x, lambda y: F.glu(m(y)), lambda y: F.glu(m(y), 0)),
    "fmod.Scalar fmod.Tensor": lambda x: A.fmod.Scalar(3 * x, 0.75) + A.fmod.Tensor(3 * x, x.flip(0).detach() ** 2 + 1),
    "nan_to_num": lambda x: A.nan_to_num(x * x, 0.0, 1.0, -1.0),
    "celu": lambda x: chain(x, lambda y: F.celu(3 * y, 1.3), F.celu),
    "hardshrink hardshrink_backward": lambda x: F.hardshrink(x, 0.3),
    "softshrink softshrink_backward": lambda x: F.softshrink(x, 0.3),
    "threshold": lambda x: F.threshold(x * x, 0.4, -1.5),
    "rrelu_with_noise_backward": lambda x: F.rrelu(x, 0.1, 0.4, training=False),
    # special functions
    "mvlgamma": lambda x: torch.mvlgamma(x * x + 2, 3),
    "digamma polygamma": lambda x: torch.digamma(x * x + 0.4) + torch.polygamma(2, x * x + 0.5),
    "lgamma": lambda x: chain(x, lambda y: torch.lgamma(3 * y * y + 0.2), lambda y: torch.lgamma(-0.8 * unit(y) - 0.1)),
    "erfinv special_ndtri": lambda x: torch.erfinv(1.9 * unit(x) - 0.95) + torch.special.ndtri(unit(x)),
    "special_erfcx special_log_ndtr": lambda x: torch.special.erfcx(x) + torch.special.log_ndtr(2 * x),
    "i0 special_i1": lambda x: torch.i0(x) + torch.special.i1(x),
    "special_i0e special_i1e": lambda x: torch.special.i0e(4 * x) * torch.special.i1e(x),
    "special_entr": lambda x: torch.special.entr(x * x + 0.5),
    "logit logit_backward": lambda x: chain(x, lambda y: torch.logit(unit(y)), lambda y: torch.logit(y, 0.1)),
    "xlogy.Scalar_Self xlogy.Scalar_Other": lambda x: torch.xlogy(2.5, x * x + 0.5) + torch.xlogy(x, 2.5),
    "special_xlog1py": lambda x: torch.special.xlog1py(x, x * x),
    "special_xlog1py.self_scalar special_xlog1py.other_scalar": lambda x: (
        torch.special.xlog1py(2.5, x * x) + torch.special.xlog1py(x, 2.5)
    ),
    "logaddexp2": lambda x: torch.logaddexp2(x, 3 * x.flip(0)),
    "ldexp.Tensor": lambda x: torch.ldexp(x, torch.arange(N) - 9),
    "hypot dist": lambda x: torch.hypot(x, 2 * x.flip(0)) * torch.dist(x, x * x),
    "sinc": lambda x: torch.sinc(x),
    "deg2rad rad2deg": lambda x: torch.deg2rad(90 * x) * torch.rad2deg(x / 90),
    "frac": lambda x: torch.frac(3 * x),
    "copysign.Tensor copysign.Scalar": lambda x: torch.copysign(x, x.flip(0)) * torch.copysign(2 * x, -1.0),
    "fmax fmin": lambda x: torch.fmax(x, x.flip(0)) + torch.fmin(2 * x, x * x),
    # losses
    "soft_margin_loss soft_margin_loss_backward": lambda x: chain(
        x,
        lambda y: F.soft_margin_loss(y, 2.0 * (y.flip(0) > 0) - 1),
        lambda y: F.soft_margin_loss(y, 2.0 * (y.flip(0) > 0) - 1, reduction="none"),
    ),
    "smooth_l1_loss smooth_l1_loss_backward": lambda x: chain(
        x,
        lambda y: F.smooth_l1_loss(y, y.flip(0).detach()),
        lambda y: F.smooth_l1_loss(y, y.flip(0).detach(), reduction="sum", beta=0.5),
        lambda y: F.smooth_l1_loss(y, y.flip(0).detach(), reduction="none"),
    ),
    "huber_loss huber_loss_backward": lambda x: chain(
        x, lambda y: F.huber_loss(y, y.flip(0).detach()), lambda y: F.huber_loss(y, 0 * y.detach(), "none", 0.5)
    ),
    "binary_cross_entropy_with_logits": lambda x: chain(
        x,
        lambda y: F.binary_cross_entropy_with_logits(5 * y, unit(y.flip(0)).detach()),
        lambda y: F.binary_cross_entropy_with_logits(m(y), unit(m(y)).detach(), ramp(6), pos_weight=ramp(6)),
    ),
    "binary_cross_entropy binary_cross_entropy_backward": lambda x: chain(
        x,
        lambda y: F.binary_cross_entropy(unit(y), unit(y.flip(0)).detach()),
        lambda y: F.binary_cross_entropy(unit(m(y)), unit(m(y)).detach(), ramp(6), reduction="none"),
    ),
    "nll_loss_forward nll_loss_backward": lambda x: chain(
        x,
        lambda y: F.cross_entropy(m(y), CLASSES, ramp(6)),
        lambda y: F.cross_entropy(m(y), CLASSES, ramp(6), ignore_index=2, reduction="none"),
        lambda y: F.cross_entropy(m(y), CLASSES, label_smoothing=0.1),
    ),
    "nll_loss2d_forward nll_loss2d_backward": lambda x: chain(
        x,
        lambda y: F.cross_entropy(images(y), PIXELS),
        lambda y: F.cross_entropy(images(y), PIXELS, ramp(4), ignore_index=1, reduction="sum"),
    ),
    # shapes
    "lift": lambda x: A.lift(x * x) + x * 3,
    "unsafe_split.Tensor unsafe_split_with_sizes": lambda x: (
        A.unsafe_split.Tensor(x * x, 10)[0] * A.unsafe_split_with_sizes(x * 2, [4, 10, 10])[1]
    ),
    "diagonal diagonal_backward": lambda x: chain(
        x, lambda y: m(y).diagonal(1) * ramp(4), lambda y: m(y).diagonal(-1), lambda y: images(y).diagonal(0, 1, 3)
    ),
    "diagonal_copy diagonal_scatter": lambda x: A.diagonal_scatter(m(x) * 2, A.diagonal_copy(m(x), 1)[:3] * 3, -1),
    # systems of equations
    "linalg_solve_triangular": lambda x: chain(
        x,
        lambda y: torch.linalg.solve_triangular(square(y), y[9:15].view(3, 2), upper=False),
        lambda y: torch.linalg.solve_triangular(square(y), y[9:12].view(3, 1), upper=True),
        lambda y: torch.linalg.solve_triangular(square(y), y[9:15].view(2, 3), upper=True, left=False),
        lambda y: torch.linalg.solve_triangular(square(y), y[9:12].view(1, 3), upper=False, left=False),
        lambda y: torch.linalg.solve_triangular(
            y[:16].view(1, 4, 4) / 2, y[8:24].view(2, 4, 2), upper=False, unitriangular=True
        ),
    ),
    # folds
    "std.correction var_mean.correction std_mean.correction": lambda x: chain(
        x,
        lambda y: m(y).std(1),
        lambda y: torch.cat(torch.var_mean(m(y), 0)),
        lambda y: torch.cat(torch.std_mean(m(y), 1)),
    ),
    "norm.Scalar norm.ScalarOpt_dim": lambda x: A.norm.Scalar(x, 2) * A.norm.ScalarOpt_dim(m(x), 2, [1]),
    "_weight_norm_interface _weight_norm_interface_backward": lambda x: chain(
        x, lambda y: torch._weight_norm(m(y), y[:4].view(4, 1), 0), lambda y: torch._weight_norm(m(y), m(y)[:1], 1)
    ),
    "cumprod": lambda x: m(x).cumprod(1),
    "aminmax": lambda x: chain(x, lambda y: torch.stack(y.aminmax()), lambda y: m(y).aminmax(dim=1).max),
    "nansum": lambda x: torch.nansum(m(x).masked_fill(m(x) > 1, float("nan")), 1),
    "cummax cummin": lambda x: m(x).cummax(1).values * m(x).cummin(0).values,
    "logcumsumexp": lambda x: chain(x, lambda y: (3 * m(y)).logcumsumexp(1), lambda y: m(y).logcumsumexp(0)),
    "median median.dim": lambda x: x.median() * m(x).median(1).values,
    "nanmedian nanmedian.dim": lambda x: x.nanmedian() * m(x).nanmedian(0).values,
    "kthvalue mode": lambda x: m(x).kthvalue(2, 1).values * (m(x) * 2).mode(1).values,
    # indexing
    "scatter_reduce.two": lambda x: chain(
        x,
        lambda y: (m(y) * 2).scatter_reduce(1, AT, m(y)[:, :2] * 3, "sum"),
        lambda y: (m(y) * 2).scatter_reduce(1, AT, m(y)[:, :2] * 3, "mean", include_self=False),
        lambda y: (m(y) * 2).scatter_reduce(1, AT, m(y)[:, :2] * 3, "amax"),
        lambda y: (m(y) * 2).scatter_reduce(1, AT, m(y)[:, :2] * 3, "amin"),
        lambda y: (m(y) * 2).scatter_reduce(1, AT, m(y)[:, :2] * 3, "prod"),
    ),
    "index_fill.int_Scalar": lambda x: m(x).index_fill(1, CLASSES, 2.0) * m(x * 3).index_fill(0, CLASSES[:2] - 4, 0.0),
    "scatter_add": lambda x: (m(x) * 2).scatter_add(1, AT[:3, :1], m(x)[:3, 2:3]),
    # resampling
    "roll": lambda x: x.roll(5) * m(x).roll((1, -2), (0, 1)).reshape(-1),
    "unfold unfold_backward": lambda x: chain(
        x, lambda y: y.unfold(0, 5, 2), lambda y: m(y).unfold(0, 2, 2), lambda y: y.unfold(0, 20, 3)
    ),
    "im2col col2im": lambda x: chain(
        x,
        lambda y: F.unfold(images(y), 2, padding=1),
        lambda y: F.unfold(images(y)[:, :, :, :2], (3, 1), dilation=1, stride=(1, 2)),
        lambda y: F.fold(y.view(1, 4, 6), (3, 4), 2),
    ),
    "reflection_pad1d reflection_pad1d_backward": lambda x: F.pad(lines(x), (2, 3), "reflect"),
    "reflection_pad2d reflection_pad2d_backward": lambda x: F.pad(images(x), (2, 1, 0, 2), "reflect"),
    "replication_pad1d replication_pad1d_backward": lambda x: F.pad(lines(x), (2, 3), "replicate"),
    "replication_pad2d replication_pad2d_backward": lambda x: F.pad(images(x), (2, 1, 0, 2), "replicate"),
    "reflection_pad3d reflection_pad3d_backward": lambda x: F.pad(solid(x), (2, 1, 0, 1, 1, 1), "reflect"),
    "replication_pad3d replication_pad3d_backward": lambda x: F.pad(solid(x), (2, 1, 0, 2, 1, 1), "replicate"),
    "pixel_shuffle pixel_unshuffle": lambda x: (
        F.pixel_shuffle(x.view(4, 2, 3), 2) * F.pixel_unshuffle(x.view(1, 4, 6), 2).view(1, 4, 6)
    ),
    "channel_shuffle": lambda x: A.channel_shuffle(images(x), 2),
    "upsample_nearest1d upsample_nearest1d_backward": lambda x: F.interpolate(lines(x), size=9),
    "upsample_nearest2d upsample_nearest2d_backward": lambda x: resized(x, "nearest"),
    "upsample_linear1d upsample_linear1d_backward": lambda x: F.interpolate(lines(x), size=9, mode="linear"),
    "upsample_bilinear2d upsample_bilinear2d_backward": lambda x: chain(
        x,
        lambda y: resized(y, "bilinear"),
        lambda y: resized(y, "bilinear", align_corners=True),
        lambda y: F.interpolate(images(y), scale_factor=1.7, mode="bilinear"),
    ),
    "upsample_nearest3d upsample_nearest3d_backward": lambda x: F.interpolate(solid(x), size=(3, 2, 5)),
    "upsample_trilinear3d upsample_trilinear3d_backward": lambda x: F.interpolate(
        solid(x), size=(3, 2, 5), mode="trilinear"
    ),
    "_upsample_nearest_exact1d _upsample_nearest_exact1d_backward": lambda x: F.interpolate(
        lines(x), size=9, mode="nearest-exact"
    ),
    "_upsample_nearest_exact2d _upsample_nearest_exact2d_backward": lambda x: resized(x, "nearest-exact"),
    "_upsample_nearest_exact3d _upsample_nearest_exact3d_backward": lambda x: F.interpolate(
        solid(x), size=(3, 2, 5), mode="nearest-exact"
    ),
    "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward": lambda x: resized(x, "bilinear", antialias=True),
    "_upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward": lambda x: resized(x, "bicubic", antialias=True),
    "upsample_bicubic2d upsample_bicubic2d_backward": lambda x: chain(
        x, lambda y: resized(y, "bicubic"), lambda y: resized(y, "bicubic", align_corners=True)
    ),
}  # fmt: skip

VALUES: dict[str, Case] = {
    "signbit heaviside": lambda x: [
        torch.signbit(torch.stack([x, 0 * x])).to(x.dtype),
        torch.heaviside(x.relu().detach(), 0 * x.detach() + 0.5),
        torch.heaviside(torch.arange(3) - 1, torch.tensor(5)).to(x.dtype),
    ],
    "isposinf isneginf": lambda x: [f(x / (x > 0)).to(x.dtype) for f in (torch.isposinf, torch.isneginf)],
    "round.decimals": lambda x: [x.detach().round(decimals=2), (999 * x.detach()).round(decimals=-1)],
    "remainder.Scalar_Tensor": lambda x: [
        torch.remainder(2.5, x.detach() ** 2 + 0.4), torch.remainder(7, IN.abs() + 1).to(x.dtype)
    ],
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar": lambda x: [
        y.to(x.dtype)
        for y in (IN**3, IN**0, IN ** IN.abs().clamp(max=4), 2**IN, (-1) ** (IN + 40), IN.sign() ** (IN - 40))
    ],
    "bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor": lambda x: [
        f(6, IN).to(x.dtype) for f in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)
    ],
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor": lambda x: [
        f(a, b).to(x.dtype) for f in (torch.bitwise_left_shift,) for a, b in ((IN, IN.abs()), (IN, 3), (5, IN.abs()))
    ],
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor": lambda x: [
        f(a, b).to(x.dtype)
        for f in (torch.bitwise_right_shift,)
        for a, b in ((99 * IN, IN.abs()), (IN, 40), (-300, IN.abs() * 9))
    ],
    "count_nonzero count_nonzero.dim_IntList": lambda x: [
        y.to(x.dtype)
        for y in (x.relu().count_nonzero(), A.count_nonzero.dim_IntList(m(x) > 0, [1]), IN.count_nonzero())
    ],
    "isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor": lambda x: [
        y.to(x.dtype)
        for y in (torch.isin(IN, IN[:2]), torch.isin(IN, 3, invert=True), torch.isin(3, IN), torch.isin(x, x[:3] + 0))
    ],
    "searchsorted.Tensor searchsorted.Scalar bucketize.Scalar": lambda x: [
        torch.searchsorted(torch.tensor([-0.5, 0.0, 0.5]), m(x)).to(x.dtype),
        torch.searchsorted(m(x).sort(1).values, m(x), side="right").to(x.dtype),
        torch.searchsorted(m(x), m(x).flip(0), sorter=m(x).argsort(1)).to(x.dtype),
        torch.searchsorted(IN.sort().values, IN, right=True).to(x.dtype),
        torch.searchsorted(x.sort().values, 0.1).to(x.dtype),
        torch.bucketize(0.1, x.sort().values).to(x.dtype),
    ],
    "logspace": lambda x: [torch.logspace(-1, 2, 7)],
    "native_dropout_backward": lambda x: [A.native_dropout_backward(x.detach(), x > 0, 2.0)],
    "isinf": lambda x: [(x / (x > 0)).isinf().to(x.dtype)],
    "empty_strided new_empty_strided empty_permuted": lambda x: [
        torch.empty_strided((2, 3), (3, 1)).fill_(2.0),
        x.new_empty_strided((2, 3), (1, 2)).fill_(3.0),
        torch.empty_permuted((2, 3), (1, 0)).fill_(4.0),
    ],
    "linspace": lambda x: [torch.linspace(-1, 2, 7)],
    "eye eye.m": lambda x: [torch.eye(3), torch.eye(2, 4)],
    "any any.dim any.dims all all.dim all.dims": lambda x: [
        y.to(x.dtype)
        for y in (
            (x > 1).any(), (m(x) > 0.9).any(1), A.any.dims(m(x) > 5, [0, 1]),
            (x > -9).all(), (m(x) > -0.9).all(0), A.all.dims(m(x) > -5, [0, 1]),
        )
    ],
    "bucketize.Tensor": lambda x: [
        torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5]), right=right).to(x.dtype) for right in (False, True)
    ],
    "max amin": lambda x: [
        y.to(x.dtype) for y in ((x.detach() * 1e6).to(torch.int32).max(), (m(x.detach()) * 1e6).to(torch.int32).amin(1))
    ],
}  # fmt: skip
RANDOM = (
    "rand rand_like randn randn_like uniform normal_functional exponential bernoulli.p bernoulli bernoulli.Tensor "
    "randint randint.low randint_like randint_like.low_dtype randperm multinomial "
    "normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor normal.float_float log_normal cauchy geometric "
    "rand.generator rand_like.generator randn.generator randn_like.generator randint.generator randint.low_generator "
    "randint_like.generator randint_like.low_generator_dtype randperm.generator "
    "_standard_gamma _sample_dirichlet rrelu_with_noise_functional native_dropout"
)
"""Rules that draw: `test_randomness.py` checks them."""


def guarded(x: torch.Tensor) -> torch.Tensor:
    """Every form of a guard that only tells; here, since pytest rewrites the asserts of test modules."""
    assert x.isfinite().all(), "finite"
    assert not (x > 100).any()
    assert x.max().item() <= 50
    if x.min().item() < -50:
        raise ValueError("out of range")
    if (x > 50).any() or not (x > -50).all():
        raise ValueError("out of range")
    if (x < -50).any():
        logger.warning("small")
    return x * 2
