"""A graph convolution network (Kipf and Welling 2017) that tells the communities of a graph."""

import torch
from torch import nn
from torch.nn import functional as F

NODES, CLASSES, FEATURES, EPOCHS = 240, 4, 24, 200
device = "cuda" if torch.cuda.is_available() else "cpu"


def graph():
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(NODES) % CLASSES
    same = labels[:, None] == labels[None]
    edges = torch.rand(NODES, NODES, generator=g) < torch.where(same, 0.06, 0.012)
    edges = (edges | edges.T).float().fill_diagonal_(1.0)
    degree = edges.sum(1).rsqrt()
    x = F.one_hot(labels, FEATURES).float() + torch.randn(NODES, FEATURES, generator=g)
    return x, (degree[:, None] * edges * degree[None]).to_sparse(), labels


class GCN(nn.Module):
    def __init__(self, x, adj):
        super().__init__()
        self.w1, self.w2 = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("adj", adj, persistent=False)

    def forward(self):
        h = F.relu(torch.sparse.mm(self.adj, self.w1(self.x)))
        h = F.dropout(h, 0.5, training=self.training)
        return torch.sparse.mm(self.adj, self.w2(h))


if __name__ == "__main__":
    torch.manual_seed(0)
    x, adj, labels = graph()
    model, labels = GCN(x, adj).to(device), labels.to(device)
    idx_train = torch.arange(0, NODES, 2, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        output = F.log_softmax(model(), dim=1)
        loss = F.nll_loss(output[idx_train], labels[idx_train])
        loss.backward()
        optimizer.step()
        if epoch % 50 == 49:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    torch.save(model.state_dict(), "ckpt.pt")
