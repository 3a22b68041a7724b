// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {keep, oneRole} from "./OneRole.sol";
import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {JobMarket} from "../../contracts/JobMarket.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {IAvailability} from "../../contracts/interfaces/IAvailability.sol";
import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {IStakeVault} from "../../contracts/interfaces/IStakeVault.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {DEFENDER_GAS, GAME_GAS, STAKE_GAMES} from "../../contracts/libraries/Constants.sol";
import "../../contracts/libraries/Errors.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {States} from "../../contracts/libraries/States.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {AuditId, ClaimId, JobId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";

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
/// @notice What the table of rules does not say: wallets that sign, gas, fees of rounds run again; this contract is the game, the validator, the witnesses and demands.
contract MarketTest {
    uint32 private constant MERGE = 0xffffffff;
    uint16 private constant SLOTS = 3;
    uint32 private constant ROUNDS = 2;
    uint256 private constant DEPOSIT = 1e6;
    uint256 private constant KEY = 0xacc0;
    uint16 private constant WITNESSES = 2;

    TestToken private token;
    StakeVault private vault;
    JobMarket private market;
    IJobMarket.JobParams private terms;
    JobId private job;
    mapping(ClaimId claim => bool) private absent;
    address private requester;
    address private aggregator;
    address private stranger;

    function setUp() external {
        token = new TestToken();
        address at = address(uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), uint8(3))))));
        vault = new StakeVault(IERC20(address(token)), at, address(this), address(this), address(this), 1 hours);
        market = new JobMarket(
            address(token), vault, address(this), address(this), IWitnesses(address(this)), IAvailability(address(this)), 1, 0
        );
        for (uint256 i = 0; i < 8; i++) _fund(_account(i));
        (requester, aggregator, stranger) = (_account(0), _account(1), _account(7));
        keep(terms, _params());
        CHEATS.warp(1_000_000);
        job = _create(terms, 0);
    }

    // -- what the market asks others

    function witnessOf(JobId, uint32, uint256 i) external pure returns (address) {
        return _account(5 + i);
    }

    function missing(ClaimId claim) external view returns (bool) {
        return absent[claim];
    }

    // -- receipts

    function test_a_wallet_says_itself_what_it_signed() external {
        Wallet wallet = new Wallet();
        CHEATS.prank(_account(2));
        vault.setDelegate(address(wallet));
        _toAttesting(0);
        bytes memory unsigned = abi.encodeWithSelector(SignatureInvalid.selector, _account(2));
        bytes4 yes = IERC1271.isValidSignature.selector;
        bytes[4] memory answers = [bytes(""), abi.encodePacked(yes), abi.encode(bytes4(~yes)), abi.encode(uint256(1))];
        for (uint256 i = 0; i < answers.length; i++) {
            wallet.tell(answers[i], false);
            _reverts(_attested(0, KEY + 6), unsigned);
        }
        wallet.tell(abi.encode(yes), true);
        _reverts(_attested(0, KEY + 6), unsigned);
        wallet.tell(abi.encode(yes), false);
        _attest(0, KEY + 6);
        require(market.round(job, 0).spoke == 1, "it said yes");
    }

    // -- verdicts

    /// @dev Bonds follow the median of the base fees at seals; gas is given back at what it costs in the block of the verdict.
    function test_gas_is_priced_at_base_fees() external {
        uint128 stake = uint128(STAKE_GAMES * GAME_GAS);
        (terms.prices.gasPrice, terms.roles[0].slotStake, terms.merge.stake) = (1, stake, stake);
        for (uint256 i = 0; i < 5; i++) {
            token.mint(_account(i), stake);
            CHEATS.prank(_account(i));
            vault.deposit(stake);
        }
        job = _create(terms, 5);
        uint256 atCap = 3 * DEFENDER_GAS;
        require(market.bondOf(job) == terms.prices.bond + atCap, "no seal was seen: as at the cap");
        CHEATS.fee(terms.prices.feeCap / 4);
        _toAttesting(0);
        // Fees are remembered in units of 8,192 wei, rounded up.
        uint256 seen = (uint256(terms.prices.feeCap) / 4 + 8_191) / 8_192 * 8_192;
        require(market.bondOf(job) == terms.prices.bond + (atCap * seen + terms.prices.feeCap - 1) / terms.prices.feeCap, "as at the seal");

        CHEATS.fee(terms.prices.feeCap / 10);
        IStakeVault.Refund[] memory refunds = new IStakeVault.Refund[](1);
        refunds[0] = IStakeVault.Refund(stranger, 1_234_567);
        market.onConvicted(market.claimIdOf(job, 0, 0), 1, _one(stranger), refunds);
        require(vault.credits(stranger) == uint256(stake) * 30 / 100 + 123_457, "a tenth of the cap, rounded up");
    }

    // -- witnesses, demands

    /// @dev Rounds that are run again after a convicted merge may draw again only from what slots and merges leave over.
    function test_witnesses_of_a_round_run_again_never_take_the_workers_pay() external {
        _toAttesting(0);
        market.onDrawn(job, 0, WITNESSES);
        _fromAttestingToLead(0);
        _start(1);
        _toAttesting(1);
        market.onDrawn(job, 1, WITNESSES);
        _convict(market.claimIdOf(job, 0, MERGE));
        _merge(0, market.mergerOf(job, 0));
        _start(1);
        _toAttesting(1);
        uint256 fees = WITNESSES * terms.roles[0].witnessFee;
        market.onDrawn(job, 1, WITNESSES);
        require(market.job(job).feesDue == 3 * fees, "two audits, and one again");
        require(market.job(job).escrow == ROUNDS * _pay() + fees, "which the slash has paid");
        require(market.rewound(AuditId.wrap(keccak256(abi.encode(job, uint32(1), uint32(0))))), "who looked in vain is paid");
    }

    /// @dev A failed round gives its fees up when its duties are settled: until then a round run again finds them taken.
    function test_fees_of_a_failed_round_do_not_come_out_of_the_workers_pay() external {
        _toAttesting(0);
        market.onDrawn(job, 0, WITNESSES);
        _fromAttestingToLead(0);
        _toAttesting(1);
        market.onDrawn(job, 1, WITNESSES);
        for (uint32 s = 1; s < SLOTS; s++) absent[market.claimIdOf(job, 1, s)] = true;
        market.onDemanded(job, 1, 1, false);
        CHEATS.warp(market.round(job, 1).attestEnds);
        market.freeze(job, 1, _bodies(1));
        require(market.phase(job, 1) == IJobMarket.Phase.Failed && market.job(job).failed == 1, "too few payloads");
        _convict(market.claimIdOf(job, 0, MERGE));
        require(market.job(job).failed == 0, "what failed on voided work does not count");
        _merge(0, market.mergerOf(job, 0));
        _start(1);
        _toAttesting(1);
        uint256 fees = WITNESSES * terms.roles[0].witnessFee;
        uint256 work = ROUNDS * (_pay() - fees);
        bytes memory call = abi.encodeCall(market.onDrawn, (job, 1, WITNESSES));
        _reverts(call, abi.encodeWithSelector(EscrowTooLow.selector, work + fees, work));
        market.onWitnessed(job, address(0));
        _reverts(call, abi.encodeWithSelector(EscrowTooLow.selector, work + fees, work + terms.roles[0].witnessFee));
        market.onWitnessed(job, address(0));
        market.onDrawn(job, 1, WITNESSES);
        require(market.job(job).feesDue == 2 * fees, "two rounds' fees, and no more");
    }

    // -- a round, step by step

    function _start(uint32 r) private {
        market.startRound(job, r);
    }

    function _join(uint32 r) private {
        for (uint32 s = 0; s < SLOTS; s++) {
            CHEATS.prank(_account(2 + s));
            market.join(job, r, s);
        }
    }

    function _seal(uint32 r) private {
        CHEATS.roll(block.number + 2);
        market.seal(job, r);
    }

    function _commit(uint32 r, uint32 s) private {
        ClaimId claim = market.claimIdOf(job, r, s);
        IJobMarket.Reveal memory o = _opened(claim);
        CHEATS.prank(_account(2 + s));
        market.commit(job, r, s, keccak256(abi.encode(claim, _account(2 + s), o.body, o.carries, o.nonce)));
    }

    function _reveal(uint32 r, uint32 s) private {
        IJobMarket.Reveal memory o = _opened(market.claimIdOf(job, r, s));
        CHEATS.prank(_account(2 + s));
        market.reveal(job, r, s, o);
    }

    function _toAttesting(uint32 r) private {
        if (market.phase(job, r) == IJobMarket.Phase.None) _start(r);
        _join(r);
        _seal(r);
        for (uint32 s = 0; s < SLOTS; s++) _commit(r, s);
        for (uint32 s = 0; s < SLOTS; s++) _reveal(r, s);
    }

    function _fromAttestingToLead(uint32 r) private {
        CHEATS.warp(market.round(job, r).attestEnds);
        market.freeze(job, r, _bodies(r));
        _merge(r, aggregator);
    }

    function _merge(uint32 r, address merger) private returns (ClaimId) {
        CHEATS.prank(merger);
        market.merge(job, r, keccak256("shared"), keccak256("outer"), "", 3);
        return market.claimIdOf(job, r, MERGE);
    }

    function _convict(ClaimId claim) private {
        market.onConvicted(claim, 1, _one(stranger), new IStakeVault.Refund[](0));
    }

    // -- receipts

    function _attested(uint32 who, uint256 key) private view returns (bytes memory) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Lockstep"),
                keccak256("1"),
                block.chainid,
                address(market)
            )
        );
        bytes32 kind = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");
        bytes32 said = keccak256(abi.encode(kind, job, 0, 0, who, 7));
        (uint8 v, bytes32 r, bytes32 s) = CHEATS.sign(key, keccak256(abi.encodePacked(hex"1901", domain, said)));
        IJobMarket.Receipt[] memory given = new IJobMarket.Receipt[](1);
        given[0] = IJobMarket.Receipt(who, 7, abi.encodePacked(r, s, v));
        return abi.encodeCall(market.attest, (job, 0, given));
    }

    function _attest(uint32 who, uint256 key) private {
        (bool success,) = address(market).call(_attested(who, key));
        require(success, "the receipt was refused");
    }

    // -- inside

    function _account(uint256 i) private pure returns (address) {
        return CHEATS.addr(KEY + i);
    }

    function _fund(address account) private {
        token.mint(account, 10 * DEPOSIT);
        CHEATS.prank(account);
        token.approve(address(vault), type(uint256).max);
        CHEATS.prank(account);
        vault.deposit(DEPOSIT);
    }

    function _create(IJobMarket.JobParams memory p, uint256 nonce) private returns (JobId) {
        CHEATS.prank(requester);
        return market.create(p, nonce, ROUNDS * _pay());
    }

    function _pay() private view returns (uint256) {
        return SLOTS * uint256(terms.roles[0].slotPrice) + terms.merge.price + WITNESSES * uint256(terms.roles[0].witnessFee);
    }

    /// @dev T = 2: one step and the encode.
    function _opened(ClaimId claim) private view returns (IJobMarket.Reveal memory o) {
        bytes32 out = keccak256(abi.encode(claim));
        o.nonce = out;
        o.proofT = new bytes32[](1);
        o.proofT[0] = Merkle.leaf(out);
        o.body = IJobMarket.Body(Merkle.node(o.proofT[0], Merkle.leaf(Merkle.node(out, out))), out, out);
    }

    function _bodies(uint32 r) private view returns (IJobMarket.Body[] memory bodies) {
        bodies = new IJobMarket.Body[](SLOTS);
        for (uint32 s = 0; s < SLOTS; s++) bodies[s] = _opened(market.claimIdOf(job, r, s)).body;
    }

    function _one(address winner) private pure returns (address[] memory winners) {
        winners = new address[](1);
        winners[0] = winner;
    }

    function _params() private view returns (IJobMarket.JobParams memory p) {
        oneRole(p);
        (p.roles[0].stepProgram, p.roles[0].encodeProgram, p.merge.program) = (keccak256("step"), keccak256("encode"), keccak256("merge"));
        p.roles[0].datasetRoot = keccak256("dataset");
        (p.roles[0].datasetRows, p.roles[0].rowLength, p.roles[0].innerSteps, p.schedule.rounds) = (5, 7, 1, ROUNDS);
        (p.roles[0].slots, p.roles[0].minSlots, p.schedule.maxLead, p.schedule.maxFail) = (SLOTS, 2, 2, 1);
        (p.windows.joinSeconds, p.roles[0].trainSeconds, p.roles[0].revealSeconds, p.roles[0].attestSeconds) = (100, 100, 100, 100);
        (p.merge.turnSeconds, p.windows.challengeSeconds, p.windows.clockSeconds, p.windows.stepSeconds) = (100, 1_000, 60, 1);
        (p.roles[0].slotPrice, p.merge.price, p.roles[0].slotStake, p.merge.stake, p.prices.bond) = (101, 57, 1_013, 1_019, 153);
        (p.roles[0].witnesses, p.windows.auditSeconds, p.roles[0].witnessFee, p.prices.witnessStake) = (WITNESSES, 100, 11, 223);
        (p.windows.answerSeconds, p.prices.feeCap) = (100, 1e9);
        p.merge.aggregator = aggregator;
        (p.spec.profile, p.spec.opset) = (1, 1);
    }

    function _reverts(bytes memory call, bytes memory expected) private {
        (bool success, bytes memory returned) = address(market).call(call);
        require(!success && keccak256(returned) == keccak256(expected), "reverts for this reason");
    }
}
