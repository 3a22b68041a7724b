// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {CHEATS} from "./Cheats.sol";
// Not a contract of the project: compiled because it stands here, and found by its name.
import {Float32Harness} from "./Float32Harness.sol";

/// @title ChainReplay
/// @notice What happened on other chains (tests/support/recordings.py), act by act: the same calls succeed with the same words, the others
/// fail for the same reasons, and the same events are seen. So forge's coverage and the mutants see every test that runs on a chain.
contract ChainReplay {
    uint8 private constant BLOCK = 0;
    uint8 private constant CREATE = 1;
    uint8 private constant CALL = 2;
    uint8 private constant ASK = 3;
    uint8 private constant KEEP = 4;
    uint8 private constant BACK = 5;
    uint256 private constant PLACES = 32;

    /// @dev More than any chain gives a transaction; what never ends ends here.
    uint256 private constant GAS = 1e9;
    address private constant LIBRARIAN = address(0x11B);

    /// @notice One thing that happened; of KEEP and BACK `number` is the place where everything is kept.
    /// @param name Of a creation, the contract; else what the act is called, where it has a name.
    /// @param logs Of a question zero where they are not known.
    /// @param output What the call returned, or the revert's data; not compared where `vague`.
    struct Act {
        uint8 kind;
        uint64 number;
        uint64 time;
        uint256 baseFee;
        bytes32 parentHash;
        address sender;
        uint64 nonce;
        address to;
        uint256 value;
        string name;
        bytes data;
        bool success;
        bool vague;
        bytes output;
        bytes32 logs;
    }

    /// @notice What a question was answered, thrown so that nothing of it stays.
    error Answered(bool success, bytes output, bytes32 logs);
    error Differs(string recording, uint256 act, string what, bytes here, bytes there);

    function test_every_recording_replays() external {
        string memory folder = CHEATS.envString("LOCKSTEP_RECORDINGS");
        string memory list = string.concat(folder, "/list");
        _deployMutatedLibraries();
        uint256 clean = CHEATS.snapshotState();
        uint256 acts = 0;
        for (;;) {
            string memory name = CHEATS.readLine(list);
            if (bytes(name).length == 0) break;
            // A call of its own: its memory is gone with it.
            acts += this.replay(string.concat(folder, "/", name));
            CHEATS.revertToState(clean);
        }
        CHEATS.closeFile(list);
        require(acts > 0, "nothing was recorded");
    }

    function replay(string calldata path) external returns (uint256 acts) {
        uint256[PLACES] memory kept;
        for (;; acts++) {
            string memory line = CHEATS.readLine(path);
            if (bytes(line).length == 0) break;
            bytes memory encoded = CHEATS.parseBytes(line);
            (uint8 kind, uint256 place) = this.kindOf(encoded);
            if (kind == KEEP) kept[place] = CHEATS.snapshotState();
            else if (kind == BACK) CHEATS.revertToState(kept[place]);
            else this.repeat(path, acts, encoded);
        }
        CHEATS.closeFile(path);
    }

    function kindOf(bytes calldata encoded) external pure returns (uint8, uint256) {
        Act memory act = abi.decode(encoded, (Act));
        return (act.kind, act.number);
    }

    function repeat(string calldata path, uint256 i, bytes calldata encoded) external {
        Act memory act = abi.decode(encoded, (Act));
        CHEATS.warp(act.time);
        CHEATS.roll(act.number);
        CHEATS.fee(act.baseFee);
        if (act.kind == BLOCK) {
            CHEATS.setBlockhash(act.number - 1, act.parentHash);
            return;
        }
        if (act.value > 0) CHEATS.deal(act.sender, act.value);
        (bool success, bytes memory output, bytes32 logs) = act.kind == ASK ? _ask(encoded) : _do(act);
        string memory what = bytes(act.name).length == 0 ? path : string.concat(path, " ", act.name);
        if (success != act.success) revert Differs(what, i, "success", abi.encode(success, output), abi.encode(act.success));
        if (act.vague) return;
        if (keccak256(output) != keccak256(act.output)) revert Differs(what, i, "output", output, act.output);
        if (!success || act.kind == CREATE || (act.kind == ASK && act.logs == 0)) return;
        if (logs != act.logs) revert Differs(what, i, "events", abi.encode(logs), abi.encode(act.logs));
    }

    function ask(bytes calldata encoded) external {
        (bool success, bytes memory output, bytes32 logs) = _do(abi.decode(encoded, (Act)));
        revert Answered(success, output, logs);
    }

    function _do(Act memory act) private returns (bool success, bytes memory output, bytes32 logs) {
        CHEATS.recordLogs();
        (success, output) = act.kind == CREATE ? _create(act) : _call(act);
        logs = keccak256(abi.encode(CHEATS.getRecordedLogs()));
    }

    function _ask(bytes calldata encoded) private returns (bool success, bytes memory output, bytes32 logs) {
        try this.ask(encoded) {} catch (bytes memory thrown) {
            require(bytes4(thrown) == Answered.selector, "the question was not asked");
            assembly ("memory-safe") {
                // The arguments behind the selector, as the bytes that they are.
                mstore(add(thrown, 4), sub(mload(thrown), 4))
                thrown := add(thrown, 4)
            }
            (success, output, logs) = abi.decode(thrown, (bool, bytes, bytes32));
        }
    }

    function _create(Act memory act) private returns (bool, bytes memory) {
        bytes memory code = bytes.concat(_code(act.name), act.data);
        CHEATS.setNonceUnsafe(act.sender, act.nonce);
        CHEATS.prank(act.sender);
        address at;
        assembly ("memory-safe") {
            at := create(0, add(code, 0x20), mload(code))
        }
        return (at == act.to, abi.encode(at));
    }

    /// @dev A mutant that is linked expects its libraries at this account's first creations.
    function _deployMutatedLibraries() private {
        string[3] memory names = ["Settling", "Rounds", "Jobs"];
        for (uint256 i = 0; i < names.length; i++) {
            string memory path =
                string.concat(CHEATS.envOr("LOCKSTEP_CODE", "out/none"), "/library-", names[i]);
            if (!CHEATS.exists(path)) continue;
            bytes memory code = CHEATS.parseBytes(CHEATS.readFile(path));
            CHEATS.prank(LIBRARIAN);
            address at;
            assembly ("memory-safe") {
                at := create(0, add(code, 0x20), mload(code))
            }
            require(at != address(0), "the library is not there");
        }
    }

    /// @dev The contract of the project, or what lies in its place in the folder LOCKSTEP_CODE: a mutant.
    function _code(string memory name) private view returns (bytes memory) {
        string memory path = string.concat(CHEATS.envOr("LOCKSTEP_CODE", "out/none"), "/", name);
        return CHEATS.exists(path) ? CHEATS.parseBytes(CHEATS.readFile(path)) : CHEATS.getCode(name);
    }

    function _call(Act memory act) private returns (bool, bytes memory) {
        CHEATS.prank(act.sender);
        return act.to.call{value: act.value, gas: GAS}(act.data);
    }
}
