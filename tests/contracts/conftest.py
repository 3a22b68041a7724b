"""The five contracts on Anvil, as brownie deploys them; short hands for a job's round."""

import re
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import brownie
import pytest
from brownie import (
    Arbiter,
    DisputeGame,
    JobMarket,
    Jobs,
    Rounds,
    Settling,
    StakeVault,
    TestToken,
    accounts,
    chain,
    web3,
)
from eth_abi import encode
from hexbytes import HexBytes
from web3.exceptions import TransactionNotFound

sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
from tests.support import recordings

ZERO = bytes(32)
BURN = "0x000000000000000000000000000000000000dEaD"
MERGE = 0xFFFFFFFF
UNBOND_SECONDS = 3_600
PRICE, MERGE_PRICE, STAKE, MERGE_STAKE, BOND = 1_000, 601, 10_007, 20_011, 5_003
ESCROW = 2 * (3 * PRICE + MERGE_PRICE)
DEPOSIT = 3 * (3 * PRICE + MERGE_PRICE)


def fields_of(function):
    """The names of the struct that a view of the market returns."""
    (struct,) = next(entry for entry in JobMarket.abi if entry.get("name") == function)["outputs"]
    return [field["name"] for field in struct["components"]]


def job_groups():
    """Of JobParams: group -> its fields' names, the role's under "roles"."""
    (struct,) = next(entry for entry in JobMarket.abi if entry.get("name") == "params")["outputs"]
    return {group["name"]: [field["name"] for field in group["components"]] for group in struct["components"]}


JOB_GROUPS, ROUND_FIELDS = job_groups(), fields_of("round")
GROUPED = {"digest", "program", "shared", "outer", "price", "stake"}
"""Fields that are named with their group: mergePrice, genesisShared, specDigest."""


@pytest.fixture(scope="session", autouse=True)
def base_fee():
    """Ganache has a base fee that no option takes away; the Anvil of these tests has none."""
    if web3.client_version.lower().startswith("ganache"):
        brownie.network.gas_price("10 gwei")


@pytest.fixture(scope="session", autouse=True)
def mined_transactions():
    """While Anvil mines a transaction it knows none: neither pending nor mined. Brownie would take it for dropped."""
    get = web3.eth.get_transaction

    def patiently(hash_):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with suppress(TransactionNotFound):
                return get(hash_)
            time.sleep(0.02)
        return get(hash_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web3.eth, "get_transaction", patiently)
        yield


@pytest.fixture(autouse=True)
def isolation(fn_isolation, request, monkeypatch):
    """Every test starts from the deployment; what it did and asked can be recorded."""
    asked, call = {}, web3.eth.call

    def ask(transaction, *rest, **options):
        data = bytes(HexBytes(transaction["data"]))
        sender = transaction.get("from", recordings.NOWHERE)
        asked[recordings.Question(web3.eth.block_number, str(sender), str(transaction["to"]), data)] = None
        return call(transaction, *rest, **options)

    if recordings.folder_of():
        monkeypatch.setattr(web3.eth, "call", ask)
    yield
    codes = {container._name: container.bytecode for container in brownie.project.get_loaded_projects()[0]}
    name = request.node.name.partition("[")[0]
    recordings.record(web3.provider.endpoint_uri, f"brownie-{name}", codes, asked)


def deploy(game=None):
    """token, arbiter, settling, rounds, jobs, vault, market, game: by one account, in its next eight transactions."""
    deployer = accounts[0]
    at = [deployer.get_deployment_address(deployer.nonce + i) for i in range(8)]
    token = TestToken.deploy({"from": deployer})
    arbiter = Arbiter.deploy({"from": deployer})
    settling = Settling.deploy({"from": deployer})
    rounds = Rounds.deploy({"from": deployer})
    jobs = Jobs.deploy({"from": deployer})
    judge, others = game or at[7], [accounts[8]] * 3
    vault = StakeVault.deploy(token, at[6], judge, *others[1:], UNBOND_SECONDS, {"from": deployer})
    market = JobMarket.deploy(token, vault, judge, *others, 1, 0, {"from": deployer})
    court = DisputeGame.deploy(market, vault, arbiter, {"from": deployer})
    assert [token, arbiter, settling, rounds, jobs, vault, market, court] == at, (
        "each contract lies where the others expect it"
    )
    for account in accounts[1:7]:
        token.mint(account, 10**6, {"from": account})
        token.approve(vault, 2**256 - 1, {"from": account})
        vault.deposit(10**5, {"from": account})
    return SimpleNamespace(token=token, arbiter=arbiter, vault=vault, market=market, game=court)


