"""Lockstep: training compute in which every float is accountable.

import lockstep
net = lockstep.connect("local")
handle = lockstep.train(Net(), "texts", budget="60 LST")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.client import JobHandle, Network, Quote, TrainingJob, connect, train

__all__ = ["JobHandle", "Network", "Quote", "TrainingJob", "connect", "train"]


def __getattr__(name: str) -> Any:
    # web3 takes more than a second to import: who only wants the protocol does not wait for it.
    if name in __all__:
        from lockstep import client

        return getattr(client, name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
