"""A verifier on a market in memory: the chain's own bytes, claims of support/constant.py in the place of replays.

desk.poll()          # a turn of its loop, and what was begun beside it is over
desk.told("audited") # what it wrote to stdout
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from lockstep.base.settings import Settings
from lockstep.chain.outbox import Outbox
from lockstep.execution import merging
from lockstep.market.ledger import ClaimRecord
from lockstep.market.replay import Replay
from lockstep.protocol.dispute.openings import MaterialisedStep
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import ClaimId, StateRoot
from lockstep.runtime.party import Party
from lockstep.storage.directory import DirectoryStore
from tests.support.constant import ConstantClaim, Lie
from tests.support.world import World
from verifier.journal import Journal
from verifier.loading import LoadedJobs
from verifier.service import Verifier
from verifier.witness import enrolling

SECONDS = 20.0


@dataclass(frozen=True)
class Held(ConstantClaim):
    """A claim whose steps are all in memory."""

    wanted: frozenset[int] = field(default=frozenset(), hash=False, compare=False)

    def has(self, t: int) -> bool:
        return True

    def cached(self, t: int) -> MaterialisedStep:
        return self.step(t)


@dataclass
class Replays:
    """In the place of jobs and their data: what a replay of each claim gives."""

    world: World
    faults: dict[ClaimId, str] = field(default_factory=dict)
    """Of stored payloads."""
    failing: dict[ClaimId, Exception] = field(default_factory=dict)
    """Claims that cannot be replayed."""
    begun: list[ClaimId] = field(default_factory=list)
    lacking: set[int] = field(default_factory=set)
    """Slots whose carry nobody stores."""

    def get(self, *_: Any, **__: Any) -> Any:
        return self

    @property
    def job(self) -> Any:
        return SimpleNamespace(params=self.world.params, box=None)

    def run_of(self, ledger: Any, round_: Any, record: ClaimRecord) -> Any:
        self.begun.append(record.id)
        if record.id in self.failing:
            raise self.failing[record.id]
        truth = self.world.held[record.id].truth
        return SimpleNamespace(
            states=lambda: ((t, truth, root) for t, root in enumerate(truth.trace, 1)),
            leaf=lambda t, state, word: state.leaf(word, t),
        )

    def lacks_carry(self, ledger: Any, round_: Any, slot: int) -> bool:
        return slot in self.lacking

    def audit(self, run: Any, record: ClaimRecord, store: Any, told: Any, hold: Any) -> Replay:
        made = self.world.held[record.id]
        told(1, StateRoot(made.truth.trace[0]))
        held: Any = Held(made.zero, Lie.NONE, made.is_merge, made.start)
        right = made.lie == Lie.NONE
        return Replay(right, made.wrong_from or None, held, made.trace, [] if right else None)

    def keep(self, record: ClaimRecord, final: Any) -> None:
        pass

    def fault_of_payload(self, record: ClaimRecord) -> str | None:
        return self.faults.get(record.id)

    def wrong_leaves(self, record: ClaimRecord) -> tuple[tuple[int, int], ...]:
        return ()


@dataclass
class Desk:
    """One verifier and its market."""

    world: World
    home: Path
    options: dict[str, Any]
    replays: Replays
    events: list[dict[str, Any]]
    finality: str = "latest"
    coordinator: str = ""
    """URLs of coordinators, by commas."""
    has_lists: bool = True
    """False: the store does not answer for lists, and nothing waits for them."""
    party: Party = field(init=False)
    journal: Journal = field(init=False)
    verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A process begins."""
        world, settings = (
            self.world,
            Settings("", "", "", str(self.home), "", self.coordinator, 1, 0, disk_mib=1, finality=self.finality),
        )
        account = world.accounts["verifier"]
        outbox = Outbox(self.home / "outbox.sqlite", world.devnet.w3, account)
        store = DirectoryStore(self.home / "blocks")
        addresses = world.contracts.addresses
        self.party = Party(settings, addresses, world.devnet.w3, world.contracts, store, account, outbox)
        self.journal = Journal(self.home)
        self.verifier = Verifier(self.party, self.journal, **self.options)
        # A test's blocks come faster than any chain's: each look sees the latest.
        self.verifier._head_tracker = SimpleNamespace(poll=self.party.head)  # type: ignore[assignment]

    def stop(self) -> None:
        """It is over, as far as it came."""
        self.verifier.close()
        self.journal.close()
        self.party.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def poll(self, blocks: int = 1, *, draining: bool = False) -> None:
        """Turns of the loop, each at a new block; what was begun beside it ends before the next."""
        for _ in range(blocks):
            self.verifier.poll(draining)
            self._settled()
            self.world.devnet.mine(1)

    def until(self, name: str, count: int = 1, *, draining: bool = False) -> dict[str, Any]:
        """Look until an event was told so often; returns the last one."""
        end = time.monotonic() + SECONDS
        while len(self.told(name)) < count:
            assert time.monotonic() < end, (name, self.events)
            self.poll(draining=draining)
        return self.told(name)[-1]

    def told(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Events of a name with these fields."""
        return [e for e in self.events if e["event"] == name and fields.items() <= e.items()]

    def _settled(self) -> None:
        """Waits for the worker threads, and takes what they have."""
        duties, replayer, seats = self.verifier._duties, self.verifier._replayer, self.verifier._seats
        lists = [self.verifier._lists._executor] if self.has_lists else []
        executors = [replayer._executor, seats._queue._executor, *lists, *([duties._executor] if duties else [])]
        end = time.monotonic() + SECONDS
        while any(len(b) > len(b.finished()) for b in executors):
            assert time.monotonic() < end, executors
            time.sleep(0.001)


@pytest.fixture
def desk_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a desk in a world: `desk_of(world, witness=True)`."""
    desks: list[Desk] = []

    def made(world: World, finality: str = "latest", coordinator: str = "", **options: Any) -> Desk:
        replays, events = Replays(world), []
        monkeypatch.setattr(LoadedJobs, "get", replays.get)
        monkeypatch.setattr("verifier.replaying.audit", replays.audit)
        monkeypatch.setattr("verifier.telling.event", lambda name, **fields: events.append({"event": name, **fields}))
        monkeypatch.setattr(enrolling.capacity, "keep_up", lambda *_: None)
        decoded = lambda job, store, payloads, known: [(slot, Report.DECODED, None) for slot in payloads]  # noqa: E731
        monkeypatch.setattr(merging, "judge_payloads", decoded)
        desks.append(Desk(world, tmp_path, options, replays, events, finality, coordinator))
        return desks[-1]

    yield made
    for desk in desks:
        desk.stop()


def lying(world: World, slot: int, lie: Lie = Lie.VALUE) -> ClaimId:
    """The id of a slot's claim, which is changed into a lie before it is revealed."""
    claim = world.claim_id(slot)
    world.held[claim] = replace(world.held[claim], lie=lie)
    return claim
