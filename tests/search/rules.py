"""Rules that must hold whatever a coalition does; docs/threat-model.md, "Not defended against", lists what is not
promised.

(a) nobody honest ends below its all-honest run: who kept to the programs ends with what it had, and with the price of
    every claim and merge that was accepted, if the job is not void, whatever became of its round; an honest requester
    has lost the pay of what it got, and the price of what the others left out
(b) no coalition ends above its own: it gains at most the pay of what it committed to; of a void job that is its own
    requester's, what no work has earned of the deposit goes to the prover and is burned
(c) a claim that is no longer live never lives again
(d) a stake falls only by proof, equivocation or an owed move missed
(e) `finish` leaves nothing live
(f) every lock ends, in a time that the job's windows bound, and no game is opened on what can be final
(g) money is conserved
(h) of an account with an owner, the owner alone takes stake out, names a delegate and hands the account on, and what
    leaves the vault is the owner's, whoever has the account's own key
(i) stake leaves the vault no earlier than its delay after it was last asked for
(j) no claim is paid that is false, or stands on the carry of a false one, if who is honest looks at it in its window: a
    verifier looks at the claims that it chose and at what they lead to
(k) who starts from a carry and shows it to nobody loses its stake, and the asker's bond returns; whoever shows it has
    the gas of its answer out of the bond, and that is all that an honest asker loses
(l) a carry can be computed again from carryPeriod - 1 claims at most

What (a) says of a claim holds beside demands for its carry: it is neither left out nor convicted for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.protocol.dispute import moves
from lockstep.protocol.jobs import NEVER, ZERO_ADDRESS, Claim, ClaimStatus, JobStatus, Phase
from lockstep.protocol.market import availability, ids, views
from lockstep.protocol.market.calls import Emitted, MarketCall
from lockstep.protocol.market.prices import ANSWER_GAS, PROVER_PERCENT, gas_cost
from lockstep.protocol.market.types import BURN, Demand, Status
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, JobId
from tests.search.carrying import CarryClaim
from tests.search.known import NamedWanderer
from tests.search.scene import ACCOUNTS, COLD, HEIRS, REQUESTER, Scene

SLASHES = frozenset(
    {
        "proveOp",
        "proveAlias",
        "provePadding",
        "equivocate",
        "resolve",
        "seal",
        "freeze",
        "finalize",
        "settle",
        "reveal",
        "answer",
        "answerRow",
    }
)
"""Calls in which a stake or bond may be slashed: a proof, two signatures, an expired clock, slot or verdict."""
OWNERS = frozenset({"UnbondRequested", "Delegated", "OwnerProposed", "OwnerSet"})
"""Events that only an owner may cause for its account."""
SLASHED = frozenset({"Slashed", "BondTaken"})
STEPS_OF_A_CLOCK = 4
"""Bound of JobRules on a clock's steps: an open game extends the next clock by at most a quarter."""


