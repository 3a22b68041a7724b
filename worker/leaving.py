"""Leaves a job that is over: withdraws its pay, and removes its files once this worker has nothing at stake in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.market.acts import Action
from lockstep.market.ledger import Ledger
from lockstep.protocol.types import JobId, Seconds
from lockstep.runtime.sender import Sender
from worker.parts import TrackedJob

if TYPE_CHECKING:
    from worker.parts import WorkerParts


class Leaving:
    """Leaves jobs that are over, and remembers those whose pay was withdrawn."""

    def __init__(self, parts: WorkerParts, sender: Sender[Action]) -> None:
        self._me = parts.address
        self._vault = parts.contracts.vault
        self._sender = sender
        self.done: set[JobId] = set()

    def leave(self, taken: TrackedJob, ledger: Ledger, kept: bool, now: Seconds) -> bool:
        """Withdraws the pay of a job that is done; returns True once nothing of this worker is at stake in it.

        `kept` is True if files of the job lie in this home.
        """
        job = taken.ledger.id
        at_stake = job in ledger.at_stake(self._me)
        if job in self.done and (at_stake or not kept):
            return False
        # What games leave behind is earned after the job's end.
        key = f"withdraw/{job.hex()}" + ("/rest" if job in self.done else "")
        if not self._sender.known(key) and self._vault.credits(self._me):
            self._sender.submit(key, self._vault.withdraw())
            return False
        if not self._sender.idle:
            return False
        if job not in self.done:
            earned = sum(p.amount for p in ledger.pays if p.account == self._me and p.job == job)
            event("done", time=now, job=job.hex(), earned=str(earned))
            self.done.add(job)
        return not at_stake
