"""Narrates a run: turns an event of the chain, of a program or of a game into a sentence. Pure functions.

>>> of_chain("Joined", {"round": 2, "slot": 1, "worker": "0x90F79bf6EB2c4f870365E785982E1f101E93b906"}).text
'round 2: 0x90F79bf6 takes slot 1'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.base.naming import short
from lockstep.protocol.types import MERGE_SLOT

if TYPE_CHECKING:
    from lockstep.execution.losses import MergedLoss

GOOD, BAD, ALERT, STEP, QUIET, STRONG = "green", "bold red", "yellow", "cyan", "dim", "bold"
"""Styles of a success, a lie or loss, the start of a dispute, a step of the run, a detail, and a headline."""

Args = Mapping[str, Any]
Sentence = tuple[str, Callable[[Args], str]]


@dataclass(frozen=True)
class Line:
    """One line of output."""

    text: str
    style: str = ""
    """The style on a terminal; the text alone has all information."""

    def after(self, head: str) -> Line:
        """Returns the line with `head` before it."""
        return Line(f"{head}{self.text}", self.style)


def clock(time: int) -> str:
    """Formats a chain time as the time of day, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def amount(args: Args, name: str, digits: int | None = None) -> str:
    """Formats an amount, an integer or a decimal string in wei, as "20.5 LST", exactly or to `digits` digits."""
    return tokens(int(args.get(name) or 0), digits)


def countdown(seconds: int) -> str:
    """Formats the time left: "1:02:03", "9:05", "0:00"."""
    minutes, rest = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def place(args: Args) -> str:
    """Returns the place in the run: "round 2", "slot 1" or "the merge" as far as it is known."""
    said = [f"round {args['round']}"] if args.get("round") is not None else []
    if args.get("slot") is not None:
        said.append("the merge" if args["slot"] in (MERGE_SLOT, "merge") else f"slot {args['slot']}")
    return ", ".join(said)


def _slot(a: Args) -> str:
    return "the merge" if a.get("slot") in (MERGE_SLOT, "merge") else f"slot {a.get('slot')}"


def _payloads(a: Args) -> str:
    return f"{int(a.get('mask') or 0).bit_count()} payloads"


def _opened(a: Args) -> str:
    return f"{amount(a, 'escrow')} are escrowed, deposit {amount(a, 'deposit')}"


CHAIN: dict[str, Sentence] = {
    "JobCreated": (STRONG, lambda a: f"the job is open: {_opened(a)}"),
    "JobCancelled": (ALERT, lambda a: f"the job is cancelled: {amount(a, 'refunded')} are refunded"),
    "JobDone": (
        GOOD,
        lambda a: (
            f"the job is done: {amount(a, 'paid')} paid, {amount(a, 'refunded')} refunded, "
            f"deposit {amount(a, 'returned')} back"
        ),
    ),
    "JobVoid": (BAD, lambda a: f"the job is void: {short(a.get('prover'))} proved it invalid"),
    "Invalid": (
        BAD,
        lambda a: f"the job is proved invalid: rule {a.get('rule')}, Program {a.get('program')}",
    ),
    "RoundStarted": (STEP, lambda a: f"round {a.get('round')} opens for joining"),
    "Joined": ("", lambda a: f"round {a.get('round')}: {short(a.get('worker'))} takes {_slot(a)}"),
    "Left": (ALERT, lambda a: f"round {a.get('round')}: {short(a.get('worker'))} gives {_slot(a)} back"),
    "RosterClosed": (
        QUIET,
        lambda a: f"round {a.get('round')}: the slots are assigned, block {a.get('seed_block')} draws the seed",
    ),
    "Sealed": (STEP, lambda a: f"round {a.get('round')}: the seed is drawn, workers train"),
    "Committed": ("", lambda a: f"round {a.get('round')}: {_slot(a)} has committed to its claim"),
    "Revealed": ("", lambda a: f"round {a.get('round')}: {_slot(a)} is claimed, claim {short(a.get('claim'))}"),
    "Carried": (QUIET, lambda a: f"round {a.get('round')}: {_slot(a)} starts from its owner's last carry"),
    "TracePublished": (QUIET, lambda a: f"round {a.get('round')}: the trace of {_slot(a)} is public"),
    "Attested": ("", lambda a: f"round {a.get('round')}: {short(a.get('account'))} attests {_payloads(a)}"),
    "Frozen": (STEP, lambda a: f"round {a.get('round')}: {_payloads(a)} are accepted"),
    "Backed": (QUIET, lambda a: f"round {a.get('round')}: a merge's stake backs {a.get('rounds')} rounds"),
    "Merged": (
        STEP,
        lambda a: f"round {a.get('round')}: merged by {short(a.get('worker'))}, claim {short(a.get('claim'))}",
    ),
    "Paid": (
        GOOD,
        lambda a: f"round {a.get('round')}: {amount(a, 'amount')} to {short(a.get('account'))} for {_slot(a)}",
    ),
    "Convicted": (
        BAD,
        lambda a: (
            f"round {a.get('round')}: {_slot(a)} is convicted, claim {short(a.get('claim'))} of "
            f"{short(a.get('worker'))}"
        ),
    ),
    "RoundFinal": (GOOD, lambda a: f"round {a.get('round')} is final"),
    "RoundFailed": (BAD, lambda a: f"round {a.get('round')} failed: revealed claims are judged and paid"),
    "RoundVoid": (BAD, lambda a: f"round {a.get('round')} is void: a merge before it was convicted"),
    "AuditOpened": (QUIET, lambda a: f"round {a.get('round')}: block {a.get('beacon_block')} draws the witnesses"),
    "Enrolled": (QUIET, lambda a: f"{short(a.get('account'))} is a witness of the job"),
    "Retired": (QUIET, lambda a: f"{short(a.get('account'))} is no longer a witness of the job"),
    "DutyDrawn": (ALERT, lambda a: f"{short(a.get('account'))} is drawn as witness of slot {a.get('slot')}"),
    "VerdictRevealed": (
        "",
        lambda a: f"the witness {'agrees' if a.get('agrees') else 'differs'}, having replayed up to step {a.get('t')}",
    ),
    "PayloadDemanded": (
        ALERT,
        lambda a: f"{place(a)}: {short(a.get('asker'))} demands the payload of claim {short(a.get('claim'))}",
    ),
    "RowDemanded": (ALERT, lambda a: f"{short(a.get('asker'))} demands row {a.get('row')} of the dataset"),
    "Slashed": (
        BAD,
        lambda a: (
            f"slashed: {short(a.get('account'))} loses {amount(a, 'amount', 6)}: {amount(a, 'burned', 6)} "
            f"burned, {amount(a, 'to_challenger', 6)} to the challenger, {amount(a, 'to_requester', 6)} to the "
            f"requester, {amount(a, 'owed', 6)} for work that became void with it"
        ),
    ),
}
"""A sentence for every event of the chain that names a job, and for those of the vault and of witnesses in the demo."""
UNTOLD = frozenset({"RosterClosed", "TracePublished", "Backed", "AuditOpened", "Enrolled", "Retired", "Committed",
                    "Carried", "Attested"})  # fmt: skip
