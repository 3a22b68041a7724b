"""A graph convolution network (Kipf and Welling 2017) that tells the communities of a graph."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

NODES, CLASSES, FEATURES = 240, 4, 24


def graph():
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(NODES) % CLASSES
    same = labels[:, None] == labels[None]
    edges = torch.rand(NODES, NODES, generator=g) < torch.where(same, 0.06, 0.012)
    edges = (edges | edges.T).float().fill_diagonal_(1.0)
    degree = edges.sum(1).rsqrt()
    x = F.one_hot(labels, FEATURES).float() + torch.randn(NODES, FEATURES, generator=g)
    return x, (degree[:, None] * edges * degree[None]), labels


class GCN(nn.Module):
    def __init__(self, x, adj):
        super().__init__()
        self.w1, self.w2 = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("adj", adj, persistent=False)

    def forward(self):
        h = F.relu(torch.mm(self.adj, self.w1(self.x)))
        h = F.dropout(h, 0.5, training=self.training)
        return torch.mm(self.adj, self.w2(h))


def loss(model, rows):
    output = F.log_softmax(model(), dim=1)
    decay = 2.5e-4 * sum(p.pow(2).sum() for p in model.parameters())  # weight_decay of Adam
    return F.nll_loss(output[rows[:, 0]], rows[:, 1]) + decay


def make():
    x, adj, labels = graph()
    rows = torch.stack([torch.arange(NODES), labels], 1)[::2]
    return GCN(x, adj), loss, Batch(len(rows), 2), rows
