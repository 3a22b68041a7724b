"""A recommender as DLRM (Naumov 2019): numbers and categories of a click, sums of embeddings, dot interactions."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

NUMBERS, TABLES, HOT, ROWS, DIM, BATCH = 6, 4, 3, 40, 8, 32


def clicks(n=2048):
    """Numbers f32 [n, NUMBERS], categories i64 [n, TABLES, HOT], clicked f32 [n]."""
    g = torch.Generator().manual_seed(1)
    numbers = torch.randn(n, NUMBERS, generator=g)
    categories = torch.randint(0, ROWS, (n, TABLES, HOT), generator=g)
    taste = torch.randn(TABLES, ROWS, generator=g)
    score = numbers[:, 0] + sum(taste[t][categories[:, t]].mean(-1) for t in range(TABLES))
    return numbers, categories, (torch.rand(n, generator=g) < torch.sigmoid(2 * score)).float()


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(TABLES)])
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 16), nn.ReLU(), nn.Linear(16, DIM), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(DIM + pairs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers, categories):
        dense = self.bottom(numbers)
        found = [bag(categories[:, t]) for t, bag in enumerate(self.bags)]
        stacked = torch.stack([dense, *found], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        li, lj = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        return self.top(torch.cat([dense, products[:, li, lj]], 1)).squeeze(1)


def loss(model, rows):
    numbers, categories, clicked = rows
    return F.binary_cross_entropy_with_logits(model(numbers, categories), clicked)


def make():
    return DLRM(), loss, Batch(BATCH), clicks()
