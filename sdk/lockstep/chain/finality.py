"""The part of a chain that somebody relies on: the setting `finality`, as a block.

"latest"                the head
"safe", "finalized"     the provider's block of that name; Ethereum: justified and finalized by the beacon chain;
                        a rollup: its data are on the parent chain, and final there (the execution API's block tags)
"3"                     three blocks behind the head
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.protocol.errors import TryLater

if TYPE_CHECKING:
    from web3 import Web3


def relied_block(w3: Web3, finality: str, head: int) -> int:
    """The last block up to `head` that is relied on; below zero if there is none. Raises TryLater, Unreachable."""
    if finality.isdigit():
        return head - int(finality)
    if finality == "latest":
        return head
    from web3.exceptions import Web3Exception

    try:
        # A node names no safe block later than the latest it has: the head was asked for before.
        return min(head, int(w3.eth.get_block(finality)["number"]))  # type: ignore[arg-type]
    except (Web3Exception, TypeError, KeyError) as error:
        raise TryLater(
            f"the chain's provider names no {finality} block", "set finality to a number of blocks, as 3"
        ) from error
