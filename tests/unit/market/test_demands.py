"""What an account demands, and when: what it lacks, once, where that pays or protects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.chain.contracts import Call
from lockstep.execution.merging import wrong_leaves
from lockstep.market.demands import DemandIssuer, DemandResponder, left_out, to_demand
from lockstep.market.ledger import DemandRecord
from lockstep.market.turns import COURTESY_SECONDS
from lockstep.protocol.errors import BlobMissing, RowMissing
from lockstep.protocol.jobs import JobStatus, Phase, Round
from lockstep.protocol.market import receipts
from lockstep.protocol.market.availability import CARRY, payload_demand_id, row_demand_id
from lockstep.protocol.market.calls import HASH_BLOCKS
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.prices import PROVER_PERCENT
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.market.types import Demand, Status
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds
from tests.adversarial.court import Court
from tests.support.world import World

MISSING = RowMissing(BlobMissing("no block", "ask its owner"), 0)


def patient(world: World) -> tuple[DemandIssuer, Seconds]:
    """Who has seen a row to be missing for long enough, and now."""
    asks = DemandIssuer(world.contracts, world.address("verifier"))
    missing = RowMissing(BlobMissing("no block", "ask"), 0)
    patience = world.params.windows.answer_seconds
    assert asks.row(world.job, world.params, missing, Seconds(100)) is None, "stores may be slow"
    assert asks.row(world.job, world.params, missing, Seconds(99 + patience)) is None
    return asks, Seconds(100 + patience)


def test_a_row_is_demanded_after_a_while_if_that_pays_and_nobody_has() -> None:
    world = World.start(max_lead=2)
    asks, now = patient(world)
    found = asks.row(world.job, world.params, MISSING, now)
    assert found is not None
    key, call = found
    assert key == f"demand/row/{world.job.hex()}"
    world.send(call, "verifier")
    assert world.contracts.demands.demand(row_demand_id(world.job, 0)) is not None
    assert asks.row(world.job, world.params, MISSING, now) is None, "once"


@pytest.mark.parametrize(("over", "asked"), [(0, True), (1, False), (1_000, False)])
def test_a_row_is_not_demanded_where_the_bond_is_not_less_than_the_prize(over: int, asked: bool) -> None:
    # Two slots and a merge, twice: the deposit. A row of one leaf costs the bond alone where gas is free.
    prize = 2 * (2 * 101 + 57) * PROVER_PERCENT // 100
    world = World.start(bond=prize - 1 + over)
    assert (world.params.deposit * PROVER_PERCENT // 100, world.params.prices.gas_price) == (prize, 0)
    asks, now = patient(world)
    assert (asks.row(world.job, world.params, MISSING, now) is not None) is asked


def test_a_payload_is_demanded_under_one_key_whoever_asked_before() -> None:
    world = World.start()
    world.to(Phase.ATTESTING)
    first, again = (demanded(world, "verifier") for _ in range(2))
    assert first == again, "after every restart"
    key, call, wanted = first
    assert key == f"demand/{world.claim_id(1).hex()}", "the outbox sends a key once"
    world.send(call, "verifier")
    other = demanded(world, "witness")
    assert wanted != other[2], "who asks after another names other leaves"
    world.send(other[1], "witness")
    stored = list(world.ledger().demands.values())
    assert [(d.claim, d.asker) for d in stored] == [
        (world.claim_id(1), world.address(name)) for name in ("verifier", "witness")
    ]


def test_a_payload_that_came_spoiled_is_demanded_where_it_is_wrong() -> None:
    world = World.start()
    wanted, guessed = demanded(world, "verifier", [(3, 999), (1, 0)])[2], demanded(world, "verifier")[2]
    words = [wanted >> 64 * i & (1 << 64) - 1 for i in range(4)]
    assert [(w >> 40, w & (1 << 40) - 1) for w in words[:2]] == [(3, 999), (1, 0)]
    assert wanted >> 128 == guessed >> 128, "the rest are the account's own"


def demanded(world: World, name: str, lacking: Sequence[tuple[int, int]] = ()) -> tuple[str, Call, int]:
    """(key, transaction, what it names) of an account's demand for the payload of slot 1."""
    asks, claim = DemandIssuer(world.contracts, world.address(name)), claim_id(world.job, 0, 0, 1)
    key, call = asks.payload(world.job, 0, 1, claim, lacking)
    return key, call, int.from_bytes(call.data[-32:], "big")


