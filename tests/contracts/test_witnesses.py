"""Witnesses: who is drawn, what binds it, what its word earns and costs."""

import struct
from hashlib import sha256
from types import SimpleNamespace

import pytest
from brownie import JobMarket, Jobs, Rounds, Settling, StakeVault, TestToken, Witnesses, accounts, chain, web3
from conftest import BURN, ESCROW, UNBOND_SECONDS, Job, later, leaf, node, reverts
from eth_abi import encode

FEE, WITNESS_STAKE, AUDIT_SECONDS = 13, 271, 100
LINKS = 8
LISTED, SLASHED = 1, 3
DRAWING, DRAWN, SKIPPED = 1, 2, 3
PAID, FINED, LOST, VOID = range(4)


def keccak(types, values):
    return bytes(web3.keccak(encode(types, values)))


def chained(value, links):
    for _ in range(links):
        value = keccak(["bytes32"], [value])
    return value


@pytest.fixture(scope="module")
def bench():
    """A deployment whose game, validator and demands are accounts[9] and [8]; accounts[6] and [7] can be witnesses."""
    deployer = accounts[0]
    at = [deployer.get_deployment_address(deployer.nonce + i) for i in range(7)]
    token = TestToken.deploy({"from": deployer})
    Settling.deploy({"from": deployer})
    Rounds.deploy({"from": deployer})
    Jobs.deploy({"from": deployer})
    vault = StakeVault.deploy(token, at[5], accounts[9], at[6], accounts[8], UNBOND_SECONDS, {"from": deployer})
    market = JobMarket.deploy(token, vault, accounts[9], accounts[8], at[6], accounts[8], 1, 0, {"from": deployer})
    witnesses = Witnesses.deploy(market, vault, {"from": deployer})
    assert [token, vault, market, witnesses] == [at[0], *at[4:]], "each contract lies where the others expect it"
    for account in accounts[1:8]:
        token.mint(account, 10**6, {"from": account})
        token.approve(vault, 2**256 - 1, {"from": account})
        vault.deposit(10**5, {"from": account})
    return SimpleNamespace(token=token, vault=vault, market=market, witnesses=witnesses, game=accounts[9])


HEADER = b"".join(
    (
        b"LSP1", struct.pack(">HHHBBBH", 1, 1, 1, 3, 2, 2, 0), struct.pack(">BBI", 1, 1, 1) * 4,
        b"".join(struct.pack(">BH", *alias) for alias in ((1, 0), (2, 1), (2, 2), (2, 3))),
    )
)  # fmt: skip
"""The header of a step that computes the first of four scalars."""
CODE = [HEADER, leaf(b"ops"), leaf(b"consts")]
STEP = sha256(b"\x03" + leaf(HEADER) + CODE[1] + CODE[2]).digest()


def first_state(claim):
    """Its first scalar holds the claim's first word."""
    moved = sha256(b"\x02\x01\x00" + leaf(claim[:4])).digest()
    return node(node(moved, claim), node(claim, claim))


def first_leaf(claim):
    """(digest, code, leafProof, entryProof)."""
    return [leaf(claim[:4]), CODE, [], [claim, node(claim, claim)]]


class Audited(Job):
    """A job that draws one witness a round, accounts[7] unless the test enrols others."""

    def __init__(self, parts, enrolled=(7,), **changed):
        terms = {"witnesses": 1, "witnessFee": FEE, "witnessStake": WITNESS_STAKE, "auditSeconds": AUDIT_SECONDS}
        terms |= {"challengeSeconds": 2_000, "stepProgram": STEP}
        super().__init__(parts, ESCROW + 64 * FEE, **{**terms, **changed})
        self.witnesses, self.game = parts.witnesses, parts.game
        for k in enrolled:
            self.witnesses.enrol(self.id, self.preimage(accounts[k], 0), {"from": accounts[k]})

    def preimage(self, account, serial):
        """The chain's top is serial 0."""
        return chained(leaf(bytes.fromhex(account.address[2:])), LINKS - serial)

    def opened(self, claim):
        """Its first state can be opened."""
        (_, *outputs), nonce, _, *rest = Job.opened(self, claim)
        first = leaf(first_state(claim))
        return [[node(first, leaf(node(*outputs))), *outputs], nonce, [first], *rest]

    def audit_id(self, r=0):
        return bytes(self.witnesses.auditIdOf(self.id, r, self.round(r)["attempt"]))

    def draw(self, r=0):
        self.witnesses.draw(self.id, r, {"from": self.requester})
        chain.mine(1)
        self.witnesses.draw(self.id, r, {"from": self.requester})
        return self.audit_id(r)

    def status(self, r=0):
        return self.witnesses.audit(self.audit_id(r))["status"]

    def duty(self, audit, i=0):
        return self.witnesses.duty(audit, i)

    def word(self, audit, i=0, state=None, agrees=True, **changed):
        """(preimage, state, leaf, salt, agrees, body, proof) about a trace of two states, the first a made-up one."""
        duty = self.duty(audit, i)
        claim = self.claim(duty["slot"])
        preimage = self.preimage(accounts.at(duty["account"]), duty["serial"])
        body = self.opened(claim)[0]
        proof = [leaf(node(body[1], body[2]))] if agrees else []
        values = {
            "preimage": preimage, "state": state or first_state(claim), "leaf": first_leaf(claim),
            "salt": leaf(b"salt"), "agrees": agrees,
        }  # fmt: skip
        return [*(values | changed).values(), body, proof]

    def commit(self, audit, word=None, i=0):  # type: ignore[override]
        """To a word; the market's own commits are `Job.commit`'s."""
        duty = self.duty(audit, i)
        preimage, state, shown, salt, *_ = word or self.word(audit, i)
        types = ["bytes32", "address", *["bytes32"] * 4]
        bound = keccak(types, [self.claim(duty["slot"]), duty["account"], state, shown[0], preimage, salt])
        return self.witnesses.commit(audit, i, bound, {"from": duty["account"]})

    def to_revealed(self, r=0):
        self.start(r)
        self.join(r)
        self.seal(r)
        Job.commit(self, r)
        Job.reveal(self, r)

    def speak(self, audit, word=None, i=0):
        word = word or self.word(audit, i)
        return self.witnesses.reveal(audit, i, word, {"from": self.duty(audit, i)["account"]})

    def convict(self, slot, t):
        claim = self.claim(slot)
        self.market.onOpen(claim, self.body(claim), {"from": self.game})
        self.market.onConvicted(claim, t, [self.challenger], [], {"from": self.game})

    def to_final(self):
        later(100)
        bodies = [self.opened(self.claim(s))[0] for s in range(3) if self.market.claim(self.claim(s))["status"] == 3]
        self.market.freeze(self.id, 0, bodies, {"from": self.requester})
        self.merge()
        later(2_000)
        self.finalize()

    def settle(self, audit, i=0):
        return self.witnesses.settle(audit, i, {"from": accounts[8]}).events["DutyClosed"]["outcome"]

    def wealth(self, account):
        key = keccak(["bytes32", "address"], [self.id, account.address])
        return self.vault.free(account) + self.vault.credits(account) + self.vault.lockOf(key)["amount"]


