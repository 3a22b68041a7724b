"""Functions of torch's documentation by family, for a sweep over random shapes: draws, special functions, order and
scans, activations, losses, types.

A case takes what its parameters name: x, y, z are float tensors of shapes that broadcast to one, `d` is an axis of x,
from the front or from the back. It returns what is compared with eager torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812

AF = torch.autograd.functional
H = torch._higher_order_ops
T = torch.func
Cases = dict[str, Callable[..., Any]]
S = torch.special


def pos(x: torch.Tensor) -> torch.Tensor:
    """Above 0.3."""
    return x.abs() + 0.3


def unit(x: torch.Tensor) -> torch.Tensor:
    """Strictly between 0 and 1."""
    return x.sigmoid()


def whole(x: torch.Tensor) -> torch.Tensor:
    """i64, -6 .. 6."""
    return (x * 3).round().clamp(-6, 6).to(torch.int64)


def signs(x: torch.Tensor) -> torch.Tensor:
    """-1 or 1."""
    return torch.where(x.detach() > 0, 1.0, -1.0)


def mat(x: torch.Tensor) -> torch.Tensor:
    """[N, C] of any tensor: at least one row."""
    return x.reshape(1, -1) if x.dim() < 2 else x.reshape(-1, x.shape[-1])


def classes(x: torch.Tensor) -> torch.Tensor:
    """A class of each row of `mat(x)`."""
    return torch.arange(mat(x).shape[0]) * 5 % mat(x).shape[1]


def images(x: torch.Tensor) -> torch.Tensor:
    """[N, C, 1, 2]."""
    return torch.stack([mat(x), mat(x) * 0.5], -1).unsqueeze(2)


def weights(x: torch.Tensor) -> torch.Tensor:
    """One of each class of `mat(x)`."""
    return torch.arange(mat(x).shape[1]) * 0.25 + 0.5


def spoiled(x: torch.Tensor) -> torch.Tensor:
    """Every third element NaN."""
    return x.masked_fill((torch.arange(x.numel()) % 3 == 1).view(x.shape), math.nan)


def edges() -> torch.Tensor:
    """Sorted."""
    return torch.tensor([-1.0, -0.25, 0.5, 0.75])


def half(x: torch.Tensor, d: int) -> int:
    """A rank of the axis, from 1."""
    return (x.shape[d] + 1) // 2


SPECIAL: Cases = {
    "lgamma": lambda x: torch.lgamma(pos(x) * 3),
    "lgamma of negatives": lambda x: torch.lgamma(x.abs() * -0.8 - 0.1),
    "digamma": lambda x: torch.digamma(pos(x) * 2),
    "digamma of negatives": lambda x: torch.digamma(-0.9 * unit(x) - 0.05),
    "polygamma 0": lambda x: torch.polygamma(0, pos(x)),
    "polygamma 1": lambda x: torch.polygamma(1, pos(x)),
    "polygamma 2": lambda x: torch.polygamma(2, pos(x) + 0.2),
    "mvlgamma": lambda x: torch.mvlgamma(pos(x) + 2, 3),
    "gammaln": lambda x: S.gammaln(pos(x)),
    "multigammaln": lambda x: S.multigammaln(pos(x) + 1, 2),
    "psi": lambda x: S.psi(pos(x)),
    "erf": lambda x: torch.erf(x),
    "erfc": lambda x: torch.erfc(x),
    "erfinv": lambda x: torch.erfinv(unit(x) * 1.9 - 0.95),
    "erfinv near one": lambda x: torch.erfinv(1 - 1e-4 * unit(x)),
    "erfcx": lambda x: S.erfcx(x),
    "erfcx of large": lambda x: S.erfcx(pos(x) * 5),
    "ndtr": lambda x: S.ndtr(x),
    "ndtri": lambda x: S.ndtri(unit(x)),
    "log_ndtr": lambda x: S.log_ndtr(x * 3),
    "i0": lambda x: torch.i0(x * 4),
    "i0e": lambda x: S.i0e(x * 4),
    "i1": lambda x: S.i1(x * 4),
    "i1e": lambda x: S.i1e(x * 4),
    "i0e of large": lambda x: S.i0e(pos(x) * 30),
    "entr": lambda x: S.entr(pos(x)),
    "entr of zero": lambda x: S.entr(x.relu().detach()),
    "sinc": lambda x: torch.sinc(x),
    "sinc at zero": lambda x: torch.sinc(x * (x > 0)),
    "logit": lambda x: torch.logit(unit(x)),
    "logit eps": lambda x: torch.logit(x, eps=0.1),
    "expit": lambda x: S.expit(x),
    "frac": lambda x: torch.frac(x * 3),
    "hypot": lambda x, y: torch.hypot(x, y),
    "xlogy": lambda x, y: torch.xlogy(x, pos(y)),
    "xlogy scalar": lambda x: torch.xlogy(2.5, pos(x)) + torch.xlogy(x, 2.5),
    "xlogy at zero": lambda x: torch.xlogy((x * 0).detach(), x.detach() * 0),
    "xlog1py": lambda x, y: S.xlog1py(x, pos(y)),
    "xlog1py scalar": lambda x: S.xlog1py(2.5, pos(x)) + S.xlog1py(x, 2.5),
    "log_softmax": lambda x, d: S.log_softmax(x, d),
    "copysign": lambda x, y: torch.copysign(x, y),
    "copysign scalar": lambda x: torch.copysign(x, -2.0),
    "deg2rad": lambda x: torch.deg2rad(x * 90),
    "rad2deg": lambda x: torch.rad2deg(x),
    "ldexp": lambda x, y: torch.ldexp(x, whole(y)),
    "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "logaddexp2": lambda x, y: torch.logaddexp2(x, y),
    "exp2": lambda x: torch.exp2(x),
    "special.exp2": lambda x: S.exp2(x),
    "expm1": lambda x: torch.expm1(x),
    "log1p": lambda x: torch.log1p(pos(x)),
    "log2": lambda x: torch.log2(pos(x)),
    "log10": lambda x: torch.log10(pos(x)),
    "fmod": lambda x, y: torch.fmod(x * 3, pos(y)),
    "fmod scalar": lambda x: torch.fmod(x * 3, -0.7),
    "remainder": lambda x, y: torch.remainder(x * 3, pos(y).detach()),
    "remainder scalar": lambda x: torch.remainder(x * 3, -0.7),
    "remainder of a scalar": lambda x: torch.remainder(2.5, pos(x.detach())),
    "heaviside": lambda x, y: torch.heaviside(whole(x).to(x.dtype), y.detach()),
    "sgn": lambda x: torch.sgn(x) * x,
    "sign": lambda x: torch.sign(x) * x,
    "signbit": lambda x: torch.signbit(x),
    "trunc": lambda x: torch.trunc(x * 3) * x,
    "fix": lambda x: torch.fix(x * 3) * x,
    "round decimals": lambda x: torch.round(x, decimals=2),
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "clamp min": lambda x: torch.clamp(x, min=-0.5),
    "clamp tensors": lambda x, y, z: torch.clamp(x, y - 0.5, z + 0.5),
    "clamp max tensor": lambda x, y: torch.clamp(x, max=y),
    "clip": lambda x: torch.clip(x, max=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp tensor": lambda x, y, z: torch.lerp(x, y, unit(z)),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, pos(z), value=0.5),
    "float_power": lambda x: torch.float_power(pos(x), 2).float(),
    "square": lambda x: torch.square(x),
    "pow integer tensor": lambda x, y: torch.pow(pos(x), whole(y)),
    "maximum": lambda x, y: torch.maximum(x, y),
    "fmax": lambda x, y: torch.fmax(x, y),
    "fmin": lambda x, y: torch.fmin(x, y),
    "atan2": lambda x, y: torch.atan2(x, y),
    "arctan2": lambda x, y: torch.arctan2(x, y),
    "sinh": lambda x: torch.sinh(x),
    "asinh": lambda x: torch.asinh(x),
    "acosh": lambda x: torch.acosh(pos(x) + 1),
    "atanh": lambda x: torch.atanh(x / (x.abs() + 1)),
    "asin": lambda x: torch.asin(x / (x.abs() + 1)),
    "acos": lambda x: torch.acos(x / (x.abs() + 1)),
    "rsqrt": lambda x: torch.rsqrt(pos(x)),
    "dist": lambda x, y: torch.dist(x, y),
    "dist 1": lambda x, y: torch.dist(x, y, 1),
    "pairwise_distance": lambda x: F.pairwise_distance(mat(x), mat(x).flip(0) * 0.5),
    "vector_norm 3": lambda x, d: torch.linalg.vector_norm(x, 3, d),
    "norm 0.5": lambda x, d: pos(x).norm(0.5, d),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -math.inf),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0),
    "logsumexp": lambda x, d: torch.logsumexp(x, d),
    "special.softmax": lambda x, d: S.softmax(x, d),
    "bessel_j0": lambda x: S.bessel_j0(x.detach()),
    "zeta": lambda x: S.zeta(pos(x.detach()) + 1.5, 2.0),
    "gammainc": lambda x: S.gammainc(pos(x.detach()), pos(x.detach())),
    "isclose": lambda x, y: torch.isclose(x, y, 0.1, 0.5),
    "allclose parts": lambda x: torch.isfinite(x) & ~torch.isposinf(x) & ~torch.isneginf(x) & torch.isreal(x),
    "nan_to_num": lambda x: torch.nan_to_num(x, 1.0),
    "gcd": lambda x, y: torch.gcd(whole(x), whole(y)),
    "frexp": lambda x: torch.frexp(x.detach()).mantissa,
    "polar parts": lambda x, y: x * torch.cos(y) + x * torch.sin(y),
    "cross entropy of normals": lambda x, y: torch.distributions.Normal(x, pos(y)).log_prob(y.detach()),
    "gamma log_prob": lambda x, y: torch.distributions.Gamma(pos(x), pos(y), validate_args=False).log_prob(pos(x)),
    "beta log_prob": lambda x: torch.distributions.Beta(pos(x), pos(x) * 2, validate_args=False).log_prob(unit(x)),
    "beta entropy": lambda x: torch.distributions.Beta(pos(x), pos(x) * 2, validate_args=False).entropy(),
    "dirichlet log_prob": lambda x: torch.distributions.Dirichlet(pos(mat(x)), validate_args=False).log_prob(
        mat(x).softmax(-1)
    ),
    "student log_prob": lambda x, y: torch.distributions.StudentT(pos(x), validate_args=False).log_prob(y),
    "poisson log_prob": lambda x: torch.distributions.Poisson(pos(x), validate_args=False).log_prob(
        whole(x).abs().to(x.dtype)
    ),
    "negative binomial log_prob": lambda x: torch.distributions.NegativeBinomial(
        pos(x), logits=x, validate_args=False
    ).log_prob(whole(x).abs().to(x.dtype)),
    "gamma kl": lambda x, y: torch.distributions.kl_divergence(
        torch.distributions.Gamma(pos(x), pos(y), validate_args=False),
        torch.distributions.Gamma(pos(y), pos(x), validate_args=False),
    ),
    "normal cdf": lambda x: torch.distributions.Normal(0.0, 2.0, validate_args=False).cdf(x),
    "normal icdf": lambda x: torch.distributions.Normal(0.0, 2.0, validate_args=False).icdf(unit(x)),
    "von mises log_prob": lambda x: torch.distributions.VonMises(x, pos(x), validate_args=False).log_prob(x.detach()),
    "categorical entropy": lambda x: Categorical(logits=mat(x), validate_args=False).entropy(),
}

ORDER: Cases = {
    "logcumsumexp": lambda x, d: torch.logcumsumexp(x, d),
    "cummax": lambda x, d: torch.cummax(x, d),
    "cummin": lambda x, d: torch.cummin(x, d),
    "cummax of integers": lambda x, d: torch.cummax(whole(x), d).values,
    "cumsum": lambda x, d: torch.cumsum(x, d),
    "cumsum of integers": lambda x, d: torch.cumsum(whole(x), d),
    "cumsum of bools": lambda x, d: torch.cumsum(x > 0, d),
    "cumprod": lambda x, d: torch.cumprod(x, d),
    "cumulative_trapezoid": lambda x, d: torch.cumulative_trapezoid(torch.cat([x, x * x], d), dim=d),
    "trapezoid": lambda x, d: torch.trapezoid(x, dim=d),
    "trapezoid dx": lambda x, d: torch.trapezoid(x, dx=0.5, dim=d),
    "diff": lambda x, d: torch.diff(torch.cat([x, x * x], d), dim=d),
    "diff 2 prepend": lambda x, d: torch.diff(x, n=2, dim=d, prepend=x, append=x * 2),
    "diff of bools": lambda x, d: torch.diff(x > 0, dim=d, prepend=x > 0),
    "median": lambda x: torch.median(x),
    "median dim": lambda x, d: torch.median(x, d),
    "median keepdim": lambda x, d: torch.median(x, d, keepdim=True).values,
    "nanmedian": lambda x: torch.nanmedian(spoiled(x)),
    "nanmedian dim": lambda x, d: torch.nanmedian(spoiled(x), d).values,
    "median of nan": lambda x: torch.median(spoiled(x)),
    "kthvalue": lambda x, d: torch.kthvalue(x, half(x, d), d),
    "kthvalue keepdim": lambda x, d: torch.kthvalue(x, 1, d, keepdim=True),
    "mode": lambda x, d: torch.mode(whole(x), d).values,
    "mode of floats": lambda x, d: torch.mode((x * 2).round(), d).values,
    "aminmax": lambda x: torch.aminmax(x),
    "aminmax dim": lambda x, d: torch.aminmax(x, dim=d, keepdim=True),
    "nansum": lambda x: torch.nansum(spoiled(x)),
    "nansum dim": lambda x, d: torch.nansum(spoiled(x), d),
    "nanmean": lambda x: torch.nanmean(spoiled(x)),
    "nanmean dim": lambda x, d: torch.nanmean(spoiled(x), d, keepdim=True).nan_to_num(),
    "count_nonzero": lambda x: torch.count_nonzero(whole(x)),
    "count_nonzero dim": lambda x, d: torch.count_nonzero(x > 0, d),
    "count_nonzero floats": lambda x, d: torch.count_nonzero(x.relu(), d),
    "searchsorted": lambda x: torch.searchsorted(edges(), x),
    "searchsorted right": lambda x: torch.searchsorted(edges(), x.detach(), right=True),
    "searchsorted rows": lambda x: torch.searchsorted(mat(x).sort(-1).values, mat(x).flip(-1), side="right"),
    "searchsorted scalar": lambda x: torch.searchsorted(x.reshape(-1).sort().values, 0.2),
    "bucketize": lambda x: torch.bucketize(x, edges()),
    "bucketize right": lambda x: torch.bucketize(x, edges(), right=True, out_int32=True),
    "renorm": lambda x: torch.renorm(mat(x), 2, 0, 0.5),
    "renorm 1": lambda x: torch.renorm(mat(x), 1, 1, 0.5),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "quantile dim": lambda x, d: torch.quantile(x, 0.3, d, keepdim=True),
    "quantile several": lambda x, d: torch.quantile(x, torch.tensor([0.1, 0.5, 0.95]), d),
    "quantile lower": lambda x, d: torch.quantile(x, 0.3, d, interpolation="lower"),
    "quantile nearest": lambda x, d: torch.quantile(x, 0.3, d, interpolation="nearest"),
    "quantile midpoint": lambda x, d: torch.quantile(x, 0.3, d, interpolation="midpoint"),
    "nanquantile": lambda x, d: torch.nanquantile(spoiled(x), 0.4, d).nan_to_num(),
    "msort": lambda x: torch.msort(x),
    "sort": lambda x, d: torch.sort(x, d),
    "sort descending": lambda x, d: torch.sort(x, d, descending=True),
    "sort of integers": lambda x, d: torch.sort(whole(x), dim=d, stable=True),
    "argsort": lambda x, d: torch.argsort(x, d),
    "argsort stable": lambda x, d: torch.argsort(whole(x), dim=d, stable=True, descending=True),
    "argsort twice": lambda x, d: torch.argsort(torch.argsort(x, d), d),
    "topk": lambda x, d: torch.topk(x, half(x, d), d),
    "topk smallest": lambda x, d: torch.topk(x, half(x, d), d, largest=False),
    "topk unsorted": lambda x, d: torch.topk(x, half(x, d), d, sorted=False).values.sum(d),
    "argmax": lambda x, d: torch.argmax(x, d),
    "argmin keepdim": lambda x, d: torch.argmin(x, d, keepdim=True),
    "argmax of all": lambda x: torch.argmax(x),
    "max dim": lambda x, d: torch.max(x, d),
    "min dim": lambda x, d: torch.min(x, d, keepdim=True),
    "max of integers dim": lambda x, d: torch.max(whole(x), d).values,
    "max other": lambda x, y: torch.max(x, y),
    "amax several": lambda x: torch.amax(x, tuple(range(x.dim()))),
    "prod": lambda x: torch.prod(x),
    "prod dim": lambda x, d: torch.prod(x, d, keepdim=True),
    "prod of integers": lambda x, d: torch.prod(whole(x).clamp(1, 2), d),
    "any all": lambda x, d: [(x > 0).any(d), (x > 0).all(d, keepdim=True), x.any(), x.all()],
    "std_mean": lambda x: torch.std_mean(torch.cat([x.reshape(-1), torch.ones(2)])),
    "var dim": lambda x, d: torch.var(x, d, correction=0),
    "histc": lambda x: torch.histc(x.detach(), 5, -2, 2),
    "histogram weights": lambda x: (torch.bucketize(x, edges()).unsqueeze(-1) == torch.arange(5)).sum(0),
    "unravel_index": lambda x: torch.unravel_index(x.argmax(), x.shape),
    "isin": lambda x, y: torch.isin(whole(x), torch.tensor([1, -2, 3])),
    "cov": lambda x: torch.cov(torch.cat([mat(x), mat(x) ** 2], 1)),
    "corrcoef": lambda x: torch.corrcoef(
        torch.cat([mat(x), mat(x) ** 2, mat(x) * 0 + torch.arange(mat(x).shape[1])], 1)
    ),
    "gradient": lambda x: torch.gradient(torch.cat([x.reshape(-1), x.reshape(-1) ** 2]))[0],
    "logspace": lambda x: torch.logspace(0, 1, 4) * x.sum(),
    "nan extrema": lambda x, d: [torch.amax(spoiled(x), d), torch.fmax(spoiled(x), x * 0)],
    "gather of sorted": lambda x, d: torch.take_along_dim(x, x.argsort(d), d),
}

ACTIVATIONS: Cases = {
    "celu": lambda x: F.celu(x, 1.3),
    "celu default": lambda x: F.celu(x),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": lambda x: F.selu(x),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.2, -1.5),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": lambda x: F.hardsigmoid(x * 3),
    "hardswish": lambda x: F.hardswish(x * 3),
    "logsigmoid": lambda x: F.logsigmoid(x * 5),
    "softplus": lambda x: F.softplus(x, 2.0, 1.0),
    "tanhshrink": lambda x: F.tanhshrink(x),
    "softsign": lambda x: F.softsign(x),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2])),
    "prelu of channels": lambda x: F.prelu(mat(x), mat(x).sum(0)),
    "rrelu evaluated": lambda x: F.rrelu(x, 0.1, 0.4, training=False),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "relu6": lambda x: F.relu6(x * 4),
    "relu": lambda x: F.relu(x),
    "gelu": lambda x: F.gelu(x),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: F.silu(x),
    "mish": lambda x: F.mish(x),
    "glu": lambda x, d: F.glu(torch.cat([x, x * x], d), d),
    "softmin": lambda x, d: F.softmin(x, d),
    "softmax": lambda x, d: F.softmax(x, d),
    "log_softmax": lambda x, d: F.log_softmax(x, d),
    "normalize": lambda x, d: F.normalize(x, dim=d),
    "normalize 1": lambda x, d: F.normalize(x, 1.0, d),
    "cosine_similarity": lambda x, d: F.cosine_similarity(x, x * x + 1, d),
    "celu in place": lambda x: F.celu(x * 1, inplace=True),
    "threshold in place": lambda x: F.threshold(x * 1, 0.1, 0.0, inplace=True),
    "hardswish in place": lambda x: F.hardswish(x * 1, inplace=True),
    "modules": lambda x: nn.Sequential(nn.CELU(), nn.Softshrink(0.1), nn.Hardshrink(0.1), nn.Threshold(-9.0, 0.0))(x),
    "softmax2d": lambda x: nn.Softmax2d()(images(x)),
}

LOSSES: Cases = {
    "gaussian_nll": lambda x, y: F.gaussian_nll_loss(x, (x * 0.5).detach(), pos(x)),
    "gaussian_nll full": lambda x: F.gaussian_nll_loss(mat(x), mat(x) * 0.5, pos(mat(x)[:, :1]), full=True),
    "gaussian_nll module": lambda x: nn.GaussianNLLLoss(reduction="none")(x, x * 0.5, pos(x)),
    "multi_margin": lambda x: F.multi_margin_loss(mat(x), classes(x)),
    "multi_margin p2": lambda x: F.multi_margin_loss(mat(x), classes(x), p=2, margin=0.7, weight=weights(x)),
    "multi_margin none": lambda x: F.multi_margin_loss(mat(x), classes(x), reduction="none"),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(mat(x), labels(x)),
    "multilabel_margin none": lambda x: F.multilabel_margin_loss(mat(x), labels(x), reduction="none"),
    "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(mat(x), (mat(x).detach() > 0).to(x.dtype)),
    "multilabel_soft_margin w": lambda x: F.multilabel_soft_margin_loss(
        mat(x), (mat(x).detach() > 0).to(x.dtype), weights(x), reduction="none"
    ),
    "soft_margin": lambda x: F.soft_margin_loss(x, signs(x.flip(0) if x.dim() else x)),
    "soft_margin sum": lambda x: F.soft_margin_loss(x, signs(x * 2 - 0.5), reduction="sum"),
    "poisson_nll": lambda x: F.poisson_nll_loss(x, whole(x).abs().to(x.dtype)),
    "poisson_nll full": lambda x: F.poisson_nll_loss(x, whole(x).abs().to(x.dtype), full=True),
    "poisson_nll rate": lambda x: F.poisson_nll_loss(pos(x), whole(x).abs().to(x.dtype), log_input=False, full=True),
    "hinge_embedding": lambda x: F.hinge_embedding_loss(x, signs(x * 2 - 0.5), margin=0.8),
    "cosine_embedding": lambda x: F.cosine_embedding_loss(
        mat(x), mat(x) ** 2 + 0.5, signs(mat(x)[:, 0] * 2 - 0.3), margin=0.1
    ),
    "margin_ranking": lambda x, y: F.margin_ranking_loss(x, x * 0.5 + 1, signs(x * 3 - 1), margin=0.2),
    "triplet_margin": lambda x: F.triplet_margin_loss(mat(x), mat(x) * 0.5, mat(x).flip(-1) + 1),
    "triplet_margin swap": lambda x: F.triplet_margin_loss(
        mat(x), mat(x) * 0.5, mat(x) * 0.3 + 0.4, p=2, swap=True, reduction="none"
    ),
    "triplet_margin p1": lambda x: F.triplet_margin_loss(mat(x), mat(x) * 0.5, mat(x) * 0.3 + 0.4, p=1),
    "triplet_margin_with_distance": lambda x: F.triplet_margin_with_distance_loss(
        mat(x), mat(x) * 0.5, mat(x) * 0.3 + 0.4, distance_function=lambda a, b: 1 - F.cosine_similarity(a, b)
    ),
    "huber": lambda x: F.huber_loss(x, x * x - 0.5, delta=0.6),
    "huber weight": lambda x: F.huber_loss(x, x * x - 0.5, weight=pos(x).detach(), reduction="sum"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * x - 0.5, beta=0.6),
    "l1": lambda x: F.l1_loss(x, x * x - 0.5),
    "mse": lambda x: F.mse_loss(x, x * x - 0.5),
    "mse weight": lambda x: F.mse_loss(x, x * x - 0.5, weight=pos(x).detach()),
    "kl_div": lambda x: F.kl_div(mat(x).log_softmax(-1), mat(x).flip(-1).softmax(-1), reduction="batchmean"),
    "kl_div log": lambda x: F.kl_div(
        mat(x).log_softmax(-1), mat(x).flip(-1).log_softmax(-1), reduction="sum", log_target=True
    ),
    "kl_div none": lambda x: F.kl_div(mat(x).log_softmax(-1), mat(x).relu().detach(), reduction="none"),
    "nll": lambda x: F.nll_loss(mat(x).log_softmax(-1), classes(x)),
    "nll weight": lambda x: F.nll_loss(mat(x), classes(x), weights(x), ignore_index=0, reduction="sum"),
    "nll 2d": lambda x: F.nll_loss(images(x), pixels(x)),
    "nll 2d weight": lambda x: F.nll_loss(images(x), pixels(x), weights(x), reduction="none"),
    "nll 1d": lambda x: F.nll_loss(mat(x)[0], classes(x)[0]),
    "nll of three axes": lambda x: F.nll_loss(images(x)[:, :, 0], pixels(x)[:, 0]),
    "cross_entropy": lambda x: F.cross_entropy(mat(x), classes(x)),
    "cross_entropy smoothing": lambda x: F.cross_entropy(mat(x), classes(x), label_smoothing=0.2),
    "cross_entropy smoothing weight": lambda x: F.cross_entropy(
        mat(x), classes(x), weights(x), label_smoothing=0.2, ignore_index=-100
    ),
    "cross_entropy ignore": lambda x: F.cross_entropy(
        mat(x), torch.where(torch.arange(mat(x).shape[0]) % 3 == 1, -100, classes(x)), reduction="sum"
    ),
    "cross_entropy ignore smoothing": lambda x: F.cross_entropy(
        mat(x), torch.where(torch.arange(mat(x).shape[0]) % 3 == 1, -100, classes(x)), label_smoothing=0.1
    ),
    "cross_entropy probabilities": lambda x: F.cross_entropy(mat(x), mat(x).flip(-1).softmax(-1).detach()),
    "cross_entropy probabilities weight": lambda x: F.cross_entropy(
        mat(x), mat(x).flip(-1).softmax(-1), weights(x), label_smoothing=0.1, reduction="none"
    ),
    "cross_entropy images": lambda x: F.cross_entropy(images(x), pixels(x), weights(x), label_smoothing=0.1),
    "cross_entropy probabilities images": lambda x: F.cross_entropy(images(x), images(x).softmax(1).detach()),
    "cross_entropy one": lambda x: F.cross_entropy(mat(x)[0], classes(x)[0]),
    "bce": lambda x: F.binary_cross_entropy(unit(x), unit(x * 2).detach()),
    "bce weight": lambda x: F.binary_cross_entropy(unit(x), unit(x * 2).detach(), pos(x).detach(), reduction="sum"),
    "bce of targets that learn": lambda x: F.binary_cross_entropy(unit(x), unit(x * 2)),
    "bce logits": lambda x: F.binary_cross_entropy_with_logits(x, unit(x * 2).detach(), pos_weight=pos(x).detach()),
    "bce logits of targets that learn": lambda x: F.binary_cross_entropy_with_logits(x, unit(x * 2)),
    "adaptive log softmax": lambda x: adaptive(x)[1],
    "adaptive log softmax outputs": lambda x: adaptive(x)[0],
    "adaptive log softmax log_prob": lambda x: adaptive(x)[2],
    "ctc free": lambda x: F.smooth_l1_loss(x, x * 0, reduction="none"),
    "dice": lambda x: 1 - 2 * (unit(x) * (x > 0)).sum() / (unit(x).sum() + (x > 0).sum()),
    "focal": lambda x: (
        (1 - torch.exp(-F.cross_entropy(mat(x), classes(x), reduction="none"))) ** 2
        * F.cross_entropy(mat(x), classes(x), reduction="none")
    ).mean(),
}


def labels(x: torch.Tensor) -> torch.Tensor:
    """[N, C]: classes from the front, ended by -1."""
    n, c = mat(x).shape
    table = (torch.arange(c).unsqueeze(0) * 2 + torch.arange(n).unsqueeze(1)) % c
    return torch.where(torch.arange(c).unsqueeze(0) < (torch.arange(n).unsqueeze(1) % c + (c + 1) // 3), table, -1)


def pixels(x: torch.Tensor) -> torch.Tensor:
    """[N, 1, 2] classes of `images(x)`."""
    n, c = mat(x).shape
    return (torch.arange(2 * n) * 3 % c).view(n, 1, 2)


LAYERS = {n: nn.AdaptiveLogSoftmaxWithLoss(n, 7, [2, 4], div_value=1.0) for n in (1, 5, 7)}


def adaptive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The outputs, loss and log-probabilities of an adaptive softmax of seven classes, at fixed weights."""
    rows = mat(x)
    layer = LAYERS[rows.shape[1]]
    state = {name: (torch.arange(p.numel()) % 5 - 2.0).view(p.shape) * 0.3 for name, p in layer.named_parameters()}
    target = torch.arange(rows.shape[0]) * 3 % 7
    output, loss = torch.func.functional_call(layer, state, (rows, target))
    log_p = torch.func.functional_call(LogProb(layer), {f"layer.{k}": v for k, v in state.items()}, (rows,))
    return output, loss, log_p


