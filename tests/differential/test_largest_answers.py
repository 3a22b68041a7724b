"""The largest answers to demands, on a chain: sizes, gas and what the bond pays of it, from receipts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from lockstep.chain.contracts import Availability
from lockstep.chain.outbox import Outbox
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol import merkle
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import availability, ids, job_rules, prices
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.types import Row, Shown, Status
from lockstep.protocol.merkle import LEAF_BYTES, LEAF_ELEMENTS, TensorHeader
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.programs.program import F32, I32, Program, ProgramHeader
from lockstep.protocol.types import Address, Digest, Seconds, StateRoot
from tests.differential.test_availability import Asking, params
from tests.support import arena
from tests.support.params import amended

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
        return amended(
            params(job_rules.answer_floor(LENGTH, Seconds(12))), dataset_rows=DATASET_ROWS, row_length=LENGTH,
            dataset_root=Digest(merkle.tensor_root_of_tree(header, self.tree)),
        )  # fmt: skip


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arena.Arena]:
    started = arena.Arena.start(tmp_path_factory.mktemp("chain"))
    yield started
    started.stop()


@pytest.mark.slow
def test_the_longest_row_is_posted_in_parts_that_pay_for_themselves(
    chain: arena.Arena, tmp_path_factory: pytest.TempPathFactory
) -> None:
    deep = Deep.make()
    p = deep.params()
    contracts, me = chain.contracts, Address(chain.worker.address)
    asker = Outbox(tmp_path_factory.mktemp("asker") / "o.sqlite", chain.devnet.w3, chain.challenger)
    poster = Outbox(tmp_path_factory.mktemp("poster") / "o.sqlite", chain.devnet.w3, chain.worker)
    asker.send(contracts.token.mint(Address(chain.challenger.address), p.escrow + p.deposit), "mint")
    asker.send(contracts.token.approve(contracts.vault.address, p.escrow + p.deposit), "approve")
    asker.send(contracts.market.create(p, 0, p.escrow), "create")
    job = ids.job_id(
        chain.devnet.w3.eth.chain_id, Address(contracts.market.address), Address(chain.challenger.address), 0, p
    )
    asker.send(contracts.demands.demand_row(job, 0), "demand")
    demand = availability.row_demand_id(job, 0)
    bond = contracts.vault.lock_of(demand).amount  # type: ignore[union-attr]
    assert bond == prices.row_bond_of(contracts.market.bond_of(job), p.prices.bond, len(deep.rows))

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
        assert receipt.gas_used <= job_rules.PART * prices.LEAF_GAS, "what a bond reckons"
    asker.close()
    poster.close()


# -- payloads ----------------------------------------------------------------------------------------------------------

ENTRIES = 1 << 10
"""Of a state, at most: half of them the payload's, half the carry's."""
DEPTH = 23
ELEMENTS = LEAF_ELEMENTS << DEPTH
"""Of each tensor: one more than a tensor may have, and as deep as those."""


def widest_encode() -> Program:
    """As many tensors as a state holds, each an op's, from as many vectors: the most that is looked through."""
    b = ProgramBuilder([(F32, ELEMENTS)] * ENTRIES)
    return b.finish([b.map((ELEMENTS,), [b.input(k)], lambda e, x: e.fneg(x)) for k in range(ENTRIES)])


WIDEST = widest_encode()
CODE = ProgramParts.of(WIDEST).code


class Widest:
    """What claims of that Program reveal."""

    leaf = np.random.default_rng(1).integers(1, 256, LEAF_BYTES, dtype=np.uint8).tobytes()

    @cached_property
    def levels(self) -> list[Digest]:
        """Of the tree of one tensor: all of its leaves are equal, and so are all nodes of a level."""
        nodes = [Digest(merkle.leaf(self.leaf))]
        for _ in range(DEPTH):
            nodes.append(Digest(merkle.node(nodes[-1], nodes[-1])))
        return nodes

    @cached_property
    def roots(self) -> list[Digest]:
        return [merkle.tensor_root_of_tree(TensorHeader(F32, (ELEMENTS,)), self.levels[-1])] * ENTRIES

    @property
    def out(self) -> StateRoot:
        return StateRoot(Digest(merkle.tree(self.roots[: ENTRIES // 2])))

    def shown(self, demands: Availability, demand: Digest) -> tuple[Shown, ...]:
        seed, asked, header = demands.seed_of(demand), demands.demand(demand), ProgramHeader.decode(CODE.header)
        assert seed is not None
        assert asked is not None
        entries, ops = merkle.levels(self.roots), WIDEST.ops_levels
        return tuple(
            Shown(
                self.leaf, tuple(self.levels[:-1]), tuple(merkle.proof(entries, entry)), WIDEST.descriptors[entry],
                tuple(merkle.proof(ops, entry)),
            )
            for entry, _ in availability.named_leaves(asked.wanted, seed, header)
        )  # fmt: skip


def test_the_largest_answer_of_eight_leaves_is_paid_less_than_it_costs(chain: arena.Arena) -> None:
    widest, demands = Widest(), chain.contracts.demands
    asking = Asking(chain, params(encode=WIDEST), (widest.out, widest.out))
    assert asking.demand(chain.challenger, 0) == ""
    chain.devnet.mine(1)
    (demand,) = asking.asked
    shown = widest.shown(demands, demand)
    answer = demands.answer(demand, chain.bodies[asking.claims[0]], CODE, shown)
    assert asking.answer(demand, shown, CODE) == ""
    gas = chain.devnet.w3.eth.get_block("latest")["gasUsed"]
    print(f"{len(answer.data):,} bytes, {gas:,} gas")
    assert gas <= answer.gas, "the client's limit"
    assert gas > prices.ANSWER_GAS, "nobody withholds it for the pay"
    assert prices.ANSWER_GAS <= prices.BOND_GAMES * prices.DEFENDER_GAS, "what its bond holds at the same fee"
