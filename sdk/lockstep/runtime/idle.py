"""The block since which an account has nothing at stake, so that shutdown can wait for its finality."""

from __future__ import annotations

from math import inf


class IdleSince:
    """One process's record, updated once a block.

    >>> idle = IdleSince()
    >>> idle.at(-3), idle.see(True, 7), idle.see(False, 9), idle.at(8), idle.at(9)
    (True, None, None, False, True)
    """

    def __init__(self, fresh: bool = True) -> None:
        """`fresh`: this home has sent nothing yet; then nothing is at stake until something is seen to be.

        Of any other home nobody knows what an earlier process had at stake: until the first look, all of it is.
        """
        self._since: float = -inf if fresh else inf

    @property
    def always(self) -> bool:
        """True while nothing was ever seen to be at stake: then there is nothing to wait for."""
        return self._since == -inf

    def see(self, at_stake: bool, block: int, before: bool = False) -> None:
        """Take in whether anything is at stake, by the chain up to this block. `before`: the account has had a stake
        locked, in this home or another one that had its key."""
        if at_stake:
            self._since = inf
        elif self._since == inf or (before and self.always):
            self._since = block

    def at(self, relied: int) -> bool:
        """Returns True if nothing is at stake by a chain that ends with block `relied`."""
        # INVARIANT: no reorganisation of what is not relied on gives a stake back into the hands of who has left.
        return self._since <= relied
