"""A society of workers, round by round: who is honest, who lies and how, what each of them has in the end.

What gas costs is asked of protocol/market/prices.py, what a verdict moves of lockstep/economics.py. Drawn here is what
the protocol draws: seats, witnesses, how far each of them looks. Arrays are over accounts (N), or jobs and seats
(J, slots); money is int64, so that sums are exact: `Rules` says in which unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.protocol.market import prices
from lockstep.protocol.types import Wei

Array = np.ndarray


class Kind(IntEnum):
    """The behaviour of an account, which it keeps."""

    HONEST = 0
    LAZY = 1
    """Skips the second half of the steps of every claim."""
    OCCASIONAL = 2
    """Skips a whole claim, one round in ten."""
    CARTEL = 3
    """Skips a whole claim, one round in four; members are witnesses too, and agree to each other's lies."""
    SYBIL = 4
    """Skips every claim under many names, and challenges itself first: all that challengers get is its own."""
    CHALLENGER = 5
    """Works, and challenges claims that are right."""
    WITHHOLDER = 6
    """Works, and publishes no step roots: who looks must replay everything."""
    SILENT = 7
    """Takes slots and reveals nothing."""
    RATIONAL = 8
    """Does what pays best, as far as it knows; its own challenger if it lies. Now and then one tries another way."""
    VANDAL = 9
    """Works; once later rounds stand on its own merge, which is right, it convicts itself and is its own challenger."""


LEVELS = (0.0, 0.25, 0.5, 1.0)
"""Shares of a claim's work that the rational choose to skip."""

NOBODY = -1

SHARES = {
    Kind.LAZY: 0.05, Kind.OCCASIONAL: 0.05, Kind.CARTEL: 0.05, Kind.SYBIL: 0.03, Kind.CHALLENGER: 0.01,
    Kind.WITHHOLDER: 0.01, Kind.SILENT: 0.01, Kind.RATIONAL: 0.25, Kind.VANDAL: 0.005,
}  # fmt: skip
"""Shares of the accounts; the rest is honest."""

CLAIM_GAS = 360_000
"""A slot's share of a round: join 153k, commit 60k, reveal 53k, and what opens, freezes and closes the round."""
MERGE_GAS = 300_000
"""A merge 280k."""
CHALLENGER_GAS = 1_140_000
"""The challenger's moves in the dearest game."""
DEFENDER_GAS = 530_000
"""The defender's moves in the dearest game."""


@dataclass(frozen=True)
class Rules:
    """A job's terms, the same for all jobs; amounts in units."""

    audit: AuditPlan
    price: int
    stake: int
    bond: int
    witness_fee: int
    gas_price: int
    """For one gas at the cap."""
    fee_cap: int
    """Wei."""
    cost: float = 0.8
    """Cost of a claim's work as a fraction of the price; for a rational account, any number between 0.5 and 1."""
    merge_price: int = 0
    merge_stake: int = 0
    backed: int = 7
    """Rounds that stand on a merge, whose pay its merger locks beside merge_stake."""

    @property
    def round_pay(self) -> int:
        return self.audit.slots * self.price + self.merge_price + self.audit.witnesses * self.witness_fee

    @property
    def merge_lock(self) -> int:
        """The stake that a merge locks."""
        return self.merge_stake + self.backed * self.round_pay


@dataclass(frozen=True)
class Society:
    """The size of a simulation: jobs side by side, their rounds, and the kinds of accounts."""

    jobs: int = 157
    rounds: int = 1_000
    shares: dict[Kind, float] = field(default_factory=lambda: dict(SHARES))
    honest_witnesses: float = 2.0
    """Honest accounts among the witnesses, for each of the cartel's; without a cartel, every fourth honest account."""
    stakes: int = 3
    """The deposit of a new account, in stakes. Names are free: an account out of stake returns with a new one."""
    epoch: int = 20
    """Rounds between two decisions of the rational."""
    trust: int = 50_000
    """Unpunished claims of each level that the rational believe to have seen, at first."""
    exploring: float = 0.02
    """The share of the rational that explores."""
    seed: int = 0


