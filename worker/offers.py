"""Open jobs as offers to this machine: what each may earn and lose, and why the worker would not join it.

    offers_of(account, settings, None, fees, tries=False)      # every open job; nothing is signed, staked or joined

The reasons have the codes of `worker why`, since a running worker follows the same rules (worker/admission.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN, tokens
from lockstep.base.durations import moment, readable_seconds
from lockstep.base.machine import readable
from lockstep.base.naming import identified, short
from lockstep.chain import gas
from lockstep.execution import capacity, comparing, durations, footprint, invalidity
from lockstep.execution.box.loading import JobBox, Planned
from lockstep.execution.footprint import Fitting
from lockstep.execution.jobs import PROCESSOR_PATHS, load_programs, wire_of
from lockstep.execution.quoting import drawn_tokens, estimated
from lockstep.execution.rates import price_of
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import JobId, Seconds, Wei
from lockstep.runtime.party import base_fee_of, pace_of
from lockstep.runtime.refusals import Refusals
from lockstep.runtime.staking import Holdings
from lockstep.storage import open_store
from worker import decide
from worker.backing import Backing, Funds, answer_unpaid, backing_of
from worker.explaining import trouble_of
from worker.notes import Note, of_refusal
from worker.policy import Policy
from worker.requesters import history_with

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.chain.gas import Fees
    from lockstep.execution.capacity import ChainPace, Pace
    from lockstep.execution.jobs import JobPrograms
    from lockstep.market.ledger import JobLedger
    from lockstep.protocol.jobs import JobParams, JobState
    from lockstep.storage import ContentStore
    from worker.account import Account

HOUR = 3600
_LEFT_ON_DISK = 2
"""Copies of the state and of the checkpoint on disk: the one in use, and the one that comes after it."""


@dataclass(frozen=True)
class MachineFit:
    """The time, memory and operations that one job takes on this machine."""

    pace: Pace
    how: str
    """"measured" or "estimated"."""
    operations: int
    """Operations that a slot computes in a round."""
    tokens: int
    """Tokens of the dataset that a slot trains on in a round."""
    work: float
    """Seconds for the steps of a slot, its encoding and the check of one step."""
    round: float
    """Seconds from a round's start to the next one's, if everybody is as quick."""
    memory: int
    disk: int
    device: int | None
    """Bytes of memory of the device that computes; None: the processor computes."""


@dataclass(frozen=True)
class JobOffer:
    """One open job as an offer to this worker: pay, cost, stake, time and the reasons against joining."""

    job: JobId
    requester: str
    params: JobParams
    books: JobState
    machine: MachineFit | None
    """None if the job's Programs cannot be fetched or must not be run."""
    stake: Backing
    wanted: Wei
    """Free stake that always suffices for the job, in wei (`decide.stake_wanted`)."""
    fees: Fees
    reasons: tuple[Note, ...]
    """Reasons why a worker here would not join the job now; empty if it would."""

    @property
    def price(self) -> Wei:
        """The pay for 10^15 operations, in wei; 0 where a slot's operations are not known."""
        return Wei(0) if self.machine is None else price_of(self.params.role.slot_price, self.machine.operations)

    @property
    def million(self) -> Wei:
        """The slot's pay for a million tokens of the dataset, in wei; 0 where their number is not known."""
        drawn = 0 if self.machine is None else self.machine.tokens
        return Wei(self.params.role.slot_price * 10**6 // drawn) if drawn else Wei(0)

    @property
    def hourly(self) -> tuple[Wei, Wei]:
        """(tokens, coin for gas) of an hour with a slot in every round."""
        if self.machine is None:
            return Wei(0), Wei(0)
        rounds = HOUR / max(self.machine.round, 1e-9)
        paid, spent = self.params.role.slot_price, self.fees.cost(gas.WORKER_ROUND)
        return Wei(int(paid * rounds)), Wei(int(spent * rounds))

    @property
    def locked_seconds(self) -> int:
        """The longest time that a claim's stake is locked, if nobody challenges it and no round before it fails."""
        return durations.longest_round(self.params) + durations.longest_hold(self.params)

    def to_dict(self) -> dict[str, Any]:
        """Returns the offer as JSON: amounts are decimal strings, durations are seconds."""
        p, (paid, spent) = self.params, self.hourly
        return {
            "job": self.job.hex(),
            "requester": self.requester,
            "joins": not self.reasons,
            "reasons": [{"code": n.code, "message": n.message, "next": n.next} for n in self.reasons],
            "rounds": {"all": p.schedule.rounds, "left": max(0, p.schedule.rounds - self.books.started)},
            "earns": {
                "slot_price": str(p.role.slot_price), "merge_price": str(p.merge.price), "price": str(self.price),
                "hour_paid": str(paid), "hour_gas_cost": str(spent),
            },
            "risks": {
                "slot_stake": str(p.role.slot_stake), "merge_stake": str(p.merge.stake),
                "absence_fee": str(p.role.slot_price), "most_stake": str(self.wanted),
                "deposit": str(self.stake.amount), "locked_seconds": self.locked_seconds,
            },
            "gas": {
                "price": str(self.fees.price), "stated": self.fees.stated,
                "round_cost": str(self.fees.cost(gas.WORKER_ROUND)), "merge_cost": str(self.fees.cost(["merge"])),
                "once_cost": str(self.fees.cost(gas.WORKER_ONCE + gas.WORKER_END)),
            },
            "machine": None if self.machine is None else {
                "how": self.machine.how, "step_seconds": self.machine.pace.step,
                "shown_seconds": self.machine.pace.shown, "work_seconds": self.machine.work,
                "round_seconds": self.machine.round, "train_seconds": p.role.train_seconds,
                "slot_operations": str(self.machine.operations), "memory": self.machine.memory,
                "disk": self.machine.disk,
                **({} if self.machine.device is None else {"device_memory": self.machine.device}),
            },
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Returns the offer as lines of text."""
        p, (paid, spent) = self.params, self.hourly
        left = max(0, p.schedule.rounds - self.books.started)
        once = tokens(self.fees.cost(gas.WORKER_ONCE + gas.WORKER_END), 3, COIN)
        verbs, merge = self.fees.cost(gas.WORKER_ROUND), self.fees.cost(["merge"])
        span = readable_seconds(self.locked_seconds)
        rows = [
            f"job {short(self.job)}  of {self.requester}, {left} of {p.schedule.rounds} rounds to start",
            f"  earns    slot {tokens(p.role.slot_price)} a round, merge {tokens(p.merge.price)}",
            f"  risks    slot {tokens(p.role.slot_stake)}, merge {tokens(p.merge.stake)} if a claim is proven wrong",
            f"           {tokens(p.role.slot_price)} for a slot that is joined and not revealed in time",
            f"  locked   up to {tokens(self.wanted)} in all, each claim's stake for at most {span} if undisputed",
            f"  gas      {tokens(verbs, 3, COIN)} a round, {tokens(merge, 3, COIN)} a merge, {once} once",
            f"           at {self.fees.text()}",
        ]
        if self.machine is not None:
            m = self.machine
            beside = "" if m.device is None else f", {readable(m.device)} of the device's"
            rows += [
                f"  price    {tokens(self.million, 4)} for a million tokens",
                f"           {tokens(self.price, 4)} for 10^15 operations",
                f"           a slot trains on {m.tokens:,} tokens a round, and computes {m.operations:.3g} operations",
                f"  machine  {m.work:.3g} s of work a round ({m.how}), {p.role.train_seconds} s are given",
                f"           {readable(m.memory)} of memory{beside}, about {readable(m.disk)} of disk",
                f"  an hour  {tokens(paid, 4)} for {tokens(spent, 3, COIN)} of gas, with a slot in every round",
            ]
        rows += [f"  not now  {n.code}: {n.message}" for n in self.reasons] or ["  a worker here joins it"]
        return rows


def offers_of(account: Account, settings: Settings, only: str | None, fees: Fees, *, tries: bool) -> list[JobOffer]:
    """Returns an offer for every open job, or for the one whose id begins with `only`; raises UsageError,
    NotFoundError."""
    jobs = {job: known for job, known in account.ledger.jobs.items() if not known.done}
    if only is not None:
        wanted = JobId(identified(only, jobs, "open job", "`lockstep train list` shows every job"))
        jobs = {wanted: jobs[wanted]}
    with closing(open_store(settings.storage)) as store:
        chain = pace_of(account.contracts.vault.w3, account.contracts.market) if jobs else capacity.ChainPace()
        vault, chain_id = account.contracts.vault, account.contracts.addresses.chain_id
        base_fee = base_fee_of(vault.w3, chain_id) if jobs else 0
        look = _Look(account, settings, store, Policy.of(settings), chain, base_fee, fees, tries)
        return [look.at(known) for known in jobs.values()]


@dataclass(frozen=True)
class _Look:
    """The account, settings, limits and chain data with which every job is looked at."""

    account: Account
    settings: Settings
    store: ContentStore
    policy: Policy
    chain: ChainPace
    base_fee: int
    """Wei of coin for a unit of gas on the chain now, whatever price somebody stated."""
    fees: Fees
    tries: bool

    def at(self, known: JobLedger) -> JobOffer:
        """Returns the offer of one job; what keeps the job from being joined becomes a reason of it, not an error."""
        market, me, job = self.account.contracts.market, self.account.address, known.id
        params, reasons = market.params(job), list[Note]()
        if trouble := trouble_of(self.account):
            reasons.append(trouble)
        if unwanted := self.policy.refuses_requester(known.requester):
            reasons.append(Note("policy", unwanted))
        if refusal := Refusals(self.account.home).of(job):
            reasons.append(of_refusal(refusal))
        if unpaid := self.policy.refuses_history(
            known.requester, history_with(self.account.ledger, known.requester, me)
        ):
            reasons.append(Note("unpaid", unpaid))
        if unpaid := answer_unpaid(params, self.base_fee):
            reasons.append(Note("bond", unpaid))
        machine = self._machine(job, params, reasons)
        held = Holdings.of(self.account.contracts, me)
        funds = Funds(me, held.free, held.wallet, self.account.ledger.deposits.get(me, 0))
        wanted = decide.stake_wanted(params)
        stake = backing_of(params, wanted, funds, self.policy)
        if stake.code:
            reasons.append(Note(stake.code, stake.message))
        if held.coin < self.fees.cost(gas.WORKER_ONCE + gas.WORKER_ROUND):
            least = tokens(self.fees.cost(gas.WORKER_ONCE + gas.WORKER_ROUND), 3, COIN)
            reasons.append(Note("gas", f"the account holds {tokens(held.coin, 4, COIN)}, a first round takes {least}"))
        if closed := self.policy.closed_now():
            now = account_time(self.account)
            reasons.append(Note("hours", f"--hours opens at {moment(now + closed)}", now + closed))
        return JobOffer(
            job, known.requester, params, market.job(job), machine, stake, wanted, self.fees, tuple(reasons)
        )  # fmt: skip

    def _machine(self, job: JobId, params: JobParams, reasons: list[Note]) -> MachineFit | None:
        limit, s = self.settings.max_memory_mib, self.settings
        fits = Fitting(footprint.worker, limit << 20 if limit else None, s.path)
        with JobBox(job, params, self.store, s.threads, s.path, fits) as box:
            try:
                planned = box.plan()
                spec, programs = load_programs(params, self.store)
                return self._judged(job, params, box, planned, fits, programs, wire_of(spec), reasons)
            except LockstepError as error:
                reasons.append(Note(error.code, error.message))
                return None

    def _judged(
        self, job: JobId, params: JobParams, box: JobBox, planned: Planned, fits: Fitting, programs: JobPrograms,
        wire: str, reasons: list[Note],
    ) -> MachineFit:  # fmt: skip
        """Compares the job with this machine's memory, pace and claims; appends a reason for each check that fails."""

        def checked(check: Callable[[], object]) -> bool:
            try:
                check()
            except LockstepError as error:
                reasons.append(Note(error.code, error.message))
                return False
            return True

        memory, share = planned.memory, fits.share(programs, params)
        if share is None:
            fit = checked(box.require)
        else:
            memory = footprint.worker(programs, params.role.slots, share.beside).total
            fit = checked(lambda: fits.judge(share.need(footprint.worker, programs, params.role.slots).total))
        if unpaid := self.policy.refuses_price(params, planned.operations):
            reasons.append(Note("policy", unpaid))
        pace, how = self._estimated(box, programs), "estimated"
        if self.tries and fit:
            measured: list[Pace] = []
            checked(lambda: measured.append(self._measured(job, params, box)))
            if measured:
                pace, how = measured[0], "measured"
        checked(lambda: capacity.require_claimant(params, pace, self.chain))
        checked(lambda: capacity.require_prompt(params, pace))
        fetched = footprint.fetched_bytes(programs, params, wire)
        checked(lambda: capacity.require_fetched(params, fetched, self.settings.download_bytes))
        live = [
            capacity.live_claim(self.account.contracts.market.params(self.account.ledger.places[claim][0]), None)
            for claim in self.account.ledger.staked(self.account.address)
        ]
        if live:
            try:
                capacity.require_all([*live, capacity.live_claim(params, pace)], self.chain)
            except LockstepError as error:
                reasons.append(Note("room", error.message))
        work = params.role.transitions * pace.step + pace.shown
        drawn = params.role.inner_steps * drawn_tokens(programs.step)
        return MachineFit(
            pace, how, planned.operations, drawn, work, durations.prompt_round(params, work, self.chain.block),
            memory, _disk(programs, params, planned.results), None if share is None else share.total,
        )  # fmt: skip

    def _estimated(self, box: JobBox, programs: JobPrograms) -> Pace:
        """Returns a job's estimated pace. A device's rates are measured in this process, once a child has planned the
        job."""
        s = self.settings
        return box.estimate() if s.path in PROCESSOR_PATHS else estimated(programs, s.threads, s.path)

    def _measured(self, job: JobId, params: JobParams, box: JobBox) -> Pace:
        """Runs some first steps, compares their bits and returns their pace; runs none on a machine that would be late
        at any pace."""
        s = self.settings
        loaded = invalidity.load(job, params, self.store, s.threads, s.path)
        capacity.require_claimant(params, capacity.least(loaded), self.chain)
        if s.path in PROCESSOR_PATHS:
            pace = box.measure(loaded, capacity.require_nothing, self.chain)
            box.compare(loaded)
        else:
            box.compare_first(loaded)
            pace = capacity.measure(loaded)
            comparing.check_job(loaded)
        return pace


def account_time(account: Account) -> Seconds:
    """Returns the timestamp of the latest block."""
    return Seconds(account.contracts.vault.w3.eth.get_block("latest")["timestamp"])


def _disk(programs: JobPrograms, params: JobParams, results: int) -> int:
    """Returns roughly the bytes on disk while the job runs: the dataset, checkpoints, payloads and states in
    progress."""
    dataset = footprint.WORD_BYTES * params.role.dataset_rows * params.role.row_length
    kept = footprint.checkpoint_bytes(programs) + results
    return dataset + _LEFT_ON_DISK * kept + params.role.slots * footprint.payload_bytes(programs, params.role.slots)
