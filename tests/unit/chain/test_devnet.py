"""The local chain: starts alone, stops clean, keeps what it is told to keep."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.chain import devnet as devnet_module
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import create_address
from lockstep.chain.devnet import CHAIN_ID, Devnet, Local, deploy, find_anvil, key_of
from lockstep.chain.outbox import Outbox
from lockstep.protocol.errors import ChainError, DoctorError, NotFoundError, Unreachable, UsageError
from lockstep.protocol.types import Address, Seconds, Wei
from tests.support.waiting import wait

pytestmark = pytest.mark.chain


def test_same_seed_same_accounts_and_another_seed_others() -> None:
    assert key_of(3, "worker") == key_of(3, "worker")
    assert len({key_of(3, "worker"), key_of(4, "worker"), key_of(3, "verifier")}) == 3


def test_contracts_lie_at_the_addresses_computed_beforehand(devnet: Local, addresses: Addresses) -> None:
    contracts = Contracts.at(devnet.w3, addresses)
    assert contracts.market.read("vault") == addresses.vault, "the market knows the vault"
    assert contracts.vault.read("market") == addresses.market, "the vault knows the market"
    assert contracts.vault.read("game") == contracts.market.read("game") == addresses.game, "both know the game"
    assert contracts.game.read("arbiter") == addresses.arbiter, "the game knows the arbiter"
    assert addresses.chain_id == CHAIN_ID


def test_create_address_of_a_known_deployment() -> None:
    # The first two contracts of Anvil's default account, as every Solidity tutorial prints them.
    deployer = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert create_address(deployer, 0) == "0x5FbDB2315678afecb367f032d93F642f64180aa3"
    assert create_address(deployer, 1) == "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"


def test_time_moves_only_with_the_chain(devnet: Local) -> None:
    eth = devnet.w3.eth
    before = eth.get_block("latest")["timestamp"]
    assert devnet.advance(Seconds(1_000)) >= before + 1_000
    assert eth.get_block("latest")["timestamp"] >= before + 1_000, "the chain is there at once"
    number = eth.block_number
    devnet.mine(3)
    assert eth.block_number == number + 3


@pytest.mark.slow
def test_state_survives_kill_and_restart(tmp_path: Path) -> None:
    chain = Devnet(tmp_path, seed=1, block_seconds=1, keep_state=True)
    addresses = deploy(chain.w3, chain.account("deployer"))
    state = tmp_path / "state.json"
    wait(lambda: state.exists() and addresses.market[2:].lower() in state.read_text(), "the deployment on disk")
    os.kill(chain.pid, signal.SIGKILL)
    chain.stop()
    kept = int(json.loads(state.read_text())["best_block_number"])
    time.sleep(4)
    with Devnet(tmp_path, seed=1, block_seconds=1, keep_state=True) as again:
        assert Contracts.at(again.w3, addresses).vault.unbond_seconds() > 0, "the deployment is still there"
        wait(lambda: again.w3.eth.block_number > kept, "a block after the restart")
        last, first = (again.w3.eth.get_block(number)["timestamp"] for number in (kept, kept + 1))
        assert last < first <= last + 2, "no time passes while it is down"


@pytest.mark.slow
def test_a_stopped_chain_keeps_its_last_block_in_a_bounded_file_and_half_a_write_is_dropped(tmp_path: Path) -> None:
    state, half = tmp_path / "state.json", tmp_path / ".state.json.1-00000000"
    with Devnet(tmp_path, seed=1, block_seconds=0, keep_state=True) as chain:
        account = chain.account("deployer")
        addresses = deploy(chain.w3, account)
        outbox = Outbox(tmp_path / "outbox.sqlite", chain.w3, account)
        minted = outbox.send(Contracts.at(chain.w3, addresses).token.mint(Address(account.address), Wei(7)), "mint")
        outbox.close()
        chain.mine(600)
        last = chain.w3.eth.block_number
    assert state.stat().st_size < 600 * 10_000, "not every block's state"
    half.write_text('{"block"')
    with Devnet(tmp_path, seed=1, block_seconds=0, keep_state=True) as again:
        assert not half.exists()
        assert again.w3.eth.block_number == last
        token = Contracts.at(again.w3, addresses).token
        assert token.balance_of(Address(account.address)) == 7
        # Blocks, receipts and logs of before are there; states are not.
        assert again.w3.eth.get_transaction_receipt(minted.transaction)["blockNumber"] == minted.block
        assert len(again.w3.eth.get_logs({"address": addresses.token, "fromBlock": 0, "toBlock": "latest"})) == 1
        with pytest.raises(Unreachable, match="does not keep the state of the block"):
            token.read("balanceOf", account.address, block=minted.block)


@pytest.mark.slow
def test_a_state_that_cannot_be_written_is_told_and_the_last_whole_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Devnet(tmp_path, seed=1, block_seconds=0, keep_state=True)
    chain.mine(3)
    chain._save()
    whole = (tmp_path / "state.json").read_bytes()

    def full(*_: object) -> None:
        raise DoctorError("the disk is full", "free some space")

    monkeypatch.setattr(devnet_module, "write_atomically", full)
    with pytest.raises(DoctorError, match="full"):
        chain.stop()
    assert not _runs(chain.pid)
    assert (tmp_path / "state.json").read_bytes() == whole


@pytest.mark.slow
def test_a_killed_parent_takes_its_chain_along(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from lockstep.chain.devnet import Devnet;"
        "print(Devnet(Path(sys.argv[1])).pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    pid = int(run.stdout)
    wait(lambda: not _runs(pid), "the end of Anvil, with its parent's")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_anvil_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_ANVIL", "/bin/false")
    assert find_anvil() == Path("/bin/false")
    with pytest.raises(DoctorError, match="did not start") as caught:
        Devnet(tmp_path)
    assert "anvil.log" in caught.value.hint


def test_anvil_that_is_nowhere_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_ANVIL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devnet_module, "__file__", str(tmp_path / "site-packages/lockstep/chain/devnet.py"))
    with pytest.raises(DoctorError, match="not found") as caught:
        find_anvil()
    assert "npm install @foundry-rs/anvil" in caught.value.hint
    script = tmp_path / "anvil"
    script.write_text("#!/usr/bin/env node\n")
    script.chmod(0o755)
    with pytest.raises(DoctorError, match="not found"):
        find_anvil()
    installed = tmp_path / ".foundry/bin/anvil"
    installed.parent.mkdir(parents=True)
    installed.write_bytes(b"\x7fELF")
    installed.chmod(0o755)
    assert find_anvil() == installed, "where Foundry's installer puts it"
    package = tmp_path / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"\x7fELF")
    assert find_anvil() == package, "npm install in this folder"
    monkeypatch.setenv("LOCKSTEP_ANVIL", str(tmp_path / "none"))
    with pytest.raises(DoctorError, match="not a program"):
        find_anvil()


def test_addresses_file_is_read_back_or_named(tmp_path: Path, addresses: Addresses) -> None:
    path = tmp_path / "addresses.json"
    addresses.save(path)
    assert Addresses.load(path) == addresses
    with pytest.raises(NotFoundError):
        Addresses.load(tmp_path / "none.json")
    path.write_text('{"chain_id": 1}')
    with pytest.raises(UsageError):
        Addresses.load(path)


def test_wrong_addresses_are_named(devnet: Local, addresses: Addresses) -> None:
    moved = Addresses(**{**addresses.__dict__, "vault": "0x" + "11" * 20})
    with pytest.raises(ChainError, match="vault") as caught:
        Contracts.at(devnet.w3, moved)
    assert "addresses file" in caught.value.hint
