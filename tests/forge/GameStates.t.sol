// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {GamePhase, GameState} from "../../contracts/interfaces/IDisputeGame.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";

/// @title GameStatesTest
/// @notice The fields of a game that share a word: each is where docs/protocol.md has it, and setting one leaves all others.
contract GameStatesTest {
    using GameStates for GameState;

    /// @dev Those of `parties` first. `defender` is set with the first `size`, `phase` with `deadline`.
    enum Field {
        Terms, T, Size, Defender,
        Phase, Rem, Deadline, LeftDefender, LeftChallenger, Word, Position, Op, Group, StateBlock
    }
    uint256 private constant FIELDS = 14;
    uint256 private constant PHASES = 19;

    function testFuzz_a_field_is_read_where_it_stands(GameState memory g) external pure {
        _aPhase(g);
        for (uint256 k = 0; k < FIELDS; k++) require(_get(g, Field(k)) == _slow(g, Field(k)), "read elsewhere");
    }

    function testFuzz_setting_a_field_leaves_all_others(GameState memory g, uint256 value) external pure {
        _aPhase(g);
        for (uint256 k = 0; k < FIELDS; k++) {
            if (!_isSetAlone(Field(k))) continue;
            GameState memory changed = _copy(g);
            (uint256 at, uint256 mask) = _place(Field(k));
            _set(changed, Field(k), value & mask);
            for (uint256 i = 0; i < FIELDS; i++) {
                require(_get(changed, Field(i)) == (i == k ? value & mask : _get(g, Field(i))), "another field");
            }
            _requireOneWordChanged(g, changed, Field(k), value & mask, at, mask);
        }
    }

    function testFuzz_a_turn_sets_phase_and_deadline(GameState memory g, uint8 phase, uint40 deadline) external pure {
        _aPhase(g);
        GameState memory changed = _copy(g);
        changed.setTurn(GamePhase(phase % PHASES), deadline);
        for (uint256 i = 0; i < FIELDS; i++) {
            uint256 due = _get(g, Field(i));
            if (Field(i) == Field.Phase) due = phase % PHASES;
            if (Field(i) == Field.Deadline) due = deadline;
            require(_get(changed, Field(i)) == due, "another field");
        }
        changed.turn = g.turn;
        require(changed.digest() == g.digest(), "nothing but the turn");
    }

    function testFuzz_parties_begin_with_a_defender_and_a_size(address defender, uint32 size) external pure {
        GameState memory g;
        g.parties = GameStates.partiesOf(defender, size);
        require(g.defender() == defender && g.size() == size && g.t() == 0 && g.terms() == 0, "these two alone");
    }

    function testFuzz_what_is_stored_is_the_start_of_the_hash(GameState memory g) external pure {
        bytes28 digest = g.digest();
        uint256 raw;
        assembly ("memory-safe") {
            raw := digest
        }
        require(raw == uint256(keccak256(abi.encode(g))) >> 32 << 32, "224 bits, and none behind them");
        require(raw == uint256(keccak256(abi.encode(g.claim, g.parties, g.node, g.statement, g.turn, g.staged))) >> 32 << 32, "six words");
    }

    function test_fields_share_no_bit() external pure {
        uint256[2] memory taken;
        uint256[2] memory all = [type(uint256).max, type(uint224).max];
        for (uint256 k = 0; k < FIELDS; k++) {
            (uint256 at, uint256 mask) = _place(Field(k));
            uint256 word = _isOfParties(Field(k)) ? 0 : 1;
            require(taken[word] & (mask << at) == 0, "two fields share a bit");
            taken[word] |= mask << at;
        }
        require(taken[0] == all[0] && taken[1] == all[1], "no bit between them");
    }

    // -- the slow version

    /// @dev The lowest bit of a field, and as many ones as it has bits.
    function _place(Field field) private pure returns (uint256 at, uint256 mask) {
        uint8[FIELDS] memory ats = [0, 32, 64, 96, 0, 8, 16, 56, 80, 104, 136, 168, 184, 192];
        uint8[FIELDS] memory bits = [32, 32, 32, 160, 8, 8, 40, 24, 24, 32, 32, 16, 8, 32];
        return (ats[uint256(field)], (1 << bits[uint256(field)]) - 1);
    }

    function _isOfParties(Field field) private pure returns (bool) {
        return field <= Field.Defender;
    }

    function _isSetAlone(Field field) private pure returns (bool) {
        return field != Field.Defender && field != Field.Phase && field != Field.Deadline;
    }

    function _slow(GameState memory g, Field field) private pure returns (uint256) {
        (uint256 at, uint256 mask) = _place(field);
        return (_isOfParties(field) ? g.parties : g.turn) >> at & mask;
    }

    function _requireOneWordChanged(
        GameState memory g,
        GameState memory changed,
        Field field,
        uint256 value,
        uint256 at,
        uint256 mask
    ) private pure {
        GameState memory due = _copy(g);
        if (_isOfParties(field)) due.parties = g.parties & ~(mask << at) | value << at;
        else due.turn = g.turn & ~(mask << at) | value << at;
        require(keccak256(abi.encode(changed)) == keccak256(abi.encode(due)), "nothing else");
    }

    function _copy(GameState memory g) private pure returns (GameState memory) {
        return GameState(g.claim, g.parties, g.node, g.statement, g.turn, g.staged);
    }

    /// @dev Any bits are no phase.
    function _aPhase(GameState memory g) private pure {
        g.turn = g.turn >> 8 << 8 | uint8(g.turn) % PHASES;
    }

    function _get(GameState memory g, Field field) private pure returns (uint256) {
        if (field == Field.Terms) return g.terms();
        if (field == Field.T) return g.t();
        if (field == Field.Size) return g.size();
        if (field == Field.Defender) return uint160(g.defender());
        if (field == Field.Phase) return uint256(g.phase());
        if (field == Field.Rem) return g.rem();
        if (field == Field.Deadline) return g.deadline();
        if (field == Field.LeftDefender) return g.leftDefender();
        if (field == Field.LeftChallenger) return g.leftChallenger();
        if (field == Field.Word) return g.word();
        if (field == Field.Position) return g.position();
        if (field == Field.Op) return g.op();
        if (field == Field.Group) return g.group();
        return g.stateBlock();
    }

    function _set(GameState memory g, Field field, uint256 value) private pure {
        if (field == Field.Terms) g.setTerms(uint32(value));
        else if (field == Field.T) g.setT(uint32(value));
        else if (field == Field.Size) g.setSize(uint32(value));
        else if (field == Field.Rem) g.setRem(uint8(value));
        else if (field == Field.LeftDefender) g.setLeftDefender(uint24(value));
        else if (field == Field.LeftChallenger) g.setLeftChallenger(uint24(value));
        else if (field == Field.Word) g.setWord(uint32(value));
        else if (field == Field.Position) g.setPosition(uint32(value));
        else if (field == Field.Op) g.setOp(uint16(value));
        else if (field == Field.Group) g.setGroup(uint8(value));
        else g.setStateBlock(uint32(value));
    }
}
