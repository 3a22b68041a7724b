"""A delegate defends the claims of another account from public data, with a key that holds none of its money.

    a new block -> the open games against the account -> each claim replayed once, beside the loop -> every move due

It does not defend a claim whose replay here gives another result. It decides from the chain alone: the next process
continues the open games, and replays nothing that its home has stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event as Flag

from lockstep.base.log import Logger
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
"""Machine seconds between two polls for a new block."""

log = Logger(__name__)


class Delegate:
    """Plays the defender's side of every open game against one account."""

    def __init__(self, party: Party, account: Address, tell: Callable[..., None]) -> None:
        """Raises UsageError unless `account` has named the party's key its delegate; `tell` prints an event."""
        named = party.contracts.vault.delegate_of(account)
        if named != party.address:
            raise UsageError(
                f"{party.address} is not the delegate of {account}, which has {_named_delegate(named)}",
                hint=f"its owner says `lockstep worker owner delegate {party.address} --for {account}`",
            )
        self._account, self._tell = account, tell
        self._closing = Flag()
        self._player = ManualPlayer(party, log.info, self._go_on)
        self._cache = party.log_cache()
        self._watcher = Watcher(EventReader(party.w3, party.addresses, cache=self._cache, check=party.check))
        self._head_tracker = HeadTracker(lambda: party.head(), POLL_SECONDS)
        self._taken: Head | None = None
        """The last block that was processed to the end."""
        self._now = Seconds(0)
        self._games: dict[GameId, ClaimId] = {}
        """Open games and the claims that they are about."""
        self._known: dict[ClaimId, Known] = {}
        """The games' claims as snapshots of the ledger, which the game queue's worker thread reads while the ledger
        changes."""
        self._queue = GameQueue(
            self._player.table, party.outbox, Side.DEFENDER, self._player.cached, tell_move(tell),
            states=self._player.states,
        )  # fmt: skip
        self._outage = Outage(tell)
        self._fees = FeeWatch(party.outbox, tell)

    def run(self, stop: Flag) -> None:
        """Runs until `stop` is set and no game against the account is open."""
        self._player.settle()
        try:
            while True:
                try:
                    with room_on_disk():
                        self.poll()
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

    def poll(self) -> None:
        """Polls the chain once, and makes every due move as soon as it can be made."""
        head = self._head_tracker.poll()
        self._now = head.time
        if head != self._taken:
            self._watcher.poll()
            self._sit()
            self._taken = head
        self._queue.play(self._games, head, self._held)
        # After the moves: a provider that is slow to name a fee holds none of them up.
        self._fees.poll(head)

    def close(self) -> None:
        """Stops the replay after its current step; sent transactions stay sent."""
        self._closing.set()
        self._queue.close()
        self._player.close()
        self._cache.close()

    def _sit(self) -> None:
        """Starts to play games that were opened, and drops those that are over."""
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
        """Returns a game's claim as replayed here. Runs on the game queue's worker thread."""
        known = self._known.get(claim)
        return None if known is None else self._player.hold(known, Side.DEFENDER)

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise Stopped


def _named_delegate(delegate: Address) -> str:
    return f"{delegate} as its delegate" if int(delegate, 16) else "none"
