"""What a user does wrong, by real commands: one envelope, the documented exit code, a hint, nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import torch

from lockstep.base.amounts import tokens
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.devnet import key_of
from lockstep.chain.events import EventReader
from lockstep.chain.keys import create_account
from lockstep.chain.outbox import Outbox
from lockstep.execution.merging import judge_payloads
from lockstep.market.ledger import Watcher
from lockstep.presets import DEVNET
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.market.ids import job_id
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import Address, Cid, JobId, Seconds
from lockstep.runtime.identity import NodeKey
from lockstep.runtime.requests import LIFETIME
from lockstep.storage import cid_of
from lockstep.storage.payload import store_payload
from lockstep.training.data import Texts, byte_corpus
from lockstep.training.job import Batch, training_job
from lockstep.training.strategies import diloco
from tests.support import broken, toyjob
from tests.support.waiting import PATIENCE, wait

from .byhand import PASSWORD, WALLET, Market, Process

pytestmark = [pytest.mark.slow, pytest.mark.chain]

SOMEBODY = "ab" * 32
"""A job, or a claim, that nobody made."""


@dataclass(frozen=True)
class Ended:
    """A command with --json that ran to its end."""

    command: str
    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The one line on stdout."""
        assert "Traceback" not in self.err, self.err
        assert self.out.count("\n") == 1, (self.command, self.out, self.err)
        found: dict[str, Any] = json.loads(self.out)
        assert found["schema"] == "lockstep/1"
        return found

    def failed(self, code: int, name: str) -> str:
        """Fails unless it ended with that exit code, and an error of that name with a hint; the message."""
        assert self.code == code, (self.command, self.code, self.out, self.err[-2000:])
        assert self.envelope["ok"] is False
        error = self.envelope["error"]
        assert error["code"] == name, (self.command, error)
        assert error["hint"], (self.command, "says what to do")
        return str(error["message"])

    def succeeded(self) -> Any:
        """Fails unless it ended with 0 and data; the data."""
        assert self.code == 0, (self.command, self.code, self.out, self.err[-2000:])
        assert self.envelope["ok"] is True
        return self.envelope["data"]