def test_leaves_that_differ_from_the_replay_are_found() -> None:
    own = [np.arange(700, dtype=np.float32), np.zeros(3, np.float32)]
    stored = [own[0].copy(), own[1].copy()]
    assert list(wrong_leaves(own, stored)) == []
    stored[0][600] += 1
    stored[1][2] = 1
    assert list(wrong_leaves(own, stored)) == [(0, 2), (1, 0)]


def after(*given: tuple[int, int]) -> Round:
    """A round in which (speaker, mask) were given."""
    named, spoke = (0, 0), 0
    for who, mask in given:
        named, spoke = receipts.add(named, mask, who), spoke | 1 << who
    return replace(Round(), named=named, spoke=spoke, receipts=len(given))


@pytest.mark.parametrize(
    ("given", "slot"),
    [
        ((), 1),
        (((0, 0b111), (2, 0b111)), 1),
        (((0, 0b101), (2, 0b101)), None),
        (((0, 0b111), (2, 0b101)), 1),
        (((1, 0b111),), 1),
    ],
    ids=["nobody spoke", "all let it in", "all refuse it", "half let it in", "its owner alone spoke"],
)
def test_a_payload_is_demanded_where_the_others_would_merge_it(
    given: tuple[tuple[int, int], ...], slot: int | None
) -> None:
    reports = {0: Report.DECODED, 1: Report.MISSING, 2: Report.DECODED}
    assert to_demand(reports, after(*given)) == slot
    assert left_out(reports, after(*given)) == ([1] if slot is None else []), "what they would not, costs its requester"
    assert to_demand({**reports, 1: Report.REFUSED}, after(*given)) == slot
    assert to_demand({**reports, 1: Report.UNREACHABLE}, after(*given)) is None, "nobody answered: nothing is known"
    assert to_demand({**reports, 1: Report.DECODED}, after(*given)) is None
    for report in (Report.UNREACHABLE, Report.DECODED, Report.UNKNOWN):
        assert left_out({**reports, 1: report}, after(*given)) == []


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    running = Court.in_memory(tmp_path_factory.mktemp("market"))
    yield running
    running.stop()


def test_of_sixteen_who_hold_a_row_one_posts_it_and_goes_on(court: Court) -> None:
    court.reset(rounds=1, answer_seconds=Seconds(3600))
    court.send(court.contracts.demands.demand_row(court.job_id, 17), "mallory")
    names = [f"holder-{k}" for k in range(16)]
    holders = [
        DemandResponder(court.contracts, court.store, Address(court.devnet.account(name).address)) for name in names
    ]
    asked = court.ledger()
    (demand,) = asked.demands.values()
    opened = demand.deadline - 3600

    def due(seconds: int, among: Sequence[DemandResponder] = holders) -> list[list[str]]:
        return [
            [key.partition("/")[0] for key, _ in one.due(asked, lambda _: court.job, Seconds(opened + seconds))]
            for one in among
        ]

    by_turn = [sum(bool(found) for found in due(seconds)) for seconds in range(0, 24 * 33, 24)]
    assert sorted(by_turn) == by_turn
    assert next(n for n in by_turn if n) <= 2, "the first that sends is nearly alone"
    assert by_turn[-1] == 16, "in the end everybody would"
    assert due(1799 + 1) == [["commit"]] * 16, "no row is late for turns"