@dataclass
class Ledger:
    """The balances and the spending of every account."""

    held: Array
    """In the vault: stakes and credits (N)."""
    brought: Array
    gas: Array
    work: Array
    """Gas and work are paid outside the vault (N)."""
    escrow: int
    burned: int = 0
    requesters: int = 0

    @property
    def total(self) -> int:
        """Everything in the vault."""
        return int(self.held.sum()) + self.escrow + self.burned + self.requesters

    @property
    def profit(self) -> Array:
        """(N)"""
        return self.held - self.brought - self.gas - self.work


@dataclass
class Tally:
    """The counts of a run; arrays are by kind."""

    claims: Array = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    lies: Array = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    convicted: Array = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    to_requesters: Array = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    """Payments to requesters from slashes of each kind's stakes."""
    claimed: int = 0
    """Transitions."""
    by_witnesses: int = 0
    by_volunteers: int = 0
    for_missing_data: int = 0
    """Transitions replayed."""
    honest_falls: int = 0
    """Rounds after which some honest account had less in the vault."""
    unpaid_winners: int = 0
    """Honest challengers whose prize and refund were less than their gas."""
    cover: list[float] = field(default_factory=list)
    """For each false game, the bond's payment to the defender over the cost of its moves."""
    cheating: list[float] = field(default_factory=list)
    """The share of the rational that chose to cheat, by epoch."""
    profits: list[Array] = field(default_factory=list)
    """Mean profit of an account of each kind, by epoch."""
    rewinds: int = 0
    """Merges that convicted themselves."""
    voided: int = 0
    """Rounds that fell with them."""
    vandalism: int = 0
    """The cost of that to those who did it, in units."""


class Duties(NamedTuple):
    """Flat, of one round."""

    witness: Array
    claim: Array
    """The account whose claim it is: an account has one claim a round."""
    stop: Array
    """t*."""
    bought: Array
    """The witness agrees though the claim is wrong."""


