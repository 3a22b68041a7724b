"""A payload that is not there and that receipts leave out is demanded for the job's requester, on a chain in memory:
in vain, it saves the slot's price; answered, it saves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.db import Database
from coordinator.models import ReceiptRow
from coordinator.reading import hex32
from coordinator.service import Coordinator
from lockstep.chain.outbox import Outbox
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus, JobStatus, Phase, Reveal
from lockstep.protocol.market.availability import payload_answer, payload_demand_id
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.market.types import BURN, Status
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.types import Cid, ClaimId, StateRoot
from lockstep.runtime.guard.memory import RecordKey
from lockstep.runtime.party import Party
from lockstep.storage import cid_of_digest
from lockstep.storage.directory import DirectoryStore
from tests.support import constant
from tests.support.constant import ConstantClaim
from tests.support.world import DEPOSIT, World

SLOTS, HIDDEN = 3, 2
"""The second is the slot whose payload is not where its owner said."""
CIDS = [cid_of_digest(keccak(bytes([slot])), "raw") for slot in range(SLOTS)]


class Merger:
    """In the place of an aggregator: it has every payload but one."""

    job = SimpleNamespace(box=None)

    def judge(self, ref: Any) -> tuple[Report, str]:
        return (Report.MISSING, "no block") if ref.cid == CIDS[HIDDEN] else (Report.DECODED, "")

    def merge(self, place: RecordKey, _: Any) -> tuple[StateRoot, StateRoot, Cid]:
        body = ConstantClaim.of_merge(place.base).body
        return body.out, body.out2, Cid("checkpoint")

    def forget(self, claim: ClaimId) -> None:
        """It keeps none."""


def market() -> World:
    """A round in which all have revealed."""
    world = World.start(slots=SLOTS, rounds=1, carry_period=0)

    def opened(claim: ClaimId) -> Reveal:
        return replace(World.opened(world, claim), payload_cid=CIDS[world.contracts.market.claim(claim).slot])

    world.opened = opened  # type: ignore[method-assign]
    world.to(Phase.ATTESTING)
    return world


def coordinator_of(world: World, database: Database, home: Path, demands: int) -> Any:
    """The world's aggregator at work."""
    account, shared = world.accounts["aggregator"], SimpleNamespace(memory_bytes=1 << 30, threads=1, path="auto")
    outbox, store = Outbox(home / "outbox.sqlite", world.devnet.w3, account), DirectoryStore(home / "store")
    where: Any = world.contracts.addresses, world.devnet.w3, world.contracts, store, account, outbox
    settings: Any = SimpleNamespace(home=home, home_name="here", shared=shared, demands=demands)
    parts: Any = SimpleNamespace(
        party=Party(settings, *where),
        database=database,
        settings=settings,
        me=world.address("aggregator"),
        guard=SimpleNamespace(bind=lambda place, promise: promise),
    )
    made: Any = Coordinator(parts)
    made._aggregators._made[world.job] = Merger()
    made._losses = SimpleNamespace(poll=lambda *_: False, drop=lambda _: None)
    return made


def look(coordinator: Any, world: World) -> None:
    """Take in what is new, and do what is due."""
    while coordinator._step().behind > 0:
        pass
    coordinator._once(world.job)


def hand_over(world: World, database: Database) -> None:
    """Every owner's receipt, which leaves the hidden payload out; its owner's names it."""
    with database.session() as session:
        for slot in range(SLOTS):
            given = world.receipt(slot, mask=(1 << SLOTS) - 1 if slot == HIDDEN else (1 << SLOTS) - 1 - (1 << HIDDEN))
            session.add(
                ReceiptRow(
                    job=hex32(world.job), round=0, attempt=0, who=slot, account=world.address(f"worker-{slot}"),
                    mask=str(given.mask), signature="0x" + given.signature.hex(), time=world.now,
                )
            )  # fmt: skip


def answer(world: World) -> None:
    """The owner posts the leaves that are demanded."""
    world.devnet.mine(2)
    claim, demands = world.claim_id(HIDDEN), world.contracts.demands
    demand = payload_demand_id(claim, 0)
    asked, seed, made = demands.demand(demand), demands.seed_of(demand), world.held[claim]
    assert asked is not None
    assert seed is not None
    contents = {0: constant.held(made.step(2).value), 1: constant.held(constant.CARRY)}
    encode = constant.encode_program()
    shown = payload_answer(asked.wanted, seed, encode, lambda entry: memoryview(contents[entry].data), False)
    world.send(demands.answer(demand, made.body, ProgramParts.of(encode).code, list(shown)), f"worker-{HIDDEN}")


def silence(world: World) -> None:
    """Nobody answers."""


@pytest.mark.parametrize(
    ("demands", "others", "reply", "status", "burned_by_requester"),
    [(8, 1, silence, Status.MISSING, 0), (8, 0, answer, Status.ANSWERED, 1), (0, 0, silence, None, 1)],
    ids=["in vain", "answered", "no demand"],
)
def test_what_is_left_out_is_demanded_for_the_requester(
    database: Database, tmp_path: Path, demands: int, others: int, reply: Callable[[World], None],
    status: Status | None, burned_by_requester: int,
) -> None:  # fmt: skip
    world = market()
    for _ in range(others):
        world.send(world.contracts.demands.unavailable(world.job, 0, HIDDEN, 1), "mallory")
    coordinator = coordinator_of(world, database, tmp_path, demands)
    look(coordinator, world)
    hand_over(world, database)
    look(coordinator, world)
    assert world.contracts.market.round(world.job, 0).receipts == SLOTS, "receipts left, after the demand"
    claim = world.claim_id(HIDDEN)
    made, again = (world.contracts.demands.demand(payload_demand_id(claim, others + n)) for n in range(2))
    assert again is None, "once"
    assert (made is None) == (demands == 0)
    if made is not None:
        assert made.asker == world.address("aggregator")
        reply(world)
        look(coordinator, world)
        world.pass_to(made.deadline + 1)
    for _ in range(6):
        look(coordinator, world)
        world.pass_to(world.contracts.market.round(world.job, 0).attest_ends)
    merged = world.contracts.market.round(world.job, 0)
    assert merged.phase == Phase.LEAD
    assert merged.mask == 0b011
    world.pass_to(merged.merged_at + world.params.windows.challenge_seconds)
    for _ in range(3):
        look(coordinator, world)

    job, price = world.contracts.market.job(world.job), world.params.role.slot_price
    vault = world.contracts.vault
    assert job.status == JobStatus.DONE
    assert job.paid == (SLOTS - 1 + burned_by_requester) * price + world.params.merge.price
    assert vault.credits(BURN) == price, "by the requester, or by who hid it"
    assert vault.free(world.address(f"worker-{HIDDEN}")) == DEPOSIT - (1 - burned_by_requester) * price
    assert vault.free(world.address("aggregator")) == DEPOSIT, "the bond is back"
    if made is not None:
        ended = world.contracts.demands.demand(payload_demand_id(claim, others))
        assert ended is not None
        assert ended.status == status
    assert world.contracts.market.claim(claim).status == ClaimStatus.FINAL
