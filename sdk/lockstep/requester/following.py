"""A job on chain as it goes on: its status, its events, its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstep.base import markup
from lockstep.base.amounts import tokens
from lockstep.base.naming import short
from lockstep.chain.events import Event, EventReader
from lockstep.chain.finality import FinalityTracker, relied_block
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from lockstep.client import Network

POLL_SECONDS = 0.5
SHOWN = 8
"""Events that a notebook shows."""


@dataclass(frozen=True)
class FollowedJob:
    """One job on chain, watched and controlled."""

    net: Network
    id: JobId

    def status(self) -> dict[str, Any]:
        """{status, rounds, started, settled, failed, escrow, paid, refunded}; amounts are decimal strings."""
        job, params = self.net.contracts.market.job(self.id), self.net.contracts.market.params(self.id)
        return {
            "job": self.id.hex(),
            "status": job.status.name.lower(),
            "rounds": params.schedule.rounds,
            "started": job.started,
            "settled": job.settled,
            "failed": job.failed,
            "escrow": str(job.escrow),
            "paid": str(job.paid),
            "refunded": str(job.refunded),
        }

    def _repr_html_(self) -> str:
        status = self.status()
        money = [(name, tokens(status[name], currency=self.net.currency)) for name in ("escrow", "paid", "refunded")]
        rows = [("status", status["status"]), ("rounds settled", f"{status['settled']} of {status['rounds']}"), *money]
        return markup.table(f"job {short(self.id)}", rows)

    def cancel(self) -> None:
        """Stop new rounds; what no round in flight has reserved is paid back at once. A second call does nothing."""
        self.net._send(self.net.contracts.market.cancel(self.id), f"cancel/{self.id.hex()}")
        self.net.withdraw()

    def watch(self, poll_seconds: float = POLL_SECONDS) -> Iterator[Event]:
        """The job's events from its beginning as they come, until the block that ends it is relied on (`finality`).

        In a notebook the cell shows how far the job is, each time in the place of the last.
        """
        seen: list[tuple[str, str]] = []
        show = markup.in_place()
        for event in self._events(poll_seconds):
            if show is not None:
                where = [f"{key} {event.args[key]}" for key in ("round", "slot") if key in event.args]
                seen = [*seen[1 - SHOWN :], (event.name, ", ".join(where))]
                show(self._repr_html_() + markup.table("lately", seen))
            yield event

    def _events(self, poll_seconds: float) -> Iterator[Event]:
        reader = EventReader(self.net.w3, self.net.contracts.addresses)
        cursor, done = reader.start(), None
        finality = FinalityTracker(partial(relied_block, self.net.w3, self.net.finality))
        while True:
            batch = reader.poll(cursor)
            cursor = batch.cursor
            if batch.rolled_back_to is not None and done is not None and done > batch.rolled_back_to:
                done = None
            for event in batch.events:
                if event.args.get("job") == self.id and done is None:
                    yield event
                    done = event.block if event.name == "JobDone" else None
            # INVARIANT: a job is over once the block that says so is relied on.
            if done is not None and done <= finality.poll(cursor.next_block - 1):
                return
            if not batch.events:
                time.sleep(poll_seconds)
