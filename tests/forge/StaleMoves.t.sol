// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IDisputeGame} from "../../contracts/interfaces/IDisputeGame.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {GamesTable} from "./GamesTable.sol";
import {Letters} from "./Letters.sol";

/// @title StaleMovesTest
/// @notice Every move shows the game as it stands, to the last bit: the contract stores a hash of it.
contract StaleMovesTest {
    using GameStates for IDisputeGame.GameState;

    uint256 private constant WORDS = 6;
    uint256 private constant PARTIES = 1;
    uint256 private constant TURN = 4;

    function test_a_move_that_shows_another_bit_is_refused() external {
        Letters.Lie[4] memory lies = [Letters.Lie.Letter, Letters.Lie.Chunk, Letters.Lie.Alias, Letters.Lie.Padding];
        for (uint256 k = 0; k < lies.length; k++) {
            GamesTable table = _table(lies[k], GamesTable.Actor.Liar);
            while (!table.isOver()) {
                (address mover, bytes memory call) = table.due(0);
                _requireShown(table, 0, mover, call);
                _plays(table, mover, call);
                // What was answered is answered once.
                _refused(table, mover, call, _reasonNow(table, 0));
            }
            require(_stored(table, 0).verdict == IDisputeGame.Verdict.Fraud, "convicted");
        }
    }

    function test_every_kind_of_move_shows_the_game() external {
        GamesTable table = _table(Letters.Lie.Chunk, GamesTable.Actor.Liar);
        GameId id = _id(table, 0);
        while (!table.isOver()) {
            (address mover, bytes memory call) = table.due(0);
            IDisputeGame.GameState memory g = table.standingOf(id);
            g.staged = ~g.staged;
            for (uint256 kind = 0; kind < table.KINDS(); kind++) {
                _refused(table, mover, table.anyCall(id, g, kind), _reasonNow(table, 0));
            }
            _plays(table, mover, call);
        }
    }

    /// @dev Whoever ends a game cannot choose who missed which deadline, nor of what claim.
    function test_a_game_is_ended_as_it_stands() external {
        GamesTable table = _table(Letters.Lie.Letter, GamesTable.Actor.Silent);
        CHEATS.warp(uint256(table.standingOf(_id(table, 0)).deadline()) + 1);
        _ends(table, 0, IDisputeGame.Verdict.Timeout);
    }

    function test_a_game_on_a_fallen_claim_is_ended_as_it_stands() external {
        GamesTable table = _table(Letters.Lie.Letter, GamesTable.Actor.Liar);
        table.open(GamesTable.Actor.Honest, 3);
        while (table.phaseOf(_id(table, 0)) != IDisputeGame.Phase.Closed) {
            (address mover, bytes memory call) = table.due(0);
            _plays(table, mover, call);
        }
        _ends(table, 1, IDisputeGame.Verdict.Void);
        table.checkMoney();
    }

    function test_a_closed_game_takes_no_move() external {
        GamesTable table = _table(Letters.Lie.Letter, GamesTable.Actor.Silent);
        GameId id = _id(table, 0);
        CHEATS.warp(uint256(table.standingOf(id).deadline()) + 1);
        _plays(table, table.STRANGER(), abi.encodeCall(IDisputeGame.resolve, (id, table.lastOf(id))));
        IDisputeGame.GameState memory none;
        bytes memory reason = _phaseWrong(IDisputeGame.Phase.Closed);
        _takesNothing(table, id, table.lastOf(id), reason);
        _takesNothing(table, id, table.standingOf(id), reason);
        _takesNothing(table, id, none, reason);
        IDisputeGame.Stored memory stored = _stored(table, 0);
        require(stored.standing == 0 && stored.spent == 0, "its word has the verdict alone");
        require(stored.verdict == IDisputeGame.Verdict.Timeout, "and keeps it");
    }

    function test_a_game_that_was_never_opened_takes_no_move() external {
        GamesTable table = _table(Letters.Lie.Letter, GamesTable.Actor.Silent);
        GameId id = table.game().gameIdOf(table.CLAIM(), table.account(0), 7);
        IDisputeGame.GameState memory none;
        bytes memory reason = _phaseWrong(IDisputeGame.Phase.None);
        _takesNothing(table, id, table.standingOf(_id(table, 0)), reason);
        _takesNothing(table, id, none, reason);
        require(table.phaseOf(id) == IDisputeGame.Phase.None, "nothing was opened");
    }

    // -- inside

    /// @dev A lie at step 3, and a game on its whole trace.
    function _table(Letters.Lie lie, GamesTable.Actor defender) private returns (GamesTable table) {
        table = new GamesTable();
        table.claims(Letters.Claim(0x61, lie, 3, 7, 1), defender, 1);
        table.open(GamesTable.Actor.Honest, 0);
    }

    function _plays(GamesTable table, address mover, bytes memory call) private {
        (bool done,) = table.sends(mover, call);
        require(done, "the game as it stands is answered");
    }

    /// @dev The call is refused if a word that it shows is another, or a bit of a word that has several fields.
    function _requireShown(GamesTable table, uint256 i, address mover, bytes memory call) private {
        bytes memory reason = _reasonNow(table, i);
        bytes32 before = keccak256(abi.encode(_stored(table, i)));
        for (uint256 word = 0; word < WORDS; word++) {
            bool isPacked = word == PARTIES || word == TURN;
            for (uint256 bit = 0; bit < 256; bit += isPacked ? 1 : 8) {
                _flip(call, word, 1 << bit);
                _refused(table, mover, call, reason);
                _flip(call, word, 1 << bit);
            }
            _flip(call, word, type(uint256).max);
            _refused(table, mover, call, reason);
            _flip(call, word, type(uint256).max);
        }
        require(keccak256(abi.encode(_stored(table, i))) == before, "what is refused changes nothing");
        table.checkMoney();
    }

    /// @dev In what a call shows, which stands behind its selector and the game's id.
    function _flip(bytes memory data, uint256 word, uint256 bits) private pure {
        assembly ("memory-safe") {
            let at := add(add(data, 0x44), mul(word, 0x20))
            mstore(at, xor(mload(at), bits))
        }
    }

    function _ends(GamesTable table, uint256 i, IDisputeGame.Verdict verdict) private {
        GameId id = _id(table, i);
        bytes memory call = abi.encodeCall(IDisputeGame.resolve, (id, table.standingOf(id)));
        _requireShown(table, i, table.STRANGER(), call);
        _plays(table, table.STRANGER(), call);
        require(_stored(table, i).verdict == verdict, "another verdict");
        _refused(table, table.STRANGER(), call, _phaseWrong(IDisputeGame.Phase.Closed));
    }

    function _takesNothing(GamesTable table, GameId id, IDisputeGame.GameState memory g, bytes memory reason) private {
        for (uint256 kind = 0; kind < table.KINDS(); kind++) {
            bytes memory call = table.anyCall(id, g, kind);
            _refused(table, table.WORKER(), call, reason);
            _refused(table, table.account(0), call, reason);
        }
    }

    function _refused(GamesTable table, address mover, bytes memory call, bytes memory reason) private {
        (bool done, bytes memory said) = table.sends(mover, call);
        require(!done && keccak256(said) == keccak256(reason), "refused for this reason");
    }

    /// @dev What a move is told that shows another game than the one that is stored.
    function _reasonNow(GamesTable table, uint256 i) private view returns (bytes memory) {
        IDisputeGame.Stored memory stored = _stored(table, i);
        if (stored.verdict != IDisputeGame.Verdict.None) return _phaseWrong(IDisputeGame.Phase.Closed);
        return abi.encodeWithSelector(IDisputeGame.StandingStale.selector, stored.standing);
    }

    function _phaseWrong(IDisputeGame.Phase phase) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IDisputeGame.PhaseWrong.selector, phase);
    }

    function _stored(GamesTable table, uint256 i) private view returns (IDisputeGame.Stored memory) {
        return table.game().game(_id(table, i));
    }

    function _id(GamesTable table, uint256 i) private view returns (GameId id) {
        (id,,,,,) = table.seats(i);
    }
}
