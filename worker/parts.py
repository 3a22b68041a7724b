"""The parts of a worker, opened once and shared by all of its modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.execution.box import loading
from lockstep.market.acts import Action
from lockstep.protocol.market import ids
from lockstep.protocol.types import Address, ClaimId, Seconds
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.runtime.refusals import Refusals
from worker.decide import JobView, RoundView
from worker.notes import Notes
from worker.policy import Policy

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.outbox import Outbox
    from lockstep.execution.jobs import Job
    from lockstep.market.ledger import JobLedger, Watcher
    from lockstep.protocol.jobs import JobParams
    from lockstep.runtime.guard.doppelganger import Watch
    from lockstep.runtime.guard.memory import GuardMemory
    from lockstep.runtime.identity import NodeKey
    from lockstep.runtime.party import Party
    from lockstep.storage import ContentStore
    from worker.announcing import Announcer


Load = Callable[..., "Job"]
"""`box.loading.load`, or `invalidity.load`, which runs a job's Programs in this process."""


@dataclass(frozen=True)
class WorkerParts:
    """A worker's open resources: keys, chain, storage, guard."""

    party: Party
    node: NodeKey
    guard: GuardMemory
    watch: Watch
    watcher: Watcher
    announcer: Announcer
    policy: Policy
    notes: Notes
    load: Load = loading.load
    """Loads a job, in a box."""

    @property
    def home(self) -> Path:
        """The worker's directory."""
        return self.party.settings.home_dir

    @property
    def refusals(self) -> Refusals:
        """The jobs of which this home's executor computed wrong bits."""
        return Refusals(self.home)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of memory that claims under a game may take; None: a quarter of the machine's."""
        return self.party.settings.memory_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk that the states of claims under a game may take under the home."""
        return self.party.settings.disk_bytes

    @property
    def max_memory_bytes(self) -> int | None:
        """The most memory, in bytes, that a job may need for the worker to join it; None: what the machine has."""
        mib = self.party.settings.max_memory_mib
        return mib << 20 if mib else None

    @property
    def download_bytes(self) -> int | None:
        """Download bandwidth in bytes per second; None: nothing has to be fetched."""
        return self.party.settings.download_bytes

    @property
    def contracts(self) -> Contracts:
        """The contracts of the deployment."""
        return self.party.contracts

    @property
    def outbox(self) -> Outbox:
        """The outbox of the transactions that the worker sends."""
        return self.party.outbox

    @property
    def store(self) -> ContentStore:
        """The store of payloads, checkpoints and other content."""
        return self.party.store

    @property
    def address(self) -> Address:
        """The staking account."""
        return self.party.address


ComputeExecutor = KeyedExecutor[Hashable, Any]
"""The one thread on which a worker computes; ("base", job), ("claim", claim) and ("judge", claim) are its keys."""


@dataclass
class TrackedJob:
    """A job that the worker takes part in."""

    ledger: JobLedger
    params: JobParams
    job: Job
    joins: bool = True
    """False if the job is loaded only to defend claims that this key has in it."""
    staked: bool = False
    """True once the stake that its rounds lock was deposited."""
    view: JobView | None = None
    """The latest look."""
    since: dict[Action, Seconds] = field(default_factory=dict)
    """The chain time at which each act was first seen to be possible."""


def claim_of(taken: TrackedJob, r: RoundView, slot: int) -> ClaimId:
    """Returns the id of a slot's claim in the round's attempt.

    For MERGE_SLOT it is only the name of the round's merge in this home. The claim's real id contains the job's
    attempt, which a rewind may still raise before the merge is mined, while the merge's inputs follow from the round's
    attempt.
    """
    return ids.claim_id(taken.ledger.id, r.number, r.state.attempt, slot)
