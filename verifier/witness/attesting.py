"""Attests the availability of a round's payloads as its witness: checks them on a worker thread, signs one receipt a
duty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.base.log import Logger
from lockstep.execution import merging
from lockstep.execution.rounds import Payload
from lockstep.market.ledger import AuditLedger
from lockstep.protocol.errors import LockstepError, RowMissing
from lockstep.protocol.jobs import JobParams, Phase
from lockstep.protocol.market.receipts import FINAL_REPORTS, WITNESS, Report, last_chance, mask_of
from lockstep.protocol.types import AuditId, JobId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.keyed_executor import KeyedExecutor, Stopped
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.decide import ENDED
from verifier.demanding import Demander
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.witness.decide import round_of
from verifier.witness.enrolling import LOAD_SECONDS
from verifier.witness.replaying import RETRY_SECONDS

AGAIN_SECONDS = Seconds(1)
"""Chain seconds until payloads that were missing are fetched again."""

log = Logger(__name__)


@dataclass(frozen=True)
class Judgement:
    """Work for the worker thread: to check the payloads of an audit's round."""

    audit: AuditId


class Attester:
    """Signs and sends the receipts of a round's witness."""

    def __init__(
        self, party: Party, jobs: LoadedJobs, executor: KeyedExecutor[Any, Any], demander: Demander,
        sender: Sender[None],
    ) -> None:  # fmt: skip
        self._party = party
        self._jobs = jobs
        self._executor = executor
        self._demander = demander
        self._sender = sender
        self._reports: dict[AuditId, Mapping[int, Report]] = {}
        self._given: set[AuditId] = set()
        self._backoff: Backoff[AuditId] = Backoff(LOAD_SECONDS)

    def attest(self, view: MarketView, audit: AuditLedger, mine: Sequence[int], *, has_asked: bool) -> None:
        """Signs and sends the receipts of own duties, once every payload is checked or time runs out.

        `has_asked` is True if every missing carry was demanded, which is impossible once all receipts are given.
        """
        job, round_ = round_of(view.ledger, audit)
        a, market = audit.state, self._party.contracts.market
        closed = round_.merge_in is not None or round_.phase in ENDED or job.rounds.get(a.round) is not round_
        if closed or audit.id in self._given or self._backoff.in_backoff(audit.id, view.now):
            return
        stored = market.round(a.job, a.round)
        if market.phase(a.job, a.round) != Phase.ATTESTING:
            return
        params, reports = view.params[a.job], self._reports.get(audit.id)
        last = last_chance(stored.attest_ends, params.role.attest_seconds, view.now)
        missing = reports is None or any(report not in FINAL_REPORTS for report in reports.values())
        if missing and (reports is None or not last):
            if not len(self._executor):
                judge = partial(self._judge, a.job, params, round_.payloads, reports or {})
                self._executor.begin(Judgement(audit.id), judge)
            return
        assert reports is not None
        if not has_asked and not last:
            return
        silent = [WITNESS + i for i in mine if not stored.spoke >> (WITNESS + i) & 1]
        given = self._party.contracts.sign_receipts(
            self._party.account, a.job, a.round, a.attempt, mask_of(reports), silent
        )
        key = f"witness/attest/{audit.id.hex()}"
        if given and self._sender.try_again(key, market.attest(a.job, a.round, given)):
            self._given.add(audit.id)

    def take(self, view: MarketView, judgement: Judgement) -> None:
        """Keeps the reports on the payloads, or schedules a retry."""
        audit = view.ledger.audits.get(judgement.audit)
        try:
            self._reports[judgement.audit] = self._executor.take(judgement) or {}
        except Stopped:
            return
        except LockstepError as error:
            if isinstance(error, RowMissing) and audit is not None:
                self._demander.demand_row(view, audit.state.job, error)
            log.warning("payloads cannot be judged yet", why=error.message, hint=error.hint)
            self._backoff.failed(judgement.audit, view.now, at_most=RETRY_SECONDS)
        except Exception:
            log.exception("judging payloads failed by a bug: trying again later", audit=judgement.audit.hex())
            self._backoff.failed(judgement.audit, view.now)
        else:
            self._backoff.failed(judgement.audit, view.now, at_most=AGAIN_SECONDS)

    def _judge(
        self, job: JobId, params: JobParams, payloads: Mapping[int, Payload], known: Mapping[int, Report]
    ) -> dict[int, Report]:
        """Returns a report on each revealed payload, by slot. Runs on the worker thread."""
        judged = merging.judge_payloads(self._jobs.get(job, params).job, self._party.store, payloads, known)
        return {**known, **{slot: report for slot, report, _ in judged}}