@pytest.fixture(scope="module")
def parts():
    """The deployment with its real game."""
    return deploy()


@pytest.fixture(scope="module")
def bench():
    """A deployment whose game is accounts[9]: the market's callbacks, one by one."""
    return deploy(accounts[9])


def leaf(data):
    return sha256(b"\x00" + data).digest()


def node(left, right):
    return sha256(b"\x01" + left + right).digest()


def params(**changed):
    """A job of two rounds and three slots; `changed` by field."""
    values = {"sharedDepth": 2, "payloadDepth": 2, "carryDepth": 2, "innerSteps": 1, "rounds": 2, "slots": 3}
    values |= {"minSlots": 2, "maxLead": 2, "maxFail": 0, "slotPrice": PRICE, "mergePrice": MERGE_PRICE}
    values |= {"slotStake": STAKE, "mergeStake": MERGE_STAKE, "bond": BOND, "aggregator": accounts[2].address}
    values |= {"profile": 1, "opset": 1, "witnesses": 0, "gasPrice": 0, "feeCap": 10**9, "stepSeconds": 25}
    values |= {"baseLag": 1, "carryPeriod": 0, "merged": True, "inboxRole": 0, "inboxLag": 0}
    roots = ("specDigest", "stepProgram", "encodeProgram", "mergeProgram", "datasetRoot", "genesisShared")
    values |= dict.fromkeys((*roots, "genesisOuter", "zeroCarry", "zeroPayload"), leaf(b"root"))
    values |= changed
    groups = {
        group: [values.get(group + name.capitalize() if name in GROUPED else name, 100) for name in names]
        for group, names in JOB_GROUPS.items()
    }
    return [*(words for group, words in groups.items() if group != "roles"), [groups["roles"]]]


RECEIPT = {
    "EIP712Domain": [
        {"name": "name", "type": "string"},
        {"name": "version", "type": "string"},
        {"name": "chainId", "type": "uint256"},
        {"name": "verifyingContract", "type": "address"},
    ],
    "Receipt": [
        {"name": "job", "type": "bytes32"},
        {"name": "round", "type": "uint32"},
        {"name": "attempt", "type": "uint32"},
        {"name": "who", "type": "uint32"},
        {"name": "mask", "type": "uint256"},
    ],
}


