"""Strategies by name. A new one is a module here, a line below and a row of
tests/battery/test_strategies.py."""

from __future__ import annotations

from lockstep.base.naming import nearest
from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers import (
    LAMB,
    SGD,
    SOAP,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Adan,
    Lion,
    Muon,
    NAdam,
    Nesterov,
    RAdam,
    RMSprop,
    ScheduleFree,
    Several,
    Shampoo,
    SignSGD,
    Yogi,
)
from lockstep.training.strategies import (
    allreduce,
    cocktail,
    demo,
    diloco,
    distro,
    fedadam,
    fedavg,
    fedyogi,
    intellect1,
    muloco,
    onebit,
    opendiloco,
    photon,
    sparseloco,
    sparseloco_e,
)
from lockstep.training.strategies.base import Optimizer, Strategy

STRATEGIES: dict[str, type[Strategy]] = {
    "diloco": diloco.DiLoCo,
    "allreduce": allreduce.AllReduce,
    "fedavg": fedavg.FedAvg,
    "fedadam": fedadam.FedAdam,
    "fedyogi": fedyogi.FedYogi,
    "photon": photon.Photon,
    "opendiloco": opendiloco.OpenDiLoCo,
    "intellect1": intellect1.Intellect1,
    "sparseloco": sparseloco.SparseLoCo,
    "sparseloco_e": sparseloco_e.SparseLoCoE,
    "muloco": muloco.MuLoCo,
    "demo": demo.DeMo,
    "distro": distro.DisTrO,
    "cocktail": cocktail.Cocktail,
    "onebit": onebit.OneBit,
}


def strategy_named(name: str) -> type[Strategy]:
    """Returns the strategy of a name; raises UsageError if there is none."""
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r} is unknown", nearest(name, STRATEGIES))
    return STRATEGIES[name]


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "nesterov": Nesterov,
    "sign_sgd": SignSGD,
    "adam": Adam,
    "yogi": Yogi,
    "muon": Muon,
    "lion": Lion,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "nadam": NAdam,
    "radam": RAdam,
    "adan": Adan,
    "lamb": LAMB,
    "adafactor": Adafactor,
    "shampoo": Shampoo,
    "soap": SOAP,
    "schedule_free": ScheduleFree,
    "several": Several,
}
