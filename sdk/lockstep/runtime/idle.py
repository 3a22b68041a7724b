"""Tracks the block since which an account has nothing at stake, so that shutdown can wait for its finality."""

from __future__ import annotations

from math import inf


class IdleSince:
    """One process's record, updated once a block.

    >>> idle = IdleSince()
    >>> idle.at(-3), idle.see(True, 7), idle.see(False, 9), idle.at(8), idle.at(9)
    (True, None, None, False, True)
    """

    def __init__(self, fresh: bool = True) -> None:
        """`fresh` is True if this home has sent nothing yet; then nothing is at stake until the chain shows something.

        For any other home, an earlier process may have something at stake: until the first poll, this is assumed.
        """
        self._since: float = -inf if fresh else inf

    @property
    def always(self) -> bool:
        """True while nothing has ever been at stake, so that a shutdown need not wait."""
        return self._since == -inf

    def see(self, at_stake: bool, block: int, before: bool = False) -> None:
        """Records whether anything is at stake on the chain up to this block.

        `before` is True if the account has ever had a stake locked, in any home with its key.
        """
        if at_stake:
            self._since = inf
        elif self._since == inf or (before and self.always):
            self._since = block

    def at(self, relied: int) -> bool:
        """Returns True if nothing is at stake on a chain that ends with block `relied`."""
        # INVARIANT: no reorganisation of what is not relied on gives a stake back into the hands of who has left.
        return self._since <= relied
