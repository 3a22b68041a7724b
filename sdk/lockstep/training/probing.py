"""Probes a model's forward pass with one row of tokens, to find out if it predicts the next token and so has a loss.

not_next_token(model, row, vocabulary)      "" if it does; else the reason why not
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.training.losses import logits

CONTEXTS = ("context", "block_size", "max_position_embeddings", "n_positions")
"""Attributes in which models, or their configurations, declare their context length."""


def context_of(model: nn.Module) -> int | None:
    """Returns a model's declared context length; None if it declares none."""
    for holder in (getattr(model, "config", None), model):
        for name in CONTEXTS:
            found = getattr(holder, name, None)
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return None


def not_next_token(model: nn.Module, row: Sequence[int], vocabulary: int) -> str:
    """Returns why a model does not predict the next token of rows of tokens; "" if it does.

    Its logits are [1, T, V] for tokens i64 [1, T], V is `vocabulary` at least, and none depends on a later token, with
    its weights or with others. The model is left as it was.
    """
    inputs_T = torch.tensor(list(row)[:-1] or [0])
    changed_T = inputs_T.clone()
    changed_T[-1] = (changed_T[-1] + 1) % max(vocabulary, 2)
    try:
        tried = copy.deepcopy(model)
        found = [_scores(tried, tokens_T) for tokens_T in (inputs_T, changed_T)]
        # What begins as zeros mixes no tokens before it is trained.
        _disturb(tried)
        found += [_scores(tried, tokens_T) for tokens_T in (inputs_T, changed_T)]
    except Exception as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        return f"it fails on tokens of shape [1, {len(inputs_T)}]: {type(error).__name__}: {told}"
    first_TV = found[0]
    if first_TV.ndim != 2 or len(first_TV) != len(inputs_T):
        return f"for tokens of shape [1, {len(inputs_T)}] it returns {[1, *first_TV.shape]}, not logits [1, T, V]"
    if first_TV.shape[1] < vocabulary:
        return f"it has logits for {first_TV.shape[1]} tokens, but the data have {vocabulary}"
    for before_TV, after_TV in (found[:2], found[2:]):
        if not torch.allclose(before_TV[:-1], after_TV[:-1], rtol=1e-3, atol=1e-5, equal_nan=True):
            return "its logits at a token change with a later token, so it could just copy its target"
    return ""


def _disturb(model: nn.Module) -> None:
    """Adds random numbers to each trained parameter, as large as typical initial values."""
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_((torch.randn(p.shape, generator=dice) / max(1, p.shape[-1:].numel()) ** 0.5).to(p))


def _scores(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Returns [T, V]: the logits of one row, with the same random numbers in every call."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        found: Any = logits(model(tokens_T[None]))
    if not isinstance(found, Tensor):
        raise TypeError(f"it returns {type(found).__name__}")
    return found[0].float()
