// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {oneRole} from "./OneRole.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {JobMarket} from "../../contracts/JobMarket.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {Witnesses} from "../../contracts/Witnesses.sol";
import {IAvailability} from "../../contracts/interfaces/IAvailability.sol";
import {IStakeVault} from "../../contracts/interfaces/IStakeVault.sol";
import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {Draws} from "../../contracts/libraries/Draws.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {CHEATS} from "./Cheats.sol";

/// @title WitnessHandler
/// @notice What the fuzzer may do to one job with witnesses: two honest ones that always look in time, and four that do as it likes.
/// @dev The handler is the game, the demands and the validator. Claims have T = 2 states; a claim's id says where it is wrong, if anywhere.
contract WitnessHandler {
    uint32 internal constant ROUNDS = 3;
    uint32 internal constant SLOTS = 3;
    uint256 internal constant LINKS = 40;
    uint256 public constant ACCOUNTS = 10;
    uint256 public constant FIRST_WITNESS = 4;
    uint256 public constant DEPOSIT = 20_000;
    uint256 public constant FEE = 11;

    TestToken public token;
    StakeVault public vault;
    JobMarket public market;
    Witnesses public witnesses;
    bytes32 public job;

    struct Seen {
        bytes32 audit;
        uint16 i;
    }

    Seen[] public duties;
    bytes32[] private _keys;
    mapping(bytes32 audit => bool) private _noted;
    mapping(address account => bytes32) private _bottom;
    mapping(address account => uint256) private _enrolments;

    /// @notice What must never happen, counted.
    uint256 public wronged;
    /// @notice How duties ended.
    mapping(IWitnesses.Outcome => uint256) public ended;

    constructor() {
        token = new TestToken();
        address[3] memory at = [_created(2), _created(3), _created(4)];
        vault = new StakeVault(IERC20(address(token)), at[1], address(this), at[2], address(this), 1 hours);
        market = new JobMarket(
            address(token), vault, address(this), address(this), IWitnesses(at[2]), IAvailability(address(this)), 1, 0
        );
        witnesses = new Witnesses(market, vault);
        require(address(witnesses) == at[2] && address(market) == at[1] && address(vault) == at[0], "other addresses");
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            token.mint(account(i), 1e9);
            CHEATS.prank(account(i));
            token.approve(address(vault), type(uint256).max);
            CHEATS.prank(account(i));
            vault.deposit(DEPOSIT);
        }
        CHEATS.prank(account(0));
        job = market.create(_params(), 0, 1e6);
        for (uint256 i = FIRST_WITNESS; i < ACCOUNTS; i++) _enrol(account(i));
    }

    function account(uint256 i) public pure returns (address) {
        return address(uint160(0xacc0 + i));
    }

    function isHonest(address who) public pure returns (bool) {
        return who == account(FIRST_WITNESS) || who == account(FIRST_WITNESS + 1);
    }

    function dutyCount() external view returns (uint256) {
        return duties.length;
    }

    function missing(bytes32) external pure returns (bool) {
        return false;
    }

    // -- what the fuzzer may do

    /// @notice Time passes only when the honest witnesses have done what they can.
    function pass(uint256 time, uint256 blocks) external {
        _beHonest();
        CHEATS.warp(block.timestamp + 1 + time % 40);
        CHEATS.roll(block.number + (blocks % 48 == 0 ? 300 : 2));
    }

    /// @notice What the phase of a round asks for.
    function advance(uint256 back, uint256 who, bytes32 out) external {
        uint32 r = _round(back);
        IJobMarket.Phase phase = market.phase(job, r);
        if (phase == IJobMarket.Phase.Sealing) {
            CHEATS.roll(block.number + 2);
            market.seal(job, r);
        } else if (phase == IJobMarket.Phase.Attesting) {
            witnesses.draw(job, r);
        } else if (phase == IJobMarket.Phase.Freezing) {
            market.freeze(job, r, _bodies(r));
        } else if (phase == IJobMarket.Phase.Merging && market.mergerOf(job, r) != address(0)) {
            CHEATS.prank(market.mergerOf(job, r));
            market.merge(job, r, out, out, "", 2);
            _keys.push(market.claimIdOf(job, r, 0xffffffff));
        } else if (phase == IJobMarket.Phase.Lead && market.job(job).started < ROUNDS && uint256(out) % 4 != 0) {
            market.startRound(job, market.job(job).started);
        } else if (phase == IJobMarket.Phase.Merging || phase == IJobMarket.Phase.Lead) {
            market.finalize(job, r);
        } else if (phase == IJobMarket.Phase.Void) {
            market.release(job, r);
        } else if (phase == IJobMarket.Phase.None || phase == IJobMarket.Phase.Final || phase == IJobMarket.Phase.Failed) {
            market.job(job).started < ROUNDS ? market.startRound(job, market.job(job).started) : market.finish(job);
        } else {
            for (uint32 s = 0; s < SLOTS; s++) if (who % 16 != s) _work(r, s, phase);
        }
        _note();
    }

    /// @notice Somebody who is not honest moves: commits to what the worker told it or to nothing, agrees or differs, comes or goes.
    function lie(uint256 k, uint256 kind, bytes32 any) external {
        address liar = account(FIRST_WITNESS + 2 + k % 4);
        if (kind % 8 == 0) {
            CHEATS.prank(liar);
            witnesses.retire(job);
        } else if (kind % 8 == 1) {
            _enrol(liar);
        } else if (duties.length > 0) {
            Seen memory at = duties[k % duties.length];
            IWitnesses.Duty memory d = witnesses.duty(at.audit, at.i);
            if (isHonest(d.account)) return;
            IWitnesses.Word memory word = _word(at, d, kind % 2 == 0, kind % 3 == 0 ? any : bytes32(0));
            bytes32 commitment = kind % 5 == 0 ? any : _commitment(at, d, word);
            CHEATS.prank(d.account);
            if (d.status == IWitnesses.DutyStatus.Drawn) witnesses.commit(at.audit, at.i, commitment);
            else witnesses.reveal(at.audit, at.i, word);
        }
        _note();
    }

    /// @notice The game: a claim falls where it is wrong, or because its defender was silent (t = 0); a merge falls now and then.
    function convict(uint256 back, uint32 slot, bool silent) external {
        uint32 r = _round(back);
        slot %= 8;
        bytes32 claim = market.claimIdOf(job, r, slot == 7 ? 0xffffffff : slot % SLOTS);
        uint32 wrong = wrongFrom(claim);
        if (slot != 7 && wrong == 0 && !silent) return;
        IJobMarket.Round memory ro = market.round(job, r);
        IJobMarket.Body memory merged =
            IJobMarket.Body(Merkle.leaf(Merkle.node(ro.nextShared, ro.nextOuter)), ro.nextShared, ro.nextOuter);
        market.onOpen(claim, slot == 7 ? merged : _body(claim));
        _convict(claim, slot == 7 || silent ? 0 : wrong);
    }

    function settle(uint256 k) external {
        Seen memory at = duties[k % duties.length];
        IWitnesses.Duty memory d = witnesses.duty(at.audit, at.i);
        uint256 before = wealth(d.account);
        IWitnesses.Outcome outcome = witnesses.settle(at.audit, at.i);
        ended[outcome] += 1;
        if (isHonest(d.account) && wealth(d.account) < before) wronged += 1;
        uint32 wrong = wrongFrom(_claimOf(at, d));
        if (outcome == IWitnesses.Outcome.Slashed && (wrong == 0 || wrong > d.t)) wronged += 1;
        _note();
    }

    // -- what the invariants ask

    /// @notice Everything that an account has in the vault.
    function wealth(address who) public view returns (uint256) {
        return vault.free(who) + vault.credits(who) + vault.lockOf(Draws.stakeKey(job, who)).amount;
    }

    /// @notice Everything under lock.
    function locked() external view returns (uint256 sum) {
        for (uint256 i = 0; i < _keys.length; i++) sum += vault.lockOf(_keys[i]).amount;
        for (uint256 i = 0; i < ACCOUNTS; i++) sum += vault.lockOf(Draws.stakeKey(job, account(i))).amount;
    }

    function open() external view returns (uint256 count) {
        for (uint256 k = 0; k < duties.length; k++) {
            if (witnesses.duty(duties[k].audit, duties[k].i).status != IWitnesses.DutyStatus.Closed) count++;
        }
    }

    /// @notice The first wrong step of a claim; 0: it is right.
    function wrongFrom(bytes32 claim) public pure returns (uint32) {
        uint256 luck = uint256(keccak256(abi.encode(claim, "wrong"))) % 4;
        return luck > 2 ? 0 : uint32(luck);
    }

    // -- inside: witnesses

    function _enrol(address who) private {
        bytes32 bottom = keccak256(abi.encode(who, _enrolments[who]));
        CHEATS.prank(who);
        witnesses.enrol(job, Draws.chained(bottom, LINKS));
        _enrolments[who] += 1;
        _bottom[who] = bottom;
    }

    function _beHonest() private {
        for (uint256 k = 0; k < duties.length; k++) {
            Seen memory at = duties[k];
            IWitnesses.Duty memory d = witnesses.duty(at.audit, at.i);
            if (!isHonest(d.account)) continue;
            IWitnesses.Word memory word = _honestWord(at, d);
            if (d.status == IWitnesses.DutyStatus.Drawn) {
                bytes32 commitment = _commitment(at, d, word);
                CHEATS.prank(d.account);
                witnesses.commit(at.audit, at.i, commitment);
            } else if (
                d.status == IWitnesses.DutyStatus.Committed && block.timestamp >= witnesses.audit(at.audit).commitEnds
            ) {
                CHEATS.prank(d.account);
                witnesses.reveal(at.audit, at.i, word);
            }
            // Not at once: others may speak before the claim falls.
            if (block.timestamp >= witnesses.audit(at.audit).commitEnds + 60) _challenge(_claimOf(at, d), _step(at, d));
        }
    }

    /// @dev Who finds a difference challenges it, and wins.
    function _challenge(bytes32 claim, uint32 t) private {
        uint32 wrong = wrongFrom(claim);
        if (wrong == 0 || wrong > t || !market.windowOpen(claim)) return;
        market.onOpen(claim, _body(claim));
        _convict(claim, wrong);
    }

    function _convict(bytes32 claim, uint32 t) private {
        address[] memory winners = new address[](1);
        winners[0] = account(0);
        market.onConvicted(claim, t, winners, new IStakeVault.Refund[](0));
    }

    function _honestWord(Seen memory at, IWitnesses.Duty memory d) private view returns (IWitnesses.Word memory) {
        bytes32 claim = _claimOf(at, d);
        uint32 t = _step(at, d);
        uint32 wrong = wrongFrom(claim);
        return _word(at, d, wrong == 0 || wrong > t, _true(claim, t));
    }

    /// @param state What to say of t*; 0: what the claim says.
    function _word(Seen memory at, IWitnesses.Duty memory d, bool agrees, bytes32 state)
        private
        view
        returns (IWitnesses.Word memory word)
    {
        bytes32 claim = _claimOf(at, d);
        uint32 t = _step(at, d);
        word.preimage = _preimage(d);
        word.state = state == 0 ? _claimed(claim, t) : state;
        word.salt = keccak256(abi.encode(at.audit, at.i));
        word.agrees = agrees;
        word.body = _body(claim);
        word.proof = new bytes32[](1);
        word.proof[0] = Merkle.leaf(_claimed(claim, 3 - t));
    }

    function _commitment(Seen memory at, IWitnesses.Duty memory d, IWitnesses.Word memory word)
        private
        view
        returns (bytes32)
    {
        return Draws.commitment(_claimOf(at, d), d.account, word.state, word.preimage, word.salt);
    }

    function _preimage(IWitnesses.Duty memory d) private view returns (bytes32) {
        return Draws.chained(_bottom[d.account], LINKS - d.serial);
    }

    function _step(Seen memory at, IWitnesses.Duty memory d) private view returns (uint32) {
        return Draws.stepOf(_preimage(d), witnesses.audit(at.audit).beacon, at.i, 2);
    }

    function _claimOf(Seen memory at, IWitnesses.Duty memory d) private view returns (bytes32) {
        IWitnesses.Audit memory a = witnesses.audit(at.audit);
        return keccak256(abi.encode(a.job, a.round, a.attempt, d.slot));
    }

    /// @dev Keeps what was drawn, by whatever act.
    function _note() private {
        for (uint32 r = 0; r < market.job(job).started; r++) {
            bytes32 audit = Draws.auditId(job, r, market.round(job, r).attempt);
            if (_noted[audit] || witnesses.audit(audit).status != IWitnesses.AuditStatus.Drawn) continue;
            _noted[audit] = true;
            for (uint16 i = 0; i < witnesses.audit(audit).duties; i++) duties.push(Seen(audit, i));
        }
    }

    // -- inside: rounds

    function _work(uint32 r, uint32 s, IJobMarket.Phase phase) private {
        bytes32 claim = market.claimIdOf(job, r, s);
        address worker = account(1 + s);
        IJobMarket.ClaimStatus status = market.claim(claim).status;
        if (phase == IJobMarket.Phase.Joining && status == IJobMarket.ClaimStatus.None) {
            _keys.push(claim);
            CHEATS.prank(worker);
            market.join(job, r, s);
        } else if (phase == IJobMarket.Phase.Training && status == IJobMarket.ClaimStatus.Joined) {
            bytes32 commitment = keccak256(abi.encode(claim, worker, _body(claim), claim));
            CHEATS.prank(worker);
            market.commit(job, r, s, commitment);
        } else if (phase == IJobMarket.Phase.Revealing && status == IJobMarket.ClaimStatus.Committed) {
            IJobMarket.Reveal memory o = IJobMarket.Reveal(_body(claim), claim, new bytes32[](1), "", "");
            o.proofT[0] = Merkle.leaf(_claimed(claim, 1));
            CHEATS.prank(worker);
            market.reveal(job, r, s, o);
        }
    }

    function _bodies(uint32 r) private view returns (IJobMarket.Body[] memory bodies) {
        bodies = new IJobMarket.Body[](SLOTS);
        uint256 count = 0;
        for (uint32 s = 0; s < SLOTS; s++) {
            bytes32 claim = market.claimIdOf(job, r, s);
            if (market.claim(claim).status == IJobMarket.ClaimStatus.Revealed) bodies[count++] = _body(claim);
        }
        assembly ("memory-safe") {
            mstore(bodies, count)
        }
    }

    function _body(bytes32 claim) private view returns (IJobMarket.Body memory) {
        bytes32 root = Merkle.node(Merkle.leaf(_claimed(claim, 1)), Merkle.leaf(_claimed(claim, 2)));
        bytes32 out = _out(claim, wrongFrom(claim) != 0);
        return IJobMarket.Body(root, out, out);
    }

    function _claimed(bytes32 claim, uint32 t) private view returns (bytes32) {
        uint32 wrong = wrongFrom(claim);
        if (wrong == 0 || t < wrong) return _true(claim, t);
        return t == 1 ? keccak256(abi.encode(claim, "wrong state")) : Merkle.node(_out(claim, true), _out(claim, true));
    }

    function _true(bytes32 claim, uint32 t) private view returns (bytes32) {
        return t == 1 ? keccak256(abi.encode(claim, "state")) : Merkle.node(_out(claim, false), _out(claim, false));
    }

    function _out(bytes32 claim, bool wrong) private pure returns (bytes32) {
        return keccak256(abi.encode(claim, wrong));
    }

    /// @dev A round that was started, most often the latest.
    function _round(uint256 back) private view returns (uint32) {
        uint32 started = market.job(job).started;
        back = back % 3 == 0 ? 2 : 1;
        return started >= back ? started - uint32(back) : 0;
    }

    function _created(uint8 nonce) private view returns (address) {
        return address(uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), nonce)))));
    }

    function _params() private pure returns (IJobMarket.JobParams memory p) {
        oneRole(p);
        bytes32 root = keccak256("root");
        (p.roles[0].stepProgram, p.roles[0].encodeProgram, p.merge.program) = (root, root, root);
        (p.roles[0].datasetRows, p.roles[0].rowLength, p.roles[0].innerSteps, p.schedule.rounds) = (1, 1, 1, ROUNDS);
        (p.roles[0].slots, p.roles[0].minSlots, p.schedule.maxLead, p.schedule.maxFail) = (uint16(SLOTS), 1, 2, 3);
        (p.windows.joinSeconds, p.roles[0].trainSeconds, p.roles[0].revealSeconds, p.roles[0].attestSeconds) = (100, 100, 100, 100);
        (p.merge.turnSeconds, p.windows.challengeSeconds, p.windows.clockSeconds, p.windows.stepSeconds) = (100, 400, 60, 1);
        (p.roles[0].slotPrice, p.merge.price, p.roles[0].slotStake, p.merge.stake, p.prices.bond) = (101, 57, 1_013, 1_019, 153);
        (p.roles[0].witnesses, p.windows.auditSeconds, p.roles[0].witnessFee, p.prices.witnessStake) = (4, 60, uint128(FEE), 223);
        (p.windows.answerSeconds, p.prices.feeCap) = (100, 1e9);
        (p.spec.profile, p.spec.opset) = (1, 1);
    }
}
