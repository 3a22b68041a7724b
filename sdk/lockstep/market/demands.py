"""Demands for data (availability challenges): an account that lacks data demands it, a holder answers, and an
unanswered demand returns its bond.

Workers answer demands for their own payloads, paid about their gas; any account, in turn, answers demands for rows,
which earns 60 % of the bond. A row is posted in parts, one per block, each after a commitment, so that a copy from the
mempool cannot claim the reward. Answering accounts also end a demand for a carry that its demander leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING

import numpy as np

from lockstep.base.log import Logger
from lockstep.chain.contracts import Call, Contracts
from lockstep.execution.jobs import Job
from lockstep.execution.merging import fetch_carry, fetch_payload
from lockstep.market.ledger import DemandRecord, Ledger
from lockstep.market.turns import COURTESY_SECONDS, DRAWN, SLACK_SHARE, TURN_SECONDS, Turns
from lockstep.protocol.errors import BlobMissing, Mismatch, RowMissing, Unreachable
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import JobParams, Round
from lockstep.protocol.market import availability
from lockstep.protocol.market.job_rules import PART, answer_floor
from lockstep.protocol.market.prices import PROVER_PERCENT
from lockstep.protocol.market.receipts import Report, accepts
from lockstep.protocol.market.types import Demand, Status
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds

if TYPE_CHECKING:
    from lockstep.storage import ContentStore

DEMAND_EVENTS = {"commit": "precommitted", "answer": "answered", "settle": "settled"}
"""Event that a program prints after an act on a demand, by the first part of the act's outbox key."""

log = Logger(__name__)


class DemandIssuer:
    """Makes one account's demands for data, each at most once, if they pay or protect the account."""

    def __init__(self, contracts: Contracts, me: Address) -> None:
        self._demands = contracts.demands
        self._me = me
        self._since: dict[JobId, Seconds] = {}
        """For each job, the chain time at which a row was first seen to be missing."""
        self._own: dict[ClaimId, int] = {}
        """For each claim, the index of this account's own demand for its carry among the demands on it."""

    def row(self, job: JobId, params: JobParams, missing: RowMissing, now: Seconds) -> tuple[str, Call] | None:
        """Returns (key, transaction) of a demand for a row that the store lacks; None while no demand is to be made.

        It waits for answerSeconds first, because stores may need time to exchange data. It demands one row per job,
        only if 30 % of the deposit exceed the bond, and never a row that was demanded before.
        """
        since = self._since.setdefault(job, now)
        if now < since + params.windows.answer_seconds:
            return None
        if params.deposit * PROVER_PERCENT // 100 <= self._demands.row_bond_of(job, missing.row):
            return None
        # INVARIANT: a row is demanded once: what was posted is public, and what was not has voided the job.
        if self._demands.demand(availability.row_demand_id(job, missing.row)) is not None:
            return None
        return f"demand/row/{job.hex()}", self._demands.demand_row(job, missing.row)

    def payload(
        self, job: JobId, r: int, slot: int, claim: ClaimId, lacking: Sequence[tuple[int, int]] = ()
    ) -> tuple[str, Call]:
        """Returns (key, transaction) of a demand for a payload, while its round is Attesting; an account demands it
        once.

        The demand names the leaves that the account knows to be wrong, otherwise leaves that differ between accounts.
        Earlier demands of others are ignored: an accomplice's answered demand would shield hidden leaves.
        """
        wanted = availability.pack_wanted(lacking, claim + self._me.encode())
        return f"demand/{claim.hex()}", self._demands.unavailable(job, r, slot, wanted)

    def carry(self, job: JobId, r: int, slot: int, claim: ClaimId) -> tuple[str, Call]:
        """Returns (key, transaction) of a demand for the carry that a slot's claim starts from."""
        wanted = availability.pack_wanted((), b"carry" + claim + self._me.encode())
        return f"demand/carry/{claim.hex()}", self._demands.carry_unavailable(job, r, slot, wanted)

    def carry_demand(self, claim: ClaimId) -> Demand | None:
        """Returns this account's own demand for the carry of a claim, as stored; None if it made none.

        The demands on the claim are read in order until it is found; others can put any number before it, at the price
        of their bonds. A reorganisation may change its index.
        """
        found = self._own.get(claim)
        for number in count() if found is None else chain([found], count()):
            stored = self._demands.demand(availability.payload_demand_id(claim, number))
            if stored is not None and (stored.asker, stored.row) == (self._me, availability.CARRY):
                self._own[claim] = number
                return stored
            if stored is None and number != found:
                return None
        return None


