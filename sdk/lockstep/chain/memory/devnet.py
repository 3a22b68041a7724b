"""A local chain in memory: `chain.devnet.Devnet` without a process."""

from __future__ import annotations

from types import TracebackType

from lockstep.chain.devnet import CHAIN_ID, Local
from lockstep.chain.memory.chain import GENESIS_TIME, Chain, Manners
from lockstep.chain.memory.machine import Machine
from lockstep.chain.memory.rpc import MemoryProvider
from lockstep.protocol.game import Arbiter
from lockstep.protocol.market.state import NoArbiter
from lockstep.protocol.types import Seconds


class MemoryDevnet(Local):
    """One chain in memory, with the controls of a Devnet. Nothing needs to be stopped."""

    def __init__(
        self, *, seed: int = 0, manners: Manners | None = None, arbiter: Arbiter | None = None,
        genesis_time: Seconds = GENESIS_TIME,
    ) -> None:  # fmt: skip
        """`arbiter` executes the ops of games (`numerics.arbiter`); without one no game ends with a proof of an op."""
        from web3 import Web3

        self.seed = seed
        self.chain = Chain(
            Machine(CHAIN_ID, arbiter if arbiter is not None else NoArbiter()), manners or Manners(), genesis_time, seed
        )
        self.provider = MemoryProvider(self.chain)
        self.w3 = Web3(self.provider)

    def stop(self) -> None:
        """Nothing runs."""

    def __enter__(self) -> MemoryDevnet:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()
