"""Operations that torch's own decompositions make of others, of which each has a rule."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import get_decompositions

_A = torch.ops.aten
DECOMPOSED: dict[Any, Any] = get_decompositions(
    [
        _A.addmv, _A.addr, _A.block_diag, _A.diag_embed, _A.index_copy, _A.linalg_cross, _A.narrow_copy, _A.rot90,
        _A.trace, _A.vdot,
    ]
)  # fmt: skip
"""Aten operation to its decomposition. An operation that has a rule must not be here."""
