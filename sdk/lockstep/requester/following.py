"""Follows a job on chain: its status, its events, its end."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

from lockstep.base import markup
from lockstep.base.amounts import tokens
from lockstep.base.naming import short
from lockstep.chain.events import Event, EventReader
from lockstep.chain.finality import FinalityTracker, relied_block
from lockstep.market.narrator import UNTOLD, clock, of_chain
from lockstep.market.progress import Progress, windows_of
from lockstep.market.snapshots import snapshot_of
from lockstep.market.waiting import Waiting, waiting_of
from lockstep.protocol.errors import LockstepError, StillRunning
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId
from lockstep.requester.access import MarketAccess
from lockstep.storage.containers import load_spec

POLL_SECONDS = 0.5
READERS = 8
"""Jobs whose status is read concurrently."""
SHOWN = 8
"""Number of events that a notebook shows."""


def statuses_of(jobs: Sequence[FollowedJob]) -> list[dict[str, Any]]:
    """Returns the status of each job, read concurrently: a distant chain takes long for each response."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(FollowedJob.status, jobs))


class JobEvent(Event):
    """An event of a job, which prints as in `lockstep train watch`."""

    def __str__(self) -> str:
        return f"{clock(self.time)}  {of_chain(self.name, self.args).text}"

    def __repr__(self) -> str:
        return f"<{self.name} {self}>"


