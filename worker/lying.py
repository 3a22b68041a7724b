"""Which claim the one lie is about; remembered, so that a liar that was killed goes on with the same lie."""

from __future__ import annotations

from pathlib import Path

from lockstep.execution.jobs import ClaimRun
from lockstep.protocol.types import ClaimId
from worker.cheats import Cheat


class Liar:
    """Lies about the first claim whose run the lie changes, and is honest about all others."""

    def __init__(self, home: Path) -> None:
        self._path = home / "lie"
        self._claim = ClaimId(bytes.fromhex(self._path.read_text())) if self._path.exists() else None
        self._silent = False

    def cheat_of(self, claim: ClaimId, cheat: Cheat | None) -> Cheat | None:
        """The cheat, if this is the claim to lie about, or none was lied about yet."""
        self._silent = cheat is not None and cheat.silent
        return cheat if self._claim in (None, claim) else None

    def told(self, claim: ClaimId, run: ClaimRun) -> None:
        """Remember the claim if its run has a lie in it."""
        if getattr(run, "lied", False):
            self._claim = claim
            self._path.write_text(claim.hex())

    def signs_twice(self, claim: ClaimId, cheat: Cheat | None) -> bool:
        """Whether this is the claim beside which another one is signed: the first that is announced."""
        if cheat is None or not cheat.signs_twice or self._claim not in (None, claim):
            return False
        self._claim = claim
        self._path.write_text(claim.hex())
        return True

    def retell(self, claim: ClaimId, cheat: Cheat | None, honest: ClaimRun) -> ClaimRun:
        """The run as it was claimed."""
        return cheat.run(honest) if cheat is not None and claim == self._claim else honest

    def silent_about(self, claim: ClaimId) -> bool:
        """Whether challenges of the claim are not answered."""
        return self._silent and claim == self._claim
