"""Checks that a job's requester pays, that this machine keeps up with one more claim of it and computes its bits, and
that the account can back it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.execution import capacity, comparing, footprint
from lockstep.execution.box import loading
from lockstep.execution.box.handle import Cancelled, Overdue
from lockstep.execution.capacity import ChainPace, LiveClaim, Pace
from lockstep.execution.jobs import PROCESSOR_PATHS
from lockstep.execution.rates import slot_operations
from lockstep.market.acts import Action
from lockstep.protocol.errors import Crashed, FundsError, TryLater, Unfit, WrongBits
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.runtime.sender import Sender
from worker import decide
from worker.backing import Funds, answer_unpaid, backing_of
from worker.notes import Note
from worker.parts import TrackedJob
from worker.requesters import RequesterHistory, history_with

if TYPE_CHECKING:
    from worker.parts import WorkerParts

FIRST_SECONDS = 120.0
"""The first look at a job; one that takes longer is taken while no other job waits."""
DEPOSITS = "stake/"
"""The prefix of the outbox key of every deposit."""
StakeWanted = Callable[[JobParams], Wei]
"""Computes the free stake that a job wants, from its parameters, in wei."""


class Admission:
    """The checks that a job passes before it is joined: pace, bits, room for one more claim, stake."""

    def __init__(
        self, parts: WorkerParts, sender: Sender[Action], stake_wanted: StakeWanted = decide.stake_wanted
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._stake_wanted = stake_wanted
        self._executor: KeyedExecutor[JobId, Pace] = KeyedExecutor("pace")
        self._paces: dict[JobId, Pace] = {}
        self._long: set[JobId] = set()
        """Jobs whose first look was not done in its time."""
        self._long_look: TrackedJob | None = None
        """The one of them that is looked at now."""
        self._paying: dict[JobId, bool] = {}
        self._unfit: Backoff[JobId] = Backoff(capacity.AGAIN_SECONDS)
        self._unfunded: Backoff[JobId] = Backoff(capacity.AGAIN_SECONDS)
        self._chain = ChainPace()
        self._fee = 0
        self._chain_at = Seconds(0)
        self._had: tuple[int, dict[Address, RequesterHistory]] = (-1, {})
        """The block up to which dealings with requesters were counted, and what they were."""
        self._boundary = ErrorBoundary()

    def fits(self, taken: TrackedJob, live: Iterable[TrackedJob], now: Seconds) -> bool:
        """Tells if a job pays enough, and this machine keeps up with it and could defend one more claim of it beside
        the `live` ones."""
        paid = self._has_paid(taken, now) and self._pays(taken, now) and self._pays_answers(taken, now)
        return paid and self._pace(taken, now) is not None and self._has_room(taken, live, now)

    def stake(self, taken: TrackedJob, free: Wei, at_stake: bool, now: Seconds) -> None:
        """Deposit once a job what its rounds in flight can lock. A job whose claim and merge the account cannot cover
        is refused, and tried again later; FundsError if there is nothing at all, and nothing `at_stake`."""
        job, me = taken.ledger.id, self._parts.address
        key = f"{DEPOSITS}{job.hex()}"
        if self._sender.known(key):
            taken.staked = True
            return
        if self._unfunded.in_backoff(job, now):
            return
        ledger, policy = self._parts.watcher.ledger, self._parts.policy
        wanted = self._stake_wanted(taken.params)
        if wanted > free and policy.max_stake is not None and not self._deposits_known():
            return
        funds = Funds(me, free, self._parts.contracts.token.balance_of(me), ledger.deposits.get(me, 0))
        backed = backing_of(taken.params, wanted, funds, policy)
        if backed.code:
            if backed.code == "funds" and not backed.covered and not at_stake:
                raise FundsError(backed.message, hint="send the account more of the job's token")
            self._unfunded.failed(job, now)
            self._refuse(job, backed.code, backed.message, now, self._unfunded)
            return
        amount = backed.amount
        if amount:
            self._sender.submit(key, self._parts.party.deposit(amount, now))
        taken.staked = True

    def close(self) -> None:
        """Stops the measurement."""
        self._executor.close(wait=False)

    def _refuse(self, job: JobId, code: str, message: str, now: Seconds, backoff: Backoff[JobId] | None = None) -> None:
        self._parts.notes.refused(job, Note(code, message, None if backoff is None else backoff.until(job)), now)

    def _deposits_known(self) -> bool:
        """Returns True if the ledger contains every deposit that this home has ever sent."""
        last = self._parts.outbox.last_block(DEPOSITS)
        return last is not None and last <= self._parts.watcher.block

    def _has_paid(self, taken: TrackedJob, now: Seconds) -> bool:
        """Returns True unless the requester owes this account pay for `--max-unpaid` or more rounds (0: no limit);
        notes the refusal otherwise."""
        watcher, requester = self._parts.watcher, taken.ledger.requester
        if self._had[0] != watcher.block:
            self._had = watcher.block, {}
        counted = self._had[1]
        if requester not in counted:
            counted[requester] = history_with(watcher.ledger, requester, self._parts.address)
        unpaid = self._parts.policy.refuses_history(requester, counted[requester])
        if unpaid:
            self._refuse(taken.ledger.id, "unpaid", unpaid, now)
        return not unpaid

    def _pays_answers(self, taken: TrackedJob, now: Seconds) -> bool:
        self._look(now)
        unpaid = answer_unpaid(taken.params, self._fee)
        if unpaid:
            note = Note("bond", unpaid, self._chain_at)
            self._parts.notes.refused(taken.ledger.id, note, now)
        return not unpaid

    def _pays(self, taken: TrackedJob, now: Seconds) -> bool:
        job = taken.ledger.id
        if job not in self._paying:
            held = taken.job
            steps = taken.params.role.inner_steps
            operations = slot_operations(held.programs, steps) if held.box is None else held.box.operations
            unpaid = self._parts.policy.refuses_price(taken.params, operations)
            self._paying[job] = not unpaid
            if unpaid:
                self._refuse(job, "policy", unpaid, now)
        return self._paying[job]

    def _pace(self, taken: TrackedJob, now: Seconds) -> Pace | None:
        """Returns a job's pace on this machine once its bits have passed the check here. A machine that does not keep
        up is measured again after a while."""
        job = taken.ledger.id
        if job in self._paces:
            return self._paces[job]
        if not self._unfit.in_backoff(job, now):
            self._begin(taken)
        try:
            pace = self._executor.take(job)
        except Cancelled:
            return None
        except (WrongBits, Crashed) as error:
            if isinstance(error, Overdue) and job not in self._long:
                self._long.add(job)
                note = Note("busy", f"{error.message}: it is looked at again while no other job waits")
                self._parts.notes.waits(job, note)
                return None
            # INVARIANT: a job that this machine computes wrongly, or that ends what runs it, is neither staked on nor
            # joined.
            self._parts.refusals.record(job, error)
            self._refuse(job, error.code, error.message, now)
            return None
        except (Unfit, TryLater) as error:
            self._unfit.failed(job, now)
            self._refuse(job, error.code, error.message, now, self._unfit)
            return None
        if pace is not None:
            self._paces[job] = pace
            event(
                "paced", time=now, job=job.hex(), trains=pace.trains, defends=pace.defends,
                step_seconds=round(pace.step, 6), shown_seconds=round(pace.shown, 6),
            )  # fmt: skip
        return pace

    def _begin(self, taken: TrackedJob) -> None:
        """Starts checking a job, unless a check is under way; one that takes long starts when no other job waits."""
        job, long = taken.ledger.id, self._long_look
        if job in self._executor:
            return
        if job in self._long:
            if self._executor.idle:
                self._long_look = taken
                self._executor.begin(job, partial(self._measure, taken, loading.LOOK_SECONDS))
            return
        # INVARIANT: a job that takes long to look at keeps no other from being looked at.
        if long is not None and long.ledger.id in self._executor and long.job.box is not None:
            long.job.box.stop()
        self._executor.begin(job, partial(self._measure, taken, FIRST_SECONDS))

    def _measure(self, taken: TrackedJob, at_most: float) -> Pace:
        job, box, chain = taken.job, taken.job.box, self._parts.party.chain_pace()
        fetched = footprint.fetched_bytes(job.programs, job.params, job.wire_format)
        capacity.require_fetched(job.params, fetched, self._parts.download_bytes)
        if box is not None and job.path in PROCESSOR_PATHS:
            pace = box.measure(job, capacity.require_claimant, chain, at_most=at_most)
            box.compare(job, at_most)
        else:
            # A device's Programs run here, once a child has run them on the processor, as far as it can.
            if box is not None:
                box.compare_first(job, at_most)
            pace = capacity.keep_up(job, capacity.require_claimant, chain)
            comparing.check_job(job)
        capacity.require_prompt(job.params, pace)
        return pace

    def _has_room(self, taken: TrackedJob, live: Iterable[TrackedJob], now: Seconds) -> bool:
        """Returns True if one more claim of a job could be defended together with every live claim of every job."""
        self._look(now)
        claims = [self._planned(other) for other in live]
        try:
            capacity.require_all([*claims, self._planned(taken)], self._chain)
        except Unfit as error:
            self._boundary.log(error, (taken.ledger.id, "room", len(claims)))
            self._parts.notes.waits(taken.ledger.id, Note("room", error.message))
            return False
        return True

    def _look(self, now: Seconds) -> None:
        """Looks at the chain now and then: how fast it is, and what gas costs there."""
        if self._chain_at <= now:
            party = self._parts.party
            self._chain, self._fee = party.chain_pace(), party.base_fee()
            self._chain_at = Seconds(now + capacity.AGAIN_SECONDS)

    def _planned(self, taken: TrackedJob) -> LiveClaim:
        return capacity.live_claim(taken.params, self._paces.get(taken.ledger.id))
