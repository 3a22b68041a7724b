"""Enrols in jobs that draw witnesses, where this machine keeps up, and retires while this process ends.

An enrolment publishes the head of a hash chain. Each duty reveals one link, which determines the step that the witness
replays to: it is fixed at enrolment, and nobody else knows it before the reveal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from typing import Any

from lockstep.base.log import Logger
from lockstep.execution import capacity, footprint
from lockstep.execution.jobs import PROCESSOR_PATHS
from lockstep.market.ledger import AuditLedger, JobLedger, Ledger
from lockstep.protocol.errors import Crashed, LockstepError, ProgramInvalid, Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import draws
from lockstep.protocol.market.types import Standing
from lockstep.protocol.types import Digest, JobId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.keyed_executor import KeyedExecutor, Stopped
from lockstep.runtime.party import Party
from lockstep.runtime.refusals import Refusals
from lockstep.runtime.sender import Sender
from verifier.journal import Journal
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.staking import Wallet
from verifier.telling import EventPrinter

LINKS = 4096
"""Preimages in a hash chain: one for each duty."""

LOAD_SECONDS = Seconds(15)
"""Chain seconds until a job that could not be loaded is tried again."""

ENROL_SECONDS = Seconds(3)
"""Chain seconds until an enrolment that was sent, or was not due, is considered again."""

log = Logger(__name__)


@dataclass(frozen=True)
class Trial:
    """Work for the worker thread: to measure how fast this machine runs a job."""

    job: JobId


class Enrolment:
    """Keeps this account on the jobs' lists of witnesses, with the hash chains that it enrolled with."""

    def __init__(
        self, party: Party, journal: Journal, jobs: LoadedJobs, executor: KeyedExecutor[Any, Any], sender: Sender[None],
        wallet: Wallet, printer: EventPrinter,
    ) -> None:  # fmt: skip
        """`executor` tries jobs while it is free."""
        self._party = party
        self._journal = journal
        self._jobs = jobs
        self._executor = executor
        self._sender = sender
        self._wallet = wallet
        self._printer = printer
        self._fit: set[JobId] = set()
        """Jobs whose duties this machine can do in time."""
        self._refused: set[JobId] = set()
        """Jobs whose refusal was printed."""
        self._given_up: set[JobId] = set()
        self._backoff: Backoff[JobId] = Backoff(capacity.AGAIN_SECONDS)
        self._ended = Refusals(party.settings.home_dir)
        """Jobs that killed the process running their Programs, until a command clears the refusal."""

    def step(self, view: MarketView, job: JobLedger, *, owes: bool) -> None:
        """Enrols in a job, or retires once it is done or this process ends. `owes` is True if a duty may need the
        thread."""
        if view.draining or job.done:
            self._retire(view, job)
            return
        # INVARIANT: one enrolment a job: who was taken off the list has failed a duty, and a person should look why.
        enrolled = (job.id, self._party.address) in view.ledger.heads
        if enrolled or job.id in self._given_up or self._backoff.in_backoff(job.id, view.now):
            return
        if self._ended.of(job.id) is not None:
            return
        if job.id in self._fit:
            self._enrol(view, job.id)
        elif not len(self._executor) and not owes:
            self._executor.begin(Trial(job.id), partial(self._try, job.id, view.params[job.id]))

    def take(self, view: MarketView, trial: Trial) -> None:
        """Takes a trial's result: the job is fit, refused, or tried again later."""
        job = trial.job
        try:
            self._executor.take(trial)
        except Stopped:
            return
        except Crashed as error:
            # INVARIANT: a job whose Programs end what runs them is not tried again, in no later process either.
            self._ended.record(job, error)
            self._printer.print_event("refused", job=job.hex(), code=error.code, message=error.message)
        except (Unfit, ProgramInvalid) as error:
            # A slow machine may have been busy; a Program stays what it is.
            if isinstance(error, Unfit):
                self._backoff.failed(job, view.now)
            else:
                self._given_up.add(job)
            if job not in self._refused:
                self._refused.add(job)
                self._printer.print_event("refused", job=job.hex(), code=error.code, message=error.message)
        except LockstepError as error:
            log.warning(
                "this account cannot enrol as a witness of a job yet", job=job.hex(), why=error.message, hint=error.hint
            )
            self._backoff.failed(job, view.now, at_most=LOAD_SECONDS)
        except Exception:
            # A defect that a stranger's job found ends the witnessing of that job alone.
            log.exception("preparing to witness a job failed by a bug: the job is skipped", job=job.hex())
            self._given_up.add(job)
        else:
            self._fit.add(job)

    def preimage(self, ledger: Ledger, audit: AuditLedger, i: int) -> Digest:
        """Returns the link of this account's hash chain for a duty's serial number."""
        secret = self._journal.secret_of(ledger.heads[audit.state.job, self._party.address])
        if secret is None:
            raise LockstepError(
                "the hash chain that this account enrolled with is not in this home",
                hint="use the home that enrolled it, or retire",
            )
        return draws.chained(Digest(secret), LINKS - audit.duties[i].serial)

    def _try(self, job: JobId, params: JobParams) -> None:
        """Raises Unfit if this machine is too slow for a witness's duties. Runs on the worker thread."""
        # INVARIANT: a witness enrols only where its machine can look as far as a duty may ask.
        public = self._jobs.get(job, params, fits=True)
        taken, chain, require = public.job, self._party.chain_pace(), capacity.require_witness
        if taken.box is not None and taken.path in PROCESSOR_PATHS:
            taken.box.measure(taken, require, chain, footprint.verifier)
        else:
            capacity.keep_up(taken, require, chain, footprint.verifier)

    def _enrol(self, view: MarketView, job: JobId) -> None:
        self._backoff.failed(job, view.now, at_most=ENROL_SECONDS)
        secret = token_bytes(32)
        top = draws.chained(Digest(secret), LINKS)
        if not self._wallet.try_stake(view.params[job].prices.witness_stake, f"witness/{job.hex()}"):
            return
        # INVARIANT: the chain's bottom is on disk before anybody sees its top.
        self._journal.keep_chain(top, secret)
        if self._sender.attempt(f"witness/enrol/{top.hex()}", self._party.contracts.witnesses.enrol(job, top)):
            self._printer.print_event("enrolled", job=job.hex())

    def _retire(self, view: MarketView, job: JobLedger) -> None:
        contract, me = self._party.contracts.witnesses, self._party.address
        # INVARIANT: a witness's stake comes back though its job has ended, once its duties are closed.
        locked = draws.stake_key(job.id, me) in view.ledger.locks
        if locked and contract.witness(job.id, me).standing == Standing.LISTED:
            head = view.ledger.heads[job.id, me]
            self._sender.try_again(f"witness/retire/{job.id.hex()}/{head.hex()}", contract.retire(job.id))
