"""Workers as processes: a job on Anvil without a coordinator, a kill in the middle of it, and a leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, key_of
from lockstep.chain.events import Event, EventReader
from lockstep.chain.keys import create_account
from lockstep.chain.outbox import Outbox
from lockstep.demo.processes import Lie, command
from lockstep.execution import jobs
from lockstep.execution.jobs import Job, slot_run, trace_root
from lockstep.execution.merging import base_checkpoint
from lockstep.market.ledger import Ledger, Watcher
from lockstep.presets import CHAINS
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Address, Seconds, Seed, Wei
from lockstep.storage import ContentStore, open_store
from tests.support import toyjob
from tests.support.advancing import Passing
from tests.support.waiting import PATIENCE, wait

PASSWORD = "correct horse"
WALLET = Wei(1_000 * 10**18)

FINAL = 64
"""Blocks between Anvil's head and the one that it calls finalized."""

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@dataclass
class Process:
    """A running `lockstep` command."""

    popen: subprocess.Popen[bytes]
    out: Path
    log: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it printed so far; a line in the writing is left out."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("event") == event]

    def wait_for(self, event: str) -> dict[str, Any]:
        wait(lambda: bool(self.named(event)) or self.popen.poll() is not None, f"event {event}")
        assert self.named(event), f"ended with {self.popen.poll()}: {self.log.read_text()[-2000:]}"
        return self.named(event)[0]

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.popen.terminate()
        return self.popen.wait(PATIENCE)

    def leave(self) -> int:
        """SIGTERM twice: whatever is at stake; returns the exit code."""
        self.popen.terminate()
        time.sleep(0.5)
        return self.stop()


@dataclass
class Market:
    """Anvil, contracts, a store; processes end with it."""

    folder: Path
    devnet: Devnet
    contracts: Contracts
    store: ContentStore
    wallet: Wei = WALLET
    """The tokens of whoever is funded."""
    processes: list[Process] = field(default_factory=list)
    passing: Passing = field(init=False)

    def __post_init__(self) -> None:
        self.passing = Passing(self.devnet, self.contracts)

    @staticmethod
    def build(
        folder: Path, chain: ChainTimes = CHAINS["devnet"], *, token: Callable[[Devnet], Address] | None = None,
        wallet: Wei = WALLET,
    ) -> Market:  # fmt: skip
        devnet = Devnet(folder / "chain")
        coin = None if token is None else token(devnet)
        addresses = deploy(devnet.w3, devnet.account("deployer"), coin, unbond_seconds=Seconds(3600), chain=chain)
        addresses.save(folder / "deployment.json")
        store = open_store(f"dir://{folder}/blocks")
        market = Market(folder, devnet, Contracts.at(devnet.w3, addresses), store, wallet)
        market.passing.start()
        return market

    def start(
        self, name: str, arguments: list[str], env: Mapping[str, str] | None = None, lie: Lie | None = None
    ) -> Process:
        number = len(self.processes)
        out, log = self.folder / f"{name}{number}.out", self.folder / f"{name}{number}.log"
        with out.open("wb") as stdout, log.open("wb") as stderr:
            popen = subprocess.Popen(
                command(arguments, lie), stdout=stdout, stderr=stderr,
                stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )  # fmt: skip
        self.processes.append(Process(popen, out, log))
        return self.processes[-1]

    def fund(self, *names: str) -> None:
        deployer = Outbox(self.folder / "deployer.sqlite", self.devnet.w3, self.devnet.account("deployer"))
        token = self.contracts.token
        deployer.send_all(
            [(f"mint/{n}", token.mint(Address(self.devnet.account(n).address), self.wallet)) for n in names]
        )
        deployer.close()

    def submit(self, steps: int = toyjob.STEPS, nonce: int = 0, **changes: Any) -> Job:
        """Publish the toy job and create it."""
        params = toyjob.publish(self.store, steps, **changes)
        self.fund("requester")
        requester = self.devnet.account("requester")
        outbox = Outbox(self.folder / "requester.sqlite", self.devnet.w3, requester)
        permit = self.contracts.token.sign_permit(
            requester, self.contracts.vault.address, Wei(params.escrow + params.deposit), Seconds(self.now() + 3600)
        )
        outbox.send(self.contracts.market.create_with_permit(params, nonce, params.escrow, permit), f"create/{nonce}")
        outbox.close()
        return jobs.load(list(ledger_of(self).jobs)[-1], params, self.store)

    def now(self) -> Seconds:
        return Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
        self.passing.stop()
        self.devnet.stop()


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def homes_of(market: Market, *names: str) -> list[Path]:
    """Funded workers' homes."""
    for name in names:
        create_account(market.folder / name / "keystore.json", PASSWORD, key_of(0, name), work=2)
        (market.folder / name / "password").write_text(PASSWORD)
    market.fund(*names)
    return [market.folder / name for name in names]


def arguments(market: Market, home: Path, *more: str) -> list[str]:
    return [
        "worker", "up", "--rpc", market.devnet.url, "--storage", market.store.url, "--home", str(home),
        "--deployment", str(market.folder / "deployment.json"), "--password-file", str(home / "password"), *more,
    ]  # fmt: skip


def up(market: Market, home: Path, *more: str, lie: Lie | None = None) -> Process:
    process = market.start(home.name, arguments(market, home, *more), lie=lie)
    process.wait_for("ready")
    return process


def asked(market: Market, home: Path, question: str) -> Any:
    """`data` of `lockstep worker <question> --json`."""
    where = ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json"), "--home", str(home)]
    shown = market.start(question, ["worker", question, *where, "--json"])
    assert shown.popen.wait(PATIENCE) == 0, shown.log.read_text()
    return json.loads(shown.out.read_text())["data"]


