"""A stranger's hostile jobs beside an honest job with an open game: worker, verifier and coordinator go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.base.settings import cache_directory
from lockstep.chain.outbox import Outbox
from lockstep.protocol.dispute import moves
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.market.ids import job_id
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.runtime.refusals import Refusals
from tests.support import hostile

from .test_worker import WATCHED, Market, Process, arguments, events_of, homes_of, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain, pytest.mark.timeout(3600)]

DEAR = Wei(600 * 10**18)
"""A stake that two of nobody has: what passes every look is not joined all the same."""
SHORT = {"train_seconds": Seconds(5), "merge_seconds": Seconds(3)}
"""A child that looks has half a minute then."""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def published(market: Market, names: list[str]) -> dict[str, JobId]:
    """A stranger's jobs, whose merges the coordinator is to make."""
    account = market.devnet.account("mallory")
    me, contracts = Address(account.address), market.contracts
    market.fund("mallory")
    found = {}
    outbox = Outbox(market.folder / "mallory.sqlite", market.devnet.w3, account)
    outbox.send(contracts.token.approve(contracts.vault.address, Wei(10**30)), "approve")
    for nonce, name in enumerate(names):
        ops = hostile.late_sum if name == LATE else hostile.HOSTILE[name]
        params = hostile.publish(
            market.store, ops, rounds=1, max_lead=1, slot_stake=DEAR, merge_stake=DEAR,
            aggregator=Address(market.devnet.account("coordinator").address), **(SHORT if name == LATE else {}),
        )  # fmt: skip
        outbox.send(contracts.market.create(params, nonce, params.escrow), f"create/{nonce}")
        found[name] = job_id(contracts.addresses.chain_id, contracts.market.address, me, nonce, params)
    outbox.close()
    return found


LATE = "a sum that is late"


def begin(market: Market, program: str, home: Path, *more: str, lie: tuple[str, int] | None = None) -> Process:
    """A program that is ready, however busy its machine is with what strangers wrote."""
    process = market.start(home.name, [program, *arguments(market, home, *more)[1:]], lie=lie)
    process.wait_for("ready")
    return process


def refused(worker: Process, job: JobId) -> list[str]:
    """The codes with which a worker refuses a job, in order."""
    return [e["code"] for e in worker.named("refused") if e["job"] == job.hex()]


def test_hostile_jobs_keep_nobody_from_an_honest_one_and_from_its_game(market: Market) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "v", "coordinator")
    strange = published(market, [*hostile.HOSTILE, LATE])
    ours = ["--jobs-from", market.devnet.account("requester").address]
    coordinator = begin(market, "coordinator", homes[4], "--port", "0")
    verifier = begin(market, "verifier", homes[3])
    looker = begin(market, "worker", homes[1])
    liar = begin(market, "worker", homes[0], *ours, lie=("one-ulp", 1))
    other = begin(market, "worker", homes[2], *ours)
    job = market.submit(rounds=2, max_lead=2, **WATCHED)

    wait(lambda: bool(events_of(market, "Opened")), "a game")
    wait(lambda: all(refused(looker, one) for one in strange.values()), "a refusal of every hostile job")
    assert refused(looker, strange[LATE]) == ["crashed"]
    refusal = Refusals(homes[1]).of(strange[LATE])
    assert refusal is not None
    assert refusal.code == "crashed"

    # After a restart it is not looked at again.
    looked = cache_directory() / "boxes" / strange[LATE].hex()
    before = looked.stat().st_mtime_ns
    assert looker.leave() == 0
    looker = begin(market, "worker", homes[1])
    wait(lambda: bool(refused(looker, strange[LATE])), "its refusal")
    assert refused(looker, strange[LATE]) == ["crashed"]

    wait(lambda: bool(events_of(market, "Resolved")), "a verdict")
    (resolved,) = events_of(market, "Resolved")
    assert moves.Verdict(resolved.verdict) == moves.Verdict.FRAUD
    assert resolved.winner == Address(market.devnet.account("v").address)
    wait(lambda: bool(verifier.named("won")), "the verifier's word")
    chain = market.contracts.market
    wait(lambda: chain.phase(job.id, 1) == Phase.LEAD, "the last round's merge")
    market.devnet.advance(Seconds(WATCHED["challenge_seconds"] + 1))
    wait(lambda: chain.job(job.id).status == JobStatus.DONE, "the end of the honest job")
    books = chain.job(job.id)
    assert books.paid > 0
    assert books.escrow == books.paid + books.refunded

    assert looked.stat().st_mtime_ns == before, "no child was started for it"
    assert {e.job for e in events_of(market, "Joined")} == {job.id}, "nobody works for a stranger"
    assert all(p.popen.poll() is None for p in (coordinator, verifier, looker, liar, other)), "everybody is there"
