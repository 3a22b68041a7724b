"""Serves `/metrics`, `/healthz` and `/readyz` of a worker or a verifier on a local port.

    the loop      writes numbers into `base.vitals`, and waits for nothing
    the sampler   asks the chain for balances and clocks through a connection of its own, while somebody scrapes
    a scrape      is answered from both; neither it nor the sampler can end or hold up the process

Amounts are in whole tokens and coins, times in seconds: Prometheus computes with floats.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN
from lockstep.base.log import Logger
from lockstep.base.vitals import VITALS, Vitals
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.game_table import GameTable
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import DoctorError, TryLater, UsageError
from lockstep.runtime.staking import Holdings

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.protocol.types import Address, GameId, Seconds

SAMPLE_SECONDS = 15.0
"""Least seconds between two samples."""
PAUSE_SECONDS = 300.0
"""Seconds between two scrapes after which the old sample is not used."""
READY_SECONDS = 120.0
"""Seconds without an iteration after which a loop is not ready: there is an outage, or its thread is busy."""
REQUEST_SECONDS = 5.0
LOCKS_READ = 64
"""Most locks whose amounts one sample reads."""

COUNTERS: dict[str, tuple[str, str | None]] = {
    "rpc_requests": ("Requests to a chain endpoint.", "host"),
    "rpc_errors": ("Requests to a chain endpoint that got no answer.", "host"),
    "gas_used": ("Gas of own transactions that were mined.", None),
    "transactions": ("Own transactions that were mined.", "outcome"),
    "fees_paid_coins": ("Coins paid for own transactions.", None),
    "steps_trained": ("Training steps computed.", None),
    "claims_replayed": ("Claims replayed.", "verdict"),
}
"""By metric name without `lockstep_` and `_total`: the description and the label."""
GAUGES = {
    "jobs_known": "Jobs of the market that are not over.",
    "jobs_refused": "Open jobs that this process does not take.",
    "claims_live": "Own claims whose stake is locked.",
    "replays_waiting": "Claims that are to be replayed.",
}

log = Logger(__name__)


@dataclass(frozen=True)
class MetricSample:
    """An account's money and game clock and the chain's head, as sampled."""

    coin: float
    wallet: float
    free: float
    locked: float
    unbonding: float
    credits: float
    head: int
    head_time: int
    clock_left: float | None
    """Seconds to the earliest deadline of an open game; None if no game is open."""


class Sampler:
    """Samples an account's money and game clocks on a thread: at the start, and after each scrape."""

    def __init__(self, read: Callable[[], MetricSample], seconds: float = SAMPLE_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._last: MetricSample | None = None
        self._asked = time.monotonic()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="metrics-sample", daemon=True)
        self._thread.start()

    def poll(self) -> MetricSample | None:
        """Returns the last sample and requests the next one; None if there is none, or if the last scrape was long ago.

        While the chain does not answer, the last sample is kept: its head ages, and a game's clock is not lost.
        """
        paused, self._asked = time.monotonic() - self._asked > PAUSE_SECONDS, time.monotonic()
        self._wanted.set()
        return None if paused else self._last

    def close(self) -> None:
        """Stops sampling without waiting for a request in flight."""
        self._stop.set()
        self._wanted.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            # INVARIANT: nothing that goes wrong here reaches the process.
            try:
                self._last = self._read()
            except Exception as error:
                self.failures += 1
                log.debug("the chain was not sampled", why=type(error).__name__)
            self._stop.wait(self._seconds)
            self._wanted.wait()
            self._wanted.clear()


def reader(settings: Settings, me: Address, vitals: Vitals = VITALS) -> Callable[[], MetricSample]:
    """Returns a function that samples the chain through a connection of its own."""
    found: list[tuple[Contracts, GameTable]] = []

    def read() -> MetricSample:
        if not found:
            addresses = Addresses.load(settings.deployment)
            contracts = Contracts.at(connect(settings.rpc, addresses.chain_id), addresses)
            found.append((contracts, GameTable(contracts.game, addresses.block)))
        contracts, table = found[0]
        return sample(contracts, table, me, vitals)

    return read


def sample(contracts: Contracts, table: GameTable, me: Address, vitals: Vitals) -> MetricSample:
    """Reads an account's money, locks and games from the latest block."""
    held, vault, unit = Holdings.of(contracts, me), contracts.vault, contracts.token.currency.unit
    head = vault.w3.eth.get_block("latest")
    locks = (vault.lock_of(key) for key in vitals.locks[:LOCKS_READ])
    deadlines = (_deadline(table, game) for game in vitals.games)
    left = [int(deadline) - int(head["timestamp"]) for deadline in deadlines if deadline is not None]
    return MetricSample(
        coin=held.coin / COIN.unit, wallet=held.wallet / unit, free=held.free / unit,
        locked=sum(int(lock.amount) for lock in locks if lock is not None) / unit,
        unbonding=held.unbonding / unit, credits=held.credits / unit,
        head=int(head["number"]), head_time=int(head["timestamp"]), clock_left=min(left, default=None),
    )  # fmt: skip


