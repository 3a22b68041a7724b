"""The cost of checking, its detection and the stake of a lie: computed, and simulated for ten thousand workers.

    python benchmarks/economics.py                    tables
    python benchmarks/economics.py --json             one line of JSON on stdout
    python benchmarks/economics.py --write            docs/economics.md and its pictures with the figures of this run

The reference job has 64 slots of 500 steps and the terms of the preset `mainnet`. Computed figures are of
lockstep/economics.py; the simulation (benchmarks/society.py) draws what the protocol draws and asks the same module for
every amount.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import NamedTuple

# Run from a checkout: tests import this module by its full name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.attacks import INTEREST, Harm, Market
from benchmarks.charts import Chart, Line
from benchmarks.coalitions import SEAT_GAS, Way, WitnessList, coalitions
from benchmarks.griefing import Use, uses
from benchmarks.society import Kind, Play, Rules, Society
from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.presets import CHAINS, DEVNET, MAINNET, PRESETS
from lockstep.protocol.market.job_rules import GAME_MOVES, ChainTimes
from lockstep.protocol.types import Seconds

DOCS = Path(__file__).resolve().parent.parent / "docs"
UNIT = 10**9
"""Wei in one unit of the simulation."""
SLOTS, INNER_STEPS = 64, 500
LOCKED_DAYS = 3.25
"""A stake's: one round and a challenge window of three days."""
STAKES = (5, 10, 15, 20, 40)
GRID_STAKES = (5, 8, 12, 18, 27, 40, 60, 90)
GRID_WITNESSES = (1, 2, 3, 5, 8, 12, 18, 27)


DRAWS = (1, 2, 4, 16, 256)
SIMULATED_DRAWS = 16
COALITION_TRIALS = 4_000
BLOCK_SECONDS = {"devnet": 1, "ethereum": 12, "op-stack": 2, "arbitrum": 0.25}
"""A block's time on each chain of the presets."""


class Windows(NamedTuple):
    """A job's windows on a chain, so long that a transaction held back loses nobody a stake."""

    clock: Seconds
    challenge: Seconds
    answer: Seconds

    @property
    def unbonding(self) -> Seconds:
        """The least of a deployment."""
        return Seconds(self.challenge + 2 * self.clock)


WINDOWS = {
    "devnet": Windows(DEVNET.clock_seconds, DEVNET.challenge_seconds, DEVNET.answer_seconds),
    "ethereum": Windows(MAINNET.clock_seconds, MAINNET.challenge_seconds, MAINNET.answer_seconds),
    "op-stack": Windows(MAINNET.clock_seconds, MAINNET.challenge_seconds, Seconds(13 * 3_600)),
    "arbitrum": Windows(Seconds(2 * 86_400), Seconds(4 * 86_400), Seconds(25 * 3_600)),
}

AUDIT = AuditPlan(SLOTS, MAINNET.witnesses, INNER_STEPS + 1)
RULES = Rules(
    replace(AUDIT, cartel=0.0), MAINNET.slot_price // UNIT, MAINNET.slot_stake // UNIT, MAINNET.bond // UNIT,
    MAINNET.witness_fee // UNIT, MAINNET.gas_price // UNIT, MAINNET.fee_cap,
    merge_price=MAINNET.merge_price // UNIT, merge_stake=MAINNET.merge_stake // UNIT, backed=MAINNET.max_lead - 1,
)  # fmt: skip
"""In units; the cartel is the society's, not the audit's."""


# -- what is shown


@dataclass(frozen=True)
class Cost:
    """Must-show: what verification costs, what it buys, what it needs."""

    computed: float
    simulated: float
    limit: float
    detection: float
    """Detection of a claim whose every step is skipped, with a third of the witnesses bought."""
    detection_simulated: float
    stake_needed: float
    """In prices, from which no saving of work pays."""
    stake: float
    """The stake, in prices."""
    fees: float
    """Witnesses' fees over the slots' pay."""
    capital: float
    """Interest on the stake while it is locked, over the price."""


