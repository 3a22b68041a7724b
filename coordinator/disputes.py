"""A dispute from the index: every move with the facts that it shows and both clocks, the bisection, the payments.

A pure reading of the stored events, by the functions that `lockstep dispute` uses: no call to the chain. A job's files
add the names of its operations, and the type of their words, where a store has them (coordinator.descriptions).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.folds import GAME, VAULT
from coordinator.models import ClaimRow, EventRow, GameRow, JobRow, unhex
from coordinator.published import command
from lockstep.chain import artifacts, games
from lockstep.chain.games import LoggedEvent
from lockstep.disputes.bisection import bisection, described, value_of
from lockstep.disputes.gamelog import DUE, MoveMade, moves_of, place_of
from lockstep.disputes.payments import Payment, payments_of
from lockstep.disputes.player import Side
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import NO_GAME, NOBODY, Game
from lockstep.protocol.dispute.moves import GameEvent, GamePhase, Wrong
from lockstep.protocol.programs.program import F32, Op
from lockstep.protocol.types import MERGE_SLOT, GameId, Seconds

STEP, ENCODE, MERGE = "step", "encode", "merge"


@dataclass(frozen=True)
class NamedOp:
    """An operation of a job's Program, with its name."""

    op: Op
    name: str
    """Its module path, as the tracer wrote it down; a stranger's words."""


@dataclass(frozen=True)
class Log:
    """A game's events, with its claim and its job."""

    row: GameRow
    claim: ClaimRow
    job: JobRow
    entries: tuple[LoggedEvent, ...]
    standings: tuple[Game | None, ...]
    """The game's state after each event; None if it was over."""
    times: dict[bytes, int]
    """By transaction: chain seconds."""
    gas: dict[bytes, int | None]
    """By transaction."""

    @property
    def events(self) -> list[GameEvent]:
        """The events in the order of the chain."""
        return [entry.event for entry in self.entries]

    @property
    def opened(self) -> moves.Opened:
        """The event that opened the game."""
        return next(e for e in self.events if isinstance(e, moves.Opened))

    @property
    def transitions(self) -> int:
        """The claim's number of transitions T: H steps and the encode; 1 for a merge."""
        return 1 if self.claim.slot == MERGE_SLOT else int(role_of(self.job)["inner_steps"]) + 1

    @property
    def program(self) -> str | None:
        """The name of the disputed Program: "step", "encode" or "merge"."""
        t = place_of(self.events).t
        if t is None:
            return None
        if self.claim.slot == MERGE_SLOT:
            return MERGE
        return STEP if t < self.transitions else ENCODE


def role_of(job: JobRow) -> dict[str, Any]:
    """Returns the parameters of a job's slots as JSON."""
    role: dict[str, Any] = job.params["roles"][0]
    return role


def read_log(session: Session, row: GameRow) -> Log | None:
    """A game's log; None if the index has no claim or no opening for it."""
    claim = session.get(ClaimRow, row.claim)
    job = None if claim is None else session.get(JobRow, claim.job)
    stored = session.scalars(
        select(EventRow)
        .where(EventRow.game == row.id, EventRow.contract == GAME)
        .order_by(EventRow.block, EventRow.log_index)
    ).all()
    found = [entry for entry in map(_entry, stored) if entry is not None]
    if claim is None or job is None or not any(isinstance(e.event, moves.Opened) for e, _ in found):
        return None
    entries, standings = zip(*found, strict=True)
    return Log(
        row, claim, job, entries, standings, {unhex(e.tx): e.time for e in stored}, {unhex(e.tx): e.gas for e in stored}
    )


def _entry(row: EventRow) -> tuple[LoggedEvent, Game | None] | None:
    inputs = artifacts.load(GAME).entries("event")[row.name]["inputs"]
    values = {c["name"]: _native(c, row.args[artifacts.snake(c["name"])]) for c in inputs}
    event = games.of_values(row.name, values)
    if event is None:
        return None
    logged = LoggedEvent(GameId(unhex(row.game or "")), event, row.block, unhex(row.tx), row.log_index)
    words = values.get("standing")
    return logged, None if words is None else games.as_it_stands(moves.GameState(*words), NOBODY)


def _native(component: dict[str, Any], value: Any) -> Any:
    """The inverse of `chain.plain`; a struct becomes a list in the ABI's order."""
    kind: str = component["type"]
    if kind.endswith("[]"):
        return [_native({**component, "type": kind[:-2]}, item) for item in value]
    if kind == "tuple":
        return [_native(c, value[artifacts.snake(c["name"])]) for c in component["components"]]
    if kind.startswith("bytes"):
        return unhex(value)
    return int(value) if kind.startswith("uint") else value


# -- clocks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clocked:
    """A move, with both clocks after it."""

    move: MoveMade
    time: int
    challenger: int
    """Seconds left on the challenger's clock."""
    defender: int


def clocked(log: Log, made: Sequence[MoveMade]) -> Iterator[Clocked]:
    """Every move with both clocks after it: each side's runs from the other's move to its own (protocol.dispute.game).

    A move that ends the game without its mover, `resolve` by anybody, takes nothing from either clock.
    """
    standings, game, left = iter(log.standings), NO_GAME, dict.fromkeys(Side, 0)
    for move in made:
        now = log.times[move.transaction]
        stands = [next(standings) for _ in move.events][-1]
        if stands is not None:
            game, left = stands, {Side.CHALLENGER: stands.left_challenger, Side.DEFENDER: stands.left_defender}
        elif move.side is not None:
            left = {**left, move.side: max(0, game.deadline - now)}
        yield Clocked(move, now, left[Side.CHALLENGER], left[Side.DEFENDER])


