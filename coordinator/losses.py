"""Computes the loss of this coordinator's own jobs after each standing merge, from public data, for the pages.

Nothing depends on it: one loss is computed when nothing else is due, and a job whose losses take too long here is given
up. The bits are those of `lockstep train metrics`: the same Program, checkpoint and seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from coordinator.models import ClaimRow, LossRow, RoundRow, unhex
from coordinator.reading import STANDING, hex32
from lockstep.base.log import Logger
from lockstep.execution.losses import Losses
from lockstep.execution.merging import load_checkpoint
from lockstep.protocol.errors import Crashed, LockstepError
from lockstep.protocol.types import MERGE_SLOT, Cid, JobId, Seed
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.refusals import LOSSES, Refusals

if TYPE_CHECKING:
    from coordinator.db import Database
    from lockstep.execution.jobs import Job
    from lockstep.storage import ContentStore

DEAR_SECONDS = 10.0
"""A job whose loss takes longer than this, over all slots, is shown without losses: the computing thread has deadlines
in other jobs."""
BACKOFF_SECONDS = (5.0, 600.0)

log = Logger(__name__)


@dataclass(frozen=True)
class DueLoss:
    """A checkpoint whose loss is not known."""

    merges: int
    round: int | None
    claim: str
    """The merge; "" for the first weights."""
    seed: Seed
    checkpoint: Cid
    out: bytes
    out2: bytes


def due(session: Session, job: str) -> DueLoss | None:
    """Returns the first checkpoint of a job, in the order of merges, whose loss is not computed yet."""
    kept = {row.claim: row.merges for row in session.scalars(select(LossRow).where(LossRow.job == job))}
    first = session.get(RoundRow, (job, 0))
    if first is None or first.seed is None:
        return None
    if "" not in kept:
        return DueLoss(0, None, "", Seed(unhex(first.seed)), Cid(""), b"", b"")
    merges = session.execute(
        select(ClaimRow, RoundRow.seed)
        .join(RoundRow, (RoundRow.job == ClaimRow.job) & (RoundRow.number == ClaimRow.round))
        .where(ClaimRow.job == job, ClaimRow.slot == MERGE_SLOT, ClaimRow.state.in_(STANDING))
        .where(RoundRow.state != "void")
        .order_by(ClaimRow.round)
    )
    for i, (claim, seed) in enumerate(merges, 1):
        if kept.get(claim.id) != i and seed is not None:
            return DueLoss(
                i, claim.round, claim.id, Seed(unhex(seed)), Cid(claim.payload_cid or ""), unhex(claim.out or ""),
                unhex(claim.out2 or ""),
            )  # fmt: skip
    return None


class RunLosses:
    """Computes the losses of a coordinator's jobs."""

    def __init__(
        self, database: Database, store: ContentStore, home: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._given_up = Refusals(home, LOSSES)
        self._database = database
        self._store = store
        self._clock = clock
        self._compiled: dict[JobId, Losses | None] = {}
        """None: the job names no loss."""
        self._backoff: Backoff[JobId] = Backoff(*BACKOFF_SECONDS)

    def poll(self, job: JobId, loaded: Callable[[], Job]) -> bool:
        """Computes and stores one loss, if one is due; returns True if it did. `loaded` returns the job when it is
        needed."""
        if self._backoff.in_backoff(job, self._clock()) or self._compiled.get(job, self) is None:
            return False
        if self._given_up.of(job) is not None:
            return False
        with self._database.reading() as session:
            wanted = due(session, hex32(job))
        if wanted is None:
            return False
        try:
            found = self._computed(job, loaded, wanted)
        except Crashed as error:
            log.warning("computing a job's losses ended its process", job=hex32(job), why=error.message)
            # INVARIANT: a loss holds up what a coordinator owes other jobs once, for one deadline over all slots, and
            # in no later process again.
            self._given_up.record(job, error)
            self._compiled.pop(job, None)
            return False
        except LockstepError as error:
            log.info("a loss cannot be computed", job=hex32(job), why=error.message)
            self._backoff.failed(job, self._clock())
            return False
        if found is None:
            return False
        self._backoff.succeeded(job)
        with self._database.session() as session:
            session.execute(delete(LossRow).where(LossRow.job == hex32(job), LossRow.merges == wanted.merges))
            kept = {"claim": wanted.claim, "round": wanted.round, "merges": wanted.merges, "loss": repr(found)}
            session.merge(LossRow(job=hex32(job), **kept))
        return True

    def drop(self, job: JobId) -> None:
        """Drops a job that is over."""
        self._compiled.pop(job, None)

    def _computed(self, job: JobId, load: Callable[[], Job], wanted: DueLoss) -> float | None:
        loaded = load()
        if job not in self._compiled:
            self._compiled[job] = Losses.of(loaded, self._store)
        losses = self._compiled[job]
        if losses is None:
            return None
        checkpoint = loaded.genesis
        if wanted.claim:
            checkpoint = load_checkpoint(loaded, self._store, wanted.checkpoint, wanted.out, wanted.out2)
        return losses.at(checkpoint, wanted.seed, wanted.merges, DEAR_SECONDS)
