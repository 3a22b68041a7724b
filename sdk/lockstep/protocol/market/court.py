"""Stores games, bonds and gas around the rules of `game.py`. Twin of contracts/DisputeGame.sol.

Each move is looked up, played by the pure rules, written and emitted; a closing game reports its verdict to the market.
The chain meters gas, so it is an argument of the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from lockstep.protocol.dispute import game, moves
from lockstep.protocol.dispute.docket import SCAN, Docket
from lockstep.protocol.dispute.game import DisputedClaim, Game
from lockstep.protocol.dispute.moves import Finding, GamePhase, Proof, Verdict, Wrong
from lockstep.protocol.jobs import NO_SEED, NO_STATE, ZERO, ZERO_ADDRESS, Body, Facts, GameTerms
from lockstep.protocol.market import ids, vault, verdicts
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.state import Draft, Reader
from lockstep.protocol.market.types import BURN
from lockstep.protocol.market.views import claim as claim_of
from lockstep.protocol.market.views import facts_of, is_signed, live
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import (
    Address,
    ClaimId,
    Digest,
    GameId,
    JobId,
    ProgramRoot,
    Seconds,
    Seed,
    StateRoot,
    TensorRoot,
    TraceRoot,
    Wei,
)

TRANSACTION_GAS, BYTE_GAS, ZERO_GAS = 21_000, 16, 4
"""Gas of a transaction before its first instruction, of a nonzero byte of its data, and of a zero byte."""
MAX_SPENT = (1 << 24) - 1
"""Most gas that a game counts."""


@dataclass(frozen=True)
class Work:
    """The work for which a worker signs a claim: slot, attempt, seed and base."""

    job: JobId
    round: int
    attempt: int
    slot: int
    seed: Seed
    base: StateRoot


@dataclass(frozen=True)
class Signed:
    """A signed claim (EIP-712 `Claim`) without its `Work`."""

    trace_root: TraceRoot
    transitions: int
    out: StateRoot
    out2: StateRoot
    signature: bytes


class OperandProof(NamedTuple):
    """The proof of an op's operands (Solidity: `Proof`)."""

    descriptor: bytes
    chunk: int
    posted: bytes
    openings: tuple[moves.Opening, ...]
    context: bytes


# -- opening -----------------------------------------------------------------------------------------------------------


def open_(
    d: Draft,
    sender: Address,
    claim: ClaimId,
    body: Body,
    nonce: int,
    t: int,
    next_: StateRoot,
    next_proof: Proof,
    step: moves.Transition,
) -> GameId:
    """Opens a game on transition t of a claim, or on the whole trace (t = 0); locks the bond."""
    id_ = game.game_id(claim, sender, nonce)
    # INVARIANT: a claim, a challenger and a nonce name one game.
    if d.games[id_].phase != GamePhase.NONE:
        raise revert("GameExists", id_)
    terms = verdicts.on_open(d, d.at.game, claim, body)
    move = moves.Open(claim, body, nonce, t, next_, next_proof, step)

    asked = _asked(d, claim, terms, body)
    d.defending[terms.defender] += 1
    opened, events = game.play(None, move, sender, d.block.time, asked, d.at.arbiter)
    d.games[id_] = opened
    _log(d, id_, events)

    d.games_on[claim, terms.games] = id_
    vault.lock(d, d.at.game, sender, id_, terms.bond)
    _spend(d, id_)
    return id_


# -- moves -------------------------------------------------------------------------------------------------------------


def move(d: Draft, sender: Address, id_: GameId, made: moves.Answer) -> None:
    """Makes a move in an open game."""
    played = d.games[id_]
    if played.phase == GamePhase.NONE:
        raise revert("PhaseWrong", GamePhase.NONE)
    challengers = not played.defender_moves
    after, events = game.play(played, made, sender, d.block.time, _stored(d, played), d.at.arbiter)
    if after.phase == GamePhase.CLOSED:
        found, *_ = events
        _log(d, id_, (found,))
        # The gas is included in the refund, and the rest of the game is deleted.
        _spend(d, id_)
        return _close(d, id_, Verdict.FRAUD)
    d.games[id_] = after
    _log(d, id_, events)
    if challengers:
        _spend(d, id_)
    return None


def equivocate(d: Draft, sender: Address, work: Work, a: Signed, b: Signed) -> None:
    """Convicts the worker of two different signed claims for the same work, without a game."""
    claim = claim_id(work.job, work.round, work.attempt, work.slot)
    c = claim_of(d, claim)
    worker = c.worker
    first, second = _digest_of(d, work, a), _digest_of(d, work, b)
    # INVARIANT: a claim that is signed twice is still one claim.
    if first == second:
        raise revert("EqualBits", first)
    # INVARIANT: only the claim's own worker equivocates.
    if not is_signed(d, worker, first, a.signature) or not is_signed(d, worker, second, b.signature):
        raise revert("Unauthorized", worker)
    # INVARIANT: no worker takes the prize of a game on its claim by two signatures of its own.
    if c.open_games:
        raise revert("GamesOpen", c.open_games)
    found = Finding(Wrong.EQUIVOCATION, _NO_PROGRAM, 0, 0, 0, 0, first, second)
    d.emit("DisputeGame", "Convicted", ZERO, claim, found)
    # INVARIANT: two signatures earn nobody a prize: who shows them has its gas back.
    _award(d, claim, 0, BURN, vault.Refund(sender, _metered(d, 0)))


def _digest_of(d: Draft, work: Work, said: Signed) -> Digest:
    """Returns the EIP-712 digest of a claim, in the market's domain, that its worker signs."""
    parts = (
        work.job, work.round, work.attempt, work.slot, work.seed, work.base, said.trace_root, said.transitions,
        said.out, said.out2,
    )  # fmt: skip
    return ids.claim_digest(d.at.chain_id, d.at.market, parts)


