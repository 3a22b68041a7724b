"""Wrappers: the values mirror the ABI, reverts come back as the rule that they broke."""

from dataclasses import fields, replace

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain import artifacts, reverts
from lockstep.chain.contracts import Contracts, Lock
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Local
from lockstep.protocol import jobs
from lockstep.protocol.errors import ChainError, FundsError
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import job_rules
from lockstep.protocol.market.job_rules import check_params
from lockstep.protocol.market.prices import MAX_FEE_CAP
from lockstep.protocol.reverts import HINTS
from lockstep.protocol.types import Seconds, Wei
from tests.support.histories import random_params
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
    with pytest.raises(ChainError, match="no StakeVault at"):
        elsewhere.free("0x" + "33" * 20)


def test_an_addresses_file_that_mixes_two_deployments_is_refused(devnet: Local, contracts: Contracts) -> None:
    other = deploy(devnet.w3, devnet.account("another deployer"))
    for name in ("token", "vault", "game", "arbiter"):
        mixed = replace(contracts.addresses, **{name: getattr(other, name)})
        with pytest.raises(ChainError, match="another"):
            Contracts.at(devnet.w3, mixed)


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
        params = random_params(random.Random(i))
        receipt = outbox.send(market.create(params, i, params.escrow), f"create {i}")
        log = market.w3.eth.get_transaction_receipt(receipt.transaction)["logs"][0]
        assert market.params(log["topics"][1]) == params
        assert market.job(log["topics"][1]).escrow == params.escrow