@dataclass(frozen=True)
class FollowedJob:
    """One job on chain, to watch and control."""

    net: MarketAccess
    id: JobId

    @property
    def name(self) -> str:
        """The job's id as text, as accepted by every command and by `Network.find`."""
        return self.id.hex()

    @cached_property
    def params(self) -> JobParams:
        """The job's parameters, which never change; read once."""
        return self.net.contracts.market.params(self.id)

    @cached_property
    def title(self) -> str:
        """The job's human-readable name, written by its requester; empty without one.

        It is in the storage, like the spec. Raises the errors of reading the chain and the storage.
        """
        return load_spec(self.params, self.net.store).title

    @cached_property
    def _title_or_none(self) -> str:
        """Returns the title; empty also if the storage, which is asked once, does not have it."""
        try:
            return self.title
        except LockstepError:
            return ""

    def __repr__(self) -> str:
        # Only a title that was read before: printing a list of handles asks nobody.
        title = self.__dict__.get("title")
        return f"<{type(self).__name__} {self.name}{f' {title!r}' if title else ''}>"

    def __str__(self) -> str:
        try:
            return markup.aligned(f"job {self.name}", self._rows())
        except LockstepError as error:
            return markup.aligned(f"job {self.name}", [("status", f"unknown: {error.message}")])

    def status(self) -> dict[str, Any]:
        """{status, rounds, started, settled, failed, escrow, paid, refunded}; amounts are decimal strings."""
        job, params = self.net.contracts.market.job(self.id), self.params
        return {
            "job": self.name,
            "status": job.status.name.lower(),
            "rounds": params.schedule.rounds,
            "started": job.started,
            "settled": job.settled,
            "failed": job.failed,
            "escrow": str(job.escrow),
            "paid": str(job.paid),
            "refunded": str(job.refunded),
        }

    def _rows(self) -> list[tuple[str, object]]:
        status = self.status()
        money = [(name, tokens(status[name], currency=self.net.currency)) for name in ("escrow", "paid", "refunded")]
        rounds = ("rounds settled", f"{status['settled']} of {status['rounds']}")
        title = [("title", self._title_or_none)] if self._title_or_none else []
        return [*title, ("status", status["status"]), rounds, *money]

    def _repr_html_(self) -> str:
        return markup.table(f"job {short(self.id)}", self._rows())

    def cancel(self) -> None:
        """Stops new rounds, and refunds at once what no round in flight has reserved. A second call does nothing."""
        self.net._send(self.net.contracts.market.cancel(self.id), f"cancel/{self.name}")
        self.net.withdraw()

    def watch(self, poll_seconds: float = POLL_SECONDS) -> Iterator[JobEvent]:
        """Yields the job's events from its beginning as they arrive, until its last block is final (`finality`).

        `print(event)` prints the line of `lockstep train watch`. In a notebook the cell shows the job's current
        progress.
        """
        return (event for event in self._shown(poll_seconds) if event is not None)

    def wait(self, timeout: float | None = None, *, poll_seconds: float = POLL_SECONDS) -> Self:
        """Waits until the job is done, and returns the handle; Ctrl-C ends the wait, not the job. A notebook shows its
        progress, as for `watch`.

        Raises StillRunning, a TimeoutError, after `timeout` seconds, with what the job is waiting for. Without a
        timeout it warns if nothing happens for as long as the longest window of a round.
        """
        progress, began = self._progress(), time.monotonic()
        longest, last, warned = max(progress.windows.values()), 0, False
        for event in self._shown(poll_seconds):
            if event is not None:
                progress.see(event.name, event.args, event.time)
                last, warned = event.time, False
                continue
            quiet = self._now() - last
            if last and quiet > longest and not warned and not progress.over:
                why = self.why().sentence()
                warnings.warn(f"job {short(self.id)}: nothing has happened for {quiet} s; {why}", stacklevel=2)
                warned = True
            if timeout is not None and time.monotonic() - began >= timeout:
                why = "its last block is not final yet" if progress.over else self.why().sentence()
                raise StillRunning(
                    f"job {short(self.id)} is not done after {timeout:g} s: {why}",
                    hint="wait again, or watch() it; the job continues by itself, and cancel() ends it",
                )
        return self

    def why(self, *, still: float = 0.0) -> Waiting:
        """Returns what the job is waiting for, who can end that and until when; `sentence()` is the text of `lockstep
        train why`. `still`: seconds since the caller last saw a new block. Raises the errors of reading the chain."""
        snapshot = snapshot_of(self.net.contracts, self.net.ledger(), self.id)
        # A local chain's time may be ahead of this clock: what was seen counts as well.
        return waiting_of(replace(snapshot, head_age=max(still, time.time() - snapshot.now)))

    def text(self) -> str:
        """Returns the job so far as `lockstep train watch` prints it: a line per event, then the rounds in progress."""
        progress, lines = self._progress(), []
        for event in self._so_far():
            progress.see(event.name, event.args, event.time)
            if event.name not in UNTOLD:
                lines.append(str(event))
        return "\n".join([*lines, *(line.text for line in progress.lines(self._now()))])

    def _progress(self) -> Progress:
        params = self.params
        return Progress(params.schedule.rounds, params.role.slots, windows_of(params))

    def _now(self) -> int:
        """The time of the chain's latest block."""
        return int(self.net.w3.eth.get_block("latest")["timestamp"])

    def _so_far(self) -> Iterator[JobEvent]:
        """Yields the job's events so far."""
        with self.net.reader() as reader:
            cursor = reader.start()
            while (batch := reader.poll(cursor)).cursor != cursor:
                cursor = batch.cursor
                yield from (JobEvent(**vars(event)) for event in batch.events if event.args.get("job") == self.id)

    def _shown(self, poll_seconds: float) -> Iterator[JobEvent | None]:
        """Yields the events, and shows each in a notebook's cell."""
        seen: list[tuple[str, str]] = []
        show = markup.in_place()
        for event in self._events(poll_seconds):
            if event is not None and show is not None:
                seen = [*seen[1 - SHOWN :], (event.name, str(event))]
                show(self._repr_html_() + markup.table("lately", seen))
            yield event

    def _events(self, poll_seconds: float) -> Iterator[JobEvent | None]:
        """Yields the job's events as they arrive, and None whenever there is no new one yet."""
        with self.net.reader() as reader:
            yield from self._read(reader, poll_seconds)

    def _read(self, reader: EventReader, poll_seconds: float) -> Iterator[JobEvent | None]:
        cursor, done = reader.start(), None
        finality = FinalityTracker(partial(relied_block, self.net.w3, self.net.finality))
        while True:
            batch = reader.poll(cursor)
            cursor = batch.cursor
            if batch.rolled_back_to is not None and done is not None and done > batch.rolled_back_to:
                done = None
            for event in batch.events:
                if event.args.get("job") == self.id and done is None:
                    yield JobEvent(**vars(event))
                    done = event.block if event.name == "JobDone" else None
            # INVARIANT: a job is over once the block that says so is relied on.
            if done is not None and done <= finality.poll(cursor.next_block - 1):
                return
            if not batch.events:
                yield None
                time.sleep(poll_seconds)
