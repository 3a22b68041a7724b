"""Attacks on other people's work and stake: what each costs, what it takes from others, with and without its rule.

A coalition holds every role that helps it: merger, challenger, requester, slots. Both sides are measured against honest
play, in prices of a slot: negative is a gain. The terms are the preset `mainnet`, the base fee is a fifth of the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf

from lockstep import economics
from lockstep.presets import MAINNET, Terms
from lockstep.protocol.market import prices
from lockstep.protocol.types import Seconds, Wei

INTEREST = 0.10
"""A year's, on locked stake."""
YEAR, DAY = 365 * 86_400, 86_400
FEE_SHARE = 0.2
"""The base fee over the cap."""
OPEN_GAS = 340_000
"""Gas of `open`; a game that nobody plays needs no other move."""
JOIN_GAS = 155_000
MERGE_GAS = 283_000
ANSWER_SPENT = 1_000_000
"""Gas of an answer to a demand of a payload; `prices.ANSWER_GAS` of it are paid."""
LONGEST_STEP = Seconds(30 * DAY)
"""Without the rule: the longest stepSeconds that a job could set."""


@dataclass(frozen=True)
class Harm:
    """One attack."""

    cost: float
    """The coalition's loss against honest play, in prices."""
    damage: float
    """The loss of all others, in prices."""

    @property
    def factor(self) -> float:
        """Griefing: what others lose for each price that the coalition does; infinite where it gains."""
        return inf if self.cost <= 0 < self.damage else self.damage / self.cost if self.damage else 0.0


@dataclass(frozen=True)
class Attack:
    """One attack, twice."""

    name: str
    without: Harm | None
    """Without the rule that meets it; None where no rule does."""
    now: Harm


@dataclass(frozen=True)
class Capital:
    """Stake that a merger locks."""

    name: str
    locked: float
    """In prices."""
    interest: float
    """Interest on the stake of one merge while its window passes, over a round's pay."""


