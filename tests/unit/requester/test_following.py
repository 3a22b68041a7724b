"""A job's handle as a person meets it: printed, waited for, told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import JobHandle, Network
from lockstep.execution.losses import Curve, MergedLoss
from lockstep.protocol.errors import BlobMissing, StillRunning, Unreachable
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Cid
from lockstep.requester import following
from lockstep.storage.containers import JobSpec
from lockstep.storage.directory import DirectoryStore
from tests.support.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World.start()
    monkeypatch.setattr(following.time, "time", lambda: float(made.now))
    return made


@pytest.fixture
def handle(world: World, tmp_path: Path) -> JobHandle:
    store = DirectoryStore(tmp_path / "blocks")
    net = Network(world.devnet.w3, world.contracts, store, world.accounts["requester"], tmp_path)
    return net.job(world.job)


def test_a_handle_is_printed_as_a_table_and_named_as_text(handle: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert handle.name == handle.id.hex()
    assert handle.net.find(handle.name) == handle
    assert repr(handle) == f"<JobHandle {handle.name}>"
    lines = str(handle).splitlines()
    assert lines[0] == f"job {handle.name}"
    assert [line.split()[0] for line in lines[1:]] == ["status", "rounds", "escrow", "paid", "refunded"]
    assert lines[1] == "  status          active"
    assert repr(handle.net) == f"<Network: market {handle.net.contracts.addresses.market} on chain 31337>"

    def nobody(self: Any) -> dict[str, Any]:
        raise Unreachable("the chain does not answer", "try again")

    monkeypatch.setattr(JobHandle, "status", nobody)
    assert str(handle).splitlines()[1] == "  status  unknown: the chain does not answer", "print raises nothing"


def test_a_title_is_read_from_the_storage_and_shown_where_it_has_one(
    tmp_path: Path,
) -> None:
    spec = JobSpec({}, Cid("a"), Cid("b"), {}, (), {}, title="<b>Night owls</b>")
    world, store = World.start(spec_digest=spec.digest), DirectoryStore(tmp_path / "blocks")
    net = Network(world.devnet.w3, world.contracts, store, world.accounts["requester"], tmp_path)
    early, late = net.job(world.job), net.job(world.job)
    with pytest.raises(BlobMissing):
        _ = early.title
    assert str(early).splitlines()[1] == "  status          active"
    store.put(spec.encode(), codec="dag-cbor")
    assert repr(late) == f"<JobHandle {late.name}>", "which asks nobody"
    assert str(late).splitlines()[1] == "  title           <b>Night owls</b>"
    assert "<td>&lt;b&gt;Night owls&lt;/b&gt;</td>" in late._repr_html_()
    assert late.title == early.title == "<b>Night owls</b>"
    assert repr(late) == f"<JobHandle {late.name} '<b>Night owls</b>'>"


def test_an_event_is_printed_as_the_command_tells_it(world: World, handle: JobHandle) -> None:
    world.to(Phase.SEALING)
    events = handle.watch(0)
    first, second = next(events), next(events)
    assert str(second)[8:] == "  round 0 opens for joining"
    assert repr(first).startswith("<JobCreated ")
    assert "deposit" in str(first)
    assert first.job == handle.id, "its arguments are there as before"


def test_the_text_tells_every_event_and_the_round_under_way(world: World, handle: JobHandle) -> None:
    assert handle.text().endswith("0 of 2 rounds merged, 0 final")
    world.to(Phase.TRAINING)
    lines = handle.text().splitlines()
    assert [line[8:] for line in lines[1:]][:4] == [
        "  round 0 opens for joining",
        f"  round 0: {world.address('worker-0')[:10]} takes slot 0",
        f"  round 0: {world.address('worker-1')[:10]} takes slot 1",
        "  round 0: the seed is drawn, workers train",
    ]
    assert lines[-1].startswith("round 0: workers train, 0 of 2 slots, ")
    for call in (world.contracts.market.cancel(world.job),):
        world.send(call, "requester")
    assert "the job is cancelled" in handle.text()


def test_a_wait_ends_with_the_job_and_gives_the_handle(world: World, handle: JobHandle) -> None:
    for call in (world.contracts.market.cancel(world.job), world.contracts.market.finish(world.job)):
        world.send(call, "requester")
    assert handle.wait() is handle
    assert handle.wait(timeout=0) is handle, "what is over needs no time"


def test_a_wait_that_is_too_short_says_what_the_job_waits_for(world: World, handle: JobHandle) -> None:
    with pytest.raises(TimeoutError, match=r"not done after 0 s: no worker has taken the job, "):
        handle.wait(timeout=0)
    world.send(world.contracts.market.start_round(world.job, 0), "requester")
    world.send(world.contracts.market.join(world.job, 0, 1), "worker-1")
    with pytest.raises(StillRunning, match=r"round 0 waits for workers: 1 of 2 slots is taken, ") as told:
        handle.wait(timeout=0)
    assert (told.value.exit_code, bool(told.value.hint)) == (75, True)


def test_a_wait_warns_once_where_nothing_happens(world: World, handle: JobHandle) -> None:
    world.to(Phase.SEALING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StillRunning):
            handle.wait(timeout=0)
    windows = [world.params.role.train_seconds, world.params.windows.challenge_seconds]
    world.pass_to(world.now + 100 * max(windows))
    with (
        pytest.warns(UserWarning, match=r"nothing has happened for \d+ s; round 0 waits for its seed, ") as told,
        pytest.raises(StillRunning),
    ):
        handle.wait(timeout=0)
    assert len(told) == 1


def test_a_curve_is_printed_a_loss_a_line() -> None:
    curve = Curve(MergedLoss(i, None, loss, 3, "ab" * 32 * bool(i), Cid("bafy")) for i, loss in enumerate((5.5, 2.5)))
    assert str(curve).splitlines() == [
        "loss 5.500000 after 0 merges, the first weights", "loss 2.500000 after 1 merge, claim abababab",
    ]  # fmt: skip
    assert repr(curve) == "<Curve: 5.500000, 2.500000>"
    assert str(Curve()) == "no loss yet"