def test_who_has_begun_to_post_a_row_goes_on_and_others_wait_for_it(court: Court) -> None:
    court.reset(rounds=1, answer_seconds=Seconds(3600))
    court.send(court.contracts.demands.demand_row(court.job_id, 17), "mallory")
    asked = court.ledger()
    (demand,) = asked.demands.values()
    first = DemandResponder(court.contracts, court.store, court.address("accomplice"))
    late = Seconds(demand.deadline - 1800)
    ((key, commit),) = first.due(asked, lambda _: court.job, late)
    assert key.startswith("commit")
    court.send(commit, "accomplice")
    early = Seconds(demand.deadline - 3600)
    begun = DemandResponder(court.contracts, court.store, court.address("accomplice"))
    ((key, answer),) = begun.due(asked, lambda _: court.job, early)
    assert key.startswith("answer"), "after a restart, too, whosever turn it is"
    court.send(answer, "accomplice")
    assert not list(first.due(asked, lambda _: court.job, late)), "what is done is done"


def test_ones_own_demand_for_a_carry_is_looked_for_among_all_others_once() -> None:
    me, other, claim = Address("0x" + "11" * 20), Address("0x" + "22" * 20), ClaimId(Digest(b"c" * 32))
    made = [Demand(claim, other, Status.OPEN, row=CARRY) for _ in range(16)]
    asked: list[int] = []

    def demand(id_: Digest) -> Demand | None:
        asked.append(next(n for n in range(99) if payload_demand_id(claim, n) == id_))
        return made[asked[-1]] if asked[-1] < len(made) else None

    asks = DemandIssuer(SimpleNamespace(demands=SimpleNamespace(demand=demand)), me)  # type: ignore[arg-type]
    assert asks.carry_demand(claim) is None
    made += [Demand(claim, me, Status.OPEN), Demand(claim, me, Status.OPEN, row=CARRY), made[0]]
    assert asks.carry_demand(claim) is made[17], "the other one is for the payload"
    del asked[:]
    assert asks.carry_demand(claim) is made[17]
    assert asked == [17], "one request, however many others have asked"
    # A reorganisation orders them anew.
    made.insert(0, made.pop(17))
    assert asks.carry_demand(claim) is made[0]
    del made[:]
    assert asks.carry_demand(claim) is None


