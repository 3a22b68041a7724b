"""Prints the verifier's events: one JSON object a line on stdout, stamped with the chain time of its block."""

from __future__ import annotations

from typing import Any

from lockstep.base.lines import event
from lockstep.market.ledger import ClaimRecord
from lockstep.protocol.types import Seconds
from verifier.decide import AuditResult


class EventPrinter:
    """Prints a verifier's events."""

    def __init__(self) -> None:
        self.now = Seconds(0)
        """Chain time of the block that is being processed."""

    def print_event(self, name: str, **fields: Any) -> None:
        """Prints one event."""
        event(name, time=self.now, **fields)

    def audited(self, record: ClaimRecord, result: AuditResult, **more: Any) -> None:
        """Prints the result of a claim's audit; fields of `more` that are None are omitted."""
        told = {k: v for k, v in more.items() if v is not None}
        self.print_event(
            "audited", claim=record.id.hex(), job=record.job.hex(), round=record.round, slot=record.slot,
            verdict=result.value, **told,
        )  # fmt: skip
