"""A local chain in memory, with the controls of `chain.devnet.Devnet` and no process."""

from __future__ import annotations

from lockstep.chain.devnet import CHAIN_ID, Local
from lockstep.chain.rpc import over
from lockstep.protocol.dispute.game import Arbiter
from lockstep.protocol.market.state import NoArbiter
from lockstep.protocol.types import Seconds
from tests.support.memory.chain import GENESIS_TIME, Manners, MemoryChain
from tests.support.memory.machine import Machine
from tests.support.memory.rpc import MemoryProvider
from tests.support.memory.server import Server


class MemoryDevnet(Local):
    """One chain in memory, with the controls of a Devnet. Use it as a context manager, or call `stop`."""

    def __init__(
        self, *, seed: int = 0, manners: Manners | None = None, arbiter: Arbiter | None = None,
        genesis_time: Seconds = GENESIS_TIME,
    ) -> None:  # fmt: skip
        """`arbiter` executes the ops of games (`numerics.arbiter`); without one no game ends with a proof of an op."""
        self.seed = seed
        self.chain = MemoryChain(
            Machine(CHAIN_ID, arbiter if arbiter is not None else NoArbiter()), manners or Manners(), genesis_time, seed
        )
        self.provider = MemoryProvider(self.chain)
        self.w3 = over(self.provider)
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """The URL for programs that take an RPC URL; the first to ask starts a server."""
        if self._server is None:
            self._server = Server(self.provider)
        return self._server.url

    def stop(self) -> None:
        """Ends the server, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None