# -- the whole ------------------------------------------------------------------------------------------


def dispute_out(session: Session, log: Log, named: NamedOp | None, now: Seconds, url: str) -> dict[str, Any]:
    """Returns a game in the form of `schema.DisputeOut`. `now` is the time of the last indexed block, and `url` this
    server's, for the command."""
    op = None if named is None else named.op
    made = moves_of(log.entries, log.transitions, op)
    steps, place = list(clocked(log, made)), place_of(log.events)
    left = {"challenger": steps[-1].challenger, "defender": steps[-1].defender}
    phase, mover, deadline = GamePhase.CLOSED, None, None
    if (stands := log.standings[-1]) is not None:
        phase, deadline = stands.phase, stands.deadline
        mover = Side.DEFENDER if stands.defender_moves else Side.CHALLENGER
        left[mover.value] = max(0, deadline - now)
    of_op = place.wrong is Wrong.OP
    resolved = next((e for e in log.events if isinstance(e, moves.Resolved)), None)
    tree = bisection(log.events, log.transitions, op).to_dict()
    return {
        "id": log.row.id,
        "claim": log.claim.id,
        "job": log.claim.job,
        "round": log.claim.round,
        "attempt": log.claim.attempt,
        "slot": log.claim.slot,
        "challenger": log.opened.challenger,
        "defender": log.opened.defender,
        "verdict": log.row.verdict,
        "winner": None if resolved is None or not int(resolved.winner, 16) else resolved.winner,
        "opened": log.row.time,
        "closed": log.row.closed,
        "transitions": log.transitions,
        "program": log.program,
        "step": place.t,
        "wrong": None if place.wrong is None else place.wrong.name.lower(),
        "op": _op_of(place, named),
        "leaf": place.leaf if of_op else None,
        "element": place.element if of_op else None,
        "chunk": place.chunk if of_op else None,
        "claimed_bits": _bits(place.claimed, of_op),
        "contract_bits": _bits(place.computed, of_op),
        "claimed_value": _number(place.claimed, op, of_op),
        "contract_value": _number(place.computed, op, of_op),
        "phase": phase.name.lower(),
        "due": DUE.get(phase),
        "mover": None if mover is None else mover.value,
        "deadline": deadline,
        "seconds_left": left,
        "moves": [{**_move(step), "gas": log.gas[step.move.transaction]} for step in steps],
        "transactions": len(log.gas),
        "gas_total": None if None in log.gas.values() else sum(gas or 0 for gas in log.gas.values()),
        "tree": tree,
        "money": [payment.to_dict() for payment in _money(session, log)],
        "check": command(_check(log, place), url),
    }


def _check(log: Log, place: Any) -> str:
    """Returns the command that recomputes the contract's number, or replays the claim if the contract computed no
    op."""
    if place.wrong is Wrong.OP and place.computed is not None:
        return f"dispute check {log.row.id.removeprefix('0x')}"
    return f"replay {log.claim.id.removeprefix('0x')}"


def _op_of(place: Any, named: NamedOp | None) -> dict[str, Any] | None:
    if place.wrong is not Wrong.OP or place.position is None:
        return None
    return {
        "index": place.position,
        "kind": None if named is None else named.op.kind.name.lower(),
        "name": None if named is None else named.name,
        "dtype": None if named is None else "f32" if named.op.dtype == F32 else "i32",
        "shape": None if named is None else list(named.op.extents),
        "described": described(None if named is None else named.op).strip(" ()") or None,
    }


def _move(step: Clocked) -> dict[str, Any]:
    return {
        "move": step.move.call,
        "by": step.move.by,
        "shows": step.move.shows,
        "block": step.move.block,
        "time": step.time,
        "transaction": "0x" + step.move.transaction.hex(),
        "challenger_seconds": step.challenger,
        "defender_seconds": step.defender,
    }


def _bits(digest: bytes | None, of_op: bool) -> str | None:
    return None if digest is None else "0x" + (digest[-4:] if of_op else digest).hex()


def _number(bits: bytes | None, op: Op | None, of_op: bool) -> float | int | str | None:
    """Returns a word as a number; as a string where it is not finite, since JSON has no such number."""
    if bits is None or not of_op:
        return None
    value = value_of(int.from_bytes(bits[-4:], "big"), op)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _money(session: Session, log: Log) -> list[Payment]:
    """Returns the payments that the game's first and last transaction made in the vault."""
    ends = [e for e in log.entries if isinstance(e.event, moves.Opened | moves.Resolved)]
    found: list[Payment] = []
    for entry in {e.transaction: e for e in ends}.values():
        rows = session.scalars(
            select(EventRow)
            .where(EventRow.block == entry.block, EventRow.contract == VAULT)
            .where(EventRow.tx == "0x" + entry.transaction.hex())
            .order_by(EventRow.log_index)
        )
        for row in rows:
            event: Any = SimpleNamespace(name=row.name, args=_vault_args(row))
            found += payments_of(event, GameId(unhex(log.row.id)), log.opened)
    return found


def _vault_args(row: EventRow) -> dict[str, Any]:
    inputs = artifacts.load(VAULT).entries("event")[row.name]["inputs"]
    return {artifacts.snake(c["name"]): _native(c, row.args[artifacts.snake(c["name"])]) for c in inputs}