def together(folder: Path, *commands: Sequence[str | Path]) -> list[Ended]:
    """Run commands with --json side by side, without settings of this machine; what they told, in their order."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")} | {"HOME": str(folder / "nobody")}
    running = []
    for command in commands:
        words = [str(word) for word in command]
        popen = subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", *words, "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder,
        )  # fmt: skip
        running.append((" ".join(words[:2]), popen))
    ended = []
    for name, popen in running:
        out, err = popen.communicate(timeout=PATIENCE)
        ended.append(Ended(name, popen.returncode, out, err))
    return ended


# --- before there is a chain -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Desk:
    """A folder from which every program of the market could start, but for the chain, which is down."""

    folder: Path
    rpc: str

    def where(self, deployment: str = "deployment.json") -> list[str]:
        """Where the world is."""
        return ["--rpc", self.rpc, "--storage", f"dir://{self.folder}/blocks", "--deployment", deployment]

    def programs(self, home: str, password: str = "password", deployment: str = "deployment.json") -> list[list[str]]:
        """Every command that opens a key and a chain."""
        commands = [
            ["worker", "up", "--max-stake", "100"],
            ["verifier", "up"],
            ["coordinator", "up", "--port", "0"],
            ["train", "withdraw"],
        ]
        # Each in a home of its own: side by side, two programs of one home would refuse each other.
        options = [*self.where(deployment), "--password-file", password]
        return [[*command, *options, "--home", self.home_of(command[0], home)] for command in commands]

    def home_of(self, program: str, home: str) -> str:
        """A copy of `home` for one program."""
        if not (self.folder / program / home).exists() and (self.folder / home).exists():
            shutil.copytree(self.folder / home, self.folder / program / home)
        return f"{program}/{home}"

    def replay(self, deployment: str = "deployment.json") -> list[str]:
        """Replaying needs no key."""
        return ["replay", SOMEBODY, *self.where(deployment)]

    def begun(self, home: str = "home") -> set[str]:
        """What of consequence lies in a home, and whether a store was begun."""
        names = {"keystore.json", "node.key", "outbox.sqlite"}
        homes = [self.folder / home, *self.folder.glob(f"*/{home}")]
        found = {path.name for folder in homes for path in folder.glob("*") if path.name in names}
        return found | ({"blocks"} if list((self.folder / "blocks").rglob("b*fkrei*")) else set())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    create_account(tmp_path / "home/keystore.json", PASSWORD, key_of(0, "somebody"), work=2)
    (tmp_path / "password").write_text(PASSWORD)
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(tmp_path / "deployment.json")
    with socket.socket() as taken:
        # Bound and not listening: whoever connects is refused, and nobody else can take the port.
        taken.bind(("127.0.0.1", 0))
        yield Desk(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert not (tmp_path / "nobody").exists(), "nothing is written where nobody said"


def test_an_rpc_that_is_down_is_9_for_every_program(desk: Desk) -> None:
    status = ["worker", "status", *desk.where()[:2], *desk.where()[4:], "--home", "home"]
    doctor = ["coordinator", "doctor", *desk.where(), "--home", "home", "--password-file", "password"]
    for ended in together(desk.folder, *desk.programs("home"), desk.replay(), status):
        assert desk.rpc in ended.failed(9, "unreachable"), ended.command
    assert desk.begun() == {"keystore.json"}
    # The doctor writes to the store, to see that it can be read again.
    (examined,) = together(desk.folder, doctor)
    assert examined.code == 3
    (wrong,) = [c for c in examined.envelope["data"] if not c["ok"] and desk.rpc in c["message"]]
    assert wrong["hint"], "what is wrong with the set-up is named"


def test_a_wrong_password_is_4_for_every_program(desk: Desk) -> None:
    (desk.folder / "wrong").write_text("battery staple")
    show = ["key", "show", "--home", "home", "--password-file", "wrong"]
    for ended in together(desk.folder, *desk.programs("home", password="wrong"), show):
        assert "home/keystore.json" in ended.failed(4, "key.password"), ended.command
        assert "battery" not in ended.out + ended.err, "no secret is told"
    assert desk.begun() == {"keystore.json"}


def test_a_missing_keystore_or_password_is_4_for_every_program(desk: Desk) -> None:
    for ended in together(desk.folder, *desk.programs("empty")):
        assert "empty/keystore.json" in ended.failed(4, "key"), ended.command
    for ended in together(desk.folder, *desk.programs("home", password="none")[-2:]):
        assert "none" in ended.failed(4, "key"), ended.command
    assert desk.begun("empty") == set()
    assert desk.begun() == {"keystore.json"}


def test_a_deployment_that_is_missing_is_7_and_garbage_2(desk: Desk) -> None:
    for ended in together(desk.folder, *desk.programs("home", deployment="none.json"), desk.replay("none.json")):
        assert "none.json" in ended.failed(7, "not_found"), ended.command
    (desk.folder / "garbage.json").write_text('{"chain_id": 31337, "market": "here"}')
    garbage = desk.programs("home", deployment="garbage.json")
    for ended in together(desk.folder, garbage[0], garbage[3], desk.replay("garbage.json")):
        assert "garbage.json" in ended.failed(2, "usage"), ended.command
    assert desk.begun() == {"keystore.json"}


class Sorted(torch.nn.Module):
    """A layer that no Program can express."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, C] -> [B, T, C]."""
        return x * torch.linalg.matrix_exp(x @ x.mT).sum()


class Reader(torch.nn.Module):
    """A language model with that layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 8)
        self.blocks = torch.nn.ModuleList([torch.nn.LayerNorm(8), Sorted()])
        self.head = torch.nn.Linear(8, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """i64 [B, T] -> [B, T, 256]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_model_that_cannot_be_lowered_is_named_with_module_and_line() -> None:
    data = byte_corpus(Texts(b"four legs good " * 20, b"two legs bad " * 20), row_tokens=9).train
    with pytest.raises(LoweringError) as refused:
        training_job(
            Reader(),
            diloco.DiLoCo(inner_steps=2),
            data,
            batch=Batch(rows=2, row_length=9),
            rounds=1,
            slots=2,
            min_slots=2,
            loss=lambda model, rows: model(rows).mean(),
        )
    error = refused.value
    assert (error.exit_code, error.code) == (2, "lowering")
    assert "blocks.1" in error.message, "the module"
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "matrix_exp(x" in text)
    assert f"test_bad_input.py:{line}" in error.message, error.message
    assert "matrix_exp" in error.message
    assert error.hint


# --- on a chain -------------------------------------------------------------------------------------------


