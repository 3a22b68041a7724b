"""Masked language modelling: a tenth of the tokens is hidden, the loss is over those alone."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

LENGTH, WIDTH, VOCAB, MASK, BATCH = 32, 48, 129, 128, 8


def sentences():
    data = torch.frombuffer(bytearray(Path(__file__).with_name("input.txt").read_bytes()), dtype=torch.uint8)
    return data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH).long()


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(self.encoder(self.tokens(ids) + self.positions.weight[None]))


def mlm_loss(model, ids):
    masked = torch.rand(ids.shape, device=ids.device) < 0.15
    inputs = ids.masked_fill(masked, MASK)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), ids.masked_fill(~masked, -100).flatten())


def make():
    return Bert(), mlm_loss, Batch(BATCH, LENGTH), sentences()