def ledger_of(market: Market) -> Ledger:
    watcher = Watcher(EventReader(market.devnet.w3, market.contracts.addresses))
    watcher.poll()
    return watcher.ledger


def events_of(market: Market, *names: str) -> list[Event]:
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    return [e for e in reader.poll(reader.start()).events if e.name in names]


def reveals(market: Market) -> list[Event]:
    """Claims that were made public."""
    return [e for e in events_of(market, "Revealed") if e.contract == "JobMarket"]


def replayed(market: Market, job: Job, slot: int, round_: int) -> bytes:
    """The trace root of a slot's claim, from public data alone."""
    ledger = ledger_of(market).jobs[job.id]
    base = base_checkpoint(job, market.store, ledger.records(round_, job.params.role.slots))
    run = slot_run(job, base, Seed(ledger.rounds[round_].seed), round_, slot)
    return trace_root([root for _, _, root in run.states()])


def maps(process: Process) -> str:
    return Path(f"/proc/{process.popen.pid}/maps").read_text()


WITHOUT_AGGREGATOR: dict[str, Any] = {
    **toyjob.UNHURRIED,
    **dict.fromkeys(("reveal_seconds", "attest_seconds", "merge_seconds", "challenge_seconds"), Seconds(300)),
}
"""`--once` leaves after the last window, which `Passing` passes."""
WATCHED = {**WITHOUT_AGGREGATOR, "challenge_seconds": toyjob.UNHURRIED["challenge_seconds"]}
"""Somebody challenges."""
ALONE = {**WITHOUT_AGGREGATOR, "rounds": 2, "max_lead": 2, "slots": 1, "attest_seconds": Seconds(1)}
"""Whoever joins waits for nobody."""


def test_workers_finish_a_job_among_themselves_though_one_is_killed_mid_round(market: Market) -> None:
    homes = homes_of(market, "w0", "w1", "w2")
    workers = [up(market, home, "--once") for home in homes]
    job = market.submit(steps=300, rounds=2, max_lead=2, **WITHOUT_AGGREGATOR)
    work = list(homes[1].glob("work/*/progress"))
    # Looked for often and killed at once: the round's steps take less than a second.
    wait(lambda: bool(list(homes[1].glob("work/*/progress"))), "progress of w1", every=0.01)
    workers[1].popen.send_signal(signal.SIGKILL)
    workers[1].popen.wait()
    assert work == [], "nothing was trained before the round was sealed"
    assert not workers[0].named("lie"), "an honest worker declares no lie"
    assert "torch" not in maps(workers[0]), "a worker runs without torch"
    assert not workers[1].named("trained"), "killed in the middle of its round"
    workers[1] = up(market, homes[1], "--once")
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0, 0]
    assert workers[1].named("trained")[0]["resumed_from"] > 0, "it went on where it was killed"

    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert books.escrow == books.paid + books.refunded
    assert books.paid == 2 * job.params.round_pay, "every slot and every merge is paid"
    assert len(reveals(market)) == 6
    for e in reveals(market):
        assert e.trace_root == replayed(market, job, e.slot, e.round), f"round {e.round}, slot {e.slot}"
    earned = sum(int(w.named("done")[0]["earned"]) for w in workers)
    assert earned == books.paid
    why, sums = (asked(market, homes[1], question) for question in ("why", "earnings"))
    assert [r["reason"] for r in why["rounds"]] == ["paid", "paid"], "why says so"
    assert sums["earned"] == workers[1].named("done")[0]["earned"]


class Challenger:
    """An account that challenges: funded and staked."""

    def __init__(self, market: Market, name: str) -> None:
        self.market = market
        account = market.devnet.account(name)
        self.address = Address(account.address)
        market.fund(name)
        self.outbox = Outbox(market.folder / f"{name}.sqlite", market.devnet.w3, account)
        vault, token = market.contracts.vault, market.contracts.token
        permit = token.sign_permit(account, vault.address, WALLET, Seconds(market.now() + 3600))
        self.outbox.send(vault.deposit_with_permit(WALLET, permit), "deposit")


def test_a_draining_worker_reveals_what_it_joined_and_leaves_once_the_end_of_its_stake_is_final(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    worker = market.start("w0", arguments(market, home), env={"LOCKSTEP_FINALITY": "finalized"})
    me = Address(worker.wait_for("ready")["address"])
    job = market.submit(**{**ALONE, "rounds": 1, "max_lead": 1})
    wait(lambda: bool(events_of(market, "Sealed")), "seal")
    worker.popen.terminate()
    market.devnet.mine(FINAL + 1)
    worker.wait_for("revealed")
    market.devnet.advance(Seconds(300))
    worker.wait_for("done")
    market.devnet.stop_mining()
    assert market.contracts.market.job(job.id).status == JobStatus.DONE
    (over,) = [e.block for e in events_of(market, "Unlocked") if e.account == me][-1:]
    stopped = int(market.devnet.w3.eth.block_number)
    assert over + FINAL - 1 > stopped, "it is not final yet"
    market.devnet.mine(over + FINAL - 1 - stopped)
    # Read where `status` reads it: a command is slower than the state, which says soon that no block comes.
    noted = home / "notes.json"
    wait(lambda: "relied on once that block is finalized" in noted.read_text(), "state of who drains", every=0.05)
    assert worker.popen.poll() is None, "a block too few"
    market.devnet.mine(stopped + FINAL - int(market.devnet.w3.eth.block_number))
    assert worker.popen.wait(PATIENCE) == 0