"""Events that tell a requester nothing beyond those before and after them."""


def claim(a: Args) -> str:
    where = f" ({place(a)})" if place(a) else ""
    return f"claim {short(a.get('claim'))}{where}"


def _audited(a: Args) -> str:
    if a.get("verdict") == "match":
        taken = f"in {a['seconds']} s" if a.get("seconds") is not None else "before"
        return f"replayed {claim(a)} {taken}: every state is the same"
    if a.get("verdict") == "mismatch":
        at = "it differs; its list of states is not available yet" if a.get("t") is None else f"step {a['t']} differs"
        return f"replayed {claim(a)}: {at}"
    if a.get("verdict") == "closed":
        return f"does not replay {claim(a)}: it can no longer be challenged"
    return f"cannot replay {claim(a)}: {a.get('reason') or a.get('verdict')}"


def _device(a: Args) -> str:
    why = f": {a['why']}" if a.get("why") else ""
    return f"computes on {a.get('device')} ({a.get('name')}){why}"


def _voided(a: Args) -> str:
    return f"proved job {short(a.get('job'))} invalid by rule {a.get('rule')}"


def _done(a: Args) -> str:
    earned = f": earned {amount(a, 'earned')}" if "earned" in a else ""
    return f"has finished job {short(a.get('job'))}{earned}"


def _game(a: Args) -> str:
    return f"game {short(a.get('game'))}" + (f" about claim {short(a['claim'])}" if a.get("claim") else "")


def _asked(a: Args) -> str:
    return f"claim {short(a['claim'])}" if a.get("claim") else f"row {a.get('row')} of job {short(a.get('job'))}"


