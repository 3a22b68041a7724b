// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";

import {JobParams, Phase, Receipt} from "../../contracts/interfaces/IJobMarket.sol";
import {Refund} from "../../contracts/interfaces/IStakeVault.sol";
import {DEFENDER_GAS, GAME_GAS, STAKE_GAMES} from "../../contracts/libraries/Constants.sol";
import "../../contracts/libraries/Errors.sol";
import {CHEATS} from "./Cheats.sol";
import {LoneMarket} from "./LoneMarket.sol";

/// @title Wallet
/// @notice A contract that is an account: it answers to signatures what it was told to.
contract Wallet {
    bytes private answer;
    bool private refuses;

    function tell(bytes calldata answer_, bool refuses_) external {
        (answer, refuses) = (answer_, refuses_);
    }

    function isValidSignature(bytes32, bytes calldata) external view {
        bytes memory said = answer;
        require(!refuses, "refused");
        assembly ("memory-safe") {
            return(add(said, 0x20), mload(said))
        }
    }
}

/// @title MarketTest
/// @notice What the table of rules does not say: wallets that sign, and gas; one account has every slot.
contract MarketTest is LoneMarket {
    address private constant STRANGER = address(0x57A);

    function test_a_wallet_says_itself_what_it_signed() external {
        address worker = _toAttesting(_params());
        Wallet wallet = new Wallet();
        CHEATS.prank(worker);
        vault.setDelegate(address(wallet));
        bytes4 yes = IERC1271.isValidSignature.selector;
        bytes[4] memory answers = [bytes(""), abi.encodePacked(yes), abi.encode(bytes4(~yes)), abi.encode(uint256(1))];
        for (uint256 i = 0; i < answers.length; i++) {
            wallet.tell(answers[i], false);
            _requireUnsigned(worker);
        }
        wallet.tell(abi.encode(yes), true);
        _requireUnsigned(worker);
        wallet.tell(abi.encode(yes), false);
        (bool taken,) = address(market).call(_attested());
        require(taken && market.round(job, 0).spoke == 1, "it said yes");
    }

    /// @dev Bonds follow the median of the base fees at seals; gas is given back at what it costs in the block of the verdict.
    function test_gas_is_priced_at_base_fees() external {
        JobParams memory p = _params();
        uint128 stake = uint128(STAKE_GAMES * GAME_GAS);
        (p.prices.gasPrice, p.roles[0].slotStake, p.merge.stake) = (1, stake, stake);
        uint256 atCap = 3 * DEFENDER_GAS;
        CHEATS.fee(p.prices.feeCap / 4);
        _create(p);
        require(market.bondOf(job) == p.prices.bond + atCap, "no seal was seen: as at the cap");
        _toAttesting();
        // Fees are remembered in units of 8,192 wei, rounded up.
        uint256 seen = (uint256(p.prices.feeCap) / 4 + 8_191) / 8_192 * 8_192;
        require(market.bondOf(job) == p.prices.bond + (atCap * seen + p.prices.feeCap - 1) / p.prices.feeCap, "as at the seal");

        CHEATS.fee(p.prices.feeCap / 10);
        Refund[] memory refunds = new Refund[](1);
        refunds[0] = Refund(STRANGER, 1_234_567);
        address[] memory winners = new address[](1);
        winners[0] = STRANGER;
        market.onConvicted(market.claimIdOf(job, 0, 0), 1, winners, refunds);
        require(vault.credits(STRANGER) == uint256(stake) * 30 / 100 + 123_457, "a tenth of the cap, rounded up");
    }

    // -- inside

    function _create(JobParams memory p) private {
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            token.mint(account(i), 1e9);
            CHEATS.prank(account(i));
            vault.deposit(1e9);
        }
        CHEATS.prank(account(0));
        job = market.create(p, 0, 4 * (3 * 101 + 57 + 2 * 11));
        market.startRound(job, 0);
    }

    function _toAttesting(JobParams memory p) private returns (address) {
        _create(p);
        return _toAttesting();
    }

    /// @dev Who has every slot.
    function _toAttesting() private returns (address) {
        while (market.phase(job, 0) != Phase.Attesting) this.advance(1, type(uint256).max, bytes32(uint256(1)));
        return _owner(0, 0);
    }

    /// @dev The first slot's receipt, in nobody's hand.
    function _attested() private view returns (bytes memory) {
        Receipt[] memory given = new Receipt[](1);
        given[0] = Receipt(0, 7, new bytes(65));
        return abi.encodeCall(market.attest, (job, 0, given));
    }

    function _requireUnsigned(address worker) private {
        (bool taken, bytes memory said) = address(market).call(_attested());
        require(!taken && keccak256(said) == keccak256(abi.encodeWithSelector(SignatureInvalid.selector, worker)), "unsigned");
    }
}