class Violation(AssertionError):
    """Raised for a rule that a history broke."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"({rule}) {message}")
        self.kind = re.sub(r"0x[0-9a-f]+|[0-9]+", "#", str(self))
        """The message without names and numbers, equal for the same violation of another account."""


@dataclass
class Watch:
    """Checks during a history and at its end."""

    scene: Scene
    known: NamedWanderer
    dead: set[ClaimId] = field(default_factory=set)
    seen: set[ClaimId] = field(default_factory=set)
    begun: dict[Address, int] = field(default_factory=dict)
    earned: dict[ClaimId, int] = field(default_factory=dict)
    """Price that an accepted claim must be paid."""
    committed: dict[Address, int] = field(default_factory=dict)
    """Most that an account may earn."""
    late: dict[tuple[int, int], set[ClaimId]] = field(default_factory=dict)
    """Slots taken in the second half of a join window, by (round, attempt)."""
    owners: dict[Address, Address] = field(default_factory=dict)
    """By account: the owner that it named, or that accepted it with that owner's consent."""
    offered: dict[Address, Address] = field(default_factory=dict)
    wallets: dict[Address, int] = field(default_factory=dict)
    """By account with an owner: tokens of its own key."""
    asked: dict[Address, int] = field(default_factory=dict)
    """By account: time of its last request to unbond."""
    owner_acts: int = 0
    """Number of acts by owners."""
    supply: int = 0
    games: int = 0
    """Most games open at a time."""
    bonds: dict[Address, int] = field(default_factory=dict)
    """Amount that an account lost by answered demands for carries, or (above zero) earned by answers."""
    paid: set[ClaimId] = field(default_factory=set)
    """Claims of slots whose price was paid."""

    def __post_init__(self) -> None:
        s = self.scene
        self.begun = {account: s.wealth(account) for account in ACCOUNTS}
        p = s.setting.params
        # Escrow and deposit belong to the requester until they are spent.
        self.begun[REQUESTER] += p.escrow + p.deposit
        self.supply = s.state.total_supply
        self.owners = {account: COLD[account] for account in s.setting.owned}
        self.wallets = {account: s.state.balances[account] for account in s.setting.owned}
        s.listeners.append(self.heard)

    # -- as it goes on

    def heard(self, call: MarketCall, events: Sequence[Emitted]) -> None:
        """Checks the effect of each call: (a), (b), (d), (h)."""
        scene, p = self.scene, self.scene.setting.params
        self._owned(call, events)
        self._unbonded(call, events)
        for event in events:
            if event.name in SLASHED and call.function not in SLASHES:
                raise Violation("d", f"{event} in a call of {call.function}")
        s = scene.state
        if call.contract == "DisputeGame" and call.function == "open":
            self.games = max(self.games, sum(1 for g in s.games.values() if g.phase != moves.GamePhase.CLOSED))
            self._opened(s.claims[call.arguments[0]])
        if (call.contract, call.function) == ("JobMarket", "commit"):
            self.committed[call.sender] = self.committed.get(call.sender, 0) + p.role.slot_price
        if (call.contract, call.function) == ("JobMarket", "merge"):
            self.committed[call.sender] = self.committed.get(call.sender, 0) + p.merge.price
            _, r, *_ = call.arguments
            # Another merge that was valid has been replaced, unpaid.
            for first in [id_ for id_ in self.earned if (s.claims[id_].round, s.claims[id_].is_merge) == (r, True)]:
                del self.earned[first]
            self.earned[s.rounds[scene.job, r].merge_claim] = p.merge.price
        if (call.contract, call.function) == ("JobMarket", "freeze"):
            job, r, _ = call.arguments
            self._frozen(job, r)
        if (call.contract, call.function) == ("JobMarket", "seal"):
            _, r = call.arguments
            ro = s.rounds[scene.job, r]
            left = [id_ for id_ in self.late.get((r, ro.attempt), ()) if s.claims[id_].worker == ZERO_ADDRESS]
            if ro.phase == Phase.FAILED and left:
                raise Violation("a", f"round {r} failed for {len(left)} seats that were left when it was too late")
        if call.contract == "Availability" and call.function in ("answer", "settle"):
            demand = s.demands[call.arguments[0]]
            worker = s.claims[ClaimId(demand.subject)].worker
            self._demanded(demand, worker, events)
            if worker in scene.setting.honest and demand.status == Status.MISSING:
                raise Violation("a", f"{worker} is honest, and its payload counts as missing")
        for event in events:
            if event.name == "Paid" and call.function == "finalize" and event.values[2] != MERGE_SLOT:
                _, r, slot, *_ = event.values
                self.paid.add(ids.claim_id(scene.job, r, s.rounds[scene.job, r].attempt, slot))
            if event.name == "Carried":
                self._carried(*event.values)
            if event.name == "Convicted" and event.contract == "JobMarket":
                claim, worker = event.values[0], event.values[4]
                self.earned.pop(claim, None)
                made = self.known.held.get(claim)
                if worker in scene.setting.honest:
                    raise Violation("a", f"{worker} is honest and was convicted in {call.function}")
                if call.function in ("proveOp", "proveAlias", "provePadding") and made and not made.wrong_from:
                    raise Violation("d", f"a right claim fell by {call.function}")

    def _opened(self, c: Claim) -> None:
        """Checks (f): games delay no round beyond the instant at which it could be final."""
        s, p, job = self.scene.state, self.scene.setting.params, self.scene.job
        _, over = views.over_at(p, s.jobs[job].started, c.round, lambda k: s.rounds[job, k])
        if not c.is_merge and over != NEVER and self.scene.block.time >= over:
            raise Violation("f", f"a game is opened on a claim that could be final since {over}")

    def _carried(self, job: JobId, r: int, slot: int) -> None:
        """Checks (l)."""
        behind, claim = 0, self.known.held[ids.claim_id(job, r, self.scene.state.rounds[job, r].attempt, slot)]
        while isinstance(claim, CarryClaim) and claim.source is not None:
            behind, claim = behind + 1, self.known.held[claim.source]
        if behind >= self.scene.setting.params.role.carry_period:
            raise Violation("l", f"the carry of slot {slot} in round {r} is the work of {behind} claims")

    def _demanded(self, demand: Demand, worker: Address, events: Sequence[Emitted]) -> None:
        """Checks (k): the effect of a demand's end."""
        s, pricing = self.scene.state, self.scene.setting.params.prices
        carry = demand.row == availability.CARRY
        if demand.status == Status.ANSWERED and carry:
            pay = gas_cost(ANSWER_GAS, pricing.gas_price, pricing.fee_cap, self.scene.block.base_fee)
            self.bonds[demand.asker] = self.bonds.get(demand.asker, 0) - pay
            self.bonds[worker] = self.bonds.get(worker, 0) + pay
        if demand.status != Status.MISSING:
            return
        if any(event.name == "BondTaken" for event in events):
            raise Violation("k", f"{demand.asker} loses the bond of a demand that nobody answered")
        claim = ClaimId(demand.subject)
        if carry and views.live(s, claim):
            raise Violation("k", f"claim {claim.hex()[:8]} starts from a carry that nobody shows, and lives")

    def _owned(self, call: MarketCall, events: Sequence[Emitted]) -> None:
        """Checks (h)."""
        s = self.scene.state
        for event in events:
            if event.contract != "StakeVault" or event.name not in OWNERS or event.values[0] not in self.owners:
                continue
            account = event.values[0]
            owner = self.owners[account]
            if event.name == "OwnerSet":
                if call.function != "acceptOwner" or call.sender != self.offered.pop(account, None):
                    raise Violation("h", f"{account} is taken from its owner by {call.function} of {call.sender}")
                self.owners[account] = call.sender
            elif call.sender != owner:
                raise Violation("h", f"{event.name} of {account} by {call.function} of {call.sender}, not its owner")
            elif event.name == "OwnerProposed":
                self.offered[account] = event.values[1]
            self.owner_acts += 1
        for account, owner in self.owners.items():
            if s.owner_of[account] != owner:
                raise Violation("h", f"{account} is owned by {s.owner_of[account]}, not by {owner}")
            if call.contract == "StakeVault" and s.balances[account] > self.wallets[account]:
                raise Violation("h", f"{call.function} of {call.sender} pays the key of {account}, not its owner")
            self.wallets[account] = s.balances[account]

    def _unbonded(self, call: MarketCall, events: Sequence[Emitted]) -> None:
        """Checks (i)."""
        now = self.scene.block.time
        for event in events:
            if event.name == "UnbondRequested":
                self.asked[event.values[0]] = now
            if event.name == "Unbonded" and now < self.asked[event.values[0]] + self.scene.setting.unbond:
                raise Violation("i", f"{call.function} takes stake of {event.values[0]} before its delay is over")

    def _frozen(self, job: bytes, r: int) -> None:
        s, p = self.scene.state, self.scene.setting.params
        ro = s.rounds[job, r]  # type: ignore[index]
        if ro.phase not in (Phase.MERGING, Phase.FAILED):
            return
        for id_, c in s.claims.items():
            if (c.round, c.attempt) != (r, ro.attempt) or c.slot == MERGE_SLOT:
                continue
            if ro.mask >> c.slot & 1 and c.status != ClaimStatus.CONVICTED:
                self.earned[id_] = p.role.slot_price
            lacking = s.asked[id_].missing or s.asked[id_].open
            left_out = c.status in (ClaimStatus.EXCLUDED, ClaimStatus.MISSING)
            if left_out and c.worker in self.scene.setting.honest and lacking:
                raise Violation("a", f"{c.worker} is honest, and left out for a demand")

    def poll(self) -> None:
        """Checks (c), (g) and accounts without a slot, after each block."""
        s, scene = self.scene.state, self.scene
        for id_ in self.dead:
            if views.live(s, id_):
                raise Violation("c", f"claim {id_.hex()[:8]} lives again")
        for id_, c in s.claims.items():
            if c.claimed_at and id_ not in self.dead and not views.live(s, id_):
                self.dead.add(id_)
        if s.owed > s.balances[s.at.vault]:
            raise Violation("g", f"the vault owes {s.owed} and has {s.balances[s.at.vault]}")
        if s.jobs[scene.job].status == JobStatus.DONE:
            # The subject of a game on voided work is frozen until the game is over; in a void job nothing is.
            argued = not views.is_voided(s.jobs[scene.job])
            alive = [id_ for id_ in s.claims if views.live(s, id_) and not (argued and s.claims[id_].open_games)]
            if alive:
                raise Violation("e", f"the job is done and {len(alive)} claims live")

    def seats(self) -> None:
        """Records, before each block, owners of slots at the middle of the window."""
        scene, s = self.scene, self.scene.state
        for r in range(s.jobs[scene.job].started):
            ro = s.rounds[scene.job, r]
            half = ro.join_ends - scene.setting.params.windows.join_seconds // 2
            if views.phase(s, scene.block, scene.job, r) != Phase.JOINING or scene.block.time < half:
                continue
            held = [id_ for id_, c in s.claims.items() if (c.round, c.attempt) == (r, ro.attempt) and not c.is_merge]
            self.late.setdefault((r, ro.attempt), set()).update(held)

    # -- at the end

    def bound(self) -> int:
        """Returns the seconds after the coalition's last act within which every lock must end."""
        p = self.scene.setting.params
        windows = p.windows.join_seconds + p.role.train_seconds + p.role.reveal_seconds + p.role.attest_seconds
        windows += (p.role.slots + 3) * p.merge.turn_seconds + p.windows.challenge_seconds + 3 * p.windows.audit_seconds
        rounds = p.schedule.rounds + p.schedule.max_fail + 2
        clock = min(int(p.windows.clock_seconds), 600)
        games = 4 * clock + self.games * (clock // STEPS_OF_A_CLOCK + 1)
        return (
            2 * rounds * windows
            + games
            + 2 * int(p.windows.answer_seconds)
            + (int(p.windows.clock_seconds) if p.role.carries else 0)
            + 200 * int(self.scene.setting.chain.inclusion)
        )

    def end(self) -> None:
        """Checks (a), (b), (f) at the end."""
        s, scene = self.scene.state, self.scene
        setting = scene.setting
        left = [lock for key, lock in s.locks.items() if lock.amount and not self._given_up(Digest(key))]
        if left or s.jobs[scene.job].status != JobStatus.DONE:
            raise Violation(
                "f", f"after {self.bound()} s {len(left)} locks are left, the job is {s.jobs[scene.job].status.name}"
            )
        void = views.is_voided(s.jobs[scene.job])
        self._looked_at()
        for account in setting.honest:
            due = self._due(account, void=void)
            if scene.wealth(account) < due:
                raise Violation("a", f"{account} ends with {scene.wealth(account) - due} of what it is due")
        self._coalition(void=void)
        given = s.balances[s.at.vault] - s.owed
        known = {*ACCOUNTS, *COLD.values(), *HEIRS.values(), s.at.vault}
        elsewhere = sum(n for holder, n in s.balances.items() if holder not in known)
        total = sum(map(scene.wealth, ACCOUNTS)) + s.credits[BURN] + elsewhere + given + s.total_escrow
        if total != self.supply:
            raise Violation("g", f"{self.supply - total} tokens are nobody's")

    def _given_up(self, key: Digest) -> bool:
        """Returns True if a lock is the bond of a demand on a voided claim, which its demander in the coalition could
        reclaim at any time.
        """
        s, demand = self.scene.state, self.scene.state.demands[key]
        if demand.status != Status.OPEN or not demand.beacon or demand.asker in self.scene.setting.honest:
            return False
        fallen = s.claims[ClaimId(demand.subject)].status == ClaimStatus.CONVICTED
        return fallen and self.scene.block.time > demand.deadline

    def _looked_at(self) -> None:
        """Checks (j)."""
        s, known = self.scene.state, self.known
        for id_ in self.paid:
            made = known.held[id_]
            source = made.source if isinstance(made, CarryClaim) else None
            if source is not None and source not in self.paid:
                raise Violation("j", f"claim {id_.hex()[:8]} is paid, and what it starts from is not")
        for id_, made in known.held.items():
            c = s.claims[id_]
            if c.is_merge or not c.claimed_at or not self.scene.setting.looks_at(id_):
                continue
            if s.rounds[c.job, c.round].phase != Phase.FINAL or s.rounds[c.job, c.round].attempt != c.attempt:
                continue
            wrong = known.wrong_behind(id_) or (id_ if made.wrong_from else None)
            if wrong in self.paid:
                raise Violation("j", f"claim {id_.hex()[:8]} was looked at, and a false claim is paid")

    def _due(self, account: Address, *, void: bool) -> int:
        """Returns the least final wealth of an honest account."""
        s, p = self.scene.state, self.scene.setting.params
        due = self.begun[account] + self.bonds.get(account, 0)
        if not void:
            due += sum(pay for id_, pay in self.earned.items() if s.claims[id_].worker == account)
        if account == REQUESTER:
            # The requester's expected expense: the pay of every possible round, with its witnesses.
            due -= s.jobs[self.scene.job].paid
            if void and not self.scene.setting.row_known:
                # Its own fault: a dataset that no one has.
                due -= p.deposit
        return due

    def _coalition(self, *, void: bool) -> None:
        """Checks that the coalition gains at most the pay of its work, and that its requester has paid for its own."""
        s, scene, p = self.scene.state, self.scene, self.scene.setting.params
        members = scene.setting.coalition
        gain = sum(scene.wealth(account) - self.begun[account] for account in members)
        fees = p.role.witness_fee * sum(1 for d in s.duties.values() if d.account in members)
        shown = sum(self.bonds.get(account, 0) for account in members)
        most = sum(self.committed.get(account, 0) for account in members) + fees
        if REQUESTER in members:
            # Payments to itself are no gain.
            most = 0
            if void:
                work = sum(self.committed.values())
                most = -(max(0, p.deposit - work) * (100 - PROVER_PERCENT) // 100)
        if void and REQUESTER not in members:
            most += p.deposit
        most += shown
        if gain > most:
            raise Violation("b", f"the coalition gains {gain}, at most {most}")
