"""Plays one history: honest parties poll, the coalition sends, a block is mined, the rules are checked; then the end.

play(setting) -> Played          with the coalition's script, which `play(setting, script)` repeats
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.jobs import Body, JobStatus, Phase
from lockstep.protocol.market import availability, ids, views
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.state import State
from lockstep.protocol.market.types import DutyStatus, Standing, Status
from lockstep.protocol.types import ClaimId, TraceRoot
from tests.search.carrying import CarryClaim
from tests.search.coalition import Coalition, deadlines
from tests.search.honest import Machine, Party
from tests.search.known import NamedWanderer
from tests.search.rules import Violation, Watch
from tests.search.scene import ACCOUNTS, JobRefused, Scene, Setting
from tests.support.constant import ConstantClaim, Lie

BLOCKS = 140
"""Number of blocks in which the coalition acts."""
END_BLOCKS = 6_000


@dataclass
class Beat:
    """One block of a script."""

    seconds: int
    """Seconds since the previous block."""
    before: list[MarketCall] = field(default_factory=list)
    """The coalition's calls that come before those of honest parties."""
    after: list[MarketCall] = field(default_factory=list)


@dataclass
class Played:
    """Result of a history."""

    setting: Setting
    script: list[Beat]
    calls: int
    violation: Violation | None = None
    scene: Scene | None = None
    known: NamedWanderer | None = None


def play(setting: Setting, script: Sequence[Beat] | None = None, machine: Machine | None = None) -> Played:
    """Plays one history, from its seed or from a script."""
    dice = random.Random(setting.seed + 1)
    try:
        scene = Scene(setting)
    except JobRefused:
        return Played(setting, list(script or ()), 0)
    # Published data are known to all; only the coalition acts at random.
    known = NamedWanderer(dice, dict.fromkeys(setting.coalition, None))  # type: ignore[arg-type]
    scene.listeners.append(lambda call, events: known.learn(events))
    scene.listeners.append(lambda call, events: _publish(scene, known, call))
    model = machine or Machine()
    parties = [
        Party(me, scene, known, Machine(model.forgets, model.in_line)) for me in ACCOUNTS if me in setting.honest
    ]
    coalition = Coalition(scene, known, dice)
    played = Played(setting, [], 0, scene=scene, known=known)
    try:
        watch = Watch(scene, known)
        for at in range(BLOCKS if script is None else len(script)):
            said = [call for party in parties for call in party.calls(scene.state, scene.block)]
            busy = bool(said) or _await(scene, parties)
            if script is None:
                busy = busy or coalition.awaits(scene.state, scene.block)
                beat = Beat(_seconds(scene, parties, dice, busy=busy))
                for call in coalition.calls(scene.state, scene.block):
                    first = dice.random() < 0.5 or (call.function == "join" and setting.mood == "carries")
                    (beat.before if first else beat.after).append(call)
                beat.before += coalition.stolen(scene.state)
                beat.after += coalition.owners(scene.state)
            else:
                beat = replace(script[at], seconds=_fair(scene, parties, script[at].seconds, busy=busy))
            played.script.append(beat)
            watch.seats()
            scene.pass_time(beat.seconds)
            for call in (*beat.before, *said, *beat.after):
                # A shortened script may lead to another base, for which its claims cannot be computed.
                if script is None:
                    scene.do(call)
                elif not _is_unheard_of(scene, known, call):
                    scene.do(_as_it_stands(scene.state, call))
            watch.poll()
            if script is None and _is_over(scene):
                break
        _end(scene, parties, watch)
        watch.end()
    except Violation as violation:
        played.violation = violation
    played.calls = scene.calls
    return played


def _as_it_stands(s: State, call: MarketCall) -> MarketCall:
    """Updates a scripted move to its game's clocks, which differ in a shortened history."""
    if call.contract != "DisputeGame" or not any(isinstance(given, moves.GameState) for given in call.arguments):
        return call
    id_, shown, *rest = call.arguments
    now = s.games[id_].standing
    return replace(call, arguments=(id_, now, *rest)) if shown.node == now.node else call


def _publish(scene: Scene, known: NamedWanderer, call: MarketCall) -> None:
    """Records which possible claim a reveal or merge publishes: all can recompute it."""
    said = _said(scene, known, call)
    if said is None or said[1] is None:
        return
    known.held[said[0]] = said[1]
    if isinstance(said[1], CarryClaim) and not said[1].stored:
        known.withheld.add(said[0])


def _is_unheard_of(scene: Scene, known: NamedWanderer, call: MarketCall) -> bool:
    """Returns True if a reveal is not among the claims that can be made from the round's base."""
    said = _said(scene, known, call)
    return said is not None and said[1] is None and said[0] not in known.held


def _said(scene: Scene, known: NamedWanderer, call: MarketCall) -> tuple[ClaimId, ConstantClaim | None] | None:
    """Returns (claim, its contents) of a reveal or merge; None for contents that are impossible in the present
    state.
    """
    if call.contract != "JobMarket" or call.function not in ("reveal", "merge"):
        return None
    job, r, *said = call.arguments
    ro = scene.state.rounds[job, r]
    if call.function == "reveal":
        return ids.claim_id(job, r, ro.attempt, said[0]), known.revealed(scene.state, job, r, said[0], said[1])
    claim, body = ro.merge_claim, Body(TraceRoot(merkle.leaf(merkle.node(said[0], said[1]))), said[0], said[1])
    made = (ConstantClaim.of_merge(ro.merge_in, lie) for lie in Lie)
    return claim, next((one for one in made if one.body == body), None)


