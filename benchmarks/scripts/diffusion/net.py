"""A small U-Net that learns to take noise away (DDPM), on 16 x 16 pictures of discs."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

T, SIDE, BATCH = 100, 16, 16


def pictures(n=1024):
    g = torch.Generator().manual_seed(1)
    at = torch.arange(SIDE).float()
    x, y, r = (torch.rand(n, 1, 1, generator=g) * k + 3 for k in (10, 10, 3))
    inside = (at[None, :, None] - y) ** 2 + (at[None, None, :] - x) ** 2 < r**2
    return (inside[:, None] * 255).to(torch.uint8)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, emb=32):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.emb = nn.Linear(emb, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = ResBlock(width, 2 * width)
        self.middle = ResBlock(2 * width, 2 * width)
        self.up = ResBlock(3 * width, width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        betas = torch.linspace(1e-4, 0.05, T)
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, 0))

    def forward(self, x, t):
        freqs = torch.exp(-torch.arange(16, device=x.device) * 0.6)
        angles = t[:, None].float() * freqs[None]
        emb = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        a = self.first(x)
        b = self.down(F.avg_pool2d(a, 2), emb)
        b = F.interpolate(self.middle(b, emb), scale_factor=2, mode="nearest")
        return self.last(self.up(torch.cat([a, b], 1), emb))


def p_losses(model, x0):
    x0 = x0.float() / 127.5 - 1
    t = torch.randint(0, T, (x0.shape[0],), device=x0.device)
    noise = torch.randn_like(x0)
    a = model.alphas_cumprod[t][:, None, None, None]
    return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)


def make():
    return UNet(), p_losses, Batch(BATCH), pictures()
