"""Parts of a worker without a chain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lockstep.execution import invalidity
from lockstep.execution.jobs import Job
from lockstep.market.ledger import JobLedger, Ledger
from lockstep.protocol.types import Address, ClaimId, JobId
from lockstep.runtime.refusals import Refusals
from lockstep.storage import ContentStore
from worker.notes import Notes
from worker.parts import TrackedJob, WorkerParts
from worker.policy import Policy

ME, OTHER = (Address("0x" + c * 40) for c in "ab")
CLAIM = ClaimId(b"c" * 32)


def bare_parts(home: Path, store: ContentStore) -> WorkerParts:
    """Returns parts whose contracts answer nothing."""
    contracts: Any = SimpleNamespace(market=None, game=None, demands=None, vault=None, token=None, witnesses=None)
    contracts.addresses = SimpleNamespace(block=0)
    found: Any = SimpleNamespace(
        contracts=contracts, store=store, home=home, announcer=SimpleNamespace(close=lambda: None),
        outbox=SimpleNamespace(keys=lambda prefix: []),
        memory_bytes=None, disk_bytes=1 << 30, address=ME, watcher=SimpleNamespace(ledger=Ledger(), block=0),
        party=None, policy=Policy(), notes=Notes(home), max_memory_bytes=None, download_bytes=None,
        refusals=Refusals(home), load=invalidity.load,
    )  # fmt: skip
    return found  # type: ignore[no-any-return]


def taken_of(job: Job) -> TrackedJob:
    """Returns a job as tracked by a worker."""
    return TrackedJob(JobLedger(job.id, OTHER, 0), job.params, job)


def put_at_stake(ledger: Ledger, job: JobId, claim: ClaimId = CLAIM) -> None:
    """Locks a stake of this worker behind a claim of a job."""
    ledger.places[claim] = job, 0
    ledger.locks[claim] = ME
