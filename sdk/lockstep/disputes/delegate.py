"""A delegate at work: the claims of another account, defended from public data with a key that holds none of its money.

    a new block -> the open games against the account -> each claim replayed once, beside the loop -> every move due

A claim that this machine computes otherwise is not defended. All of it is decided from the chain: the next process goes
on with the games that are open, and replays nothing that its home knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event as Flag

import structlog

from lockstep.base.machine import room_on_disk
from lockstep.chain.events import EventReader
from lockstep.disputes.game_queue import GameQueue, tell_move
from lockstep.disputes.gamelog import VERDICTS
from lockstep.disputes.manual import Known, ManualPlayer
from lockstep.disputes.player import Side
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import Watcher
from lockstep.protocol.errors import TryLater, Unreachable, UsageError
from lockstep.protocol.types import Address, ClaimId, GameId, Seconds
from lockstep.runtime.feewatch import FeeWatch
from lockstep.runtime.keyed_executor import Stopped
from lockstep.runtime.outage import Outage
from lockstep.runtime.party import Head, HeadTracker, Party

POLL_SECONDS = 0.25
"""Time between two looks for a new block, by this machine's clock."""

log = structlog.get_logger(__name__)


class Delegate:
    """The defender's seats at every open game against one account."""

    def __init__(self, party: Party, account: Address, tell: Callable[..., None]) -> None:
        """Raises UsageError unless `account` has named the party's key its delegate; `tell` prints an event."""
        named = party.contracts.vault.delegate_of(account)
        if named != party.address:
            raise UsageError(
                f"{party.address} is not the delegate of {account}, which has {_told(named)}",
                hint=f"its owner says `lockstep worker owner delegate {party.address} --for {account}`",
            )
        self._account, self._tell = account, tell
        self._closing = Flag()
        self._player = ManualPlayer(party, log.info, self._go_on)
        self._cache = party.log_cache()
        self._watcher = Watcher(EventReader(party.w3, party.addresses, cache=self._cache, check=party.check))
        self._head_tracker = HeadTracker(lambda: party.head(), POLL_SECONDS)
        self._taken: Head | None = None
        """The block that was taken in to the end."""
        self._now = Seconds(0)
        self._games: dict[GameId, ClaimId] = {}
        """The games that are open, and the claim of each."""
        self._known: dict[ClaimId, Known] = {}
        """Their claims, as the ledger had them: the game queue's worker thread reads them while the ledger goes on."""
        self._queue = GameQueue(
            self._player.table, party.outbox, Side.DEFENDER, self._player.cached, tell_move(tell),
            states=self._player.states,
        )  # fmt: skip
        self._outage = Outage(tell)
        self._fees = FeeWatch(party.outbox, tell)

    def run(self, stop: Flag) -> None:
        """Until `stop` is set and no game against the account is open."""
        self._player.settle()
        try:
            while True:
                try:
                    with room_on_disk():
                        self.look()
                    self._outage.over()
                    if stop.is_set() and not self._games and self._queue.idle:
                        return
                    pause = POLL_SECONDS
                except (Unreachable, TryLater) as error:
                    # INVARIANT: no outage ends the process.
                    pause = self._outage.failed(error)
                time.sleep(pause)
        finally:
            self.close()

    def look(self) -> None:
        """Look once: every move that is due is made as soon as it can be."""
        head = self._head_tracker.look()
        self._now = head.time
        if head != self._taken:
            self._watcher.poll()
            self._sit()
            self._taken = head
        self._queue.play(self._games, head, self._held)
        # After the moves: a provider that is slow to name a fee holds none of them up.
        self._fees.look(head)

    def close(self) -> None:
        """Stop the replay after its step; what was sent stays sent."""
        self._closing.set()
        self._queue.close()
        self._player.close()
        self._cache.close()

    def _sit(self) -> None:
        """Sit down at games that were opened, leave those that are over."""
        ledger, before = self._watcher.ledger, self._games
        self._games = {g.id: g.claim for g in ledger.games_against(self._account)}
        for claim in self._games.values():
            found = ledger.find(claim)
            if found is not None:
                self._known[claim] = found
        for game, claim in before.items():
            if game in ledger.ended:
                verdict = VERDICTS[ledger.ended[game].verdict]
                self._tell("resolved", time=self._now, game=game.hex(), claim=claim.hex(), verdict=verdict)
        for claim in set(before.values()) - set(self._games.values()):
            self._known.pop(claim, None)
            self._player.forget(claim)

    def _held(self, claim: ClaimId) -> HeldClaim | None:
        """On the game queue's worker thread."""
        known = self._known.get(claim)
        return None if known is None else self._player.hold(known, Side.DEFENDER)

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise Stopped


def _told(delegate: Address) -> str:
    return f"{delegate} as its delegate" if int(delegate, 16) else "none"
