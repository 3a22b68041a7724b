"""Connectionist temporal classification (CTC) as an unrolled recursion (Graves 2006, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError

MAX_STEPS = 512
"""Longest input sequence: a step costs about ten ops, and ten more for its gradient; a Program has at most 2^14."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: Any = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the total probability of all alignments of log_probs [T, B, C] with targets [B, S], or concatenated
    targets. The lengths may depend on data. The gradient equals torch's, which assumes normalised log_probs.
    """
    if log_probs.dim() == 2:
        one = ctc_loss(
            log_probs.unsqueeze(1), targets.reshape(1, -1), _lengths(input_lengths).reshape(1),
            _lengths(target_lengths).reshape(1), blank, "none", zero_infinity,
        )  # fmt: skip
        return _reduced(one, _lengths(target_lengths).reshape(1), reduction).reshape(())
    steps, batch, _ = log_probs.shape
    if steps > MAX_STEPS:
        raise LoweringError(
            f"a CTC loss of {steps} steps", hint=f"at most {MAX_STEPS}: subsample the sequence, or cut it"
        )
    inputs, labels = _lengths(input_lengths), _lengths(target_lengths)
    if targets.dim() == 1:
        targets = _separate(targets, labels, target_lengths)
    # States of the recursion: each label, and a blank before, between and after the labels, 2 S + 1 in all.
    states = 2 * targets.shape[1] + 1
    blanks = torch.full_like(targets, blank)
    path = torch.cat([torch.stack([blanks, targets], 2).view(batch, -1), torch.full_like(targets[:, :1], blank)], 1) \
        if targets.shape[1] else torch.full((batch, 1), blank)  # fmt: skip
    emitted = log_probs.gather(2, path.unsqueeze(0).expand(steps, batch, states))
    place = torch.arange(states)
    before = torch.cat([torch.full_like(path[:, :2], -1), path[:, :-2]], 1)[:, :states]
    skips = (path != blank) & (path != before)
    alpha = torch.where(place < 2, emitted[0], -math.inf)
    for t in range(1, steps):
        one = F.pad(alpha, (1, -1), value=-math.inf)
        two = torch.where(skips, F.pad(alpha, (2, -2), value=-math.inf), -math.inf) if states > 2 else one - math.inf
        following = _log_sum(alpha, one, two) + emitted[t]
        alpha = torch.where((t < inputs).unsqueeze(1), following, alpha)
    ends = (place == 2 * labels.unsqueeze(1)) | (place == 2 * labels.unsqueeze(1) - 1)
    last = torch.where(ends, alpha, -math.inf)
    loss = -_log_sum(*last.unbind(1))
    # As in torch: adds zero to the loss, but gives it the gradient of the total probability.
    spread = log_probs.exp()
    within = (torch.arange(steps).unsqueeze(1) < inputs).unsqueeze(2)
    loss = loss + torch.where(within, spread - spread.detach(), 0.0).sum((0, 2))
    if zero_infinity:
        loss = torch.where(loss.detach() == math.inf, 0.0, loss)
    return _reduced(loss, labels, reduction)


def _lengths(given: Tensor | Sequence[int]) -> Tensor:
    return given if isinstance(given, Tensor) else torch.tensor(given)


def _separate(targets: Tensor, labels: Tensor, given: Tensor | Sequence[int]) -> Tensor:
    """Splits concatenated labels into rows [B, S], where S is the largest length that a target may have."""
    longest = targets.shape[0] if isinstance(given, Tensor) else max(given)
    at = (labels.cumsum(0) - labels).unsqueeze(1) + torch.arange(longest)
    return targets[at.clamp(max=max(targets.shape[0] - 1, 0))]


def _log_sum(*terms: Tensor) -> Tensor:
    """log of a sum of exponentials; -inf with zero gradient where all terms are -inf."""
    peak = terms[0].detach()
    for term in terms[1:]:
        peak = torch.maximum(peak, term.detach())
    none = peak == -math.inf
    peak = torch.where(none, 0.0, peak)
    total = (terms[0] - peak).exp()
    for term in terms[1:]:
        total = total + (term - peak).exp()
    return torch.where(none, -math.inf, torch.where(none, 1.0, total).log() + peak)


def _reduced(loss: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    if reduction in ("none", 0):
        return loss
    return loss.sum() if reduction in ("sum", 2) else (loss / labels.clamp(min=1)).mean()


FORMULAS: dict[Any, Callable[..., Any]] = {F.ctc_loss: ctc_loss, torch.ctc_loss: ctc_loss}
