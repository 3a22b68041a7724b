"""A DCGAN with two optimizers, on 16 x 16 pictures of crosses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE, NZ, EPOCHS, BATCH = 16, 16, 4, 16
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def pictures(n=1024):
    g = torch.Generator().manual_seed(1)
    at = torch.arange(SIDE)
    x, y = (torch.randint(4, SIDE - 4, (n, 1, 1), generator=g) for _ in range(2))
    cross = (at[None, :, None] == y) | (at[None, None, :] == x)
    return (cross[:, None] * 255).to(torch.uint8)


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight.data, 0.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(NZ, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 1, 4, 1, 0, bias=False),
)  # fmt: skip
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()


if __name__ == "__main__":
    netG, netD = netG.to(device), netD.to(device)
    loader = DataLoader(TensorDataset(pictures()), batch_size=BATCH, shuffle=True, drop_last=True)
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for epoch in range(EPOCHS):
        for (real,) in loader:
            real = real.to(device).float() / 127.5 - 1
            netD.zero_grad()
            fake = netG(torch.randn(len(real), NZ, 1, 1, device=device))
            out_real, out_fake = netD(real).view(-1), netD(fake.detach()).view(-1)
            errD = criterion(out_real, torch.ones_like(out_real)) + criterion(out_fake, torch.zeros_like(out_fake))
            errD.backward()
            optD.step()
            netG.zero_grad()
            output = netD(fake).view(-1)
            errG = criterion(output, torch.ones_like(output))
            errG.backward()
            optG.step()
        print(f"epoch {epoch}: Loss_D {errD.item():.4f} Loss_G {errG.item():.4f}")
    torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, "ckpt.pt")