PROGRAM: dict[str, Sentence] = {
    "device": (QUIET, _device),
    "ready": (QUIET, lambda a: f"is ready{', at ' + str(a['url']) if a.get('url') else ''}"),
    "indexed": (QUIET, lambda a: f"indexed {a.get('events')} events up to block {a.get('block')}"),
    "listening": (QUIET, lambda a: f"listens for another home with its key until {clock(int(a.get('until') or 0))}"),
    "paced": (QUIET, lambda a: f"takes {a.get('shown_seconds')} s for a step of job {short(a.get('job'))}"),
    "joined": ("", lambda a: f"joins {place(a)}"),
    "trained": ("", lambda a: f"trained {place(a)} in {a.get('seconds')} s"),
    "committed": ("", lambda a: f"commits to {place(a)}"),
    "revealed": ("", lambda a: f"reveals {claim(a)}"),
    "attested": ("", lambda a: f"attests {_payloads(a)} of round {a.get('round')}"),
    "frozen": (STEP, lambda a: f"accepts {_payloads(a)} of round {a.get('round')}"),
    "merged": (STEP, lambda a: f"merged round {a.get('round')}, claim {short(a.get('claim'))}"),
    "paid": (GOOD, lambda a: f"is paid {amount(a, 'amount')} for {place(a)}"),
    "convicted": (BAD, lambda a: f"is convicted of {claim(a)}"),
    "staked": ("", lambda a: f"stakes {amount(a, 'amount')}"),
    "slashed": (BAD, lambda a: f"loses {amount(a, 'amount')} of its stake"),
    "withdrawn": (GOOD, lambda a: f"withdraws {amount(a, 'amount')}"),
    "disputed": (ALERT, lambda a: f"is challenged: {_game(a)}"),
    "defending": ("", lambda a: f"answers with {a.get('move')} in {_game(a)}"),
    "resolved": (STRONG, lambda a: f"{_game(a)} ends: {a.get('verdict')}"),
    "audited": ("", _audited),
    "challenged": (ALERT, lambda a: f"challenges {claim(a)}: {'step ' + str(a['t']) if a.get('t') else 'its trace'}"),
    "moved": ("", lambda a: f"moves {a.get('move')} in {_game(a)}"),
    "won": (GOOD, lambda a: f"won {_game(a)}: {a.get('verdict')}"),
    "lost": (BAD, lambda a: f"lost {_game(a)}: {a.get('verdict')}"),
    "void": (QUIET, lambda a: f"{_game(a)} is void"),
    "equivocated": (BAD, lambda a: f"proved that {short(a.get('worker'))} signed two claims for {place(a)}"),
    "demanded": (ALERT, lambda a: f"demands {_asked(a)} on chain"),
    "precommitted": (QUIET, lambda a: f"commits to an answer to demand {short(a.get('demand'))}"),
    "answered": ("", lambda a: f"answered demand {short(a.get('demand'))}"),
    "settled": (QUIET, lambda a: f"settled demand {short(a.get('demand'))}"),
    "voided": (BAD, _voided),
    "refused": (ALERT, lambda a: f"refuses job {short(a.get('job'))}: {a.get('message')}"),
    "enrolled": (QUIET, lambda a: f"enrolls as witness of job {short(a.get('job'))}"),
    "looked": (QUIET, lambda a: f"replayed up to step {a.get('t')} for its duty {a.get('duty')}"),
    "witnessed": ("", lambda a: f"reveals its verdict on {claim(a)}: {a.get('verdict')} up to step {a.get('t')}"),
    "staying": (ALERT, lambda a: f"keeps running: {a.get('stakes')} stakes and {a.get('games')} games are open"),
    "done": (GOOD, _done),
    "held": (ALERT, lambda a: f"holds transactions back: {a.get('message')}"),
    "released": (GOOD, lambda a: f"sends again after {a.get('seconds')} s of too high fees"),
    "unreachable": (ALERT, lambda a: f"waits: {a.get('message')}"),
    "reachable": (GOOD, lambda a: f"continues after an outage of {a.get('seconds')} s"),
}  # fmt: skip
"""A sentence for every event that worker, verifier and coordinator print."""


def of_chain(name: str, args: Args) -> Line:
    """Returns the sentence for an event of the chain; an event without one is shown with its arguments."""
    return _line(CHAIN, name, args)


def of_program(who: str, event: Args, sentences: Mapping[str, Sentence] = PROGRAM) -> Line:
    """Returns the sentence for an event that a program of the market printed."""
    return _line(sentences, str(event.get("event")), event).after(f"{who} ")


def of_loss(found: MergedLoss, curve: str = "") -> Line:
    """Returns a line with the loss of one checkpoint, its claim, and the curve so far."""
    return Line(str(found) + (f"  {curve}" if curve else ""), STRONG)


def of_divergence(loss: float, job: str) -> Line:
    """Returns advice for the requester of a job whose loss is not finite."""
    return Line(
        f"the loss is {loss}: the job has diverged, and further training is paid in vain. "
        f"`lockstep train cancel {short(job)}` stops it and refunds the rest; start again with a lower learning "
        "rate or a longer warm-up",
        ALERT,
    )


def _line(sentences: Mapping[str, Sentence], name: str, args: Args) -> Line:
    known = sentences.get(name)
    if known is not None:
        style, sentence = known
        return Line(sentence(args), style)
    shown = ", ".join(f"{k} {short(v)}" for k, v in args.items() if k not in ("event", "time"))
    return Line(f"{name}: {shown}" if shown else name, QUIET)
