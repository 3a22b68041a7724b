"""Strategies by name. A new one is a module here, a line below and a row of
tests/battery/test_strategies.py."""

from __future__ import annotations

from lockstep.training.optimizers import SGD, Adam, AdamW, Muon, Nesterov, SignSGD, Yogi
from lockstep.training.strategies import (
    allreduce,
    cocktail,
    demo,
    diloco,
    fedavg,
    muloco,
    onebit,
    opendiloco,
    sparseloco,
)
from lockstep.training.strategies.base import Optimizer, Strategy

STRATEGIES: dict[str, type[Strategy]] = {
    "diloco": diloco.Spec,
    "allreduce": allreduce.AllReduce,
    "fedavg": fedavg.FedAvg,
    "fedadam": fedavg.FedAdam,
    "fedyogi": fedavg.FedYogi,
    "photon": fedavg.Photon,
    "opendiloco": opendiloco.OpenDiLoCo,
    "intellect1": opendiloco.Intellect1,
    "sparseloco": sparseloco.SparseLoCo,
    "sparseloco_e": sparseloco.SparseLoCoE,
    "muloco": muloco.MuLoCo,
    "demo": demo.DeMo,
    "distro": demo.DisTrO,
    "cocktail": cocktail.Cocktail,
    "onebit": onebit.OneBit,
}
OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "nesterov": Nesterov,
    "sign_sgd": SignSGD,
    "adam": Adam,
    "yogi": Yogi,
    "muon": Muon,
}