def _await(scene: Scene, parties: Sequence[Party]) -> bool:
    """Returns True if an honest party waits for the next block itself."""
    return bool(scene.state.demands) and any(party.awaits(scene.state, scene.block) for party in parties)


def _ahead(scene: Scene, parties: Sequence[Party]) -> list[int]:
    """Returns the seconds until coming events, on chain or in a machine."""
    times = (*deadlines(scene.state, scene.job), *(t for party in parties for t in (party.machine.wakes, party.wakes)))
    return [t - scene.block.time for t in times if t > scene.block.time]


def _seconds(scene: Scene, parties: Sequence[Party], dice: random.Random, *, busy: bool) -> int:
    """Returns the seconds until the next block: the chain's own spacing, or up to the next event if honest parties are
    idle.
    """
    inclusion = max(1, int(scene.setting.chain.inclusion))
    if not busy and dice.random() < 0.8:
        ahead = _ahead(scene, parties)
        if ahead:
            seconds = max(1, min(ahead) + dice.choice((-inclusion, -1, 0, 0, 1, inclusion - 1)))
            if not scene.setting.steady:
                return seconds
            # Unneeded blocks are left out, without moving the others.
            return inclusion * min(-(-seconds // inclusion), -(-min(ahead) // inclusion))
    # The chain keeps the deployment's promise.
    return inclusion if scene.setting.steady else dice.randint(1, inclusion)


def _fair(scene: Scene, parties: Sequence[Party], seconds: int, *, busy: bool) -> int:
    """Limits the seconds to what a chain that keeps its promise lets honest parties wait."""
    inclusion = max(1, int(scene.setting.chain.inclusion))
    if busy:
        return min(seconds, inclusion)
    # As late as `_seconds` draws it.
    return min(seconds, max(1, min(_ahead(scene, parties), default=seconds) + max(1, inclusion - 1)))


def _is_over(scene: Scene) -> bool:
    s = scene.state
    return s.jobs[scene.job].status == JobStatus.DONE and not any(lock.amount for lock in s.locks.values())


def _end(scene: Scene, parties: Sequence[Party], watch: Watch) -> None:
    """Ends the history: the coalition is silent, honest parties continue, open acts are made, until nothing is
    locked.
    """
    begun, inclusion = scene.block.time, max(1, int(scene.setting.chain.inclusion))
    for _ in range(END_BLOCKS):
        if _is_over(scene):
            return
        said = [call for party in parties for call in party.calls(scene.state, scene.block)]
        ahead = _ahead(scene, parties)
        watch.seats()
        busy = bool(said) or _await(scene, parties)
        scene.pass_time(inclusion if busy or not ahead else max(1, min(ahead)))
        if scene.block.time - begun > watch.bound():
            return
        for call in said:
            scene.do(call)
        for call in _anybodys(scene, parties[0]):
            scene.do(call)
        watch.poll()


def _anybodys(scene: Scene, reader: Party) -> list[MarketCall]:
    """Returns calls that any account may make, based on the logs."""
    s, b, job, me = scene.state, scene.block, scene.job, ACCOUNTS[-1]
    j = s.jobs[job]
    found: list[MarketCall] = []
    for id_, g in s.games.items():
        if g.phase != moves.GamePhase.CLOSED and (b.time > g.deadline or not views.live(s, g.claim)):
            found.append(MarketCall("DisputeGame", "resolve", me, (id_, g.standing)))
    for asked, demand in s.demands.items():
        # Honest parties end a demand for a carry that its demander leaves open.
        left = demand.row == availability.CARRY and demand.beacon
        if demand.status == Status.OPEN and b.time > demand.deadline and not left:
            late = ("voidForRow", (job, demand.row)) if demand.beacon == 0 else ("settle", (asked,))
            found.append(MarketCall("Availability", late[0], me, late[1]))
    for of, r in s.rounds:
        match views.phase(s, b, of, r):
            case Phase.SEALING:
                found.append(MarketCall("JobMarket", "seal", me, (of, r)))
            case Phase.FREEZING:
                found.append(MarketCall("JobMarket", "freeze", me, (of, r, reader._bodies(s, r))))
            case Phase.MERGING | Phase.LEAD | Phase.FAILED:
                found.append(MarketCall("JobMarket", "finalize", me, (of, r)))
            case Phase.VOID:
                found.append(MarketCall("JobMarket", "release", me, (of, r)))
        if views.is_voided(j):
            found.append(MarketCall("JobMarket", "release", me, (of, r)))
    for audit, i in s.duties:
        if s.duties[audit, i].status != DutyStatus.CLOSED:
            found.append(MarketCall("Witnesses", "settle", me, (audit, i)))
    for of, account in s.enrolled:
        if j.status == JobStatus.DONE and s.enrolled[of, account].standing == Standing.LISTED:
            found.append(MarketCall("Witnesses", "retire", account, (of,)))
    if j.status == JobStatus.ACTIVE:
        found.append(MarketCall("JobMarket", "startRound", me, (job, j.started)))
    found.append(MarketCall("JobMarket", "finish", me, (job,)))
    return found
