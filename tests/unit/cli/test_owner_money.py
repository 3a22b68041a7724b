"""`worker stake | unstake | withdraw | owner` by commands alone, on the chain in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import key_of
from lockstep.chain.keys import KEYSTORE, create_account
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.runtime.guard import lock
from tests.support.memory.devnet import MemoryDevnet
from tests.support.sending import transact

from .conftest import Lockstep, killed_once_sent

TOKEN = 10**18
WALLET = Wei(1_000 * TOKEN)


@dataclass(frozen=True)
class Purse:
    """Three homes with a wallet each, at a market in memory."""

    lockstep: Lockstep
    devnet: MemoryDevnet
    contracts: Contracts

    def address(self, home: str) -> Address:
        """The address of a home's account."""
        return Address(self.devnet.account(home).address)

    def run(self, home: str, *command: str, code: int = 0) -> Any:
        """Data, or the error, of `lockstep worker ..`."""
        where = ["--rpc", self.devnet.url, "--deployment", "deployment.json", "--home", home]
        key = [] if command[:2] == ("owner", "show") else ["--password-file", f"{home}/password"]
        if command == ("drain",):
            where, key = ["--home", home], []
        ended = self.lockstep("worker", *command, *where, *key, "--json")
        assert ended.code == code, ended
        return ended.data if code == 0 else ended.error

    def wallet(self, home: str) -> int:
        """Returns a home's wallet as `worker status` says it."""
        return int(self.run(home, "status")["wallet"])


@pytest.fixture
def purse(lockstep: Lockstep) -> Iterator[Purse]:
    with MemoryDevnet() as devnet:
        devnet._request("anvil_autoImpersonateAccount", [True])
        addresses = deploy(devnet.w3, devnet.account("deployer"), unbond_seconds=Seconds(3600))
        addresses.save(Path("deployment.json"))
        made = Purse(lockstep, devnet, Contracts.at(devnet.w3, addresses))
        for home in ("hot", "cold", "other"):
            create_account(Path(home) / KEYSTORE, "correct horse", key_of(devnet.seed, home), work=2)
            Path(home, "password").write_text("correct horse")
            transact(devnet, made.contracts.token.mint(made.address(home), WALLET), made.address("deployer"))
        yield made


def test_a_stake_comes_back_to_the_wei_by_commands_alone(purse: Purse) -> None:
    run = purse.run
    assert run("hot", "stake", "100")["staked"] == str(100 * TOKEN)
    with lock.held(Path("hot"), "worker"):
        assert run("hot", "stake", "1", code=8)["code"] == "guard_refused.locked", "its home is in use"
    assert run("hot", "drain")["running"] is False
    assert run("hot", "unstake", "101", code=6)["code"] == "funds"
    assert run("hot", "unstake", "all")["unbonding"] == str(100 * TOKEN)
    assert "unbond until" in run("hot", "withdraw", code=75)["message"]
    purse.devnet.advance(Seconds(3601))
    run("hot", "withdraw")
    held = run("hot", "status")
    assert held["wallet"] == str(WALLET), "its wallet, to the wei"
    assert (held["free"], held["unbonding"], held["credits"], held["locked"]) == ("0", "0", "0", "0")
    assert run("hot", "withdraw", code=6)["code"] == "funds", "there is nothing more"


def test_money_commands_refuse_what_makes_no_sense(purse: Purse) -> None:
    run = purse.run
    assert run("hot", "stake", "much", code=2)["code"] == "usage"
    assert run("hot", "stake", "5000", code=6)["hint"]
    assert run("hot", "unstake", "1", code=6)["hint"]
    assert run("hot", "withdraw", "--to", "me", code=2)["code"] == "usage"
    assert run("hot", "withdraw", code=6)["hint"]


