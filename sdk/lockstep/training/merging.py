"""Merges the buffers that steps write, each by its rule over the accepted slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.training.aggregates.mean import Average
from lockstep.training.parameters import FIRST, LARGEST, MEAN, SMALLEST, Layout


def merged_statistics(layout: Layout, payloads: Sequence[Tensor], mask: Tensor) -> Tensor:
    """f32 [S]: the flat tensors of statistics of all slots as one, each statistic by its rule; zeros if no slot was
    accepted."""
    rules = {s.merge for s in layout.statistics}
    merged = {rule: _merged(rule, payloads, mask) for rule in sorted(rules)}
    if len(rules) == 1:
        return merged[rules.pop()]
    parts = [merged[s.merge][s.offset : s.offset + s.elements] for s in layout.statistics]
    used = sum(part.numel() for part in parts)
    rest = payloads[0].numel() - used
    return torch.cat([*parts, torch.zeros(rest)] if rest else parts)


def _merged(rule: str, payloads: Sequence[Tensor], mask: Tensor) -> Tensor:
    if rule == MEAN:
        return Average().combine([[p] for p in payloads], mask)[0]
    found, heard = payloads[0], mask[0] > 0
    for slot in range(1, len(payloads)):
        mine, accepted = payloads[slot], mask[slot] > 0
        joined = found if rule == FIRST else {LARGEST: torch.maximum, SMALLEST: torch.minimum}[rule](found, mine)
        found = torch.where(accepted, torch.where(heard, joined, mine), found)
        heard = heard | accepted
    return torch.where(heard, found, 0.0)
