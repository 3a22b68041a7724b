"""Patterns of public training code in a few lines each: a scalar function of one flat tensor, traced with its gradient.

Patterns that the tracer refuses are skipped, and compared once they trace.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

SIZE = 1200
"""Number of elements of the input."""

Tensor = torch.Tensor
Pattern = Callable[[Tensor], Tensor]


def cut(x: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Returns the flat input as consecutive tensors of these shapes, starting again at the end."""
    found, at = [], 0
    for shape in shapes:
        n = torch.Size(shape).numel()
        if at + n > len(x):
            at = 0
        found.append(x[at : at + n].view(shape))
        at += n
    return found


def square(y: Tensor) -> Tensor:
    """Returns a loss that treats every element differently."""
    weights = torch.arange(y.numel()).reshape(y.shape) / y.numel() + 0.5
    return (y * y * weights.to(y.dtype)).mean() + (y * weights.to(y.dtype)).mean()


def lenet(x: Tensor) -> Tensor:
    image, a, b, c = cut(x, (2, 1, 14, 14), (6, 1, 5, 5), (7, 6, 3, 3), (5, 28))
    y = F.max_pool2d(F.relu(F.conv2d(image, a, padding=2)), 2)
    return square(F.max_pool2d(F.relu(F.conv2d(y, b)), 2).flatten(1) @ c.t())


def inverted_residual(x: Tensor) -> Tensor:
    image, a, b, c = cut(x, (2, 4, 12, 12), (24, 4, 1, 1), (24, 1, 3, 3), (4, 24, 1, 1))
    y = F.relu6(F.batch_norm(F.conv2d(image, a), None, None, training=True))
    y = F.relu6(F.batch_norm(F.conv2d(y, b, padding=1, groups=24), None, None, training=True))
    return square(image + F.conv2d(y, c))


def unet_head(x: Tensor) -> Tensor:
    image, up, head = cut(x, (2, 6, 6, 6), (6, 3, 2, 2), (2, 9, 1, 1))
    y = torch.cat([F.conv_transpose2d(image, up, stride=2), F.interpolate(image, scale_factor=2)], 1)
    return F.cross_entropy(F.conv2d(y, head), torch.arange(288).reshape(2, 12, 12) % 2)


def diffusion_head(x: Tensor) -> Tensor:
    image, w = cut(x, (2, 8, 8, 8), (3, 8, 3, 3))
    return square(F.conv2d(F.silu(F.group_norm(image, 4)), w, padding=1))


def dense_block(x: Tensor) -> Tensor:
    image, a, b = cut(x, (2, 3, 10, 10), (12, 3, 3, 3), (12, 15, 1, 1))
    y = torch.cat([image, F.conv2d(F.relu(image), a, padding=1)], 1)
    return square(F.conv2d(F.relu(y), b).mean((2, 3)))


def mixer(x: Tensor) -> Tensor:
    y, a, b, c = cut(x, (3, 49, 6), (12, 49), (49, 12), (6, 6))
    y = y + (F.gelu(F.layer_norm(y, (6,)).transpose(1, 2) @ a.t()) @ b.t()).transpose(1, 2)
    return square(y + F.linear(y, c))


def causal_convolution(x: Tensor) -> Tensor:
    y, w = cut(x, (2, 40, 8), (12, 8, 3))
    return square(F.conv1d(F.pad(y.transpose(1, 2), (2, 0)), w).transpose(1, 2))


def convnext(x: Tensor) -> Tensor:
    image, depth, up, down = cut(x, (1, 8, 8, 8), (8, 1, 3, 3), (16, 8), (8, 16))
    y = F.layer_norm(F.conv2d(image, depth, padding=1, groups=8).permute(0, 2, 3, 1), (8,))
    return square(image + F.linear(F.gelu(F.linear(y, up)), down).permute(0, 3, 1, 2))


def small_places(x: Tensor) -> Tensor:
    image, a, b = cut(x, (1, 8, 2, 2), (8, 8, 3, 3), (8, 8, 3, 3))
    return square(F.conv2d(F.relu(F.conv2d(image, a, padding=1)), b, padding=1))


def rotary_attention(x: Tensor) -> Tensor:
    q, k, v = cut(x, (2, 7, 3, 4), (2, 7, 1, 4), (2, 7, 1, 4))
    angle = torch.arange(7)[:, None, None] * torch.tensor([1.0, 0.1])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def turned(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    q, k, v = turned(q), turned(k).expand(2, 7, 3, 4), v.expand(2, 7, 3, 4)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    return square(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v))


