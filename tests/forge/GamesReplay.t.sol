// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {Arbiter} from "../../contracts/Arbiter.sol";
import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {Stored} from "../../contracts/interfaces/IDisputeGame.sol";
import {GameTerms, IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {ClaimDouble} from "./ClaimDouble.sol";
import {Watching} from "./Watching.sol";

/// @title GamesReplay
/// @notice Random histories of games that the Python twin played (tests/property/vectors.py), replayed call by call with the real
/// Arbiter: the same calls are refused for the same reasons, and after each accepted one game and money are the same, and the game is
/// what its events say.
contract GamesReplay is Watching {
    address private constant BURN = 0x000000000000000000000000000000000000dEaD;
    uint256 private constant SEATS = 4;

    TestToken private token;
    ClaimDouble private market;
    StakeVault private vault;

    struct History {
        ClaimId claim;
        address defender;
        uint256[] time;
        address[] sender;
        bytes32[] game;
        bytes[] data;
        bytes[] error;
        bytes32[] digest;
    }

    error Differs(uint256 history, uint256 act, string what, bytes contractSays, bytes twinSays);

    function setUp() external {
        token = new TestToken();
        market = new ClaimDouble();
        Arbiter arbiter = new Arbiter();
        // Creation 5 of this contract, after token, market, arbiter and vault.
        address at = address(uint160(uint256(keccak256(abi.encodePacked(hex"d694", address(this), hex"05")))));
        vault = new StakeVault(IERC20(address(token)), address(market), at, address(0), address(0), 1 days);
        game = new DisputeGame(IJobMarket(address(market)), vault, arbiter);
        require(address(game) == at, "the game is elsewhere");
    }

    function test_every_history_of_the_twin_replays() external {
        string memory path = CHEATS.envOr("LOCKSTEP_GAMES", "tests/vectors/games.jsonl");
        uint256 clean = CHEATS.snapshotState();
        uint256 acts = 0;
        for (uint256 i = 0;; i++) {
            string memory line = CHEATS.readLine(path);
            if (bytes(line).length == 0) break;
            // A call of its own: its memory is gone with it.
            acts += this.replay(i, line);
            CHEATS.revertToState(clean);
        }
        CHEATS.closeFile(path);
        require(acts > 0, "no history was read");
    }

    function replay(uint256 i, string calldata line) external returns (uint256) {
        History memory h = _parse(line);
        _claim(h, line);
        for (uint256 k = 0; k < h.time.length; k++) {
            CHEATS.warp(h.time[k]);
            (bool accepted, bytes memory returned,) = _sends(h.sender[k], h.data[k]);

            bytes4 said = accepted ? bytes4(0) : bytes4(returned);
            if (said != bytes4(h.error[k])) revert Differs(i, k, "error", abi.encodePacked(said), h.error[k]);
            if (!accepted) continue;
            GameId id = GameId.wrap(h.game[k]);
            // It reverts if an event says anything else than what is stored.
            standingOf(id);
            bytes32 digest = _digest(h, id);
            if (digest != h.digest[k]) revert Differs(i, k, "digest", abi.encode(digest), abi.encode(h.digest[k]));
        }
        return h.time.length;
    }

    function _parse(string memory line) private pure returns (History memory h) {
        h.claim = ClaimId.wrap(CHEATS.parseJsonBytes32(line, ".claim"));
        h.defender = CHEATS.parseJsonAddress(line, ".defender");
        h.time = CHEATS.parseJsonUintArray(line, ".time");
        h.sender = CHEATS.parseJsonAddressArray(line, ".sender");
        h.game = CHEATS.parseJsonBytes32Array(line, ".game");
        h.data = CHEATS.parseJsonBytesArray(line, ".data");
        h.error = CHEATS.parseJsonBytesArray(line, ".error");
        h.digest = CHEATS.parseJsonBytes32Array(line, ".digest");
    }

    /// @dev The claim as the market would have it, everybody's deposit, the defender's stake and delegate.
    function _claim(History memory h, string memory line) private {
        GameTerms memory terms = GameTerms(
            h.defender, uint32(_uint(line, ".transitions")), 0, uint32(_uint(line, ".clock")), uint32(_uint(line, ".step")),
            _uint(line, ".bond")
        );
        bytes32 zero = CHEATS.parseJsonBytes32(line, ".stateZero");
        bytes32 program = CHEATS.parseJsonBytes32(line, ".program");
        market.set(vault, terms, zero, program, CHEATS.parseJsonBytes32(line, ".lastProgram"));
        bytes32 seed = CHEATS.parseJsonBytes32(line, ".seed");
        market.setContext(seed, uint32(_uint(line, ".round")), uint32(_uint(line, ".slot")));
        uint256 amount = _uint(line, ".deposit");
        _deposit(h.defender, amount);
        for (uint256 i = 0; i < _uint(line, ".seats"); i++) _deposit(_seat(i), amount);
        market.lock(h.claim, h.defender, _uint(line, ".stake"));
        address delegate = CHEATS.parseJsonAddress(line, ".delegate");
        CHEATS.prank(h.defender);
        vault.setDelegate(delegate);
    }

    function _deposit(address who, uint256 amount) private {
        token.mint(who, amount);
        CHEATS.startPrank(who);
        token.approve(address(vault), amount);
        vault.deposit(amount);
        CHEATS.stopPrank();
    }

    function _seat(uint256 i) private pure returns (address) {
        return address(uint160(0x2200 + i));
    }

    function _uint(string memory line, string memory key) private pure returns (uint256) {
        return CHEATS.parseJsonUint(line, key);
    }

    function _digest(History memory h, GameId id) private view returns (bytes32 d) {
        Stored memory g = game.game(id);
        // The twin meters no gas.
        g.spent = 0;
        d = keccak256(abi.encode(g));
        d = _money(d, h.defender);
        d = _money(d, market.REQUESTER());
        d = _money(d, BURN);
        for (uint256 i = 0; i < SEATS; i++) d = _money(d, _seat(i));
        return keccak256(abi.encode(d, vault.lockOf(ClaimId.unwrap(h.claim)).amount, vault.lockOf(GameId.unwrap(id)).amount));
    }

    function _money(bytes32 d, address who) private view returns (bytes32) {
        return keccak256(abi.encode(d, vault.free(who), vault.credits(who)));
    }
}