class Job:
    """One job, created by accounts[1], aggregated by accounts[2], worked on by accounts[3..5]."""

    def __init__(self, parts, escrow=ESCROW, **changed):
        self.requester, self.aggregator, *self.workers, self.challenger = accounts[1:7]
        self.market, self.vault = parts.market, parts.vault
        self.params = params(**changed)
        tx = self.market.create(self.params, 0, escrow, {"from": self.requester})
        self.id = tx.events["JobCreated"]["job"]

    def claim(self, slot, r=0):
        return bytes(self.market.claimIdOf(self.id, r, slot))

    def round(self, r=0):
        """The round's fields by name."""
        return dict(zip(ROUND_FIELDS, self.market.round(self.id, r), strict=True))

    def phase(self, r=0):
        return PHASES[self.market.phase(self.id, r)]

    def opened(self, claim):
        """(body, nonce, proofT, traceCid, payloadCid, carries) of a made-up trace of two states."""
        out, out2, first = leaf(claim + b"out"), leaf(claim + b"out2"), leaf(leaf(claim))
        body = [node(first, leaf(node(out, out2))), out, out2]
        return [body, leaf(claim + b"nonce"), [first], b"trace", b"payload", False]

    def body(self, claim):
        """What a claim says; `merge` claims the same outputs always."""
        if self.market.claim(claim)["slot"] != MERGE:
            return self.opened(claim)[0]
        out, out2 = leaf(b"next"), leaf(b"outer")
        return [leaf(node(out, out2)), out, out2]

    def commitment(self, claim, worker):
        o = self.opened(claim)
        types = ["bytes32", "address", "bytes32", "bytes32", "bytes32", "bool", "bytes32"]
        return web3.keccak(encode(types, [claim, worker.address, *o[0], o[5], o[1]]))

    def start(self, r=0):
        self.market.startRound(self.id, r, {"from": self.requester})

    def join(self, r=0):
        for s, worker in enumerate(self.workers):
            self.market.join(self.id, r, s, {"from": worker})

    def seal(self, r=0):
        chain.mine(1)
        self.market.seal(self.id, r, {"from": self.requester})

    def commit(self, r=0, slots=(0, 1, 2)):
        for s in slots:
            commitment = self.commitment(self.claim(s, r), self.workers[s])
            self.market.commit(self.id, r, s, commitment, {"from": self.workers[s]})

    def reveal(self, r=0, slots=(0, 1, 2)):
        for s in slots:
            self.market.reveal(self.id, r, s, self.opened(self.claim(s, r)), {"from": self.workers[s]})

    def to_revealed(self, r=0):
        self.start(r)
        self.join(r)
        self.seal(r)
        self.commit(r)
        self.reveal(r)

    def to_frozen(self, r=0, mask=7):
        self.to_revealed(r)
        self.attest(r, mask)
        self.freeze(r)

    def revealed(self, r=0):
        """The slots whose claims are Revealed."""
        return [s for s in range(3) if self.market.claim(self.claim(s, r))["status"] == 3]

    def receipt(self, slot, mask, r=0, by=None):
        """(who, mask, signature) of a slot's owner."""
        said = {"job": str(self.id), "round": r, "attempt": self.round(r)["attempt"]}
        said |= {"who": slot, "mask": mask}
        where = {"name": "Lockstep", "version": "1", "chainId": web3.chain_id, "verifyingContract": self.market.address}
        data = {"types": RECEIPT, "primaryType": "Receipt", "domain": where, "message": said}
        signed = web3.provider.make_request("eth_signTypedData_v4", [(by or self.workers[slot]).address, data])
        return [slot, mask, signed["result"]]

    def attest(self, r=0, mask=7):
        """Every owner of a revealed slot names the slots of the mask."""
        given = [self.receipt(s, mask, r) for s in self.revealed(r)]
        return self.market.attest(self.id, r, given, {"from": self.requester})

    def bodies(self, r=0):
        """What `freeze` takes."""
        return [self.opened(self.claim(s, r))[0] for s in self.revealed(r)]

    def freeze(self, r=0, sender=None):
        """Once payloads have been demanded for a quarter of the window."""
        if self.phase(r) == "Attesting":
            ro = self.round(r)
            later(max(4, (ro["attestEnds"] - ro["revealEnds"]) // 4))
        return self.market.freeze(self.id, r, self.bodies(r), {"from": sender or self.requester})

    def merge(self, r=0, merger=None):
        tx = self.market.merge(
            self.id, r, leaf(b"next"), leaf(b"outer"), b"cid", 1, {"from": merger or self.aggregator}
        )
        return bytes(tx.events["Merged"]["claim"])

    def to_lead(self, r=0):
        self.to_frozen(r)
        return self.merge(r)

    def finalize(self, r=0):
        return self.market.finalize(self.id, r, {"from": self.requester})


PHASES = [
    "None", "Joining", "Sealing", "Training", "Revealing", "Attesting", "Freezing", "Merging", "Lead", "Final",
    "Failed", "Void",
]  # fmt: skip


def later(seconds):
    """Moves chain time."""
    chain.sleep(seconds)
    chain.mine(1)


def reverts(name, *arguments):
    """Expects a revert with the custom error `name` and these arguments: brownie reports it as "name: arguments"."""
    said = rf"{name}: {', '.join(re.escape(str(a)) for a in arguments)}" if arguments else rf"{name}(:.*)?"
    return brownie.reverts(revert_pattern=said)
