"""Tells what was done: one JSON event a line on stdout, with the chain's time of the look that it belongs to."""

from __future__ import annotations

from typing import Any

from lockstep.base.lines import event
from lockstep.market.ledger import ClaimRecord
from lockstep.protocol.types import Seconds
from verifier.decide import AuditResult


class Teller:
    """Writes a verifier's events."""

    def __init__(self) -> None:
        self.now = Seconds(0)
        """The chain's time at the step that goes on."""

    def tell(self, name: str, **fields: Any) -> None:
        """Write one event."""
        event(name, time=self.now, **fields)

    def audited(self, record: ClaimRecord, result: AuditResult, **more: Any) -> None:
        """Tell what became of a claim's audit; what is None in `more` is left out."""
        told = {k: v for k, v in more.items() if v is not None}
        self.tell(
            "audited", claim=record.id.hex(), job=record.job.hex(), round=record.round, slot=record.slot,
            verdict=result.value, **told,
        )  # fmt: skip
