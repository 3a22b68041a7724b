"""Strategies by name. A new one is a module here, a line below and a row of
tests/battery/test_strategies.py."""

from __future__ import annotations

from lockstep.training.optimizers import AdamW
from lockstep.training.strategies import diloco
from lockstep.training.strategies.base import Optimizer, Strategy

STRATEGIES: dict[str, type[Strategy]] = {"diloco": diloco.Spec}
OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW}
