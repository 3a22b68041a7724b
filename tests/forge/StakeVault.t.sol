// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";

import {StakeVault} from "../../contracts/StakeVault.sol";
import {Lock, Refund} from "../../contracts/interfaces/IStakeVault.sol";
import "../../contracts/libraries/Errors.sol";
import {CHEATS} from "./Cheats.sol";

/// @title RudeToken
/// @notice Calls its owner in the middle of each transfer, and may keep a fee.
contract RudeToken is ERC20 {
    VaultTest private immutable owner = VaultTest(msg.sender);
    uint256 public fee;
    bool private inside;

    constructor() ERC20("Rude", "RUDE") {}

    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }

    function setFee(uint256 fee_) external {
        fee = fee_;
    }

    function _update(address from, address to, uint256 amount) internal override {
        super._update(from, to, amount);
        if (fee > 0 && from != address(0)) super._update(to, address(0xFEE), fee);
        if (inside || from == address(0)) return;
        inside = true;
        owner.onTransfer();
        inside = false;
    }
}

/// @title VaultTest
/// @notice What the table of rules does not say of the vault: a token that calls back, or keeps a fee; this contract is the market and one of the accounts.
contract VaultTest {
    uint256 private constant UNBOND_SECONDS = 1 days;
    address private constant GAME = address(0x6A3E);
    address private constant WITNESSES = address(0x317);
    address private constant AVAILABILITY = address(0xA7A);
    address private constant ALICE = address(0xA11CE);
    bytes32 private constant KEY = keccak256("key");

    RudeToken private token;
    StakeVault private vault;
    bytes private again;
    bytes private answer;

    function setUp() external {
        token = new RudeToken();
        vault = new StakeVault(IERC20(address(token)), address(this), GAME, WITNESSES, AVAILABILITY, UNBOND_SECONDS);
        for (uint256 i = 0; i < 2; i++) {
            address account = i == 0 ? address(this) : ALICE;
            token.mint(account, 1 << 250);
            CHEATS.prank(account);
            token.approve(address(vault), type(uint256).max);
        }
        CHEATS.warp(1_000_000);
    }

    /// @dev The token's call in the middle of a transfer.
    function onTransfer() external {
        if (again.length == 0) return;
        (bool entered, bytes memory returned) = address(vault).call(again);
        require(!entered, "the vault was entered twice");
        answer = returned;
    }

    // -- what fits

    function testFuzz_a_lock_holds_88_bits(uint256 amount) external {
        amount = amount % 3 == 0 ? (1 << 88) - 1 + amount % 7 % 3 : amount % (1 << 89);
        vault.deposit(1 << 90);
        bytes memory call = abi.encodeCall(vault.lock, (address(this), KEY, amount));
        if (amount >> 88 != 0) return _reverts(call, abi.encodeWithSelector(AmountTooLarge.selector, amount));
        vault.lock(address(this), KEY, amount);
        Lock memory held = vault.lockOf(KEY);
        require(held.account == address(this) && held.amount == amount, "what was locked");
        require(vault.free(address(this)) == (1 << 90) - amount, "and no more");
    }

    function testFuzz_a_bond_is_taken_in_parts_and_no_unit_of_it_is_lost(uint88 bond, uint256[4] calldata parts) external {
        vault.deposit(bond);
        CHEATS.prank(AVAILABILITY);
        vault.lock(address(this), KEY, bond);
        uint256 left = bond;
        uint256 earned = 0;
        for (uint256 i = 0; i < 4 && left > 0; i++) {
            uint256 part = parts[i] < left ? parts[i] : left;
            CHEATS.prank(AVAILABILITY);
            vault.takeBond(KEY, ALICE, parts[i]);
            (left, earned) = (left - part, earned + part * 60 / 100);
            require(vault.lockOf(KEY).amount == left, "the lock keeps what was not taken");
            require((vault.lockOf(KEY).account != address(0)) == (left > 0), "and is gone with its last unit");
        }
        require(vault.credits(ALICE) == earned, "60 % of each part, rounded down");
        require(earned + vault.credits(vault.BURN()) + left == bond, "the rest is burned");
        if (left > 0) {
            CHEATS.prank(AVAILABILITY);
            vault.unlock(KEY);
        }
        require(vault.free(address(this)) == left, "what nobody took returns");
        _requireBooksMatch();
    }

    // -- tokens that are not what they seem

    function test_a_token_that_keeps_a_fee_is_refused() external {
        token.setFee(3);
        bytes memory mismatch = abi.encodeWithSelector(TokenMismatch.selector, uint256(10), uint256(7));
        _reverts(abi.encodeCall(vault.deposit, (10)), mismatch);
        _reverts(abi.encodeCall(vault.escrow, (address(this), 10)), mismatch);
        require(vault.free(address(this)) == 0 && vault.totalEscrow() == 0, "nothing was booked");
    }

    function test_the_vault_is_not_entered_while_it_pays_or_pulls() external {
        bytes[7] memory entrances = [
            abi.encodeCall(vault.deposit, (1)),
            abi.encodeCall(vault.withdraw, ()),
            abi.encodeCall(vault.burn, ()),
            abi.encodeCall(vault.withdrawUnbonded, ()),
            abi.encodeCall(vault.withdrawFor, (address(this))),
            abi.encodeCall(vault.withdrawUnbondedFor, (address(this))),
            abi.encodeCall(vault.escrow, (address(this), 1))
        ];
        for (uint256 i = 0; i < 7; i++) {
            again = "";
            _makeEverythingDue();
            again = entrances[i];
            vault.deposit(1);
            _requireReentered();
            vault.withdraw();
            _requireReentered();
            vault.burn();
            _requireReentered();
            vault.withdrawUnbonded();
            _requireReentered();
            vault.escrow(address(this), 1);
            _requireReentered();
            again = "";
            _makeEverythingDue();
            again = entrances[i];
            vault.withdrawFor(address(this));
            _requireReentered();
            vault.withdrawUnbondedFor(address(this));
            _requireReentered();
        }
        _requireBooksMatch();
    }

    // -- inside

    function _one(address winner) private pure returns (address[] memory winners) {
        winners = new address[](1);
        winners[0] = winner;
    }

    function _makeEverythingDue() private {
        vault.deposit(100);
        vault.lock(address(this), KEY, 10);
        vault.slash(KEY, 0, _one(address(this)), new Refund[](0), address(this));
        vault.requestUnbond(5);
        CHEATS.warp(block.timestamp + UNBOND_SECONDS);
    }

    function _requireReentered() private {
        require(bytes4(answer) == ReentrancyGuard.ReentrancyGuardReentrantCall.selector && answer.length == 4, "refused as a second entrance");
        answer = "";
    }

    function _reverts(bytes memory call, bytes memory expected) private {
        (bool success, bytes memory returned) = address(vault).call(call);
        require(!success && keccak256(returned) == keccak256(expected), "reverts for this reason");
    }

    function _requireBooksMatch() private view {
        (uint256 mine,) = vault.unbonding(address(this));
        uint256 owed = vault.free(address(this)) + vault.credits(address(this)) + mine + vault.credits(ALICE)
            + vault.credits(vault.BURN()) + vault.totalEscrow();
        require(owed == token.balanceOf(address(vault)), "what the books say is what the token holds");
    }
}
