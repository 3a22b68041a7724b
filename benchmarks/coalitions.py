"""The best reply of a coalition that holds seats and witnesses of a round: computed, and drawn as the contract draws.

Whoever holds the beacon's preimages of its own witnesses knows before anybody can speak which of its claims an honest
witness is drawn for. Amounts are in prices of a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.draws import beacon_of, pick, slot_order
from lockstep.protocol.types import Address, AuditId

WORK = 0.8
"""The cost of a claim's work."""
SEAT_GAS = 313_000
"""Join, commit, reveal, and a receipt in a batch of eight (chain/costs.json)."""
ENROLLED = 600
"""Accounts in the list of the job that is drawn from."""
LIAR = Address("0x" + "ff" * 20)


class Way(Enum):
    """The conduct of a coalition in a round."""

    WORK = "works"
    """Computes all of its claims."""
    LIE = "lies"
    """Computes none of them."""
    ESCAPE = "lies, and fails the round where it is seen"
    """Computes none; shows no payload once an honest witness is drawn for one of them."""


@dataclass(frozen=True)
class Coalition:
    """Seats of a round, witnesses, and the job in which they play."""

    seats: int
    audit: AuditPlan
    """Its `cartel` is the coalition's share of the enrolled witnesses."""
    stake: float
    """The stake of a slot, in prices."""
    min_slots: int
    gas: float = 0.0
    """The gas of a seat, in prices."""
    work: float = WORK

    def fails(self, *, judged: bool) -> bool:
        """Without its payloads too few are left to merge, or its receipts alone exclude: a third did, half do."""
        others = self.audit.slots - self.seats
        return others < self.min_slots or self.seats * (1 if judged else 2) > others

    @property
    def caught(self) -> float:
        """The loss of a proven lie beside its pay: the coalition is its own challenger and its own requester."""
        return economics.BURNED * self.stake

    def expected(self, way: Way, *, judged: bool) -> float:
        """A round's profit; `judged`: claims of a failed round can be challenged, withheld payloads are fined."""
        chances = economics.seen_lies(self.audit, self.seats)
        return sum(chance * self.earned(way, seen, judged=judged) for seen, chance in enumerate(chances))

    def drawn(self, way: Way, seen: Sequence[int], *, judged: bool) -> float:
        """The mean of a round's profit over rounds in which honest witnesses saw so many of its lies."""
        return sum(n * self.earned(way, x, judged=judged) for x, n in Counter(seen).items()) / len(seen)

    def earned(self, way: Way, seen: int, *, judged: bool) -> float:
        """A round's expected profit where honest witnesses are drawn for `seen` claims; volunteers see the rest."""
        gas = self.seats * self.gas
        if way is Way.WORK:
            return self.seats * (1 - self.work) - gas
        found = seen + (self.seats - seen) * self.audit.volunteers
        if way is Way.ESCAPE and seen and self.fails(judged=judged):
            # Every payload is withheld: a price each, and what an honest witness replays is convicted all the same.
            return -(found * self.caught + self.seats - found) - gas if judged else -gas
        return self.seats - found - found * self.caught - gas

    @property
    def best(self) -> tuple[Way, float]:
        """The way that pays best where failed rounds are judged, and what it earns beyond honest work."""
        honest = self.expected(Way.WORK, judged=True)
        gains = {way: self.expected(way, judged=True) - honest for way in Way if way is not Way.WORK}
        way = max(gains, key=lambda w: gains[w])
        return (way, gains[way]) if gains[way] > 0 else (Way.WORK, gains[way])


class WitnessList:
    """A job's witnesses in the order of enrolment, which nobody arranges; every third, say, is the coalition's."""

    def __init__(self, audit: AuditPlan, seed: int) -> None:
        accounts = [Address(f"0x{i + 1:040x}") for i in range(ENROLLED)]
        self._audit, self._slots = audit, list(range(audit.slots))
        self._bought = frozenset(accounts[: round(audit.cartel * len(accounts))])
        self._order = [accounts[i] for i in np.random.default_rng(seed).permutation(len(accounts))]

    def seen(self, draw: str, lies: int) -> int:
        """The claims of the first `lies` slots that an honest witness is drawn for, by `protocol.market.draws`."""
        beacon = beacon_of(keccak(draw.encode()), AuditId(bytes(32)))
        drawn: list[Address] = []
        for i in range(self._audit.witnesses):
            drawn.append(pick(self._order, beacon, i, LIAR, drawn))
        dealt = slot_order(beacon, self._slots, self._audit.witnesses)
        return sum(s < lies and a not in self._bought for s, a in zip(dealt, drawn, strict=True))


def coalitions(audit: AuditPlan, stake: float, min_slots: int, gas: float, work: float = WORK) -> Iterator[Coalition]:
    """From one seat to a little over a third of them, with none to a third of the witnesses."""
    for seats in sorted({1, 2, audit.slots // 8, audit.slots // 4, audit.slots // 3 + 2} - {0}):
        for cartel in (0.0, economics.CARTEL / 2, economics.CARTEL):
            yield Coalition(seats, replace(audit, cartel=cartel), stake, min_slots, gas, work)
