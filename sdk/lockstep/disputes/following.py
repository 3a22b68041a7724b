"""Follows games: reports every move once, in order, and the moves that a reorganisation reverts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lockstep.chain import games
from lockstep.disputes.gamelog import MoveMade
from lockstep.disputes.progress import Dispute, DisputeReader
from lockstep.protocol.dispute import moves
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds

REREAD_BLOCKS = 128
"""Number of blocks whose game openings are read again, in case a reorganisation has moved them."""


class Change(StrEnum):
    """The kind of a sighting: a new move, a reverted one, or an end."""

    MOVED = "moved"
    UNDONE = "undone"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Sighting:
    """One event of a followed game."""

    kind: Change
    dispute: Dispute
    move: MoveMade | None = None
    """The move; None if the game ended."""
    latest: bool = False
    """True if it is the game's last move so far."""

    def to_dict(self, now: Seconds) -> dict[str, Any]:
        """Returns the sighting as JSON: the move, or the game if it has ended."""
        names = {"game": self.dispute.id.hex(), "claim": self.dispute.opened.claim.hex()}
        if self.move is None:
            whole = self.dispute.to_dict(now)
            return {**names, **{key: value for key, value in whole.items() if key != "moves"}}
        told = self.move.to_dict()
        told["chain_time"] = told.pop("time")
        if self.latest and self.dispute.running:
            whole = self.dispute.to_dict(now)
            told |= {key: whole[key] for key in ("mover", "deadline", "seconds_left")}
        return {**names, **told}


@dataclass
class Follower:
    """Follows one game, or every game of a job."""

    reader: DisputeReader
    game: GameId | None = None
    job: JobId | None = None
    latest: dict[GameId, Dispute] = field(default_factory=dict)
    """Every followed game as last read."""
    _told: dict[GameId, list[MoveMade]] = field(default_factory=dict, repr=False)
    _claims: dict[ClaimId, JobId] = field(default_factory=dict, repr=False)
    _found: dict[GameId, None] = field(default_factory=dict, repr=False)
    _seen: list[Sighting] = field(default_factory=list, repr=False)
    """Sightings collected before a poll failed; the next poll returns them."""
    _read_to: int = 0
    _ended: bool = False

    def poll(self) -> list[Sighting]:
        """Returns the sightings since the last poll.

        A poll that raises an error loses none: the next one continues from there.
        """
        for game in self._games():
            before = self.latest.get(game)
            if before is None or before.running:
                self._seen += self._step(game)
        seen, self._seen = self._seen, []
        return seen

    @property
    def over(self) -> bool:
        """True if the followed games can bring no further event."""
        ended = all(not dispute.running for dispute in self.latest.values())
        return ended and (self._ended if self.game is None else bool(self.latest))

    def _games(self) -> list[GameId]:
        if self.game is not None:
            return [self.game]
        assert self.job is not None, "a game or a job is followed"
        contracts = self.reader.contracts
        # Read before the openings: if the job is over now, it opens no further games.
        self._ended = contracts.market.job(self.job).status in (JobStatus.DONE, JobStatus.VOID)
        head = int(contracts.game.w3.eth.block_number)
        for entry in games.all_opened(contracts.game, max(self.reader.first_block, self._read_to - REREAD_BLOCKS)):
            assert isinstance(entry.event, moves.Opened), "asked for by its topic"
            claim = entry.event.claim
            if claim not in self._claims:
                self._claims[claim] = contracts.market.claim(claim).job
            if self._claims[claim] == self.job:
                self._found[entry.game] = None
        self._read_to = head
        return list(self._found)

    def _step(self, game: GameId) -> list[Sighting]:
        dispute = self.reader.read(game)
        told, made = self._told.get(game, []), list(dispute.made)
        same = next((i for i, (a, b) in enumerate(zip(told, made, strict=False)) if not _one(a, b)), None)
        same = min(len(told), len(made)) if same is None else same
        seen = [Sighting(Change.UNDONE, dispute, move) for move in reversed(told[same:])]
        seen += [Sighting(Change.MOVED, dispute, move, move is made[-1]) for move in made[same:]]
        if not dispute.running:
            seen.append(Sighting(Change.RESOLVED, dispute))
        self._told[game], self.latest[game] = made, dispute
        return seen


def _one(a: MoveMade, b: MoveMade) -> bool:
    """Returns True if two readings are of the same move on the same chain."""
    return (a.transaction, a.block, a.call) == (b.transaction, b.block, b.call)