@dataclass(frozen=True)
class Row:
    """One kind of account over the whole run."""

    kind: str
    accounts: int
    claims: int
    lies: int
    detection: float
    computed: float
    """The detection that lockstep/economics.py gives."""
    profit: float
    """Profit of an account in a round, in prices."""


def cost_of(play: Play) -> Cost:
    """Both sides of the must-show, from one run."""
    tally = play.tally
    looked = tally.by_witnesses + tally.by_volunteers + tally.for_missing_data
    return Cost(
        computed=AUDIT.cost_share(),
        simulated=looked / tally.claimed + AUDIT.merge_steps / AUDIT.transitions,
        limit=economics.MAX_COST_SHARE,
        detection=AUDIT.detection(),
        detection_simulated=float(tally.convicted[Kind.CARTEL] / tally.lies[Kind.CARTEL]),
        stake_needed=AUDIT.stake_multiple(),
        stake=MAINNET.slot_stake / MAINNET.slot_price,
        fees=MAINNET.witnesses * MAINNET.witness_fee / (SLOTS * MAINNET.slot_price),
        capital=capital_share(MAINNET.slot_stake / MAINNET.slot_price),
    )


def capital_share(multiple: float) -> float:
    """Interest on a stake while it is locked, over the price of the slot that it backs."""
    return multiple * INTEREST * LOCKED_DAYS / 365


def rows_of(play: Play) -> Iterator[Row]:
    """A row for each kind that works."""
    tally, audit = play.tally, play.rules.audit
    half = audit.transitions - round(audit.transitions / 2) + 1
    bought = 1 / (1 + play.society.honest_witnesses)
    computed = {
        Kind.LAZY: audit.detection(half), Kind.OCCASIONAL: audit.detection(), Kind.SYBIL: audit.detection(),
        Kind.CARTEL: replace(audit, cartel=bought).detection(),
    }  # fmt: skip
    for kind in Kind:
        mine = play.kind == kind
        if mine.any():
            profit = play.ledger.profit[mine].mean() / play.society.rounds / play.rules.price
            lies = int(tally.lies[kind])
            yield Row(
                kind.name.lower(), int(mine.sum()), int(tally.claims[kind]), lies,
                float(tally.convicted[kind] / lies) if lies else 0.0, computed.get(kind, 0.0), float(profit),
            )  # fmt: skip


def grid(seed: int) -> Iterator[tuple[float, float, float]]:
    """(stake in prices, simulated detection, what a claim of nothing earns beyond honesty, in prices), worst case: the
    work costs its price, the cheat is its own challenger and requester, and gas is free."""
    for multiple in GRID_STAKES:
        for witnesses in GRID_WITNESSES:
            audit = AuditPlan(SLOTS, witnesses, INNER_STEPS + 1, cartel=0.0)
            rules = Rules(audit, UNIT, multiple * UNIT, UNIT, UNIT, 0, 1, cost=1.0)
            play = Play(rules, Society(jobs=30, rounds=60, shares={Kind.SYBIL: 0.25}, seed=seed)).play()
            lies, mine = int(play.tally.lies[Kind.SYBIL]), play.kind == Kind.SYBIL
            earned = int(play.ledger.profit[mine].sum()) + int(play.tally.to_requesters[Kind.SYBIL])
            yield multiple, float(play.tally.convicted[Kind.SYBIL] / lies), earned / lies / UNIT


def rational(seed: int) -> Iterator[Line]:
    """Yields the share of the rational that cheats, epoch by epoch, at several stakes."""
    for multiple in STAKES:
        rules = replace(RULES, stake=multiple * RULES.price)
        play = Play(rules, Society(jobs=40, rounds=800, shares={Kind.RATIONAL: 0.5}, trust=20_000, seed=seed)).play()
        points = [(i * play.society.epoch, 100 * share) for i, share in enumerate(play.tally.cheating)]
        yield Line(f"stake of {multiple} prices", points)


# -- pictures