def drawn(bench, **changed):
    """A revealed round whose one duty is accounts[7]'s."""
    job = Audited(bench, **changed)
    job.to_revealed()
    return job, job.draw()


def test_an_honest_witness_is_paid_from_escrow_when_the_round_is_final(bench):
    job, audit = drawn(bench)
    assert bench.market.job(job.id)["feesDue"] == FEE
    job.commit(audit)
    job.speak(audit)
    with reverts("DutyOpen"):
        job.settle(audit)
    job.to_final()
    assert job.settle(audit) == PAID
    with reverts("AlreadyDone"):
        job.settle(audit)
    assert job.wealth(accounts[7]) == 10**5 + FEE
    assert bench.market.job(job.id)["feesDue"] == 0
    job.witnesses.retire(job.id, {"from": accounts[7]})
    assert bench.vault.free(accounts[7]) == 10**5


def test_a_drawn_witness_gives_a_receipt(bench):
    job, _ = drawn(bench)
    with reverts("SignatureInvalid", accounts[7].address.lower()):
        bench.market.attest(job.id, 0, [job.receipt(64, 5, by=accounts[6])], {"from": accounts[8]})
    tx = bench.market.attest(job.id, 0, [job.receipt(64, 5, by=accounts[7])], {"from": accounts[8]})
    assert (tx.events["Attested"]["account"], tx.events["Attested"]["mask"]) == (accounts[7], 5)


def test_who_has_not_looked_cannot_agree_and_pays_for_differing(bench):
    job, audit = drawn(bench)
    garbage = job.word(audit, state=leaf(b"garbage"))
    job.commit(audit, garbage)
    with reverts("ProofInvalid"):
        job.speak(audit, garbage)
    job.speak(audit, job.word(audit, state=leaf(b"garbage"), agrees=False))
    job.to_final()
    assert job.settle(audit) == FINED
    assert job.wealth(accounts[7]) == 10**5 - FEE
    assert bench.vault.credits(BURN) == FEE
    assert job.witnesses.accounts(job.id) == (), "it is drawn no more"


def test_silence_costs_the_fee(bench):
    job, audit = drawn(bench)
    with reverts("DutyOpen"):
        job.settle(audit)
    later(AUDIT_SECONDS)
    with reverts("WindowClosed"):
        job.commit(audit)
    assert job.settle(audit) == FINED
    assert bench.vault.free(accounts[7]) == 10**5 - FEE, "the rest of its stake is free"


def test_who_attested_a_step_that_a_proof_shows_wrong_loses_its_stake(bench):
    job, audit = drawn(bench)
    word = job.word(audit)
    job.commit(audit, word)
    job.speak(audit, word)
    job.convict(job.duty(audit)["slot"], 1)
    assert job.settle(audit) == LOST
    assert job.wealth(accounts[7]) == 10**5 - WITNESS_STAKE
    assert job.witnesses.witness(job.id, accounts[7])["standing"] == 0, "forgotten"


def test_who_differs_is_paid_if_the_claim_falls(bench):
    job, audit = drawn(bench)
    word = job.word(audit, state=leaf(b"mine"), agrees=False)
    job.commit(audit, word)
    job.speak(audit, word)
    job.convict(job.duty(audit)["slot"], 0)
    with reverts("DutyOpen"):
        job.settle(audit)
    job.to_final()
    assert job.settle(audit) == PAID
    assert job.wealth(accounts[7]) == 10**5 + FEE
