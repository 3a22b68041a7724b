// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Claim, ClaimStatus, IJobMarket, JobParams, JobStatus, Phase, Role, Round} from "./interfaces/IJobMarket.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {
    Audit,
    AuditStatus,
    Duty,
    DutyStatus,
    IWitnesses,
    Outcome,
    Standing,
    Witness,
    Word
} from "./interfaces/IWitnesses.sol";
import {AUDIT_REVEAL_WINDOWS, HASH_BLOCKS} from "./libraries/Constants.sol";
import {Draws} from "./libraries/Draws.sol";
import {
    AlreadyDone,
    CommitmentMismatch,
    DutyOpen,
    NotSlotOwner,
    NotWitness,
    PreimageWrong,
    TooEarly,
    WindowClosed,
    WrongJobStatus,
    WrongPhase
} from "./libraries/Errors.sol";
import {Ids} from "./libraries/Ids.sol";
import {JobRules} from "./libraries/JobRules.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Moving} from "./libraries/Moving.sol";
import {Rounds} from "./libraries/Rounds.sol";
import {AuditId, ClaimId, JobId, NO_AUDIT} from "./types/Ids.sol";

/// @title Witnesses
/// @notice The market of witnesses: staked accounts, drawn after the reveals, replay a private prefix of a claim and say what they saw.
/// @dev The Python twin is lockstep/protocol/market/witnesses.py: the same names in the same order.
contract Witnesses is IWitnesses {
    IJobMarket public immutable market;
    IStakeVault public immutable vault;

    mapping(JobId jobId => mapping(address account => Witness)) private _witnesses;
    mapping(JobId jobId => address[]) private _lists;
    mapping(AuditId auditId => Audit) private _audits;
    mapping(AuditId auditId => mapping(uint256 i => Duty)) private _duties;
    /// @dev The audit whose beacon is fixed and not drawn.
    mapping(JobId jobId => AuditId auditId) private _drawing;

    constructor(IJobMarket market_, IStakeVault vault_) {
        market = market_;
        vault = vault_;
    }

    // -- witnesses

    /// @inheritdoc IWitnesses
    function enrol(JobId jobId, bytes32 head) external {
        JobParams memory p = market.params(jobId);
        // INVARIANT: witnesses are for jobs that run and draw some.
        if (market.job(jobId).status != JobStatus.Active || p.roles[0].witnesses == 0) revert WrongJobStatus(jobId);
        if (_witnesses[jobId][msg.sender].standing != Standing.None) revert AlreadyDone();
        _catchUp(jobId);

        address[] storage list = _lists[jobId];
        _witnesses[jobId][msg.sender] = Witness(Standing.Listed, uint32(list.length), head, 0, 0, 0);
        list.push(msg.sender);

        emit Enrolled(jobId, msg.sender, head);

        vault.lock(msg.sender, Draws.stakeKey(jobId, msg.sender), p.prices.witnessStake);
    }

    /// @inheritdoc IWitnesses
    function retire(JobId jobId) external {
        _catchUp(jobId);
        if (_witnesses[jobId][msg.sender].standing != Standing.Listed) revert NotWitness(msg.sender);

        _unlist(jobId, msg.sender);
        _leave(jobId, msg.sender);
    }

    /// @inheritdoc IWitnesses
    function commit(AuditId auditId, uint16 i, bytes32 commitment) external {
        Audit storage a = _audits[auditId];
        Duty storage d = _duties[auditId][i];
        if (msg.sender != d.account) revert NotWitness(msg.sender);
        // INVARIANT: a verdict is committed once, before anybody's is revealed.
        if (d.status != DutyStatus.Drawn) revert AlreadyDone();
        if (block.timestamp >= a.commitEnds) revert WindowClosed(_claimOf(a, d));

        d.status = DutyStatus.Committed;
        d.commitment = commitment;
        a.committed += 1;

        emit VerdictCommitted(auditId, i, commitment);

        if (a.committed == a.duties) {
            _setWindows(a, block.timestamp, market.params(a.job).windows.auditSeconds);
            emit CommitsEnded(auditId, a.commitEnds, a.revealEnds);
        }
    }

    /// @inheritdoc IWitnesses
    function reveal(AuditId auditId, uint16 i, Word calldata word) external {
        Audit storage a = _audits[auditId];
        Duty storage d = _duties[auditId][i];
        ClaimId claimId = _claimOf(a, d);
        if (msg.sender != d.account) revert NotWitness(msg.sender);
        if (d.status != DutyStatus.Committed) revert AlreadyDone();
        if (block.timestamp < a.commitEnds) revert TooEarly(a.commitEnds);
        if (block.timestamp >= a.revealEnds) revert WindowClosed(claimId);
        // INVARIANT: what is revealed is what was committed, by this witness for this claim.
        bytes32 leaf = word.leaf.digest;
        if (d.commitment != Draws.commitment(claimId, msg.sender, word.state, leaf, word.preimage, word.salt)) {
            revert CommitmentMismatch();
        }
        // INVARIANT: how far a witness looked was fixed before the beacon: nobody chooses its own t*.
        _spend(_witnesses[a.job][msg.sender], d.serial, word.preimage);
        Claim memory c = market.claim(claimId);
        uint32 t = Draws.stepOf(word.preimage, a.beacon, i, c.transitions);
        if (word.agrees) {
            if (Ids.body(word.body) != c.digest) revert CommitmentMismatch();
            // INVARIANT: who agrees names the state that the claim has at t*, or before its last one, which is public.
            uint32 u = Draws.seenOf(t, c.transitions);
            Merkle.verify(
                word.body.traceRoot, Merkle.leaf(word.state), u - 1, Merkle.depthOf(c.transitions), word.proof
            );
            // INVARIANT: who agrees has held a leaf of that state: a list of state roots is not enough to commit to.
            uint256 place = Draws.leafWord(word.preimage, a.beacon, i);
            Moving.requireLeaf(word.state, market.params(a.job).roles[0].stepProgram, place, word.leaf);
        }

        d.t = t;
        d.status = word.agrees ? DutyStatus.Agreed : DutyStatus.Differed;

        emit VerdictRevealed(auditId, i, t, word.state, word.agrees);
    }

    // -- workers

    /// @inheritdoc IWitnesses
    function publish(JobId jobId, uint32 r, uint32 slot, bytes calldata traceCid) external {
        uint32 attempt = market.round(jobId, r).attempt;
        AuditId auditId = Draws.auditId(jobId, r, attempt);
        ClaimId claimId = Ids.claim(jobId, r, attempt, slot);
        Rounds.requireCid(traceCid);
        Claim memory c = market.claim(claimId);
        if (c.worker != msg.sender) revert NotSlotOwner(slot);
        // INVARIANT: no state root is public while a witness may still commit to one.
        if (c.claimedAt == 0 || !_mayPublish(_audits[auditId], jobId, r)) {
            revert WindowClosed(ClaimId.wrap(AuditId.unwrap(auditId)));
        }

        emit TracePublished(jobId, r, slot, claimId, traceCid);
    }

    // -- anyone

    /// @inheritdoc IWitnesses
    function draw(JobId jobId, uint32 r) external {
        uint32 attempt = market.round(jobId, r).attempt;
        AuditId auditId = Draws.auditId(jobId, r, attempt);
        if (AuditId.unwrap(_catchUp(jobId)) == AuditId.unwrap(auditId)) return;
        Audit storage a = _audits[auditId];
        // INVARIANT: a round is drawn once.
        if (a.status != AuditStatus.None) revert AlreadyDone();
        // INVARIANT: witnesses are drawn while receipts are given: a round that nobody draws in time has none.
        if (market.params(jobId).roles[0].witnesses == 0 || !_isOpen(jobId, r)) revert WrongPhase(jobId, r);

        a.status = AuditStatus.Drawing;
        (a.job, a.round, a.attempt) = (jobId, r, attempt);
        // INVARIANT: nobody who reveals, enrols or calls knows whom the beacon will name: its block is yet to come.
        a.beaconBlock = uint64(block.number + 1);
        _drawing[jobId] = auditId;

        emit AuditOpened(auditId, jobId, r, attempt, a.beaconBlock);
    }

    /// @inheritdoc IWitnesses
    function settle(AuditId auditId, uint16 i) external returns (Outcome outcome) {
        Audit storage a = _audits[auditId];
        Duty storage d = _duties[auditId][i];
        if (d.status == DutyStatus.None || d.status == DutyStatus.Closed) revert AlreadyDone();
        (JobId jobId, address account) = (a.job, d.account);
        outcome = _outcome(a, d);
        // INVARIANT: the list stands still before a draw, and no duty that leaves it as it is waits for one.
        if (outcome == Outcome.Fined || outcome == Outcome.Slashed) _catchUp(jobId);

        d.status = DutyStatus.Closed;
        Witness storage w = _witnesses[jobId][account];
        w.open -= 1;

        uint256 fee = market.params(jobId).roles[0].witnessFee;
        uint256 moved = 0;
        if (outcome == Outcome.Paid) moved = fee;
        else if (outcome == Outcome.Fined) moved = _take(jobId, account, fee, Standing.Leaving);
        else if (outcome == Outcome.Slashed) moved = _take(jobId, account, type(uint256).max, Standing.Slashed);

        emit DutyClosed(auditId, i, account, outcome, moved);

        market.onWitnessed(jobId, outcome == Outcome.Paid ? account : address(0));
        if (w.standing != Standing.Listed) _leave(jobId, account);
    }

    // -- views

    function witness(JobId jobId, address account) external view returns (Witness memory) {
        return _witnesses[jobId][account];
    }

    function accounts(JobId jobId) external view returns (address[] memory) {
        return _lists[jobId];
    }

    function audit(AuditId auditId) external view returns (Audit memory) {
        return _audits[auditId];
    }

    function duty(AuditId auditId, uint16 i) external view returns (Duty memory) {
        return _duties[auditId][i];
    }

    function auditIdOf(JobId jobId, uint32 r, uint32 attempt) external pure returns (AuditId) {
        return Draws.auditId(jobId, r, attempt);
    }

    /// @inheritdoc IWitnesses
    function witnessOf(JobId jobId, uint32 r, uint256 i) external view returns (address) {
        return _duties[Draws.auditId(jobId, r, market.round(jobId, r).attempt)][i].account;
    }

    // -- inside: draws

    /// @dev Draws what is due to be drawn in a job, and says what it was.
    function _catchUp(JobId jobId) private returns (AuditId auditId) {
        auditId = _drawing[jobId];
        if (AuditId.unwrap(auditId) == 0) return NO_AUDIT;
        Audit storage a = _audits[auditId];
        // INVARIANT: between the fixing of a beacon and its draw the list stands still: nobody moves in it knowing it.
        if (block.number <= a.beaconBlock) revert TooEarly(uint256(a.beaconBlock) + 1);

        _drawing[jobId] = NO_AUDIT;
        // INVARIANT: one beacon an audit: one that nobody drew in time is skipped, it is never drawn again.
        bool late = block.number > a.beaconBlock + HASH_BLOCKS;
        if (late || market.round(jobId, a.round).attempt != a.attempt || !_isOpen(jobId, a.round)) {
            a.status = AuditStatus.Skipped;
            emit AuditSkipped(auditId);
            return auditId;
        }
        a.status = AuditStatus.Drawn;
        a.beacon = Draws.beaconOf(blockhash(a.beaconBlock), auditId);
        JobParams memory p = market.params(jobId);
        _deal(auditId, a, p.roles[0]);
        // With nobody to wait for, the roots may be published at once.
        _setWindows(a, block.timestamp + (a.duties == 0 ? 0 : p.windows.auditSeconds), p.windows.auditSeconds);

        emit AuditDrawn(auditId, a.beacon, a.duties, a.commitEnds, a.revealEnds);
    }

    /// @dev Gives each duty its slot and its account.
    function _deal(AuditId auditId, Audit storage a, Role memory role) private {
        (JobId jobId, bytes32 beacon) = (a.job, a.beacon);
        (uint32[] memory slots, address[] memory owners) = _revealed(a, role.slots);
        // INVARIANT: no claim has more witnesses than its worker's stake was compared with, however few have revealed.
        uint256 most = slots.length * JobRules.claimWitnesses(role);
        slots = Draws.slotOrder(beacon, slots, most < role.witnesses ? most : role.witnesses);
        address[] memory found = new address[](slots.length);
        uint16 duties = 0;
        for (uint256 k = 0; k < slots.length; k++) {
            // INVARIANT: every word of a draw has a stake of its own behind it: nobody has two duties.
            address account = Draws.pick(_lists[jobId], beacon, duties, owners[slots[k]], found);
            if (account == address(0)) continue;
            (slots[duties], found[duties]) = (slots[k], account);
            duties++;
        }
        // INVARIANT: a draw has as many duties as the job can pay, and fails for none that it cannot.
        duties = market.onDrawn(jobId, a.round, duties);

        a.duties = duties;
        for (uint16 i = 0; i < duties; i++) {
            Witness storage w = _witnesses[jobId][found[i]];
            w.drawn += 1;
            w.open += 1;
            _duties[auditId][i] = Duty(found[i], slots[i], w.drawn, DutyStatus.Drawn, 0, 0);
            emit DutyDrawn(auditId, i, found[i], slots[i], w.drawn);
        }
    }

    /// @dev Slots whose claim was revealed, convicted ones included; and every slot's owner.
    function _revealed(Audit storage a, uint16 slots) private view returns (uint32[] memory found, address[] memory owners) {
        found = new uint32[](slots);
        owners = new address[](slots);
        uint256 count = 0;
        for (uint32 s = 0; s < slots; s++) {
            Claim memory c = market.claim(Ids.claim(a.job, a.round, a.attempt, s));
            owners[s] = c.worker;
            if (c.claimedAt != 0) found[count++] = s;
        }
        assembly ("memory-safe") {
            mstore(found, count)
        }
    }

    /// @dev Committing ends at `commitEnds`; then owners publish for auditSeconds, and witnesses have as long again.
    function _setWindows(Audit storage a, uint256 commitEnds, uint32 auditSeconds) private {
        a.commitEnds = uint64(commitEnds);
        a.revealEnds = uint64(commitEnds + AUDIT_REVEAL_WINDOWS * uint256(auditSeconds));
    }

    /// @dev Whether the round's witnesses can be drawn.
    function _isOpen(JobId jobId, uint32 r) private view returns (bool) {
        return market.phase(jobId, r) == Phase.Attesting;
    }

    function _mayPublish(Audit storage a, JobId jobId, uint32 r) private view returns (bool) {
        if (a.status == AuditStatus.Drawn) return block.timestamp >= a.commitEnds;
        // Nobody has been drawn: as long as somebody may be, the list stays unpublished.
        Phase phase = market.phase(jobId, r);
        bool over = phase > Phase.Attesting || a.status == AuditStatus.Skipped;
        return over || market.params(jobId).roles[0].witnesses == 0;
    }

    // -- inside: duties

    function _claimOf(Audit storage a, Duty storage d) private view returns (ClaimId) {
        return Ids.claim(a.job, a.round, a.attempt, d.slot);
    }

    /// @dev Checks that a preimage is the `serial`-th of the witness's chain, and keeps the deepest one known.
    function _spend(Witness storage w, uint32 serial, bytes32 preimage) private {
        if (serial > w.spent) {
            if (Draws.chained(preimage, serial - w.spent) != w.head) revert PreimageWrong();
            (w.head, w.spent) = (preimage, serial);
        } else if (Draws.chained(w.head, w.spent - serial) != preimage) {
            revert PreimageWrong();
        }
    }

    /// @dev What becomes of a duty; reverts while that is open.
    function _outcome(Audit storage a, Duty storage d) private view returns (Outcome) {
        ClaimId claimId = _claimOf(a, d);
        Claim memory c = market.claim(claimId);
        bool convicted = c.status == ClaimStatus.Convicted;
        uint32 convictedAt = market.convictedAt(claimId);
        bool agreed = d.status == DutyStatus.Agreed;
        // INVARIANT: a word with no stake behind it earns nothing and costs nothing more.
        if (_witnesses[a.job][d.account].standing == Standing.Slashed) return Outcome.Void;
        // INVARIANT: a stake is taken for a word that a proof has shown to be false, and for nothing else.
        if (agreed && convicted && convictedAt > 0 && convictedAt <= d.t) return Outcome.Slashed;
        if (_isGone(a, c.status)) {
            // A game that outlives the round may still show that the word was false.
            if (agreed && market.live(claimId)) revert DutyOpen(claimId);
            // INVARIANT: who looked at work that a convicted merge voided is paid as the work is.
            bool paid = agreed && !convicted && market.rewound(Draws.auditId(a.job, a.round, a.attempt));
            return paid ? Outcome.Paid : Outcome.Void;
        }
        if (
            (d.status == DutyStatus.Drawn && block.timestamp >= a.commitEnds)
                || (d.status == DutyStatus.Committed && block.timestamp >= a.revealEnds)
        ) {
            // INVARIANT: nobody owes a word on a claim that carries and was left out of the merge: its carry may be what was lacking.
            if (c.carries && _isLeftOut(a, d.slot)) return Outcome.Void;
            // INVARIANT: who was drawn and says nothing pays the fee.
            return Outcome.Fined;
        }
        bool spoke = agreed || d.status == DutyStatus.Differed;
        // INVARIANT: fees are paid in final rounds alone: a round that starts again pays no witness twice.
        if (!spoke || market.round(a.job, a.round).phase != Phase.Final) revert DutyOpen(claimId);
        // INVARIANT: who differs is paid if the claim is convicted, by whatever game, or falls with the one whose carry it starts
        // from, and pays the fee if it stands.
        if (!agreed) return convicted || c.status == ClaimStatus.Void ? Outcome.Paid : Outcome.Fined;
        // INVARIANT: who agrees is paid unless the claim was convicted without a proof of where it is wrong.
        return !convicted || convictedAt > d.t ? Outcome.Paid : Outcome.Void;
    }

    /// @dev The claim is void, or its round is, or started again. In a final round a claim is void that fell with the one whose carry it
    ///      starts from: its witness is paid.
    function _isGone(Audit storage a, ClaimStatus status) private view returns (bool) {
        Round memory ro = market.round(a.job, a.round);
        if (ro.attempt != a.attempt || ro.phase == Phase.Void) return true;
        return status == ClaimStatus.Void && ro.phase != Phase.Final;
    }

    /// @dev Whether the merge does without the slot's claim; reverts until it is frozen.
    function _isLeftOut(Audit storage a, uint32 slot) private view returns (bool) {
        Round memory ro = market.round(a.job, a.round);
        if (ro.mergeIn == 0) revert DutyOpen(Ids.claim(a.job, a.round, a.attempt, slot));
        return (ro.mask >> slot) & 1 == 0;
    }

    /// @dev Burns up to `amount` of the stake, and takes the account off the list: who fails a duty is drawn no more.
    function _take(JobId jobId, address account, uint256 amount, Standing standing) private returns (uint256 taken) {
        _unlist(jobId, account);
        bytes32 stakeKey = Draws.stakeKey(jobId, account);
        uint256 held = vault.lockOf(stakeKey).amount;
        taken = amount < held ? amount : held;

        _witnesses[jobId][account].standing = standing;
        vault.slashLiveness(stakeKey, taken);
        // What is left answers for the duties that are open.
        if (standing == Standing.Leaving) vault.lock(account, stakeKey, held - taken);
    }

    /// @dev Takes an account off the list, if it is there; the last one takes its place.
    function _unlist(JobId jobId, address account) private {
        address[] storage list = _lists[jobId];
        Witness storage w = _witnesses[jobId][account];
        if (w.standing != Standing.Listed) return;
        address last = list[list.length - 1];
        list.pop();
        if (last != account) {
            list[w.place] = last;
            _witnesses[jobId][last].place = w.place;
        }
        w.standing = Standing.Leaving;

        emit Retired(jobId, account);
    }

    /// @dev Forgets a witness that is off the list and has nothing left to do; its stake is free.
    function _leave(JobId jobId, address account) private {
        Witness storage w = _witnesses[jobId][account];
        if (w.open != 0) return;
        bool holds = w.standing == Standing.Leaving;

        delete _witnesses[jobId][account];
        if (holds) vault.unlock(Draws.stakeKey(jobId, account));
    }
}
