"""The Validator under brownie: the vectors that its twin wrote."""

import json
from pathlib import Path

import pytest
from brownie import Validator, chain, web3
from eth_utils import keccak

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/validator.json").read_text())


@pytest.fixture(scope="module")
def validator(accounts):
    return Validator.deploy(accounts[1], {"from": accounts[0]})


RULES = range(55)


def test_every_rule_is_in_the_vectors():
    assert {v["rule"] for v in VECTORS} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_evidence_breaks_the_rule_of_its_vector(validator, rule):
    # web3's encoding: brownie's makes a zero byte of "0x".
    contract = web3.eth.contract(address=validator.address, abi=Validator.abi)
    vectors = [v for v in VECTORS if v["rule"] == rule]
    found = {v["name"]: contract.functions.check(v["job"], v["evidence"]).call() for v in vectors}
    assert found == dict.fromkeys(found, rule)


def test_a_proof_passes_a_block_after_its_senders_commitment_and_no_copy_does(validator, accounts):
    vector = VECTORS[0]
    contract = web3.eth.contract(address=validator.address, abi=Validator.abi)
    data = contract.encode_abi("proveInvalid", args=["0x" + "11" * 32, vector["evidence"]])
    digests = {
        who: keccak(bytes(12) + bytes.fromhex(who.address[2:]) + keccak(bytes.fromhex(data[2:])))
        for who in (accounts[3], accounts[4])
    }

    def refused(who):
        try:
            web3.eth.call({"from": who.address, "to": validator.address, "data": data}, "latest")
        except Exception as error:
            return str(getattr(error, "data", error))
        raise AssertionError("it is refused: no market stands behind this one")

    not_committed = keccak(b"NotCommitted(bytes32)")[:4].hex()
    assert not_committed in refused(accounts[3])
    tx = validator.commit([digests[accounts[3]]], {"from": accounts[3]})
    assert validator.committedAt(digests[accounts[3]]) == tx.block_number
    chain.mine()
    assert not_committed not in refused(accounts[3]), "past the commitment, at the market's parameters"
    assert not_committed in refused(accounts[4]), "who copied it has none"
    validator.commit([digests[accounts[4]]], {"from": accounts[4]})
    assert not_committed in refused(accounts[4]), "nor one that is old enough"
    validator.commit([digests[accounts[3]]], {"from": accounts[4]})
    assert validator.committedAt(digests[accounts[3]]) == tx.block_number, "the first block stays"
