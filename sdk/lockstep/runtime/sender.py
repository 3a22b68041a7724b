"""Sends transactions, each once, and only those that succeed on the chain's pending state.

submit(key, call):     does not wait; a later `settle` finds the result
attempt(key, call):    waits; returns True if this account's transaction did it
again(key, call):      sends what is due again, mined before or not; `mined` waits for it
try_again(key, call):  the same; returns False if the chain refuses it now
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from lockstep.base.log import Logger
from lockstep.protocol.errors import ChainError, FundsError, TryLater

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call
    from lockstep.chain.outbox import Outbox

MINED_SECONDS = 30.0
"""Longest wait of `mined`, in machine seconds; a later call waits again."""

Act = TypeVar("Act", bound=Hashable)
"""Purpose of a call, a value of the caller's choice."""

log = Logger(__name__)


class Sender(Generic[Act]):
    """Sends one account's transactions for a loop, and tracks those that are not mined yet."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._sent: dict[str, Act | None] = {}

    # -- without waiting

    def submit(
        self, key: str, call: Call, act: Act | None = None, *, after: tuple[str, Call] | None = None
    ) -> bool:  # fmt: skip
        """Sends a call unless it was sent or done before; returns True if it is in flight. `act` is its purpose.

        A call that the pending state refuses is not sent, and may be tried again at the next poll. `after` is the key
        and the call on which it depends: that is sent just before it, and the dependent call is sent without
        simulation.
        """
        if key in self._sent:
            return True
        receipt = self._outbox.receipt(key)
        if receipt is not None and receipt.succeeded:
            return False
        if receipt is not None:
            self._outbox.forget(key)
        try:
            if after is not None:
                self._outbox.submit(after[1], after[0])
            self._outbox.submit(call, key, check=after is None)
        except ChainError as error:
            log.debug("a transaction is not sent: the chain would refuse it now", key=key, rule=error.code)
            return False
        except FundsError as error:
            # Too little stake is a broken rule like others; too little coin for gas ends the process.
            if not error.code.startswith("funds."):
                raise
            log.info("a transaction is not sent: the chain would refuse it now", key=key, rule=error.code)
            return False
        self._sent[key] = act
        return True

    def known(self, key: str) -> bool:
        """Returns True if a call was sent or done under this key."""
        return key in self._sent or self._outbox.receipt(key) is not None

    def done(self, key: str) -> bool:
        """Returns True if the call with this key was mined successfully."""
        receipt = self._outbox.receipt(key)
        return receipt is not None and receipt.succeeded

    def settle(self) -> None:
        """Checks the receipts of submitted calls, once for each block; a reverted call may be sent again."""
        self._outbox.tend()
        for key in list(self._sent):
            receipt = self._outbox.receipt(key)
            if receipt is None:
                continue
            del self._sent[key]
            if not receipt.succeeded:
                log.info("a transaction reverted: it may be sent again", key=key, block=receipt.block)
                self._outbox.forget(key)

    @property
    def idle(self) -> bool:
        """True if no call is in flight."""
        return not self._sent

    def acts(self) -> frozenset[Act]:
        """Returns the purposes of the calls in flight."""
        return frozenset(act for act in self._sent.values() if act is not None)

    # -- waiting for blocks

    def attempt(self, key: str, call: Call, timeout: float = 120.0) -> bool:
        """Sends a call that others may make as well, and waits; returns False if another account was first or the chain
        refuses it now."""
        try:
            self._outbox.send(call, key, timeout=timeout)
        except (ChainError, FundsError, TryLater) as error:
            log.info("a transaction had no effect: another party may have been first", key=key, why=error.message)
            return False
        return True

    def again(self, key: str, call: Call) -> None:
        """Submits a call that the chain's state makes due, even if it was mined before. Raises the error of the rule
        that it would break."""
        # Mined, yet due again: it reverted, or its block was reorganised away.
        if self._outbox.receipt(key) is not None:
            self._outbox.forget(key)
        self._outbox.submit(call, key)

    def try_again(self, key: str, call: Call) -> bool:
        """Submits a call that the chain's state makes due, as `again` does; returns False if the chain refuses it
        now."""
        try:
            self.again(key, call)
        except (ChainError, FundsError, TryLater) as error:
            log.info("a transaction was not sent", key=key, why=error.message)
            return False
        return True

    def mined(self, key: str) -> bool:
        """Waits for a call that `again` submitted; returns True if it succeeded."""
        try:
            self._outbox.wait(key, MINED_SECONDS)
        except (ChainError, FundsError, TryLater) as error:
            log.info("a transaction had no effect: another party may have been first", key=key, why=error.message)
            return False
        return True

    def allowed(self, call: Call) -> bool:
        """Returns True if the call succeeds when simulated on the chain's pending state."""
        try:
            self._outbox.simulate(call)
        except (ChainError, FundsError):
            return False
        return True