@dataclass
class Town:
    """A market on Anvil with a coordinator; its workers do what a test tells them."""

    market: Market
    coordinator: Process
    url: str

    def where(self, name: str) -> list[str]:
        """Options of a funded party."""
        market, home = self.market, self.market.folder / name
        if not home.exists():
            create_account(home / "keystore.json", PASSWORD, key_of(0, name), work=2)
            (home / "password").write_text(PASSWORD)
            mint = market.contracts.token.mint(self.address(name), WALLET)
            outbox = Outbox(market.folder / "deployer.sqlite", market.devnet.w3, market.devnet.account("deployer"))
            outbox.send(mint, f"mint/{name}")
            outbox.close()
        key = ["--home", str(home), "--password-file", str(home / "password")]
        return [*self.public(), *key]

    def public(self) -> list[str]:
        """Options of anybody."""
        market = self.market
        deployment = str(market.folder / "deployment.json")
        return ["--rpc", market.devnet.url, "--storage", market.store.url, "--deployment", deployment]

    def address(self, name: str) -> Address:
        """Of a party's account."""
        return Address(self.market.devnet.account(name).address)

    def untouched(self, name: str) -> tuple[object, ...]:
        """What a refused command must leave as it was: balance, transactions, blocks kept."""
        market, who = self.market, self.address(name)
        blocks = sorted(path.name for path in (market.folder / "blocks").rglob("b*"))
        return market.contracts.token.balance_of(who), market.devnet.w3.eth.get_transaction_count(who), blocks

    def together(self, *commands: Sequence[str | Path]) -> list[Ended]:
        """Run commands side by side."""
        return together(self.market.folder, *commands)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    market = Market.build(tmp_path_factory.mktemp("town"))
    try:
        coordinator = market.coordinator()
        yield Town(market, coordinator, coordinator.wait_for("ready")["url"])
    finally:
        market.close()


JOB = """
texts = "texts"
rounds = 2
slots = 2
min_slots = 1
[model]
layers = 1
heads = 2
width = 32
context = 16
[batch]
rows = 2
[strategy]
inner_steps = 2
"""


