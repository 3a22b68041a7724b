"""Rows that data send to groups, against float64 eager torch; what else is done with them is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from tests.unit.tracing.helpers import Case, m
from tests.unit.tracing.test_gradients import N, both, check

GROUPS = 3


def routed(x: torch.Tensor, bias: bool = False) -> torch.Tensor:
    """Rows [4, 6], each to one of three groups by its first elements, times the group's matrix, in its old place."""
    rows = m(x)
    chosen = (rows.detach()[:, 0] > 0).to(torch.int64) + (rows.detach()[:, 1] > 0)
    order = chosen.sort(stable=True).indices
    counts = F.one_hot(chosen, GROUPS).sum(0).tolist()
    weights = torch.stack([m(x)[:2] * (i + 1) + i for i in range(GROUPS)])
    parts = rows[order].split(counts, dim=0)
    made = [F.linear(part, weights[i], x[i : i + 2] if bias else None) for i, part in enumerate(parts)]
    return torch.zeros(4, 2).index_add(0, order, torch.cat(made, dim=0))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", [routed, lambda x: routed(x, bias=True)], ids=["plain", "with a bias"])
def test_value_and_gradient_are_float64_s(case: Case) -> None:
    check(both(case), 4e-6)


def test_split_by_known_counts_stays_torch_s() -> None:
    check(both(lambda x: torch.cat([p * p for p in x.split(torch.tensor([4, 8, 12]).tolist())])), 4e-6)


def _counts(x: torch.Tensor) -> list[int]:
    return F.one_hot((x > 0).to(torch.int64), 2).sum(0).tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (lambda x: x.new_zeros(_counts(x)[0]), "tolist of a tensor that depends on data"),
        (lambda x: x.split(_counts(x))[0] * 2, "mul of rows that depend on data"),
        (lambda x: torch.cat([*(x.split(_counts(x))), x]), "joined with other tensors"),
        (lambda x: torch.cat(x.split(_counts(x))[::-1]), "in another order"),
        (lambda x: torch.cat(x.split(_counts(x))[:1]), "in another order"),
        (lambda x: torch.cat([x.split(_counts(x))[0], x.split(_counts(x))[1]]), "in another order"),
        (lambda x: m(x).split(_counts(x), dim=1)[0], "axis 1"),
    ],
)
def test_what_else_is_done_with_them_is_refused(case: Case, message: str) -> None:
    with pytest.raises(LoweringError, match=re.escape(message)) as caught:
        trace(case, torch.zeros(N))
    assert caught.value.hint
