// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {MAX_EXTRA, MAX_LEFT} from "./Constants.sol";

/// It is too late for this move: the mover's clock has run out.
error ClockExpired(uint256 deadline);

/// It is too early to resolve: the mover's clock still runs.
error ClockRunning(uint256 deadline);

/// @title Clock
/// @notice Chess clocks: each side has a budget of seconds for all its moves together; only the mover's clock runs.
library Clock {
    /// @notice The defender's budget: T, and tau (one materialised step) for each game already open on any of its claims.
    function budget(uint256 clockSeconds, uint256 stepSeconds, uint256 openGames) internal pure returns (uint24) {
        uint256 extra = stepSeconds * openGames;
        uint256 total = clockSeconds + (extra < MAX_EXTRA ? extra : MAX_EXTRA);
        return uint24(total > MAX_LEFT ? MAX_LEFT : total);
    }

    /// @notice Seconds that the mover keeps after moving now. Reverts after its deadline.
    function stop(uint40 deadline) internal view returns (uint24) {
        // INVARIANT: a move counts only while the mover's clock runs.
        if (block.timestamp > deadline) revert ClockExpired(deadline);
        return uint24(deadline - block.timestamp);
    }

    /// @notice The deadline of a side that starts to move now with `left` seconds.
    function start(uint24 left) internal view returns (uint40) {
        return uint40(block.timestamp + left);
    }

    /// @notice Reverts while the mover may still move.
    function requireExpired(uint40 deadline) internal view {
        // INVARIANT: only a mover whose clock has run out loses without an argument.
        if (block.timestamp <= deadline) revert ClockRunning(deadline);
    }
}
