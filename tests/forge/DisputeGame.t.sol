// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {Arbiter} from "../../contracts/Arbiter.sol";
import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {GamePhase, GameState, Step} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, GameTerms, IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {DescriptorInvalid} from "../../contracts/libraries/Program.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {ClaimDouble} from "./ClaimDouble.sol";
import {Watching} from "./Watching.sol";

/// @title DisputeGameTest
/// @notice A Program that adds one to a letter, or to a vector of them: what is counted, to its bounds.
contract DisputeGameTest is Watching {
    using GameStates for GameState;

    ClaimId private constant CLAIM = ClaimId.wrap(keccak256("claim"));
    address private constant WORKER = address(0x1111);
    address private constant CHALLENGER = address(0x2222);

    bytes private header;
    bytes private descriptor;
    bytes32[] private none;

    ClaimDouble private market;
    StakeVault private vault;

    uint32 private vector;

    function setUp() external {
        header = abi.encodePacked(
            "LSP1", uint16(1), uint16(1), uint16(1), uint8(1), uint8(0), uint8(0), uint16(0), // n = 1, D = 1, scalar in and out
            uint8(1), uint8(1), uint32(1),
            uint8(1), uint16(0)
        );
        descriptor = abi.encodePacked(
            hex"0100010000020100", uint64(0), uint64(1), // map, i32, two operands, one instruction
            uint8(1), uint16(0), int32(0), // the letter
            uint8(3), uint16(0), int32(1), // one
            hex"1300010000000000" // IADD 0 1
        );
        TestToken token = new TestToken();
        market = new ClaimDouble();
        Arbiter arbiter = new Arbiter();
        // Creation 5 of this contract, after token, market, arbiter and vault.
        address at = address(uint160(uint256(keccak256(abi.encodePacked(hex"d694", address(this), hex"05")))));
        vault = new StakeVault(IERC20(address(token)), address(market), at, address(0), address(0), 1 days);
        game = new DisputeGame(IJobMarket(address(market)), vault, arbiter);
        require(address(game) == at, "the game is elsewhere");
        _fund(token, WORKER);
        _fund(token, CHALLENGER);
        CHEATS.warp(1_000_000);
    }

    /// @dev A leaf of the last one's length is asked for: what a vector has, no more and no less.
    function testFuzz_the_last_leaf_is_as_long_as_what_is_left(uint32 elements) external {
        vector = 1 + elements % 256;
        bytes memory scalar = descriptor;
        // One axis: its extent, and a stride of each of the two operands.
        descriptor = bytes.concat(
            abi.encodePacked(hex"0100010100020100", _part(scalar, 8, 24), vector),
            abi.encodePacked(_part(scalar, 24, 31), int32(0), _part(scalar, 31, 38), int32(0), _part(scalar, 38, 46))
        );
        GameId id = _open();
        while (phaseOf(id) != GamePhase.Leaf) _next(id);
        GameState memory g = standingOf(id);
        bytes memory longer = bytes.concat(_leaf(1), hex"00000000");
        (bool taken,,) = _sends(WORKER, abi.encodeCall(game.postLeaf, (id, g, longer)));
        require(!taken, "a word more is refused");
        _next(id);
        require(phaseOf(id) == GamePhase.Element, "as long as it is, it is taken");
    }

    function test_terms_are_counted_in_32_bits() external {
        (bool taken,, GameId id) = _revealOf((1 << 24) - 1);
        require(taken && standingOf(id).terms() == 0xffffff00, "groups of 256 terms");
    }

    function test_more_terms_than_32_bits_hold_are_refused() external {
        (bool taken, bytes memory said,) = _revealOf(1 << 24);
        require(!taken && keccak256(said) == keccak256(abi.encodeWithSelector(DescriptorInvalid.selector)), "and it says so");
    }

    /// @dev The output of a sum of products of codes is shown: a scalar of `groups` groups of 256 codes.
    function _revealOf(uint32 groups) private returns (bool taken, bytes memory said, GameId id) {
        descriptor = abi.encodePacked(
            hex"0205010001020000", uint64(0), uint64(1), groups,
            uint8(1), uint16(0), int32(0), int32(0),
            uint8(1), uint16(0), int32(0), int32(0)
        );
        id = _open();
        while (phaseOf(id) != GamePhase.Tensor) _next(id);
        GameState memory g = standingOf(id);
        bytes memory move = abi.encodeCall(
            game.revealTensor, (id, g, _statement(_graph()), descriptor, none, Merkle.leaf(_leaf(1)), none)
        );
        (taken, said,) = _sends(WORKER, move);
    }

    // -- the parties -----------------------------------------------------------------------------------------------

    /// @dev The worker's claim, of one step that adds one, and a game on it.
    function _open() private watched by(CHALLENGER) returns (GameId) {
        market.set(vault, GameTerms(WORKER, 1, 0, 120, 10, 1e6), _root(0), _program(), _program());
        market.lock(CLAIM, WORKER, 1e7);
        Step memory step = Step(_root(0), none, header, _opsRoot(), bytes32(0));
        return game.open(CLAIM, Body(Merkle.leaf(_root(1)), 0, 0), 0, 1, _root(1), none, step);
    }

    modifier by(address sender) {
        CHEATS.startPrank(sender);
        _;
        CHEATS.stopPrank();
    }

    /// @dev The move that is due, by whose turn it is.
    function _next(GameId id) private watched by(_defends(standingOf(id)) ? WORKER : CHALLENGER) {
        GameState memory g = standingOf(id);
        if (g.phase() == GamePhase.Defend) {
            game.defend(id, g, _statement(bytes32(0)), _graph(), _root(1), none, _children());
        } else if (g.phase() == GamePhase.GraphPick) {
            game.pick(id, g, 0, _root(1), _one(_root(1)));
        } else if (g.phase() == GamePhase.Tensor) {
            game.revealTensor(id, g, _statement(_graph()), descriptor, none, Merkle.leaf(_leaf(1)), none);
        } else {
            game.postLeaf(id, g, _leaf(1));
        }
    }

    // -- what is committed -----------------------------------------------------------------------------------------

    function _part(bytes memory whole, uint256 from, uint256 to) private pure returns (bytes memory part) {
        part = new bytes(to - from);
        for (uint256 i = from; i < to; i++) part[i - from] = whole[i];
    }

    function _word(uint32 value) private pure returns (bytes memory) {
        value = ((value >> 8) & 0x00ff00ff) | ((value & 0x00ff00ff) << 8);
        return abi.encodePacked((value >> 16) | (value << 16));
    }

    /// @dev The output's only leaf: one word, or the value as often as a vector has it.
    function _leaf(uint32 t) private view returns (bytes memory words) {
        words = _word(7 + t);
        for (uint32 i = 1; i < vector; i++) words = bytes.concat(words, _word(7 + t));
    }

    function _root(uint32 t) private view returns (bytes32) {
        bytes memory shape = vector == 0 ? bytes(hex"0100") : abi.encodePacked(hex"0101", vector);
        return sha256(abi.encodePacked(hex"02", shape, Merkle.leaf(_leaf(t))));
    }

    function _graph() private view returns (bytes32) {
        return Merkle.node(_root(1), _root(1));
    }

    function _one(bytes32 x) private pure returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = x;
    }

    function _children() private view returns (bytes32[] memory children) {
        children = new bytes32[](2);
        children[0] = children[1] = _root(1);
    }

    function _statement(bytes32 graph) private view returns (bytes memory) {
        return bytes.concat(
            abi.encodePacked(_root(0), graph, _opsRoot(), bytes32(0), bytes32(0), bytes32(0)),
            abi.encodePacked(uint32(0), uint32(0), uint32(0), uint32(0), uint32(1), _program(), _part(header, 0, 15))
        );
    }

    function _program() private view returns (bytes32) {
        bytes32 head = sha256(abi.encodePacked(bytes1(0x00), header));
        return sha256(abi.encodePacked(bytes1(0x03), head, _opsRoot(), bytes32(0)));
    }

    function _opsRoot() private view returns (bytes32) {
        return Merkle.leaf(descriptor);
    }

    function _fund(TestToken token, address account) private {
        token.mint(account, 1e9);
        CHEATS.startPrank(account);
        token.approve(address(vault), 1e9);
        vault.deposit(1e9);
        CHEATS.stopPrank();
    }
}
