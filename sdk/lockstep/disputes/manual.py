"""Manual play of dispute games: one command makes one move, with the strategy of verifier and worker.

    the home's files, the chain -> the claim replayed once, its roots kept -> the move that is due -> the outbox

Every decision follows from the chain, so a killed command can be repeated, and sends nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from lockstep.base.amounts import tokens
from lockstep.base.cache import MemoryCache
from lockstep.base.durations import moment
from lockstep.base.files import write_atomically
from lockstep.chain import games
from lockstep.chain.events import EventReader
from lockstep.chain.game_table import GameTable
from lockstep.disputes.challenge import opening_of
from lockstep.disputes.gamelog import DUE, PROOFS, VERDICTS
from lockstep.disputes.player import GamePlayer, PlannedMove, Side, key_of
from lockstep.execution.box import loading
from lockstep.execution.jobs import ClaimRun, Job, trace_root
from lockstep.execution.states import ClaimStates, States
from lockstep.market.held import CachedClaim, HeldClaim
from lockstep.market.ledger import ClaimRecord, GameRecord, JobLedger, Ledger, RoundLedger, ledger_of
from lockstep.market.replay import UNDECIDED, PublicData, Replay, audit, undecided
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import DisputedClaim, Game, game_id
from lockstep.protocol.dispute.moves import DEFENDERS, GamePhase, Verdict
from lockstep.protocol.errors import (
    ChainError,
    FundsError,
    Mismatch,
    NotFoundError,
    TryLater,
    UsageError,
)
from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.types import ClaimId, GameId, JobId, StateRoot, Wei
from lockstep.runtime.guard import lock
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender

NONCE = 0
"""Nonce of the only game that an account opens on a claim, manually or as a verifier."""
ROOTS, STATES = "disputes", "states"
"""Folders in a home: roots of replayed claims, and states for games."""
ROOT_BYTES = 32

Known = tuple[JobLedger, RoundLedger, ClaimRecord]
Say = Callable[[str], None]
"""Shows a progress message to the user."""
Agree = Callable[[DisputedClaim, moves.Open, Wei], bool]
"""Asks the user for consent to open a game; takes the claim, the move and the wei that must be added to the stake."""


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Locks a home against every other process, such as a verifier. Raises GuardRefused."""
    with lock.held(home, "dispute command"):
        yield


@dataclass(frozen=True)
class OpenedGame:
    """The result of `ManualPlayer.open`."""

    record: ClaimRecord
    t: int | None = None
    """First transition that differs; 0 if the game is about the whole trace; None if nothing differs."""
    game: GameId | None = None
    already: bool = False
    """True if the game was open before."""
    bond: Wei = NOTHING


@dataclass(frozen=True)
class Played:
    """The moves that a command made in a game, and the game's state after them."""

    game: GameId
    side: Side | None
    """The side that moved; None if either may make the move."""
    moves: tuple[str, ...]
    state: Game
    """The game after the moves."""

    @property
    def verdict(self) -> str:
        """The verdict's name, or "open" while the game runs."""
        return VERDICTS.get(self.state.verdict, "open")


