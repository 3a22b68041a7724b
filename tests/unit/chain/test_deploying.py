"""A deployment that was cut off goes on; code that is not the package's is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.chain import artifacts, deploying, verifying
from lockstep.chain.addresses import Addresses
from lockstep.chain.deploying import Wanted
from lockstep.chain.deployment import UNBOND_SECONDS
from lockstep.chain.devnet import Devnet, key_of
from lockstep.presets import CHAINS
from lockstep.protocol.errors import ChainError, Mismatch, UsageError
from lockstep.protocol.types import Address, Seconds

pytestmark = [pytest.mark.chain, pytest.mark.slow]

WANTED = Wanted(None, UNBOND_SECONDS, CHAINS["op-stack"])
PROGRAM = """
import os, signal, sys
from pathlib import Path
from eth_account import Account
from lockstep.chain import deploying
from lockstep.chain.rpc import connect
from tests.unit.chain.test_deploying import WANTED
from lockstep.chain.wire import Wire

url, key, file, sends, after = sys.argv[1:]
left = [int(sends)]
broadcast = Wire.broadcast
def dies(self, raw):
    left[0] -= 1
    if left[0] < 0:
        if after == "after":
            broadcast(self, raw)
        os.kill(os.getpid(), signal.SIGKILL)
    broadcast(self, raw)
