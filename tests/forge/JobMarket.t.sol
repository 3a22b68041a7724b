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
/// @notice The market's guards one by one, with what each says; this contract is the game, the validator, the witnesses and demands.
contract MarketTest {
    uint32 private constant MERGE = 0xffffffff;
    uint16 private constant SLOTS = 3;
    uint32 private constant ROUNDS = 2;
    uint256 private constant DEPOSIT = 1e6;
    uint256 private constant KEY = 0xacc0;
    uint16 private constant WITNESSES = 2;
    uint32 private constant WITNESS = 64;

    /// Nothing is carried.
    bytes32[] private nothing;
    TestToken private token;
    StakeVault private vault;
    JobMarket private market;
    IJobMarket.JobParams private terms;
    JobId private job;
    mapping(ClaimId claim => bool) private absent;
    /// Claims that say that they carry.
    mapping(ClaimId claim => bool) private carries;
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

    // -- the requester

    function test_a_job_exists_once_and_covers_every_round() external {
        uint256 needed = ROUNDS * _pay();
        _reverts(requester, _created(0, needed), abi.encodeWithSelector(JobExists.selector, job));
        uint256[2] memory wrong = [needed - 1, 1 << 120];
        for (uint256 i = 0; i < 2; i++) {
            bytes memory due = abi.encodeWithSelector(EscrowInsufficient.selector, needed, wrong[i]);
            _reverts(requester, _created(1, wrong[i]), due);
        }
        uint256 held = vault.totalEscrow();
        JobId other = _create(terms, 1);
        require(JobId.unwrap(other) != JobId.unwrap(job), "another job");
        require(vault.totalEscrow() - held == needed + 3 * _pay(), "escrow, pay of two rounds in flight, and one");
        uint256 most = type(uint120).max;
        token.mint(requester, most);
        CHEATS.prank(requester);
        market.create(terms, 2, most);
        require(vault.totalEscrow() - held == needed + most + 6 * _pay(), "the most that fits is taken");
    }

    function test_one_permit_creates_a_job() external {
        uint256 key = 0xbee;
        address owner = CHEATS.addr(key);
        uint256 escrow = ROUNDS * _pay();
        uint256 pulled = escrow + 3 * _pay();
        token.mint(owner, pulled + 5);
        bytes32 kind = keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
        bytes32 permit = keccak256(abi.encode(kind, owner, vault, pulled, 0, block.timestamp));
        (uint8 v, bytes32 r, bytes32 s) =
            CHEATS.sign(key, keccak256(abi.encodePacked(hex"1901", token.DOMAIN_SEPARATOR(), permit)));
        uint256 held = vault.totalEscrow();
        CHEATS.prank(owner);
        JobId made = market.createWithPermit(terms, 3, escrow, block.timestamp, v, r, s);
        require(JobId.unwrap(made) == keccak256(abi.encode(block.chainid, market, owner, 3, keccak256(abi.encode(terms)))), "its id");
        require(market.job(made).requester == owner && market.job(made).escrow == escrow, "its job");
        require(vault.totalEscrow() - held == pulled && token.balanceOf(owner) == 5, "its tokens");
    }

    // -- rounds

    function test_a_seed_is_the_hash_of_a_block_to_come() external {
        _start(0);
        _join(0);
        uint256 due = market.round(job, 0).seedBlock;
        require(due == block.number + 1, "the next block");
        _reverts(abi.encodeCall(market.seal, (job, 0)), abi.encodeWithSelector(TooEarly.selector, due + 1));
        CHEATS.roll(due + 1);
        CHEATS.setBlockhash(due, keccak256("hash"));
        market.seal(job, 0);
        require(market.round(job, 0).seed == keccak256(abi.encode(keccak256("hash"), job, 0, 0)), "of that block");
    }

    // -- receipts

    function test_a_receipt_counts_once_and_for_who_may_speak() external {
        _toAttestingWithoutTheThird();
        uint32[4] memory nobody = [2, SLOTS, WITNESS - 1, WITNESS];
        for (uint256 i = 0; i < nobody.length; i++) {
            bytes memory expected = abi.encodeWithSelector(NotSlotOwner.selector, nobody[i]);
            _reverts(_attested(nobody[i], KEY + 4), expected);
        }
        _attest(0, KEY + 2);
        _reverts(_attested(0, KEY + 2), abi.encodeWithSelector(AlreadyDone.selector));
        market.onDrawn(job, 0, 1);
        _attest(WITNESS, KEY + 5);
        _reverts(_attested(WITNESS + 1, KEY + 6), abi.encodeWithSelector(NotSlotOwner.selector, WITNESS + 1));
        require(market.round(job, 0).receipts == 2 && market.round(job, 0).spoke == 1 | uint256(1) << WITNESS, "two spoke");
        _attest(1, KEY + 3);
        require(market.phase(job, 0) == IJobMarket.Phase.Freezing, "there is nobody else");
    }

    function test_a_receipt_is_signed_by_its_speaker_or_by_its_delegate() external {
        _toAttesting(0);
        bytes memory unsigned = abi.encodeWithSelector(SignatureInvalid.selector, _account(2));
        _reverts(_attested(0, KEY + 6), unsigned);
        CHEATS.prank(_account(2));
        vault.setDelegate(_account(6));
        _reverts(_attested(0, KEY + 5), unsigned);
        _attest(0, KEY + 6);
        require(market.round(job, 0).spoke == 1, "the delegate spoke for it");
        _attest(1, KEY + 3);
        require(market.round(job, 0).spoke == 3, "and this one for itself");
    }

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

    // -- merges

    function test_who_merges_is_whose_turn_it_is() external {
        _toFrozen(0);
        bytes memory call = abi.encodeCall(market.merge, (job, 0, bytes32(0), bytes32(0), "", 0));
        _reverts(stranger, call, abi.encodeWithSelector(NotYourTurn.selector, aggregator));
        ClaimId lie = _merge(0, aggregator);
        require(!market.barred(job, aggregator), "nobody is barred yet");
        _convict(lie);
        require(market.barred(job, aggregator) && !market.barred(job, stranger), "who lied merges no more");
        require(market.factsOf(market.claimIdOf(job, 0, 0), 1, nothing).stateZero != 0, "the slots' claims stand");
        _reverts(abi.encodeCall(market.factsOf, (lie, 1, nothing)), abi.encodeWithSelector(ClaimClosed.selector, lie));
        address next = market.mergerOf(job, 0);
        _reverts(aggregator, call, abi.encodeWithSelector(NotYourTurn.selector, next));
        _merge(0, next);
        require(ClaimId.unwrap(market.round(job, 0).mergeClaim) != ClaimId.unwrap(lie) && market.mergerOf(job, 0) == address(0), "merged");
    }

    function test_who_lied_about_a_merge_is_passed_over_in_later_rounds() external {
        _toFrozen(0);
        _convict(_merge(0, aggregator));
        address liar = market.mergerOf(job, 0);
        _convict(_merge(0, liar));
        _merge(0, market.mergerOf(job, 0));
        _start(1);
        _toFrozen(1);
        bytes memory call = abi.encodeCall(market.merge, (job, 1, bytes32(0), bytes32(0), "", 0));
        uint256 passed = 0;
        for (uint256 turn = 0; turn < SLOTS; turn++) {
            address merger = market.mergerOf(job, 1);
            require(merger != aggregator && merger != liar, "a liar's turn");
            if (merger == address(0)) {
                _reverts(liar, call, abi.encodeWithSelector(NotYourTurn.selector, address(0)));
                passed++;
            }
            CHEATS.warp(block.timestamp + terms.merge.turnSeconds);
        }
        require(passed == 1 && market.mergerOf(job, 1) == address(0), "one turn is nobody's, then all are over");
        market.finalize(job, 1);
        require(market.phase(job, 1) == IJobMarket.Phase.Failed, "a round that nobody merges fails");
    }

    function test_who_merged_and_nobody_else_backs_more_rounds() external {
        _toLead(0);
        ClaimId merge = market.claimIdOf(job, 0, MERGE);
        uint256 held = vault.lockOf(ClaimId.unwrap(merge)).amount;
        bytes memory call = abi.encodeCall(market.back, (job, 0, 2));
        _reverts(stranger, call, abi.encodeWithSelector(NotYourTurn.selector, aggregator));
        CHEATS.prank(aggregator);
        market.back(job, 0, 2);
        require(market.round(job, 0).backed == 5, "two more than it was merged with");
        require(vault.lockOf(ClaimId.unwrap(merge)).amount == held + 2 * _pay(), "with the pay of two rounds");
    }

    // -- the end of a round

    function test_a_round_is_final_when_nothing_can_overturn_it() external {
        _toLead(0);
        ClaimId claim = market.claimIdOf(job, 0, 1);
        market.onOpen(claim, _opened(claim).body);
        uint256 due = block.timestamp + terms.windows.challengeSeconds;
        bytes memory call = abi.encodeCall(market.finalize, (job, 0));
        _reverts(call, abi.encodeWithSelector(TooEarly.selector, due));
        CHEATS.warp(due);
        _reverts(call, abi.encodeWithSelector(GamesOpen.selector, 1));
        market.onRejected(claim);
        _reverts(abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(JobUnfinished.selector));
        market.finalize(job, 0);
        _reverts(call, abi.encodeWithSelector(WrongPhase.selector, job, uint32(0)));
        require(vault.credits(_account(2)) == terms.roles[0].slotPrice && vault.credits(aggregator) == terms.merge.price, "paid");
        _reverts(abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(JobUnfinished.selector));
        CHEATS.prank(requester);
        market.cancel(job);
        market.finish(job);
        _reverts(abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(WrongJobStatus.selector, job));
        require(vault.totalEscrow() == 0 && market.job(job).deposit == 0, "nothing stays");
    }

    /// @dev Round 1 is void by the conviction of the merge below it, and two games about one of its claims go on.
    function test_what_games_on_voided_work_argue_about_stands_still() external {
        _toLead(0);
        _toAttesting(1);
        ClaimId claim = market.claimIdOf(job, 1, 0);
        for (uint256 i = 0; i < 2; i++) market.onOpen(claim, _opened(claim).body);
        _convict(market.claimIdOf(job, 0, MERGE));
        require(market.phase(job, 1) == IJobMarket.Phase.Void && market.live(claim), "its games go on");
        uint256 clean = CHEATS.snapshotState();

        _merge(0, market.mergerOf(job, 0));
        _standsUntilRejected(abi.encodeCall(market.startRound, (job, 1)), claim);
        require(market.round(job, 1).attempt == 0 && vault.lockOf(ClaimId.unwrap(claim)).amount == terms.roles[0].slotStake, "as it was");
        market.startRound(job, 1);
        require(market.round(job, 1).attempt == 1 && vault.lockOf(ClaimId.unwrap(claim)).amount == 0, "again, with the stake back");

        CHEATS.revertToState(clean);
        CHEATS.warp(block.timestamp + SLOTS * terms.merge.turnSeconds);
        require(market.mergerOf(job, 0) == address(0), "all turns are over");
        _standsUntilRejected(abi.encodeCall(market.finalize, (job, 0)), claim);
        market.finalize(job, 0);
        require(market.phase(job, 0) == IJobMarket.Phase.Failed, "failed");
    }

    function _standsUntilRejected(bytes memory call, ClaimId claim) private {
        for (uint256 left = 2; left > 0; left--) {
            require(market.job(job).lingering == left, "games that linger");
            _reverts(call, abi.encodeWithSelector(GamesOpen.selector, left));
            market.onRejected(claim);
        }
        require(market.job(job).lingering == 0 && !market.live(claim), "void with its last game");
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

    function test_only_a_standing_claim_is_challenged_as_it_was_made() external {
        _toAttesting(0);
        ClaimId claim = market.claimIdOf(job, 0, 0);
        IJobMarket.Body memory body = _opened(claim).body;
        body.out2 = ~body.out2;
        bytes memory call = abi.encodeCall(market.onOpen, (claim, body));
        _reverts(call, abi.encodeWithSelector(CommitmentMismatch.selector));
        body.out2 = ~body.out2;
        IJobMarket.GameTerms memory given = market.onOpen(claim, body);
        require(given.defender == _account(2) && given.transitions == 2 && given.games == 0, "its terms");
        require(market.onOpen(claim, body).games == 1 && given.bond == terms.prices.bond, "counted");
        CHEATS.warp(block.timestamp + terms.windows.challengeSeconds - 1);
        require(market.windowOpen(claim), "to the last second");
        CHEATS.warp(block.timestamp + 1);
        require(!market.windowOpen(claim) && market.live(claim), "games that are open go on");
        call = abi.encodeCall(market.onOpen, (claim, body));
        _reverts(call, abi.encodeWithSelector(WindowClosed.selector, claim));
        _convict(claim);
        bytes memory closed = abi.encodeWithSelector(ClaimClosed.selector, claim);
        _reverts(abi.encodeCall(market.onRejected, (claim)), closed);
        _reverts(abi.encodeCall(market.onConvicted, (claim, 1, _one(stranger), new IStakeVault.Refund[](0))), closed);
        _reverts(call, abi.encodeWithSelector(WindowClosed.selector, claim));
        require(market.convictedAt(claim) == 1 && vault.credits(stranger) == terms.roles[0].slotStake * 30 / 100, "convicted once");
    }

    function test_the_job_names_the_program_of_every_transition() external {
        _toLead(0);
        ClaimId slot = market.claimIdOf(job, 0, 2);
        ClaimId merge = market.claimIdOf(job, 0, MERGE);
        require(market.factsOf(slot, 1, nothing).program == terms.roles[0].stepProgram, "a step");
        require(market.factsOf(slot, 2, nothing).program == terms.roles[0].encodeProgram, "the last is the encode");
        require(market.factsOf(merge, 1, nothing).program == terms.merge.program, "of a merge");
        bytes memory none = abi.encodeWithSelector(ProofInvalid.selector);
        _reverts(abi.encodeCall(market.factsOf, (slot, 0, nothing)), none);
        _reverts(abi.encodeCall(market.factsOf, (slot, 3, nothing)), none);
        _reverts(abi.encodeCall(market.factsOf, (merge, 2, nothing)), none);
        IJobMarket.Facts memory facts = market.factsOf(slot, 2, nothing);
        require(facts.seed == market.round(job, 0).seed && facts.round == 0 && facts.slot == 2, "its context");
        require(facts.datasetRoot == terms.roles[0].datasetRoot, "its dataset");
        require(facts.datasetRows == terms.roles[0].datasetRows && facts.rowLength == terms.roles[0].rowLength, "its rows");
        require(facts.stateZero == 0 && market.factsOf(slot, 1, nothing).stateZero != 0, "S_0 of the first step");
        require(market.factsOf(merge, 1, nothing).stateZero == market.round(job, 0).mergeIn, "what is merged");
    }

    /// @dev Slots 0 and 2 keep their owners, slot 1 gets another; slot 2's payload was left out of the round before.
    function test_a_slot_starts_from_the_carry_of_its_owners_claim_or_from_zero() external {
        (terms.roles[0].carryPeriod, terms.roles[0].zeroCarry) = (2, keccak256("zero carry"));
        terms.schedule.maxLead = 3;
        job = _create(terms, 1);
        bytes32[] memory carried = new bytes32[](0);
        _toAttesting(0);
        ClaimId first = market.claimIdOf(job, 0, 0);
        bytes32 from = States.slotZero(terms.genesis.shared, terms.roles[0].zeroCarry, 0, 0);
        require(market.factsOf(first, 1, carried).stateZero == from, "nothing comes before the first round");
        absent[market.claimIdOf(job, 0, 2)] = true;
        market.onDemanded(job, 0, 2, false);
        _fromAttestingToLead(0);
        _start(1);
        address[3] memory owners = [_account(2), _account(5), _account(4)];
        for (uint32 s = 0; s < SLOTS; s++) {
            CHEATS.prank(owners[s]);
            market.join(job, 1, s);
        }
        _seal(1);
        for (uint32 s = 0; s < SLOTS; s++) {
            carries[market.claimIdOf(job, 1, s)] = s != 2;
            _commitBy(1, s, owners[s]);
        }
        bytes memory refused = abi.encodeCall(market.reveal, (job, 1, 1, _opened(market.claimIdOf(job, 1, 1))));
        _reverts(owners[1], refused, abi.encodeWithSelector(NoCarry.selector, 1));
        for (uint32 s = 0; s < SLOTS; s += 2) _revealBy(1, s, owners[s]);
        require(market.claim(market.claimIdOf(job, 1, 0)).carries, "slot 0 carries");
        from = States.slotZero(keccak256("shared"), terms.roles[0].zeroCarry, 1, 0);
        require(market.factsOf(market.claimIdOf(job, 1, 2), 1, carried).stateZero == from, "from zero, as it says");
        IJobMarket.Body memory body = _opened(first).body;
        carried = new bytes32[](3);
        (carried[0], carried[1], carried[2]) = (body.traceRoot, body.out, body.out2);
        ClaimId later = market.claimIdOf(job, 1, 0);
        from = States.slotZero(keccak256("shared"), body.out2, 1, 0);
        require(market.factsOf(later, 1, carried).stateZero == from, "from what its owner's last claim says");
        carried[2] = ~carried[2];
        bytes memory call = abi.encodeCall(market.factsOf, (later, 1, carried));
        _reverts(call, abi.encodeWithSelector(CommitmentMismatch.selector));
    }

    function testFuzz_verdicts_draws_and_demands_come_from_their_contracts_alone(address caller) external {
        if (caller == address(this)) return;
        _toAttesting(0);
        ClaimId claim = market.claimIdOf(job, 0, 0);
        bytes[7] memory calls = [
            abi.encodeCall(market.onOpen, (claim, _opened(claim).body)),
            abi.encodeCall(market.onConvicted, (claim, 1, _one(caller), new IStakeVault.Refund[](0))),
            abi.encodeCall(market.onRejected, (claim)),
            abi.encodeCall(market.onInvalid, (job, caller)),
            abi.encodeCall(market.onDrawn, (job, 0, 1)),
            abi.encodeCall(market.onWitnessed, (job, caller)),
            abi.encodeCall(market.onDemanded, (job, 0, 0, false))
        ];
        for (uint256 i = 0; i < calls.length; i++) {
            _reverts(caller, calls[i], abi.encodeWithSelector(Unauthorized.selector, caller));
        }
    }

    // -- witnesses, demands

    function test_witnesses_are_drawn_once_and_no_more_than_the_job_pays() external {
        _toAttesting(0);
        bytes memory done = abi.encodeWithSelector(AlreadyDone.selector);
        _reverts(abi.encodeCall(market.onDrawn, (job, 0, WITNESSES + 1)), done);
        bytes memory none = abi.encodeWithSelector(EscrowTooLow.selector, uint256(terms.roles[0].witnessFee), 0);
        _reverts(abi.encodeCall(market.onWitnessed, (job, stranger)), none);
        market.onDrawn(job, 0, WITNESSES);
        require(market.job(job).feesDue == WITNESSES * terms.roles[0].witnessFee, "two fees are due");
        _reverts(abi.encodeCall(market.onDrawn, (job, 0, 0)), done);
        market.onWitnessed(job, stranger);
        market.onWitnessed(job, address(0));
        require(vault.credits(stranger) == terms.roles[0].witnessFee && market.job(job).feesDue == 0, "one paid, one given up");
        _reverts(abi.encodeCall(market.onWitnessed, (job, stranger)), none);
    }

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

    function test_nobody_waits_for_reveals_when_nobody_has_committed() external {
        _start(0);
        _join(0);
        _seal(0);
        CHEATS.warp(market.round(job, 0).commitEnds);
        require(block.timestamp < market.round(job, 0).revealEnds, "there was time to reveal");
        require(market.phase(job, 0) == IJobMarket.Phase.Freezing, "and nothing to show");
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

    function test_payloads_are_demanded_of_who_revealed() external {
        _toAttestingWithoutTheThird();
        _reverts(abi.encodeCall(market.onDemanded, (job, 0, 2, false)), abi.encodeWithSelector(NoSuchSlot.selector, 2));
        _reverts(abi.encodeCall(market.onDemanded, (job, 0, SLOTS, false)), abi.encodeWithSelector(NoSuchSlot.selector, SLOTS));
        market.onDemanded(job, 0, 1, false);
        require(market.round(job, 0).demands == 1, "counted");
    }

    function test_a_demanded_payload_that_is_missing_is_left_out() external {
        _toAttesting(0);
        absent[market.claimIdOf(job, 0, 0)] = true;
        absent[market.claimIdOf(job, 0, 1)] = true;
        market.onDemanded(job, 0, 1, false);
        CHEATS.warp(market.round(job, 0).attestEnds);
        market.freeze(job, 0, _bodies(0));
        // Two of three are missing: one is too few.
        require(market.phase(job, 0) == IJobMarket.Phase.Failed && vault.free(_account(2)) == DEPOSIT, "failed, stakes back");
    }

    /// @dev Two of three payloads are missing: the round fails while two games about one of its claims are open.
    function test_a_failed_round_keeps_a_stake_until_its_games_are_over() external {
        _toAttesting(0);
        ClaimId claim = market.claimIdOf(job, 0, 1);
        market.onOpen(claim, _opened(claim).body);
        market.onOpen(claim, _opened(claim).body);
        (absent[claim], absent[market.claimIdOf(job, 0, 2)]) = (true, true);
        market.onDemanded(job, 0, 1, false);
        CHEATS.warp(market.round(job, 0).attestEnds);
        market.freeze(job, 0, _bodies(0));
        require(market.phase(job, 0) == IJobMarket.Phase.Failed && market.live(claim), "its games go on");
        require(vault.free(_account(2)) == DEPOSIT, "the others' stakes are back");
        for (uint256 left = 2; left > 0; left--) {
            require(vault.lockOf(ClaimId.unwrap(claim)).amount == terms.roles[0].slotStake, "a game is open");
            market.onRejected(claim);
        }
        require(vault.free(_account(3)) == DEPOSIT && vault.lockOf(ClaimId.unwrap(claim)).amount == 0, "the last one gives it back");
        require(market.claim(claim).status == IJobMarket.ClaimStatus.Void && !market.live(claim), "void");
    }

    // -- void jobs

    function test_a_void_job_pays_who_worked_and_then_its_prover() external {
        _start(0);
        _join(0);
        _seal(0);
        _commit(0, 1);
        market.onInvalid(job, stranger);
        bytes memory void = abi.encodeWithSelector(WrongJobStatus.selector, job);
        _reverts(abi.encodeCall(market.onInvalid, (job, stranger)), void);
        _reverts(abi.encodeCall(market.finalize, (job, 0)), void);
        _reverts(requester, abi.encodeCall(market.cancel, (job)), void);
        _reverts(abi.encodeCall(market.startRound, (job, 1)), void);
        _reverts(abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(JobUnfinished.selector));
        _reverts(abi.encodeCall(market.release, (job, 1)), abi.encodeWithSelector(WrongPhase.selector, job, uint32(1)));
        uint256 deposit = market.job(job).deposit;
        market.release(job, 0);
        require(vault.credits(_account(3)) == terms.roles[0].slotPrice && vault.free(_account(3)) == DEPOSIT, "stake and pay");
        require(vault.credits(_account(2)) == 0 && vault.free(_account(2)) == DEPOSIT, "a seat is not work");
        uint256 left = deposit - uint256(terms.roles[0].slotPrice);
        market.finish(job);
        require(vault.credits(stranger) == left * 30 / 100, "30 % to the prover");
        require(vault.credits(vault.BURN()) == left - left * 30 / 100, "the rest is burned");
        require(vault.credits(requester) == ROUNDS * _pay() && vault.totalEscrow() == 0, "the escrow goes back");
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
        _commitBy(r, s, _account(2 + s));
    }

    function _commitBy(uint32 r, uint32 s, address owner) private {
        ClaimId claim = market.claimIdOf(job, r, s);
        IJobMarket.Reveal memory o = _opened(claim);
        CHEATS.prank(owner);
        market.commit(job, r, s, keccak256(abi.encode(claim, owner, o.body, o.carries, o.nonce)));
    }

    function _reveal(uint32 r, uint32 s) private {
        _revealBy(r, s, _account(2 + s));
    }

    function _revealBy(uint32 r, uint32 s, address owner) private {
        IJobMarket.Reveal memory o = _opened(market.claimIdOf(job, r, s));
        CHEATS.prank(owner);
        market.reveal(job, r, s, o);
    }

    function _toAttesting(uint32 r) private {
        if (market.phase(job, r) == IJobMarket.Phase.None) _start(r);
        _join(r);
        _seal(r);
        for (uint32 s = 0; s < SLOTS; s++) _commit(r, s);
        for (uint32 s = 0; s < SLOTS; s++) _reveal(r, s);
    }

    /// @dev Round 0, of which slot 2 has committed and not revealed.
    function _toAttestingWithoutTheThird() private {
        _start(0);
        _join(0);
        _seal(0);
        for (uint32 s = 0; s < SLOTS; s++) _commit(0, s);
        for (uint32 s = 0; s < 2; s++) _reveal(0, s);
        CHEATS.warp(market.round(job, 0).revealEnds);
    }

    function _toFrozen(uint32 r) private {
        _toAttesting(r);
        CHEATS.warp(market.round(job, r).attestEnds);
        market.freeze(job, r, _bodies(r));
    }

    function _toLead(uint32 r) private {
        if (market.phase(job, r) == IJobMarket.Phase.None) _start(r);
        _toAttesting(r);
        _fromAttestingToLead(r);
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

    function _created(uint256 nonce, uint256 escrow) private view returns (bytes memory) {
        return abi.encodeCall(market.create, (terms, nonce, escrow));
    }

    function _pay() private view returns (uint256) {
        return SLOTS * uint256(terms.roles[0].slotPrice) + terms.merge.price + WITNESSES * uint256(terms.roles[0].witnessFee);
    }

    /// @dev T = 2: one step and the encode.
    function _opened(ClaimId claim) private view returns (IJobMarket.Reveal memory o) {
        bytes32 out = keccak256(abi.encode(claim));
        o.carries = carries[claim];
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

    function _reverts(address sender, bytes memory call, bytes memory expected) private {
        CHEATS.prank(sender);
        _reverts(call, expected);
    }
}
