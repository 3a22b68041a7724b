"""The Validator under brownie: the vectors that its twin wrote."""

import json
from pathlib import Path

import pytest
from brownie import Validator, web3

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/validator.json").read_text())


@pytest.fixture(scope="module")
def validator(accounts):
    return Validator.deploy(accounts[1], {"from": accounts[0]})


def test_every_rule_is_in_the_vectors():
    assert {v["rule"] for v in VECTORS} == set(range(51))


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_evidence_breaks_the_rule_of_the_vector(validator, vector):
    # web3's encoding: brownie's makes a zero byte of "0x".
    contract = web3.eth.contract(address=validator.address, abi=Validator.abi)
    assert contract.functions.check(vector["job"], vector["evidence"]).call() == vector["rule"]