def _deadline(table: GameTable, game: GameId) -> Seconds | None:
    """Returns the mover's deadline in a game; None while the node's log is behind its state."""
    try:
        return table.game(game).deadline
    except TryLater:
        return None


def families(role: str, me: str, vitals: Vitals, sampler: Sampler) -> Iterator[Any]:
    """Yields every metric in prometheus-client's form."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, what: str, value: float) -> Any:
        return GaugeMetricFamily(f"lockstep_{name}", what, value=value)

    info = GaugeMetricFamily("lockstep_build_info", "1, by what runs.", labels=["role", "version", "account"])
    info.add_metric([role, version("lockstep-compute"), me], 1)
    yield info
    counted = vitals.counted()
    for name, (what, label) in COUNTERS.items():
        family = CounterMetricFamily(f"lockstep_{name}", what, labels=[label] if label else None)
        rows = {at: n for (each, at), n in counted.items() if each == name}
        for at, n in (rows or ({} if label else {"": 0})).items():
            family.add_metric([at] if label else [], n / COIN.unit if name.endswith("_coins") else n)
        yield family
    for name, what in GAUGES.items():
        if name in vitals.gauges:
            yield gauge(name, what, vitals.gauges[name])
    yield gauge("games_open", "Own games that run.", len(vitals.games))
    yield gauge(
        "held_by_fee", "1 while own transactions wait: the base fee is above max_fee.", float(bool(vitals.held))
    )
    yield gauge("acted_block", "The block that was acted on last.", vitals.head[0])
    failures = CounterMetricFamily("lockstep_sample_failures", "Samples of the chain that failed.")
    failures.add_metric([], sampler.failures)
    yield failures
    last = sampler.poll()
    if last is None:
        return
    yield gauge("head_block", "The chain's latest block.", last.head)
    yield gauge("head_age_seconds", "Age of the chain's latest block.", time.time() - last.head_time)
    yield gauge("lag_blocks", "Blocks that are not acted on yet.", max(0, last.head - vitals.head[0]))
    yield gauge("coin_balance", "The chain's coin in the account, which pays for gas.", last.coin)
    money = GaugeMetricFamily("lockstep_tokens", "The account's tokens by where they are.", labels=["where"])
    for where in ("wallet", "free", "locked", "unbonding", "credits"):
        money.add_metric([where], getattr(last, where))
    yield money
    if last.clock_left is not None:
        yield gauge("game_clock_left_seconds", "Until the first own game's clock runs out.", last.clock_left)


def address_of(text: str) -> tuple[str, int]:
    """Parses `HOST:PORT` or `PORT` into (host, port), by default on 127.0.0.1; raises UsageError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(
            f"metrics is {text!r}", hint="give an address to listen on, such as 127.0.0.1:9464, or leave it empty"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def served(role: str, settings: Settings, me: Address, vitals: Vitals = VITALS) -> Iterator[int | None]:
    """Serves the metrics while the body runs; yields the port, or None if `settings.metrics` is empty.

    Raises UsageError for an invalid address, DoctorError if the process cannot listen there.
    """
    if not settings.metrics:
        yield None
        return
    host, port = address_of(settings.metrics)
    sampler = Sampler(reader(settings, me, vitals))
    try:
        server = _MetricsServer((host, port), _handler(role, me, vitals, sampler))
    except OSError as error:
        sampler.close()
        raise DoctorError(
            f"metrics cannot be served on {host}:{port}: {error.strerror or error}",
            hint="name another port in --metrics, or leave it out",
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        sampler.close()
        server.shutdown()
        server.server_close()


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores all errors of a request, such as a client's disconnect: a scrape prints no trace."""


def _handler(role: str, me: str, vitals: Vitals, sampler: Sampler) -> type[BaseHTTPRequestHandler]:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class All(Collector):
        def collect(self) -> Iterator[Any]:
            return families(role, me, vitals, sampler)

    registry = CollectorRegistry()
    registry.register(All())

    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif path == "/healthz":
                self._say(200, {"status": "ok"})
            elif path == "/readyz":
                silent = None if vitals.beat_at is None else time.monotonic() - vitals.beat_at
                ready = silent is not None and silent < READY_SECONDS
                said = {"status": "ok" if ready else "waiting", "block": vitals.head[0], "held": vitals.held or None}
                self._say(200 if ready else 503, said)
            else:
                self._say(404, {"status": "try /metrics, /healthz or /readyz"})

        def _say(self, status: int, body: dict[str, Any]) -> None:
            self._answer(status, "application/json", json.dumps(body).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Logs nothing for a scrape."""

    return MetricsHandler
