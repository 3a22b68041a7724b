"""Masked language modelling: a tenth of the tokens is hidden, the loss is over those alone."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

LENGTH, WIDTH, VOCAB, MASK, STEPS, BATCH = 32, 48, 129, 128, 300, 8
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


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
    return F.cross_entropy(logits[masked], ids[masked])


if __name__ == "__main__":
    model = Bert().to(device)
    loader = DataLoader(sentences(), batch_size=BATCH, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, (STEPS - s) / (STEPS - 30)))
    step = 0
    while step < STEPS:
        for ids in loader:
            loss = mlm_loss(model, ids.to(device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            if step == STEPS:
                break
    torch.save(model.state_dict(), "ckpt.pt")
