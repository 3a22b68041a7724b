"""`worker quote`, `fund`, `service`, `support-bundle`: what is told and written, and what is not."""

from __future__ import annotations

import base64
import configparser
import json
import stat
import tarfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from lockstep.base.amounts import tokens
from lockstep.base.machine import readable
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import key_of
from lockstep.chain.gas import WORKER_ROUND, gas_of
from lockstep.chain.keys import KEYSTORE, NODE_KEY, create_account, create_node_key
from lockstep.chain.outbox import Outbox
from lockstep.client import connect
from lockstep.execution.box.loading import JobBox
from lockstep.execution.capacity import Pace
from lockstep.execution.rates import PRICED_OPERATIONS
from lockstep.numerics import cuda
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.protocol.errors import WrongBits
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.runtime.guard import lock
from lockstep.runtime.refusals import Refusals
from tests.support import toyjob
from tests.support.memory.devnet import MemoryDevnet
from tests.support.rpc_proxy import RpcProxy
from tests.support.units import faults
from worker import offers

from .conftest import Lockstep

TOKEN = 10**18
PASSWORD = "pass/word with+spaces & ünicode"
URL_KEY = "0123456789abcdefSECRET"


@dataclass
class Market:
    """A chain in memory with one open job, and a worker's home without money."""

    devnet: MemoryDevnet
    address: str
    job: str
    home: Path
    where: list[str]

    @property
    def with_key(self) -> list[str]:
        """For commands that sign."""
        return [*self.where, "--password-file", str(self.home / "password")]


@pytest.fixture
def market(tmp_path: Path, lockstep: Lockstep) -> Iterator[Market]:
    """`lockstep` first: it sets the environment that `connect` reads."""
    folder = tmp_path / "market"
    folder.mkdir()
    with MemoryDevnet() as devnet:
        requester = devnet.account("requester")
        addresses = deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=Seconds(3600))
        addresses.save(folder / "deployment.json")
        net = connect(
            rpc=devnet.url, storage=f"dir://{folder}/blocks", deployment=addresses, account=requester,
            home=folder / "requester",
        )  # fmt: skip
        outbox = Outbox(folder / "mint.sqlite", devnet.w3, devnet.account("deployer"))
        outbox.send(net.contracts.token.mint(Address(requester.address), Wei(1000 * TOKEN)), "mint")
        outbox.close()
        offered = net.quote(toyjob.training_job())
        job = net.submit(offered, budget=offered.debit).id.hex()
        home = folder / "worker"
        home.mkdir()
        create_account(home / KEYSTORE, PASSWORD, key_of(devnet.seed, "me"), work=2)
        create_node_key(home / NODE_KEY)
        (home / "password").write_text(PASSWORD + "\n")
        where = ["--rpc", devnet.url, "--deployment", str(folder / "deployment.json"), "--home", str(home)]
        from eth_account import Account

        yield Market(devnet, Account.from_key(key_of(devnet.seed, "me")).address, job, home, where)


def quoted(lockstep: Lockstep, market: Market, *more: str, code: int = 0) -> list[dict[str, object]]:
    storage = ["--storage", f"dir://{market.home.parent}/blocks"]
    ended = lockstep("worker", "quote", *more, *market.where, *storage, "--json")
    assert ended.code == code, ended.err
    return ended.data  # type: ignore[no-any-return]


# -- a chain of another kind


READS = (
    "contracts addresses", "worker status", "worker earnings", "worker why", "worker owner show", "worker fund",
    "worker quote --no-try", "train list", "train status JOB", "dispute list",
)  # fmt: skip
"""Commands of each family that reads a chain."""