class LogProb(nn.Module):
    """All log-probabilities of an adaptive softmax."""

    def __init__(self, layer: nn.AdaptiveLogSoftmaxWithLoss) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.log_prob(x)


TYPES: Cases = {
    "int32 to int64": lambda x: whole(x).to(torch.int32).to(torch.int64) * 2,
    "float to int": lambda x: [x.int(), x.long(), (x * 9).to(torch.int32)],
    "bool to int": lambda x: [(x > 0).int(), (x > 0).long() + 1, (x > 0).float()],
    "int to bool": lambda x: [whole(x).bool(), x.bool()],
    "uint8": lambda x: (whole(x).abs() * 60).to(torch.uint8).to(torch.int32),
    "uint8 wraps": lambda x: (whole(x) * 60).to(torch.uint8).to(torch.int64),
    "int8 wraps": lambda x: (whole(x) * 60).to(torch.int8).to(torch.int64),
    "int16": lambda x: (whole(x) * 9000).to(torch.int16).to(torch.int32),
    "int8 sums": lambda x: (whole(x).to(torch.int8) + whole(x).to(torch.int8)).int(),
    "uint8 arithmetic": lambda x: ((whole(x).abs().to(torch.uint8) * 50) >> 1).int(),
    "uint8 mask": lambda x: torch.where((x > 0).to(torch.uint8) == 1, x, 0.0),
    "int8 scales": lambda x: (x * 20).round().clamp(-128, 127).to(torch.int8).to(x.dtype) * 0.05,
    "bool arithmetic": lambda x, y: [(x > 0) + (y > 0), (x > 0) * (y > 0), (x > 0) * y, (x > 0) + 1.5, ~(x > 0)],
    "bool subtraction of ints": lambda x: (x > 0).int() - (x < 1).int(),
    "bool sums": lambda x, d: [(x > 0).sum(), (x > 0).sum(d), (x > 0).float().mean()],
    "bool products": lambda x: [(x > 0).prod(), (x > 0).int().prod()],
    "bool extrema": lambda x, d: [(x > 0).max(), (x > 0).amax(d), torch.maximum(x > 0, x > 1)],
    "bool comparison": lambda x, y: [(x > 0) == (y > 0), (x > 0) != (y > 0), (x > 0) <= (y > 0), (x > 0) & True],
    "bitwise and": lambda x, y: [whole(x) & whole(y), whole(x) & 5, torch.bitwise_and(3, whole(x))],
    "bitwise or": lambda x, y: [whole(x) | whole(y), whole(x) | 5, torch.bitwise_or(3, whole(x))],
    "bitwise xor": lambda x, y: [whole(x) ^ whole(y), whole(x) ^ 5, torch.bitwise_xor(3, whole(x))],
    "bitwise not": lambda x: [~whole(x), torch.bitwise_not(whole(x).int())],
    "shift operators": lambda x: [whole(x) << 2, whole(x) >> 1, 1 << whole(x).abs(), 300 >> whole(x).abs()],
    "left shift": lambda x: torch.bitwise_left_shift(whole(x), whole(x).abs()),
    "left shift scalar": lambda x: [torch.bitwise_left_shift(whole(x), 3), torch.bitwise_left_shift(3, whole(x).abs())],
    "right shift": lambda x: torch.bitwise_right_shift(whole(x) * 50, whole(x).abs()),
    "right shift scalar": lambda x: [
        torch.bitwise_right_shift(whole(x), 1),
        torch.bitwise_right_shift(300, whole(x).abs()),
    ],
    "in place bits": lambda x: bits_in_place(whole(x)),
    "integer floor division": lambda x: [whole(x) // 4, whole(x) // -4, 7 // (whole(x).abs() + 1)],
    "integer remainder": lambda x: [whole(x) % 4, whole(x) % -4, 7 % (whole(x).abs() + 1), torch.fmod(whole(x), 4)],
    "integer true division": lambda x: [whole(x) / 4, 1 / (whole(x).abs() + 1)],
    "integer trunc division": lambda x: torch.div(whole(x), 4, rounding_mode="trunc"),
    "integer power": lambda x: [whole(x) ** 2, whole(x) ** 3, whole(x) ** 0, whole(x) ** 1],
    "integer power tensor": lambda x: [2 ** whole(x).abs(), whole(x) ** whole(x).abs().clamp(0, 4)],
    "integer mean": lambda x: whole(x).to(x.dtype).mean(),
    "integer clamp": lambda x: [whole(x).clamp(-1, 2), whole(x).clamp(min=whole(x) * 0)],
    "integer abs neg sign": lambda x: [whole(x).abs(), -whole(x), whole(x).sign(), whole(x).square()],
    "integer extrema": lambda x, d: [whole(x).max(), whole(x).amin(d), torch.minimum(whole(x), whole(x) * 0)],
    "integer matmul": lambda x: whole(mat(x)) @ whole(mat(x)).t(),
    "integer where": lambda x: [torch.where(x > 0, whole(x), 0), torch.where(x > 0, 1, whole(x))],
    "integer functions": lambda x: [
        whole(x).exp(),
        whole(x).float().sin(),
        whole(x).sigmoid(),
        whole(x).sqrt().nan_to_num(),
    ],
    "promotion": lambda x: [whole(x) * 0.5, whole(x) + x, (x > 0) + whole(x), whole(x).int() + whole(x)],
    "type_as": lambda x: [whole(x).type_as(x), x.type_as(whole(x)), x.to(torch.float32).to(x.dtype)],
    "view of words": lambda x: (whole(x).to(torch.int32) | 1) & 0xFF,
    "logical": lambda x, y: [
        torch.logical_and(whole(x), y),
        torch.logical_or(x > 0, whole(y)),
        torch.logical_xor(x > 0, y),
        torch.logical_not(x),
    ],
    "masked_fill of ints": lambda x: [whole(x).masked_fill(x > 0, 7), (x > 0).masked_fill(x > 1, False)],
    "full of bools": lambda x: [
        torch.ones(3, dtype=torch.bool) & (x.sum() > 0),
        torch.full((2,), True),
        torch.zeros_like(x > 0),
    ],
    "one_hot": lambda x: F.one_hot(whole(x).abs(), 7),
    "arange of floats": lambda x: torch.arange(0, 2, 0.5) * x.sum(),
    "tensor of numbers": lambda x: torch.tensor([1, 2, 3]) * whole(x).sum() + torch.tensor(True),
    "signed zero": lambda x: torch.signbit(-(x * 0).abs()),
    "int_repr": lambda x: x.to(torch.int64).to(torch.bool).to(torch.float32).to(torch.int32),
    "floor of ints": lambda x: [whole(x).floor(), whole(x).ceil(), whole(x).round(), whole(x).trunc()],
    "bincount of constants": lambda x: torch.bincount(torch.tensor([1, 2, 2])) * x.sum(),
    "float predicates of ints": lambda x: [whole(x).isnan(), whole(x).isinf(), whole(x).isfinite()],
}


def bits_in_place(x: torch.Tensor) -> torch.Tensor:
    """Bitwise operators that write their left operand."""
    y = x.clone()
    y &= 15
    y |= 8
    y ^= 3
    y <<= 2
    y >>= 1
    return y


def energy(x: torch.Tensor) -> torch.Tensor:
    """A scalar with second and third derivatives."""
    return (x.tanh() * x.flip(-1)).sum() + x.exp().mean()


def dual(x: torch.Tensor) -> torch.Tensor:
    """The tangent of a function by forward mode alone."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual((forward_ad.make_dual(x, x.cos()) ** 2).sin()).tangent


TANGENTS: Cases = {
    "hessian": lambda x: T.hessian(energy)(x),
    "hessian of rows": lambda x: T.vmap(T.hessian(energy))(mat(x)),
    "hessian of a layer": lambda x, y: T.hessian(lambda w: (mat(x) @ w).tanh().sum())(weights(x)) * y.sum(),
    "laplacian": lambda x: T.vmap(lambda z: torch.trace(T.hessian(energy)(z)))(mat(x)),
    "jacrev": lambda x: T.jacrev(lambda z: z.tanh() * z.sum())(x),
    "jacrev twice": lambda x: T.jacrev(T.jacrev(energy))(x),
    "jacrev of two": lambda x, y: [*T.jacrev(lambda a, b: (a * b).sum(-1), argnums=(0, 1))(x, y)],
    "jacrev with more": lambda x: T.jacrev(lambda z: (z.tanh(), z.sum()), has_aux=True)(x)[0],
    "jacrev by parts": lambda x: T.jacrev(lambda z: z.tanh() * z.sum(), chunk_size=2)(x),
    "jacfwd": lambda x: T.jacfwd(lambda z: z.tanh() * z.sum())(x),
    "jacfwd twice": lambda x: T.jacfwd(T.jacfwd(energy))(x),
    "jacfwd of rows": lambda x: T.vmap(T.jacfwd(lambda z: z.sin() * z.sum()))(mat(x)),
    "jacrev of jacfwd": lambda x: T.jacrev(T.jacfwd(energy))(x),
    "jvp": lambda x, z: [*T.jvp(lambda a: a.tanh() * a.sum(), (x,), (x + z,))],
    "jvp of a gradient": lambda x: T.jvp(T.grad(energy), (x,), (x.sin(),))[1],
    "vjp": lambda x: T.vjp(lambda a: a.tanh() * a.sum(), x)[1](x.cos())[0],
    "linearize": lambda x: T.linearize(lambda a: a.tanh() * a.sum(), x)[1](x.cos()),
    "gradient": lambda x: T.grad(energy)(x),
    "gradient and value": lambda x: [*T.grad_and_value(energy)(x)],
    "gradient of rows": lambda x, y: T.vmap(T.grad(lambda a: (a * y.sum()).sin().sum()))(mat(x)),
    "vmap": lambda x, y: T.vmap(lambda a, b: a @ b, in_dims=(0, None))(mat(x), mat(x).mean(0) * y.sum()),
    "vmap of columns": lambda x: T.vmap(lambda a: a.softmax(0), in_dims=1, out_dims=1)(mat(x)),
    "vmap of vmap": lambda x: T.vmap(T.vmap(torch.sin))(mat(x)),
    "vmap by parts": lambda x: T.vmap(lambda a: a.logsumexp(0), chunk_size=1)(mat(x)),
    "steps by the gradient": lambda x: energy(x - 0.1 * T.grad(lambda z: energy(z - 0.1 * T.grad(energy)(z)))(x)),
    "hessian by autograd": lambda x: [
        AF.hessian(energy, x, create_graph=True),
        AF.hessian(energy, x, create_graph=True, vectorize=True),
        AF.hessian(energy, x, vectorize=True, outer_jacobian_strategy="forward-mode").detach(),
    ],
    "jacobian by autograd": lambda x: [
        AF.jacobian(torch.tanh, x, create_graph=True),
        AF.jacobian(torch.tanh, x, create_graph=True, vectorize=True),
    ],
    "products by autograd": lambda x: [
        AF.hvp(energy, x, x.detach().sin(), create_graph=True)[1],
        AF.vhp(energy, x, x.detach().sin(), create_graph=True)[1],
        AF.jvp(torch.tanh, x, x.detach().sin(), create_graph=True)[1],
        AF.vjp(torch.tanh, x, x.detach().sin(), create_graph=True)[1],
    ],
    "dual numbers": dual,
    "cond of a constant": lambda x: H.cond(torch.tensor(x.numel() > 1), torch.sin, torch.cos, (x,)),
    "while_loop of constants": lambda x: H.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a.sin()), (torch.tensor(0), x)
    )[1],
    "scan": lambda x: H.scan(lambda c, a: (c + a.sin(), c * a), mat(x)[0], mat(x))[0],
}


REFUSED = ("bessel_j0", "zeta", "gammainc", "gcd", "frexp", "scan")
"""Cases that no rule covers."""
FAMILIES: dict[str, Cases] = {
    "special functions": SPECIAL,
    "order and scans": ORDER,
    "activations": ACTIVATIONS,
    "losses": LOSSES,
    "types": TYPES,
    "tangents": TANGENTS,
}
