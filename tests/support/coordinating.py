"""Parts of a coordinator without a chain: numbered games and merges, and a recording aggregator and sender."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator import reading
from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import Address, ClaimId, JobId
from lockstep.runtime.guard.memory import RecordKey

JOB = JobId(b"j" * 32)
NAME = reading.hex32(JOB)
ME = Address("0x" + "44" * 20)


class Held:
    """Replaces an aggregator: every claim is in memory except those in `far`."""

    job: Any = SimpleNamespace(box=None)

    def __init__(self) -> None:
        self.far: set[ClaimId] = set()
        self.made: list[ClaimId] = []
        self.forgotten: list[ClaimId] = []

    def cached(self, claim: ClaimId) -> Any:
        return None if claim in self.far else claim

    def held(self, place: RecordKey, _: Any) -> Any:
        self.made.append(place.claim)
        return SimpleNamespace()

    def forget(self, claim: ClaimId) -> None:
        self.forgotten.append(claim)


class Sent:
    """Replaces a sender: everything sent is mined, except what the chain refuses."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.refused: set[str] = set()
        self.known_keys: set[str] = set()

    def again(self, key: str, call: object) -> None:
        if key in self.refused:
            raise ChainError("somebody was first", "")
        self.keys.append(key)

    def attempt(self, key: str, call: object, timeout: float) -> bool:
        self.keys.append(key)
        return key not in self.refused

    def known(self, key: str) -> bool:
        return key in self.known_keys

    def allowed(self, call: object) -> bool:
        return call not in self.refused

    def mined(self, key: str) -> bool:
        return True


def claim(n: int) -> Any:
    """Returns a merge of this coordinator."""
    return SimpleNamespace(id=reading.hex32(bytes([n]) * 32), job=NAME, round=n)


def game(n: int) -> tuple[Any, Any]:
    """Returns an open game about merge n."""
    return SimpleNamespace(id=reading.hex32(bytes([0x80 + n]) * 32)), claim(n)
