// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {GamePhase, GameState, IDisputeGame, Stored, Verdict} from "../../contracts/interfaces/IDisputeGame.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {GameId} from "../../contracts/types/Ids.sol";
import {CHEATS, Cheats} from "./Cheats.sol";

/// @title Watching
/// @notice Games as they stand, from their events: the contract stores a hash of each.
abstract contract Watching {
    using GameStates for GameState;

    DisputeGame public game;
    /// @dev What the last event of a game says, of those whose call was not undone.
    mapping(GameId id => GameState) private _said;

    /// @dev Around whatever opens a game or moves in one: what it says is kept.
    modifier watched() {
        CHEATS.recordLogs();
        _;
        _listen();
    }

    /// @notice A game as it stands; of one that is over the phase alone, and nothing of one that was never opened.
    function standingOf(GameId id) public view returns (GameState memory g) {
        Stored memory stored = game.game(id);
        if (stored.standing != 0) {
            g = _said[id];
            require(stored.verdict == Verdict.None, "a verdict on a game that goes on");
            require(digestOf(g) == stored.standing, "what is stored is what no event said");
        } else {
            require(stored.spent == 0, "what is not open keeps what was spent");
            if (stored.verdict != Verdict.None) g.setTurn(GamePhase.Closed, 0);
        }
    }

    /// @notice The slow, obvious version of what is stored.
    function digestOf(GameState memory g) public pure returns (bytes28) {
        return bytes28(keccak256(abi.encode(g)));
    }

    function phaseOf(GameId id) public view returns (GamePhase) {
        return standingOf(id).phase();
    }

    /// @dev Whether the defender moves next.
    function _defends(GameState memory g) internal pure returns (bool) {
        GamePhase phase = g.phase();
        return phase == GamePhase.TraceReveal || phase == GamePhase.Defend
            || phase == GamePhase.GraphReveal || phase == GamePhase.Tensor
            || phase == GamePhase.TensorReveal || phase == GamePhase.Leaf
            || phase == GamePhase.Partials || phase == GamePhase.LowPartials;
    }

    /// @dev A call of the game: whether it was accepted, what it returned, and the gas that it took.
    function _sends(address sender, bytes memory call) internal watched returns (bool done, bytes memory said, uint256 used) {
        CHEATS.prank(sender);
        used = gasleft();
        (done, said) = address(game).call(call);
        used -= gasleft();
    }

    function _listen() private {
        Cheats.Log[] memory logs = CHEATS.getRecordedLogs();
        for (uint256 i = 0; i < logs.length; i++) {
            if (logs[i].emitter != address(game) || !_isOfAGameThatGoesOn(logs[i].topics[0])) continue;
            GameId id = GameId.wrap(logs[i].topics[1]);
            GameState memory g = abi.decode(logs[i].data, (GameState));
            // A call that was undone said something, too.
            if (digestOf(g) == game.game(id).standing) _said[id] = g;
        }
    }

    function _isOfAGameThatGoesOn(bytes32 what) private pure returns (bool) {
        return what != IDisputeGame.Convicted.selector && what != IDisputeGame.Resolved.selector;
    }
}
