"""Wrappers: the values mirror the ABI, reverts come back as the rule that they broke."""

from dataclasses import fields, replace

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.base.amounts import TEST_TOKEN, Currency, market_currency, set_market_currency
from lockstep.chain import artifacts, reverts
from lockstep.chain.contracts import Contracts, Lock, Token
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Local
from lockstep.protocol import jobs
from lockstep.protocol.errors import ChainError, FundsError, Unreachable
from lockstep.protocol.reverts import HINTS
from lockstep.protocol.types import Seconds, Wei
from tests.support.market.wander import params_of
from tests.support.params import amended
from tests.unit.chain.conftest import OpenOutbox

pytestmark = pytest.mark.chain


@pytest.mark.parametrize(
    ("contract", "function", "value"),
    [
        ("JobMarket", "job", jobs.JobState),
        ("JobMarket", "params", jobs.JobParams),
        ("JobMarket", "round", jobs.Round),
        ("JobMarket", "claim", jobs.Claim),
        ("JobMarket", "onOpen", jobs.GameTerms),
        ("JobMarket", "factsOf", jobs.Facts),
        ("StakeVault", "lockOf", Lock),
    ],
)
def test_values_have_the_fields_of_the_abi_in_its_order(contract: str, function: str, value: type) -> None:
    (output,) = artifacts.load(contract).entries("function")[function]["outputs"]
    assert [f.name for f in fields(value)] == [artifacts.snake(part["name"]) for part in output["components"]]


def test_enums_have_the_names_of_the_interface(repository: object) -> None:
    source = (repository / "contracts/interfaces/IJobMarket.sol").read_text()  # type: ignore[operator]
    for enum in (jobs.JobStatus, jobs.Phase, jobs.ClaimStatus):
        names = source.split(f"enum {enum.__name__} {{")[1].split("}")[0].replace(",", " ").split()
        assert [member.name for member in enum] == [name.upper() for name in names], enum.__name__


def test_every_error_has_a_hint() -> None:
    ours = {entry["name"] for entry in reverts._errors().values()}
    # OpenZeppelin's, most of which no call of ours can meet.
    ours = {name for name in ours if not name.startswith(("ERC", "EC", "Invalid"))}
    ours -= {"SafeERC20FailedOperation", "ReentrancyGuardReentrantCall", "StringTooLong"}
    assert ours <= set(HINTS), f"without a hint: {sorted(ours - set(HINTS))}"


def test_a_broken_rule_is_named_with_its_arguments(contracts: Contracts, rich: LocalAccount) -> None:
    with pytest.raises(FundsError, match=rf"StakeTooLow\({rich.address}, 5, 0\)") as caught:
        contracts.vault.read("requestUnbond", 5, sender=rich.address)
    assert caught.value.code == "funds.StakeTooLow"
    assert "deposit" in caught.value.hint
    with pytest.raises(ChainError, match="WrongPhase"):
        contracts.market.read("freeze", bytes(32), 0, [], sender=rich.address)


def test_unknown_and_empty_reverts_are_errors_too() -> None:
    assert "0xdeadbeef" in reverts.decode(bytes.fromhex("deadbeef")).message
    assert "nothing" in reverts.decode(b"").message
    text = bytes.fromhex("08c379a0") + (32).to_bytes(32, "big") + (3).to_bytes(32, "big") + b"why".ljust(32, b"\0")
    assert reverts.decode(text).message == "reverted: why"
    assert "panicked (0x11)" in reverts.decode(bytes.fromhex("4e487b71") + (0x11).to_bytes(32, "big")).message


def test_no_contract_at_an_address_is_named(devnet: Local, contracts: Contracts) -> None:
    elsewhere = type(contracts.vault)(devnet.w3, "0x" + "22" * 20)
    # An endpoint that returns nothing has failed: another one may hold the contract.
    with pytest.raises((ChainError, Unreachable), match="no StakeVault at"):
        elsewhere.free("0x" + "33" * 20)


def test_an_addresses_file_that_mixes_two_deployments_is_refused(devnet: Local, contracts: Contracts) -> None:
    other = deploy(devnet.w3, devnet.account("another deployer"))
    for name in ("token", "vault", "game", "arbiter"):
        mixed = replace(contracts.addresses, **{name: getattr(other, name)})
        with pytest.raises(ChainError, match="another"):
            Contracts.at(devnet.w3, mixed)


@pytest.mark.parametrize(
    ("decimals", "symbol", "told"),
    [
        (6, b"USDC", "USDC"), (0, "USD₮0".encode(), "USD₮0"), (18, b"", "TOKEN"), (6, b"a\x1b[2Jb", "TOKEN"),
        (6, b"wei", "TOKEN"), (6, b"7 USDC", "TOKEN"), (6, b"x" * 17, "TOKEN"), (6, b"\xff", "TOKEN"),
        (31, b"WIDE", None), (None, b"NONE", None),
    ],
)  # fmt: skip
def test_a_token_tells_its_currency_once(
    contracts: Contracts, monkeypatch: pytest.MonkeyPatch, decimals: int | None, symbol: bytes, told: str | None
) -> None:
    token, asked = Token(contracts.token.w3, contracts.token.address), []

    def read(self: Token, function: str) -> int:
        asked.append(function)
        if decimals is None:
            raise ChainError("reverted", "it has none")
        return decimals

    monkeypatch.setattr(Token, "read", read)
    monkeypatch.setattr("lockstep.chain.contracts._answer", lambda *asked: symbol.ljust(32, b"\0"))
    if told is None:
        with pytest.raises(ChainError, match="decimals"):
            _ = token.currency
    else:
        assert [token.currency, token.currency] == [Currency(told, decimals or 0)] * 2
        assert asked == ["decimals"]


def test_a_process_counts_in_the_token_of_its_market(devnet: Local, contracts: Contracts) -> None:
    set_market_currency(Currency("USDC", 6))
    assert Contracts.at(devnet.w3, contracts.addresses).token.currency == TEST_TOKEN == market_currency()


def test_one_permit_stakes_in_one_transaction(
    contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    token, vault = contracts.token, contracts.vault
    outbox = open_outbox(rich)
    outbox.send(token.approve(vault.address, Wei(0)), "no allowance")
    deadline = Seconds(vault.w3.eth.get_block("latest")["timestamp"] + 1_000)
    permit = token.sign_permit(rich, vault.address, Wei(300), deadline)
    outbox.send(vault.deposit_with_permit(Wei(300), permit), "stake")
    assert vault.free(rich.address) == 300


def test_parameters_come_back_as_they_were_stored(
    contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    import random

    outbox = open_outbox(rich)
    market = contracts.market
    for i in range(5):
        params = amended(params_of(random.Random(i)), challenge_seconds=300)
        receipt = outbox.send(market.create(params, i, params.escrow), f"create {i}")
        log = market.w3.eth.get_transaction_receipt(receipt.transaction)["logs"][0]
        assert market.params(log["topics"][1]) == params
        assert market.job(log["topics"][1]).escrow == params.escrow
