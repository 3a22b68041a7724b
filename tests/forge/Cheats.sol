// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @dev What a transaction's data cost (EIP-2028).
function dataGas(bytes memory data) pure returns (uint256 gas) {
    for (uint256 i = 0; i < data.length; i++) gas += data[i] == 0 ? 4 : 16;
}

/// @title Cheats
/// @notice The few of forge's cheat codes that the tests use, declared here so that no library is needed.
interface Cheats {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    function warp(uint256 timestamp) external;
    function roll(uint256 number) external;
    function setBlockhash(uint256 number, bytes32 hash) external;
    function fee(uint256 baseFee) external;
    function deal(address account, uint256 balance) external;
    function setNonceUnsafe(address account, uint64 nonce) external;
    function prank(address sender) external;
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function etch(address target, bytes calldata code) external;
    function startPrank(address sender) external;
    function stopPrank() external;
    function recordLogs() external;
    function getRecordedLogs() external returns (Log[] memory);
    function getCode(string calldata contractName) external view returns (bytes memory);
    function envString(string calldata name) external view returns (string memory);
    function envOr(string calldata name, string calldata otherwise) external view returns (string memory);
    function readFile(string calldata path) external view returns (string memory);
    function toString(uint256 value) external pure returns (string memory);
    function readLine(string calldata path) external view returns (string memory);
    function exists(string calldata path) external view returns (bool);
    function closeFile(string calldata path) external;
    function snapshotState() external returns (uint256);
    function revertToState(uint256 snapshot) external returns (bool);
    function parseJsonString(string calldata json, string calldata key) external pure returns (string memory);
    function parseBytes(string calldata hexadecimal) external pure returns (bytes memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function parseJsonUintArray(string calldata json, string calldata key) external pure returns (uint256[] memory);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes32Array(string calldata json, string calldata key) external pure returns (bytes32[] memory);
    function parseJsonAddressArray(string calldata json, string calldata key) external pure returns (address[] memory);
    function parseJsonBytesArray(string calldata json, string calldata key) external pure returns (bytes[] memory);
}

Cheats constant CHEATS = Cheats(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);
