// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {oneRole} from "./OneRole.sol";
import {OpUnknown, OutOfRange} from "../../contracts/interfaces/IArbiter.sol";
import {JobParams, Role} from "../../contracts/interfaces/IJobMarket.sol";
import {Clock, ClockExpired, ClockRunning} from "../../contracts/libraries/Clock.sol";
import {MAX_LEFT} from "../../contracts/libraries/Constants.sol";
import {ProofInvalid} from "../../contracts/libraries/Errors.sol";
import {Expression} from "../../contracts/libraries/Expression.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {Openings} from "../../contracts/libraries/Openings.sol";
import {DescriptorInvalid, Program} from "../../contracts/libraries/Program.sol";
import {Terms} from "../../contracts/libraries/Terms.sol";
import {CHEATS} from "./Cheats.sol";

/// @title LibrariesTest
/// @notice The slow, obvious version of each tree and clock beside the one that is used, and the guards one by one.
contract LibrariesTest {
    // -- trees

    function testFuzz_every_leaf_of_a_full_tree_is_proven(bytes32[16] calldata words, uint8 depth) external view {
        depth %= 5;
        bytes32[] memory leaves = new bytes32[](1 << depth);
        for (uint256 i = 0; i < leaves.length; i++) leaves[i] = words[i];
        bytes32 root = _slowRoot(leaves);
        for (uint256 i = 0; i < leaves.length; i++) {
            bytes32[] memory proof = _slowProof(leaves, i);
            require(this.climb(leaves[i], i, proof) == root, "climbs");
            this.verify(root, leaves[i], i, depth, proof);
            bytes memory wrong = abi.encodeCall(this.verify, (root, ~leaves[i], i, depth, proof));
            _reverts(wrong, abi.encodeWithSelector(ProofInvalid.selector));
            wrong = abi.encodeCall(this.verify, (root, leaves[i], i, depth + 1, proof));
            _reverts(wrong, abi.encodeWithSelector(ProofInvalid.selector));
        }
        require(this.rootOf(leaves) == root, "the root");
        for (uint256 up = 0; up <= depth; up++) {
            bytes32[] memory level = this.reduce(leaves, 1 << up);
            require(level.length == 1 << up && this.rootOf(level) == root, "a level of the tree");
        }
    }

    function test_a_proof_names_one_position() external view {
        for (uint256 length = 0; length < 4; length++) {
            bytes32[] memory proof = new bytes32[](length);
            bytes memory expected = abi.encodeWithSelector(ProofInvalid.selector);
            this.climb(0, (1 << length) - 1, proof);
            _reverts(abi.encodeCall(this.climb, (0, 1 << length, proof)), expected);
        }
        this.climb(0, 0, new bytes32[](64));
        _reverts(
            abi.encodeCall(this.climb, (0, 0, new bytes32[](65))), abi.encodeWithSelector(ProofInvalid.selector)
        );
    }

    function test_a_full_tree_has_a_power_of_two_of_leaves() external view {
        for (uint256 width = 0; width < 10; width++) {
            bytes32[] memory leaves = new bytes32[](width);
            bool full = width == 1 || width == 2 || width == 4 || width == 8;
            (bool rooted,) = address(this).staticcall(abi.encodeCall(this.rootOf, (leaves)));
            require(rooted == full, "1, 2, 4, 8");
        }
    }

    function testFuzz_a_lift_is_the_tree_with_empty_leaves(bytes32[4] calldata words, uint8 from, uint8 to) external view {
        from %= 3;
        to = from + to % 3;
        bytes32[] memory few = new bytes32[](1 << from);
        bytes32[] memory all = new bytes32[](1 << to);
        for (uint256 i = 0; i < few.length; i++) (few[i], all[i]) = (words[i], words[i]);
        require(Merkle.lift(_slowRoot(few), from, to) == _slowRoot(all), "empty to the right");
        require(Merkle.lift(words[0], to + 1, to) == words[0], "nothing to lift");
        require(Merkle.zero(to) == _slowRoot(new bytes32[](1 << to)), "all empty");
    }

    function testFuzz_leaves_are_hashed_with_their_domain(bytes calldata data, bytes32 state) external view {
        bytes32 due = sha256(bytes.concat(bytes1(0x00), data));
        require(Merkle.leaf(data) == due && this.leafHash(data) == due, "0x00 and the bytes");
        require(Merkle.leaf(state) == sha256(bytes.concat(bytes1(0x00), state)), "0x00 and the word");
    }

    function test_too_little_gas_gives_no_digest() external view {
        bytes memory data = new bytes(100_000);
        bytes32 due = Merkle.leaf(data);
        uint256 refused = 0;
        for (uint256 gas = 10_000; gas < 200_000; gas += 2_000) {
            try this.leafHash{gas: gas}(data) returns (bytes32 digest) {
                require(digest == due, "right or none");
            } catch {
                refused++;
            }
        }
        require(refused > 0, "some limit is too low");
    }

    function test_too_little_gas_stores_no_terms() external {
        JobParams memory p;
        oneRole(p);
        (p.spec.digest, p.roles[0].slots, p.roles[0].carryPeriod) = (keccak256("spec"), 3, 2);
        uint256 refused = 0;
        for (uint256 gas = 40_000; gas < 500_000; gas += 10_000) {
            try this.store{gas: gas}(p) returns (address at) {
                require(keccak256(abi.encode(Terms.load(at))) == keccak256(abi.encode(p)), "all of them or none");
            } catch (bytes memory said) {
                require(said.length == 0, "nothing but gas is missing");
                refused++;
            }
        }
        require(refused > 20 && refused < 46, "enough for some, too little for others");
        JobParams memory none;
        none.roles = new Role[](1);
        require(keccak256(abi.encode(Terms.load(address(0)))) == keccak256(abi.encode(none)), "no terms are one role of zeros");
    }

    function testFuzz_depth_is_the_least_that_holds(uint256 count) external pure {
        count = 1 + count % (1 << 40);
        uint256 depth = Program.depthOf(count);
        require(depth == Merkle.depthOf(count), "both");
        require(1 << depth >= count && (depth == 0 || 1 << (depth - 1) < count), "the least");
        require(Merkle.depthOf(0) == 0, "nothing");
    }

    // -- leaves

    function testFuzz_words_are_read_inside_their_leaf(bytes calldata data, uint256 i) external view {
        i %= data.length / 4 + 2;
        if (4 * i + 4 > data.length) {
            bytes memory expected = abi.encodeWithSelector(OutOfRange.selector);
            _reverts(abi.encodeCall(this.word, (data, i)), expected);
            _reverts(abi.encodeCall(this.copy, (data, i, 1)), expected);
            return;
        }
        uint256 due = 0;
        for (uint256 k = 4; k > 0; k--) due = due << 8 | uint8(data[4 * i + k - 1]);
        require(this.word(data, i) == due, "little-endian");
        bytes memory copied = this.copy(data, 0, i + 1);
        uint256 last = 4 * i;
        require(uint32(bytes4(bytes.concat(copied[last], copied[last + 1], copied[last + 2], copied[last + 3]))) == due, "the last");
    }

    // -- Programs

    function test_a_header_has_the_length_that_it_implies() external view {
        bytes memory header = bytes.concat(bytes10("LSP1"), bytes5(0x0001010001));
        // LSP1, version, op-set, n = 0x0001, D, s_in, s_out, n_consts: as docs/protocol.md has them.
        header = abi.encodePacked("LSP1", uint16(1), uint16(1), uint16(1), uint8(1), uint8(0), uint8(0), uint16(0), new bytes(9));
        Program.Header memory h = this.decodeHeader(header);
        require(h.n == 1 && h.depth == 1 && h.stateIn == 0 && h.stateOut == 0 && h.consts == 0, "its fields");
        bytes memory expected = abi.encodeWithSelector(DescriptorInvalid.selector);
        _reverts(abi.encodeCall(this.decodeHeader, (bytes.concat(header, hex"00"))), expected);
        for (uint256 length = 0; length < header.length; length++) {
            bytes memory cut = new bytes(length);
            for (uint256 i = 0; i < length; i++) cut[i] = header[i];
            _reverts(abi.encodeCall(this.decodeHeader, (cut)), expected);
        }
    }

    function test_elements_are_counted_in_32_bits() external view {
        bytes memory fixedPart = abi.encodePacked(hex"05000102", hex"00000000", new bytes(16));
        fixedPart[3] = 0x03;
        bytes memory fits = abi.encodePacked(fixedPart, uint32(1 << 15), uint32(1 << 15), uint32(3));
        require(this.elements(fits) == 3 << 30, "three axes");
        bytes memory more = abi.encodePacked(fixedPart, uint32(1 << 15), uint32(1 << 15), uint32(4));
        _reverts(abi.encodeCall(this.elements, (more)), abi.encodeWithSelector(DescriptorInvalid.selector));
    }

    // -- opcodes

    function test_an_opcode_outside_the_set_has_no_result() external view {
        uint256[4] memory unknown = [Expression.IMM, 38, 64, type(uint256).max];
        for (uint256 i = 0; i < unknown.length; i++) {
            bytes memory expected = abi.encodeWithSelector(OpUnknown.selector, unknown[i]);
            _reverts(abi.encodeCall(this.run, (unknown[i])), expected);
        }
        for (uint256 opcode = 0; opcode < 38; opcode++) if (opcode != Expression.IMM) this.run(opcode);
    }

    // -- clocks

    function testFuzz_a_clock_stops_up_to_its_deadline(uint32 now_, uint24 left) external {
        CHEATS.warp(now_);
        uint40 deadline = Clock.start(left);
        require(deadline == uint256(now_) + left, "from now");
        require(Clock.stop(deadline) == left, "all that is left");
        _reverts(abi.encodeCall(this.requireExpired, (deadline)), abi.encodeWithSelector(ClockRunning.selector, deadline));
        CHEATS.warp(deadline);
        require(Clock.stop(deadline) == 0, "the last second counts");
        _reverts(abi.encodeCall(this.requireExpired, (deadline)), abi.encodeWithSelector(ClockRunning.selector, deadline));
        CHEATS.warp(uint256(deadline) + 1);
        _reverts(abi.encodeCall(this.stop, (deadline)), abi.encodeWithSelector(ClockExpired.selector, deadline));
        this.requireExpired(deadline);
    }

    function testFuzz_a_budget_is_T_and_tau_for_each_open_game(uint32 T, uint32 tau, uint16 games) external pure {
        uint256 extra = uint256(tau) * games;
        uint256 due = uint256(T) + (extra > 30 days ? 30 days : extra);
        require(Clock.budget(T, tau, games) == (due > MAX_LEFT ? MAX_LEFT : due), "saturates");
    }

    // -- the libraries, called

    function rootOf(bytes32[] memory nodes) external view returns (bytes32) {
        return Merkle.rootOf(nodes);
    }

    function reduce(bytes32[] memory nodes, uint256 width) external view returns (bytes32[] memory) {
        Merkle.reduce(nodes, width);
        return nodes;
    }

    function climb(bytes32 x, uint256 i, bytes32[] calldata proof) external view returns (bytes32) {
        return Merkle.climb(x, i, proof);
    }

    function verify(bytes32 root, bytes32 x, uint256 i, uint256 depth, bytes32[] calldata proof) external view {
        Merkle.verify(root, x, i, depth, proof);
    }

    function leafHash(bytes calldata data) external view returns (bytes32) {
        return Openings.leafHash(data);
    }

    function word(bytes calldata data, uint256 i) external pure returns (uint256) {
        return Openings.word(data, i);
    }

    function copy(bytes calldata data, uint256 first, uint256 count) external pure returns (bytes memory copied) {
        copied = new bytes(4 * count + 32);
        uint256 to;
        assembly ("memory-safe") {
            to := add(copied, 0x20)
        }
        Openings.copy(data, first, count, to);
    }

    function run(uint256 opcode) external pure returns (uint256) {
        return Expression.run(opcode, 1, 1, 1);
    }

    function store(JobParams memory p) external returns (address at) {
        (at,) = Terms.store(p);
    }

    function decodeHeader(bytes calldata header) external pure returns (Program.Header memory) {
        return Program.decodeHeader(header);
    }

    function elements(bytes calldata descriptor) external pure returns (uint256) {
        return Program.elements(descriptor, Program.decode(descriptor));
    }

    function stop(uint40 deadline) external view returns (uint32) {
        return Clock.stop(deadline);
    }

    function requireExpired(uint40 deadline) external view {
        Clock.requireExpired(deadline);
    }

    // -- the slow versions

    function _slowRoot(bytes32[] memory leaves) private pure returns (bytes32) {
        uint256 width = leaves.length;
        if (width == 1) return leaves[0];
        (bytes32[] memory left, bytes32[] memory right) = _halves(leaves);
        return sha256(bytes.concat(bytes1(0x01), _slowRoot(left), _slowRoot(right)));
    }

    function _slowProof(bytes32[] memory leaves, uint256 i) private pure returns (bytes32[] memory proof) {
        if (leaves.length == 1) return new bytes32[](0);
        uint256 half = leaves.length / 2;
        (bytes32[] memory left, bytes32[] memory right) = _halves(leaves);
        bytes32[] memory below = _slowProof(i < half ? left : right, i % half);
        proof = new bytes32[](below.length + 1);
        for (uint256 k = 0; k < below.length; k++) proof[k] = below[k];
        proof[below.length] = _slowRoot(i < half ? right : left);
    }

    function _halves(bytes32[] memory leaves) private pure returns (bytes32[] memory left, bytes32[] memory right) {
        uint256 half = leaves.length / 2;
        (left, right) = (new bytes32[](half), new bytes32[](half));
        for (uint256 i = 0; i < half; i++) (left[i], right[i]) = (leaves[i], leaves[half + i]);
    }

    function _reverts(bytes memory call, bytes memory expected) private view {
        (bool success, bytes memory returned) = address(this).staticcall(call);
        require(!success && keccak256(returned) == keccak256(expected), "reverts for this reason");
    }
}
