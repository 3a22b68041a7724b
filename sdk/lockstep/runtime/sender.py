"""Sending calls: once each, and only what the chain's pending state allows, for others act too.

submit(key, call):  never waits; what came of it a later `settle` finds
attempt(key, call): waits; whether it was done by us
again(key, call):   what is due again is sent again, mined or not; `mined` waits
try_again(key, call): the same; whether the chain takes it now
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from lockstep.protocol.errors import ChainError, FundsError, TryLater

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call
    from lockstep.chain.outbox import Outbox

MINED_SECONDS = 30.0
"""The longest wait of `mined`; what is not mined then is waited for again at the next look."""

Act = TypeVar("Act", bound=Hashable)
"""The purpose of a call, in the caller's own terms."""

log = structlog.get_logger(__name__)


class Sender(Generic[Act]):
    """The transactions of one account that a loop waits for."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._sent: dict[str, Act | None] = {}

    # -- without waiting

    def submit(
        self, key: str, call: Call, act: Act | None = None, *, after: tuple[str, Call] | None = None
    ) -> bool:  # fmt: skip
        """Send a call unless it was sent or done before; whether it is under way now. `act` says what it is for.

        What the pending state refuses is not sent, and may be tried again at the next look. `after`: the key and the
        call that it depends on, which is sent just before it; what depends on it is sent unseen.
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
            log.debug("the chain would refuse this transaction now", key=key, rule=error.code)
            return False
        except FundsError as error:
            # A contract that finds too little stake is a rule like others; gas that cannot be paid is the end.
            if not error.code.startswith("funds."):
                raise
            log.info("the chain would refuse this transaction now", key=key, rule=error.code)
            return False
        self._sent[key] = act
        return True

    def known(self, key: str) -> bool:
        """Returns True if a call was sent or done under this key."""
        return key in self._sent or self._outbox.receipt(key) is not None

    def done(self, key: str) -> bool:
        """Returns True if the call that was sent under this key was mined, and did what it is for."""
        receipt = self._outbox.receipt(key)
        return receipt is not None and receipt.succeeded

    def settle(self) -> None:
        """Look what became of what was submitted, at each block; what reverted may be sent again."""
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
        """True if no call is under way."""
        return not self._sent

    def acts(self) -> frozenset[Act]:
        """Returns the purposes of the calls under way."""
        return frozenset(act for act in self._sent.values() if act is not None)

    # -- waiting for blocks

    def attempt(self, key: str, call: Call, timeout: float = 120.0) -> bool:
        """Send what others may do as well, and wait; False if somebody was first, or the chain cannot take it now."""
        try:
            self._outbox.send(call, key, timeout=timeout)
        except (ChainError, FundsError, TryLater) as error:
            log.info("the transaction did nothing: another party may have been first", key=key, why=error.message)
            return False
        return True

    def again(self, key: str, call: Call) -> None:
        """Submit what is due by what the chain says now. Raises the rule that it would break."""
        # Mined, and yet due again: it reverted, or its block is gone.
        if self._outbox.receipt(key) is not None:
            self._outbox.forget(key)
        self._outbox.submit(call, key)

    def try_again(self, key: str, call: Call) -> bool:
        """Submit what is due by what the chain says now; False if the chain cannot take it now."""
        try:
            self.again(key, call)
        except (ChainError, FundsError, TryLater) as error:
            log.info("not sent", key=key, why=error.message)
            return False
        return True

    def mined(self, key: str) -> bool:
        """Wait for what `again` submitted; whether it was done."""
        try:
            self._outbox.wait(key, MINED_SECONDS)
        except (ChainError, FundsError, TryLater) as error:
            log.info("the transaction did nothing: another party may have been first", key=key, why=error.message)
            return False
        return True

    def allowed(self, call: Call) -> bool:
        """Returns True if the call succeeds when simulated on the chain's pending state."""
        try:
            self._outbox.simulate(call)
        except (ChainError, FundsError):
            return False
        return True
