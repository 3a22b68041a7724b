// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";

import {StakeVault} from "../../contracts/StakeVault.sol";
import {IStakeVault} from "../../contracts/interfaces/IStakeVault.sol";
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
/// @notice The vault's guards one by one, with a token that calls back; this contract is the market and one of the accounts.
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
        IStakeVault.Lock memory held = vault.lockOf(KEY);
        require(held.account == address(this) && held.amount == amount, "what was locked");
        require(vault.free(address(this)) == (1 << 90) - amount, "and no more");
    }

    function testFuzz_stake_leaves_after_the_delay_to_the_second(uint256 amount) external {
        amount = 1 + amount % 1e30;
        vault.deposit(amount);
        vault.requestUnbond(amount);
        uint256 due = block.timestamp + UNBOND_SECONDS;
        CHEATS.warp(due - 1);
        _reverts(abi.encodeCall(vault.withdrawUnbonded, ()), abi.encodeWithSelector(Unbonding.selector, due));
        CHEATS.warp(due);
        uint256 before = token.balanceOf(address(this));
        vault.withdrawUnbonded();
        require(token.balanceOf(address(this)) == before + amount, "all of it");
        _reverts(abi.encodeCall(vault.withdrawUnbonded, ()), abi.encodeWithSelector(NothingDue.selector));
    }

    // -- who may

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

    function testFuzz_strangers_move_nothing(address stranger) external {
        if (stranger == address(this) || stranger == GAME || stranger == WITNESSES || stranger == AVAILABILITY) return;
        vault.deposit(100);
        vault.lock(address(this), KEY, 10);
        bytes[8] memory calls = [
            abi.encodeCall(vault.lock, (address(this), keccak256("other"), 1)),
            abi.encodeCall(vault.unlock, (KEY)),
            abi.encodeCall(vault.takeBond, (KEY, stranger, 1)),
            abi.encodeCall(vault.slashLiveness, (KEY, 1)),
            abi.encodeCall(vault.slash, (KEY, 0, _one(stranger), new IStakeVault.Refund[](0), stranger)),
            abi.encodeCall(vault.escrow, (address(this), 1)),
            abi.encodeCall(vault.escrowWithPermit, (address(this), 1, block.timestamp, 27, bytes32(0), bytes32(0))),
            abi.encodeCall(vault.credit, (stranger, 1))
        ];
        for (uint256 i = 0; i < calls.length; i++) {
            _reverts(stranger, calls[i], abi.encodeWithSelector(Unauthorized.selector, stranger));
        }
    }

    /// @dev 1,000 at stake: 300 to who won, gas out of the requester's 200 up to 100 of them, 500 burned at least.
    function test_a_slash_gives_gas_back_in_order_up_to_a_tenth() external {
        uint256[2][3] memory asked = [[uint256(40), 80], [uint256(40), 20], [uint256(100), 1]];
        uint256[2][3] memory given = [[uint256(40), 60], [uint256(40), 20], [uint256(100), 0]];
        for (uint256 i = 0; i < 3; i++) {
            address[3] memory to = [address(uint160(0x10 + i)), address(uint160(0x20 + i)), address(uint160(0x30 + i))];
            vault.deposit(1_000);
            vault.lock(address(this), KEY, 1_000);
            IStakeVault.Refund[] memory refunds = new IStakeVault.Refund[](2);
            for (uint256 k = 0; k < 2; k++) refunds[k] = IStakeVault.Refund(to[k], asked[i][k]);
            uint256 burned = vault.credits(vault.BURN());
            vault.slash(KEY, 0, _one(to[0]), refunds, to[2]);
            require(vault.credits(to[0]) == 300 + given[i][0] && vault.credits(to[1]) == given[i][1], "prize and gas");
            require(vault.credits(to[2]) == 200 - given[i][0] - given[i][1], "the requester's part");
            require(vault.credits(vault.BURN()) - burned == 500, "half is burned");
        }
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

    function test_a_permit_that_fails_leaves_it_to_the_allowance() external {
        vault.depositWithPermit(7, block.timestamp, 27, bytes32(0), bytes32(0));
        vault.escrowWithPermit(ALICE, 9, block.timestamp, 27, bytes32(0), bytes32(0));
        require(vault.free(address(this)) == 7 && vault.totalEscrow() == 9, "the allowance was there");
    }

    // -- inside

    function _one(address winner) private pure returns (address[] memory winners) {
        winners = new address[](1);
        winners[0] = winner;
    }

    function _makeEverythingDue() private {
        vault.deposit(100);
        vault.lock(address(this), KEY, 10);
        vault.slash(KEY, 0, _one(address(this)), new IStakeVault.Refund[](0), address(this));
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

    function _reverts(address sender, bytes memory call, bytes memory expected) private {
        CHEATS.prank(sender);
        _reverts(call, expected);
    }

    function _requireBooksMatch() private view {
        (uint256 mine,) = vault.unbonding(address(this));
        uint256 owed = vault.free(address(this)) + vault.credits(address(this)) + mine + vault.credits(ALICE)
            + vault.credits(vault.BURN()) + vault.totalEscrow();
        require(owed == token.balanceOf(address(vault)), "what the books say is what the token holds");
    }
}