def costs_chart() -> Chart:
    """Draws the costs of more witnesses, and the stake that they save."""
    audits = [(q, AuditPlan(SLOTS, q, INNER_STEPS + 1)) for q in range(1, 17)]
    checking = [(q, 100 * a.cost_share()) for q, a in audits]
    capital = [(q, 100 * capital_share(economics.STAKE_MARGIN * a.stake_multiple())) for q, a in audits]
    both = [(q, x + y) for (q, x), (_, y) in zip(checking, capital, strict=True)]
    seen = [(q, 100 * a.detection()) for q, a in audits]
    lines = (
        Line("verification", checking), Line("interest on the stake", capital), Line("both", both),
        Line("detection", seen, dashed=True),
    )  # fmt: skip
    return Chart("What looking costs, at 64 slots of 500 steps", "witnesses a round", "% of training", lines, y_most=20)


def break_even_chart(points: list[tuple[float, float, float]]) -> Chart:
    """Draws the break-even of a lie: computed as a line, simulated as dots."""
    curve = [(m / 10, 100 * economics.break_even_detection(m / 10)) for m in range(50, 1000, 5)]
    pays = [(m, 100 * d) for m, d, gain in points if gain > 0]
    loses = [(m, 100 * d) for m, d, gain in points if gain <= 0]
    lines = (
        Line("break-even, computed", curve), Line("a lie pays, simulated", pays, dots=True),
        Line("a lie loses, simulated", loses, dots=True),
    )  # fmt: skip
    title = "The worst case: own challenger, own requester, no margin"
    return Chart(title, "stake, in prices", "detection, %", lines, log_x=True, y_most=45)


def profits_chart(play: Play) -> Chart:
    """Draws the profit of an account of each kind."""
    price, epoch = play.rules.price, play.society.epoch
    lines = [
        Line(kind.name.lower(), [(i * epoch, profits[kind] / price) for i, profits in enumerate(play.tally.profits)])
        for kind in Kind
        if (play.kind == kind).any()
    ]
    return Chart("Profit of an account, mean of its kind", "round", "prices", lines)


# -- the command


