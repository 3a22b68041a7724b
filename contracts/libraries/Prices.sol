// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {
    BOND_GAMES,
    DEFENDER_GAS,
    FEES,
    FEE_BITS,
    FEE_UNIT,
    GAME_GAS,
    LEAD_FEES,
    LEAF_GAS,
    MAX_FEE_CAP,
    STAKE_GAMES,
    STAKE_PRICES,
    WITNESS_FEES
} from "./Constants.sol";

/// @title Prices
/// @notice The floors of stakes and bonds, and what gas costs in tokens. The Python twin is lockstep/protocol/market/prices.py.
/// @dev A job names two numbers: `gasPrice`, token units for one gas at the cap, and `feeCap`, the cap in wei per gas. Below the cap
///      a gas costs in proportion to the base fee; above it, no more than at it.
library Prices {
    uint256 private constant FEE_MASK = (1 << FEE_BITS) - 1;
    uint256 private constant RING_MASK = (1 << (FEES * FEE_BITS)) - 1;
    /// One in each place, and the free bit of each.
    uint256 private constant ONES = RING_MASK / FEE_MASK;
    uint256 private constant FREE = ONES << (FEE_BITS - 1);

    /// @notice The least stake behind work that is paid `price`.
    function stakeFloor(uint256 price, uint256 gasPrice) internal pure returns (uint256) {
        uint256 byPrice = STAKE_PRICES * price;
        uint256 byGas = STAKE_GAMES * GAME_GAS * gasPrice;
        return byPrice > byGas ? byPrice : byGas;
    }

    /// @notice The least of a bond that does not depend on gas: the price of one inner step, rounded up.
    function bondFloor(uint256 slotPrice, uint256 innerSteps) internal pure returns (uint256) {
        return _ceilDiv(slotPrice, innerSteps);
    }

    /// @notice The least stake of a witness of a job of which `maxLead` rounds may be in flight.
    function witnessFloor(uint256 witnessFee, uint256 maxLead) internal pure returns (uint256) {
        uint256 byLead = LEAD_FEES * maxLead;
        return (byLead > WITNESS_FEES ? byLead : WITNESS_FEES) * witnessFee;
    }

    /// @notice Token units for `gas` at a base fee, rounded up; above the cap, as at the cap.
    /// @dev feeCap > 0 (JobRules). A gasPrice of 128 bits, a fee of 64 and any block's gas fit the product.
    function gasCost(uint256 gas, uint256 gasPrice, uint256 feeCap, uint256 baseFee) internal pure returns (uint256) {
        return _ceilDiv(gas * gasPrice * (baseFee < feeCap ? baseFee : feeCap), feeCap);
    }

    /// @notice What a challenger locks: the job's own bond and three times the defender's gas at a base fee.
    function bondOf(uint256 bond, uint256 gasPrice, uint256 feeCap, uint256 baseFee) internal pure returns (uint256) {
        return bond + gasCost(BOND_GAMES * DEFENDER_GAS, gasPrice, feeCap, baseFee);
    }

    /// @notice What an asker of a row locks, given a game's bond now and the part of it that is the job's own.
    /// @dev The rest is the gas of BOND_GAMES defences; that of as many postings of each leaf is in proportion, rounded up.
    function rowBondOf(uint256 gameBond, uint256 bond, uint256 leaves) internal pure returns (uint256) {
        return gameBond + _ceilDiv((gameBond - bond) * leaves * LEAF_GAS, DEFENDER_GAS);
    }

    /// @notice The same at the cap, where it is highest.
    function dearestRowBond(uint256 bond, uint256 gasPrice, uint256 leaves) internal pure returns (uint256) {
        return bond + BOND_GAMES * (DEFENDER_GAS + leaves * LEAF_GAS) * gasPrice;
    }

    /// @notice The ring with one more base fee; the oldest of ten is forgotten.
    /// @dev Newest in the lowest bits, each in units rounded up, plus one: zero is a place that nothing has filled.
    function push(uint256 ring, uint256 baseFee) internal pure returns (uint256) {
        uint256 units = _ceilDiv(baseFee < MAX_FEE_CAP ? baseFee : MAX_FEE_CAP, FEE_UNIT);
        return ((ring << FEE_BITS) | (units + 1)) & RING_MASK;
    }

    /// @notice The median of the base fees remembered, the upper one of an even number; `none` if there are none.
    function median(uint256 ring, uint256 none) internal pure returns (uint256) {
        if (ring == 0) return none;
        uint256 half = (_atLeast(ring, 1) + 1) / 2;
        uint256 found = 0;
        for (uint256 at = ring; at != 0; at >>= FEE_BITS) {
            uint256 units = at & FEE_MASK;
            if (units > found && _atLeast(ring, units) >= half) found = units;
        }
        return (found - 1) * FEE_UNIT;
    }

    /// @dev How many in the ring are at least `units`: where one is less, the subtraction takes its free bit.
    function _atLeast(uint256 ring, uint256 units) private pure returns (uint256) {
        unchecked {
            uint256 free = ((ring | FREE) - units * ONES) & FREE;
            // The product's ninth place is the sum of all nine.
            return (((free >> (FEE_BITS - 1)) * ONES) >> ((FEES - 1) * FEE_BITS)) & FEE_MASK;
        }
    }

    function _ceilDiv(uint256 a, uint256 b) private pure returns (uint256) {
        return (a + b - 1) / b;
    }
}
