"""`/metrics` of a worker and a verifier, on a chain in memory: what it tells, and that it can end no process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockstep.base.settings import Settings, resolve
from lockstep.base.vitals import VITALS, Vitals
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.protocol.jobs import Phase
from lockstep.runtime import metrics
from tests.support.memory.server import Server
from tests.support.waiting import PATIENCE
from tests.support.world import DEPOSIT, WALLET, World


@pytest.fixture(scope="module")
def world() -> World:
    """A market whose workers have claimed."""
    world = World.start()
    world.to(Phase.TRAINING)
    return world


@pytest.fixture
def settings(world: World, tmp_path: Path) -> Iterator[Settings]:
    """Of a worker, with the market behind a port."""
    server = Server(world.devnet.w3.provider)
    world.contracts.addresses.save(tmp_path / "deployment.json")
    yield replace(
        resolve(rpc=server.url, deployment=str(tmp_path / "deployment.json"), home=str(tmp_path / "home")),
        metrics="127.0.0.1:0",
    )
    server.close()


def scraped(port: int | None) -> dict[tuple[str, str], float]:
    """Every sample, by its name and the value of its label."""
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("lockstep_")
        assert family.documentation
        for sample in family.samples:
            label = sample.labels.get("account", next(iter(sample.labels.values()), ""))
            found[sample.name, label] = sample.value
    return found


def sampled(port: int | None) -> dict[tuple[str, str], float]:
    """Once the chain was asked."""
    end = time.monotonic() + PATIENCE
    while ("lockstep_head_block", "") not in (found := scraped(port)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_money_stakes_lag_and_counters_are_told(world: World, settings: Settings) -> None:
    me, vitals = world.address("worker-0"), Vitals()
    locks = tuple(key for key, owner in world.ledger().locks.items() if owner == me)
    assert len(locks) == 1
    vitals.beat(world.head - 2, world.now, (), locks, {"jobs_known": 1, "claims_live": 1})
    vitals.count("steps_trained", by=7)
    vitals.count("rpc_requests", "https://rpc.example", 3)
    vitals.count("fees_paid_coins", by=5 * 10**17)
    with metrics.served("worker", settings, me, vitals) as port:
        found = sampled(port)
        assert found["lockstep_build_info", me] == 1
        assert found["lockstep_lag_blocks", ""] == 2
        assert found["lockstep_steps_trained_total", ""] == 7
        assert found["lockstep_gas_used_total", ""] == 0
        assert found["lockstep_fees_paid_coins_total", ""] == 0.5
        assert found["lockstep_rpc_requests_total", "https://rpc.example"] == 3
        assert found["lockstep_claims_live", ""] == 1
        tokens = {where: found["lockstep_tokens", where] for where in ("wallet", "free", "locked", "unbonding")}
        locked = world.contracts.vault.lock_of(locks[0]).amount / 10**18
        assert tokens["locked"] == locked > 0
        assert tokens["wallet"] == (WALLET - DEPOSIT) / 10**18
        assert tokens["free"] == pytest.approx(DEPOSIT / 10**18 - locked)
        assert found["lockstep_coin_balance", ""] > 0
        assert ("lockstep_game_clock_left_seconds", "") not in found, "no game runs"


def test_ready_is_who_went_round_lately(world: World, settings: Settings) -> None:
    vitals = Vitals()
    with metrics.served("verifier", settings, world.address("verifier"), vitals) as port:
        url = f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{url}/healthz").status_code == 200
        assert httpx2.get(f"{url}/readyz").status_code == 503, "the loop has not gone round"
        vitals.beat(1, world.now, (), (), {})
        assert httpx2.get(f"{url}/readyz").status_code == 200
        assert (httpx2.get(f"{url}/readyz").json()["held"], scraped(port)["lockstep_held_by_fee", ""]) == (None, 0)
        vitals.held = "DisputeGame.open waits: the base fee is 9 gwei"
        assert (httpx2.get(f"{url}/readyz").json()["held"], scraped(port)["lockstep_held_by_fee", ""]) == (
            vitals.held, 1,
        )  # fmt: skip
        vitals.beat_at = time.monotonic() - metrics.READY_SECONDS - 1
        assert httpx2.get(f"{url}/readyz").status_code == 503
        assert httpx2.get(f"{url}/elsewhere").status_code == 404


def test_a_chain_that_is_gone_ends_nothing(settings: Settings) -> None:
    me = "0x" + "11" * 20
    with metrics.served("worker", replace(settings, rpc="http://127.0.0.1:9"), me) as port:  # type: ignore[arg-type]
        end = time.monotonic() + PATIENCE
        while not scraped(port)["lockstep_sample_failures_total", ""]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert ("lockstep_head_block", "") not in scraped(port), "nothing is made up"


def test_a_port_in_use_and_what_is_no_address_are_said_at_the_start(settings: Settings) -> None:
    me = "0x" + "11" * 20
    threads = threading.active_count()
    with metrics.served("worker", settings, me) as port:  # type: ignore[arg-type]
        taken = replace(settings, metrics=f"127.0.0.1:{port}")
        with pytest.raises(DoctorError, match=str(port)) as error, metrics.served("worker", taken, me):  # type: ignore[arg-type]
            pass
        assert error.value.hint
    for text in ("nowhere", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:-1"):
        with pytest.raises(UsageError), metrics.served("worker", replace(settings, metrics=text), me):  # type: ignore[arg-type]
            pass
    with metrics.served("worker", replace(settings, metrics=""), me) as none:  # type: ignore[arg-type]
        assert none is None
    end = time.monotonic() + PATIENCE
    while threading.active_count() > threads + 2:
        assert time.monotonic() < end, "samplers end by themselves"
        time.sleep(0.05)


def test_requests_are_counted_by_host_without_keys(world: World) -> None:
    server = Server(world.devnet.w3.provider)
    url = f"{server.url}/v3/0123456789abcdef"
    connect(url)
    server.close()
    assert VITALS.counted()["rpc_requests", server.url] >= 1
    assert not any("0123456789abcdef" in label for _, label in VITALS.counted())


def test_many_threads_count_right() -> None:
    vitals = Vitals()
    threads = [threading.Thread(target=lambda: [vitals.count("x") for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vitals.counted()["x", ""] == 8000


def test_a_sampler_asks_while_somebody_looks() -> None:
    asked: list[float] = []

    def read() -> metrics.MetricSample:
        asked.append(time.monotonic())
        return metrics.MetricSample(1.5, 2.0, 3.0, 0.0, 4.0, 5.0, 7, 8, None)

    def wait(times: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(asked) < times:
            assert time.monotonic() < end
            time.sleep(0.01)

    sampler = metrics.Sampler(read, seconds=0.01)
    wait(1)
    time.sleep(0.3)
    assert len(asked) == 1, "nobody looked"
    assert sampler.poll() is not None
    wait(2)
    time.sleep(0.3)
    assert len(asked) == 2
    sampler.close()


def test_a_sample_from_before_a_pause_is_not_told_and_one_of_an_outage_is(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [metrics.MetricSample(1.5, 2.0, 3.0, 0.0, 4.0, 5.0, 7, 8, None)]
    # The second reading fails, and all that follow.
    sampler = metrics.Sampler(left.pop, seconds=0.01)
    end = time.monotonic() + PATIENCE
    while sampler.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    while not sampler.failures:
        assert sampler.poll() is not None
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sampler.poll() is not None
    monkeypatch.setattr(metrics, "PAUSE_SECONDS", 0.0)
    assert sampler.poll() is None
    sampler.close()
