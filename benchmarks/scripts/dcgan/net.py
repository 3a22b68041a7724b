"""A DCGAN with two optimizers, on 16 x 16 pictures of crosses."""

import torch
from torch import nn
from torch.func import functional_call

from lockstep.training.job import Batch

SIDE, NZ, BATCH = 16, 16, 16


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


def loss(gan, real):
    real = real.float() / 127.5 - 1
    netG, netD = gan["netG"], gan["netD"]
    fake = netG(torch.randn(len(real), NZ, 1, 1))
    out_real, out_fake = netD(real).view(-1), netD(fake.detach()).view(-1)
    errD = criterion(out_real, torch.ones_like(out_real)) + criterion(out_fake, torch.zeros_like(out_fake))
    frozen = {k: p.detach() for k, p in netD.named_parameters()}
    output = functional_call(netD, frozen, (fake,)).view(-1)
    return errD + criterion(output, torch.ones_like(output))


def make():
    return nn.ModuleDict({"netG": netG, "netD": netD}), loss, Batch(BATCH), pictures()
