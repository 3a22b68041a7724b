"""What `/metrics` of a coordinator tells of its account: from the outbox of the home, beside whoever writes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from coordinator.account_metrics import WatchedAccount, spent
from coordinator.api import create_app
from lockstep.chain.outbox import Outbox
from lockstep.protocol.types import Wei
from lockstep.runtime.metrics import MetricSample
from lockstep.runtime.staking import OUTBOX
from tests.support.world import World

from .conftest import Api


@pytest.mark.sampled(1)
def test_gas_money_and_the_queue_are_told_and_a_broker_that_is_gone_hides_nothing(api: Api, tmp_path: Path) -> None:
    world = World.start()
    outbox = Outbox(tmp_path / OUTBOX, world.devnet.w3, world.accounts["aggregator"])
    receipt = outbox.send(world.contracts.token.approve(world.contracts.vault.address, Wei(5)), "approve")
    gas, fees, count = spent(tmp_path / OUTBOX)
    assert (gas, count) == (receipt.gas_used, {"mined": 1})
    assert fees == receipt.gas_used * receipt.gas_price / 10**18
    last = MetricSample(1.5, 2.0, 3.0, 0.0, 4.0, 5.0, 7, 8, None)
    sampler: Any = SimpleNamespace(poll=lambda: last)

    def text(waiting: Any) -> str:
        context = replace(api.context, account=WatchedAccount(tmp_path, sampler, waiting))
        with TestClient(create_app(context)) as client:
            return client.get("/metrics").text

    told = text(lambda: 9)
    for line in (
        "lockstep_coin_balance 1.5", 'lockstep_tokens{where="free"} 3.0', "lockstep_coordinator_queue_messages 9.0",
        f"lockstep_gas_used_total {float(gas)}", 'lockstep_transactions_total{outcome="mined"} 1.0',
        'lockstep_coordinator_games{state="open"} 1.0',
    ):  # fmt: skip
        assert line in told.splitlines(), line
    assert "queue_messages" not in text(lambda: 1 // 0)
    outbox.close()