# -- the end -----------------------------------------------------------------------------------------------------------


def resolve(d: Draft, sender: Address, id_: GameId, standing: moves.GameState) -> None:
    """Ends a game whose mover's clock has run out, or whose claim was decided elsewhere."""
    played = d.games[id_]
    closed, _ = game.play(played, moves.Resolve(standing), sender, d.block.time, _stored(d, played), d.at.arbiter)
    _close(d, id_, closed.verdict)


def _close(d: Draft, id_: GameId, verdict: Verdict) -> None:
    g = d.games[id_]
    # A missed deadline proves no step wrong.
    t = g.t if verdict == Verdict.FRAUD else 0
    d.defending[g.defender] -= 1
    d.games[id_] = game.closed(g.challenger, g.claim, verdict)
    winner = {Verdict.REJECTED: g.defender, Verdict.VOID: ZERO_ADDRESS}.get(verdict, g.challenger)
    d.emit("DisputeGame", "Resolved", id_, g.claim, verdict, winner)
    if verdict == Verdict.REJECTED:
        _skip_closed(d, g.claim)
        verdicts.on_rejected(d, d.at.game, g.claim)
        vault.take_bond(d, d.at.game, id_, g.defender)
        return
    if verdict != Verdict.VOID:
        _award(d, g.claim, t, winner, vault.Refund(winner, g.spent))
    vault.unlock(d, d.at.game, id_)


def _award(d: Draft, claim: ClaimId, t: int, first: Address, spent: vault.Refund) -> None:
    """Convicts a claim: `first` and the two earliest other live games share the prize, and get their gas back."""
    docket, games = _docket(d, claim)
    award = docket.award(games, first, spent.amount)
    refunds = [spent, *(vault.Refund(account, gas) for account, gas in award.gas[1:])]
    verdicts.on_convicted(d, d.at.game, claim, t, award.winners, refunds)


def _skip_closed(d: Draft, claim: ClaimId) -> None:
    """Advances `first_live` past closed games, at most SCAN at a time."""
    docket, games = _docket(d, claim)
    docket.skip_closed(games)
    if docket.first_live:
        d.first_live[claim] += docket.first_live


def _docket(d: Draft, claim: ClaimId) -> tuple[Docket, dict[GameId, Game]]:
    """Returns the games on a claim that a verdict considers."""
    begin = d.first_live[claim]
    listed = [d.games_on[claim, number] for number in range(begin, begin + SCAN)]
    known = [id_ for id_ in listed if id_ is not None]
    return Docket(known), {id_: d.games[id_] for id_ in known}


# -- what the rules ask ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked(DisputedClaim):
    """A claim whose facts are read from the market when a move needs them."""

    tables: Reader | None = None

    def facts(self, t: int, carried: Proof) -> Facts:
        """Returns JobMarket.factsOf of transition t."""
        assert self.tables is not None, "a claim that was looked up"
        return facts_of(self.tables, self.id, t, carried)


def _asked(d: Draft, claim: ClaimId, terms: GameTerms, body: Body) -> DisputedClaim:
    """Returns the claim on which a game opens."""
    return _Asked(
        claim, terms.defender, terms.transitions, body, NO_STATE, _NO_PROGRAM, _NO_PROGRAM, NO_SEED, 0, 0,
        TensorRoot(ZERO), 0, 0, terms.clock_seconds, terms.step_seconds, terms.bond,
        open_games=d.defending[terms.defender], tables=d,
    )  # fmt: skip


_NO_PROGRAM = ProgramRoot(ZERO)
_NO_BODY = Body(TraceRoot(ZERO), NO_STATE, NO_STATE)


def _stored(d: Draft, g: Game) -> DisputedClaim:
    """Returns the claim of a stored game."""
    transitions = d.claims[g.claim].transitions
    delegate = d.delegate_of[g.defender]
    # Before `adjacent` is played, the statement is the trace root.
    said = replace(_NO_BODY, trace_root=TraceRoot(g.statement))
    return _Asked(
        g.claim, g.defender, transitions, said, NO_STATE, _NO_PROGRAM, _NO_PROGRAM, NO_SEED, 0, 0,
        TensorRoot(ZERO), 0, 0, Seconds(0), Seconds(0), Wei(0), live=live(d, g.claim),
        delegate=None if delegate == ZERO_ADDRESS else delegate, tables=d,
    )  # fmt: skip


def _spend(d: Draft, id_: GameId) -> None:
    """Counts the gas of a challenger's move."""
    g = d.games[id_]
    d.games[id_] = replace(g, spent=_metered(d, g.spent))


def _metered(d: Draft, before: int) -> int:
    """Returns the gas of a call plus the gas spent before it."""
    return min(before + TRANSACTION_GAS + data_gas(d.data) + d.gas, MAX_SPENT)


def data_gas(data: bytes) -> int:
    """Returns the gas of a transaction's data."""
    # INVARIANT: nobody is refunded more for a call's data than it costs: zeros behind the arguments earn nothing.
    return BYTE_GAS * len(data) - (BYTE_GAS - ZERO_GAS) * data.count(0)


def _log(d: Draft, id_: GameId, events: tuple[moves.GameEvent, ...]) -> None:
    """Emits each event with the game's state after the move and the fields that the state lacks; a conviction leaves no
    state.
    """
    for event in events:
        if isinstance(event, moves.Convicted):
            d.emit("DisputeGame", "Convicted", id_, event.claim, event.finding)
        else:
            fields = (getattr(event, name) for name in event.logged)
            d.emit("DisputeGame", type(event).__name__, id_, d.games[id_].standing, *fields)
