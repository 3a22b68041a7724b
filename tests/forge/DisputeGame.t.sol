// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {Arbiter} from "../../contracts/Arbiter.sol";
import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {IArbiter} from "../../contracts/interfaces/IArbiter.sol";
import {IDisputeGame} from "../../contracts/interfaces/IDisputeGame.sol";
import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {DescriptorInvalid} from "../../contracts/libraries/Program.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {ClaimDouble} from "./ClaimDouble.sol";
import {Watching} from "./Watching.sol";

/// @title DisputeGameTest
/// @notice A Program that adds one to a letter, for T steps: money, clocks and turns under fuzz.
contract DisputeGameTest is Watching {
    using GameStates for IDisputeGame.GameState;

    uint32 private constant T = 8;
    uint32 private constant CLOCK = 120;
    uint32 private constant TAU = 10;
    uint128 private constant BOND = 1e6;
    uint128 private constant STAKE = 1e7;
    ClaimId private constant CLAIM = ClaimId.wrap(keccak256("claim"));
    address private constant WORKER = address(0x1111);
    address private constant CHALLENGER = address(0x2222);
    address private constant BURN = 0x000000000000000000000000000000000000dEaD;

    bytes private header;
    bytes private descriptor;
    bytes32[] private none;

    ClaimDouble private market;
    StakeVault private vault;

    uint32 private letter;
    uint32 private vector;
    uint32 private liesAt;
    bytes32[] private trace;

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

    // -- tests -----------------------------------------------------------------------------------------------------

    function testFuzz_liar_is_convicted_at_its_step(uint32 from, uint32 at, bool withT) external {
        at = 1 + at % T;
        _claim(from, at);
        GameId id = _open(withT ? at : 0, 0);
        _descend(id, at);
        require(phaseOf(id) == IDisputeGame.Phase.Element, "at the proof");
        _next(id, at);
        require(game.game(id).verdict == IDisputeGame.Verdict.Fraud, "convicted");
        require(vault.credits(CHALLENGER) == uint256(STAKE) * 30 / 100, "the challenger's part");
        require(vault.free(CHALLENGER) == 1e9, "the bond came back");
        _requireConserved();
    }

    function testFuzz_honest_claim_is_never_convicted(uint32 from, uint32 at, uint32 other) external {
        at = 1 + at % T;
        _claim(from, 0);
        GameId id = _open(at, 0);
        _descend(id, at);
        // With a true opening the bits are equal; with any other the opening fails.
        require(!_tryProve(id, at, _value(at - 1)), "equal bits convict nobody");
        require(!_tryProve(id, at, other), "an untrue opening convicts nobody");
        CHEATS.warp(standingOf(id).deadline() + 1);
        game.resolve(id, standingOf(id));
        require(game.game(id).verdict == IDisputeGame.Verdict.Rejected, "rejected");
        require(vault.credits(WORKER) == uint256(BOND) * 60 / 100, "the defender's part");
        require(vault.lockOf(ClaimId.unwrap(CLAIM)).amount == STAKE, "the stake stays");
        _requireConserved();
    }

    function testFuzz_game_ends_within_both_clocks(uint32 from, uint32[10] calldata waits) external {
        _claim(from, 3);
        uint256 begun = block.timestamp;
        GameId id = _open(0, 0);
        uint256 step = 0;
        while (phaseOf(id) != IDisputeGame.Phase.Closed) {
            IDisputeGame.GameState memory g = standingOf(id);
            uint256 left = g.deadline() - block.timestamp;
            CHEATS.warp(block.timestamp + waits[step++ % 10] % (left + 2));
            if (block.timestamp > g.deadline()) {
                game.resolve(id, standingOf(id));
            } else {
                _next(id, 3);
            }
        }
        require(block.timestamp - begun <= 2 * (uint256(CLOCK) + 1), "both clocks, and the second in which each ran out");
        _requireConserved();
    }

    function testFuzz_stranger_cannot_move(address stranger, uint32 from) external {
        if (stranger == WORKER || stranger == CHALLENGER) return;
        _claim(from, 2);
        GameId id = _open(2, 0);
        IDisputeGame.GameState memory g = standingOf(id);
        CHEATS.prank(stranger);
        try game.defend(id, g, "", 0, 0, none, none) {
            revert("a stranger defended");
        } catch {}
        _next(id, 2);
        bytes32[] memory siblings = _one(_root(2));
        g = standingOf(id);
        CHEATS.prank(stranger);
        try game.pick(id, g, 0, siblings[0], siblings) {
            revert("a stranger picked");
        } catch {}
    }

    function test_delegate_defends() external {
        _claim(7, 2);
        GameId id = _open(2, 0);
        address delegate = address(0x3333);
        CHEATS.prank(WORKER);
        vault.setDelegate(delegate);
        bytes memory move =
            abi.encodeCall(game.defend, (id, standingOf(id), _statement(2), _graph(2), _root(2), none, _children(2)));
        (bool taken,,) = _sends(delegate, move);
        require(taken, "taken");
        require(phaseOf(id) == IDisputeGame.Phase.GraphPick, "defended");
    }

    function test_games_after_a_conviction_are_void_and_cost_nothing() external {
        _claim(7, 2);
        GameId first = _open(2, 0);
        GameId second = _open(2, 1);
        _descend(first, 2);
        _next(first, 2);
        game.resolve(second, standingOf(second));
        require(game.game(second).verdict == IDisputeGame.Verdict.Void, "void");
        require(vault.free(CHALLENGER) == 1e9, "both bonds came back");
        _requireConserved();
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
        _claim(7, 2);
        GameId id = _open(2, 0);
        while (phaseOf(id) != IDisputeGame.Phase.Leaf) _next(id, 2);
        IDisputeGame.GameState memory g = standingOf(id);
        bytes memory longer = bytes.concat(_leaf(2), hex"00000000");
        (bool taken,,) = _sends(WORKER, abi.encodeCall(game.postLeaf, (id, g, longer)));
        require(!taken, "a word more is refused");
        _next(id, 2);
        require(phaseOf(id) == IDisputeGame.Phase.Element, "as long as it is, it is taken");
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
        _claim(7, 2);
        id = _open(2, 0);
        while (phaseOf(id) != IDisputeGame.Phase.Tensor) _next(id, 2);
        IDisputeGame.GameState memory g = standingOf(id);
        bytes memory move = abi.encodeCall(
            game.revealTensor, (id, g, _defended(2), descriptor, none, Merkle.leaf(_leaf(2)), none)
        );
        (taken, said,) = _sends(WORKER, move);
    }

    function test_a_lost_game_affects_no_other() external {
        _claim(7, 2);
        GameId lost = _open(1, 0);
        GameId won = _open(2, 1);
        CHEATS.warp(block.timestamp + 30);
        _next(lost, 1);
        _descend(won, 2);
        CHEATS.warp(standingOf(lost).deadline() + 1);
        game.resolve(lost, standingOf(lost));
        require(game.game(lost).verdict == IDisputeGame.Verdict.Rejected, "lost on purpose");
        require(phaseOf(won) == IDisputeGame.Phase.Element, "the other stands");
    }

    function testFuzz_open_games_lengthen_the_defenders_clock(uint8 games) external {
        _claim(7, 2);
        uint32 count = uint32(games) % 20;
        GameId id;
        for (uint32 nonce = 0; nonce <= count; nonce++) id = _open(2, nonce);
        require(standingOf(id).leftDefender() == CLOCK + TAU * count, "T + tau x open games");
        require(standingOf(id).leftChallenger() == CLOCK, "T");
    }

    // -- the parties -----------------------------------------------------------------------------------------------

    /// @dev The worker's claim: one added at each step, two at step `at` (0: honest).
    function _claim(uint32 letter_, uint32 at) private {
        (letter, liesAt) = (letter_, at);
        delete trace;
        for (uint32 t = 1; t <= T; t++) trace.push(Merkle.leaf(_root(t)));
        IJobMarket.GameTerms memory terms =
            IJobMarket.GameTerms(WORKER, T, 0, CLOCK, TAU, BOND);
        market.set(vault, terms, _root(0), _program(), _program());
        market.lock(CLAIM, WORKER, STAKE);
    }

    function _open(uint32 t, uint32 nonce) private returns (GameId) {
        bytes32 next;
        bytes32[] memory nextProof;
        IDisputeGame.Step memory step;
        if (t > 0) {
            next = _root(t);
            nextProof = _traceProof(t - 1);
            step = _step(t);
        }
        return _open(t, nonce, next, nextProof, step);
    }

    function _open(uint32 t, uint32 nonce, bytes32 next, bytes32[] memory nextProof, IDisputeGame.Step memory step)
        private
        watched
        by(CHALLENGER)
        returns (GameId)
    {
        return game.open(CLAIM, IJobMarket.Body(Merkle.rootOf(trace), 0, 0), nonce, t, next, nextProof, step);
    }

    function _step(uint32 t) private view returns (IDisputeGame.Step memory) {
        return IDisputeGame.Step(
            _root(t - 1), t > 1 ? _traceProof(t - 2) : new bytes32[](0), header, _opsRoot(), bytes32(0)
        );
    }

    /// @dev Every move up to the proof.
    function _descend(GameId id, uint32 t) private {
        while (phaseOf(id) != IDisputeGame.Phase.Element) _next(id, t);
    }

    modifier by(address sender) {
        CHEATS.startPrank(sender);
        _;
        CHEATS.stopPrank();
    }

    /// @dev The move that is due, towards step `t`, by whose turn it is.
    function _next(GameId id, uint32 t) private watched by(_defends(standingOf(id)) ? WORKER : CHALLENGER) {
        IDisputeGame.GameState memory g = standingOf(id);
        if (g.phase() == IDisputeGame.Phase.TraceReveal) {
            game.reveal(id, g, trace);
        } else if (g.phase() == IDisputeGame.Phase.TracePick) {
            game.pick(id, g, t - 1, trace[t - 1], _traceProof(t - 1));
        } else if (g.phase() == IDisputeGame.Phase.Adjacent) {
            game.adjacent(id, g, _step(t));
        } else if (g.phase() == IDisputeGame.Phase.Defend) {
            game.defend(id, g, _statement(t), _graph(t), _root(t), none, _children(t));
        } else if (g.phase() == IDisputeGame.Phase.GraphPick) {
            game.pick(id, g, 0, _root(t), _one(_root(t)));
        } else if (g.phase() == IDisputeGame.Phase.Tensor) {
            game.revealTensor(id, g, _defended(t), descriptor, none, Merkle.leaf(_leaf(t)), none);
        } else if (g.phase() == IDisputeGame.Phase.Leaf) {
            game.postLeaf(id, g, _leaf(t));
        } else {
            game.proveOp(id, g, _proof(t, _value(t - 1)));
        }
    }

    function _tryProve(GameId id, uint32 t, uint32 operand) private by(CHALLENGER) returns (bool) {
        try game.proveOp(id, standingOf(id), _proof(t, operand)) {
            return true;
        } catch {
            return false;
        }
    }

    function _proof(uint32 t, uint32 operand) private view returns (IDisputeGame.Proof memory) {
        IArbiter.Opening[] memory openings = new IArbiter.Opening[](1);
        openings[0] = IArbiter.Opening(hex"0100", _word(operand), none, none, 0);
        return IDisputeGame.Proof(descriptor, 0, _leaf(t), openings, _defended(t));
    }

    // -- what is committed -----------------------------------------------------------------------------------------

    function _value(uint32 t) private view returns (uint32) {
        unchecked {
            return letter + t + (liesAt != 0 && t >= liesAt ? 1 : 0);
        }
    }

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
        words = _word(_value(t));
        for (uint32 i = 1; i < vector; i++) words = bytes.concat(words, _word(_value(t)));
    }

    function _root(uint32 t) private view returns (bytes32) {
        bytes memory shape = vector == 0 ? bytes(hex"0100") : abi.encodePacked(hex"0101", vector);
        return sha256(abi.encodePacked(hex"02", shape, Merkle.leaf(_leaf(t))));
    }

    function _graph(uint32 t) private view returns (bytes32) {
        return Merkle.node(_root(t), _root(t));
    }

    function _one(bytes32 x) private pure returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = x;
    }

    function _children(uint32 t) private view returns (bytes32[] memory children) {
        children = new bytes32[](2);
        children[0] = children[1] = _root(t);
    }

    function _statement(uint32 t) private view returns (bytes memory) {
        return _statementWith(_root(t - 1), bytes32(0), t);
    }

    function _defended(uint32 t) private view returns (bytes memory) {
        return _statementWith(_root(t - 1), _graph(t), t);
    }

    function _statementWith(bytes32 prev, bytes32 graph, uint32 t) private view returns (bytes memory) {
        return bytes.concat(
            abi.encodePacked(prev, graph, _opsRoot(), bytes32(0), bytes32(0), bytes32(0)),
            abi.encodePacked(uint32(0), uint32(0), uint32(0), uint32(0), t, _program(), _part(header, 0, 15))
        );
    }

    function _program() private view returns (bytes32) {
        bytes32 head = sha256(abi.encodePacked(bytes1(0x00), header));
        return sha256(abi.encodePacked(bytes1(0x03), head, _opsRoot(), bytes32(0)));
    }

    function _opsRoot() private view returns (bytes32) {
        return Merkle.leaf(descriptor);
    }

    function _traceProof(uint32 at) private view returns (bytes32[] memory proof) {
        proof = new bytes32[](3);
        bytes32[] memory level = trace;
        for (uint256 k = 0; k < 3; k++) {
            proof[k] = level[(at >> k) ^ 1];
            for (uint256 i = 0; i < level.length >> (k + 1); i++) level[i] = Merkle.node(level[2 * i], level[2 * i + 1]);
        }
    }

    function _fund(TestToken token, address account) private {
        token.mint(account, 1e9);
        CHEATS.startPrank(account);
        token.approve(address(vault), 1e9);
        vault.deposit(1e9);
        CHEATS.stopPrank();
    }

    /// @dev Nothing is made or lost: free, locked and credited stake together are what was deposited.
    function _requireConserved() private view {
        uint256 held = vault.free(WORKER) + vault.free(CHALLENGER) + vault.lockOf(ClaimId.unwrap(CLAIM)).amount;
        held += vault.credits(WORKER) + vault.credits(CHALLENGER) + vault.credits(market.REQUESTER()) + vault.credits(BURN);
        for (uint32 nonce = 0; nonce < 3; nonce++) {
            held += vault.lockOf(GameId.unwrap(game.gameIdOf(CLAIM, CHALLENGER, nonce))).amount;
        }
        require(held == 2e9, "money is conserved");
    }
}
