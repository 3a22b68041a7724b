"""A user's mistakes in commands end with one envelope, the documented exit code and a hint; nothing is half-written."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lockstep.base.amounts import tokens
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import key_of
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.demo.cheats.__main__ import main as cheats
from lockstep.presets import DEVNET
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.runtime.guard import lock
from lockstep.storage import cid_of
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.server import application
from tests.support.memory.devnet import MemoryDevnet
from tests.support.sending import transact
from tests.support.serving import Served

from .conftest import Ended, Lockstep

SOMEBODY = "ab" * 32
"""A job, or a claim, that nobody made."""
PASSWORD = "correct horse"
WALLET = Wei(1_000 * 10**18)


def failed(ended: Ended, code: int, name: str) -> str:
    """Fails unless it ended with that exit code, and an error of that name with a hint; the message."""
    assert (ended.code, ended.error["code"]) == (code, name), ended
    assert "Traceback" not in ended.err
    return ended.error["message"]


# --- before there is a chain -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Desk:
    """A folder from which every program of the market could start, but for the chain, which is down."""

    lockstep: Lockstep
    rpc: str

    def where(self, deployment: str = "deployment.json") -> list[str]:
        """Options that name the chain, the store and the deployment."""
        return ["--rpc", self.rpc, "--storage", f"dir://{Path.cwd()}/blocks", "--deployment", deployment]

    def programs(self, home: str, password: str = "password", deployment: str = "deployment.json") -> list[Ended]:
        """Every command that opens a key and a chain, ended."""
        commands = [
            ["worker", "up", "--max-stake", "100"],
            ["verifier", "up"],
            ["coordinator", "up", "--port", "0"],
            ["train", "withdraw"],
        ]
        options = [*self.where(deployment), "--password-file", password, "--json"]
        return [self.lockstep(*command, *options, "--home", self.home_of(command[0], home)) for command in commands]

    def home_of(self, program: str, home: str) -> str:
        """A copy of `home` for one program."""
        if not Path(program, home).exists() and Path(home).exists():
            shutil.copytree(home, Path(program, home))
        return f"{program}/{home}"

    def replay(self, deployment: str = "deployment.json") -> Ended:
        """Replaying needs no key."""
        return self.lockstep("replay", SOMEBODY, *self.where(deployment), "--json")

    def begun(self, home: str = "home") -> set[str]:
        """Returns the names of files of consequence in a home, and "blocks" if a store was begun."""
        names = {KEYSTORE, "node.key", "outbox.sqlite"}
        homes = [Path(home), *Path.cwd().glob(f"*/{home}")]
        found = {path.name for folder in homes for path in folder.glob("*") if path.name in names}
        return found | ({"blocks"} if list(Path("blocks").rglob("b*fkrei*")) else set())


@pytest.fixture
def desk(lockstep: Lockstep) -> Iterator[Desk]:
    create_account(Path("home") / KEYSTORE, PASSWORD, key_of(0, "somebody"), work=2)
    Path("password").write_text(PASSWORD)
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(Path("deployment.json"))
    with socket.socket() as taken:
        # Bound and not listening: whoever connects is refused, and nobody else can take the port.
        taken.bind(("127.0.0.1", 0))
        yield Desk(lockstep, f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_an_rpc_that_is_down_is_9_for_every_program(desk: Desk) -> None:
    status = desk.lockstep("worker", "status", *desk.where()[:2], *desk.where()[4:], "--home", "home", "--json")
    for ended in (*desk.programs("home"), desk.replay(), status):
        assert desk.rpc in failed(ended, 9, "unreachable")
    assert desk.begun() == {KEYSTORE}
    # The doctor writes to the store, to see that it can be read again.
    options = [*desk.where(), "--home", "home", "--password-file", "password", "--json"]
    examined = desk.lockstep("coordinator", "doctor", *options)
    assert examined.code == 3
    (wrong,) = [c for c in examined.data if not c["ok"] and desk.rpc in c["message"]]
    assert wrong["hint"], "what is wrong with the set-up is named"


def test_a_wrong_password_is_4_for_every_program(desk: Desk) -> None:
    Path("wrong").write_text("battery staple")
    show = desk.lockstep("key", "show", "--home", "home", "--password-file", "wrong", "--json")
    for ended in (*desk.programs("home", password="wrong"), show):
        assert f"home/{KEYSTORE}" in failed(ended, 4, "key.password")
        assert "battery" not in ended.out + ended.err, "no secret is told"
    assert desk.begun() == {KEYSTORE}


def test_a_missing_keystore_or_password_is_4_for_every_program(desk: Desk) -> None:
    for ended in desk.programs("empty"):
        assert f"empty/{KEYSTORE}" in failed(ended, 4, "key")
    for ended in desk.programs("home", password="none"):
        assert "none" in failed(ended, 4, "key")
    assert desk.begun("empty") == set()
    assert desk.begun() == {KEYSTORE}


def test_a_deployment_that_is_missing_is_7_and_garbage_2_for_every_program(desk: Desk) -> None:
    for ended in (*desk.programs("home", deployment="none.json"), desk.replay("none.json")):
        assert "none.json" in failed(ended, 7, "not_found")
    Path("garbage.json").write_text('{"chain_id": 31337, "market": "here"}')
    for ended in (*desk.programs("home", deployment="garbage.json"), desk.replay("garbage.json")):
        assert "garbage.json" in failed(ended, 2, "usage")
    assert desk.begun() == {KEYSTORE}


# --- on a chain -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Town:
    """A market in memory, and the command."""

    lockstep: Lockstep
    devnet: MemoryDevnet
    contracts: Contracts

    def address(self, name: str) -> Address:
        """A party's address."""
        return Address(self.devnet.account(name).address)

    def public(self, deployment: str = "deployment.json") -> list[str]:
        """Options of anybody."""
        return ["--rpc", self.devnet.url, "--storage", f"dir://{Path.cwd()}/blocks", "--deployment", deployment]

    def home(self, name: str) -> list[str]:
        """Options of a party, which has a wallet and a home of its own."""
        if not Path(name).exists():
            create_account(Path(name) / KEYSTORE, PASSWORD, key_of(self.devnet.seed, name), work=2)
            Path(name, "password").write_text(PASSWORD)
            transact(self.devnet, self.contracts.token.mint(self.address(name), WALLET), self.address("deployer"))
        return ["--home", name, "--password-file", f"{name}/password"]

    def untouched(self, name: str) -> tuple[object, ...]:
        """Returns what a refused command leaves as it was: balance, transactions, blocks kept."""
        who, blocks = self.address(name), sorted(path.name for path in Path("blocks").rglob("baf*"))
        return self.contracts.token.balance_of(who), self.devnet.w3.eth.get_transaction_count(who), blocks


