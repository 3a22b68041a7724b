"""Following games: every move once, in order, as blocks come; what a reorganisation undoes is told, too."""

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
"""The depth to which openings are read again: a reorganisation may have moved them."""


class Change(StrEnum):
    """The kind of a sighting."""

    MOVED = "moved"
    UNDONE = "undone"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Sighting:
    """One thing that happened in a game."""

    kind: Change
    dispute: Dispute
    move: MoveMade | None = None
    """None where the game ended."""
    latest: bool = False
    """True of the last move so far: the game stands as it left it."""

    def to_dict(self, now: Seconds) -> dict[str, Any]:
        """Returns the move, or the game where it has ended, as JSON has it."""
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
    """Every followed game as it was read last."""
    _told: dict[GameId, list[MoveMade]] = field(default_factory=dict, repr=False)
    _claims: dict[ClaimId, JobId] = field(default_factory=dict, repr=False)
    _found: dict[GameId, None] = field(default_factory=dict, repr=False)
    _seen: list[Sighting] = field(default_factory=list, repr=False)
    """The sightings of a poll before it failed: the next poll returns them."""
    _read_to: int = 0
    _ended: bool = False

    def poll(self) -> list[Sighting]:
        """Returns the sightings since the last poll. Raises what reading raises; the next poll goes on from there."""
        for game in self._games():
            before = self.latest.get(game)
            if before is None or before.running:
                self._seen += self._step(game)
        seen, self._seen = self._seen, []
        return seen

    @property
    def over(self) -> bool:
        """Tells if nothing more will happen."""
        ended = all(not dispute.running for dispute in self.latest.values())
        return ended and (self._ended if self.game is None else bool(self.latest))

    def _games(self) -> list[GameId]:
        if self.game is not None:
            return [self.game]
        assert self.job is not None, "a game or a job is followed"
        contracts = self.reader.contracts
        # Before the openings are read: a job that is over by then opens no more.
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
    """Tells if two readings are of one move on one chain."""
    return (a.transaction, a.block, a.call) == (b.transaction, b.block, b.call)