@dataclass(frozen=True)
class Market:
    """A job that is attacked at its fullest: as many rounds in flight as may be."""

    slots: int = 64
    min_slots: int = 16
    terms: Terms = MAINNET

    def price(self, amount: float) -> float:
        """In prices of a slot."""
        return amount / self.terms.slot_price

    @property
    def round_pay(self) -> Wei:
        terms = self.terms
        return Wei(self.slots * terms.slot_price + terms.merge_price + terms.witnesses * terms.witness_fee)

    @property
    def others_pay(self) -> Wei:
        """A round's, but for its merge: slots and witnesses belong to others, merges to the coalition."""
        return Wei(self.round_pay - self.terms.merge_price)

    @property
    def backed(self) -> int:
        """Rounds that stand on the oldest merge in a full pipeline."""
        return self.terms.max_lead - 1

    def gas(self, gas: int) -> float:
        """In prices."""
        terms = self.terms
        fee = round(FEE_SHARE * terms.fee_cap)
        return self.price(prices.gas_cost(gas, terms.gas_price, terms.fee_cap, fee))

    # -- what a merger locks

    def capital(self) -> Iterator[Capital]:
        """A merge alone, one on which everything starts, all that are in flight."""
        terms, pay, window = self.terms, self.round_pay, self.terms.challenge_seconds
        alone, whole = terms.merge_stake, terms.merge_stake + self.backed * pay
        yield Capital("a merge on which nothing starts", self.price(alone), self._interest(alone, window))
        yield Capital(f"a merge that backs {self.backed} rounds", self.price(whole), self._interest(whole, window))
        # A merge's backing rises from none to all while its window passes.
        rising = self._interest(alone + self.backed * pay / 2, window)
        yield Capital(f"all {terms.max_lead} in flight, backed as rounds start", self.price(self._in_flight), rising)
        at_once = self.price(terms.max_lead * whole)
        yield Capital(f"all {terms.max_lead} in flight, backed at once", at_once, self._interest(whole, window))

    def _interest(self, amount: float, seconds: int) -> float:
        return amount * INTEREST * seconds / YEAR / self.round_pay

    @property
    def _in_flight(self) -> int:
        """The least that mergers lock while a pipeline is full."""
        lead = self.terms.max_lead
        return lead * self.terms.merge_stake + lead * (lead - 1) // 2 * self.round_pay

    @property
    def locked(self) -> float:
        """Stake of slots and merges of every round in flight, in prices."""
        return self.price(self.terms.max_lead * self.slots * self.terms.slot_stake + self._in_flight)

    # -- attacks

    def attacks(self) -> Iterator[Attack]:
        """Every attack of the table."""
        yield self.self_conviction(requester=True)
        yield self.self_conviction(requester=False)
        yield self.void_own_job(others=False)
        yield self.void_own_job(others=True)
        yield from self.self_games()
        yield self.squatter()
        yield self.unbacked()
        yield self.unbacked_under_games()
        yield self.withheld()
        yield self.left_out()
        yield self.takes_witnesses(requester=True)
        yield self.takes_witnesses(requester=False)

    def self_conviction(self, *, requester: bool) -> Attack:
        """A merger convicts itself of a right merge under a full pipeline; it is its own challenger.

        Without backing nobody is paid for what falls, and its payloads are public. With it the slash pays what the
        escrow would have paid; the escrow is left for rounds that are run again.
        """
        terms = self.terms
        split = economics.split_slash(terms.merge_stake, 1)
        kept = split.winners[0] + (split.requester if requester else 0)
        # Who merges again is paid for the merge that falls.
        lost = self.price(terms.merge_stake - kept + terms.merge_price)
        fallen = self.price(self.backed * self.others_pay)
        if requester:
            name = "a merger convicts itself, with the requester"
            return Attack(name, Harm(lost - fallen, fallen), Harm(lost, 0.0))
        # The other merges are its own: nobody pays them, or its stake does.
        lost += self.price(self.backed * terms.merge_price)
        return Attack("a merger convicts itself, alone", Harm(lost, fallen), Harm(lost + fallen, 0.0))

    def void_own_job(self, *, others: bool) -> Attack:
        """A requester proves its own job invalid; every commitment of a full pipeline is its own, and it is the prover.

        The last round's seats are its own as well, or of others, who have not committed yet. Without the rules seats
        were paid, and the deposit held a round's pay less.
        """
        terms = self.terms
        seats = self.price(self.slots * terms.slot_price) if others else 0.0
        # Fees are never paid from the deposit, and the last round has no merge.
        unearned = self.price(terms.max_lead * terms.witnesses * terms.witness_fee + terms.merge_price)
        lost = 1 - prices.PROVER_PERCENT / 100
        before = seats + lost * unearned
        now = lost * (unearned + self.price(self.round_pay) + seats)
        name = "a requester voids its own job" + (" while others train" if others else "")
        return Attack(name, Harm(before, 0.0), Harm(now, seats))

    def self_games(self) -> Iterator[Attack]:
        """A slot's owner plays against itself and lets clocks run; no stake of any round in flight is free meanwhile.

        A false game loses a bond, of which its owner gets 60 % back. The first lasts two clocks beyond the window; a
        day more takes as many games as steps fit into it. The others lose interest. Every amount is a day's.
        """
        terms, game = self.terms, self.own_game
        damage = self.locked * INTEREST * DAY / YEAR
        without = Harm(game * DAY / LONGEST_STEP, damage)
        first = game * DAY / (2 * terms.clock_seconds)
        games = DAY / terms.step_seconds
        yield Attack("a day of games with oneself, two clocks long", without, Harm(first, damage))
        yield Attack("a further day of them", without, Harm(games * game, damage))
        # Games on claims of any job lengthen the clock, and a bond is what its job says.
        yield Attack("the same, their bonds in a job of one's own", None, Harm(games * self.gas(OPEN_GAS), damage))

    @property
    def own_game(self) -> float:
        """The cost of a false game on a claim of one's own, in prices."""
        terms = self.terms
        bond = prices.bond_of(terms.bond, terms.gas_price, terms.fee_cap, round(FEE_SHARE * terms.fee_cap))
        return self.price(economics.split_bond(bond)[1]) + self.gas(OPEN_GAS)

    def squatter(self) -> Attack:
        """Seats are taken so that a round fails: given back in the last second, or kept in silence.

        A silent seat is fined its price once the round is sealed; the others are paid, for work that is not merged.
        """
        seats = self.slots - self.min_slots + 1
        joins = seats * self.gas(JOIN_GAS)
        name = f"a squatter fails a round ({seats} of {self.slots} slots)"
        return Attack(name, Harm(joins, 0.0), Harm(joins + seats, self.slots - seats))

    def unbacked(self) -> Attack:
        """A merger backs no round, so that the next one waits: for the merge's window, or for a turn, as whoever is
        next then merges again. The round's other stakes earn no interest meanwhile, nor does its pay in the escrow.
        """
        waited, turn = self._unbacked(self.terms.challenge_seconds), self._unbacked(self.terms.merge_seconds)
        lost = self.price(self.terms.merge_price) + self.gas(MERGE_GAS)
        return Attack("a merger backs no later round", waited, Harm(turn.cost + lost, turn.damage))

    def unbacked_under_games(self) -> Attack:
        """The same, while games of the merger's on its own merge keep the next turns out: it stands, and is paid.

        No merge is made again in the second half of its window, and a game lasts two clocks.
        """
        terms = self.terms
        games = ceil((terms.challenge_seconds // 2 - terms.merge_seconds) / (2 * terms.clock_seconds))
        waited = self._unbacked(terms.challenge_seconds)
        now = Harm(waited.cost + games * self.own_game, waited.damage)
        return Attack("the same, under games on its own merge", None, now)

    def _unbacked(self, seconds: int) -> Harm:
        """A job waits so long for backing."""

        def interest(amount: int) -> float:
            return self.price(amount) * INTEREST * seconds / YEAR

        return Harm(-interest(self.round_pay), interest(self.slots * self.terms.slot_stake + self.round_pay))

    def withheld(self) -> Attack:
        """An owner shows its payload to nobody until a demand has it post leaves; who asks loses what is paid for that.

        Without the rule the owner earned its part of the bond, and the asker had none of it back.
        """
        terms = self.terms
        bond = prices.bond_of(terms.bond, terms.gas_price, terms.fee_cap, round(FEE_SHARE * terms.fee_cap))
        spent, paid = self.gas(ANSWER_SPENT), self.gas(prices.ANSWER_GAS)
        without = Harm(spent - self.price(economics.split_bond(bond)[0]), self.price(bond))
        return Attack("an owner withholds until it is asked on chain", without, Harm(spent - paid, paid))

    def left_out(self) -> Attack:
        """Receipts of a majority leave out everybody else, whose prices are burned: no rule tells why."""
        alone = (self.slots - self.terms.witnesses) // 2
        name = f"{self.slots - alone} of {self.slots} slots leave out the others"
        return Attack(name, None, Harm(0.0, float(alone)))

    def takes_witnesses(self, *, requester: bool) -> Attack:
        """A worker convicts itself of a right claim, and every witness that agreed with it loses its stake and the fees
        of what else it looked at and is not settled; those return to the requester.

        Each has a duty in every round in flight. Without the rule one that nobody else has enrolled beside had all.
        """
        terms = self.terms
        split = economics.split_slash(terms.slot_stake, 1)
        kept = split.winners[0] + (split.requester if requester else 0)
        # The claim of who has its requester is not paid, and not earned.
        lost = self.price(terms.slot_stake - kept) + (0 if requester else 1)
        on_it = ceil(terms.witnesses / self.min_slots)

        def taken(witnesses: int, duties: int) -> Harm:
            fees = self.price(witnesses * duties * terms.witness_fee)
            return Harm(lost - (fees if requester else 0), fees + self.price(witnesses * terms.witness_stake))

        name = "a worker takes its witnesses along, " + ("with the requester" if requester else "alone")
        return Attack(name, taken(1, terms.max_lead * terms.witnesses), taken(on_it, terms.max_lead))
