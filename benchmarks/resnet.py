"""A residual network with batch norm for images of 32 x 32, as benchmarks train it (He et al. 2015, section 4.2).

Images are dataset rows as those of `models/cnn.py`. Shapes: B rows, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.training.models.cnn import CNNConfig


class Residual(nn.Module):
    """Two convolutions 3 x 3 and a shortcut around them, which is a convolution 1 x 1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )  # fmt: skip

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, outputs, H/stride, W/stride]."""
        y_BCHW = F.relu(self.first_norm(self.first(x_BCHW)))
        return F.relu(self.second_norm(self.second(y_BCHW)) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """Stages of blocks at `width`, 2 `width`, ... channels; each stage after the first halves height and width."""

    def __init__(self, config: CNNConfig, stages: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.stem = nn.Conv2d(config.channels, width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, count in enumerate(stages):
            for i in range(count):
                outputs = width << stage
                blocks.append(Residual(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, config.classes)

    def forward(self, pixels_BN: Tensor) -> Tensor:
        """i64 [B, N] of 0 .. 255 -> f32 [B, K]."""
        size = self.config.size
        x_BHWC = (pixels_BN.to(torch.float32) / 255 - 0.5).view(-1, size, size, self.config.channels)
        x_BCHW = F.relu(self.stem_norm(self.stem(x_BHWC.permute(0, 3, 1, 2))))
        return self.head(self.blocks(x_BCHW).mean((2, 3)))
