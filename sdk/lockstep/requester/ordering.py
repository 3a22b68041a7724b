"""One call that has a model trained: a job of it on the market's terms, quoted, and opened under a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import amount_of
from lockstep.client import Network, connect
from lockstep.requester.handle import JobHandle

if TYPE_CHECKING:
    from torch import nn

    from lockstep.training.losses import Loss, RandomLoss


def train(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    *,
    budget: str | float,
    loss: Loss | RandomLoss | None = None,
    network: Network | str | None = None,
    **described: Any,
) -> JobHandle:
    """Opens a job that trains a model on data, and returns its handle at once.

    handle = lockstep.train(Net(), "texts", budget="60 LST", rounds=2).wait()

    `model`: a module, or a function that makes one. `data`: a folder or file, a list of texts, integers [N, L], arrays,
    a torch Dataset, or one of Hugging Face's `datasets`. `budget`: the most that leaves the account, in the market's
    token: 60 or "60 LST". `loss(model, rows)` defaults to the model's own, or that of the next token. `network`: a
    market, or its name; default: as every command finds it. `described`: batch, inner_steps, and the keys of a
    description, as rounds, slots, strategy, terms, price, seed (docs/training.md).

    Raises BudgetExceeded, FundsError, UsageError, LoweringError.
    """
    from lockstep.training.given import job_given, made_of
    from lockstep.training.models import describe, is_own

    net = network if isinstance(network, Network) else connect(network)
    cap = amount_of(str(budget), "budget", currency=net.currency)
    if net.terms is not None:
        described.setdefault("terms", net.terms)
    made = made_of(model, described.get("seed", 0))
    job = job_given(made, data, loss=loss, **described)
    handle = net.submit(net.quote(job), budget=cap)
    return replace(handle, own=made) if is_own(describe(made)) else handle