def table(header: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    columns = header.split(", ")
    return [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]


def cost_lines(cost: Cost) -> list[str]:
    """The must-show."""
    rows = [
        ("verification, of training", f"{cost.computed:.2%}", f"{cost.simulated:.2%}", f"<= {cost.limit:.0%}"),
        ("detection of a skipped claim", f"{cost.detection:.2%}", f"{cost.detection_simulated:.2%}", ""),
        ("stake, in prices", f"{cost.stake_needed:.1f}", "", f"{cost.stake:.0f} staked"),
        ("witnesses' fees, of the slots' pay", f"{cost.fees:.2%}", "", ""),
        ("interest on the locked stake, of the price", f"{cost.capital:.2%}", "", ""),
    ]
    return table("64 slots of 500 steps, computed, simulated, bound", rows)


def kind_lines(rows: Iterable[Row]) -> list[str]:
    """Returns the table of results by kind."""
    cells = [
        (
            *(row.kind, f"{row.accounts:,}", f"{row.claims:,}", f"{row.lies:,}"),
            *(f"{seen:.2%}" if seen else "" for seen in (row.detection, row.computed)),
            f"{row.profit:+.3f}",
        )
        for row in rows
    ]
    return table("kind, accounts, claims, lies, detected, computed, profit a round in prices", cells)


def fact_lines(play: Play) -> list[str]:
    """Returns the facts that must hold of the run."""
    society, tally, cover = play.society, play.tally, np.array(play.tally.cover)
    lost = tally.vandalism / max(1, tally.rewinds) / play.rules.price
    computed = Market().self_conviction(requester=False).now.cost
    facts = (
        f"{society.rounds:,} rounds of {society.jobs} jobs, {len(play.kind):,} accounts.",
        f"After every round the vault held what had been deposited, in the end {play.deposited:,} units of 10^9 wei.",
        f"Rounds after which an honest account had less in the vault: {tally.honest_falls}.",
        f"Honest challengers whom prize and refund did not pay their gas: {tally.unpaid_winners}.",
        f"False challenges: {len(cover):,}. Whose bond paid the defender less than its gas: {(cover < 1).sum()}.",
        f"What the bond paid the defender, over its gas, at the least: {cover.min():.1f}.",
        f"Rational accounts that cheat in the end: {tally.cheating[-1]:.0%}.",
        f"Right merges that convicted themselves: {tally.rewinds:,}. Rounds that fell, paid: {tally.voided:,}.",
        f"What a merger lost by that: {lost:.0f} prices; computed with its merges' pay: {computed:.0f}.",
    )
    return [f"- {fact}" for fact in facts]


def audit_lines() -> list[str]:
    """The most witnesses within the bound, by slots and steps."""
    audits = [
        AuditPlan(slots, economics.most_witnesses(slots, steps + 1), steps + 1)
        for slots in (3, 8, 12, 16, 24, 32, 48, 64)
        for steps in (20, 100, 500)
    ]
    cells = [
        (
            *(str(a.slots), str(a.transitions - 1), str(a.witnesses)),
            *(f"{a.cost_share():.1%}", f"{a.detection():.2%}", f"{a.stake_multiple():.1f}"),
        )
        for a in audits
    ]
    return table("slots, steps, witnesses, cost, detection, stake in prices", cells)


def capital_lines() -> list[str]:
    """Stake of who merges."""
    cells = [(c.name, f"{c.locked:,.0f}", f"{c.interest:.2%}") for c in Market().capital()]
    return table("locked by who merges, prices, interest a merge of the round's pay", cells)


def attack_lines() -> list[str]:
    """Prices that each attack costs and takes, without its rule and with it."""

    cells = [(a.name, *_harm(a.without), *_harm(a.now)) for a in Market().attacks()]
    return table("attack, without the rule: cost, damage, factor, with it: cost, damage, factor", cells)


def verb_lines() -> list[str]:
    """The worst uses of every verb."""

    def listed(use: Use) -> str:
        contracts = dict.fromkeys(contract for contract, _ in use.verbs)
        return "; ".join(f"{c}: {', '.join(v for of, v in use.verbs if of == c)}" for c in contracts)

    cells = [
        (listed(use), use.what, *(("gas", "0.00", "0.00") if use.harm is None else _harm(use.harm)))
        for use in uses(Market())
    ]
    return table("verbs, their worst use, cost, damage, factor", cells)


def _harm(harm: Harm | None) -> tuple[str, str, str]:
    if harm is None:
        return ("", "", "")
    factor = ("free" if harm.cost == 0 else "gain") if harm.factor == inf else f"{harm.factor:.2f}"
    return (f"{harm.cost:,.2f}", f"{harm.damage:,.2f}", factor)


def choice_lines(seed: int) -> list[str]:
    """The gain of a party that picks the beacon of its lies among several, by the contract's own draw."""
    cells = []
    for lies, draws in product((1, 8), DRAWS):
        drawn = chosen(AUDIT, lies, draws, seed) if draws <= SIMULATED_DRAWS else None
        simulated = "" if drawn is None else f"{1 - (1 - AUDIT.volunteers) * (1 - drawn / lies):.2%}"
        d = economics.chosen_detection(AUDIT, lies, draws)
        cells.append(
            (
                *(str(lies), f"{draws:,}", f"{d:.2%}", simulated),
                *(f"{economics.chosen_stake(AUDIT, lies, draws):.1f}",),
                f"{economics.volunteers_for(AUDIT, MAINNET.slot_stake / MAINNET.slot_price, lies, draws):.2%}",
            )
        )
    header = "lies a round, beacons to pick from, detection, simulated, stake in prices, volunteers at 40 prices"
    return table(header, cells)


def chosen(audit: AuditPlan, lies: int, draws: int, seed: int, trials: int = 2_000) -> float:
    """The mean of the fewest lies that an honest witness is drawn for, over so many beacons."""
    enrolled, total = WitnessList(audit, seed), 0
    for trial in range(trials):
        fewest = lies
        for k in range(draws):
            if not fewest:
                break
            fewest = min(fewest, enrolled.seen(f"{seed}/{trial}/{k}", lies))
        total += fewest
    return total / trials


def coalition_lines(seed: int) -> list[str]:
    """The profit of a coalition in a round by what it does, before failed rounds were judged and since."""
    cells = []
    market = Market()
    stake = MAINNET.slot_stake / MAINNET.slot_price
    for one in coalitions(AUDIT, stake, SLOTS - 1, market.gas(SEAT_GAS)):
        enrolled = WitnessList(one.audit, seed)
        seen = [enrolled.seen(f"{seed}/{trial}", one.seats) for trial in range(COALITION_TRIALS)]
        profits = [one.expected(Way.WORK, judged=True)]
        for way, judged in ((Way.LIE, True), (Way.ESCAPE, False), (Way.ESCAPE, True)):
            profits += [one.expected(way, judged=judged), one.drawn(way, seen, judged=judged)]
        cells.append((str(one.seats), f"{one.audit.cartel:.0%}", *(f"{profit:+.2f}" for profit in profits)))
    header = "seats, bought, works, lies, drawn, fails what is seen: unjudged, drawn, judged, drawn"
    return table(header, cells)


def reply_lines() -> list[str]:
    """The best a coalition can do beside honest work, in jobs of other sizes, where the work costs its price."""
    cells = []
    for slots, steps in product((3, 8, 16, 32, 64), (20, 500)):
        terms = MAINNET.audited(slots, steps)
        audit = AuditPlan(slots, terms.witnesses, steps + 1)
        stake = terms.slot_stake / terms.slot_price
        worst = max(coalitions(audit, stake, slots - 1, 0.0, 1.0), key=lambda one: one.best[1] / one.seats)
        way, gain = worst.best
        cells.append((
            *(str(slots), str(steps), str(terms.witnesses), f"{stake:.0f}", str(worst.seats)),
            *(f"{worst.audit.cartel:.0%}", way.value, f"{gain / worst.seats:+.2f}"),
        ))  # fmt: skip
    return table("slots, steps, witnesses, stake, seats, bought, best reply, the best lie a seat", cells)


def carry_lines(seed: int) -> list[str]:
    """The cost of verification where carries are withheld, computed and drawn; and how many may be."""
    cells = []
    for period, withheld in product((2, 4, 7), (0.01, 0.1, 1.0)):
        nobody, shown = (replace(AUDIT, period=period, withheld=withheld, shown=share) for share in (0.0, 1.0))
        costs = (f"{cost:.2%}" for audit in (nobody, shown) for cost in (audit.cost_share(), audited(audit, seed)))
        cells.append((str(period), f"{withheld:.0%}", *costs, f"{shown.most_withheld():.1%}"))
    header = "carryPeriod, carries withheld, shown to nobody, simulated, eight leaves shown, simulated, withheld at 6 %"
    return table(header, cells)


def audited(audit: AuditPlan, seed: int, rounds: int = 20_000) -> float:
    """The work of verification over the training's in so many rounds, each carry stored or withheld by a draw."""
    dice, work = np.random.default_rng(seed), 0.0
    # behind[s]: claims that have to be computed again for the carry that slot s starts from.
    behind = np.zeros(audit.slots)
    for r in range(rounds):
        if r % audit.period == 0:
            behind[:] = 0
        missing = dice.random(audit.slots) < audit.unavailable
        seen = dice.permutation(audit.slots)[: audit.witnesses]
        looked = dice.integers(1, audit.transitions + 1, audit.witnesses) / audit.transitions
        left_out = (behind[seen] > 0) & (dice.random(audit.witnesses) >= audit.shown)
        work += np.where(left_out, 0, np.where(missing[seen], 1, looked) + behind[seen]).sum()
        full = missing.astype(float) + (dice.random(audit.slots) < audit.volunteers)
        work += (full * (1 + behind)).sum()
        behind = np.where(dice.random(audit.slots) < audit.withheld, behind + 1, 0)
    return work / (rounds * audit.slots) + audit.merge_steps / audit.transitions


def chain_lines() -> list[str]:
    """Returns the table of windows that each chain of the presets needs."""
    cells = []
    for name, chain in CHAINS.items():
        windows = WINDOWS[name]
        times = (chain.inclusion, chain.censor, chain.clock_floor, *windows, windows.unbonding)
        cells.append((name, f"{BLOCK_SECONDS[name]:g} s", *map(span, times)))
    header = "chain, block, inclusion, forced inclusion, least clock, clock, challenge, answer, unbonding"
    return table(header, cells)


def held_lines() -> list[str]:
    """The moves of one side that may each be held back until they are forced in, before its clock runs out."""

    def shown(chain: ChainTimes, clock: Seconds) -> str:
        # INVARIANT of JobRules: each move of a game in its time, and one of them held back.
        if clock < chain.clock_floor:
            return "refused"
        return "-" if not chain.censor else f"{survived(chain, clock)} of {GAME_MOVES}"

    cells = [
        (
            *(name, *(shown(chain, terms.clock_seconds) for terms in PRESETS.values())),
            *(shown(chain, WINDOWS[name].clock), span(GAME_MOVES * (chain.inclusion + chain.censor))),
        )
        for name, chain in CHAINS.items()
    ]
    presets = ", ".join(f"`{preset}`: {span(terms.clock_seconds)}" for preset, terms in PRESETS.items())
    return table(f"chain, {presets}, the clock above, a clock for all {GAME_MOVES}", cells)


def survived(chain: ChainTimes, clock: Seconds) -> int:
    """Those of one side's moves that a clock lets be held back: all take the inclusion, these the censorship, too."""
    return min(GAME_MOVES, (clock - GAME_MOVES * chain.inclusion) // chain.censor)


def span(seconds: float) -> str:
    """A time in words: 43,296 is 12 h 1 min 36 s; nothing is a dash."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(int(seconds), size)
        parts += [f"{count} {unit}"] * (count > 0)
    return " ".join(parts) or "-"


def write(blocks: dict[str, list[str]], charts: dict[str, Chart]) -> None:
    """Fills the named blocks of docs/economics.md, writes the pictures."""
    page = DOCS / "economics.md"
    text = page.read_text()
    for name, lines in blocks.items():
        block = f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->"
        text, found = re.subn(rf"<!-- {name} -->.*?<!-- end -->", lambda _, b=block: b, text, flags=re.DOTALL)
        if found != 1:
            sys.exit(f"{page} has {found} blocks called {name}")
    page.write_text(text)
    for name, chart in charts.items():
        (DOCS / "economics" / f"{name}.svg").write_text(chart.svg())


def main() -> None:
    """Exit 1 if checking costs more than its bound, or honest accounts lose anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--write", action="store_true", help="fill docs/economics.md and draw its pictures")
    parser.add_argument("--jobs", type=int, default=Society.jobs, help="of 64 workers each")
    parser.add_argument("--rounds", type=int, default=Society.rounds)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    play = Play(RULES, Society(jobs=given.jobs, rounds=given.rounds, seed=given.seed)).play()
    cost, rows = cost_of(play), list(rows_of(play))
    blocks = {
        "cost": cost_lines(cost),
        "kinds": kind_lines(rows),
        "facts": fact_lines(play),
        "audits": audit_lines(),
        "capital": capital_lines(),
        "attacks": attack_lines(),
        "verbs": verb_lines(),
        "coalitions": coalition_lines(given.seed),
        "replies": reply_lines(),
        "choice": choice_lines(given.seed),
        "carries": carry_lines(given.seed),
        "chains": chain_lines(),
        "held": held_lines(),
    }
    if given.json:
        results = [{"what": "verification of training", **asdict(cost), "ratio": round(cost.simulated / cost.limit, 3)}]
        attacks = [asdict(attack) for attack in Market().attacks()]
        print(json.dumps({"data": {"results": results, "kinds": [asdict(row) for row in rows], "attacks": attacks}}))
    else:
        print("\n\n".join("\n".join(lines) for lines in blocks.values()))
    if given.write:
        charts = {
            "costs": costs_chart(),
            "break-even": break_even_chart(list(grid(given.seed))),
            "profits": profits_chart(play),
            "rational": Chart("Rational accounts that cheat", "round", "%", list(rational(given.seed))),
        }
        write(blocks, charts)
    if max(cost.computed, cost.simulated) > cost.limit or play.tally.honest_falls or play.tally.unpaid_winners:
        sys.exit(1)


if __name__ == "__main__":
    main()