def lstm(x: Tensor) -> Tensor:
    y, wi, wh = cut(x, (4, 6, 5), (12, 5), (12, 3))
    h = c = y[:, 0, :3] * 0
    for t in range(6):
        i, f, g, o = (F.linear(y[:, t], wi) + F.linear(h, wh)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return square(h)


def table_kept(x: Tensor) -> Tensor:
    """A cached table of cosines, as in rotary embeddings."""
    (y,) = cut(x, (9, 8))
    return square(y * torch.arange(8).float().cos().to(x.dtype))


def mask_of_constants(x: Tensor) -> Tensor:
    (y,) = cut(x, (8, 6))
    return (y @ y.t())[~torch.eye(8, dtype=torch.bool)].logsumexp(0)


def inner_gradient(x: Tensor) -> Tensor:
    w, y, z = cut(x, (3, 8), (5, 8), (5, 3))
    (g,) = torch.autograd.grad(F.mse_loss(F.linear(y, w), z), w, create_graph=True)
    return F.mse_loss(F.linear(y * 2, w - 0.1 * g), z)


def embedding_bag(x: Tensor) -> Tensor:
    (table,) = cut(x, (16, 6))
    return square(F.embedding_bag(torch.arange(24).reshape(6, 4) * 7 % 16, table, mode="sum"))


def negative_binomial(x: Tensor) -> Tensor:
    (y,) = cut(x, (12, 2))
    d = torch.distributions.NegativeBinomial(F.softplus(y[:, 0]) + 1e-1, logits=y[:, 1], validate_args=False)
    return -d.log_prob((torch.arange(12) % 10).to(x.dtype)).mean()


def ctc(x: Tensor) -> Tensor:
    (y,) = cut(x, (6, 3, 5))
    return F.ctc_loss(y.log_softmax(-1), torch.tensor([[1, 2]] * 3), torch.full((3,), 6), torch.full((3,), 2))


def volume(x: Tensor) -> Tensor:
    y, w = cut(x, (2, 1, 4, 4, 4), (2, 1, 2, 2, 2))
    return square(F.conv3d(y, w))


def distances(x: Tensor) -> Tensor:
    a, b = cut(x, (7, 4), (6, 4))
    return square(torch.cdist(a, b + 3))


def warp(x: Tensor) -> Tensor:
    grid, image = cut(x, (2, 3, 3, 2), (2, 1, 5, 5))
    return square(F.grid_sample(image, grid.tanh(), align_corners=False))


def spectrum(x: Tensor) -> Tensor:
    (y,) = cut(x, (6, 8))
    return torch.fft.rfft(y).abs().mean()


def log_determinant(x: Tensor) -> Tensor:
    (y,) = cut(x, (6, 4))
    return torch.logdet(y.t() @ y + torch.eye(4, dtype=x.dtype))


def experts(x: Tensor) -> Tensor:
    """A mixture whose gate weighs all experts."""
    y, gate, up = cut(x, (10, 6), (3, 6), (3, 4, 6))
    return square((F.linear(y, gate).softmax(-1)[:, :, None] * torch.einsum("nd,eod->neo", y, up)).sum(1))


def gaussian_likelihood(x: Tensor) -> Tensor:
    mean, spread, due = cut(x, (8, 2), (8, 2), (8, 2))
    variance = F.softplus(spread) + 0.1
    return 0.5 * (variance.log() + (due - mean) ** 2 / variance).mean()


def hessian(x: Tensor) -> Tensor:
    """The Laplacian of a small network, by two gradients."""
    points, a, b = cut(x, (5, 2), (8, 2), (1, 8))
    points = points.clone().requires_grad_()
    y = torch.tanh(points @ a.t()) @ b.t()
    (first,) = torch.autograd.grad(y.sum(), points, create_graph=True)
    found = y.sum() * 0
    for i in range(2):
        (second,) = torch.autograd.grad(first[:, i].sum(), points, create_graph=True)
        found = found + second[:, i].pow(2).mean()
    return found


def channels_last_pool(x: Tensor) -> Tensor:
    (y,) = cut(x, (2, 4, 4, 3))
    return square(F.adaptive_avg_pool2d(y.permute(0, 3, 1, 2), 1).flatten(1))


def contrastive(x: Tensor) -> Tensor:
    a, b = cut(x, (8, 6), (8, 6))
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() * 5
    return (F.cross_entropy(logits, torch.arange(8)) + F.cross_entropy(logits.t(), torch.arange(8))) / 2


PATTERNS: dict[str, Pattern] = {
    pattern.__name__: pattern
    for pattern in (
        lenet, inverted_residual, unet_head, diffusion_head, dense_block, mixer, causal_convolution, convnext,
        small_places, rotary_attention, lstm, table_kept, mask_of_constants, inner_gradient, embedding_bag,
        negative_binomial, ctc, volume, distances, warp, spectrum, log_determinant, experts, gaussian_likelihood,
        hessian, channels_last_pool, contrastive,
    )
}  # fmt: skip
