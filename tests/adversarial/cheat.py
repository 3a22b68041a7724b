"""What every file of this folder says of its cheat, and what a run of it has shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockstep.execution.jobs import ClaimRun
from lockstep.node.player import HeldClaim
from lockstep.node.replay import computed_word
from lockstep.protocol.dispute.moves import Convicted, Verdict, Wrong
from lockstep.protocol.types import GameId
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, lying
from worker.progress import Material


@dataclass(frozen=True)
class Ended:
    """One cheat's end."""

    verdict: str
    declared: Where
    found: Where

    @property
    def as_declared(self) -> bool:
        """Whether the game ended where the cheat said beforehand."""
        return self.declared.matches(self.found)


@dataclass(frozen=True)
class Cheat:
    """One cheat of docs/threat-model.md, in one or more forms."""

    name: str
    verdict: str
    """fraud, timeout, rejected, refused, ..: how every form must end."""
    forms: Mapping[str, Callable[[Court], Ended]]
    changes: Mapping[str, object] = field(default_factory=dict)
    """Of the job's parameters."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    cheat: str
    form: str
    verdict: str
    declared: str
    found: str
    transactions: int
    """Of the games; of everything since the round was sealed, if there was none."""
    gas: int
    seconds: float


def run(court: Court, cheat: Cheat, form: str) -> Row:
    """Run one form of a cheat to the end; raises AssertionError if it ends otherwise than it must."""
    begun = time.monotonic()
    court.reset(**cheat.changes)
    ended = cheat.forms[form](court)
    assert ended.verdict == cheat.verdict, f"{cheat.name}, {form}: {ended.verdict}, not {cheat.verdict}"
    assert ended.as_declared, f"{cheat.name}, {form}: declared {ended.declared}, found {ended.found}"
    played = [s for s in court.spent if s.label.startswith("DisputeGame.")] or court.spent
    return Row(
        cheat.name, form, ended.verdict, str(ended.declared), str(ended.found), len(played),
        sum(s.gas for s in played), time.monotonic() - begun,
    )  # fmt: skip


def convicts(lie: Lie, declared: Callable[[ClaimRun], Where], slot: int = 0) -> Callable[[Court], Ended]:
    """The common form: one slot lies, an honest verifier finds it, the stake is gone, everybody else is paid."""

    def play(court: Court) -> Ended:
        honest = court.run(slot)
        return convict(court, lying(honest, lie), declared(honest), slot)

    return play


def convict(court: Court, liar: ClaimRun, declared: Where, slot: int = 0) -> Ended:
    """One slot claims `liar`; played to the end and weighed."""
    claims = court.claim({slot: liar})
    (game,) = court.audit_and_play()
    assert court.convicted(claims[slot])
    for event in court.log(game):
        if isinstance(event, Convicted) and event.finding.wrong is Wrong.OP:
            word = computed_word(HeldClaim(court.run(slot), ()).whole(event.finding.t), event.finding)
            assert word == event.finding.contract_word, "anybody computes it again"
    court.settle()
    court.balance({f"worker-{slot}": court.params.role.slot_stake})
    return ended(court, game, declared)


def ended(court: Court, game: GameId, declared: Where) -> Ended:
    """A game's end."""
    verdict: Verdict = court.verdict(game)
    return Ended(verdict.name.lower(), declared, court.found(game))


def refuted(court: Court, change: Callable[[Material], Material], declared: Where, slot: int = 0) -> Ended:
    """One slot publishes what it cannot defend, and keeps silent: its clock convicts it."""
    (claim, *_) = claims = court.claim(change={slot: change})
    court.silent.add(claims[slot])
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    court.settle()
    court.balance({f"worker-{slot}": court.params.role.slot_stake})
    return ended(court, game, declared)
