// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {keep} from "./OneRole.sol";
import {IDisputeGame} from "../../contracts/interfaces/IDisputeGame.sol";
import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {BYTE_GAS, TRANSACTION_GAS} from "../../contracts/libraries/Constants.sol";
import {GamesOpen} from "../../contracts/libraries/Errors.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {Deployed} from "./Deployed.sol";

/// @title IncentivesTest
/// @notice What nobody earns: prizes, bonds and gas that would go to who did not work for them, on the contracts as deployed.
contract IncentivesTest is Deployed {
    using GameStates for IDisputeGame.GameState;

    uint256 internal constant REQUESTER = 0;
    uint256 internal constant AGGREGATOR = 1;
    uint256 internal constant ACCOMPLICE = 2;
    uint256 internal constant FINDER = 3;
    uint256 internal constant WORKERS = 10;
    uint256 internal constant DEPOSIT = 2_000e18;

    /// A job of the preset, everybody funded, its gas at a fifth of the cap.
    function _begin(uint16 slots) internal {
        _deploy(14 days);
        for (uint256 i = 0; i < WORKERS; i++) _fund(i, i == REQUESTER ? 0 : DEPOSIT);
        for (uint256 i = 0; i < slots; i++) _fund(WORKERS + i, DEPOSIT);
        keep(terms, _mainnet(slots));
        terms.merge.aggregator = acc(AGGREGATOR);
        CHEATS.fee(20 gwei);
    }

    function _openGame(uint256 who, ClaimId claim) internal watched returns (GameId) {
        IDisputeGame.Step memory none;
        IJobMarket.Body memory said = _opened(claim).body;
        CHEATS.prank(acc(who));
        return game.open(claim, said, 0, 0, 0, new bytes32[](0), none);
    }

    function _refused(address who, address where, bytes memory call, bytes memory why) internal {
        CHEATS.prank(who);
        (bool ok, bytes memory said) = where.call(call);
        require(!ok && keccak256(said) == keccak256(why), "refused otherwise");
    }

    /// @dev Token units for gas at the block's base fee.
    function _cost(uint256 gas) internal view returns (uint256) {
        return gas * terms.prices.gasPrice * block.basefee / terms.prices.feeCap + 1;
    }

    // -- two signatures --------------------------------------------------------------------------------------------

    function _twice(uint32 slot, uint256 key) internal view returns (bytes memory) {
        IJobMarket.Round memory ro = market.round(job, 0);
        IDisputeGame.Work memory w = IDisputeGame.Work(job, 0, 0, slot, ro.seed, ro.base);
        return abi.encodeCall(game.equivocate, (w, _signed(w, keccak256("one"), key), _signed(w, keccak256("other"), key)));
    }

    /// A liar that is challenged cannot convict itself by two signatures and so take the prize along.
    function test_two_signatures_wait_for_the_games_on_a_claim() external {
        _begin(4);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        ClaimId lie = market.claimIdOf(job, 0, 0);
        GameId found = _openGame(FINDER, lie);
        bytes memory pair = _twice(0, KEY + WORKERS);
        _refused(acc(ACCOMPLICE), address(game), pair, abi.encodeWithSelector(GamesOpen.selector, 1));
        CHEATS.warp(standingOf(found).deadline() + 1);
        game.resolve(found, standingOf(found));
        require(vault.credits(acc(FINDER)) >= 12e18, "the prize is its finder's");
    }

    /// Where no game is open they convict, and whoever shows them has its gas back and no more.
    function test_two_signatures_pay_their_gas_and_no_prize() external {
        _begin(4);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        bytes memory pair = _twice(0, KEY + WORKERS);
        CHEATS.prank(acc(ACCOMPLICE));
        uint256 gas = gasleft();
        (bool ok,) = address(game).call(pair);
        gas -= gasleft();
        uint256 paid = vault.credits(acc(ACCOMPLICE));
        require(ok && market.claim(market.claimIdOf(job, 0, 0)).status == IJobMarket.ClaimStatus.Convicted, "convicted");
        require(paid > _cost(TRANSACTION_GAS) && paid < _cost(TRANSACTION_GAS + BYTE_GAS * pair.length + gas), "its gas");
        require(vault.credits(acc(REQUESTER)) == 8e18 - paid, "the requester's fifth, less that");
        require(vault.credits(vault.BURN()) == 32e18, "half and the prize");
    }
}
