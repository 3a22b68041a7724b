// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {QUORUM, QUORUM_OF} from "./Constants.sol";

/// @title Receipts
/// @notice Who says that which payload can be had, counted. A receipt names slots; nobody's counts for its own.
library Receipts {
    /// @dev A slot's count takes a byte, 32 slots a word; there are fewer than 256 speakers.
    uint256 private constant LANES = 32;

    /// @notice The counts after one more receipt, of `who`, that names the slots of `mask`.
    function add(uint256[2] memory named, uint256 mask, uint32 who) internal pure returns (uint256[2] memory) {
        for (uint256 s = 0; s < 2 * LANES; s++) {
            // INVARIANT: nobody's word counts for its own slot.
            if (s != who && (mask >> s) & 1 == 1) named[s / LANES] += uint256(1) << (8 * (s % LANES));
        }
        return named;
    }

    /// @notice Whether half of the others name slot s; if nobody else has spoken, it is taken as had.
    /// @param spoke Bit w: speaker w has given its receipt.
    function accepts(uint256[2] memory named, uint256 spoke, uint256 receipts, uint32 s) internal pure returns (bool) {
        uint256 others = receipts - ((spoke >> s) & 1);
        uint256 count_ = (named[s / LANES] >> (8 * (s % LANES))) & 0xff;
        return QUORUM_OF * count_ >= QUORUM * others;
    }

    /// @notice How many slots a mask names.
    function count(uint256 mask) internal pure returns (uint16 slots) {
        for (; mask != 0; mask &= mask - 1) slots += 1;
    }
}