class Play:
    """One run. `play()` plays every round; `ledger` and `tally` tell what happened."""

    def __init__(self, rules: Rules, society: Society) -> None:
        self.rules, self.society = rules, society
        self.dice = np.random.default_rng(society.seed)
        self.kind = self._kinds(society.jobs * rules.audit.slots)
        self.honest = np.flatnonzero(self.kind == Kind.HONEST)
        self.enrolled = self._enrolled()
        self.cost = np.full(len(self.kind), rules.cost)
        rational = self.kind == Kind.RATIONAL
        self.cost[rational] = self.dice.uniform(0.5, 1, rational.sum())
        self.level = np.zeros(len(self.kind), np.int64)
        """What each of the rational does: an index of LEVELS."""
        self.tried, self.caught = np.full(len(LEVELS), float(society.trust)), np.zeros(len(LEVELS))
        self.base = np.full(society.jobs, NOBODY)
        """Of each job: whose merge, which will be convicted, its rounds stand on (J)."""
        self.standing = np.zeros(society.jobs, np.int64)
        """How many do (J)."""
        self.fees = self._base_fees()
        self.ring = 0
        start = np.full(len(self.kind), society.stakes * rules.stake, np.int64)
        spent = np.zeros((2, len(self.kind)), np.int64)
        escrow = society.rounds * society.jobs * rules.round_pay
        self.ledger = Ledger(start, start.copy(), spent[0], spent[1], escrow)
        self.deposited = self.ledger.total
        self.tally = Tally()

    def play(self) -> Play:
        """Plays every round. ArithmeticError if one of them makes or loses money."""
        for r in range(self.society.rounds):
            if r % self.society.epoch == 0:
                self._decide()
                sizes = np.maximum(1, np.bincount(self.kind, minlength=len(Kind)))
                self.tally.profits.append(np.bincount(self.kind, self.ledger.profit, len(Kind)) / sizes)
            self._round(r)
            if self.ledger.total != self.deposited:
                raise ArithmeticError(f"round {r}: {self.ledger.total} units for {self.deposited} deposited")
        return self

    # -- who is there

    def _kinds(self, count: int) -> Array:
        kind = np.full(count, Kind.HONEST, np.int64)
        at = 0
        for name, share in self.society.shares.items():
            kind[at : at + round(share * count)] = name
            at += round(share * count)
        return self.dice.permutation(kind)

    def _enrolled(self) -> Array:
        """Accounts that are witnesses."""
        cartel = np.flatnonzero(self.kind == Kind.CARTEL)
        honest = round(self.society.honest_witnesses * len(cartel)) if len(cartel) else len(self.honest) // 4
        return np.concatenate([cartel, self.dice.permutation(self.honest)[:honest]])

    def _base_fees(self) -> Array:
        """Wei per gas at each round: around a fifth of the cap, its logarithm an AR(1), at times above the cap."""
        log = np.zeros(self.society.rounds)
        for r, noise in enumerate(self.dice.normal(0, 0.2, len(log) - 1), 1):
            log[r] = 0.92 * log[r - 1] + noise
        return np.ceil(0.2 * self.rules.fee_cap * np.exp(log)).astype(np.int64)

    def _decide(self) -> None:
        """Each of the rational compares what its levels would earn, by how often they were caught so far."""
        rules, rational = self.rules, np.flatnonzero(self.kind == Kind.RATIONAL)
        kept = prices.SLASH_PERCENT_WINNERS / 100
        risk = self.caught / self.tried
        expected = np.stack([
            economics.expected_profit(rules.price, self.cost[rational] * rules.price, rules.stake, level, d, 1 - kept)
            for level, d in zip(LEVELS, risk, strict=True)
        ])  # fmt: skip
        choice = expected.argmax(0)
        self.tally.cheating.append(float((choice > 0).mean()) if len(rational) else 0.0)
        explores = self.dice.random(len(rational)) < self.society.exploring
        self.level[rational] = np.where(explores, self.dice.integers(0, len(LEVELS), len(rational)), choice)

    # -- a round

    def _round(self, r: int) -> None:
        rules, ledger, audit = self.rules, self.ledger, self.rules.audit
        fee = int(self.fees[r])
        # As many rounds are sealed beside this one: the median is of its own time.
        for _ in range(prices.FEES):
            self.ring = prices.push(self.ring, fee)
        median = prices.median(self.ring, rules.fee_cap)
        before = ledger.held[self.honest]
        self._bring_in()

        seat = self.dice.permutation(len(self.kind)).reshape(self.society.jobs, audit.slots)
        revealed = self.kind[seat] != Kind.SILENT
        first_wrong = self._behave()
        done = np.where(self.kind == Kind.SILENT, 0, first_wrong - 1) / audit.transitions
        ledger.work += np.ceil(done * self.cost * rules.price).astype(np.int64)
        ledger.gas += self._gas(CLAIM_GAS, fee)

        duties = self._draw(seat, revealed, first_wrong)
        self._serve(duties, fee)
        convicted = self._convict(self._challenges(seat[revealed], first_wrong, duties), fee, median)
        void = self.base != NOBODY
        mergers = self._merge(seat, revealed, fee)
        self._pay(seat, revealed, convicted, duties, mergers)
        self._compensate(void, seat, revealed, convicted)
        self._rewind(void)
        self._false_games(r, median)
        self._count(seat[revealed], first_wrong, convicted)
        self.tally.honest_falls += bool((ledger.held[self.honest] < before).any())

    def _bring_in(self) -> None:
        ruined = np.flatnonzero(self.ledger.held < self.rules.stake)
        self._bring(ruined, self.ledger.held[ruined] + self.society.stakes * self.rules.stake)

    def _bring(self, accounts: Array, least: Array | int) -> None:
        """Deposits what these accounts lack of `least`."""
        fresh = np.maximum(0, least - self.ledger.held[accounts])
        self.ledger.held[accounts] += fresh
        self.ledger.brought[accounts] += fresh
        self.deposited += int(fresh.sum())

    def _behave(self) -> Array:
        """The first wrong transition of every account's claim (N); T + 1: it is right."""
        kind, drawn = self.kind, self.dice.random(len(self.kind))
        skipped = np.where(kind == Kind.LAZY, 0.5, 0)
        skipped[(kind == Kind.SYBIL) | ((kind == Kind.OCCASIONAL) & (drawn < 0.1))] = 1
        skipped[(kind == Kind.CARTEL) & (drawn < 0.25)] = 1
        skipped[kind == Kind.RATIONAL] = np.array(LEVELS)[self.level[kind == Kind.RATIONAL]]
        transitions = self.rules.audit.transitions
        return transitions + 1 - np.rint(skipped * transitions).astype(np.int64)

    # -- looking

    def _draw(self, seat: Array, revealed: Array, first_wrong: Array) -> Duties:
        """Duty i of a job: the i-th claim of a drawn order, for an account that neither owns it nor has another."""
        audit = self.rules.audit
        order = np.argsort(np.where(revealed, self.dice.random(seat.shape), 2), axis=1)
        place = np.arange(audit.witnesses) % revealed.sum(1)[:, None]
        claim = np.take_along_axis(seat, np.take_along_axis(order, place, 1), 1)
        witness = self.dice.choice(self.enrolled, claim.shape)
        while (again := _taken(witness) | (witness == claim)).any():
            witness[again] = self.dice.choice(self.enrolled, int(again.sum()))
        stop = self.dice.integers(1, audit.transitions + 1, claim.size)
        claim, witness = claim.ravel(), witness.ravel()
        friends = (self.kind[witness] == Kind.CARTEL) & (self.kind[claim] == Kind.CARTEL)
        return Duties(witness, claim, stop, friends & (first_wrong[claim] <= audit.transitions))

    def _serve(self, duties: Duties, fee: int) -> None:
        """Witnesses replay: up to t*, or everything where the step roots are missing; a bought one replays nothing."""
        transitions = self.rules.audit.transitions
        replayed = np.where(self.kind[duties.claim] == Kind.WITHHOLDER, transitions, duties.stop)
        self.tally.by_witnesses += int(replayed.sum())
        done = np.where(duties.bought, 0, replayed) / transitions * self.cost[duties.witness]
        np.add.at(self.ledger.work, duties.witness, np.ceil(done * self.rules.price).astype(np.int64))
        np.add.at(self.ledger.gas, duties.witness, self._gas(economics.DUTY_GAS, fee))

    def _challenges(self, claims: Array, first_wrong: Array, duties: Duties) -> Array:
        """(claim's account, challenger) for everybody honest who has seen a wrong transition (E, 2)."""
        tally, transitions = self.tally, self.rules.audit.transitions
        seen = ~duties.bought & (duties.stop >= first_wrong[duties.claim])
        found = [np.stack([duties.claim[seen], duties.witness[seen]], 1)]
        tally.claimed += transitions * len(claims)
        by_chance = self.dice.random(len(claims)) < self.rules.audit.volunteers
        missing = self.kind[claims] == Kind.WITHHOLDER
        tally.by_volunteers += transitions * int(by_chance.sum())
        tally.for_missing_data += transitions * int(missing.sum())
        for looked in (by_chance, missing):
            who = self.dice.choice(self.honest, int(looked.sum()))
            np.add.at(self.ledger.work, who, np.ceil(self.cost[who] * self.rules.price).astype(np.int64))
            found.append(np.stack([claims[looked], who], 1)[first_wrong[claims[looked]] <= transitions])
        return np.concatenate(found)

    # -- verdicts and pay

    def _convict(self, challenges: Array, fee: int, median: int) -> Array:
        """Slashes every claim that is challenged; whether each account's was (N)."""
        convicted = np.zeros(len(self.kind), bool)
        convicted[challenges[:, 0]] = True
        selfish = (self.kind == Kind.SYBIL) | (self.kind == Kind.RATIONAL)
        own = np.repeat(np.flatnonzero(convicted & selfish), len(economics.WINNER_WEIGHTS))
        games = np.concatenate([np.stack([own, own], 1), challenges])
        np.add.at(self.ledger.gas, games[:, 1], self._gas(CHALLENGER_GAS, fee))
        games = games[np.argsort(games[:, 0], kind="stable")]
        rank = np.arange(len(games)) - np.searchsorted(games[:, 0], games[:, 0])
        games, rank = (of[rank < len(economics.WINNER_WEIGHTS)] for of in (games, rank))
        winners = np.bincount(games[:, 0], minlength=len(self.kind))
        for count in range(1, len(economics.WINNER_WEIGHTS) + 1):
            self._slash(np.flatnonzero(winners == count), games[:, 1], rank, winners[games[:, 0]] == count, fee, median)
        return convicted

    def _slash(self, accounts: Array, challengers: Array, rank: Array, mine: Array, fee: int, median: int) -> None:
        """The stakes of `accounts`, whose games, as many for each, are those of `mine`."""
        if not len(accounts):
            return
        ledger, rules = self.ledger, self.rules
        count = int(mine.sum()) // len(accounts)
        refund = prices.gas_cost(CHALLENGER_GAS, Wei(rules.gas_price), rules.fee_cap, median)
        split = economics.split_slash(Wei(rules.stake), count, [refund] * count)
        ledger.held[accounts] -= rules.stake
        ledger.burned += split.burned * len(accounts)
        ledger.requesters += split.requester * len(accounts)
        np.add.at(self.tally.to_requesters, self.kind[accounts], split.requester)
        got = (np.array(split.winners) + np.array(split.refunds))[rank[mine]]
        np.add.at(ledger.held, challengers[mine], got)
        honest = self.kind[challengers[mine]] == Kind.HONEST
        self.tally.unpaid_winners += int((got[honest] < self._gas(CHALLENGER_GAS, fee)).sum())

    def _merge(self, seat: Array, revealed: Array, fee: int) -> Array:
        """Each job's merger that is paid (J): the first that revealed, the second where a vandal's merge falls."""
        jobs, vandal = np.arange(len(seat)), Kind.VANDAL
        turns = np.argsort(~revealed, axis=1, kind="stable")[:, :2]
        first, second = seat[jobs, turns[:, 0]], seat[jobs, turns[:, 1]]
        self.ledger.gas[first] += self._gas(MERGE_GAS, fee)
        falls = (self.base == NOBODY) & (self.kind[first] == vandal) & ~np.isin(first, self.base)
        self._bring(first[falls], self.rules.stake + self.rules.merge_lock)
        self.ledger.gas[second[falls]] += self._gas(MERGE_GAS, fee)
        self.base[falls] = first[falls]
        return np.where(falls, second, first)

    def _pay(self, seat: Array, revealed: Array, convicted: Array, duties: Duties, mergers: Array) -> None:
        """Prices to slots whose claims stand and to mergers, fees to witnesses whose words stand; a silent slot is
        fined its price."""
        ledger, rules = self.ledger, self.rules
        paid = seat[revealed & ~convicted[seat]]
        silent = seat[~revealed]
        ledger.held[paid] += rules.price
        ledger.held[mergers] += rules.merge_price
        ledger.held[silent] -= rules.price
        ledger.burned += rules.price * len(silent)
        # A convicted friend lets its clock run out, which proves nothing against its witness: no fee, no slash.
        serving = duties.witness[~(duties.bought & convicted[duties.claim])]
        np.add.at(ledger.held, serving, rules.witness_fee)
        spent = rules.price * len(paid) + rules.merge_price * len(mergers) + rules.witness_fee * len(serving)
        ledger.escrow -= self.society.jobs * rules.round_pay
        ledger.requesters += self.society.jobs * rules.round_pay - spent

    def _compensate(self, void: Array, seat: Array, revealed: Array, convicted: Array) -> None:
        """Rounds on a merge that falls cost their requesters nothing: its merger's stake has paid what was revealed and
        merged, and the fees; what was owed to the convicted is burned."""
        ledger, rules = self.ledger, self.rules
        owed = rules.price * revealed[void].sum(1) + rules.merge_price + rules.audit.witnesses * rules.witness_fee
        unearned = rules.price * int((revealed & convicted[seat])[void].sum())
        ledger.held[self.base[void]] -= owed
        ledger.burned += unearned
        ledger.requesters += int(owed.sum()) - unearned
        self.tally.voided += int(void.sum())
        self.tally.vandalism += int(owed.sum())

    def _rewind(self, void: Array) -> None:
        """A vandal whose merge bears as many rounds as it backs convicts itself: its own challenger shares the rest."""
        ledger, rules = self.ledger, self.rules
        self.standing[void] += 1
        over = self.standing == rules.backed
        count, split = int(over.sum()), economics.split_slash(Wei(rules.merge_stake), 1, ())
        ledger.held[self.base[over]] -= rules.merge_stake - split.winners[0]
        ledger.burned += split.burned * count
        ledger.requesters += split.requester * count
        self.tally.rewinds += count
        self.tally.vandalism += (rules.merge_stake - split.winners[0]) * count
        self.standing[over], self.base[over] = 0, NOBODY

    def _false_games(self, r: int, median: int) -> None:
        """Every false challenger plays one game to its end against an honest claim, and loses its bond."""
        rules, ledger = self.rules, self.ledger
        bond = prices.bond_of(Wei(rules.bond), Wei(rules.gas_price), rules.fee_cap, median)
        to_defender, burned = economics.split_bond(bond)
        challengers = np.flatnonzero((self.kind == Kind.CHALLENGER) & (ledger.held >= rules.stake + bond))
        defenders = self.dice.choice(self.honest, len(challengers))
        ledger.held[challengers] -= bond
        ledger.burned += burned * len(challengers)
        np.add.at(ledger.held, defenders, to_defender)
        # The answers fall within some rounds of the opening, whose median priced the bond.
        later = np.minimum(r + self.dice.integers(0, 8, len(challengers)), len(self.fees) - 1)
        answers = np.array([self._gas(DEFENDER_GAS, int(fee)) for fee in self.fees[later]], np.int64)
        np.add.at(ledger.gas, defenders, answers)
        ledger.gas[challengers] += self._gas(CHALLENGER_GAS, int(self.fees[r]))
        self.tally.cover += list(to_defender / answers)

    def _count(self, claims: Array, first_wrong: Array, convicted: Array) -> None:
        tally, kind = self.tally, self.kind[claims]
        lies = first_wrong[claims] <= self.rules.audit.transitions
        for counted, of in ((tally.claims, kind), (tally.lies, kind[lies]), (tally.convicted, kind[convicted[claims]])):
            counted += np.bincount(of, minlength=len(Kind))
        rational = claims[kind == Kind.RATIONAL]
        self.tried += np.bincount(self.level[rational], minlength=len(LEVELS))
        self.caught += np.bincount(self.level[rational[convicted[rational]]], minlength=len(LEVELS))

    def _gas(self, gas: int, fee: int) -> int:
        """Returns the price of gas on the chain, which knows no cap."""
        return prices.gas_cost(gas * fee, Wei(self.rules.gas_price), self.rules.fee_cap, 1)


def _taken(witness: Array) -> Array:
    """Returns, for each duty (J, q), True if an earlier one of the same job has the account."""
    same = witness[:, :, None] == witness[:, None, :]
    return np.tril(same, -1).any(2)
