"""Sending acts: once each, only what the chain's pending state allows, never waiting for a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from lockstep.protocol.errors import ChainError, FundsError
from worker.decide import Act

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call
    from lockstep.chain.outbox import Outbox

log = structlog.get_logger(__name__)


class Sender:
    """The transactions that this process waits for."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._sent: dict[str, Act | None] = {}

    def submit(self, key: str, call: Call, act: Act | None = None) -> bool:
        """Send a call unless it was sent or done before; whether it is under way now.

        What the pending state refuses is not sent, and may be tried again at the next look: others act too.
        """
        if key in self._sent:
            return True
        receipt = self._outbox.receipt(key)
        if receipt is not None and receipt.succeeded:
            return False
        if receipt is not None:
            self._outbox.forget(key)
        try:
            self._outbox.submit(call, key)
        except ChainError as error:
            log.debug("not now", key=key, rule=error.code)
            return False
        except FundsError as error:
            # A contract that finds too little stake is a rule like others; gas that cannot be paid is the end.
            if not error.code.startswith("funds."):
                raise
            log.info("not now", key=key, rule=error.code)
            return False
        self._sent[key] = act
        return True

    def known(self, key: str) -> bool:
        """Whether a call was sent or done under this key."""
        return key in self._sent or self._outbox.receipt(key) is not None

    def settle(self) -> None:
        """Look what became of what was sent; what reverted may be sent again."""
        for key in list(self._sent):
            receipt = self._outbox.receipt(key)
            if receipt is None:
                continue
            del self._sent[key]
            if not receipt.succeeded:
                log.info("reverted", key=key, block=receipt.block)
                self._outbox.forget(key)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._sent

    def acts(self) -> frozenset[Act]:
        """What is under way."""
        return frozenset(act for act in self._sent.values() if act is not None)
