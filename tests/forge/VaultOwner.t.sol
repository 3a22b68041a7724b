// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {StakeVault} from "../../contracts/StakeVault.sol";
import {Refund} from "../../contracts/interfaces/IStakeVault.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {CHEATS} from "./Cheats.sol";

/// @title StolenKey
/// @notice What the fuzzer may do to an account that has an owner: a thief has the account's key and another of its own, the owner
/// and its heir act as well, and this contract is the market, which locks, pays and slashes.
contract StolenKey {
    address public constant OPERATOR = address(0x09E7A702);
    address public constant THIEF = address(0x7417EF);
    address public constant OWNER = address(0x0C01D);
    address public constant HEIR = address(0x4E12);
    address private constant WINNER = address(0x311);
    uint256 public constant STAKE = 100_000;
    uint256 public constant WALLET = 1_000;
    uint256 private constant KEYS = 4;
    uint256 private constant DELAY = 1 hours;

    TestToken public token;
    StakeVault public vault;
    /// @notice What came in for the operator, and what verdicts took.
    uint256 public earned;
    uint256 public lost;
    /// @notice What the thief was let do, counted: most of what it tries is refused.
    uint256 public tried;
    uint256 public managed;

    constructor() {
        token = new TestToken();
        vault = new StakeVault(IERC20(address(token)), address(this), address(this), address(this), address(this), DELAY);
        address[3] memory accounts = [OPERATOR, THIEF, address(this)];
        for (uint256 i = 0; i < 3; i++) {
            token.mint(accounts[i], i == 0 ? STAKE + WALLET : i == 1 ? WALLET : 1e12);
            CHEATS.prank(accounts[i]);
            token.approve(address(vault), type(uint256).max);
        }
        vault.escrow(address(this), 1e9);
        CHEATS.prank(OPERATOR);
        vault.deposit(STAKE);
        // Asked for before there was an owner: it is the owner's, too.
        CHEATS.prank(OPERATOR);
        vault.requestUnbond(STAKE / 10);
        CHEATS.prank(OPERATOR);
        vault.proposeOwner(OPERATOR, THIEF);
        CHEATS.prank(OPERATOR);
        vault.setOwner(OWNER);
    }

    /// @notice Any verb, with the stolen key or the thief's own.
    function steal(uint256 verb, uint256 who, uint256 whom, uint256 amount) external {
        address[6] memory named = [THIEF, OPERATOR, OWNER, HEIR, address(0), address(vault)];
        (address to, address account) = (named[whom % 6], named[whom / 6 % 4]);
        amount %= STAKE / 4;
        bytes[13] memory calls = [
            abi.encodeCall(vault.requestUnbond, (amount)),
            abi.encodeCall(vault.withdrawUnbonded, ()),
            abi.encodeCall(vault.withdraw, ()),
            abi.encodeCall(vault.setDelegate, (to)),
            abi.encodeCall(vault.setOwner, (to)),
            abi.encodeCall(vault.requestUnbondFor, (account, amount)),
            abi.encodeCall(vault.withdrawUnbondedFor, (account)),
            abi.encodeCall(vault.withdrawFor, (account)),
            abi.encodeCall(vault.setDelegateFor, (account, to)),
            abi.encodeCall(vault.proposeOwner, (account, to)),
            abi.encodeCall(vault.acceptOwner, (account)),
            abi.encodeCall(vault.deposit, (amount % (WALLET / 4))),
            abi.encodeCall(vault.registerNode, (bytes32(amount)))
        ];
        uint256 before = vault.free(OPERATOR);
        // The thief's own account stays empty: whatever it has was stolen.
        CHEATS.prank(who % 3 == 0 && verb % 13 != 11 ? THIEF : OPERATOR);
        (bool done,) = address(vault).call(calls[verb % 13]);
        tried += 1;
        if (done) managed += 1;
        if (done && verb % 13 == 11) earned += vault.free(OPERATOR) - before;
    }

    /// @notice What the owner does, or its heir.
    function own(uint256 verb, uint256 who, uint256 amount) external {
        address sender = who % 2 == 0 ? OWNER : HEIR;
        CHEATS.prank(sender);
        if (verb % 6 == 0) vault.requestUnbondFor(OPERATOR, amount % (STAKE / 4));
        else if (verb % 6 == 1) vault.withdrawUnbondedFor(OPERATOR);
        else if (verb % 6 == 2) vault.withdrawFor(OPERATOR);
        else if (verb % 6 == 3) vault.proposeOwner(OPERATOR, who % 4 < 2 ? HEIR : OWNER);
        else if (verb % 6 == 4) vault.acceptOwner(OPERATOR);
        else vault.setDelegateFor(OPERATOR, HEIR);
    }

    /// @notice The market goes on as if there were no owner.
    function market(uint256 verb, uint256 key, uint256 amount) external {
        bytes32 name = bytes32(1 + key % KEYS);
        amount %= STAKE / 8;
        uint256 held = vault.lockOf(name).amount;
        if (verb % 6 == 0) {
            vault.lock(OPERATOR, name, amount);
        } else if (verb % 6 == 1) {
            vault.unlock(name);
        } else if (verb % 6 == 2) {
            vault.credit(OPERATOR, amount);
            earned += amount;
        } else if (verb % 6 == 3) {
            vault.raise(name, amount);
        } else if (verb % 6 == 4) {
            address[] memory winners = new address[](1);
            winners[0] = WINNER;
            vault.slash(name, 0, winners, new Refund[](0), WINNER);
            lost += held;
        } else {
            vault.slashLiveness(name, amount);
            lost += amount;
        }
    }

    /// @notice Time passes.
    function pass(uint256 time) external {
        CHEATS.warp(block.timestamp + time % (2 * DELAY));
    }

    /// @notice Everything of the operator's that is in the vault.
    function inside() public view returns (uint256 held) {
        (uint256 unbonding,) = vault.unbonding(OPERATOR);
        held = vault.free(OPERATOR) + vault.credits(OPERATOR) + unbonding;
        for (uint256 i = 1; i <= KEYS; i++) held += vault.lockOf(bytes32(i)).amount;
    }
}

