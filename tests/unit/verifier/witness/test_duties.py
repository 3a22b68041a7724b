"""A witness on a market in memory: from its enrolment to its fee, and what it does when a claim is wrong."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from lockstep.chain.events import EventReader
from lockstep.market.replay import WrongSource
from lockstep.market.turns import COURTESY_SECONDS, TURN_SECONDS, place_of
from lockstep.protocol.errors import BlobMissing, Crashed, LockstepError, ProgramInvalid, Unfit, Unreachable
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market import availability, ids
from lockstep.protocol.market.types import AuditStatus, Demand, DutyStatus, Standing, Status
from lockstep.protocol.types import ClaimId, Digest, Seconds
from lockstep.runtime.refusals import Refusals
from lockstep.storage.cid import cid_of_block
from tests.support.constant import Lie
from tests.support.world import World
from tests.unit.verifier.desk import SECONDS, Desk, desk_of
from verifier.demanding import Demander
from verifier.journal import Journal
from verifier.witness import enrolling

__all__ = ["desk_of"]

CID = cid_of_block(b"a list")
WITNESSED = {"witnesses": 1, "witness_fee": 11, "witness_stake": 223, "audit_seconds": 40}


@pytest.fixture
def desk(desk_of: Any) -> Desk:
    """A witness, in a job whose round waits for workers."""
    world = World.start(**WITNESSED)
    world.to(Phase.JOINING)
    made: Desk = desk_of(world, witness=True, volunteer=False)
    return made


def drawn(desk: Desk, lie: Lie = Lie.NONE) -> ClaimId:
    """The claim that the witness is drawn for; each slot tells this lie."""
    desk.until("enrolled")
    desk.world.to(Phase.ATTESTING, lies=dict.fromkeys(range(2), lie))
    desk.until("looked")
    (audit,) = desk.world.ledger().audits.values()
    assert audit.duties[0].account == desk.party.address
    return desk.world.claim_id(audit.duties[0].slot)


def status(desk: Desk) -> DutyStatus:
    (audit,) = desk.world.ledger().audits.values()
    return audit.duties[0].status


def test_a_witness_enrols_looks_agrees_attests_and_is_paid(desk: Desk) -> None:
    claim = drawn(desk)
    assert desk.told("looked")[0]["t"] in (1, 2)
    said = desk.until("witnessed")
    assert (said["claim"], said["verdict"]) == (claim.hex(), "agrees")
    desk.poll(2)
    assert status(desk) == DutyStatus.AGREED
    assert desk.world.contracts.market.round(desk.world.job, 0).receipts == 1, "it said which payloads are there"
    assert desk.told("audited", claim=claim.hex(), verdict="match"), "its list was withheld: it replayed the claim"
    desk.world.to(Phase.FINAL)
    desk.poll(8)
    assert status(desk) == DutyStatus.CLOSED
    assert desk.world.contracts.vault.credits(desk.party.address) == WITNESSED["witness_fee"]
    assert {name: len(desk.told(name)) for name in ("enrolled", "looked", "witnessed")} == {
        "enrolled": 1, "looked": 1, "witnessed": 1,
    }  # fmt: skip


def test_a_witness_that_sees_another_state_differs_and_has_the_claim_challenged(desk: Desk) -> None:
    claim = drawn(desk, Lie.VALUE)
    said = desk.until("witnessed")
    assert (said["claim"], said["verdict"]) == (claim.hex(), "differs")
    assert desk.until("challenged")["claim"] == claim.hex()
    assert len(desk.told("audited")) == 1, "who is a witness alone replays no other claim to its end"


def test_the_chain_is_on_disk_before_its_top_is_shown_and_what_was_seen_before_it_is_committed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(owner: Any, name: str) -> None:
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (order.append(name), plain(*a, **k))[1])

    noted(Journal, "keep_chain")
    noted(Journal, "keep_observation")
    contract = type(desk.party.contracts.witnesses)
    noted(contract, "enrol")
    noted(contract, "commit")
    drawn(desk)
    desk.poll(3)
    assert list(dict.fromkeys(order)) == ["keep_chain", "enrol", "keep_observation", "commit"]


@pytest.mark.parametrize("has_committed", [False, True], ids=["before it committed", "before it revealed"])
def test_who_is_killed_after_it_looked_speaks_of_what_it_saw_then(desk: Desk, has_committed: bool) -> None:
    """No state is in hand any more: the leaf and its way up to the root were kept."""
    drawn(desk)
    while has_committed and status(desk) != DutyStatus.COMMITTED:
        desk.poll()
    begun = len(desk.replays.begun)
    desk.stop()
    desk.start()
    desk.until("witnessed")
    desk.poll(2)
    assert status(desk) == DutyStatus.AGREED
    assert len(desk.told("looked")) == 1
    assert len(desk.replays.begun) == begun + 1, "for want of its list, the whole claim alone"


def test_a_witness_does_not_leave_while_it_owes_and_its_stake_comes_back_when_it_does(desk: Desk) -> None:
    drawn(desk)
    assert not desk.verifier._at_rest(desk.verifier.poll(True))
    desk.until("witnessed")
    desk.poll(2)
    desk.world.to(Phase.FINAL)
    desk.poll(8)
    desk.poll(3, draining=True)
    assert desk.verifier._at_rest(desk.verifier.poll(True))
    vault = desk.party.contracts.vault
    assert vault.free(desk.party.address) > 0
    assert not desk.verifier._duties._enrolment._wallet._missing(WITNESSED["witness_stake"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "told", "tries"),
    [
        (Unfit("too slow"), 1, 1),
        (ProgramInvalid("a rule"), 1, 1),
        (RuntimeError("a defect"), 0, 1),
        (BlobMissing("not yet"), 0, 2),
    ],
    ids=["unfit", "invalid", "defect", "missing"],
)
def test_a_job_that_cannot_be_witnessed_is_not_enrolled_in(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, told: int, tries: int
) -> None:
    tried: list[int] = []

    def keep_up(*_: Any) -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(enrolling.capacity, "keep_up", keep_up)
    desk.poll(enrolling.LOAD_SECONDS + 3)
    assert not desk.told("enrolled")
    assert len(desk.told("refused")) == told
    assert len(tried) == tries, "what may come is looked for again"


def test_a_job_that_ends_what_runs_it_is_tried_once_by_any_process_of_its_home(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def keep_up(*_: Any) -> None:
        tried.append(1)
        raise Crashed("it was ended: SIGSEGV")

    with monkeypatch.context() as patch:
        patch.setattr(enrolling.capacity, "keep_up", keep_up)
        for _ in range(2):
            desk.poll(enrolling.LOAD_SECONDS + 3)
            desk.stop()
            desk.start()
    assert (len(tried), len(desk.told("refused", code="crashed"))) == (1, 1)
    assert not desk.told("enrolled")
    Refusals(desk.home).forget(desk.world.job)
    assert desk.until("enrolled"), "its owner has it tried again"


# -- what anybody may do


LONG = {"attest_seconds": 400, "challenge_seconds": 580}
"""A quarter of it is for demands: turns of three seconds among those who may have it drawn."""


def enrolled(world: World, name: str) -> None:
    world.send(world.contracts.witnesses.enrol(world.job, Digest(name.encode().ljust(32))), name)


def seconds_until_drawn(desk: Desk, most: int = 60) -> list[int]:
    """Seconds of chain time, from the reveals until an audit is opened, and from its beacon until it is drawn."""
    world, found, began = desk.world, [], desk.world.now
    while len(found) < 2:
        assert world.now - began < most
        desk.poll()
        audits = list(world.ledger().audits.values())
        done = len(audits) if not found else audits[0].state.status == AuditStatus.DRAWN
        if done:
            found.append(world.now - began)
            began = world.now
    return found


@pytest.mark.parametrize("first", [True, False], ids=["its turn", "another's turn"])
def test_of_those_who_enrolled_the_first_in_line_has_a_round_drawn(desk_of: Any, first: bool) -> None:
    world = World.start(**WITNESSED, **LONG)
    world.to(Phase.JOINING)
    desk: Desk = desk_of(world, witness=True, volunteer=False)
    desk.until("enrolled")
    me, audit = desk.party.address, ids.audit_id(world.job, 0, 0)

    def behind(name: str) -> set[bool]:
        line = {me, world.address(name)}
        return {place_of(audit + stage, me, line) == 0 for stage in (b"open", b"draw")}

    others = ("witness", "mallory", "requester", "aggregator", "worker-0", "worker-1")
    enrolled(world, next(name for name in others if behind(name) == {first}))
    world.to(Phase.ATTESTING)
    opened, drawn = seconds_until_drawn(desk)
    if first:
        assert max(opened, drawn) <= 3
    else:
        assert min(opened, drawn) >= 4, "a turn passes first"
        assert opened + drawn < 20, "but somebody has it drawn"


def test_at_half_of_the_time_for_demands_everybody_has_a_round_drawn(desk_of: Any) -> None:
    world = World.start(**WITNESSED, **LONG)
    world.to(Phase.JOINING)
    desk: Desk = desk_of(world, witness=True, volunteer=False)
    desk.until("enrolled")
    desk.verifier._duties._turns = SimpleNamespace(mine=lambda *_, **__: False)  # type: ignore[union-attr, assignment]
    world.to(Phase.ATTESTING)
    desk.poll(6)
    assert not world.ledger().audits, "it is never its turn"
    world.pass_to(world.contracts.market.round(world.job, 0).reveal_ends + LONG["attest_seconds"] // 8)
    assert max(seconds_until_drawn(desk)) <= 4


def test_a_late_duty_of_another_is_settled_by_turns(desk_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.start(**WITNESSED)
    world.to(Phase.JOINING)
    enrolled(world, "witness")
    desk: Desk = desk_of(world, witness=True, volunteer=False)
    monkeypatch.setattr(enrolling.capacity, "keep_up", Mock(side_effect=Unfit("too slow")))
    world.to(Phase.ATTESTING)
    for _ in range(2):
        world.send(world.contracts.witnesses.draw(world.job, 0), "witness")
        world.devnet.mine(1)
    (audit,) = world.ledger().audits.values()
    assert audit.duties[0].account == world.address("witness")
    late = audit.state.reveal_ends + COURTESY_SECONDS
    place = place_of(audit.id + bytes(2), desk.party.address)
    assert place > 0
    world.pass_to(Seconds(late))
    desk.poll(5)
    world.pass_to(Seconds(late + int(TURN_SECONDS * place) - 6))
    desk.poll(3)
    assert status(desk) == DutyStatus.DRAWN, "others have the first turns"
    desk.poll(6)
    assert status(desk) == DutyStatus.CLOSED


def test_a_duty_whose_data_cannot_be_had_is_looked_into_again(desk: Desk) -> None:
    desk.until("enrolled")
    desk.world.to(Phase.ATTESTING)
    for slot in range(2):
        desk.replays.failing[desk.world.claim_id(slot)] = LockstepError("not yet")
    while not desk.replays.begun:
        desk.poll()
    desk.poll(5)
    assert len(desk.replays.begun) in (2, 3), "three seconds of chain time apart"
    desk.replays.failing.clear()
    desk.until("looked")


def test_a_replay_that_a_duty_waits_for_goes_on_while_the_process_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def waiting(*args: Any) -> Any:
        began.set()
        assert go_on.wait(SECONDS)
        return desk.replays.audit(*args)

    monkeypatch.setattr("verifier.replaying.audit", waiting)
    drawn(desk)
    while not began.wait(0.01):
        desk.verifier.poll(True)
        desk.world.devnet.mine(1)
    for _ in range(3):
        desk.verifier.poll(True)
    go_on.set()
    assert desk.until("witnessed", draining=True)["verdict"] == "agrees"
    assert len(desk.replays.begun) == 2, "the look, and the whole claim once"


@pytest.mark.parametrize("answers", [True, False, None], ids=["in time", "with an error", "never"])
def test_a_list_is_fetched_beside_the_loop_and_a_store_without_it_keeps_no_witness_silent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, answers: bool | None
) -> None:
    claim, looking, may = drawn(desk), threading.current_thread(), threading.Event()
    made, asked = desk.world.held[claim], []

    def get(cid: str, *, max_bytes: int) -> bytes:
        assert threading.current_thread() is not looking, "the loop waits for a store"
        asked.append(cid)
        if answers is None:
            assert may.wait(SECONDS)
        if not answers:
            raise Unreachable("read timed out")
        return b"".join(made.trace)

    monkeypatch.setattr(desk.party.store, "get", get)
    desk.has_lists = answers is not None
    desk.poll()
    (audit,) = desk.world.ledger().audits.values()
    slot = audit.duties[0].slot
    desk.world.pass_to(audit.state.commit_ends)
    desk.world.send(desk.world.contracts.witnesses.publish(desk.world.job, 0, slot, CID), f"worker-{slot}")
    try:
        said = desk.until("witnessed")
    finally:
        may.set()
    assert (said["claim"], said["verdict"]) == (claim.hex(), "agrees")
    assert set(asked) == {CID}
    assert bool(desk.told("audited")) == (not answers), "without the list, its own replay decides"


# -- claims that carry


def carrying(desk_of: Any) -> tuple[Desk, int]:
    """A witness that is drawn for a claim whose carry nobody stores, and the claim's slot."""
    world = World.start(**WITNESSED, rounds=3, max_lead=3, carry_period=2)
    world.to(Phase.JOINING)
    made: Desk = desk_of(world, witness=True, volunteer=False)
    made.until("enrolled")
    world.to(Phase.LEAD)
    world.send(world.contracts.market.back(world.job, 0, 2), "aggregator")
    made.replays.lacking = {0, 1}
    world.to(Phase.ATTESTING, 1)
    while not (found := drawn_in(made, 1)):
        made.poll()
    return made, found[0].slot