Wire.broadcast = dies
deploying.deploy(connect(url), Account.from_key(key), Path(file), WANTED)
"""


@pytest.fixture(scope="module")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Devnet:
    with Devnet(tmp_path_factory.mktemp("anvil"), block_seconds=0) as chain:
        yield chain


@pytest.mark.parametrize(("sends", "after"), [(0, "before"), (4, "before"), (4, "after"), (9, "after")])
def test_a_deployment_killed_between_two_sends_goes_on_with_the_same_addresses(
    anvil: Devnet, tmp_path: Path, sends: int, after: str
) -> None:
    name, file = f"killed {sends} {after}", tmp_path / "deployment.json"
    account = anvil.account(name)
    planned = deploying.planned_on(anvil.w3, Address(account.address), WANTED)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, anvil.url, key_of(anvil.seed, name).hex(), str(file), str(sends), after],
        check=False, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert run.returncode == -signal.SIGKILL
    assert not file.exists(), "no address is told before the code is verified"

    addresses, before = deploying.deploy(anvil.w3, account, file, WANTED)

    assert before == sends + 1, "written before it was sent"
    assert addresses.market == planned.at["market"]
    assert anvil.w3.eth.get_transaction_count(account.address) == len(planned.creations), "nothing is sent twice"
    assert Addresses.load(file) == addresses
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deployment.json"], "plan and journal are gone"


def test_a_plan_of_another_deployment_is_refused(anvil: Devnet, tmp_path: Path) -> None:
    file = tmp_path / "deployment.json"
    account, other = anvil.account("planner"), anvil.account("another planner")
    deploying._resumed(anvil.w3, account, tmp_path / "deployment.json.plan", WANTED)
    with pytest.raises(UsageError, match="has deployer"):
        deploying.deploy(anvil.w3, other, file, WANTED)
    with pytest.raises(UsageError, match="has unbond_seconds 1209600, not 1"):
        deploying.deploy(anvil.w3, account, file, replace(WANTED, unbond_seconds=Seconds(1)))
    (tmp_path / "deployment.json.plan").write_text("[]")
    with pytest.raises(UsageError, match="cannot be read"):
        deploying.deploy(anvil.w3, account, file, WANTED)
    assert anvil.w3.eth.get_transaction_count(account.address) == 0


def test_a_nonce_that_another_program_took_stops_the_deployment(anvil: Devnet, tmp_path: Path) -> None:
    account = anvil.account("shared key")
    deploying._resumed(anvil.w3, account, tmp_path / "deployment.json.plan", WANTED)
    sent = {
        "type": 2, "chainId": anvil.w3.eth.chain_id, "nonce": 0, "to": account.address, "value": 0, "gas": 21_000,
        "maxFeePerGas": 10**10, "maxPriorityFeePerGas": 1, "data": b"",
    }  # fmt: skip
    anvil.w3.eth.send_raw_transaction(account.sign_transaction(sent).raw_transaction)
    with pytest.raises(ChainError, match="has sent 1 transactions, not 0"):
        deploying.deploy(anvil.w3, account, tmp_path / "deployment.json", WANTED)
    assert anvil.w3.eth.get_transaction_count(account.address) == 1


@pytest.fixture(scope="module")
def deployed(anvil: Devnet, tmp_path_factory: pytest.TempPathFactory) -> Addresses:
    file = tmp_path_factory.mktemp("deployed") / "deployment.json"
    return deploying.deploy(anvil.w3, anvil.account("deployer"), file, WANTED)[0]


def test_a_deployment_of_this_package_verifies(anvil: Devnet, deployed: Addresses) -> None:
    report = verifying.verify(anvil.w3, deployed)
    report.require()
    assert len(report.contracts) == 11
    assert (report.unbond_seconds, report.inclusion_seconds, report.censor_seconds) == (UNBOND_SECONDS, 6, 43_200)
    creation = {each.artifact: each for each in deploying.plan(Address("0x" + "11" * 20), 0).creations}
    assert report.arguments.keys() == creation.keys()
    text = verifying.inputs(report)
    assert json.loads(text["contracts.json"])["JobMarket"]["contract"] == "contracts/JobMarket.sol:JobMarket"
    assert "contracts/JobMarket.sol" in json.loads(text["standard-input.json"])["sources"]


@pytest.mark.parametrize(
    ("name", "at", "fault"),
    [
        ("arbiter", 100, "its code differs from byte 100 on"),
        ("rounds", 200, "its code differs from byte 200 on"),
        ("game", artifacts.load("DisputeGame").immutables["arbiter"][0] + 31, "its arbiter is 0x"),
        ("market", artifacts.load("JobMarket").immutables["vault"][-1] + 31, "its vault is 0x"),
    ],
)
def test_one_wrong_byte_of_code_is_found(anvil: Devnet, deployed: Addresses, name: str, at: int, fault: str) -> None:
    where = {each.name: each.address for each in verifying.verify(anvil.w3, deployed).contracts}[name]
    mark = anvil.snapshot()
    try:
        code = bytearray(anvil.w3.eth.get_code(where))
        code[at] ^= 1
        anvil.w3.provider.make_request("anvil_setCode", [where, "0x" + code.hex()])  # type: ignore[arg-type]
        with pytest.raises(Mismatch, match=fault):
            verifying.verify(anvil.w3, deployed).require()
    finally:
        anvil.revert(mark)


def test_an_account_without_code_is_found(anvil: Devnet, deployed: Addresses) -> None:
    moved = replace(deployed, witnesses=Address("0x" + "12" * 20))
    with pytest.raises(Mismatch, match=r"its witnesses is|there is no code"):
        verifying.verify(anvil.w3, moved).require()


def test_a_chain_that_is_no_devnet_takes_no_test_token_unasked(anvil: Devnet) -> None:
    deploying.check_chain(anvil.w3, WANTED, test_token=False)
    anvil.w3.provider._chain_id = 8453  # type: ignore[attr-defined]
    try:
        with pytest.raises(UsageError, match="no token is given"):
            deploying.check_chain(anvil.w3, WANTED, test_token=False)
        deploying.check_chain(anvil.w3, WANTED, test_token=True)
        with pytest.raises(UsageError, match="no token exists at"):
            deploying.check_chain(anvil.w3, replace(WANTED, token=Address("0x" + "13" * 20)), test_token=False)
    finally:
        anvil.w3.provider._chain_id = 31_337  # type: ignore[attr-defined]