/// forge-config: default.invariant.depth = 200
/// forge-config: slow.invariant.depth = 200
/// forge-config: default.invariant.runs = 4
/// forge-config: slow.invariant.runs = 32
/// @title VaultOwner
/// @notice A stolen key of an account never moves money away from the account's owner.
contract VaultOwner {
    StolenKey private scene;
    StakeVault private vault;
    TestToken private token;
    address private operator;
    address private owner;
    address private heir;

    function setUp() external {
        CHEATS.warp(1_000_000);
        scene = new StolenKey();
        (vault, token) = (scene.vault(), scene.token());
        (operator, owner, heir) = (scene.OPERATOR(), scene.OWNER(), scene.HEIR());
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(scene);
    }

    function invariant_a_stolen_key_never_moves_money_away_from_the_owner() public view {
        address standing = vault.ownerOf(operator);
        require(standing == owner || standing == heir, "the account has another owner");
        require(token.balanceOf(operator) <= scene.WALLET(), "the vault paid the stolen key");
        require(token.balanceOf(scene.THIEF()) <= scene.WALLET(), "the vault paid the thief");
        uint256 out = token.balanceOf(owner) + token.balanceOf(heir);
        require(scene.inside() + out == scene.STAKE() + scene.earned() - scene.lost(), "money is missing");
        address delegate = vault.delegateOf(operator);
        require(delegate == address(0) || delegate == heir, "the stolen key named a delegate");
    }

    /// @dev What is left ends with the owner, whatever the thief did before.
    function afterInvariant() public {
        invariant_a_stolen_key_never_moves_money_away_from_the_owner();
        address standing = vault.ownerOf(operator);
        uint256 free = vault.free(operator);
        CHEATS.prank(standing);
        vault.requestUnbondFor(operator, free);
        CHEATS.warp(block.timestamp + 1 hours);
        (uint256 unbonding,) = vault.unbonding(operator);
        uint256 due = unbonding + vault.credits(operator);
        uint256 before = token.balanceOf(standing);
        CHEATS.prank(standing);
        if (unbonding > 0) vault.withdrawUnbondedFor(operator);
        CHEATS.prank(operator);
        try vault.withdraw() {} catch {}
        require(token.balanceOf(standing) == before + due, "the owner has all that nothing locks");
    }

    /// @dev The fuzzer must get somewhere, or the invariant says nothing.
    function test_the_scene_reaches_every_end() external {
        for (uint256 i = 0; i < 2_000; i++) {
            uint256 luck = uint256(keccak256(abi.encode(i)));
            uint256 kind = luck % 4;
            if (kind == 0) scene.steal(luck >> 8, luck >> 24, luck >> 40, luck >> 64);
            else if (kind == 1) try scene.own(luck >> 8, luck >> 24, luck >> 40) {} catch {}
            else if (kind == 2) try scene.market(luck >> 8, luck >> 24, luck >> 40) {} catch {}
            else scene.pass(luck >> 8);
            invariant_a_stolen_key_never_moves_money_away_from_the_owner();
        }
        require(scene.managed() > 50 && scene.tried() > 2 * scene.managed(), "the thief is refused, not idle");
        require(token.balanceOf(owner) > 0 && token.balanceOf(heir) > 0, "both owners were paid");
        require(scene.lost() > 0 && scene.earned() > 0, "verdicts and pay");
        afterInvariant();
    }
}
