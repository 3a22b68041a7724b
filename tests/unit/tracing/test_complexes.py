"""Rotary embeddings and Fourier transforms by complex numbers, against float64 eager torch; what else is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from tests.unit.tracing.helpers import Case
from tests.unit.tracing.test_gradients import N, both, check

TABLE = torch.polar(torch.ones(12), torch.arange(12) / 5)


def pairs(x: torch.Tensor) -> torch.Tensor:
    """[3, 4] complex numbers."""
    return torch.view_as_complex(x.reshape(3, 4, 2))


def turned(x: torch.Tensor) -> torch.Tensor:
    """As Llama 4 and DeepSeek V2 have it: turned by an angle for each position and channel, and scaled."""
    angles = torch.arange(3)[:, None] * (torch.arange(4) / 4)
    turns = (torch.polar(torch.ones_like(angles), angles) * 0.5).to(x.device)
    y = torch.view_as_real(pairs(x)[:, None] * turns.unsqueeze(1)).flatten(2)
    return y + torch.view_as_real(pairs(x * x) * pairs(x).shape[1]).flatten(1)[:, None]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        turned,
        lambda x: torch.view_as_real(pairs(x) * pairs(x.flip(0))),
        lambda x: torch.view_as_real(x[:4] * pairs(x)),
        lambda x: torch.view_as_real(pairs(x) * TABLE[:4]) + torch.view_as_real(TABLE[4:8] * pairs(x)),
        lambda x: torch.fft.fftn(x.view(2, 3, 4), dim=(1, 2)).real,
        lambda x: torch.view_as_real(torch.fft.fft(x.view(4, 6)) * torch.fft.fft2(x.view(4, 6))),
        lambda x: torch.fft.fft(pairs(x), dim=0).imag,
        lambda x: torch.view_as_real(F.linear(pairs(x), pairs(x.flip(0)), pairs(x * x)[:, 0])),
    ],
    ids=[
        "rotary",
        "a product",
        "times real numbers",
        "a constant table",
        "FNet",
        "transforms",
        "of complex numbers",
        "a layer",
    ],
)
def test_value_and_gradient_are_float64_s(case: Case) -> None:
    check(both(case), 4e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (lambda x: torch.fft.fft(x, norm="unitary").real, "norm 'unitary'"),
        (lambda x: torch.fft.fft(torch.zeros(5000) + x[0]).real, "5000 terms"),
        (lambda x: torch.sort(pairs(x)), "sort of complex numbers"),
        (lambda x: pairs(x).relu(), "relu of complex numbers"),
        (lambda x: torch.view_as_real(pairs(x).to(torch.complex128)), "complex128"),
    ],
)
def test_what_else_is_done_with_them_is_refused(case: Case, message: str) -> None:
    with pytest.raises(LoweringError, match=re.escape(message)) as caught:
        trace(case, torch.zeros(N))
    assert caught.value.hint
