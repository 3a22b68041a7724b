"""A job on chain as it goes on: its status, its events, its end."""

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
"""Jobs whose status is read at the same time."""
SHOWN = 8
"""Events that a notebook shows."""


def statuses_of(jobs: Sequence[FollowedJob]) -> list[dict[str, Any]]:
    """Returns the status of each job, several at a time: a distant chain takes long for each answer."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(FollowedJob.status, jobs))


class JobEvent(Event):
    """An event of a job, which prints as `lockstep train watch` tells it."""

    def __str__(self) -> str:
        return f"{clock(self.time)}  {of_chain(self.name, self.args).text}"

    def __repr__(self) -> str:
        return f"<{self.name} {self}>"


@dataclass(frozen=True)
class FollowedJob:
    """One job on chain, watched and controlled."""

    net: MarketAccess
    id: JobId

    @property
    def name(self) -> str:
        """The job's id as text, which every command and `find` of a network take."""
        return self.id.hex()

    @cached_property
    def params(self) -> JobParams:
        """The job's parameters, which never change; read once."""
        return self.net.contracts.market.params(self.id)

    @cached_property
    def title(self) -> str:
        """The job's name for people, as its requester wrote it; empty without one.

        It lies in the storage, as the spec does. Raises the errors of reading the chain and the storage.
        """
        return load_spec(self.params, self.net.store).title

    @cached_property
    def _title_or_none(self) -> str:
        """The title; empty, too, while the storage does not have it, which is asked once."""
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
        """Stop new rounds; what no round in flight has reserved is paid back at once. A second call does nothing."""
        self.net._send(self.net.contracts.market.cancel(self.id), f"cancel/{self.name}")
        self.net.withdraw()

    def watch(self, poll_seconds: float = POLL_SECONDS) -> Iterator[JobEvent]:
        """The job's events from its beginning as they come, until the block that ends it is relied on (`finality`).

        `print(event)` says what `lockstep train watch` does. In a notebook the cell shows how far the job is, each time
        in the place of the last.
        """
        return (event for event in self._shown(poll_seconds) if event is not None)

    def wait(self, timeout: float | None = None, *, poll_seconds: float = POLL_SECONDS) -> Self:
        """Waits until the job is done, and returns the handle; Ctrl-C ends the wait, not the job. A notebook shows how
        far it is, as for `watch`.

        Raises StillRunning, a TimeoutError, once `timeout` seconds are over, and says what the job waits for. Without a
        timeout it waits on, and warns where nothing happens for as long as the longest window of a round.
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
                why = "its last block is not relied on yet" if progress.over else self.why().sentence()
                raise StillRunning(
                    f"job {short(self.id)} is not done after {timeout:g} s: {why}",
                    hint="wait again, or watch() it; the job goes on by itself, and cancel() ends it",
                )
        return self

    def why(self, *, still: float = 0.0) -> Waiting:
        """Returns what the job waits for, who can end it and until when; its `sentence()` is that of `lockstep train
        why`. `still`: seconds for which the caller has seen no new block. Raises the errors of reading the chain."""
        snapshot = snapshot_of(self.net.contracts, self.net.ledger(), self.id)
        # A local chain's time may be ahead of this clock: what was seen counts as well.
        return waiting_of(replace(snapshot, head_age=max(still, time.time() - snapshot.now)))

    def text(self) -> str:
        """The job so far as `lockstep train watch` tells it: a line for each event, then the rounds under way."""
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
        """The job's events up to now."""
        with self.net.reader() as reader:
            cursor = reader.start()
            while (batch := reader.poll(cursor)).cursor != cursor:
                cursor = batch.cursor
                yield from (JobEvent(**vars(event)) for event in batch.events if event.args.get("job") == self.id)

    def _shown(self, poll_seconds: float) -> Iterator[JobEvent | None]:
        """The events, each shown in a notebook's cell."""
        seen: list[tuple[str, str]] = []
        show = markup.in_place()
        for event in self._events(poll_seconds):
            if event is not None and show is not None:
                seen = [*seen[1 - SHOWN :], (event.name, str(event))]
                show(self._repr_html_() + markup.table("lately", seen))
            yield event

    def _events(self, poll_seconds: float) -> Iterator[JobEvent | None]:
        """The job's events as they come, and None whenever there is no new one yet."""
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
