"""StakeVault: who may move which balance, and where it ends."""

import pytest
from brownie import TestToken, accounts, chain, web3
from conftest import BURN, UNBOND_SECONDS, later, leaf, reverts
from eth_account import Account
from eth_account.messages import encode_typed_data

KEY = leaf(b"key")
ALL = 2**256 - 1
NOBODY = "0x" + "00" * 20


def test_one_permit_stakes_in_one_transaction(bench):
    owner = Account.create()
    accounts[0].transfer(owner.address, "1 ether")
    bench.token.mint(owner.address, 500, {"from": accounts[0]})
    deadline = chain.time() + 1_000
    signed = owner.sign_message(permit(bench, owner.address, 500, deadline))
    args = (500, deadline, signed.v, signed.r.to_bytes(32, "big"), signed.s.to_bytes(32, "big"))
    account = accounts.add(owner.key)
    bench.vault.depositWithPermit(*args, {"from": account})
    assert bench.vault.free(account) == 500
    with reverts("ERC20InsufficientAllowance"):
        bench.vault.depositWithPermit(*args, {"from": account})


def test_a_permit_that_somebody_sent_first_still_stakes(bench):
    owner = Account.create()
    accounts[0].transfer(owner.address, "1 ether")
    bench.token.mint(owner.address, 500, {"from": accounts[0]})
    deadline = chain.time() + 1_000
    signed = owner.sign_message(permit(bench, owner.address, 500, deadline))
    proof = (deadline, signed.v, signed.r.to_bytes(32, "big"), signed.s.to_bytes(32, "big"))
    bench.token.permit(owner.address, bench.vault, 500, *proof, {"from": accounts[7]})
    account = accounts.add(owner.key)
    bench.vault.depositWithPermit(500, *proof, {"from": account})
    assert bench.vault.free(account) == 500


def permit(parts, owner, value, deadline):
    """The ERC-2612 message."""
    fields = {
        "EIP712Domain": "name:string version:string chainId:uint256 verifyingContract:address",
        "Permit": "owner:address spender:address value:uint256 nonce:uint256 deadline:uint256",
    }
    types = {
        name: [{"name": part.partition(":")[0], "type": part.partition(":")[2]} for part in text.split()]
        for name, text in fields.items()
    }
    domain = {
        "name": parts.token.name(),
        "version": "1",
        "chainId": web3.eth.chain_id,
        "verifyingContract": parts.token.address,
    }
    message = {
        "owner": owner,
        "spender": parts.vault.address,
        "value": value,
        "nonce": parts.token.nonces(owner),
        "deadline": deadline,
    }
    full = {"types": types, "primaryType": "Permit", "domain": domain, "message": message}
    return encode_typed_data(full_message=full)


