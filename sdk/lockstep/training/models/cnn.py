"""A small convolutional classifier: two stages of convolution, group norm and pooling, then a linear head.

Images are dataset rows: H x W x channels bytes, row-major, and the class. Shapes: B rows, N = H W channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.losses import Model, logits


@dataclass(frozen=True)
class CNNConfig:
    """The shape of a classifier; `config.json` of an exported model."""

    size: int = 28
    """Height and width of an image."""
    channels: int = 1
    classes: int = 10
    width: int = 16
    """Channels after the first stage, half of those after the second."""
    groups: int = 4
    """Groups of the group norms (Wu and He 2018), which keep no running statistics."""

    def __post_init__(self) -> None:
        if min(self.size, self.channels, self.classes, self.width, self.groups) < 1:
            raise UsageError(f"{self} has a size below 1", "use sizes of at least 1")
        if self.size % 4:
            raise UsageError(
                f"the images have {self.size} x {self.size} pixels", "use a multiple of 4: two stages halve the size"
            )
        if self.width % self.groups:
            raise UsageError(
                f"{self.width} channels do not divide into {self.groups} groups", "make width a multiple of groups"
            )

    @property
    def pixels(self) -> int:
        """N: bytes of an image."""
        return self.size * self.size * self.channels

    @property
    def row_length(self) -> int:
        """Elements of a dataset row: the image, then its class."""
        return self.pixels + 1


class ConvStage(nn.Module):
    """Convolution 3 x 3, norm, ReLU, and the largest of each 2 x 2."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, outputs, H/2, W/2]."""
        return F.max_pool2d(F.relu(self.norm(self.conv(x_BCHW))), 2)


class CNN(nn.Module):
    """A convolutional classifier: maps an image's bytes to the logits of its class."""

    def __init__(self, config: CNNConfig) -> None:
        super().__init__()
        self.config = config
        self.first = ConvStage(config.channels, config.width, config.groups)
        self.second = ConvStage(config.width, 2 * config.width, config.groups)
        self.head = nn.Linear(2 * config.width * (config.size // 4) ** 2, config.classes)

    def forward(self, pixels_BN: Tensor) -> Tensor:
        """i64 [B, N] of 0 .. 255 -> f32 [B, K]."""
        size = self.config.size
        x_BHWC = (pixels_BN.to(torch.float32) / 255 - 0.5).view(-1, size, size, self.config.channels)
        x_BCHW = self.second(self.first(x_BHWC.permute(0, 3, 1, 2)))
        return self.head(x_BCHW.flatten(1))

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight: sqrt(2 / inputs) before a ReLU (He 2015, equation 10)."""
        inputs = 1
        for extent in shape[1:]:
            inputs *= extent
        return ((1.0 if name.startswith("head") else 2.0) / inputs) ** 0.5


def image_loss(model: Model, rows_BL: Tensor) -> Tensor:
    """Mean cross-entropy, nats per image; the last element of a row is the class."""
    return F.cross_entropy(logits(model(rows_BL[:, :-1])), rows_BL[:, -1].long())