def to_demand(reports: Mapping[int, Report], stored: Round) -> int | None:
    """Returns the first slot whose payload is unavailable although the receipts so far would accept it into the merge.

    Without that payload no one could continue from the merge; the demand prevents this. `left_out` returns the slots
    that the receipts exclude.
    """
    let_in = (s for s in _lacking(reports) if accepts(stored.named, stored.spoke, stored.receipts, s))
    return next(let_in, None)


def left_out(reports: Mapping[int, Report], stored: Round) -> list[int]:
    """Returns the slots whose payload is unavailable and that the receipts so far exclude from the merge.

    For each of them the slot's price is burned at the requester's expense, unless a demand goes unanswered: then the
    slot's owner pays.
    """
    return [s for s in _lacking(reports) if not accepts(stored.named, stored.spoke, stored.receipts, s)]


def _lacking(reports: Mapping[int, Report]) -> list[int]:
    return sorted(slot for slot, report in reports.items() if report in (Report.MISSING, Report.REFUSED))


class DemandResponder:
    """Answers the demands on a market for one account."""

    def __init__(self, contracts: Contracts, store: ContentStore, me: Address) -> None:
        self._demands = contracts.demands
        self._market = contracts.market
        self._store = store
        self._me = me
        self._turns = Turns(me)
        self._seen: dict[Digest, tuple[int, Seconds]] = {}
        """For each demanded row, the number of leaves that others have posted, and the chain time of that count."""
        self._inclusion: Seconds | None = None
        self._parts: dict[Digest, list[tuple[int, Call]]] = {}
        """For each row that is being posted, the (end, transaction) of each part."""

    def due(self, ledger: Ledger, job_of: Callable[[JobId], Job | None], now: Seconds) -> Iterator[tuple[str, Call]]:
        """Yields (key, transaction) of every possible answer, and of every own unanswered demand to be settled."""
        for demand in list(ledger.demands.values()):
            if demand.asker == self._me and (due := self.own(demand, now)) is not None:
                yield due
            if now > demand.deadline:
                if demand.asker != self._me and self._holds_up(ledger, demand, now):
                    yield self._end(demand)
                continue
            job = job_of(demand.job)
            found = None if job is None else self._answer(ledger, demand, job, now)
            if found is not None:
                yield found

    def own(self, demand: DemandRecord, now: Seconds) -> tuple[str, Call] | None:
        """Returns (key, transaction) of the next step for this account's own open demand, if any."""
        if now > demand.deadline:
            return self._end(demand)
        # INVARIANT: no hider waits for another draw of leaves: who asked keeps the first.
        if demand.claim is not None and self._demands.fading(demand.id):
            return f"keep/{demand.id.hex()}", self._demands.keep_seed(demand.id)
        return None

    def _holds_up(self, ledger: Ledger, demand: DemandRecord, now: Seconds) -> bool:
        """Returns True if another account's demand for a carry keeps a round open because its demander does not
        end it.
        """
        if demand.claim is None or now <= demand.deadline + COURTESY_SECONDS:
            return False
        # INVARIANT: no round waits for a demand whose asker does not end it: it is a game that anybody may end.
        record = ledger.awaited(demand.claim)
        if record is None or not record.carries:
            return False
        owners = ledger.owners_beside(demand.claim) - {demand.asker}
        if not self._turns.mine(demand.id, demand.deadline + COURTESY_SECONDS, now, owners):
            return False
        stored = self._demands.demand(demand.id)
        return stored is not None and (stored.status, stored.row) == (Status.OPEN, availability.CARRY)

    def _end(self, demand: DemandRecord) -> tuple[str, Call]:
        row = demand.claim is None
        call = self._demands.void_for_row(demand.job, demand.row) if row else self._demands.settle(demand.id)
        return f"settle/{demand.id.hex()}", call

    def _answer(self, ledger: Ledger, demand: DemandRecord, job: Job, now: Seconds) -> tuple[str, Call] | None:
        try:
            return self.row(demand, job, now) if demand.claim is None else self._payload(ledger, demand, job)
        except (BlobMissing, Mismatch, Unreachable) as error:
            log.warning("a demand cannot be answered", demand=demand.id.hex(), why=error.message)
            return None

    def row(self, demand: DemandRecord, job: Job, now: Seconds) -> tuple[str, Call] | None:
        """Returns (key, transaction) of the next step for a demanded row: the commitment to its parts, then each part
        once the one before it is mined; None if the demand is closed, or if it is another account's turn."""
        stored = self._demands.demand(demand.id)
        if stored is None or stored.status != Status.OPEN:
            self._parts.pop(demand.id, None)
            return None
        if demand.id not in self._parts:
            self._parts[demand.id] = self._parts_of(demand, job)
        # INVARIANT: parts are the same after every restart: what was committed to is what is sent.
        left = [(end, call) for end, call in self._parts[demand.id] if end > stored.next]
        commit = self._demands.committed(self._me, [call for _, call in left])
        if commit is not None and not self._may_begin(demand, job.params, stored.next, now):
            return None
        if commit is not None:
            return f"commit/{demand.id.hex()}/{keccak(commit.data).hex()}", commit
        end, call = left[0]
        return f"answer/{demand.id.hex()}/{end}", call

    def _may_begin(self, demand: DemandRecord, params: JobParams, posted: int, now: Seconds) -> bool:
        """Returns True if it is this account's turn to post a row of which others have posted some leaves."""
        if self._inclusion is None:
            self._inclusion = self._market.chain_times().inclusion
        window = params.windows.answer_seconds
        slack = SLACK_SHARE * max(0, window - answer_floor(params.role.row_length, self._inclusion))
        # INVARIANT: no row is late because those who hold it wait for one another.
        if now >= demand.deadline - window + slack:
            return True
        if self._seen.get(demand.id, (0, now))[0] != posted:
            self._seen[demand.id] = posted, now
        # The account that has posted some leaves continues: it has one more turn of its own.
        turn = min(TURN_SECONDS, slack / DRAWN)
        since = self._seen[demand.id][1] + turn if posted else demand.deadline - window
        return self._turns.mine(demand.id + posted.to_bytes(8, "big"), since, now, turn=turn)

    def _parts_of(self, demand: DemandRecord, job: Job) -> list[tuple[int, Call]]:
        tree, rows = availability.row_answer(job.params, job.dataset.reshape(-1).data, demand.row)
        return [
            (begin + len(part), self._demands.answer_row(demand.job, demand.row, tree, begin, part))
            for begin in range(0, len(rows), PART)
            if (part := rows[begin : begin + PART])
        ]

    def _payload(self, ledger: Ledger, demand: DemandRecord, job: Job) -> tuple[str, Call] | None:
        found = None if demand.claim is None else ledger.find(demand.claim)
        # Demands among other accounts cost this account no reads.
        if found is None or found[2].worker != self._me:
            return None
        stored = self._demands.demand(demand.id)
        seed = None if stored is None else self._demands.seed_of(demand.id)
        if stored is None or seed is None:
            return None
        record, program, carry = found[2], job.programs.encode, stored.row == availability.CARRY
        if carry:
            behind = found[0].carry_behind(found[1], record.slot, job.params.role.carry_period)
            if behind is None:
                return None
            record = behind[1]
        # The answer's proofs contain every root of the last state.
        beside = fetch_carry(job, self._store, record.payload) if job.params.role.carries else ()
        tensors = iter((*fetch_payload(job, self._store, record.payload), *beside))
        held = {k: _words(next(tensors)) for k, header in enumerate(program.output_layout) if header is not None}
        shown = availability.payload_answer(stored.wanted, seed, program, held.__getitem__, carry)
        return f"answer/{demand.id.hex()}", self._demands.answer(
            demand.id, record.body, ProgramParts.of(program).code, shown
        )


def _words(tensor: np.ndarray) -> memoryview:
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
