// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {
    BOND_GAMES,
    DEFENDER_GAS,
    FEES,
    FEE_UNIT,
    GAME_GAS,
    LEAD_FEES,
    LEAF_GAS,
    MAX_FEE_CAP,
    STAKE_GAMES,
    STAKE_PRICES,
    WITNESS_FEES
} from "../../contracts/libraries/Constants.sol";
import {Prices} from "../../contracts/libraries/Prices.sol";
import {CHEATS} from "./Cheats.sol";

/// @title PricesTest
/// @notice Every vector of the Python twin (tests/support/price_vectors.py), and the ring of base fees against a slow median.
contract PricesTest {
    string private constant VECTORS = "tests/vectors/prices.jsonl";

    error Differs(string rule, uint256 row, uint256 contractSays, uint256 twinSays);

    /// @dev In the order of the file's lines.
    function test_every_vector_of_the_twin() external view {
        _check("constants", 0, _constant);
        _check("stakeFloor", 2, _stakeFloor);
        _check("bondFloor", 2, _bondFloor);
        _check("witnessFloor", 2, _witnessFloor);
        _check("gasCost", 4, _gasCost);
        _check("bondOf", 4, _bondOf);
        _check("rowBondOf", 3, _rowBondOf);
        _check("dearestRowBond", 3, _dearestRowBond);
        _check("push", 2, _push);
        _check("median", 2, _median);
        require(bytes(CHEATS.readLine(VECTORS)).length == 0, "a rule that is not asked");
    }

    /// forge-config: default.fuzz.runs = 128
    /// forge-config: slow.fuzz.runs = 1024
    function test_the_median_is_of_the_last_nine(uint64[] calldata fees, uint256 none) external pure {
        uint256 ring = 0;
        for (uint256 i = 0; i < fees.length; i++) {
            ring = Prices.push(ring, fees[i]);
        }
        uint256 from = fees.length > FEES ? fees.length - FEES : 0;
        uint256 answer = Prices.median(ring, none);
        if (fees.length == 0) {
            require(answer == none, "nothing seen, nothing said");
            return;
        }
        uint256 below = 0;
        uint256 upTo = 0;
        for (uint256 i = from; i < fees.length; i++) {
            uint256 rounded = _remembered(fees[i]);
            if (rounded < answer) below++;
            if (rounded <= answer) upTo++;
        }
        uint256 middle = (fees.length - from) / 2;
        require(below <= middle && middle < upTo, "the fee in the middle");
    }

    function _remembered(uint256 fee) private pure returns (uint256) {
        uint256 rounded = (fee + FEE_UNIT - 1) / FEE_UNIT * FEE_UNIT;
        return rounded < MAX_FEE_CAP ? rounded : MAX_FEE_CAP;
    }

    /// @dev Asks `f` for each row of the next line, with the arguments' column and where the row begins in it.
    function _check(string memory rule, uint256 arity, function(uint256[] memory, uint256) pure returns (uint256) f) private view {
        string memory line = CHEATS.readLine(VECTORS);
        require(keccak256(bytes(CHEATS.parseJsonString(line, ".rule"))) == keccak256(bytes(rule)), "another rule");
        uint256[] memory given = CHEATS.parseJsonUintArray(line, ".arguments");
        uint256[] memory answers = CHEATS.parseJsonUintArray(line, ".answers");
        require(answers.length > 0 && given.length == arity * answers.length, "columns of equal length");
        for (uint256 row = 0; row < answers.length; row++) {
            uint256 ours = f(given, arity == 0 ? row : row * arity);
            if (ours != answers[row]) revert Differs(rule, row, ours, answers[row]);
        }
    }

    function _constant(uint256[] memory, uint256 i) private pure returns (uint256) {
        return [
            GAME_GAS,
            DEFENDER_GAS,
            STAKE_PRICES,
            STAKE_GAMES,
            LEAF_GAS,
            BOND_GAMES,
            WITNESS_FEES,
            LEAD_FEES,
            FEES,
            FEE_UNIT,
            MAX_FEE_CAP
        ][i];
    }

    function _stakeFloor(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.stakeFloor(a[i], a[i + 1]);
    }

    function _bondFloor(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.bondFloor(a[i], a[i + 1]);
    }

    function _witnessFloor(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.witnessFloor(a[i], a[i + 1]);
    }

    function _gasCost(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.gasCost(a[i], a[i + 1], a[i + 2], a[i + 3]);
    }

    function _bondOf(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.bondOf(a[i], a[i + 1], a[i + 2], a[i + 3]);
    }

    function _rowBondOf(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.rowBondOf(a[i], a[i + 1], a[i + 2]);
    }

    function _dearestRowBond(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.dearestRowBond(a[i], a[i + 1], a[i + 2]);
    }

    function _push(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.push(a[i], a[i + 1]);
    }

    function _median(uint256[] memory a, uint256 i) private pure returns (uint256) {
        return Prices.median(a[i], a[i + 1]);
    }
}
