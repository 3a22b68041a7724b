"""The Validator under brownie: the vectors that its twin wrote."""

import json
from pathlib import Path

import pytest
from brownie import Validator, web3

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/validator.json").read_text())


@pytest.fixture(scope="module")
def validator(accounts):
    return Validator.deploy(accounts[1], {"from": accounts[0]})


RULES = range(51)


def test_every_rule_is_in_the_vectors():
    assert {v["rule"] for v in VECTORS} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_evidence_breaks_the_rule_of_its_vector(validator, rule):
    # web3's encoding: brownie's makes a zero byte of "0x".
    contract = web3.eth.contract(address=validator.address, abi=Validator.abi)
    vectors = [v for v in VECTORS if v["rule"] == rule]
    found = {v["name"]: contract.functions.check(v["job"], v["evidence"]).call() for v in vectors}
    assert found == dict.fromkeys(found, rule)