@pytest.mark.sampled(1)
def test_bad_parameters_are_refused_before_and_on_the_chain_for_the_same_group(
    contracts: Contracts, rich: LocalAccount
) -> None:
    import random

    good = amended(random_params(random.Random(0)), slots=2, min_slots=1, rounds=2, carry_period=0)
    unbond, times = contracts.vault.unbond_seconds(), contracts.market.chain_times()
    check_params(good, unbond, times)
    paying = amended(
        good, witnesses=1, witness_fee=Wei(3), witness_stake=Wei(60), audit_seconds=Seconds(2), slot_stake=Wei(401)
    )
    check_params(paying, unbond, times)
    exact = amended(paying, witness_stake=Wei(200), audit_seconds=Seconds(3), attest_seconds=Seconds(21))
    check_params(exact, unbond, times)
    assert (
        exact.windows.challenge_seconds
        == exact.role.reveal_seconds + exact.role.attest_seconds + 3 * exact.windows.audit_seconds
    )
    contracts.market.read("create", exact, 0, exact.escrow, sender=rich.address)
    carrying = amended(good, carry_period=3, max_lead=4, shared_depth=1, payload_depth=1)
    for carried in (carrying, amended(carrying, carry_period=2), amended(carrying, carry_period=15, max_lead=16)):
        check_params(carried, unbond, times)
        contracts.market.read("create", carried, 0, carried.escrow, sender=rich.address)
    half = Wei(1 << 87)
    dear = amended(good, gas_price=Wei((1 << 88) // 240_000_000), slot_stake=half, merge_stake=half)
    check_params(dear, unbond, times)
    # Both sides draw these lines at the same length and second: that holds their constants equal.
    for length, parts in ((63 * 256 + 1, 1), (job_rules.MAX_ROW, 17)):
        long = amended(good, answer_seconds=Seconds(2 * parts * times.inclusion), row_length=length)
        check_params(long, unbond, times)
        contracts.market.read("create", long, 0, long.escrow, sender=rich.address)
    bad: list[tuple[str, JobParams]] = [
        ("roles", replace(good, roles=(good.role, good.role))),
        ("roles", amended(good, merged=False)),
        ("baseLag", amended(good, base_lag=2)),
        ("inbox", amended(good, inbox_lag=1)),
        ("inbox", amended(good, inbox_role=1)),
        ("carry", amended(carrying, carry_period=1)),
        ("carry", amended(carrying, carry_period=4)),
        ("carry", amended(carrying, max_lead=3)),
        ("depths", amended(good, carry_depth=good.genesis.shared_depth + 1)),
        ("profile", amended(good, profile=2)),
        ("profile", amended(good, opset=0)),
        ("programs", amended(good, merge_program=jobs.ZERO)),
        ("dataset", amended(good, row_length=0)),
        ("slots", amended(good, slots=65)),
        ("slots", amended(good, min_slots=3)),
        ("slots", amended(good, slots=0, min_slots=0)),
        ("rounds", amended(good, rounds=0)),
        ("rounds", amended(good, inner_steps=1 << 24)),
        ("maxLead", amended(good, max_lead=17)),
        ("depths", amended(good, shared_depth=24, payload_depth=22)),
        ("depths", amended(good, payload_depth=25)),
        ("windows", amended(good, turn_seconds=Seconds(0))),
        ("windows", amended(good, challenge_seconds=Seconds(31 * 86_400))),
        ("clocks", amended(good, clock_seconds=Seconds(59))),
        ("clocks", amended(good, step_seconds=Seconds(0))),
        ("unbonding", amended(good, challenge_seconds=Seconds(unbond - 1))),
        ("gas", amended(good, fee_cap=0)),
        ("gas", amended(good, fee_cap=MAX_FEE_CAP + 1)),
        ("stakes", amended(good, slot_stake=Wei(10 * good.role.slot_price - 1))),
        ("stakes", amended(good, merge_stake=Wei(10 * good.merge.price - 1))),
        ("stakes", amended(good, merge_stake=Wei(2 * good.role.slot_stake + 1))),
        ("stakes", amended(good, slot_price=Wei(0), slot_stake=Wei(0))),
        ("stakes", amended(good, gas_price=Wei(good.role.slot_stake))),
        ("bond", amended(good, bond=Wei(0))),
        ("bond", amended(good, slot_price=Wei(30), slot_stake=Wei(300), inner_steps=1, bond=Wei(29))),
        ("locks", amended(good, bond=Wei(1 << 88))),
        ("locks", amended(good, slot_stake=Wei(1 << 88))),
        ("locks", amended(good, slot_stake=Wei(1 << 87), merge_stake=Wei(1 << 88))),
        ("witnesses", amended(paying, witnesses=65)),
        ("witnesses", amended(paying, witness_fee=Wei(0))),
        ("witnesses", amended(paying, witness_stake=Wei(59))),
        ("witnesses", amended(paying, audit_seconds=Seconds(0))),
        ("witnesses", amended(exact, witness_stake=Wei(201))),
        ("witnesses", amended(exact, audit_seconds=Seconds(4))),
        ("witnesses", amended(exact, challenge_seconds=Seconds(exact.windows.challenge_seconds - 1))),
        ("answers", amended(good, answer_seconds=Seconds(2 * times.inclusion - 1))),
        ("answers", amended(good, answer_seconds=Seconds(3 * times.inclusion), row_length=63 * 256 + 2)),
        ("answers", amended(good, answer_seconds=Seconds(2 * 17 * times.inclusion - 1), row_length=job_rules.MAX_ROW)),
        ("dataset", amended(good, answer_seconds=Seconds(600), row_length=job_rules.MAX_ROW + 1)),
        ("locks", amended(dear, answer_seconds=Seconds(600), row_length=job_rules.MAX_ROW)),
        ("carry", amended(carrying, payload_depth=0)),
        ("carry", amended(carrying, payload_depth=2)),
    ]
    for group, params in bad:
        with pytest.raises(ChainError, match=rf"JobInvalid\({group}\)") as before:
            check_params(params, unbond, times)
        assert before.value.hint.startswith("required: "), group
        with pytest.raises(ChainError, match=rf"JobInvalid\({group}\)") as after:
            contracts.market.read("create", params, 0, 10**6, sender=rich.address)
        assert before.value.code == after.value.code == "chain.JobInvalid"
    with pytest.raises(FundsError, match="EscrowInsufficient"):
        contracts.market.read("create", good, 0, good.escrow - 1, sender=rich.address)
