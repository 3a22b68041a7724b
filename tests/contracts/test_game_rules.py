"""DisputeGame under brownie: who may call what before a claim exists, and what its addresses are."""

import brownie
import pytest
import rlp
from eth_abi import encode
from eth_utils import keccak, to_checksum_address

ZERO = "0x" + "00" * 32
STEP = (ZERO, [], "0x", ZERO, ZERO)
CLAIM = "0x" + "11" * 32
STANDING = (CLAIM, 0, ZERO, ZERO, 0, 0)


@pytest.fixture(scope="module")
def deployed(accounts, TestToken, Jobs, Rounds, StakeVault, JobMarket, DisputeGame, Arbiter):
    deployer = accounts[0]

    def creation(after):
        encoded = rlp.encode([bytes.fromhex(deployer.address[2:]), deployer.nonce + after])
        return to_checksum_address(keccak(encoded)[12:])

    token = TestToken.deploy({"from": deployer})
    arbiter = Arbiter.deploy({"from": deployer})
    Rounds.deploy({"from": deployer})
    Jobs.deploy({"from": deployer})
    market_at, game_at = creation(1), creation(2)
    others = [accounts[8]] * 3
    vault = StakeVault.deploy(token, market_at, game_at, *others[1:], 14 * 86_400, {"from": deployer})
    market = JobMarket.deploy(token, vault, game_at, *others, 1, 0, {"from": deployer})
    game = DisputeGame.deploy(market, vault, arbiter, {"from": deployer})
    assert (market.address, game.address) == (market_at, game_at)
    return game, market, vault, arbiter


def test_addresses_are_fixed_at_birth(deployed):
    game, market, vault, arbiter = deployed
    assert (game.market(), game.vault(), game.arbiter()) == (market, vault, arbiter)


def test_game_id_is_a_hash_of_claim_challenger_and_nonce_then_the_challenger(deployed, accounts):
    game = deployed[0]
    packed = encode(["bytes32", "address", "uint32"], [bytes.fromhex(CLAIM[2:]), accounts[1].address, 7])
    assert game.gameIdOf(CLAIM, accounts[1], 7) == "0x" + keccak(packed)[:12].hex() + accounts[1].address[2:].lower()


def test_game_on_no_claim_reverts(deployed, accounts):
    with brownie.reverts():
        deployed[0].open(CLAIM, [ZERO] * 3, 0, 1, ZERO, [], STEP, {"from": accounts[1]})


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("reveal", ([],)),
        ("pick", (0, ZERO, [])),
        ("adjacent", (STEP,)),
        ("defend", ("0x", ZERO, ZERO, [], [])),
        ("revealTensor", ("0x", "0x", [], ZERO, [])),
        ("postLeaf", ("0x",)),
        ("pickElement", (0,)),
        ("postPartials", ("0x",)),
        ("pickPartial", (0, "0x")),
        ("stage", (("0x", 0, "0x", [], "0x"),)),
        ("proveOp", (("0x", 0, "0x", [], "0x"),)),
        ("proveAlias", ("0x", "0x", ZERO, [])),
        ("provePadding", ()),
    ],
)
def test_move_without_a_game_reverts(deployed, accounts, call, arguments):
    with brownie.reverts():
        getattr(deployed[0], call)(CLAIM, STANDING, *arguments, {"from": accounts[1]})


def test_resolve_without_a_game_reverts(deployed, accounts):
    with brownie.reverts():
        deployed[0].resolve(CLAIM, STANDING, {"from": accounts[1]})


def test_verdicts_come_from_the_game_alone(deployed, accounts):
    _, market, vault, _ = deployed
    for call, rest in ((market.onRejected, ()), (market.onOpen, ([ZERO] * 3,))):
        with brownie.reverts():
            call(CLAIM, *rest, {"from": accounts[1]})
    with brownie.reverts():
        market.onConvicted(CLAIM, 1, [accounts[1]], [], {"from": accounts[1]})
    with brownie.reverts():
        vault.takeBond(CLAIM, accounts[1], 1, {"from": accounts[1]})
