"""Adapts the block range of log requests to the provider's limits.

refused     the range that its message names; else half of what was asked, down to one block
answered    twice as many; a growth that was refused is tried again after twice as many answers
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lockstep.chain.rpc import TOO_MUCH_STATUSES, Failure, get_logs
from lockstep.protocol.errors import Unreachable

if TYPE_CHECKING:
    from web3 import Web3

CHUNK_BLOCKS = 2_000
"""The most blocks of one request."""
PATIENCE_ANSWERS = 64
"""Number of answers after which a refused growth is tried again, at most."""

_RANGES = (
    re.compile(r"\[\s*(0x[0-9a-f]+)\s*,\s*(0x[0-9a-f]+)\s*\]"),
    re.compile(r"\brange\s+(\d+)\s*-\s*(\d+)"),
)
"""Patterns of messages that name an acceptable range: Alchemy and Infura; reth."""
_LIMITS = (
    re.compile(r"\b(?:up to|limited to|over|than)\s+(?:an?\s+)?(?:0\s*-\s*)?([\d,]+)(k?)[\s-]*(?:blocks?|range|max)\b"),
    re.compile(r"\bmax(?:imum)?(?: allowed)?(?: block)? range(?: is| of|:)?\s*([\d,]+)(k?)"),
    re.compile(r"\brange[^.]*\bmax(?:imum)? is\s*([\d,]+)(k?)"),
)  # fmt: skip
"""Patterns of messages that name the longest range: Alchemy, QuickNode, drpc; reth, BSC; Cloudflare."""


class Span:
    """The number of blocks to request next from one provider."""

    def __init__(self) -> None:
        self._most = CHUNK_BLOCKS
        self._stated = 0
        """The longest range that the provider has stated; 0 for none."""
        self._patience = 1
        self._answers = 0
        self._grew = False

    @property
    def blocks(self) -> int:
        """Number of blocks of the next request, at least one."""
        return max(1, min(self._most, CHUNK_BLOCKS))

    def refused(self, asked: int, message: str = "") -> None:
        """Records that the provider refused a range of `asked` blocks."""
        limit = hint(message, asked)
        self._stated = limit or self._stated
        self._patience = min(2 * self._patience, PATIENCE_ANSWERS) if self._grew else self._patience
        self._most, self._answers, self._grew = limit or max(1, asked // 2), 0, False

    def answered(self, asked: int) -> None:
        """Records that the provider answered a range of `asked` blocks; a shorter range than allowed changes
        nothing."""
        if asked < self.blocks:
            return
        # A successful growth needs no patience; a range that the provider stated is exceeded only after long.
        self._patience = 1 if self._grew else self._patience
        self._grew = False
        self._answers += 1
        wait = PATIENCE_ANSWERS if self._stated and 2 * asked > self._stated else self._patience
        if self._answers >= wait and self._most < CHUNK_BLOCKS:
            self._most, self._answers, self._grew = 2 * self._most, 0, True
            if wait == PATIENCE_ANSWERS:
                self._stated = 0


_spans: WeakKeyDictionary[Any, Span] = WeakKeyDictionary()


def span_of(w3: Web3) -> Span:
    """Returns the block span of this connection's provider, which all readers of its logs share."""
    return _spans.setdefault(w3, Span())


def hint(message: str, asked: int) -> int:
    """Returns the number of blocks that a refusal of `asked` blocks allows; 0 if it names no smaller one."""
    text = message.lower()
    found = 0
    for pattern in _RANGES:
        if match := pattern.search(text):
            found = int(match[2], 0) - int(match[1], 0) + 1
            break
    else:
        for pattern in _LIMITS:
            if match := pattern.search(text):
                digits = match[1].replace(",", "")
                found = int(digits) * (1_000 if match[2] else 1) if digits else 0
                break
    return found if 0 < found < asked else 0


def logs_of(w3: Web3, query: Mapping[str, Any], first: int, last: int) -> list[Any] | None:
    """Returns the logs of these blocks that match a query (address, topics); None if the provider refuses so many
    blocks.

    The connection's span adapts to the answer. Raises `Unreachable` if the provider does not answer, or refuses the
    logs of a single block. Each try of a silent provider costs a timeout: the caller retries later with a shorter
    range.
    """
    from web3.exceptions import Web3Exception

    span, asked = span_of(w3), last - first + 1
    request: Any = {**query, "fromBlock": first, "toBlock": last}
    try:
        logs: list[Any] = [*get_logs(w3, request)]
    except Web3Exception as failure:
        refusal: Exception = failure
    except Unreachable as failure:
        cause = failure.__cause__
        if not isinstance(cause, Failure) or not (cause.timed_out or cause.status in TOO_MUCH_STATUSES):
            raise
        if cause.timed_out:
            span.refused(asked)
            raise
        refusal = failure
    else:
        span.answered(asked)
        return logs
    # INVARIANT: what a provider refuses to say at once is asked for in parts.
    span.refused(asked, str(refusal))
    if first < last:
        return None
    raise Unreachable(
        f"the provider refuses the logs of block {last}: {refusal}", "use another RPC provider, or a node"
    ) from refusal