@pytest.fixture
def town(lockstep: Lockstep) -> Iterator[Town]:
    with MemoryDevnet() as devnet:
        devnet._request("anvil_autoImpersonateAccount", [True])
        addresses = deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=Seconds(3600))
        addresses.save(Path("deployment.json"))
        yield Town(lockstep, devnet, Contracts.at(devnet.w3, addresses))


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


@pytest.mark.slow
def test_a_job_over_its_budget_is_6_and_within_it_is_opened_and_cancelled(town: Town) -> None:
    Path("texts").mkdir()
    for i in range(4):
        Path(f"texts/{i}.txt").write_text(f"document {i}: " + "words upon words, " * 10)
    Path("job.toml").write_text(JOB)
    where = [*town.public(), *town.home("trainer"), "--json"]
    before = town.untouched("trainer")
    escrow = 2 * (2 * 10**18 + 10**18 // 2)
    debit = escrow + escrow // 2 * (DEVNET.max_lead + 1)
    quoted = town.lockstep("train", "quote", "job.toml", *where).data
    assert (quoted["escrow"], quoted["debit"]) == (str(escrow), str(debit))
    told = failed(
        town.lockstep("train", "run", "job.toml", "--budget", f"{debit - 1}wei", *where), 6, "budget_exceeded"
    )
    assert tokens(debit) in told
    assert tokens(debit - 1) in told
    assert town.untouched("trainer") == before, "nothing stored, nothing sent, nothing paid"
    assert {p.name for p in Path("trainer").iterdir()} == {KEYSTORE, "password"}

    job = town.lockstep("train", "run", "job.toml", "--budget", f"{debit}wei", *where).data["job"]
    status = town.lockstep("train", "status", job, *where).data
    assert (status["status"], status["escrow"]) == ("active", str(escrow))
    failed(town.lockstep("train", "pull", job, "--out", "early", *where), 75, "try_later")
    assert not Path("early").exists()
    assert town.lockstep("train", "cancel", job, *where).data["refunded"] == str(escrow)
    deposit = int(quoted["deposit"])
    assert town.contracts.token.balance_of(town.address("trainer")) == before[0] - deposit, "all the escrow"  # type: ignore[operator]
    transact(town.devnet, town.contracts.market.finish(JobId(bytes.fromhex(job))), town.address("anybody"))
    owed = town.contracts.vault.credits(town.address("trainer"))
    assert owed == deposit, "and the rest is owed when the job is over"
    assert town.lockstep("train", "withdraw", *where).data == {"withdrawn": str(owed)}


def test_what_nobody_made_is_7(town: Town) -> None:
    status = town.lockstep("train", "status", SOMEBODY, *town.public(), *town.home("trainer"), "--json")
    for ended in (town.lockstep("replay", SOMEBODY, *town.public(), "--json"), status):
        assert SOMEBODY in failed(ended, 7, "not_found")


def test_a_deployment_that_is_not_there_is_5(town: Town) -> None:
    here = town.contracts.addresses
    wrong = {
        "not 1": replace(here, chain_id=1), "(vault)": replace(here, vault=Address("0x" + "11" * 20)),
        "another token": replace(here, market=here.token),
    }  # fmt: skip
    for told, addresses in wrong.items():
        addresses.save(Path("wrong.json"))
        assert told in failed(town.lockstep("replay", SOMEBODY, *town.public("wrong.json"), "--json"), 5, "chain")


def test_a_truncated_blob_is_10_in_the_folder_and_through_the_server(town: Town) -> None:
    store = DirectoryStore(Path("blocks").resolve())
    cid = store.put(bytes(range(256)) * 8)
    (path,) = Path("blocks").rglob(cid)
    os.truncate(path, path.stat().st_size // 2)
    with Served(application(store)) as url:
        for place in (store.url, url):
            ended = town.lockstep("storage", "get", cid, "--out", "got", "--storage", place, "--json")
            assert cid in failed(ended, 10, "blob_corrupt")
        failed(town.lockstep("storage", "stat", cid_of(b"nowhere"), "--storage", url, "--json"), 7, "blob_missing")
    assert list(Path.cwd().glob("*got*")) == [], "nothing half-written"


def test_a_worker_that_cannot_start_says_why_by_its_exit_code(town: Town) -> None:
    up = ["worker", "up", "--max-stake", "100", *town.public(), *town.home("w0"), "--json"]
    with lock.held(Path("w0"), "worker"):
        failed(town.lockstep(*up), 8, "guard_refused.locked")
    failed(town.lockstep(*up, "--job", "xyz"), 2, "usage")
    failed(town.lockstep(*up, "--storage", "ftp://x"), 2, "usage")
    with pytest.raises(SystemExit) as left:
        cheats(["kindness", "0", *up])
    assert left.value.code == 2, "no such cheat"


@pytest.mark.slow
def test_every_answer_is_one_envelope(town: Town) -> None:
    """The commands whose success no other test sees with --json."""
    me, where = town.home("trainer"), town.public()
    chain = [*where[:2], *where[4:], *me, "--json"]
    status, earnings, why = (town.lockstep("worker", verb, *chain).data for verb in ("status", "earnings", "why"))
    assert (status["address"], status["claims"], status["games"]) == (town.address("trainer"), [], [])
    assert earnings["earned"] == "0"
    assert [row for row in why["rounds"] if row["slot"] is not None] == []
    assert town.lockstep("coordinator", "migrate", "--home", "idle", "--json").data["revision"]
    examined = town.lockstep("coordinator", "doctor", *where, *town.home("doctor"), "--json").data
    assert [check for check in examined if not check["ok"]] == []
    made = ["--home", "made", "--password-file", "trainer/password", "--json"]
    key = town.lockstep("key", "new", *made, "--backup", "made.json").data
    assert key["address"].startswith("0x")
    shown = town.lockstep("key", "show", *made).data
    assert shown == {"address": key["address"], "node_key": key["node_key"]}
    assert town.lockstep("train", "withdraw", *where, *me, "--json").data == {"withdrawn": "0"}
