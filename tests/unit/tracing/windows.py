"""Cases of convolution, pooling, batch and group norm."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.unit.tracing.helpers import Case, grad_of, m, ramp


def images(x: torch.Tensor) -> torch.Tensor:
    """[2, 4, 3, 3] out of 24 numbers."""
    return torch.cat([x, x.flip(0) * 2, x * x]).view(2, 4, 3, 3)


def lines(x: torch.Tensor) -> torch.Tensor:
    """[2, 2, 6]."""
    return x.view(2, 2, 6)


def weights(*shape: int) -> torch.Tensor:
    """Of both signs."""
    return ramp(torch.Size(shape).numel()).mul(40).sin().view(shape)


def own(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Weights that depend on the input, of at most 72 elements."""
    return torch.cat([x * 2, x.flip(0), x * x])[: torch.Size(shape).numel()].view(shape)


WINDOWS: dict[str, Case] = {
    "convolution": lambda x: [
        F.conv2d(images(x), weights(6, 4, 2, 2), ramp(6)).reshape(-1),
        F.conv2d(images(x), weights(6, 4, 1, 1)).reshape(-1),
        F.conv2d(images(x), weights(6, 4, 3, 3), padding=1).reshape(-1),
        F.conv2d(images(x), weights(8, 2, 3, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2).reshape(-1),
        F.conv2d(images(x), weights(4, 1, 3, 3), padding="same", groups=4).reshape(-1),
        F.conv1d(lines(x), weights(3, 2, 3), stride=2, padding=1).reshape(-1),
    ],
    "convolution backward": lambda x: [
        grad_of(lambda y: F.conv2d(images(y), own(y, 2, 4, 3, 3), y[:2], padding=1))(x),
        grad_of(lambda y: F.conv2d(images(y), own(y, 4, 2, 3, 3), y[:4], (2, 1), (1, 2), (1, 2), groups=2))(x),
        grad_of(lambda y: F.conv2d(images(y), own(y, 4, 1, 3, 3), padding=1, groups=4))(x),
        grad_of(lambda y: F.conv1d(lines(y), own(y, 3, 2, 3), y[:3], stride=2, padding=1))(x),
    ],
    "patches": lambda x: [
        grad_of(lambda y: F.conv2d(images(y), own(y, 3, 4, 2, 2), y[:3], stride=2))(x),
        grad_of(lambda y: F.conv2d(images(y), own(y, 6, 2, 3, 1), stride=(3, 1), groups=2))(x),
    ],
    "transposed convolution": lambda x: [
        F.conv_transpose2d(images(x), weights(4, 3, 3, 3), ramp(3), stride=2, padding=1, output_padding=1).reshape(-1),
        grad_of(lambda y: F.conv_transpose2d(images(y), own(y, 4, 1, 3, 3), y[:2], 2, 1, 1, groups=2))(x),
    ],
    "largest of windows": lambda x: [
        F.max_pool2d(images(x), 2).reshape(-1),
        F.max_pool2d(images(x), 2, ceil_mode=True).reshape(-1),
        F.max_pool2d(images(x), 3, 2, 1).reshape(-1),
        F.max_pool2d(images(x), 2, 1, return_indices=True)[1].reshape(-1).float(),
        F.max_pool1d(lines(x), 2).reshape(-1),
        grad_of(lambda y: F.max_pool2d(images(y), 2))(x),
        grad_of(lambda y: F.max_pool2d(images(y)[0], 2, ceil_mode=True))(x),
        grad_of(lambda y: F.max_pool2d(images(y), 3, 2, 1))(x),
        grad_of(lambda y: F.max_pool1d(lines(y), 3, 1, 1, 2))(x),
    ],
    "means of windows": lambda x: [
        F.avg_pool2d(images(x), 2).reshape(-1),
        F.avg_pool2d(images(x), 2, ceil_mode=True).reshape(-1),
        F.avg_pool2d(images(x)[1], 3, 2, 1).reshape(-1),
        F.avg_pool2d(images(x), 3, 2, 1, count_include_pad=False).reshape(-1),
        F.avg_pool2d(images(x), 2, divisor_override=3).reshape(-1),
        F.avg_pool1d(lines(x), 3).reshape(-1),
        grad_of(lambda y: F.avg_pool2d(images(y), 2))(x),
        grad_of(lambda y: F.avg_pool2d(images(y), 3, 2, 1, count_include_pad=False))(x),
    ],
    "means that cover the input": lambda x: [
        F.adaptive_avg_pool2d(images(x), 1).reshape(-1),
        F.adaptive_avg_pool2d(images(x), (2, 3)).reshape(-1),
        F.adaptive_avg_pool1d(lines(x), 4).reshape(-1),
        grad_of(lambda y: F.adaptive_avg_pool2d(images(y), 1))(x),
        grad_of(lambda y: F.adaptive_avg_pool2d(images(y), (2, 1)))(x),
    ],
    "batch norm": lambda x: [
        F.batch_norm(images(x), None, None, ramp(4), ramp(4), True).reshape(-1),
        F.batch_norm(m(x), x[:6], x[6:12].abs() + 1, None, x[:6]).reshape(-1),
        grad_of(lambda y: F.batch_norm(images(y), None, None, y[:4], y[4:8], True))(x),
        grad_of(lambda y: F.batch_norm(m(y), ramp(6), ramp(6), y[:6], y[4:10]))(x),
        grad_of(lambda y: F.batch_norm(lines(y), None, None, training=True))(x),
    ],
    "group norm": lambda x: [
        F.group_norm(images(x), 2, ramp(4), ramp(4)).reshape(-1),
        grad_of(lambda y: F.group_norm(images(y), 2, y[:4], y[4:8]))(x),
        grad_of(lambda y: F.group_norm(images(y), 4))(x),
        grad_of(lambda y: F.instance_norm(lines(y), weight=y[:2], bias=y[2:4]))(x),
    ],
}