def test_a_job_over_its_budget_is_6_and_within_it_runs(town: Town) -> None:
    folder = town.market.folder
    (folder / "texts").mkdir()
    for i in range(4):
        (folder / f"texts/{i}.txt").write_text(f"document {i}: " + "words upon words, " * 10)
    (folder / "job.toml").write_text(JOB)
    where = town.where("trainer")
    before = town.untouched("trainer")
    escrow = 2 * (2 * 10**18 + 10**18 // 2)
    debit = escrow + escrow // 2 * (DEVNET.max_lead + 1)
    quoted, refused = town.together(
        ["train", "quote", "job.toml", *where],
        ["train", "run", "job.toml", "--budget", f"{debit - 1}wei", *where],
    )  # fmt: skip
    assert quoted.succeeded()["escrow"] == str(escrow)
    assert quoted.succeeded()["debit"] == str(debit)
    told = refused.failed(6, "budget_exceeded")
    assert tokens(debit) in told
    assert tokens(debit - 1) in told
    assert town.untouched("trainer") == before, "nothing stored, nothing sent, nothing paid"
    assert {p.name for p in (folder / "trainer").iterdir()} == {"keystore.json", "password"}

    (made,) = town.together(["train", "run", "job.toml", "--budget", f"{debit}wei", *where])
    job = made.succeeded()["job"]
    status, early = town.together(
        ["train", "status", job, *where], ["train", "pull", job, "--out", "early", *where]
    )  # fmt: skip
    assert (status.succeeded()["status"], status.succeeded()["escrow"]) == ("active", str(escrow))
    early.failed(75, "try_later")
    assert not (folder / "early").exists()
    (cancelled,) = town.together(["train", "cancel", job, *where])
    assert cancelled.succeeded()["refunded"] == str(escrow)
    deposit = int(quoted.succeeded()["deposit"])
    assert town.market.contracts.token.balance_of(town.address("trainer")) == before[0] - deposit, "all the escrow"
    vault, market = town.market.contracts.vault, town.market.contracts.market
    town.market.workers[0].send(market.finish(JobId(bytes.fromhex(job))), "finish")
    assert vault.credits(town.address("trainer")) == deposit, "and the rest is owed when the job is over"


def test_what_nobody_made_is_7(town: Town) -> None:
    where = town.where("trainer")
    for ended in town.together(["replay", SOMEBODY, *town.public()], ["train", "status", SOMEBODY, *where]):
        assert SOMEBODY in ended.failed(7, "not_found")


def test_a_deployment_that_is_not_there_is_5(town: Town) -> None:
    folder = town.market.folder
    here = Addresses.load(folder / "deployment.json")
    replace(here, chain_id=1).save(folder / "chain.json")
    replace(here, vault=Address("0x" + "11" * 20)).save(folder / "vault.json")
    replace(here, market=here.token).save(folder / "mixed.json")
    files = ("chain.json", "vault.json", "mixed.json")
    ended = town.together(*(["replay", SOMEBODY, *town.public()[:-1], str(folder / name)] for name in files))
    told = [one.failed(5, "chain") for one in ended]
    assert "not 1" in told[0]
    assert "(vault)" in told[1]
    assert "another token" in told[2]


def test_a_program_that_could_not_be_defended_is_refused_by_worker_and_coordinator(town: Town) -> None:
    market = town.market
    params = broken.publish(market.store, aggregator=town.address("coordinator"))
    requester = market.devnet.account("requester")
    outbox = Outbox(market.folder / "careless.sqlite", market.devnet.w3, requester)
    outbox.submit(
        market.contracts.token.approve(market.contracts.vault.address, params.escrow + params.deposit), "approve"
    )
    outbox.wait("approve")
    outbox.send(market.contracts.market.create(params, 99, params.escrow), "create")
    outbox.close()
    addresses = market.contracts.addresses
    job = job_id(addresses.chain_id, addresses.market, Address(requester.address), 99, params)

    worker = market.start("refuser", ["worker", "up", *town.where("refuser"), "--job", job.hex()])
    refused = worker.wait_for("refused")
    assert (refused["job"], refused["code"]) == (job.hex(), "program_invalid")
    assert "step: op 1 (map scale tokens" in refused["message"]
    assert "33 instructions" in refused["message"]
    wait(lambda: "a job is refused" in town.coordinator.log.read_text(), "refusal by the coordinator")
    assert "33 instructions" in town.coordinator.log.read_text()
    voided = worker.wait_for("voided")
    assert (voided["job"], voided["rule"]) == (job.hex(), "instruction_count")
    wait(lambda: market.contracts.market.job(job).status == JobStatus.VOID, "the proof on chain")
    assert worker.stop() == 0, "a job that is refused is no failure"
    assert not worker.named("joined")
    assert market.contracts.market.job(job).started == 0, "nobody works for it"


def test_a_payload_of_another_shape_or_truncated_is_left_out_and_not_paid(town: Town) -> None:
    market = town.market
    job = market.submit(rounds=1, max_lead=1, min_slots=1, attest_seconds=120)
    market.workers[0].send(market.contracts.market.start_round(job.id, 0), "start")
    for worker in market.workers:
        worker.join(job, 0)
    market.wait_phase(job, 0, Phase.TRAINING)
    for worker in market.workers:
        worker.commit(job, 0, job.genesis)
    _, misshapen, cut = (worker.claims[0][0].payload_cid for worker in market.workers)
    claimed, claim = market.workers[1].claims[0]
    other = store_payload(market.store, [np.zeros(toyjob.SIZE + 1, np.float32)])
    market.workers[1].claims[0] = replace(claimed, payload_cid=other), claim
    truncate(market, cut)
    for worker in market.workers:
        worker.reveal(job, 0)
    # What the store says of each, in the words of a receipt.
    watcher = Watcher(EventReader(market.devnet.w3, market.contracts.addresses))
    watcher.poll()
    payloads = watcher.ledger.jobs[job.id].rounds[0].payloads
    decoded = [slot for slot, report, _ in judge_payloads(job, market.store, payloads, {}) if report is Report.DECODED]
    for worker in market.workers:
        worker.attest(job, 0, decoded)
    market.wait_phase(job, 0, Phase.LEAD)
    assert market.contracts.market.round(job.id, 0).mask == 0b001
    assert market.store.has(misshapen), "what it should have named is there: the claim's own CID counts"
    market.devnet.advance(job.params.windows.challenge_seconds)
    wait(lambda: market.contracts.market.job(job.id).status == JobStatus.DONE, "end of the job")
    books = market.contracts.market.job(job.id)
    watcher.poll()
    paid = [p.amount for p in watcher.ledger.pays if p.job == job.id]
    assert sum(paid) == job.params.role.slot_price + job.params.merge.price, "two slots are not paid"
    assert books.paid == job.params.round_pay, "their prices are burned: to leave them out saves nothing"
    assert books.escrow == books.paid + books.refunded


def truncate(market: Market, cid: Cid) -> None:
    """Cut the block of a payload in half, as a full disk would."""
    (path,) = (market.folder / "blocks").rglob(cid)
    os.truncate(path, path.stat().st_size // 2)


def test_a_truncated_blob_is_10_in_the_folder_and_through_the_server(town: Town) -> None:
    market = town.market
    cid = market.store.put(bytes(range(256)) * 8)
    truncate(market, cid)
    server = market.start("storage", ["storage", "serve", "--home", str(market.folder / "blocks")])
    url = server.wait_for("ready")["url"]
    ended = town.together(
        ["storage", "get", cid, "--out", "one", "--storage", market.store.url],
        ["storage", "get", cid, "--out", "two", "--storage", url],
        ["storage", "stat", cid_of(b"nowhere"), "--storage", url],
    )
    for got in ended[:2]:
        assert cid in got.failed(10, "blob_corrupt")
    ended[2].failed(7, "blob_missing")
    assert list(market.folder.glob("*one*")) + list(market.folder.glob("*two*")) == [], "nothing half-written"
    assert server.stop() == 0


def test_unsigned_expired_and_replayed_requests_are_401_401_and_409(town: Town) -> None:
    market, path, body = town.market, "/api/v1/blobs", b"four legs good"
    node, me = market.workers[0].node, market.workers[0].account.address
    known = f"0x{node.public.hex()}"
    wait(lambda: known in httpx2.get(town.url + "/api/v1/nodes").text, "the node in the index")

    def posted(headers: dict[str, str], url: str) -> tuple[int, str]:
        answer = httpx2.post(url + path, content=body, headers=headers)
        if answer.status_code == 201:
            return 201, answer.json()["cid"]
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["hint"]
        return answer.status_code, answer.json()["code"]

    def signed(age: int = 0, key: NodeKey = node, account: str = me) -> dict[str, str]:
        return key.sign_request(account, "POST", path, body, now=Seconds(market.now() - age))

    assert posted({}, town.url) == (401, "auth.unsigned")
    assert posted(signed(age=LIFETIME + 30), town.url) == (401, "auth.expired")
    assert posted(signed(key=NodeKey(bytes(32))), town.url) == (401, "auth.signature")
    assert posted(signed(account="0x" + "11" * 20), town.url) == (401, "auth.unknown")
    assert not market.store.has(cid_of(body)), "what is refused is not stored"
    headers = signed()
    assert posted(headers, town.url) == (201, cid_of(body))
    assert posted(headers, town.url) == (409, "auth.replayed")

    psutil.wait_procs(town.coordinator.kill(), timeout=PATIENCE)
    again = market.coordinator()
    assert posted(headers, again.wait_for("ready")["url"]) == (409, "auth.replayed"), "after kill -9 too"
    town.coordinator, town.url = again, again.wait_for("ready")["url"]


def test_every_answer_is_one_envelope(town: Town) -> None:
    """The commands whose success no other test sees with --json."""
    trainer, idle = town.where("trainer"), str(town.market.folder / "idle")
    reading = [o for i, o in enumerate(trainer) if o != "--storage" and trainer[max(i - 1, 0)] != "--storage"]
    made = ["--home", "made", "--password-file", "trainer/password"]
    # Deposits of the jobs of other tests here.
    owed = town.market.contracts.vault.credits(town.address("trainer"))
    ended = town.together(
        ["worker", "status", *reading],
        ["worker", "earnings", *reading],
        ["worker", "why", *reading],
        ["coordinator", "migrate", "--home", idle],
        ["coordinator", "doctor", *town.where("doctor")],
        ["key", "new", *made, "--backup", "made.json"],
        ["train", "withdraw", *trainer],
    )
    status, earnings, why, migrated, examined, key, withdrawn = (one.succeeded() for one in ended)
    assert (status["address"], status["claims"], status["games"]) == (town.address("trainer"), [], [])
    assert earnings["earned"] == "0"
    assert [row for row in why["rounds"] if row["slot"] is not None] == []
    assert migrated["revision"]
    assert all(check["ok"] for check in examined)
    assert key["address"].startswith("0x")
    assert withdrawn == {"withdrawn": str(owed)}
    (shown,) = town.together(["key", "show", *made])
    assert shown.succeeded() == {"address": key["address"], "node_key": key["node_key"]}
