// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title Philox
/// @notice Philox 4x32-10: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
library Philox {
    uint256 private constant M0 = 0xD2511F53;
    uint256 private constant M1 = 0xCD9E8D57;
    uint256 private constant W0 = 0x9E3779B9;
    uint256 private constant W1 = 0xBB67AE85;
    uint256 private constant MASK = 0xffffffff;

    /// @notice Word `lane` (0..3) of the block for the counter (c0, c1, c2, c3) under the key (k0, k1).
    function word(uint256 c0, uint256 c1, uint256 c2, uint256 c3, uint256 k0, uint256 k1, uint256 lane)
        internal
        pure
        returns (uint32)
    {
        unchecked {
            for (uint256 i = 0; i < 10; i++) {
                uint256 p0 = M0 * c0;
                uint256 p1 = M1 * c2;
                c0 = (p1 >> 32) ^ c1 ^ k0;
                c1 = p1 & MASK;
                c2 = (p0 >> 32) ^ c3 ^ k1;
                c3 = p0 & MASK;
                k0 = (k0 + W0) & MASK;
                k1 = (k1 + W1) & MASK;
            }
        }
        if (lane == 0) return uint32(c0);
        if (lane == 1) return uint32(c1);
        return uint32(lane == 2 ? c2 : c3);
    }
}
