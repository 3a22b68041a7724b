"""Optimizers, which update parameters by a gradient, in a round or once per merge: named in strategies/registry.py."""

from lockstep.training.optimizers.adamw import AdamW
from lockstep.training.optimizers.adaptive import Adam, Yogi
from lockstep.training.optimizers.elementwise import Adagrad, Adan, Lion, NAdam, RAdam, RMSprop
from lockstep.training.optimizers.groups import Groups, RateGroup
from lockstep.training.optimizers.layerwise import LAMB, Adafactor
from lockstep.training.optimizers.muon import Muon
from lockstep.training.optimizers.schedule_free import ScheduleFree
from lockstep.training.optimizers.several import Members, PacedPart, Several
from lockstep.training.optimizers.sgd import SGD, Nesterov, SignSGD
from lockstep.training.optimizers.shampoo import Shampoo
from lockstep.training.optimizers.soap import SOAP

__all__ = [
    "LAMB",
    "SGD",
    "SOAP",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adan",
    "Groups",
    "Lion",
    "Members",
    "Muon",
    "NAdam",
    "Nesterov",
    "PacedPart",
    "RAdam",
    "RMSprop",
    "RateGroup",
    "ScheduleFree",
    "Several",
    "Shampoo",
    "SignSGD",
    "Yogi",
]