@pytest.mark.slow
def test_a_stolen_operator_key_takes_nothing_and_the_owner_gets_all(purse: Purse) -> None:
    """The thief has the operator's home whole: keystore, password, outbox."""
    run, operator, its_owner, stolen_to = purse.run, *(purse.address(h) for h in ("hot", "cold", "other"))
    run("hot", "stake", "100")
    run("hot", "unstake", "30")
    assert run("hot", "owner", "set", its_owner)["owner"] == its_owner
    assert run("hot", "status")["owner"] == its_owner
    spoils = purse.wallet("hot")
    for home, *command in (
        ("hot", "unstake", "1"), ("hot", "owner", "set", stolen_to), ("hot", "owner", "propose", stolen_to),
        ("hot", "owner", "delegate", stolen_to), ("other", "owner", "accept", "--for", operator),
        ("other", "unstake", "1", "--for", operator), ("other", "withdraw", "--for", operator),
    ):  # fmt: skip
        assert run(home, *command, code=4)["code"] == "not_owner", command
    purse.devnet.advance(Seconds(3601))
    # The one thing that the stolen key can send: what it pushes goes to the owner. Its hot wallet is lost.
    before = purse.wallet("cold")
    pushed = run("hot", "withdraw", "--to", stolen_to)
    assert pushed["sent"] == str(spoils), "the wallet, and nothing of the vault"
    assert purse.wallet("cold") == before + 30 * TOKEN

    assert run("cold", "unstake", "all", "--for", operator)["unbonding"] == str(70 * TOKEN)
    assert "unbond until" in run("cold", "withdraw", "--for", operator, code=75)["message"]
    purse.devnet.advance(Seconds(3601))
    ended = run("cold", "withdraw", "--for", operator)
    assert (ended["withdrawn"], ended["holdings"]["owner"]) == (str(70 * TOKEN), its_owner)
    assert purse.wallet("cold") == before + 100 * TOKEN, "all that was staked, to the wei"
    assert purse.contracts.vault.free(operator) == 0
    assert purse.wallet("hot") == 0


def test_an_owner_is_named_and_hands_on_by_commands(purse: Purse) -> None:
    run, operator, its_owner, next_one = purse.run, *(purse.address(h) for h in ("hot", "cold", "other"))
    nobody = {"owner": None, "proposed_owner": None, "delegate": None}
    assert run("hot", "owner", "show") == {"address": operator, **nobody}
    assert "checksum" in run("hot", "owner", "set", its_owner.lower(), code=2)["message"]
    assert "vault" in run("hot", "owner", "set", purse.contracts.vault.address, code=2)["message"]
    assert run("hot", "owner", "set", "0x12", code=2)["code"] == "usage"
    assert run("cold", "owner", "accept", code=2)["hint"]
    assert run("hot", "owner", "propose", its_owner)["proposed_owner"] == its_owner
    assert run("other", "owner", "accept", "--for", operator, code=4)["code"] == "not_owner"
    assert run("cold", "owner", "accept", "--for", operator)["owner"] == its_owner
    assert run("cold", "owner", "propose", next_one, "--for", operator)["proposed_owner"] == next_one
    assert run("cold", "owner", "propose", "none", "--for", operator)["proposed_owner"] is None
    run("cold", "owner", "propose", next_one, "--for", operator)
    assert run("other", "owner", "accept", "--for", operator)["owner"] == next_one
    assert run("other", "owner", "delegate", its_owner, "--for", operator)["delegate"] == its_owner
    assert run("hot", "owner", "show")["owner"] == next_one

    # Cut off between sending and saying so: given again, it is told, and nothing is sent twice.
    with killed_once_sent():
        run("other", "owner", "propose", its_owner, "--for", operator)
    again = run("other", "owner", "propose", its_owner, "--for", operator)
    assert (again["completed"], again["proposed_owner"]) == (True, its_owner)


def test_a_stake_that_was_cut_off_is_completed_and_not_sent_again(purse: Purse) -> None:
    with killed_once_sent():
        purse.run("hot", "stake", "5")
    said = purse.run("hot", "stake", "5")
    assert (said["completed"], said["staked"]) == (True, str(5 * TOKEN))
    assert said["holdings"]["free"] == str(5 * TOKEN), "once"
    fresh = purse.run("hot", "stake", "5")
    assert (fresh["completed"], fresh["holdings"]["free"]) == (False, str(10 * TOKEN))