@dataclass
class ManualPlayer:
    """Plays games with one home's key, one command for each move."""

    party: Party
    say: Say
    go_on: Callable[[], None] = lambda: None
    """Called before every step of a replay; may raise to stop it."""
    _ledger: Ledger | None = field(default=None, repr=False)
    _cached: dict[ClaimId, HeldClaim] = field(default_factory=dict, repr=False)
    """Claims that this command has replayed or loaded from the home."""
    _jobs: dict[JobId, Job] = field(default_factory=dict, repr=False)
    """Jobs of the replayed claims; each job's Programs run in a child process."""
    _job_of: dict[ClaimId, JobId] = field(default_factory=dict, repr=False)

    @cached_property
    def table(self) -> GameTable:
        """Reads and calls the games on chain."""
        return GameTable(self.party.contracts.game, self.party.addresses.block, self.party.contracts.market)

    @cached_property
    def states(self) -> States:
        """The folder of claims' states in this home."""
        return States(self.party.settings.home_dir / STATES, self.party.settings.disk_bytes)

    def settle(self) -> None:
        """Waits for transactions of an earlier, killed command."""
        if self.party.settle():
            self.say("a transaction of an earlier command is not mined, or reverted")

    def close(self) -> None:
        """Ends the processes that run Programs."""
        while self._jobs:
            _end(self._jobs.popitem()[1])

    # -- open

    def find(self, text: str) -> ClaimId:
        """Returns the public claim whose id begins with these hex digits. Raises UsageError, NotFoundError."""
        return self._read().claim_named(text)[2].id

    def open(self, claim: ClaimId, agree: Agree) -> OpenedGame:
        """Replays a claim, and opens a game at the first transition that differs, if one does.

        Raises Inconclusive if its data cannot be fetched, ChainError if the claim can no longer be challenged.
        """
        known = self._known(claim)
        record = known[2]
        before = self._game_on(claim)
        if before is not None:
            return self._opened_before(record, before)
        market = self.party.contracts.market
        if not market.window_open(claim):
            raise ChainError(
                "the claim can no longer be challenged", hint="its window is over, or it is decided",
                code="chain.WindowClosed",
            )  # fmt: skip
        found = self._replayed(known)
        if found.matches:
            return OpenedGame(record)
        disputed, move = opening_of(market, record, found, NONCE)
        if move is None:
            return OpenedGame(record)
        missing = self._missing(disputed.bond)
        if not agree(disputed, move, missing):
            return OpenedGame(record, move.t)
        self._keep_roots(claim, found.held.trace)
        self._stake(missing, f"deposit/{claim.hex()}/{NONCE}")
        game = game_id(claim, self.party.address, NONCE)
        self._send(f"open/{claim.hex()}/{NONCE}", games.call(self.party.contracts.game, move, game))
        return OpenedGame(record, move.t, game, bond=disputed.bond)

    def _opened_before(self, record: ClaimRecord, before: GameRecord) -> OpenedGame:
        # INVARIANT: one claim, one game: a crash opens nothing twice, and a lost argument is not repeated at a new
        # price.
        if before.verdict is not Verdict.NONE:
            raise ChainError(
                f"this account has already played a game about the claim: {VERDICTS[before.verdict]}",
                hint=f"lockstep dispute show {before.id.hex()}",
                code="chain.GameExists",
            )
        return OpenedGame(record, before.t, before.id, already=True)

    def _game_on(self, claim: ClaimId) -> GameRecord | None:
        """Returns the game that this account has opened on a claim, if any."""
        mine = [g for g in self._read().all_games() if g.claim == claim and g.challenger == self.party.address]
        return mine[0] if mine else None

    # -- moves

    def respond(self, game: GameId) -> Played:
        """Makes the move that this account owes. Raises TryLater if it is the other side's turn."""
        record, side = self._seat_of(game)
        due = self._due(record, side)
        return self._played(record, side, due)

    def prove(self, game: GameId) -> Played:
        """Makes the moves of the proof until the game is over.

        Raises TryLater if the game has not reached the proof.
        """
        record, side = self._seat_of(game)
        state = self._running(game)
        if side is not Side.CHALLENGER:
            raise UsageError("the challenger proves, and this account defends", hint="`lockstep dispute respond GAME`")
        if state.phase not in PROOFS:
            raise TryLater(
                f"the game has not come to its proof: {_whose(state)} {DUE[state.phase]}",
                hint="`lockstep dispute respond GAME` makes the moves before it",
            )
        made: tuple[str, ...] = ()
        while state.phase in PROOFS:
            played = self._played(record, side, self._due(record, side))
            made, state = made + played.moves, played.state
        return Played(game, side, made, state)

    def resolve(self, game: GameId) -> Played:
        """Ends a game whose mover's clock has run out, or whose claim was decided elsewhere; any account may.

        Raises TryLater while the clock runs.
        """
        state = self._running(game)
        move = moves.Resolve(state.standing)
        try:
            self._send(key_of(game, state, move), games.call(self.party.contracts.game, move, game))
        except ChainError as error:
            if error.code == "chain.ClockRunning":
                raise self._clock_runs(state) from error
            self._require_unmoved(game, state, error)
            raise
        return Played(game, None, ("resolve",), self.table.game(game))

    def _seat_of(self, game: GameId) -> tuple[GameRecord, Side]:
        ledger = self._read()
        record = ledger.games.get(game) or ledger.ended.get(game)
        if record is None:
            raise NotFoundError(f"no game {game.hex()}", hint="`lockstep dispute list --all` shows every game")
        me = self.party.address
        if record.challenger == me:
            return record, Side.CHALLENGER
        if me in (record.defender, self.party.contracts.vault.delegate_of(record.defender)):
            return record, Side.DEFENDER
        raise UsageError(
            f"{me} plays no side of this game",
            hint=f"give the --home of {record.challenger} (challenger) or {record.defender} (defender)",
        )

    def _running(self, game: GameId) -> Game:
        state = self.table.game(game)
        if state.phase == GamePhase.CLOSED:
            raise ChainError(
                f"the game is over: {VERDICTS[state.verdict]}", hint=f"lockstep dispute show {game.hex()}",
                code="chain.PhaseWrong",
            )  # fmt: skip
        return state

    def _due(self, record: GameRecord, side: Side) -> PlannedMove:
        """Returns the move that a side owes. Raises TryLater or ChainError if there is none."""
        state, now = self._running(record.id), self.party.head().time
        ours = (state.phase in DEFENDERS) == (side is Side.DEFENDER)
        decided = side is Side.CHALLENGER and self.table.decided_elsewhere(state)
        if not ours and now <= state.deadline and not decided:
            raise self._clock_runs(state)
        if ours and now > state.deadline and not decided:
            raise ChainError(
                f"this account's clock ran out {now - state.deadline} s ago: the game is lost",
                hint="anybody may end it: `lockstep dispute resolve GAME`",
                code="chain.ClockExpired",
            )
        held = self._held(record, side, state.t) if ours and not decided else CachedClaim(None)
        seat = GamePlayer(record.id, side, held, self.table, self.party.outbox.submit)
        # The game is read again, because a replay may have taken long.
        due = seat.due(self.party.head().time)
        if due is not None:
            return due
        after = self._running(record.id)
        if (after.phase in DEFENDERS) != (side is Side.DEFENDER):
            raise self._clock_runs(after)
        if self.party.head().time > after.deadline:
            raise ChainError("this account's clock ran out meanwhile: the game is lost", code="chain.ClockExpired",
                             hint="a machine with more memory or threads replays faster")  # fmt: skip
        raise ChainError(
            "this machine computes everything that the defender has shown: there is no node to pick",
            hint="the claim is right as far as the game has come, and the bond is lost when the clock runs out",
            code="chain.EqualBits",
        )

    def _played(self, record: GameRecord, side: Side, due: PlannedMove) -> Played:
        """Sends a move and waits until it is mined."""
        try:
            self._send(due.key, due.call)
        except ChainError as error:
            self._require_unmoved(record.id, due.state, error)
            raise
        after = self.table.game(record.id)
        if after.phase == GamePhase.CLOSED and side is Side.CHALLENGER:
            self.forget(record.claim)
        return Played(record.id, side, (due.move.call,), after)

    def _require_unmoved(self, game: GameId, state: Game, failure: ChainError) -> None:
        """Raises TryLater if the failure occurred because the game had moved on."""
        if self.table.game(game).standing != state.standing:
            raise TryLater("the game has moved on meanwhile", hint="give the command again") from failure

    def _clock_runs(self, state: Game) -> TryLater:
        left = state.deadline - self.party.head().time
        return TryLater(
            f"{_whose(state)} {DUE[state.phase]} by {moment(state.deadline)}: {max(0, left)} s are left",
            hint="`lockstep dispute watch GAME` follows the game",
        )

    # -- sending

    def _send(self, key: str, call: games.contracts.Call) -> None:
        """Sends one transaction and waits until it is mined; a mined one that is due again is sent again."""
        Sender[None](self.party.outbox).again(key, call)
        self.party.outbox.wait(key)

    def _missing(self, bond: Wei) -> Wei:
        """Returns the wei to add to the free stake for a bond; raises FundsError if the account has less."""
        missing = Wei(max(0, bond - self.party.contracts.vault.free(self.party.address)))
        held = self.party.contracts.token.balance_of(self.party.address)
        if held < missing:
            raise FundsError(
                f"the bond is {tokens(bond)}: {tokens(missing)} are missing, {self.party.address} holds {tokens(held)}",
                hint="send the account more tokens",
            )
        return missing

    def _stake(self, missing: Wei, key: str) -> None:
        if missing:
            self._send(key, self.party.deposit(missing, self.party.head().time))

    # -- replaying

    def _read(self) -> Ledger:
        if self._ledger is None:
            self._ledger = ledger_of(EventReader(self.party.w3, self.party.addresses))
        return self._ledger

    def _known(self, claim: ClaimId) -> Known:
        found = self._read().find(claim)
        if found is None:
            raise NotFoundError(
                f"no claim {claim.hex()} was made public", hint="`verifier up` and the events name claims"
            )
        return found

    def _hold(self, claim: ClaimId) -> Callable[[ClaimRun, Sequence[StateRoot]], HeldClaim]:
        cache = MemoryCache(self.party.settings.memory_bytes)
        return lambda run, trace: HeldClaim(run, trace, cache, ClaimStates(self.states, claim))

    def _run(self, known: Known) -> ClaimRun:
        ledger, round_, record = known
        settings, store = self.party.settings, self.party.store
        try:
            if record.job not in self._jobs:
                params = self.party.contracts.market.params(record.job)
                # INVARIANT: nothing that a stranger wrote runs beside the key of whoever replays it.
                self._jobs[record.job] = loading.load(record.job, params, store, settings.threads, settings.path)
            self._job_of[record.id] = record.job
            return PublicData(self._jobs[record.job], store).run_of(ledger, round_, record)
        except UNDECIDED as error:
            raise undecided(error) from error

    def _replayed(self, known: Known) -> Replay:
        run, record = self._run(known), known[2]
        where = "the merge" if record.is_merge else f"slot {record.slot}"
        self.say(f"replaying {run.transitions} transitions of round {record.round}, {where}")
        try:
            return audit(run, record, self.party.store, lambda t, root: self.go_on(), self._hold(record.id))
        except UNDECIDED as error:
            raise undecided(error) from error

    def _held(self, game: GameRecord, side: Side, t: int) -> HeldClaim:
        known = self._known(game.claim)
        self.states.need({game.claim: {t - 1} if t else ()})
        held = self.cached(game.claim) or self.hold(known, side)
        held.wanted = frozenset({t} if t else ())
        return held

    def cached(self, claim: ClaimId) -> HeldClaim | None:
        """Returns a claim that `hold` has replayed; None otherwise."""
        return self._cached.get(claim)

    def hold(self, known: Known, side: Side) -> HeldClaim:
        """Returns the claim as this machine computes it: replayed once, afterwards loaded from the home's files.

        Raises Inconclusive if its data cannot be fetched, Mismatch for a claim that cannot be defended.
        """
        claim = known[2].id
        roots = self._roots(claim)
        if roots is None:
            held = self._replayed(known).held
            roots = tuple(held.trace)
            self._keep_roots(claim, roots)
        else:
            held = self._hold(claim)(self._run(known), roots)
        # INVARIANT: a defender shows what it claimed, or nothing.
        if side is Side.DEFENDER and trace_root(roots) != known[2].trace_root:
            raise Mismatch(
                "the claim is not what this machine computes: it cannot be defended from public data",
                hint="`lockstep replay CLAIM` shows where it differs; the home that made it may still defend it",
            )
        self._cached[claim] = held
        return held

    def forget(self, claim: ClaimId) -> None:
        """Removes the files of a claim without open games."""
        self._cached.pop(claim, None)
        job = self._job_of.pop(claim, None)
        if job is not None and job not in self._job_of.values():
            _end(self._jobs.pop(job, None))
        self.states.forget(claim)
        self._roots_file(claim).unlink(missing_ok=True)

    def _roots_file(self, claim: ClaimId) -> Path:
        return self.party.settings.home_dir / ROOTS / claim.hex()

    def _keep_roots(self, claim: ClaimId, trace: Sequence[StateRoot]) -> None:
        path, body = self._roots_file(claim), b"".join(trace)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_atomically(path, [sha256(claim + body).digest(), body])

    def _roots(self, claim: ClaimId) -> tuple[StateRoot, ...] | None:
        """Returns the roots that an earlier replay stored in the home; None if there is no valid file."""
        try:
            data = self._roots_file(claim).read_bytes()
        except OSError:
            return None
        digest, body = data[:ROOT_BYTES], data[ROOT_BYTES:]
        # INVARIANT: a game is argued from roots that were computed, or from none.
        if not body or len(body) % ROOT_BYTES or sha256(claim + body).digest() != digest:
            return None
        return tuple(StateRoot(body[i : i + ROOT_BYTES]) for i in range(0, len(body), ROOT_BYTES))


def _end(job: Job | None) -> None:
    """Ends the process that runs a job's Programs."""
    if job is not None and job.box is not None:
        job.box.close()


def _whose(state: Game) -> str:
    return "the defender has" if state.phase in DEFENDERS else "the challenger has"
