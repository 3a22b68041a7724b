// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {StakeVault} from "../../contracts/StakeVault.sol";
import {Refund} from "../../contracts/interfaces/IStakeVault.sol";
import {Body, Claim, Facts, GameTerms} from "../../contracts/interfaces/IJobMarket.sol";
import {ClaimId} from "../../contracts/types/Ids.sol";

/// @title ClaimDouble
/// @notice What the game asks of the market, for one claim; the whole market is tested with the game on Anvil.
contract ClaimDouble {
    address public constant REQUESTER = 0x9999999999999999999999999999999999999999;

    StakeVault public vault;
    GameTerms public terms;
    bytes32 private _stateZero;
    bytes32 private _program;
    bytes32 private _lastProgram;
    bytes32 private _seed;
    uint32 private _round;
    uint32 private _slot;
    bool private _live = true;
    uint32 private _games;
    uint32 public convictedAt;
    uint256 public gasPrice;
    /// What a verdict asks to be given back, in gas.
    Refund[] private _asked;

    /// @dev The Programs are of the transitions before the last, and of the last.
    function set(StakeVault vault_, GameTerms memory terms_, bytes32 start, bytes32 program, bytes32 last) external {
        (vault, terms, _stateZero, _program, _lastProgram) = (vault_, terms_, start, program, last);
    }

    function setContext(bytes32 seed, uint32 round, uint32 slot) external {
        (_seed, _round, _slot) = (seed, round, slot);
    }

    function lock(ClaimId claim_, address account, uint256 amount) external {
        vault.lock(account, ClaimId.unwrap(claim_), amount);
    }

    // -- what the game calls

    function onOpen(ClaimId, Body calldata) external returns (GameTerms memory t) {
        t = terms;
        t.games = _games++;
    }

    /// @dev Gas costs nothing here unless `gasPrice` says otherwise.
    function onConvicted(ClaimId claim_, uint32 t, address[] calldata winners, Refund[] memory refunds) external {
        require(_live, "convicted once");
        (_live, convictedAt) = (false, t);
        for (uint256 i = 0; i < refunds.length; i++) {
            _asked.push(refunds[i]);
            refunds[i].amount *= gasPrice;
        }
        vault.slash(ClaimId.unwrap(claim_), 0, winners, refunds, REQUESTER);
    }

    function setGasPrice(uint256 price) external {
        gasPrice = price;
    }

    function asked() external view returns (Refund[] memory) {
        return _asked;
    }

    function onRejected(ClaimId) external {
    }

    function claim(ClaimId) external view returns (Claim memory c) {
        c.transitions = terms.transitions;
    }

    function live(ClaimId) external view returns (bool) {
        return _live;
    }

    function factsOf(ClaimId, uint32 t, bytes32[] calldata) external view returns (Facts memory f) {
        if (t == 1) f.stateZero = _stateZero;
        f.program = t == terms.transitions ? _lastProgram : _program;
        (f.seed, f.round, f.slot) = (_seed, _round, _slot);
    }
}
