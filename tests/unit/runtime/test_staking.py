"""The staking of an account and of its owner, on the chain in memory: who moves what where, and what a kill leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.chain import contracts as contracts_of
from lockstep.chain.contracts import Contracts, Token
from lockstep.chain.deployment import deploy
from lockstep.chain.outbox import Outbox
from lockstep.cli.staking import _tell
from lockstep.protocol.errors import ChainError, FundsError, LockstepError, NotOwner, TryLater, Unreachable, UsageError
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.runtime.staking import StakeChange, StakingAccount
from tests.support.memory.devnet import MemoryDevnet

WALLET = Wei(1_000)


class Bench:
    """Three homes at one deployment: an operator's with 100 staked, a cold one, a thief's."""

    def __init__(self, folder: Path) -> None:
        self.devnet = MemoryDevnet()
        self.contracts = Contracts.at(self.devnet.w3, deploy(self.devnet.w3, self.devnet.account("deployer")))
        self.folder = folder
        self.boxes: list[Outbox] = []
        self.hot, self.cold, self.thief = (self.staking(name) for name in ("hot", "cold", "thief"))
        self.hot.outbox.send(self.contracts.token.mint(self.hot.key, WALLET), "mint")
        self.hot.reported(self.hot.stake(Wei(100)))

    def staking(self, name: str, operator: Address | None = None) -> StakingAccount:
        """The staking of a home, opened anew as a command does."""
        account = self.devnet.account(name)
        box = Outbox(self.folder / f"{name}.sqlite", self.devnet.w3, account)
        self.boxes.append(box)
        return StakingAccount(self.contracts, account, box, operator)

    def of(self, staking: StakingAccount) -> StakingAccount:
        """The same home's staking, for the operator's account."""
        return replace(staking, operator=self.hot.key)

    def tokens(self, staking: StakingAccount) -> int:
        return self.contracts.token.balance_of(staking.key)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for box in bench.boxes:
        box.close()


def test_a_stolen_home_takes_nothing_and_the_owner_gets_all(bench: Bench) -> None:
    hot, cold, thief = bench.hot, bench.of(bench.cold), bench.of(bench.thief)
    hot.reported(hot.unstake(Wei(30)))
    hot.reported(hot.set_owner(cold.key))
    assert hot.holdings().owner == cold.key
    wallet = bench.tokens(hot)
    for attempt in (
        lambda: hot.unstake(Wei(1)), lambda: hot.set_owner(thief.key), lambda: hot.propose_owner(thief.key),
        lambda: hot.set_delegate(thief.key), lambda: thief.unstake(Wei(1)), thief.withdraw, thief.accept_owner,
        lambda: thief.propose_owner(thief.key), lambda: thief.set_delegate(thief.key),
    ):  # fmt: skip
        with pytest.raises(NotOwner) as caught:
            attempt()
        assert caught.value.hint
    bench.devnet.advance(Seconds(30 * 86_400))
    assert hot.withdraw().amount == 30
    assert (bench.tokens(hot), bench.tokens(cold)) == (wallet, 30), "what the stolen key pushes goes to the owner"
    cold.reported(cold.unstake(Wei(70)))
    with pytest.raises(TryLater):
        cold.withdraw()
    bench.devnet.advance(Seconds(30 * 86_400))
    assert cold.withdraw().amount == 70
    assert (bench.tokens(cold), cold.wallet()) == (100, 100)
    assert (bench.tokens(thief), bench.tokens(hot)) == (0, wallet)


def test_a_token_without_permits_is_approved_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    token, vault = bench.contracts.token, bench.contracts.vault

    def none(_: Token) -> None:
        raise ChainError("no domain", "approve")

    monkeypatch.setattr(Token, "_own_domain", none)
    token._domain = None
    bench.hot.reported(bench.hot.stake(Wei(50)))
    assert (vault.free(bench.hot.key), token.allowance(bench.hot.key, vault.address)) == (150, 0)
    # Some tokens change no allowance that is not zero.
    bench.hot.outbox.send(token.approve(vault.address, Wei(7)), "an earlier one")
    labels = [call.data[-32:] for call in token.approvals(bench.hot.key, vault.address, Wei(5))]
    assert [int.from_bytes(each, "big") for each in labels] == [0, 5]
    for _ in range(2):
        bench.hot.reported(bench.hot.stake(Wei(5)))
    assert vault.free(bench.hot.key) == 160
    bench.hot.outbox.send(token.approve(vault.address, Wei(2**256 - 1)), "once for all")
    assert token.approvals(bench.hot.key, vault.address, Wei(5)) == ()


def test_a_domain_is_found_by_its_separator_and_a_permit_is_tried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, read, asked = bench.contracts.token, Token.read, []

    def old(self: Token, function: str, *arguments: object, **options: object) -> object:
        asked.append(function)
        if function == "eip712Domain":
            raise ChainError("reverted", "an older token")
        return read(self, function, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Token, "read", old)
    token._domain = None
    bench.hot.reported(bench.hot.stake(Wei(50)))
    assert bench.contracts.vault.free(bench.hot.key) == 150
    assert token._domain, "the separator proves it"
    assert "allowance" not in asked, "by a permit"
    monkeypatch.setattr(contracts_of, "_separator", lambda domain: bytes(32))
    token._domain = None
    bench.hot.reported(bench.hot.stake(Wei(50)))
    assert token._domain is False
    assert bench.contracts.vault.free(bench.hot.key) == 200, "by approve"


def test_an_owner_is_asked_before_it_owns(bench: Bench) -> None:
    hot, cold, heir = bench.hot, bench.of(bench.cold), bench.of(bench.thief)
    hot.reported(hot.propose_owner(cold.key))
    assert (hot.holdings().owner, hot.holdings().proposed_owner) == (None, cold.key)
    hot.reported(hot.unstake(Wei(1)))
    cold.reported(cold.accept_owner())
    cold.reported(cold.propose_owner(heir.key))
    cold.reported(cold.propose_owner(None))
    with pytest.raises(NotOwner, match="offered to nobody"):
        heir.accept_owner()
    cold.reported(cold.propose_owner(heir.key))
    heir.reported(heir.accept_owner())
    heir.reported(heir.set_delegate(cold.key))
    assert bench.contracts.vault.may_act(hot.key, cold.key)
    assert "owner     " in "\n".join(hot.holdings().lines())
    with pytest.raises(NotOwner, match="is owned by"):
        cold.unstake(Wei(1))


def test_what_was_cut_off_is_told_and_not_sent_again(bench: Bench) -> None:
    hot, cold = bench.hot, bench.of(bench.cold)
    hot.set_owner(cold.key)
    again = bench.staking("hot").set_owner(cold.key)
    assert again.completed, "killed before it said so"
    bench.hot.reported(again)
    with pytest.raises(NotOwner, match="has an owner already"):
        bench.hot.set_owner(cold.key)
    cold.unstake(Wei(40))
    later = bench.staking("cold", hot.key)
    done = later.unstake(Wei(40))
    assert (done.completed, done.amount, later.holdings().unbonding) == (True, 40, 40)
    later.reported(done)
    later.reported(later.unstake(Wei(5)))
    assert later.holdings().unbonding == 45
    # What the cold key does for itself is another matter: nothing of it is pending.
    own = bench.staking("cold")
    with pytest.raises(FundsError):
        own.unstake(Wei(1))
    with pytest.raises(FundsError):
        own.withdraw()


def test_a_contract_of_the_market_owns_nobody(bench: Bench) -> None:
    for contract in (bench.contracts.vault, bench.contracts.market, bench.contracts.token):
        with pytest.raises(UsageError, match="own nothing"):
            bench.hot.set_owner(contract.address)
        with pytest.raises(UsageError, match="own nothing"):
            bench.hot.propose_owner(contract.address)


@pytest.mark.parametrize("error", [TryLater("no finalized block is named", "wait"), Unreachable("nobody answers", "")])
def test_money_that_moved_is_told_where_nobody_names_a_final_block(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: LockstepError
) -> None:
    def final(staking: StakingAccount, moved: StakeChange) -> bool:
        raise error

    monkeypatch.setattr(StakingAccount, "final", final)
    for as_json in (True, False):
        _tell(bench.hot, bench.hot.unstake(Wei(7)), "unbonding", as_json)
    first, told = capsys.readouterr().out.split("\n", 1)
    data = json.loads(first)["data"]
    assert (data["unbonding"], data["final"], data["completed"]) == ("7", False, False)
    assert f"not known yet if that is final: {error.message}" in told
    assert bench.hot.holdings().unbonding == 14, "once each"
    monkeypatch.undo()
    assert not bench.hot.unstake(Wei(1)).completed, "the next command has nothing to complete"
