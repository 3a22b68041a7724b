"""The gas that quotes count with is what receipts say, and a fee is the chain's or the one that was stated."""

from __future__ import annotations

import json

import pytest

from lockstep.chain.gas import VERBS, WORKER_ROUND, Fees, fees_now, fees_stated, gas_of
from lockstep.chain.wire import TIP_WEI
from lockstep.protocol.errors import UsageError
from tests.support.gas import SNAPSHOT, quoted
from tests.support.memory.devnet import MemoryDevnet


def test_the_table_is_the_committed_snapshot() -> None:
    assert quoted(json.loads(SNAPSHOT.read_text())["verbs"]) == VERBS


def test_a_cost_is_the_units_at_the_price() -> None:
    fees = Fees(base=7, tip=3)
    assert gas_of(WORKER_ROUND) == VERBS["join"] + VERBS["commit"] + VERBS["reveal"]
    assert fees.cost(WORKER_ROUND, more=5) == 10 * (gas_of(WORKER_ROUND) + 5)


def test_fees_are_the_latest_block_s_or_the_stated_ones() -> None:
    with MemoryDevnet() as devnet:
        base = devnet.w3.eth.get_block("latest")["baseFeePerGas"]
        assert fees_now(devnet.w3) == Fees(base, TIP_WEI)
    assert fees_stated("0.05") == Fees(5 * 10**7, 0, stated=True)


@pytest.mark.parametrize("text", ["", "cheap", "-1", "nan", "inf", "1e9"])
def test_a_fee_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gas-price") as refused:
        fees_stated(text)
    assert "gwei" in refused.value.hint
