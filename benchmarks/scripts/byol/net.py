"""BYOL (Grill 2020): a network predicts what its own moving average sees in another view of a picture."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

SIDE, DIM, TAU, BATCH = 16, 32, 0.98, 16


def pictures(n=1024):
    g = torch.Generator().manual_seed(1)
    at = torch.arange(SIDE).float()
    x, y, r = (torch.rand(n, 1, 1, generator=g) * k + 3 for k in (10, 10, 3))
    inside = (at[None, :, None] - y) ** 2 + (at[None, None, :] - x) ** 2 < r**2
    return (inside[:, None] * 255).to(torch.uint8)


def encoder():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, DIM),
    )  # fmt: skip


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.predictor = encoder(), nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def update_target(self):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data.mul_(TAU).add_(p.data, alpha=1 - TAU)

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return 4 - 2 * F.cosine_similarity(pa, tb).mean() - 2 * F.cosine_similarity(pb, ta).mean()


def augment(x):
    x = x.float() / 255
    x = torch.where(torch.rand(x.shape[0], 1, 1, 1, device=x.device) < 0.5, x.flip(-1), x)
    return x * (0.7 + 0.6 * torch.rand(x.shape[0], 1, 1, 1, device=x.device)) + 0.1 * torch.randn_like(x)


def loss(model, x):
    model.update_target()
    return model(augment(x), augment(x))


def make():
    return BYOL(), loss, Batch(BATCH), pictures()
