// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {JobMarket} from "../../contracts/JobMarket.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {IAvailability} from "../../contracts/interfaces/IAvailability.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, JobId} from "../../contracts/types/Ids.sol";
import {Cheats, CHEATS} from "./Cheats.sol";

/// @title Beyond
/// @notice What the market asks others, as tests/support/histories.py answers it.
contract Beyond {
    function witnessOf(bytes32, uint32 round, uint256 i) external pure returns (address) {
        return CHEATS.addr(0x1004 + (round + i) % 4);
    }

    function missing(ClaimId claim) external pure returns (bool) {
        return uint256(ClaimId.unwrap(claim)) % 4 == 0;
    }
}

/// @title RoundsReplay
/// @notice Random histories that the Python twin played (tests/support/histories.py), replayed act by act: the same acts are refused for the
/// same reasons, and after each accepted one everything stored and every event is the same.
contract RoundsReplay {
    uint256 private constant UNBOND_SECONDS = 3600;
    address private constant GAME = address(0x6A3E);
    address private constant BURN = 0x000000000000000000000000000000000000dEaD;
    address private constant VALIDATOR = address(0x6A40);
    address private constant WITNESSES = address(0x6A41);
    address private constant AVAILABILITY = address(0x6A42);
    uint256 private constant FIRST_KEY = 0x1000;
    uint256 private constant ACCOUNTS = 8;
    uint32 private constant MERGE = 0xffffffff;

    TestToken private token;
    StakeVault private vault;
    JobMarket private market;

    struct History {
        JobId job;
        uint32 rounds;
        uint32 slots;
        uint256[] time;
        uint256[] number;
        address[] sender;
        address[] to;
        bytes[] data;
        bytes[] error;
        bytes32[] logs;
        bytes32[] digest;
    }

    error Differs(uint256 history, uint256 act, string what, bytes contractSays, bytes twinSays);

    function setUp() external {
        // The twin computes these addresses as this contract's creations 1, 2 and 3.
        token = new TestToken();
        vault = new StakeVault(IERC20(address(token)), _creation(0x03), GAME, WITNESSES, AVAILABILITY, UNBOND_SECONDS);
        market = new JobMarket(
            address(token), vault, GAME, VALIDATOR, IWitnesses(WITNESSES), IAvailability(AVAILABILITY), 1, 0
        );
        require(address(market) == _creation(0x03), "the market is elsewhere");
        Beyond beyond = new Beyond();
        CHEATS.etch(WITNESSES, address(beyond).code);
        CHEATS.etch(AVAILABILITY, address(beyond).code);
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            address account = CHEATS.addr(FIRST_KEY + i);
            token.mint(account, 1e12);
            CHEATS.prank(account);
            token.approve(address(vault), type(uint256).max);
        }
    }

    function test_every_history_of_the_twin_replays() external {
        string memory path = CHEATS.envOr("LOCKSTEP_HISTORIES", "tests/vectors/rounds.jsonl");
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
        for (uint256 k = 0; k < h.time.length; k++) {
            CHEATS.warp(h.time[k]);
            CHEATS.roll(h.number[k]);
            if (bytes4(h.data[k]) == JobMarket.seal.selector) _setSeedHash(h.job, h.data[k]);

            CHEATS.recordLogs();
            CHEATS.prank(h.sender[k]);
            (bool accepted, bytes memory returned) = h.to[k].call(h.data[k]);

            bytes4 said = accepted ? bytes4(0) : bytes4(returned);
            if (said != bytes4(h.error[k])) revert Differs(i, k, "error", abi.encodePacked(said), h.error[k]);
            if (!accepted) continue;
            bytes32 logs = _logs();
            if (logs != h.logs[k]) revert Differs(i, k, "logs", abi.encode(logs), abi.encode(h.logs[k]));
            // Of what a view says instead of what is stored: nothing has changed.
            bytes32 digest = bytes4(h.data[k]) == JobMarket.factsOf.selector ? keccak256(returned) : _digest(h);
            if (digest != h.digest[k]) revert Differs(i, k, "digest", abi.encode(digest), abi.encode(h.digest[k]));
        }
        return h.time.length;
    }

    function _parse(string memory line) private pure returns (History memory h) {
        h.job = JobId.wrap(CHEATS.parseJsonBytes32(line, ".job"));
        h.rounds = uint32(CHEATS.parseJsonUint(line, ".rounds"));
        h.slots = uint32(CHEATS.parseJsonUint(line, ".slots"));
        h.time = CHEATS.parseJsonUintArray(line, ".time");
        h.number = CHEATS.parseJsonUintArray(line, ".number");
        h.sender = CHEATS.parseJsonAddressArray(line, ".sender");
        h.to = CHEATS.parseJsonAddressArray(line, ".to");
        h.data = CHEATS.parseJsonBytesArray(line, ".data");
        h.error = CHEATS.parseJsonBytesArray(line, ".error");
        h.logs = CHEATS.parseJsonBytes32Array(line, ".logs");
        h.digest = CHEATS.parseJsonBytes32Array(line, ".digest");
    }

    /// @dev The hash of block n is keccak(n), there as here.
    function _setSeedHash(JobId job, bytes memory data) private {
        uint256 r;
        assembly ("memory-safe") {
            r := mload(add(data, 0x44))
        }
        uint256 seedBlock = market.round(job, uint32(r)).seedBlock;
        if (seedBlock == 0 || seedBlock >= block.number || seedBlock + 256 < block.number) return;
        CHEATS.setBlockhash(seedBlock, keccak256(abi.encode(seedBlock)));
    }

    /// @dev Every event of the act, in order: emitter, topics, data.
    function _logs() private returns (bytes32 d) {
        Cheats.Log[] memory logs = CHEATS.getRecordedLogs();
        for (uint256 i = 0; i < logs.length; i++) {
            d = keccak256(abi.encodePacked(d, abi.encode(logs[i].emitter), logs[i].topics, logs[i].data));
        }
    }

    function _digest(History memory h) private view returns (bytes32 d) {
        d = keccak256(abi.encode(d, market.job(h.job)));
        for (uint32 r = 0; r < h.rounds; r++) {
            d = keccak256(abi.encode(d, market.round(h.job, r), market.phase(h.job, r)));
            for (uint32 s = 0; s <= h.slots; s++) {
                ClaimId claim = market.claimIdOf(h.job, r, s == h.slots ? MERGE : s);
                d = keccak256(abi.encode(d, market.claim(claim), market.live(claim)));
            }
        }
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            address account = CHEATS.addr(FIRST_KEY + i);
            (uint256 unbonding,) = vault.unbonding(account);
            d = keccak256(abi.encode(d, vault.free(account), vault.credits(account), unbonding));
        }
        d = keccak256(abi.encode(d, vault.credits(BURN), vault.totalEscrow(), token.balanceOf(address(vault))));
    }

    /// @dev keccak(rlp([this, nonce]))[12:] for a nonce below 0x80.
    function _creation(uint8 nonce) private view returns (address) {
        return address(uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), nonce)))));
    }
}
