"""Chain time: the latest block's timestamp, the only clock that a program may trust."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstep.protocol.types import Seconds

if TYPE_CHECKING:
    from web3 import Web3


class ChainClock:
    """Reads time from the chain. The local clock only paces the polling."""

    def __init__(self, w3: Web3, poll_seconds: float = 0.5) -> None:
        self._w3 = w3
        self._poll_seconds = poll_seconds

    def now(self) -> Seconds:
        """The latest block's timestamp."""
        return Seconds(self._w3.eth.get_block("latest")["timestamp"])

    def block_number(self) -> int:
        """The latest block's number."""
        return self._w3.eth.block_number

    def wait_until(self, timestamp: Seconds) -> Seconds:
        """Returns the chain's time once it has reached `timestamp`."""
        while (now := self.now()) < timestamp:
            time.sleep(self._poll_seconds)
        return now

    def wait_for_block(self, number: int) -> int:
        """Returns the latest block's number once it has reached `number`."""
        while (latest := self.block_number()) < number:
            time.sleep(self._poll_seconds)
        return latest
