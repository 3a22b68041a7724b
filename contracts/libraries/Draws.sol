// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {AuditId, ClaimId, JobId} from "../types/Ids.sol";

/// @title Draws
/// @notice Who is drawn for what, how far it looks, and what it commits to: pure (docs/protocol.md, section 7).
/// @dev The Python twin is lockstep/protocol/market/draws.py; tests/vectors/witnesses.json holds both to the same words.
library Draws {
    /// @notice keccak(abi.encode(JobId, round, attempt)).
    function auditId(JobId job, uint32 round, uint32 attempt) internal pure returns (AuditId) {
        return AuditId.wrap(keccak256(abi.encode(job, round, attempt)));
    }

    /// @notice keccak(abi.encode(JobId, account)): the lock of a witness's stake.
    function stakeKey(JobId job, address account) internal pure returns (bytes32) {
        return keccak256(abi.encode(job, account));
    }

    /// @notice keccak(abi.encode(blockhash(beaconBlock), AuditId)).
    function beaconOf(bytes32 blockHash, AuditId audit) internal pure returns (bytes32) {
        return keccak256(abi.encode(blockHash, audit));
    }

    /// @notice Where in the list the i-th duty's account is looked for, before the remainder.
    function accountWord(bytes32 beacon, uint256 i) internal pure returns (uint256) {
        return uint256(keccak256(abi.encode(beacon, 2 * i)));
    }

    /// @notice Which of the revealed slots still to be dealt out the i-th duty gets, before the remainder.
    function slotWord(bytes32 beacon, uint256 i) internal pure returns (uint256) {
        return uint256(keccak256(abi.encode(beacon, 2 * i + 1)));
    }

    /// @notice The slots of the first `count` duties: each once before any twice (Fisher, Yates 1938; Durstenfeld 1964).
    /// @param slots Permuted in place.
    function slotOrder(bytes32 beacon, uint32[] memory slots, uint256 count) internal pure returns (uint32[] memory order) {
        uint256 n = slots.length;
        if (n == 0) return order;
        for (uint256 i = 0; i < count && i < n; i++) {
            uint256 j = i + slotWord(beacon, i) % (n - i);
            (slots[i], slots[j]) = (slots[j], slots[i]);
        }
        order = new uint32[](count);
        for (uint256 i = 0; i < count; i++) order[i] = slots[i % n];
    }

    /// @notice The i-th duty's account: neither the slot's owner nor drawn already; the zero address if there is none.
    /// @param drawn The first i entries are the accounts of the duties before it.
    function pick(address[] storage accounts, bytes32 beacon, uint256 i, address owner, address[] memory drawn)
        internal
        view
        returns (address)
    {
        uint256 n = accounts.length;
        if (n == 0) return address(0);
        uint256 first = accountWord(beacon, i) % n;
        // At most every account drawn and the owner are passed over.
        for (uint256 k = 0; k < n && k < i + 2; k++) {
            address account = accounts[(first + k) % n];
            if (account != owner && !_among(drawn, i, account)) return account;
        }
        return address(0);
    }

    /// @notice t* = 1 + keccak(preimage, beacon, i) mod T: how far the i-th duty replays.
    function stepOf(bytes32 preimage, bytes32 beacon, uint16 i, uint32 transitions) internal pure returns (uint32) {
        return uint32(1 + uint256(keccak256(abi.encode(preimage, beacon, i))) % transitions);
    }

    /// @notice The step of the state S that a word names: t*, and T - 1 for t* = T, since S_T is public with the claim.
    function seenOf(uint32 t, uint32 transitions) internal pure returns (uint32) {
        return t < transitions ? t : transitions - 1;
    }

    /// @notice keccak(preimage, beacon, i) / 2^128: which leaf of S the i-th duty's commitment binds, before the remainder.
    function leafWord(bytes32 preimage, bytes32 beacon, uint16 i) internal pure returns (uint256) {
        return uint256(keccak256(abi.encode(preimage, beacon, i))) >> 128;
    }

    /// @notice keccak(abi.encode(ClaimId, account, S, leaf, preimage, salt)).
    function commitment(ClaimId claim, address account, bytes32 state, bytes32 leaf, bytes32 preimage, bytes32 salt)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(claim, account, state, leaf, preimage, salt));
    }

    /// @notice keccak applied `links` times.
    function chained(bytes32 value, uint256 links) internal pure returns (bytes32) {
        for (uint256 k = 0; k < links; k++) value = keccak256(abi.encode(value));
        return value;
    }

    function _among(address[] memory drawn, uint256 count, address account) private pure returns (bool) {
        for (uint256 k = 0; k < count; k++) if (drawn[k] == account) return true;
        return false;
    }
}