def test_unbonding_takes_its_time_and_a_further_request_starts_it_anew(bench):
    worker = accounts[3]
    with reverts("StakeTooLow"):
        bench.vault.requestUnbond(10**5 + 1, {"from": worker})
    bench.vault.requestUnbond(400, {"from": worker})
    later(UNBOND_SECONDS // 2)
    bench.vault.requestUnbond(600, {"from": worker})
    later(UNBOND_SECONDS // 2 + 1)
    with reverts("Unbonding"):
        bench.vault.withdrawUnbonded({"from": worker})
    later(UNBOND_SECONDS // 2)
    before = bench.token.balanceOf(worker)
    bench.vault.withdrawUnbonded({"from": worker})
    assert bench.token.balanceOf(worker) == before + 1_000
    with reverts("NothingDue"):
        bench.vault.withdrawUnbonded({"from": worker})


def test_a_lost_bond_goes_to_the_defender_and_to_nobody(bench):
    game, challenger, defender = {"from": accounts[9]}, accounts[6], accounts[3]
    bench.vault.lock(challenger, KEY, 99, game)
    assert tuple(bench.vault.lockOf(KEY)) == (challenger, 99, True)
    tx = bench.vault.takeBond(KEY, defender, 9, game)
    event = tx.events["BondTaken"]
    assert (event["amount"], event["burned"], event["toDefender"]) == (9, 4, 5)
    assert tuple(bench.vault.lockOf(KEY)) == (challenger, 90, True), "a part is taken, the rest stays"
    tx = bench.vault.takeBond(KEY, defender, ALL, game)
    event = tx.events["BondTaken"]
    assert (event["amount"], event["burned"], event["toDefender"]) == (90, 36, 54)
    assert bench.vault.credits(defender) == 59
    with reverts("NotLocked"):
        bench.vault.takeBond(KEY, defender, ALL, game)


def test_credits_are_pulled_and_the_burned_is_pushed_by_anyone(bench):
    game, defender = {"from": accounts[9]}, accounts[3]
    bench.vault.lock(accounts[6], KEY, 100, game)
    bench.vault.takeBond(KEY, defender, ALL, game)
    before = bench.token.balanceOf(defender)
    bench.vault.withdraw({"from": defender})
    assert bench.token.balanceOf(defender) == before + 60
    bench.vault.burn({"from": accounts[8]})
    assert bench.token.balanceOf(BURN) == 40
    for call in (bench.vault.withdraw, bench.vault.burn):
        with reverts("NothingDue"):
            call({"from": defender})


def test_an_owner_is_paid_what_leaves_and_the_stolen_key_nothing(bench):
    operator, owner, thief = accounts[3], accounts[6], accounts[8]
    game = {"from": accounts[9]}
    bench.vault.requestUnbond(400, {"from": operator})
    bench.vault.lock(accounts[4], KEY, 100, game)
    bench.vault.takeBond(KEY, operator, ALL, game)
    assert bench.vault.ownerOf(operator) == NOBODY
    tx = bench.vault.setOwner(owner, {"from": operator})
    assert dict(tx.events["OwnerSet"]) == {"account": operator, "owner": owner}

    for attempt in (bench.vault.requestUnbond, bench.vault.setOwner):
        with reverts("NotOwner"):
            attempt(1 if attempt == bench.vault.requestUnbond else thief, {"from": operator})

    # Whoever pushes, the owner is paid: what was earned, and what was unbonding before there was an owner.
    wallets = [bench.token.balanceOf(a) for a in (operator, owner, thief)]
    bench.vault.withdraw({"from": operator})
    later(UNBOND_SECONDS + 1)
    bench.vault.withdrawUnbonded({"from": operator})
    bench.vault.requestUnbondFor(operator, 600, {"from": owner})
    later(UNBOND_SECONDS + 1)
    tx = bench.vault.withdrawUnbondedFor(operator, {"from": owner})
    assert dict(tx.events["Unbonded"]) == {"account": operator, "amount": 600}
    paid = [bench.token.balanceOf(a) - before for a, before in zip((operator, owner, thief), wallets, strict=True)]
    assert paid == [0, 60 + 400 + 600, 0]
    with reverts("NothingDue"):
        bench.vault.withdrawFor(operator, {"from": owner})


@pytest.mark.parametrize("name", ["vault", "market", "game", "arbiter"])
def test_no_contract_has_an_owner_or_a_setter(bench, name):
    contract = getattr(bench, name)
    names = {entry["name"].lower() for entry in contract.abi if entry["type"] == "function"}
    suspects = {n for n in names if n.startswith(("owner", "set", "upgrade", "pause", "transferown", "initialize"))}
    assert suspects <= {"setdelegate", "setdelegatefor", "setowner", "ownerof"}, "delegate and owner of one's own"


def test_another_token_with_the_same_face_changes_nothing(bench):
    forged = TestToken.deploy({"from": accounts[8]})
    forged.mint(accounts[8], 10**9, {"from": accounts[8]})
    forged.transfer(bench.vault, 10**9, {"from": accounts[8]})
    assert bench.vault.free(accounts[8]) == 0
