"""A job that stalls in ten ways: what five commands say to whoever asks; docs/processes.md has the same words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.settings import resolve
from lockstep.cli import why
from lockstep.cli.why import SILENCE_SECONDS, Silence
from lockstep.client import Network
from lockstep.execution.capacity import Pace
from lockstep.protocol.errors import KeyStoreError, WrongBits
from lockstep.protocol.jobs import Phase
from lockstep.runtime.guard import lock
from lockstep.runtime.refusals import Refusals
from tests.support.world import World
from worker import explaining, offers
from worker.notes import WORKING, Note, Notes, of_halt
from worker.setup import assemble

from .conftest import Lockstep, home_of, toy_market

NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""
STRANGER = "0x" + "c" * 40
DOCUMENT = Path(__file__).parents[3] / "docs/processes.md"


@dataclass
class Stalled:
    """A market with one job of real Programs, and the home of worker-0."""

    world: World
    folder: Path
    patch: pytest.MonkeyPatch
    storage: str
    quoting: tuple[str, ...] = ()
    """Options of `worker quote` as of the worker that runs."""
    running: bool = False
    """True if a worker is at work in the home."""

    @property
    def home(self) -> Path:
        """The home of worker-0."""
        return self.folder / "home"

    @property
    def places(self) -> dict[str, str]:
        """The settings of every command."""
        return {
            "rpc": self.world.devnet.url, "deployment": str(self.folder / "deployment.json"), "home": str(self.home),
            "storage": self.storage,
        }  # fmt: skip

    def where(self, *names: str) -> list[str]:
        """These settings as options."""
        return [word for name in names for word in (f"--{name}", self.places[name])]

    def noted(self, reason: dict[str, Any] | None = None, state: Note = WORKING) -> None:
        """A worker is at work, and has noted its state and why it does not join the job."""
        notes, self.running = Notes(self.home), True
        if reason is not None:
            notes.refused(self.world.job, Note(reason["code"], reason["message"], reason["next"]), self.world.now)
        notes.is_in(state)


@pytest.fixture
def stalled(lockstep: Lockstep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalled]:
    folder = tmp_path / "market"
    folder.mkdir()
    world = toy_market(folder)
    home_of(world, folder / "home", "worker-0")
    monkeypatch.setattr(why.time, "time", lambda: float(world.now))
    yield Stalled(world, folder, monkeypatch, f"dir://{folder}/blocks")
    world.devnet.stop()


def told(lockstep: Lockstep, at: Stalled) -> dict[str, str]:
    """Returns the text that each command prints on a terminal; of `quote`, the reasons."""
    job, passed = at.world.job.hex()[:8], [0.0]
    silence = Silence(Network.at(resolve(**at.places)).find(job), lambda: passed[0])
    passed[0] = SILENCE_SECONDS[0]
    said = {"train watch": "\n".join(silence.explanation())}
    everything = at.where("rpc", "deployment", "home", "storage")
    for command, options in {
        "train why": (job, *everything), "train status": (job, *everything),
        "worker why": at.where("rpc", "deployment", "home"),
        "worker quote": (job, "--no-try", *everything, *at.quoting),
    }.items():  # fmt: skip
        with lock.held(at.home, "worker") if at.running else nullcontext():
            ended = lockstep(*command.split(), *options)
        assert ended.code == 0, (command, ended.err)
        said[command] = ended.out
    assert said["train watch"] + "\n" == said["train why"], "one reason, whoever asks"
    assert said["train why"].splitlines()[0] in said["train status"]
    return said


def reason(lockstep: Lockstep, at: Stalled, code: str) -> dict[str, Any]:
    """A reason of `worker quote` as JSON."""
    where = at.where("rpc", "deployment", "home", "storage")
    (offer,) = lockstep("worker", "quote", "--no-try", *where, *at.quoting, "--json").data
    (found,) = [one for one in offer["reasons"] if one["code"] == code]
    return dict(found)


def self_check_fails(lockstep: Lockstep, at: Stalled) -> None:
    at.world.to(Phase.TRAINING)
    failed = WrongBits("self-check: step 20 gives another state, in round 0, slot 0")
    Refusals(at.home).record(at.world.job, failed)
    at.noted()


def store_gone(lockstep: Lockstep, at: Stalled) -> None:
    at.storage = NOBODY
    at.noted(reason(lockstep, at, "unreachable"))


def too_few_workers(lockstep: Lockstep, at: Stalled) -> None:
    market, world = at.world.contracts.market, at.world
    world.send(market.start_round(world.job, 0), "requester")
    world.send(market.join(world.job, 0, 1), "worker-1")
    world.pass_to(market.round(world.job, 0).join_ends)
    at.noted()


def aggregator_silent(lockstep: Lockstep, at: Stalled) -> None:
    at.world.to(Phase.MERGING)
    at.noted()


def price_too_low(lockstep: Lockstep, at: Stalled) -> None:
    at.quoting = ("--min-price", "1000000000000")
    at.noted(reason(lockstep, at, "policy"))


def windows_too_short(lockstep: Lockstep, at: Stalled) -> None:
    at.patch.setattr(offers, "estimated", lambda *_: Pace(1e4, 1e4))
    at.patch.setattr(offers._Look, "_estimated", lambda *_: Pace(1e4, 1e4))
    at.noted(reason(lockstep, at, "unfit"))


def chain_halted(lockstep: Lockstep, at: Stalled) -> None:
    at.world.to(Phase.TRAINING)
    at.patch.setattr(why.time, "time", lambda: float(at.world.now + 300))
    halted = of_halt(300.0, at.world.now)
    assert halted is not None
    assert of_halt(90.0, at.world.now) is None
    at.noted(state=halted)


def key_locked(lockstep: Lockstep, at: Stalled) -> None:
    (at.home / "password").write_text("another")
    settings = resolve("worker", **at.places, password_file=str(at.home / "password"), max_stake="all")
    with pytest.raises(KeyStoreError), assemble(settings):
        pass


def disk_full(lockstep: Lockstep, at: Stalled) -> None:
    at.patch.setattr(explaining.shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))


def worker_refuses(lockstep: Lockstep, at: Stalled) -> None:
    at.quoting = ("--jobs-from", STRANGER)
    at.noted(reason(lockstep, at, "policy"))


NOBODY_TOOK = "no worker has taken the job, which pays 1 LST a slot"
STALLS: dict[str, tuple[Callable[[Lockstep, Stalled], None], str, str, str]] = {
    "a self-check fails": (
        self_check_fails, "round 0 trains: 3 of 3 slots have not committed", "self-check: step 20 gives another state",
        "not now  wrong_bits: self-check: step 20",
    ),
    "the store is gone": (
        store_gone, "the job's parts cannot be read from here", "did not answer for block", "not now  unreachable:",
    ),
    "too few workers": (
        too_few_workers, "too few workers joined round 0: 1 of 3 slots is taken, 3 are needed",
        "the next one opens",
        "a worker here joins it",
    ),
    "the aggregator is silent": (
        aggregator_silent, "round 0 waits to be merged", "the aggregator merges the round, or else the slots' owners",
        "a worker here joins it",
    ),
    "the price is too low": (price_too_low, NOBODY_TOOK, "--min-price is 1,000,000,000,000 LST", "not now  policy:"),
    "the windows are too short": (windows_too_short, NOBODY_TOOK, "train_seconds", "not now  unfit:"),
    "the chain has halted": (
        chain_halted, "the chain has brought no block for 5 min", "the chain has brought no block since",
        "not now  chain_halted:",
    ),
    "the key is locked": (key_locked, NOBODY_TOOK, "the password does not open", "not now  key.password:"),
    "the disk is full": (disk_full, NOBODY_TOOK, "4.1 kB are left on its disk", "not now  disk_full:"),
    "a worker refused it": (worker_refuses, NOBODY_TOOK, "--jobs-from names others", "not now  policy: it is a job of"),
}  # fmt: skip
"""The ways to stall, and what is said of each: by the three commands of `train`, by `worker why`, by `worker quote`."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_told_by_every_command(lockstep: Lockstep, stalled: Stalled, name: str) -> None:
    make, of_job, of_worker, of_quote = STALLS[name]
    make(lockstep, stalled)
    said = told(lockstep, stalled)
    if folder := os.environ.get("LOCKSTEP_STALLS"):
        (Path(folder) / f"{name}.json").write_text(json.dumps(said, indent=1))
    assert of_job in said["train why"]
    assert of_worker in said["worker why"]
    assert of_quote in said["worker quote"]


def test_the_document_has_what_the_commands_say() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    for name, (_, *fragments) in STALLS.items():
        assert name in text
        assert [f for f in fragments if f.removeprefix("not now  ") not in text] == [], name
