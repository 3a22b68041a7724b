"""Speech recognition by CTC: frames of filter banks, a recurrent network, letters."""

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.training.job import Batch

FRAMES, BANKS, LETTERS, LONGEST, BATCH = 24, 12, 8, 5, 8


def utterances(n=512):
    """Features f32 [n, FRAMES, BANKS], letters i64 [n, LONGEST] from 1, their number i64 [n]."""
    g = torch.Generator().manual_seed(1)
    sounds = torch.randn(LETTERS + 1, BANKS, generator=g)
    lengths = torch.randint(2, LONGEST + 1, (n,), generator=g)
    letters = torch.randint(1, LETTERS + 1, (n, LONGEST), generator=g)
    letters[torch.arange(LONGEST) >= lengths[:, None]] = 0
    at = torch.arange(FRAMES) * LONGEST // FRAMES
    features = sounds[letters[:, at]] + 0.3 * torch.randn(n, FRAMES, BANKS, generator=g)
    return features, letters, lengths


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(BANKS, 32, 3, padding=1)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, LETTERS + 1)

    def forward(self, x):
        h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0]).log_softmax(-1)


def ctc(model, features, letters, lengths):
    log_probs = model(features).transpose(0, 1)
    frames = torch.full((features.shape[0],), FRAMES, dtype=torch.long)
    return F.ctc_loss(log_probs, letters, frames, lengths)


def make():
    return Recogniser(), lambda model, rows: ctc(model, *rows), Batch(BATCH), utterances()