def drawn_in(desk: Desk, r: int) -> list[Any]:
    audits = desk.world.ledger().audits.values()
    return [duty for audit in audits if audit.state.round == r for duty in audit.duties]


def test_a_witness_demands_a_carry_that_is_lacking_before_it_gives_its_receipt(desk_of: Any) -> None:
    desk, slot = carrying(desk_of)
    told = desk.until("demanded")
    claim = desk.world.claim_id(slot, 1)
    assert (told["claim"], told["carry"]) == (claim.hex(), True)
    market, begun = desk.world.contracts.market, len(desk.replays.begun)
    assert market.claim(claim).open_games == 1
    desk.poll(6)
    assert market.round(desk.world.job, 1).receipts == 1
    reader = EventReader(desk.world.devnet.w3, desk.world.contracts.addresses)
    order = [e.name for e in reader.poll(reader.start()).events if e.name in ("PayloadDemanded", "Attested")]
    assert order == ["Attested", "Attested", "PayloadDemanded", "Attested"], "its receipt could end Attesting"
    assert claim not in desk.replays.begun[begun:], "nothing is computed while the owner may answer"
    assert len(desk.told("demanded")) == 1


def test_a_witness_whose_claim_is_left_out_for_its_carry_computes_nothing_and_is_not_fined(desk_of: Any) -> None:
    desk, slot = carrying(desk_of)
    desk.until("demanded")
    world, begun = desk.world, len(desk.replays.begun)
    world.to(Phase.FREEZING, 1)
    world.pass_to(world.now + world.params.windows.answer_seconds + 1)
    world.to(Phase.MERGING, 1)
    assert market_mask(world) == 1 << 1 - slot
    while drawn_in(desk, 1)[0].status != DutyStatus.CLOSED:
        desk.poll()
        world.pass_to(world.now + 10)
    assert world.claim_id(slot, 1) not in desk.replays.begun[begun:]
    assert world.contracts.witnesses.witness(world.job, desk.party.address).standing == Standing.LISTED
    world.pass_to(world.now + world.params.windows.clock_seconds)
    desk.poll(4)
    assert world.contracts.market.claim(world.claim_id(slot, 1)).status == ClaimStatus.CONVICTED
    assert desk.told("settled"), "it ended its own demand"
    assert world.contracts.vault.credits(desk.party.address) == 30 * world.params.role.slot_stake // 100