@pytest.mark.slow
def test_commands_read_and_write_a_chain_whose_blocks_and_receipts_are_terse(
    lockstep: Lockstep, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = market.home.parent
    for name, value in {
        "deployment": folder / "deployment.json", "home": market.home, "storage": f"dir://{folder}/blocks",
        "password_file": market.home / "password",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"LOCKSTEP_{name.upper()}", str(value))
    with RpcProxy(market.devnet.url) as proxy:
        proxy.terse = True
        monkeypatch.setenv("LOCKSTEP_RPC", proxy.url)
        assert lockstep("worker", "fund", "--max-stake", "100", "--from-faucet", "--json").code == 0
        for command in READS:
            named = command.replace("JOB", market.job).split()
            told = []
            for url in (market.devnet.url, proxy.url):
                monkeypatch.setenv("LOCKSTEP_RPC", url)
                ended = lockstep(*named, "--json")
                assert ended.code in (0, 75), (command, ended.out)
                told.append(ended.data)
            # A quote times this machine.
            assert told[0] == told[1] or "quote" in command, command
        for verb, amount, free in (("stake", "7", 7), ("unstake", "2", 5)):
            ended = lockstep("worker", verb, amount, "--json")
            assert ended.data["holdings"]["free"] == str(free * TOKEN)
        assert lockstep("worker", "unstake", "9", "--json").error["code"] == "funds"


# -- quote


def test_a_quote_says_what_may_be_earned_and_lost_and_why_not(lockstep: Lockstep, market: Market) -> None:
    (offer,) = quoted(lockstep, market, "--no-try", "--gas-price", "2")
    terms = toyjob.TOY_TERMS
    assert (offer["job"], offer["joins"]) == (market.job, False)
    earns, risks, gas, machine = (offer[k] for k in ("earns", "risks", "gas", "machine"))
    assert isinstance(earns, dict)
    assert isinstance(risks, dict)
    assert isinstance(gas, dict)
    assert isinstance(machine, dict)
    assert earns["slot_price"] == str(terms.slot_price)
    assert int(earns["price"]) == terms.slot_price * PRICED_OPERATIONS // int(machine["slot_operations"])
    assert (risks["slot_stake"], risks["merge_stake"]) == (str(terms.slot_stake), str(terms.merge_stake))
    assert risks["locked_seconds"] > terms.challenge_seconds + terms.train_seconds
    assert (gas["round_cost"], gas["stated"]) == (str(2 * 10**9 * gas_of(WORKER_ROUND)), True)
    assert machine["how"] == "estimated"
    hour = int(earns["hour_paid"]) / terms.slot_price
    assert hour == pytest.approx(3600 / machine["round_seconds"], rel=1e-6), "a slot in every round"
    # An account without tokens and coin: told by the codes of `why`.
    assert {r["code"] for r in offer["reasons"]} == {"funds", "gas"}  # type: ignore[attr-defined]


def test_a_step_is_measured_unless_that_is_not_wanted(lockstep: Lockstep, market: Market) -> None:
    (offer,) = quoted(lockstep, market, market.job[:8])
    assert offer["machine"]["how"] == "measured"  # type: ignore[index]
    refused = quoted(
        lockstep, market, "--no-try", "--jobs-from", "0x" + "c" * 40, "--min-price", "1000000000000000",
        "--max-memory", "1", "--max-stake", "1",
    )  # fmt: skip
    assert {r["code"] for r in refused[0]["reasons"]} == {"policy", "unfit", "funds", "gas"}  # type: ignore[attr-defined]
    text = lockstep("worker", "quote", "--no-try", *market.where, "--storage", f"dir://{market.home.parent}/blocks").out
    assert "not now  funds: " in text
    assert "for 10^15 operations" in text
    drawn = toyjob.STEPS * toyjob.TERMS
    assert f"{tokens(toyjob.TOY_TERMS.slot_price * 10**6 // drawn, 4)} for a million tokens" in text
    assert f"trains on {drawn:,} tokens a round" in text


def test_a_quote_for_a_device_tells_what_lies_there(
    lockstep: Lockstep, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Emulator()
    monkeypatch.setattr(cuda, "open_device", lambda label: device)
    monkeypatch.setattr(offers, "estimated", lambda *_: Pace(0.001, 0.001))
    (plain,), (there,) = (quoted(lockstep, market, "--no-try", "--device", d) for d in ("cpu", "emulated"))
    assert "device_memory" not in plain["machine"]  # type: ignore[operator]
    need = there["machine"]["device_memory"]  # type: ignore[index]
    assert need > 4 * toyjob.ROWS * toyjob.TERMS, "the rows are there, too"
    assert there["machine"]["memory"] < plain["machine"]["memory"]  # type: ignore[index]
    storage = ["--storage", f"dir://{market.home.parent}/blocks"]
    text = lockstep("worker", "quote", "--no-try", "--device", "emulated", *market.where, *storage).out
    assert f", {readable(need)} of the device's" in text
    device._size = need - 1
    (lacking,) = quoted(lockstep, market, "--no-try", "--device", "emulated")
    (reason,) = [r for r in lacking["reasons"] if r["code"] == "unfit"]  # type: ignore[attr-defined]
    assert f"needs {readable(need)} of memory, emulated has" in reason["message"]


def test_wrong_bits_are_told_everywhere_until_the_owner_has_the_job_tried_again(
    lockstep: Lockstep, market: Market
) -> None:
    job = JobId(bytes.fromhex(market.job))
    Refusals(market.home).record(job, WrongBits("self-check: step 20 gives another state, in round 0, slot 1"))
    (offer,) = quoted(lockstep, market, "--no-try")
    assert offer["joins"] is False
    (why,) = lockstep("worker", "why", *market.where, "--json").data["jobs"]
    (status,) = lockstep("worker", "status", *market.where, "--json").data["refused"]
    for told in (*offer["reasons"], why, status):  # type: ignore[misc]
        if told["code"] != "wrong_bits":
            continue
        assert "step 20 gives another state, in round 0, slot 1" in told["message"]
        assert "older claims are defended" in told["message"]
    assert {why["code"], status["code"]} == {"wrong_bits"}
    assert "wrong_bits" in {r["code"] for r in offer["reasons"]}  # type: ignore[attr-defined]
    for command in ("why", "status"):
        text = lockstep("worker", command, *market.where).out
        assert "step 20" in text
        assert "lockstep worker retry" in text, "what its reader can do"
    home = ["--home", str(market.home)]
    assert lockstep("worker", "retry", "ffffff", *home, "--json").error["code"] == "not_found"
    assert lockstep("worker", "retry", market.job[:8], *home, "--json").data["job"] == market.job
    assert lockstep("worker", "status", *market.where, "--json").data["refused"] == []
    assert "wrong_bits" not in {r["code"] for r in quoted(lockstep, market, "--no-try")[0]["reasons"]}  # type: ignore[attr-defined]


def test_a_quote_that_runs_steps_compares_their_bits(
    lockstep: Lockstep, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(box: JobBox, job: object) -> None:
        raise WrongBits("comparison of the Program 'step': op 7 (gradient), element 0 is 0x1 in place of 0x2")

    monkeypatch.setattr(JobBox, "compare", wrong)
    (offer,) = quoted(lockstep, market)
    assert "wrong_bits" in {r["code"] for r in offer["reasons"]}  # type: ignore[attr-defined]
    assert not (market.home / "refused").exists(), "a command that reads writes nothing"


def test_a_job_that_is_not_there_and_data_that_cannot_be_had(lockstep: Lockstep, market: Market) -> None:
    ended = lockstep("worker", "quote", "ffffff", *market.where, "--json")
    assert (ended.code, ended.error["code"]) == (7, "not_found")
    ended = lockstep("worker", "quote", *market.where, "--storage", f"dir://{market.home}/empty", "--json")
    (offer,) = ended.data
    assert offer["machine"] is None
    assert "blob_missing" in {r["code"] for r in offer["reasons"]}, "that is a reason, and no failure of the quote"


# -- fund


def test_fund_shows_what_is_missing_and_the_faucet_gives_it_once(lockstep: Lockstep, market: Market) -> None:
    asked = ["worker", "fund", "--max-stake", "100", *market.with_key]
    ended = lockstep(*asked, "--json")
    assert ended.code == 75, "something is missing"
    assert (ended.data["address"], ended.data["enough"]) == (market.address, False)
    assert ended.data["tokens"]["missing_amount"] == str(100 * TOKEN)
    assert int(ended.data["coin"]["missing_amount"]) > 0
    assert market.address in lockstep(*asked).out
    given = lockstep(*asked, "--from-faucet", "--json")
    assert (given.code, given.data["enough"]) == (0, True)
    assert given.data["tokens"]["held_amount"] == str(100 * TOKEN)
    again = lockstep(*asked, "--from-faucet", "--json")
    assert again.data["tokens"]["held_amount"] == str(100 * TOKEN), "nothing is given twice"
    staked = lockstep("worker", "stake", "40", *market.with_key, "--json")
    assert staked.code == 0
    after = lockstep(*asked, "--json").data["tokens"]
    assert (after["held_amount"], after["staked"], after["missing_amount"]) == (str(60 * TOKEN), str(40 * TOKEN), "0")
    whole = lockstep("worker", "fund", "--job", market.job[:8], *market.with_key, "--json")
    assert int(whole.data["tokens"]["wanted_amount"]) > int(whole.data["tokens"]["least_amount"]) > 0


def test_fund_waits_for_what_is_sent_and_no_longer(lockstep: Lockstep, market: Market) -> None:
    began = time.monotonic()
    ended = lockstep("worker", "fund", "--max-stake", "1", "--wait", "1", *market.where, "--json")
    assert (ended.code, ended.data["enough"]) == (75, False)
    assert time.monotonic() - began >= 1


def test_no_other_chain_has_a_faucet(lockstep: Lockstep, market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker import funding

    real = funding.missing_of
    monkeypatch.setattr(funding, "missing_of", lambda *a: replace(real(*a), chain_id=1))
    ended = lockstep("worker", "fund", "--max-stake", "1", "--from-faucet", *market.with_key, "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
    assert "chain 1 has no faucet" in ended.error["message"]
    assert "send 1 LST" in ended.error["hint"]


# -- the first stake


def test_the_first_stake_asks_on_a_terminal_and_nowhere_else(
    lockstep: Lockstep, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = list[str](), list[bool]()

    def answer(question: str, **more: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("typer.confirm", answer)
    monkeypatch.setattr("worker.service.Worker.run", lambda worker: ran.append(True))
    lockstep("worker", "fund", "--max-stake", "9", "--from-faucet", *market.with_key)
    up = ["worker", "up", "--max-stake", "7", *market.with_key, "--storage", f"dir://{market.home.parent}/blocks"]
    assert lockstep(*up).code == 0, "who gives a command in a script has agreed"
    for module in ("worker.cli", "lockstep.cli.output"):
        monkeypatch.setattr(f"{module}.interactive", lambda: True)
    refused = lockstep(*up)
    assert (refused.code, ran) == (2, [True]), "a no, and nothing has begun"
    assert "7 LST of 9 LST" in asked[0]
    assert "proven wrong loses its stake" in asked[0]
    assert [lockstep(*up, flag).code for flag in ("--yes", "--json")] == [0, 0]
    assert len(asked) == 1, "it is asked once"
    lockstep("worker", "stake", "1", "--yes", *market.with_key)
    assert lockstep(*up).code == 0
    assert len(asked) == 1, "a home that has staked before is not asked again"


# -- service


def parsed(text: str) -> configparser.ConfigParser:
    """A unit as systemd reads it: sections, keys in their own case."""
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",), strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    return unit


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "xdg/systemd/user"


def options(home: Path) -> list[str]:
    return [
        "--home", str(home), "--password-file", str(home / "password"), "--rpc", f"https://rpc.example/v3/{URL_KEY}",
        "--storage", "http://127.0.0.1:5001", "--deployment", str(home / "deployment.json"),
    ]  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    home = tmp_path / "gpu0"
    home.mkdir()
    (home / "password").write_text(PASSWORD)
    return home


@pytest.mark.sampled(2)
@pytest.mark.parametrize("role", ["worker", "verifier", "coordinator"])
def test_a_unit_is_hardened_patient_and_without_a_secret(lockstep: Lockstep, units: Path, rig: Path, role: str) -> None:
    stake = ["--max-stake", "100"] if role == "worker" else []
    ended = lockstep(role, "service", "install", *options(rig), *stake, "--json")
    assert ended.code == 0, ended.out
    file, toml = units / f"lockstep-{role}-gpu0.service", rig / "lockstep.toml"
    assert ended.data["path"] == str(file)
    service = parsed(file.read_text())["Service"]
    assert service["RestartPreventExitStatus"] == "2 3 4 8"
    assert int(service["TimeoutStopSec"]) >= 7 * 86_400
    assert (service["ProtectSystem"], service["NoNewPrivileges"], service["KillMode"]) == ("strict", "yes", "mixed")
    assert service["WorkingDirectory"] == str(rig)
    assert f"LOCKSTEP_HOME={rig}" in service["Environment"].split(), "else the file in it is a stranger's"
    assert str(rig) in service["ReadWritePaths"].split()
    assert f"{role} up --password-file {rig}/password" in service["ExecStart"]
    assert URL_KEY not in file.read_text()
    assert PASSWORD not in file.read_text() + toml.read_text()
    assert URL_KEY in toml.read_text(), "there the program finds it"
    assert stat.S_IMODE(toml.stat().st_mode) == 0o600
    if role == "worker":
        assert 'max_stake = "100"' in toml.read_text()
    status = lockstep(role, "service", "status", "--home", rig, "--json").data
    assert (status["installed"], status["running"]) == (True, None)
    removed = lockstep(role, "service", "uninstall", "--home", rig, "--json").data["removed"]
    assert removed == [str(file), str(toml)]
    assert not file.exists()


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize(
    ("role", "more", "flag"),
    [("worker", ["--max-stake", "100"], ""), ("verifier", [], "--witness"), ("coordinator", [], "")],
)
def test_systemd_accepts_the_unit(
    lockstep: Lockstep, units: Path, rig: Path, tmp_path: Path, role: str, more: list[str], flag: str, system: bool
) -> None:
    asked = [*options(rig), *more, "--print", *(["--system"] if system else []), "--json", "--", *filter(None, [flag])]
    shown = lockstep(role, "service", "install", *asked)
    assert shown.code == 0, shown.out
    assert not units.exists(), "it is printed and nothing else"
    unit = parsed(shown.data["unit"])
    assert unit["Install"]["WantedBy"] == ("multi-user.target" if system else "default.target")
    assert unit["Service"]["ExecStart"].endswith(flag)
    if system:
        assert unit["Service"]["LoadCredential"] == f"password:{rig}/password"
        assert "--password-file %d/password" in unit["Service"]["ExecStart"]
    assert faults(tmp_path, f"lockstep-{role}-gpu0.service", shown.data["unit"]) == [], "unknown or malformed"


def test_a_unit_of_somebody_else_s_is_not_touched(lockstep: Lockstep, units: Path, rig: Path) -> None:
    units.mkdir(parents=True)
    file = units / "lockstep-worker-gpu0.service"
    file.write_text("[Service]\nExecStart=/bin/true\n")
    arguments = ["worker", "service", "install", *options(rig), "--max-stake", "1"]
    assert lockstep(*arguments, "--json").error["code"] == "usage"
    assert not (rig / "lockstep.toml").exists()
    assert lockstep("worker", "service", "uninstall", "--home", rig, "--json").data["removed"] == []
    assert "/bin/true" in file.read_text()
    assert lockstep(*arguments, "--name", "mine", "--json").code == 0
    assert (units / "lockstep-worker-mine.service").exists()
    other = rig.parent / "other"
    other.mkdir()
    elsewhere = lockstep(
        "worker", "service", "install", *options(other), "--max-stake", "1", "--name", "mine", "--json"
    )
    assert "another home" in elsewhere.error["message"]


def test_a_service_needs_its_stake_a_password_and_known_flags(lockstep: Lockstep, units: Path, rig: Path) -> None:
    bare = lockstep("worker", "service", "install", *options(rig), "--json")
    assert "--max-stake" in bare.error["hint"]
    flag = lockstep("worker", "service", "install", *options(rig), "--max-stake", "1", "--json", "--", "--once")
    assert (flag.code, "--once" in flag.error["message"]) == (2, True)
    unknown = lockstep("worker", "service", "install", "--home", rig, "--max-stake", "1", "--json")
    assert unknown.error["code"] == "key"
    with lock.held(rig, "worker"):
        busy = lockstep("worker", "service", "uninstall", "--home", rig, "--json")
    assert (busy.code, "lockstep worker drain" in busy.error["hint"]) == (75, True)


def test_a_unit_has_the_limits_of_its_worker_and_of_no_other_program(
    lockstep: Lockstep, units: Path, rig: Path
) -> None:
    limits = ["--jobs-from", "0x" + "11" * 20, "--min-price", "2", "--hours", "22-6", "--max-memory", "4096"]
    limits += ["--download", "20", "--max-unpaid", "5"]
    ended = lockstep("worker", "service", "install", *options(rig), "--max-stake", "5", *limits, "--json")
    assert ended.code == 0, ended.out
    held = tomllib.loads((rig / "lockstep.toml").read_text())
    written = [held[name] for name in ("max_stake", "jobs_from", "min_price", "hours", "max_memory_mib")]
    written += [held[name] for name in ("download_mbit", "max_unpaid")]
    assert written == ["5", "0x" + "11" * 20, "2", "22-6", 4096, 20, 5], "as `worker up` would take them"
    other = lockstep("verifier", "service", "install", *options(rig), "--hours", "22-6", "--print", "--json")
    assert (other.code, other.error["message"]) == (2, "hours is a worker's setting")


def test_why_refuses_what_is_no_url(lockstep: Lockstep, market: Market) -> None:
    ended = lockstep("worker", "why", *market.where, "--rpc", "127.0.0.1:8545", "--json")
    assert ended.code == 2, ended.out
    assert "http(s) URL" in ended.error["message"]
    assert ended.error["hint"]


# -- support bundle


def test_a_bundle_has_what_helps_and_no_secret_in_any_spelling(
    lockstep: Lockstep, market: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lockstep("worker", "fund", "--max-stake", "5", "--from-faucet", *market.with_key)
    lockstep("worker", "stake", "5", *market.with_key)
    key, node = key_of(market.devnet.seed, "me"), bytes.fromhex((market.home / NODE_KEY).read_text().strip())
    word = PASSWORD.encode()
    planted = [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), json.dumps(PASSWORD)[1:-1], URL_KEY]
    for secret in (key, node, word):
        planted += [secret.hex(), "0x" + secret.hex(), secret.hex().upper(), str(int.from_bytes(secret, "big"))]
        planted += [base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode().rstrip("=")]
        planted += [base64.b64encode(b"x" * n + secret + b"tail").decode() for n in (1, 2)]
    log = tmp_path / "worker.log"
    log.write_text("\n".join(f"line {i}: {text} said" for i, text in enumerate(planted)) + "\nthe last line\n")
    (market.home / "notes.json").write_text(json.dumps({"state": {"message": PASSWORD}}))
    chain = f"{market.devnet.url},https://user:{URL_KEY}@rpc.invalid/v3/{URL_KEY}?token={URL_KEY}"
    monkeypatch.setenv("LOCKSTEP_RPC", chain)
    out = tmp_path / "support.tar.gz"
    where = [
        a for pair in zip(market.with_key[::2], market.with_key[1::2], strict=True) for a in pair if pair[0] != "--rpc"
    ]
    ended = lockstep("worker", "support-bundle", "--out", out, *where, "--log", log, "--json")
    assert ended.code == 0, ended.out + ended.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with tarfile.open(out) as tar:
        found = {m.name.partition("/")[2]: tar.extractfile(m).read().decode() for m in tar.getmembers()}  # type: ignore[union-attr]
    assert {f["name"]: f["error"] for f in ended.data["files"]} == dict.fromkeys(found, "")
    expected = {"versions", "doctor", "settings", "heads", "outbox", "notes", "status", "why"}
    assert {name.partition(".")[0] for name in found} == {*expected, "log-0"}
    whole = "\n".join(found.values())
    core = [base64.b64encode(b"x" * n + secret)[4:-4].decode() for secret in (key, node, word) for n in (0, 1, 2)]
    for secret in [*planted[:5], *(p for p in planted if "tail" not in p), *core]:
        assert secret not in whole, f"{secret} is in it"
    assert "the last line" in found["log-0.txt"]
    assert "ciphertext" not in whole, "the keystore is in no bundle"
    (row, *_) = [r for r in json.loads(found["outbox.json"]) if r["key"].startswith("stake/")]
    assert row.keys() >= {"key", "nonce", "state", "hashes"}
    assert "raw" not in row
    assert json.loads(found["status.json"])["address"] == market.address
    heads = json.loads(found["heads.json"])
    assert heads[0]["block"] > 0
    assert "error" in heads[1], "an endpoint that is gone says so, and keeps nothing else out"
    again = lockstep("worker", "support-bundle", "--out", out, *where, "--json")
    assert (again.code, again.error["code"]) == (2, "usage"), "nothing is written over"


@pytest.mark.slow
def test_a_bundle_is_made_where_nothing_else_works(lockstep: Lockstep, tmp_path: Path) -> None:
    out = tmp_path / "support.tar.gz"
    ended = lockstep("worker", "support-bundle", "--out", out, "--home", tmp_path / "no home", "--json")
    assert ended.code == 0, ended.out
    failed = {f["name"]: f["error"] for f in ended.data["files"] if f["error"]}
    assert failed.keys() == {"heads.json", "status.json", "why.json"}
    assert "bug" not in failed.values()
    assert out.exists()
    nowhere = lockstep("worker", "support-bundle", "--out", tmp_path / "no/such/folder/x.tar.gz", "--json")
    assert (nowhere.code, nowhere.error["code"]) == (2, "usage")
