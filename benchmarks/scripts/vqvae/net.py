"""A VQ-VAE whose codebook is an exponential moving average (van den Oord 2017, appendix A.1)."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

SIDE, CODES, DIM, DECAY, BATCH = 16, 32, 8, 0.95, 16


def pictures(n=1024):
    g = torch.Generator().manual_seed(1)
    at = torch.arange(SIDE).float()
    x, y, r = (torch.rand(n, 1, 1, generator=g) * k + 3 for k in (10, 10, 3))
    inside = (at[None, :, None] - y).abs() + (at[None, None, :] - x).abs() < r
    return (inside[:, None] * 255).to(torch.uint8)


class VectorQuantizerEMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("embedding", torch.randn(CODES, DIM) * 0.1)
        self.register_buffer("cluster_size", torch.ones(CODES))
        self.register_buffer("embed_sum", self.embedding.clone())

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, DIM)
        distances = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embedding.t() + self.embedding.pow(2).sum(1)
        codes = distances.argmin(1)
        one_hot = F.one_hot(codes, CODES).float()
        quantized = F.embedding(codes, self.embedding).view(z.shape[0], *z.shape[2:], DIM).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.cluster_size.mul_(DECAY).add_(one_hot.sum(0), alpha=1 - DECAY)
                self.embed_sum.mul_(DECAY).add_(one_hot.t() @ flat, alpha=1 - DECAY)
                n = self.cluster_size.sum()
                smoothed = (self.cluster_size + 1e-5) / (n + CODES * 1e-5) * n
                self.embedding.copy_(self.embed_sum / smoothed[:, None])
        commitment = F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), commitment


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, DIM, 1)
        )
        self.vq = VectorQuantizerEMA()
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(DIM, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x):
        quantized, commitment = self.vq(self.encoder(x))
        return F.mse_loss(self.decoder(quantized), x) + 0.25 * commitment


def loss(model, x):
    return model(x.float() / 255)


def make():
    return VQVAE(), loss, Batch(BATCH), pictures()
