"""Challenges claims that were found wrong: stakes the bond, opens a game, and has `GamePlayers` play it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from lockstep.base.log import Logger
from lockstep.chain import games
from lockstep.chain.game_table import GameTable
from lockstep.disputes.challenge import opening_of
from lockstep.market.ledger import ClaimRecord
from lockstep.market.replay import Replay, first_difference
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.errors import (
    ChainError,
    FundsError,
    LockstepError,
    Mismatch,
    NotFoundError,
    TryLater,
    Unreachable,
)
from lockstep.protocol.market.ids import audit_id
from lockstep.protocol.types import Cid, ClaimId, JobId, StateRoot, Wei
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.party import Party
from verifier import decide
from verifier.playing import GamePlayers
from verifier.reading import MarketView
from verifier.root_lists import Lists, OnItsWay
from verifier.staking import Wallet
from verifier.telling import EventPrinter

LIST_TRIES = 3
"""Failed fetches after which a published list of state roots counts as missing."""

log = Logger(__name__)


@dataclass(frozen=True)
class WrongClaim:
    """A claim that was found wrong and on which no game is open yet."""

    record: ClaimRecord
    audit: Replay


class Challenger:
    """Opens one game about each wrong claim."""

    def __init__(
        self, party: Party, table: GameTable, wallet: Wallet, seats: GamePlayers, printer: EventPrinter, lists: Lists,
        backoff: Backoff[ClaimId],
    ) -> None:  # fmt: skip
        """`backoff` holds the claims that are not to be tried now."""
        self._party = party
        self._lists = lists
        self._table = table
        self._wallet = wallet
        self._seats = seats
        self._printer = printer
        self._backoff = backoff
        self._wrong: dict[ClaimId, WrongClaim] = {}
        self._unanswered: dict[ClaimId, Counter[Cid]] = {}
        """By claim, the failed fetches of each list that it named."""

    def __len__(self) -> int:
        """Returns the number of games still to be opened."""
        return len(self._wrong)

    @property
    def jobs(self) -> set[JobId]:
        """The jobs of the claims that are still to be challenged."""
        return {wrong.record.job for wrong in self._wrong.values()}

    def add(self, record: ClaimRecord, audit: Replay) -> None:
        """Queues a wrong claim, on which a game is to be opened."""
        self._wrong[record.id] = WrongClaim(record, audit)

    def step(self, view: MarketView) -> None:
        """Open every game that can be opened."""
        for wrong in list(self._wrong.values()):
            claim = wrong.record.id
            if self._is_replaced(wrong.record, view):
                log.info(
                    "a reorganisation gave a wrong claim another trace: the claim is replayed again", claim=claim.hex()
                )
                self._drop(claim)
                continue
            if self._backoff.in_backoff(claim, view.now):
                continue
            nonce = decide.nonce_of(claim, self._party.address, view.games)
            try:
                if nonce is not None:
                    ready = self._with_list(wrong, view)
                    if ready is None:
                        continue
                    self._challenge(ready, nonce)
            except (FundsError, TryLater, Unreachable, ChainError, NotFoundError, Mismatch) as error:
                if self._comes_again(wrong.record, error, view):
                    log.warning("a wrong claim is not challenged yet: trying again", claim=claim.hex(), why=str(error))
                    self._backoff.failed(claim, view.now)
                    continue
                log.warning("a wrong claim is not challenged", claim=claim.hex(), why=str(error))
            self._drop(claim)

    def _drop(self, claim: ClaimId) -> None:
        """Removes a claim from the queue."""
        del self._wrong[claim]
        self._unanswered.pop(claim, None)

    @staticmethod
    def _is_replaced(record: ClaimRecord, view: MarketView) -> bool:
        """Tells if a reorganisation has replaced the claim's trace by another, which the backlog then replays."""
        known = view.ledger.find(record.id)
        return known is not None and known[2].trace_root != record.trace_root

    @staticmethod
    def _comes_again(record: ClaimRecord, error: LockstepError, view: MarketView) -> bool:
        """Tells if opening a game is retried after this error."""
        if isinstance(error, ChainError | NotFoundError):
            # Closed in the meantime, or convicted by somebody else; or a reorganisation took back its reveal.
            return decide.may_challenge(record, view.ledger, view.params[record.job], view.now)
        return not isinstance(error, Mismatch)

    def _with_list(self, wrong: WrongClaim, view: MarketView) -> WrongClaim | None:
        """Returns the claim with its published list of roots, where the job draws witnesses; None while the list is
        being fetched.

        Raises TryLater while its owner may still publish it: a game that knows t is four moves shorter.
        """
        params = view.params[wrong.record.job]
        found = view.ledger.find(wrong.record.id)
        if wrong.audit.published is not None or wrong.record.is_merge or not params.role.witnesses or found is None:
            return wrong
        record = found[2]
        drawn = view.ledger.audits.get(audit_id(record.job, record.round, record.attempt))
        due = decide.list_due(record, params, None if drawn is None else drawn.state)
        try:
            published, final = self._published(record, params.role.transitions)
        except OnItsWay:
            if decide.awaits_list(due, params, view.now, fetching=True):
                return None
            published, final = None, True
        if published is None and not final and decide.awaits_list(due, params, view.now, fetching=False):
            raise TryLater(
                "the owner may still publish the claim's state roots",
                hint="no action is needed: the list is fetched again",
            )
        t = first_difference(published, wrong.audit.held.trace)
        return WrongClaim(record, replace(wrong.audit, published=published, t=t))

    def _published(self, record: ClaimRecord, transitions: int) -> tuple[tuple[StateRoot, ...] | None, bool]:
        """Returns (the claim's list or None, True if its store has failed LIST_TRIES times and nothing is waited
        for)."""
        if not record.trace_cid:
            return None, False
        tries = self._unanswered.setdefault(record.id, Counter())
        if tries[record.trace_cid] >= LIST_TRIES:
            return None, True
        try:
            return self._lists.find(record, transitions), False
        except Unreachable:
            tries[record.trace_cid] += 1
            return None, tries[record.trace_cid] >= LIST_TRIES

    def _challenge(self, wrong: WrongClaim, nonce: int) -> None:
        party, record, found = self._party, wrong.record, wrong.audit
        claim, move = opening_of(party.contracts.market, record, found, nonce)
        if move is None:
            return
        self._wallet.stake(Wei(claim.bond), f"{record.id.hex()}/{nonce}")
        game = game_id(record.id, party.address, nonce)
        key = f"open/{record.id.hex()}/{nonce}"
        try:
            party.outbox.send(games.call(party.contracts.game, move, game), key)
        except (ChainError, FundsError):
            # What was mined and reverted would be refused for good under its key.
            party.outbox.forget(key)
            raise
        try:
            self._table.game(game)
        except NotFoundError as error:
            # What an earlier process had mined, a reorganisation has undone since.
            party.outbox.forget(key)
            raise TryLater(
                "the game is not on the chain", hint="no action is needed: the game is opened again"
            ) from error
        self._printer.print_event(
            "challenged", claim=record.id.hex(), game=game.hex(), t=move.t, round=record.round, slot=record.slot
        )
        self._seats.join(game, record.id, found.held)
