// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {GamePhase, GameState} from "../interfaces/IDisputeGame.sol";

/// @title GameStates
/// @notice The fields of a game that share a word, each at its bit.
///
///   parties   0 terms u32   32 t u32   64 size u32   96 defender, an address
///   turn      0 phase u8   8 rem u8   16 deadline u40   56 leftDefender u24   80 leftChallenger u24   104 word u32
///             136 position u32   168 op u16   184 group u8   192 stateBlock u32
library GameStates {
    uint256 private constant T_AT = 32;
    uint256 private constant SIZE_AT = 64;
    uint256 private constant DEFENDER_AT = 96;
    uint256 private constant REM_AT = 8;
    uint256 private constant DEADLINE_AT = 16;
    uint256 private constant LEFT_DEFENDER_AT = 56;
    uint256 private constant LEFT_CHALLENGER_AT = 80;
    uint256 private constant WORD_AT = 104;
    uint256 private constant POSITION_AT = 136;
    uint256 private constant OP_AT = 168;
    uint256 private constant GROUP_AT = 184;
    uint256 private constant STATE_BLOCK_AT = 192;

    uint256 private constant U8 = type(uint8).max;
    uint256 private constant U16 = type(uint16).max;
    uint256 private constant U24 = type(uint24).max;
    uint256 private constant U32 = type(uint32).max;

    /// @notice What is stored of a game that is open.
    function digest(GameState memory g) internal pure returns (bytes28 hashed) {
        assembly ("memory-safe") {
            hashed := and(keccak256(g, 0xc0), not(0xffffffff))
        }
    }

    // -- parties

    function partiesOf(address defender_, uint32 size_) internal pure returns (uint256) {
        return uint256(uint160(defender_)) << DEFENDER_AT | uint256(size_) << SIZE_AT;
    }

    function terms(GameState memory g) internal pure returns (uint32) {
        return uint32(g.parties);
    }

    function t(GameState memory g) internal pure returns (uint32) {
        return uint32(g.parties >> T_AT);
    }

    function size(GameState memory g) internal pure returns (uint32) {
        return uint32(g.parties >> SIZE_AT);
    }

    function defender(GameState memory g) internal pure returns (address) {
        return address(uint160(g.parties >> DEFENDER_AT));
    }

    function setTerms(GameState memory g, uint32 value) internal pure {
        g.parties = g.parties & ~U32 | value;
    }

    function setT(GameState memory g, uint32 value) internal pure {
        g.parties = g.parties & ~(U32 << T_AT) | uint256(value) << T_AT;
    }

    function setSize(GameState memory g, uint32 value) internal pure {
        g.parties = g.parties & ~(U32 << SIZE_AT) | uint256(value) << SIZE_AT;
    }

    // -- turn

    function phase(GameState memory g) internal pure returns (GamePhase) {
        return GamePhase(uint8(g.turn));
    }

    function rem(GameState memory g) internal pure returns (uint8) {
        return uint8(g.turn >> REM_AT);
    }

    function deadline(GameState memory g) internal pure returns (uint40) {
        return uint40(g.turn >> DEADLINE_AT);
    }

    function leftDefender(GameState memory g) internal pure returns (uint24) {
        return uint24(g.turn >> LEFT_DEFENDER_AT);
    }

    function leftChallenger(GameState memory g) internal pure returns (uint24) {
        return uint24(g.turn >> LEFT_CHALLENGER_AT);
    }

    function word(GameState memory g) internal pure returns (uint32) {
        return uint32(g.turn >> WORD_AT);
    }

    function position(GameState memory g) internal pure returns (uint32) {
        return uint32(g.turn >> POSITION_AT);
    }

    function op(GameState memory g) internal pure returns (uint16) {
        return uint16(g.turn >> OP_AT);
    }

    function group(GameState memory g) internal pure returns (uint8) {
        return uint8(g.turn >> GROUP_AT);
    }

    function stateBlock(GameState memory g) internal pure returns (uint32) {
        return uint32(g.turn >> STATE_BLOCK_AT);
    }

    function setTurn(GameState memory g, GamePhase phase_, uint40 deadline_) internal pure {
        uint256 kept = g.turn & ~(uint256(type(uint40).max) << DEADLINE_AT | U8);
        g.turn = kept | uint256(deadline_) << DEADLINE_AT | uint256(phase_);
    }

    function setRem(GameState memory g, uint8 value) internal pure {
        g.turn = g.turn & ~(U8 << REM_AT) | uint256(value) << REM_AT;
    }

    function setLeftDefender(GameState memory g, uint24 value) internal pure {
        g.turn = g.turn & ~(U24 << LEFT_DEFENDER_AT) | uint256(value) << LEFT_DEFENDER_AT;
    }

    function setLeftChallenger(GameState memory g, uint24 value) internal pure {
        g.turn = g.turn & ~(U24 << LEFT_CHALLENGER_AT) | uint256(value) << LEFT_CHALLENGER_AT;
    }

    function setWord(GameState memory g, uint32 value) internal pure {
        g.turn = g.turn & ~(U32 << WORD_AT) | uint256(value) << WORD_AT;
    }

    function setPosition(GameState memory g, uint32 value) internal pure {
        g.turn = g.turn & ~(U32 << POSITION_AT) | uint256(value) << POSITION_AT;
    }

    function setOp(GameState memory g, uint16 value) internal pure {
        g.turn = g.turn & ~(U16 << OP_AT) | uint256(value) << OP_AT;
    }

    function setGroup(GameState memory g, uint8 value) internal pure {
        g.turn = g.turn & ~(U8 << GROUP_AT) | uint256(value) << GROUP_AT;
    }

    function setStateBlock(GameState memory g, uint32 value) internal pure {
        g.turn = g.turn & ~(U32 << STATE_BLOCK_AT) | uint256(value) << STATE_BLOCK_AT;
    }
}
