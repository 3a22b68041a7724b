"""The longest row of the deepest dataset, posted part by part on a chain: sizes, gas and shares, from receipts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lockstep.chain.outbox import Outbox
from lockstep.protocol import availability, claims, economics, job_rules, merkle
from lockstep.protocol.availability import Row, Status
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.merkle import LEAF_BYTES, LEAF_ELEMENTS, TensorHeader
from lockstep.protocol.precommitted import digest_of
from lockstep.protocol.program import I32
from lockstep.protocol.types import Address, Digest, Seconds
from tests import arena
from tests.differential.test_availability import params

pytestmark = pytest.mark.chain

LENGTH = job_rules.MAX_ROW
DATASET_ROWS = ((1 << 31) - 1) // LENGTH
"""As many as an i32 tensor holds: a tree of depth 23."""
TRANSACTION_BYTES = 128 * 1024
"""Nodes pass on no more."""


@dataclass(frozen=True)
class Deep:
    """Row 0 of a dataset whose other rows exist as hashes alone; no byte of it is zero, which costs the most."""

    tree: Digest
    rows: tuple[Row, ...]

    @classmethod
    def make(cls) -> Deep:
        dice = np.random.default_rng(0)
        header = TensorHeader(I32, (DATASET_ROWS, LENGTH))
        data = dice.integers(1, 256, 4 * LENGTH, dtype=np.uint8).tobytes()
        levels = merkle.data_levels(data)
        inside = len(levels) - 1
        beyond = [dice.integers(1, 256, 32, dtype=np.uint8).tobytes() for _ in range(header.depth - inside)]
        rows = tuple(
            Row(data[LEAF_BYTES * at : LEAF_BYTES * (at + 1)], (*merkle.proof(levels, at), *map(Digest, beyond)))
            for at in range(LENGTH // LEAF_ELEMENTS)
        )
        return cls(Digest(merkle.climb(levels[-1][0], 0, beyond)), rows)

    def params(self) -> JobParams:
        header = TensorHeader(I32, (DATASET_ROWS, LENGTH))
        return replace(
            params(job_rules.answer_floor(LENGTH, Seconds(12))), dataset_rows=DATASET_ROWS, row_length=LENGTH,
            dataset_root=Digest(merkle.tensor_root_of_tree(header, self.tree)),
        )  # fmt: skip


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arena.Arena]:
    started = arena.Arena.start(tmp_path_factory.mktemp("chain"))
    yield started
    started.stop()


def test_the_longest_row_is_posted_in_parts_that_pay_for_themselves(
    chain: arena.Arena, tmp_path_factory: pytest.TempPathFactory
) -> None:
    deep = Deep.make()
    p = deep.params()
    contracts, me = chain.contracts, Address(chain.worker.address)
    asker = Outbox(tmp_path_factory.mktemp("asker") / "o.sqlite", chain.devnet.w3, chain.challenger)
    poster = Outbox(tmp_path_factory.mktemp("poster") / "o.sqlite", chain.devnet.w3, chain.worker)
    asker.send(contracts.token.mint(Address(chain.challenger.address), p.escrow * 2), "mint")
    asker.send(contracts.token.approve(contracts.vault.address, p.escrow * 2), "approve")
    asker.send(contracts.market.create(p, 0, p.escrow), "create")
    job = claims.job_id(
        chain.devnet.w3.eth.chain_id, Address(contracts.market.address), Address(chain.challenger.address), 0, p
    )
    asker.send(contracts.demands.demand_row(job, 0), "demand")
    demand = availability.row_demand_id(job, 0)
    bond = contracts.vault.lock_of(demand).amount  # type: ignore[union-attr]
    assert bond == economics.row_bond_of(contracts.market.bond_of(job), p.bond, len(deep.rows))

    parts = [
        contracts.demands.answer_row(job, 0, deep.tree, at, deep.rows[at : at + job_rules.PART])
        for at in range(0, len(deep.rows), job_rules.PART)
    ]
    committed = poster.send(contracts.demands.commit([digest_of(me, part.data) for part in parts]), "commit")
    assert committed.gas_used <= contracts.demands.commit([]).gas
    before = contracts.vault.credits(me)
    receipts = poster.send_all((f"part {k}", part) for k, part in enumerate(parts))
    assert contracts.demands.demand(demand).status == Status.ANSWERED  # type: ignore[union-attr]
    earned = contracts.vault.credits(me) - before
    assert 0 <= bond * 60 // 100 - earned < len(parts), "60 % of the bond, each share rounded down"
    print(f"commit {committed.gas_used:,}")
    for part, receipt in zip(parts, receipts, strict=True):
        print(f"{len(part.data):,} bytes, {receipt.gas_used:,} gas")
        assert len(part.data) + 1024 < TRANSACTION_BYTES
        assert receipt.gas_used <= part.gas, "the client's limit"
        assert receipt.gas_used <= job_rules.PART * economics.LEAF_GAS, "what a bond reckons"
    asker.close()
    poster.close()
