"""Planted failures: each has its own code, a hint, and a time at which something comes next.

What a worker itself decides is decided here by a whole worker on a chain in memory; what the chain decides is done to
its claims by the other parties. Everything is read back by what `worker why` and `worker status` print.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.machine import Memory
from lockstep.base.naming import short
from lockstep.base.settings import Settings, resolve
from lockstep.chain import gas
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import key_of
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.chain.outbox import Outbox
from lockstep.client import Network, connect
from lockstep.execution.box import loading
from lockstep.execution.box.loading import JobBox
from lockstep.execution.capacity import ChainPace, Pace, Require
from lockstep.execution.durations import longest_hold
from lockstep.execution.jobs import Job
from lockstep.protocol.errors import KeyStoreError, LockstepError, Unreachable, WrongBits
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Phase, Receipt
from lockstep.protocol.market import court, ids
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.runtime.guard import lock
from lockstep.runtime.refusals import Refusals
from tests.support import toyjob
from tests.support.constant import ConstantClaim
from tests.support.memory.devnet import MemoryDevnet
from tests.support.waiting import PATIENCE
from tests.support.world import World
from worker import explaining, notes, offers
from worker.account import Account, open_account
from worker.explaining import status_of, why_of, why_without_chain
from worker.hints import DEFAULT
from worker.service import Worker
from worker.setup import assemble

TOKEN = 10**18
BUSY = notes.WORKING, notes.STOPPED
"""States in the notes of a worker that has nothing to say, or has not begun."""
STRANGER = "0x" + "c" * 40


# -- what a worker decides


@dataclass
class Market:
    """A chain in memory with one open job, and homes of workers."""

    folder: Path
    devnet: MemoryDevnet
    net: Network
    homes: int = 0

    @staticmethod
    def build(folder: Path) -> Market:
        devnet = MemoryDevnet()
        requester = devnet.account("requester")
        addresses = deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=Seconds(3600))
        addresses.save(folder / "deployment.json")
        net = connect(
            rpc=devnet.url, storage=f"dir://{folder}/blocks", deployment=addresses, account=requester,
            home=folder / "requester",
        )  # fmt: skip
        market = Market(folder, devnet, net)
        market.mint(requester.address, 1000 * TOKEN)
        quote = net.quote(toyjob.training_job())
        net.submit(quote, budget=quote.debit)
        return market

    def mint(self, to: str, amount: int) -> None:
        outbox = Outbox(self.folder / "mint.sqlite", self.devnet.w3, self.devnet.account("deployer"))
        outbox.send(self.net.contracts.token.mint(Address(to), Wei(amount)), f"mint/{to}/{time.monotonic_ns()}")
        outbox.close()

    def settings(self, amount: int = 1000 * TOKEN, **changes: Any) -> Settings:
        """Of a new home whose account holds so many tokens."""
        self.homes += 1
        name, home = f"worker-{self.homes}", self.folder / f"home-{self.homes}"
        home.mkdir()
        create_account(home / KEYSTORE, "password", key_of(self.devnet.seed, name), work=2)
        (home / "password").write_text("password")
        if amount:
            self.mint(self.devnet.account(name).address, amount)
        given = {
            "rpc": self.devnet.url, "storage": f"dir://{self.folder}/blocks", "max_stake": "all",
            "deployment": str(self.folder / "deployment.json"), "home": str(home), "listen_seconds": 0,
            "password_file": str(home / "password"),
        }  # fmt: skip
        return resolve("worker", **{**given, **changes})


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    made = Market.build(tmp_path)
    yield made
    made.devnet.stop()


def why_while_at_work(market: Market, settings: Settings, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What `worker why` says once the worker of these settings has said something about itself or the job.

    A worker looks at its jobs at each block, and a chain in memory mines none by itself.
    """
    with assemble(settings) as parts:
        between()
        worker, failures = Worker(parts), list[LockstepError]()

        def work() -> None:
            try:
                worker.run()
            except LockstepError as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            deadline = time.monotonic() + 120
            while thread.is_alive() and not (said := notes.read(parts.home)).jobs and said.state in BUSY:
                assert time.monotonic() < deadline, "it says nothing"
                thread.join(0.5)
                market.devnet.mine(1)
            return why_of(open_account(settings)).to_dict()
        finally:
            worker.drain()
            worker.drain()
            thread.join(30)