def market_mask(world: World) -> int:
    return int(world.contracts.market.round(world.job, 1).mask)


def test_a_carry_that_comes_late_is_looked_at(desk_of: Any) -> None:
    desk, slot = carrying(desk_of)
    desk.until("demanded")
    desk.replays.lacking.clear()
    assert desk.until("looked", 1)["t"] in (1, 2)
    assert desk.world.claim_id(slot, 1) in desk.replays.begun


def test_a_carry_that_was_shown_and_is_not_stored_is_computed_again(
    desk_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, slot = carrying(desk_of)
    desk.until("demanded")
    claim = desk.world.claim_id(slot, 1)
    shown = Demand(Digest(claim), desk.party.address, Status.ANSWERED, row=availability.CARRY)
    monkeypatch.setattr(type(desk.world.contracts.demands), "demand", lambda _, __: shown)
    desk.until("looked")
    assert claim in desk.replays.begun


def test_a_witness_that_can_demand_nothing_computes_again(desk_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demander, "_demand", lambda *_: None)
    desk, slot = carrying(desk_of)
    desk.until("looked")
    assert desk.world.claim_id(slot, 1) in desk.replays.begun
    assert not desk.told("demanded")


def test_a_witness_differs_from_a_claim_that_stands_on_a_wrong_one(desk_of: Any) -> None:
    desk, slot = carrying(desk_of)
    desk.replays.lacking.clear()
    claim, source = (desk.world.claim_id(slot, r) for r in (1, 0))
    found = desk.world.ledger().find(source)
    assert found is not None
    desk.replays.failing[claim] = WrongSource(found[2])
    assert desk.until("witnessed")["verdict"] == "differs"
    assert source in desk.replays.begun, "the wrong one is replayed to its end"
