"""Optimizers, by which a gradient moves parameters, within a round or once a merge: named in strategies/registry.py."""

from lockstep.training.optimizers.adamw import AdamW
from lockstep.training.optimizers.adaptive import Adam, Yogi
from lockstep.training.optimizers.muon import Muon
from lockstep.training.optimizers.sgd import SGD, Nesterov, SignSGD

__all__ = ["SGD", "Adam", "AdamW", "Muon", "Nesterov", "SignSGD", "Yogi"]