def test_who_asked_keeps_the_word_of_its_leaves_before_the_chain_forgets_it() -> None:
    world = World.start(answer_seconds=1_000)
    world.to(Phase.ATTESTING)
    asker, owner = (DemandResponder(world.contracts, None, world.address(name)) for name in ("verifier", "worker-1"))  # type: ignore[arg-type]
    world.send(demanded(world, "verifier")[1], "verifier")
    (demand,), demands = world.ledger().demands.values(), world.contracts.demands
    stored = demands.demand(demand.id)
    assert stored is not None

    def kept_at(age: int) -> list[str]:
        """The keys of what is due of the demand to its asker, in the last block before one of this age."""
        world.devnet.mine(stored.beacon + age - 1 - world.head)
        assert world.now < demand.deadline
        assert not list(owner.due(world.ledger(), lambda _: None, world.now)), "nobody else keeps it"
        return [key for key, _ in asker.due(world.ledger(), lambda _: None, world.now)]

    keep = [f"keep/{demand.id.hex()}"]
    assert [kept_at(age) for age in (1, HASH_BLOCKS // 2)] == [[], []], "the chain still knows it for long"
    assert [kept_at(age) for age in (HASH_BLOCKS // 2 + 1, HASH_BLOCKS)] == [keep, keep]
    word = demands.seed_of(demand.id)
    ((_, call),) = asker.due(world.ledger(), lambda _: None, world.now)
    world.send(call, "verifier")
    assert kept_at(HASH_BLOCKS + 1) == [], "it is kept once"
    world.devnet.mine(HASH_BLOCKS)
    assert demands.seed_of(demand.id) == word, "and names the leaves ever after"


def test_a_word_that_the_chain_has_forgotten_is_not_kept() -> None:
    world = World.start(answer_seconds=1_000)
    world.to(Phase.ATTESTING)
    world.send(demanded(world, "verifier")[1], "verifier")
    (demand,), demands = world.ledger().demands.values(), world.contracts.demands
    world.devnet.mine(HASH_BLOCKS + 2)
    assert not demands.fading(demand.id)
    assert world.refused(demands.keep_seed(demand.id), "verifier") == "DemandClosed"


def test_what_others_ask_of_others_costs_no_reads_of_the_chain() -> None:
    me, other, claim = Address("0x" + "11" * 20), Address("0x" + "22" * 20), ClaimId(Digest(b"c" * 32))
    read: list[str] = []

    def noted(name: str) -> Any:
        return lambda _: read.append(name)

    demands = SimpleNamespace(demand=noted("demand"), seed_of=noted("seed"), fading=noted("fading"))
    answers = DemandResponder(SimpleNamespace(demands=demands, market=None), None, me)  # type: ignore[arg-type]
    record = DemandRecord(Digest(b"d" * 32), JobId(b"j" * 32), claim, 0, other, Seconds(1000))
    owned = SimpleNamespace(worker=other, carries=True)
    ledger: Any = SimpleNamespace(
        demands={record.id: record}, find=lambda _: (None, None, owned), awaited=lambda _: owned,
        owners_beside=lambda _: {other, me},
    )  # fmt: skip
    job: Any = SimpleNamespace(programs=SimpleNamespace(encode=None))
    assert list(answers.due(ledger, lambda _: job, Seconds(1000))) == []
    assert read == [], "the claim is another's"
    answers._turns = SimpleNamespace(mine=lambda *_: False)  # type: ignore[assignment]
    ended = Seconds(1000 + COURTESY_SECONDS + 1)
    assert list(answers.due(ledger, lambda _: job, ended)) == []
    assert read == [], "it is another's turn"
    answers._turns = SimpleNamespace(mine=lambda *_: True)  # type: ignore[assignment]
    assert list(answers.due(ledger, lambda _: job, ended)) == []
    owned.worker = me
    assert list(answers.due(ledger, lambda _: job, Seconds(1000))) == []
    assert read == ["demand", "demand"], "what is this account's is read"


def kinds(court: Court, name: str) -> list[str]:
    """Everything that is due of an account, sent; the kinds."""
    answers = DemandResponder(court.contracts, court.store, court.address(name))
    due = list(answers.due(court.ledger(), lambda found: court.job if found == court.job_id else None, court.now()))
    for _, call in due:
        court.send(call, name)
    return [key.partition("/")[0] for key, _ in due]


def test_owner_answers_for_its_payload_and_whoever_has_the_data_for_a_row(court: Court) -> None:
    answer = Seconds(3600)
    court.reset(rounds=1, answer_seconds=answer)
    claims = court.claim()
    demands, vault, asker = court.contracts.demands, court.contracts.vault, court.address("mallory")
    free = vault.free(asker)
    court.send(demands.unavailable(court.job_id, 0, 0, 5), "mallory")
    court.send(demands.demand_row(court.job_id, 7), "mallory")
    court.devnet.mine(2)
    row_bond = demands.row_bond_of(court.job_id, 7)
    court.advance(answer // 2)
    assert kinds(court, "worker-2") == ["commit"], "the row; the payload is another's"
    assert kinds(court, "worker-2") == ["answer"], "once the commitment is mined"
    assert vault.credits(court.address("worker-2")) == row_bond * 60 // 100
    assert kinds(court, "worker-0") == ["answer"], "the payload; the row is posted"
    assert vault.credits(court.address("worker-0")) == 0, "its gas, which costs nothing here, and no prize"
    assert vault.free(asker) == free - row_bond, "the payload's bond is back"
    for id_ in (payload_demand_id(claims[0], 0), row_demand_id(court.job_id, 7)):
        stored = demands.demand(id_)
        assert stored is not None
        assert stored.status == Status.ANSWERED
    assert demands.missing(claims[0]) is False
    assert kinds(court, "worker-0") == [], "nothing is left to do"


def test_asker_voids_a_job_whose_row_nobody_posts(court: Court) -> None:
    answer = Seconds(3600)
    court.reset(rounds=1, answer_seconds=answer)
    vault, asker = court.contracts.vault, court.address("mallory")
    free = vault.free(asker)
    court.send(court.contracts.demands.demand_row(court.job_id, 0), "mallory")
    court.advance(answer + 1)
    assert kinds(court, "mallory") == ["settle"]
    job = court.contracts.market.job(court.job_id)
    assert (job.status, job.prover) == (JobStatus.VOID, asker)
    assert vault.free(asker) == free, "the bond is back"
