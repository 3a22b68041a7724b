"""Griefing by every verb of the contracts: what its worst use costs the sender, and what it costs all others at most.

The market is that of attacks.py: `mainnet` at its fullest, in prices of a slot, against honest play. Who sends nothing
where something is due uses the verb that it does not send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.attacks import DAY, INTEREST, JOIN_GAS, OPEN_GAS, YEAR, Harm, Market
from lockstep.chain.gas import VERBS
from lockstep.protocol.market import prices

WORST = 5.0
"""Factors above it are named in docs/economics.md."""
RECEIPT_GAS, BATCHED_GAS = 110_000, 37_000
"""Gas of a receipt that its owner sends, and of one more in a batch (docs/measured.md)."""
LONGEST_TRAINING = 30 * DAY
"""The longest trainSeconds that a contract takes; a worker takes it where its own training takes two days."""
HELD_SECONDS = 33 * 3_600
"""The wait for a merge that is backed for three rounds of 13 hours each, of a window of three days."""
OWN_MONEY = (
    "TestToken: mint transfer approve transferFrom permit",
    "StakeVault: deposit depositWithPermit requestUnbond requestUnbondFor withdrawUnbonded withdrawUnbondedFor",
    "StakeVault: withdraw withdrawFor burn registerNode setDelegate setDelegateFor setOwner proposeOwner acceptOwner",
)
BY_CONTRACTS = (
    "StakeVault: lock raise unlock takeBond payBond slash slashLiveness escrow escrowWithPermit credit",
    "JobMarket: onOpen onConvicted onRejected onInvalid onDrawn onWitnessed onDemanded",
)
MOVES = (
    "DisputeGame: reveal pick adjacent defend revealTensor postLeaf pickElement postPartials pickPartial stage proveOp"
    " proveAlias provePadding"
)


@dataclass(frozen=True)
class Use:
    """The worst use of some verbs."""

    verbs: tuple[tuple[str, str], ...]
    what: str
    harm: Harm | None
    """None: others lose nothing, and the sender its gas."""

    @property
    def factor(self) -> float:
        """Griefing: what others lose for each price that the sender does."""
        return 0.0 if self.harm is None else self.harm.factor


def use(what: str, harm: Harm | None, *groups: str) -> Use:
    """`groups`: `Contract: verb verb`."""
    parted = (group.partition(": ") for group in groups)
    return Use(tuple((contract, verb) for contract, _, verbs in parted for verb in verbs.split()), what, harm)


def uses(market: Market) -> Iterator[Use]:
    """Every verb at least once, in the order of a job."""
    terms, slots = market.terms, market.slots
    price, gas = market.price, market.gas
    attacks = {attack.name: attack.now for attack in market.attacks()}
    join, beside = gas(JOIN_GAS), price((slots - 1) * terms.slot_stake)

    def interest(amount: float, seconds: int) -> float:
        return amount * INTEREST * seconds / YEAR

    spent, paid = attacks["an owner withholds until it is asked on chain"].cost, gas(prices.ANSWER_GAS)
    yield use("its own money", None, *OWN_MONEY)
    yield use("a contract alone may call it", None, *BY_CONTRACTS)
    yield use("a job that nobody wants", None, "JobMarket: create createWithPermit cancel finish")
    ended = (terms.max_fail + 1) * gas(VERBS["startRound"] + VERBS["seal"])
    again = gas(VERBS["create"] + VERBS["finish"])
    yield use("rounds while nobody joins, until the job is over", Harm(ended, again), "JobMarket: startRound seal")
    yield use("a seat given back early", None, "JobMarket: leave")
    silent = interest(beside, terms.train_seconds)
    yield use("a seat, and no commitment", Harm(1 + join, silent), "JobMarket: join")
    longest = interest(beside, LONGEST_TRAINING)
    yield use("the same, where trainSeconds are thirty days", Harm(1 + join, longest), "JobMarket: join")
    failed = next(harm for name, harm in attacks.items() if name.startswith("a squatter"))
    yield use("seats that fail the round", failed, "JobMarket: join")
    unrevealed = Harm(1 + join + gas(VERBS["commit"]), interest(beside, terms.challenge_seconds))
    yield use("a commitment, and no reveal (revealSeconds a window)", unrevealed, "JobMarket: commit")
    yield use("a payload that is shown on chain alone", Harm(spent, paid), "JobMarket: reveal", "Availability: answer")
    carried = Harm(spent, paid + terms.carry_period - 1)
    yield use("a carry that is shown on chain alone", carried, "JobMarket: reveal", "Availability: answer")
    yield use("a list of state roots that is not published", Harm(0.0, 0.5), "Witnesses: publish")
    ahead = Harm(gas(RECEIPT_GAS), gas(BATCHED_GAS * slots))
    yield use("one's own receipt ahead of a batch that holds it", ahead, "JobMarket: attest")
    majority = next(harm for name, harm in attacks.items() if name.endswith("leave out the others"))
    yield use("a majority's receipts that leave out the others", majority, "JobMarket: attest")
    yield use("nothing", None, "JobMarket: freeze finalize release")
    unbacked = attacks["the same, under games on its own merge"]
    yield use("a merge that backs nothing, under games on itself", unbacked, "JobMarket: merge back")
    held = interest(price(slots * terms.slot_stake + market.round_pay), HELD_SECONDS)
    yield use("a merge of long rounds, backed for half of its window", Harm(0.0, held), "JobMarket: merge back")
    witness = interest(price(slots * terms.slot_stake), terms.attest_seconds)
    yield use("a duty, and silence", Harm(price(terms.witness_fee), witness), "Witnesses: enrol commit reveal")
    yield use("nothing", None, "Witnesses: retire draw settle")
    asked = Harm(paid + gas(RECEIPT_GAS), spent)
    yield use("a demand for what is there", asked, "Availability: unavailable carryUnavailable")
    bond = price(prices.bond_of(terms.bond, terms.gas_price, terms.fee_cap, round(terms.fee_cap / 5)))
    yield use("a demand for a row that is there", Harm(bond, 0.0), "Availability: demandRow")
    yield use("nothing", None, "Availability: keepSeed settle answerRow commit", "Validator: commit")
    void = attacks["a requester voids its own job while others train"]
    yield use("the end of one's own job", void, "Validator: proveInvalid", "Availability: voidForRow")
    own = attacks["a day of games with oneself, two clocks long"]
    yield use("a game with oneself, two clocks long, a day", own, "DisputeGame: open")
    false = Harm(bond + gas(OPEN_GAS), interest(market.locked, terms.clock_seconds))
    yield use("a false game that stalls for a clock", false, "DisputeGame: open resolve")
    most = price(terms.slot_stake) * prices.SLASH_PERCENT_REFUNDS / 100
    yield use("moves of who convicts, padded", Harm(0.0, most), MOVES)
    yield use("nothing: it waits for the games", None, "DisputeGame: equivocate")
