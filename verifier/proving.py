"""Convicts without a game: a job that breaks a rule, or a worker that signed two claims for one slot."""

from __future__ import annotations

from functools import partial

from lockstep.execution.invalidity import Undefendable, proof
from lockstep.protocol.types import ClaimId, JobId
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.equivocation import Equivocations, key_of
from verifier.reading import MarketView
from verifier.telling import EventPrinter


class Prover:
    """Submits the proofs that contracts verify by themselves."""

    def __init__(
        self,
        party: Party,
        equivocations: Equivocations,
        sender: Sender[None],
        printer: EventPrinter,
        backoff: Backoff[ClaimId],
    ) -> None:
        """`backoff` holds the claims that are not to be tried now."""
        self._party = party
        self._equivocations = equivocations
        self._sender = sender
        self._printer = printer
        self._backoff = backoff
        self._voided: set[JobId] = set()

    def step(self, view: MarketView) -> None:
        """Convicts workers that signed two claims for one slot, without a game or a bond."""
        self._equivocations.step(view.ledger)
        for record, call in self._equivocations.due(view.ledger):
            if self._backoff.in_backoff(record.id, view.now):
                continue
            self._backoff.failed(record.id, view.now)
            if self._sender.attempt(key_of(record.id), call):
                self._printer.print_event(
                    "equivocated", claim=record.id.hex(), round=record.round, slot=record.slot, worker=record.worker
                )

    def void(self, job: JobId, error: Undefendable) -> None:
        """Voids a job that breaks a rule, once: commits to the proof, then reveals it."""
        if job in self._voided:
            return
        due = partial(proof, self._party.contracts.validator, self._party.address, job, error.evidence)
        key, call = due()
        if key.startswith("commit"):
            if self._sender.attempt(key, call):
                self._printer.print_event("precommitted", job=job.hex())
            key, call = due()
        if not key.startswith("commit"):
            self._voided.add(job)
            if self._sender.attempt(key, call):
                self._printer.print_event("voided", job=job.hex(), rule=error.rule.name.lower())

    def close(self) -> None:
        """Waits for the request in flight, at most its timeout."""
        self._equivocations.close()
