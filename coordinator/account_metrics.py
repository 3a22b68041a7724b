"""Metrics of a coordinator that are not in its index: the account's money, its gas, the queue.

The worker that sends transactions is a child process; the API reads the worker's files in the home, and samples the
chain itself, so that no scrape waits for it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep.base.amounts import COIN
from lockstep.runtime.metrics import Sampler
from lockstep.runtime.staking import OUTBOX


class WatchedAccount(Collector):
    """Gauges of the account and of the queue."""

    def __init__(self, home: Path, sampler: Sampler, waiting: Callable[[], int]) -> None:
        """Sets the account; `waiting` returns the number of messages in the queue, and its failures are ignored."""
        self._home = home
        self._sampler = sampler
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        last = self._sampler.poll()
        if last is not None:
            yield GaugeMetricFamily("lockstep_coin_balance", "The chain's coin in the account.", value=last.coin)
            money = GaugeMetricFamily("lockstep_tokens", "The account's tokens by where they are.", labels=["where"])
            for where in ("wallet", "free", "unbonding", "credits"):
                money.add_metric([where], getattr(last, where))
            yield money
        with suppress(sqlite3.Error, ValueError, KeyError):
            gas, fees, count = spent(self._home / OUTBOX)
            yield CounterMetricFamily("lockstep_gas_used", "Gas of own transactions that were mined.", value=gas)
            yield CounterMetricFamily("lockstep_fees_paid_coins", "Coins paid for own transactions.", value=fees)
            sent = CounterMetricFamily("lockstep_transactions", "Own transactions, by state.", labels=["outcome"])
            for outcome, n in count.items():
                sent.add_metric([outcome], n)
            yield sent
        # A broker that does not answer is no reason to tell nothing at all.
        with suppress(Exception):
            yield GaugeMetricFamily(
                "lockstep_coordinator_queue_messages", "Messages that wait in the queue.", value=self._waiting()
            )


def spent(outbox: Path) -> tuple[int, float, dict[str, int]]:
    """Returns (gas, coins, transactions by state) of an outbox that another process may be writing."""
    with closing(sqlite3.connect(f"file:{outbox}?mode=ro", uri=True, timeout=1)) as database:
        count = dict(database.execute("SELECT state, count(*) FROM transactions GROUP BY state").fetchall())
        receipts = database.execute("SELECT receipt FROM transactions WHERE receipt IS NOT NULL").fetchall()
    read = [json.loads(text) for (text,) in receipts]
    gas = sum(r["gas_used"] for r in read)
    return gas, sum(r["gas_used"] * r["gas_price"] for r in read) / COIN.unit, count
