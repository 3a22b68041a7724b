"""Everyday nets whose widths, heads and batches are no multiples of a vector, on images and text of the demo.

Models that a tuned kernel likes (widths of 16, even batches) hide what it does to the others. `tests/determinism`
trains each of these in every way that a machine has, and `benchmarks/training.py` compares their losses with eager
PyTorch's.
Shapes: B rows, C channels, H x W pixels, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.training.losses import Loss, Model, logits
from lockstep.training.models import GPT, GPTConfig, Llama, LlamaConfig, next_token_loss

SIDE, CLASSES, BYTES = 28, 10, 256


@dataclass(frozen=True)
class Net:
    """A model with its loss and the rows of a step."""

    build: Callable[[], nn.Module]
    loss: Loss
    rows: int
    tokens: int | None = None
    """Tokens of a row of text; None: a row is an image of MNIST and its class."""

    def model(self) -> nn.Module:
        """The model, with the same first weights each time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()


def _conv(i: int, o: int, k: int = 3, s: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU) -> nn.Module:
    parts = [nn.Conv2d(i, o, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*parts, *([act()] if act else []))


class Inverted(nn.Module):
    """MobileNetV2's block: widen six times, a convolution for each channel, narrow (Sandler et al. 2018, figure 4)."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        wide = 6 * i
        self.adds = stride == 1 and i == o
        self.net = nn.Sequential(
            _conv(i, wide, 1, act=nn.ReLU6), _conv(wide, wide, 3, stride, wide, nn.ReLU6), _conv(wide, o, 1, act=None)
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, i, H, W] -> [B, o, H/stride, W/stride]."""
        y_BCHW = self.net(x_BCHW)
        return x_BCHW + y_BCHW if self.adds else y_BCHW


class Pooled(nn.Module):
    """A body of convolutions, the mean over places, and a linear head."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, 1, H, W] -> scores [B, K]."""
        return self.head(self.body(x_BCHW).mean((2, 3)))


class UNet(nn.Module):
    """Two levels down and up, joined on the way (Ronneberger et al. 2015); scores of two kinds of pixels."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.down = _conv(1, width), _conv(width, 2 * width)
        self.deep = _conv(2 * width, 4 * width)
        self.up, self.join = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _conv(4 * width, 2 * width)
        self.last, self.out = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, 2, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, 1, H, W] -> [B, 2, H, W]."""
        high = self.into(x_BCHW)
        middle = self.down(F.max_pool2d(high, 2))
        low = self.deep(F.max_pool2d(middle, 2))
        middle = self.join(torch.cat([middle, self.up(low)], 1))
        return self.out(torch.cat([high, self.last(middle)], 1))


class ConvNeXt(nn.Module):
    """Two stages of one block each (Liu et al. 2022, figure 4)."""

    class Block(nn.Module):
        """A convolution for each channel, then two linear layers over channels."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.place = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm = nn.LayerNorm(width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x_BCHW: Tensor) -> Tensor:
            """[B, C, H, W] -> the same."""
            y_BHWC = self.norm(self.place(x_BCHW).permute(0, 2, 3, 1))
            return x_BCHW + self.narrow(F.gelu(self.widen(y_BHWC))).permute(0, 3, 1, 2)

    def __init__(self, widths: tuple[int, int] = (24, 48)) -> None:
        super().__init__()
        first, second = widths
        self.stem, self.first = nn.Conv2d(1, first, 4, 4), self.Block(first)
        self.halve, self.second = nn.Conv2d(first, second, 2, 2), self.Block(second)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, 1, H, W] -> [B, C, H/8, W/8]."""
        return self.second(self.halve(self.first(self.stem(x_BCHW))))


class Mixer(nn.Module):
    """49 tokens of 4 x 4 pixels, mixed along tokens, then along channels (Tolstikhin et al. 2021)."""

    def __init__(self, width: int = 36) -> None:
        super().__init__()
        self.patch, self.norms = nn.Conv2d(1, width, 4, 4), nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.tokens = nn.Sequential(nn.Linear(49, 20), nn.GELU(), nn.Linear(20, 49))
        self.channels = nn.Sequential(nn.Linear(width, 70), nn.GELU(), nn.Linear(70, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, 1, H, W] -> scores [B, K]."""
        x_BTC = self.patch(x_BCHW).flatten(2).transpose(1, 2)
        x_BTC = x_BTC + self.tokens(self.norms[0](x_BTC).transpose(1, 2)).transpose(1, 2)
        x_BTC = x_BTC + self.channels(self.norms[1](x_BTC))
        return self.head(self.norms[2](x_BTC).mean(1))


class Dense(nn.Module):
    """Three convolutions, each of all that came before it (Huang et al. 2017)."""

    def __init__(self, growth: int = 12) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, 2 * growth, 3, 2, 1)
        self.layers = nn.ModuleList(_conv((2 + i) * growth, growth) for i in range(3))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, 1, H, W] -> [B, 5 growth, H/2, W/2]."""
        x_BCHW = self.into(x_BCHW)
        for layer in self.layers:
            x_BCHW = torch.cat([x_BCHW, layer(x_BCHW)], 1)
        return x_BCHW


class CausalConvolutions(nn.Module):
    """A language model of three causal convolutions over bytes."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] -> scores [B, T, V]."""
        h_BTC = self.embed(tokens_BT)
        for conv in self.convs:
            h_BTC = h_BTC + F.gelu(conv(F.pad(h_BTC.transpose(1, 2), (2, 0)))).transpose(1, 2)
        return self.head(self.norm(h_BTC))


class Recurrent(nn.Module):
    """A language model of one layer that goes through the text byte by byte."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU], width: int = 50) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(BYTES, 27), layer(27, width, batch_first=True)
        self.head = nn.Linear(width, BYTES)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] -> scores [B, T, V]."""
        return self.head(self.layer(self.embed(tokens_BT))[0])


def images_of(rows_BL: Tensor) -> Tensor:
    """[B, H W + 1] -> [B, 1, H, W], -0.5 to 0.5."""
    return (rows_BL[:, :-1].float() / 255 - 0.5).reshape(-1, 1, SIDE, SIDE)


def class_loss(model: Model, rows_BL: Tensor) -> Tensor:
    """Mean cross-entropy of an image's class, nats."""
    return F.cross_entropy(logits(model(images_of(rows_BL))), rows_BL[:, -1].long())


def ink_loss(model: Model, rows_BL: Tensor) -> Tensor:
    """Mean cross-entropy of each pixel: is the one to its right darker than half?"""
    right_BHW = (images_of(rows_BL)[:, 0].roll(-1, 2) > 0).long()
    return F.cross_entropy(logits(model(images_of(rows_BL))), right_BHW)


def _lenet() -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with maxima and ReLU."""
    body = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)]
    return nn.Sequential(*body, nn.Flatten(), *head)


def _mobile() -> nn.Module:
    blocks = [Inverted(16, 24, 2), Inverted(24, 24, 1)]
    return Pooled(nn.Sequential(_conv(1, 16, 3, 2, act=nn.ReLU6), *blocks), 24)


NETS: dict[str, Net] = {
    "lenet-5": Net(_lenet, class_loss, 8),
    "mobilenet-v2 blocks": Net(_mobile, class_loss, 6),
    "u-net": Net(UNet, ink_loss, 3),
    "convnext 24, 48": Net(lambda: Pooled(ConvNeXt(), 48), class_loss, 7),
    "mlp-mixer, 49 tokens": Net(Mixer, class_loss, 9),
    "densenet, growth 12": Net(lambda: Pooled(Dense(), 60), class_loss, 5),
    "causal convolutions": Net(CausalConvolutions, next_token_loss, 8, 65),
    "lstm": Net(lambda: Recurrent(nn.LSTM), next_token_loss, 6, 21),
    "gru": Net(lambda: Recurrent(nn.GRU), next_token_loss, 5, 18),
    "gpt, heads of 20": Net(
        lambda: GPT(GPTConfig(vocabulary=BYTES, context=49, layers=2, heads=3, width=60)), next_token_loss, 5, 50
    ),
    "llama, 5 heads to a key": Net(
        lambda: Llama(
            LlamaConfig(vocabulary=BYTES, context=64, layers=2, heads=10, kv_heads=2, width=60, hidden=100)
        ),
        next_token_loss, 8, 65,
    ),
    "llama, its defaults": Net(lambda: Llama(LlamaConfig()), next_token_loss, 8, 65),
}  # fmt: skip
"""By name."""
