"""DisputeGame under brownie: its addresses, and the ids of games."""

import pytest
import rlp
from eth_abi import encode
from eth_utils import keccak, to_checksum_address

CLAIM = "0x" + "11" * 32


@pytest.fixture(scope="module")
def deployed(accounts, TestToken, Jobs, Rounds, Settling, StakeVault, JobMarket, DisputeGame, Arbiter):
    deployer = accounts[0]

    def creation(after):
        encoded = rlp.encode([bytes.fromhex(deployer.address[2:]), deployer.nonce + after])
        return to_checksum_address(keccak(encoded)[12:])

    token = TestToken.deploy({"from": deployer})
    arbiter = Arbiter.deploy({"from": deployer})
    Settling.deploy({"from": deployer})
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
