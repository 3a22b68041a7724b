"""The last block that a process treats as final, by the setting `finality`.

"latest"                the head
"safe", "finalized"     the provider's block of that name; Ethereum: justified and finalized by the beacon chain;
                        a rollup: its data are on the parent chain, and final there (the execution API's block tags)
"3"                     three blocks behind the head
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.base.log import Logger
from lockstep.protocol.errors import TryLater, Unreachable

if TYPE_CHECKING:
    from web3 import Web3

log = Logger(__name__)


class FinalityTracker:
    """Tracks the last final block: requests it once for each head, and retains the last known one if the provider
    returns none.

    >>> finality = FinalityTracker(lambda head: head - 3)
    >>> finality.block, finality.poll(10), finality.poll(10), finality.block
    (-1, 7, 7, 7)
    """

    def __init__(self, ask: Callable[[int], int]) -> None:
        """`ask(head)` returns the final block's number, or raises TryLater or Unreachable."""
        self._ask = ask
        self._head: int | None = None
        self._reported = False
        self.block = -1
        """The last known final block; negative if there is none."""

    def poll(self, head: int) -> int:
        """Returns the last final block of a chain whose head is `head`."""
        if head == self._head:
            return self.block
        self._head = head
        # INVARIANT: a provider that names no final block keeps nobody from a move, and lets nobody leave before one.
        try:
            self.block, self._reported = self._ask(head), False
        except (TryLater, Unreachable) as error:
            if not self._reported:
                log.warning(
                    "the chain's provider names no final block: the last known one is used",
                    why=error.message,
                    hint=error.hint,
                )
            self._reported = True
        return self.block


def relied_block(w3: Web3, finality: str, head: int) -> int:
    """Returns the last final block up to `head`; negative if there is none. Raises TryLater, Unreachable."""
    if finality.isdigit():
        return head - int(finality)
    if finality == "latest":
        return head
    from web3.exceptions import Web3Exception

    try:
        # A node's safe block is never later than its latest block, and the head was read before.
        return min(head, int(w3.eth.get_block(finality)["number"]))  # type: ignore[arg-type]
    except (Web3Exception, TypeError, KeyError, ValueError) as error:
        raise TryLater(
            f"the chain's provider names no {finality} block", "set finality to a number of blocks, such as 3"
        ) from error