def told(row: Mapping[str, Any], code: str, now: int, *words: str) -> None:
    """A reason is told whole."""
    assert row["code"] == code, row
    assert row["hint"] not in ("", DEFAULT), row
    assert all(word in row["message"] for word in words), row
    assert (row["next"] or 0) >= now - 2, f"when something comes next: {row}"


POLICIES = {
    "max-stake": ({"max_stake": "1"}, "policy", "--max-stake"),
    "jobs-from": ({"jobs_from": STRANGER}, "policy", "--jobs-from"),
    "min-price": ({"min_price": "1000000000000000"}, "policy", "--min-price"),
    "memory": ({"max_memory_mib": 1}, "unfit", "memory"),
    "stake too low": ({"amount": TOKEN}, "funds", "lock"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("planted", POLICIES)
def test_a_job_that_the_owner_or_the_machine_cannot_take(market: Market, planted: str) -> None:
    changes, code, word = POLICIES[planted]
    found = why_while_at_work(market, market.settings(**changes))
    assert len(found["jobs"]) == 1
    told(found["jobs"][0], code, market.devnet.chain.head.time, word)


def test_a_machine_that_is_too_slow(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(box: JobBox, job: Job, require: Require, chain: ChainPace, *, at_most: float) -> None:
        require(job.params, Pace(1e4, 1e4), chain)

    monkeypatch.setattr(JobBox, "measure", measure)
    (job,) = why_while_at_work(market, market.settings())["jobs"]
    told(job, "unfit", market.devnet.chain.head.time, "train_seconds")


def test_programs_that_end_what_runs_them(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = market.settings()
    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(loading, "memory", lambda: Memory(1 << 10, 1 << 10))
        (job,) = why_while_at_work(market, settings)["jobs"]
        told(job, "crashed", 0, "runs its Programs was ended")
    (again,) = why_while_at_work(market, settings)["jobs"]
    assert again == job, "in the next process, too"


def test_outside_of_its_hours(market: Market) -> None:
    later = datetime.now().astimezone() + timedelta(hours=2)
    found = why_while_at_work(market, market.settings(hours=f"{later.hour}-{(later.hour + 1) % 24}"))
    told(found["state"], "hours", market.devnet.chain.head.time + 3000, "--hours")


@pytest.mark.slow
def test_a_store_that_is_gone(market: Market) -> None:
    shutil.copytree(market.folder / "blocks", market.folder / "served/blocks")
    serve = "from lockstep.cli.storage import storage_app; storage_app()"
    server = subprocess.Popen(
        [sys.executable, "-c", serve, "serve", "--home", str(market.folder / "served")], stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert server.stdout is not None
    ready = json.loads(server.stdout.readline())

    def gone() -> None:
        server.send_signal(signal.SIGKILL)
        server.wait()

    (job,) = why_while_at_work(market, market.settings(storage=ready["multiaddr"]), gone)["jobs"]
    server.stdout.close()
    told(job, "unreachable", market.devnet.chain.head.time)


def test_a_chain_that_does_not_answer(market: Market) -> None:
    settings = market.settings(rpc="http://127.0.0.1:9")
    with pytest.raises(Unreachable) as refused:
        open_account(settings)
    told(why_without_chain(settings.home_path, refused.value).to_dict()["state"], "unreachable", int(time.time()))


def everywhere(settings: Settings) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """The state of a home by `why`, `status` and as the first reason of `quote`; and their text."""
    account = open_account(settings)
    why, status = why_of(account), status_of(account)
    fees = gas.fees_now(account.contracts.vault.w3)
    (offer,) = offers.offers_of(account, settings, None, fees, tries=False)
    texts = tuple("\n".join(found.lines()) for found in (why, status, offer))
    return why.to_dict()["state"], status.to_dict()["state"], offer.to_dict()["reasons"][0], texts


def test_a_key_that_did_not_open_is_told_by_every_command_afterwards(market: Market) -> None:
    settings = market.settings()
    Path(settings.password_file).write_text("another")
    with pytest.raises(KeyStoreError), assemble(settings):
        pass
    *states, texts = everywhere(settings)
    assert [state["code"] for state in states] == ["key.password"] * 3
    assert all("the password does not open" in text for text in texts)
    assert all("--password-file" in state["hint"] for state in states[:2])


def test_a_full_disk_is_told_by_every_command(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = market.settings()
    with monkeypatch.context() as full:
        full.setattr(explaining.shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
        *states, texts = everywhere(settings)
    assert [state["code"] for state in states] == ["disk_full"] * 3
    assert all("4.1 kB are left on its disk" in text for text in texts), texts
    assert "free some space" in states[0]["hint"]
    assert explaining.trouble_of(open_account(settings)) is None, "it is over"


def test_status_lists_the_jobs_that_the_worker_does_not_join(market: Market) -> None:
    settings = market.settings()
    job = next(iter(open_account(settings).ledger.jobs))
    noted = notes.Notes(settings.home_path)
    noted.refused(job, notes.Note("unreachable", "the storage does not answer"), Seconds(0))
    noted.is_in(notes.WORKING)
    found = status_of(open_account(settings))
    (row,) = found.to_dict()["unjoined"]
    assert (row["job"], row["code"]) == (job.hex(), "unreachable")
    assert f"unjoined   job {short(job)}: the storage does not answer; check --rpc, --storage" in "\n".join(
        found.lines()
    )
    Refusals(settings.home_path).record(job, WrongBits("self-check: step 9 gives another state"))
    found = status_of(open_account(settings))
    assert found.to_dict()["unjoined"] == [], "it is refused, which says more"
    assert "step 9" in "\n".join(found.lines())


def test_an_account_without_coin(market: Market) -> None:
    settings = market.settings()
    account = open_account(settings)
    market.devnet._request("anvil_setBalance", [account.address, "0x0"])
    told(why_of(account).to_dict()["state"], "gas", market.devnet.chain.head.time, "coin")
    told(status_of(account).to_dict()["state"], "gas", market.devnet.chain.head.time, "coin")


# -- what the chain decides


def account_of(world: World, name: str, home: Path) -> Account:
    return Account(world.address(name), world.ledger(), world.contracts, home)


def row_of(world: World, home: Path, name: str = "worker-0") -> dict[str, Any]:
    """The latest round, as that account is told of it."""
    row: dict[str, Any] = why_of(account_of(world, name, home)).to_dict()["rounds"][-1]
    assert row["hint"] not in ("", DEFAULT)
    assert row["means"]
    assert (row["next"]["at"] or 0) >= world.now, row
    return row


def test_other_workers_took_every_slot(tmp_path: Path) -> None:
    world = World.start()
    world.to(Phase.TRAINING)
    with lock.held(tmp_path, "worker"):
        found = why_of(account_of(world, "mallory", tmp_path)).to_dict()
    told(found["jobs"][0], "full", world.now, "2 slots")
    windows = world.params.role.reveal_seconds + world.params.role.attest_seconds
    assert found["jobs"][0]["next"] > world.contracts.market.round(world.job, 0).commit_ends + windows


def revealed_alone(world: World) -> None:
    """Slot 0 commits and reveals in time, and nobody else does."""
    world.to(Phase.TRAINING)
    market, claim = world.contracts.market, world.claim_id(0)
    world.held[claim] = ConstantClaim.of_slot(market.round(world.job, 0).base, world.params.role.zero_carry, 0)
    opened = world.opened(claim)
    world.send(market.commit(world.job, 0, 0, ids.commitment(claim, world.address("worker-0"), opened)), "worker-0")
    world.pass_to(market.round(world.job, 0).commit_ends)
    world.send(market.reveal(world.job, 0, 0, opened), "worker-0")
    world.pass_to(market.round(world.job, 0).attest_ends)


def test_a_round_that_failed_for_too_few_payloads(tmp_path: Path) -> None:
    world = World.start(min_slots=2, max_fail=2)
    revealed_alone(world)
    world.send(world.contracts.market.freeze(world.job, 0, [world.held[world.claim_id(0)].body]), "requester")
    assert row_of(world, tmp_path)["reason"] == "pending", "it is judged and paid all the same"
    assert row_of(world, tmp_path, "worker-1")["reason"] == "absent"


def test_a_slot_of_a_job_of_which_wrong_bits_were_computed(tmp_path: Path) -> None:
    world = World.start()
    world.to(Phase.TRAINING)
    assert row_of(world, tmp_path)["reason"] == "training"
    Refusals(tmp_path).record(world.job, WrongBits("self-check: step 20 gives another state, in round 0, slot 0"))
    row = row_of(world, tmp_path)
    assert (row["reason"], "slot's price" in row["means"]) == ("withheld", True)
    account = account_of(world, "worker-0", tmp_path)
    (job,) = why_of(account).to_dict()["jobs"]
    assert (job["code"], "step 20 gives another state" in job["message"]) == ("wrong_bits", True)
    assert any(
        line.startswith(f"job {short(world.job)}  refused: self-check: step 20") for line in why_of(account).lines()
    )
    assert any(line.startswith("refused ") and "step 20" in line for line in status_of(account).lines())


def test_a_payload_that_the_others_could_not_fetch(tmp_path: Path) -> None:
    world = World.start(slots=3)
    world.to(Phase.ATTESTING)
    market = world.contracts.market
    for slot in (1, 2):
        digest = ids.receipt_hash(world.devnet.w3.eth.chain_id, market.address, world.job, 0, 0, slot, 0b110)
        signature = bytes(world.accounts[f"worker-{slot}"].unsafe_sign_hash(digest).signature)  # type: ignore[arg-type]
        world.send(market.attest(world.job, 0, [Receipt(slot, 0b110, signature)]), f"worker-{slot}")
    world.pass_to(market.round(world.job, 0).attest_ends)
    world.to(Phase.MERGING)
    assert row_of(world, tmp_path)["reason"] == "excluded"


def test_a_claim_that_was_convicted(tmp_path: Path) -> None:
    world = World.start()
    world.to(Phase.MERGING)
    ro = world.contracts.market.round(world.job, 0)
    work, signed = court.Work(world.job, 0, 0, 0, ro.seed, ro.base), []
    for root in (keccak(b"one"), keccak(b"other")):
        said = (root, 2, root, root)
        parts = (work.job, work.round, work.attempt, work.slot, work.seed, work.base, *said)
        digest = ids.claim_digest(world.devnet.w3.eth.chain_id, world.contracts.market.address, parts)
        signature = world.accounts["worker-0"].unsafe_sign_hash(digest).signature  # type: ignore[arg-type]
        signed.append(court.Signed(*said, bytes(signature)))  # type: ignore[arg-type]
    world.send(world.contracts.game.call("equivocate", work, *signed), "verifier")
    row = row_of(world, tmp_path)
    assert row["reason"] == "convicted"
    assert "lockstep doctor" in row["hint"], "before the next round is joined with the same machine"


def test_an_aggregator_that_does_not_merge(tmp_path: Path) -> None:
    world = World.start()
    world.to(Phase.MERGING)
    opens, turn = world.contracts.market.round(world.job, 0).merge_opens, world.params.merge.turn_seconds
    row = row_of(world, tmp_path)
    assert (row["reason"], row["next"]["at"]) == ("unmerged", opens + turn)
    assert row["next"]["what"].startswith("the aggregator merges")
    world.pass_to(opens + turn)
    row = row_of(world, tmp_path)
    assert (row["reason"], row["next"]["at"]) == ("unmerged", opens + 3 * turn)
    assert "since the aggregator did not" in row["next"]["what"]


def test_a_round_that_waits_until_a_merge_is_backed(tmp_path: Path) -> None:
    world = World.start(max_lead=2)
    world.to(Phase.LEAD)
    waits = "the next round starts once stake backs this one's merge"
    assert row_of(world, tmp_path)["next"]["what"].startswith(waits)
    with lock.held(tmp_path, "worker"):
        found = why_of(account_of(world, "mallory", tmp_path))
        told(found.to_dict()["jobs"][0], "unbacked", world.now, "the merge of round 0")
        world.send(world.contracts.market.back(world.job, 0, 1), "aggregator")
        backed = why_of(account_of(world, "mallory", tmp_path))
    told(backed.to_dict()["jobs"][0], "no_round", world.now, "somebody starts it")
    assert row_of(world, tmp_path)["next"]["what"].startswith("paid if nobody convicts")


def test_stake_that_unbonds(tmp_path: Path) -> None:
    world = World.start()
    vault = world.contracts.vault
    world.send(vault.request_unbond(Wei(1000)), "mallory")
    found = why_of(account_of(world, "mallory", tmp_path))
    (note,) = found.to_dict()["account"]
    told(note, "unbonding", world.now + vault.unbond_seconds(), "unbond")
    assert any("to be withdrawn from" in line for line in found.lines())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.TRAINING, Phase.ATTESTING, Phase.MERGING, Phase.LEAD])
def test_the_status_says_what_is_at_stake_until_when(tmp_path: Path, phase: Phase) -> None:
    world = World.start()
    world.to(Phase.SEALING)
    world.to(phase if phase != Phase.JOINING else Phase.SEALING)
    found = status_of(account_of(world, "worker-0", tmp_path))
    (locked,) = found.to_dict()["locks"]
    assert locked["amount"] == str(world.params.role.slot_stake)
    assert locked["until"] == found.until
    promised = found.until
    assert promised is not None
    assert "at stake until" in "\n".join(found.lines())
    why = "\n".join(why_of(account_of(world, "worker-0", tmp_path)).lines())
    assert re.findall(r"\b[0-9a-f]{8,}\b", why) == [short(world.job)], "ids have eight digits for people"
    # And it holds: then the round can be made final, and the stake is free.
    world.to(Phase.LEAD)
    assert world.now <= promised
    world.pass_to(promised)
    world.send(world.contracts.market.finalize(world.job, 0), "requester")
    assert status_of(account_of(world, "worker-0", tmp_path)).to_dict()["locks"] == []


def test_a_claim_that_others_may_stand_on_is_at_stake_until_its_period_is_over(tmp_path: Path) -> None:
    world = World.start(rounds=3, max_lead=3, carry_period=2)
    world.to(Phase.LEAD)
    merged, hold = world.now, longest_hold(world.params)
    assert hold > world.params.windows.challenge_seconds
    assert status_of(account_of(world, "worker-0", tmp_path)).until == merged + hold
    (row,) = status_of(account_of(world, "worker-0", tmp_path)).claims
    assert "paid if nobody convicts and the windows of its carry period are over" in row["next"]["text"]
    assert merged + hold in row["next"].values(), "the time by which"


def test_a_worker_that_runs_says_so_whatever_the_last_one_ended_with(market: Market) -> None:
    settings = market.settings()
    notes.Notes(settings.home_path).is_in(notes.Note("funds", "there was no money"))
    with assemble(settings) as parts:
        worker = Worker(parts)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            deadline = time.monotonic() + PATIENCE
            while why_of(open_account(settings)).state != notes.WORKING and time.monotonic() < deadline:
                time.sleep(0.05)
            assert why_of(open_account(settings)).to_dict()["state"]["code"] == "working"
        finally:
            worker.drain()
            worker.drain()
            thread.join(30)
    assert why_of(open_account(settings)).to_dict()["state"]["code"] == "stopped"
