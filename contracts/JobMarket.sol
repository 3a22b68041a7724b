// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {IJobMarket} from "./interfaces/IJobMarket.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {
    AlreadyDone,
    ClaimClosed,
    CommitmentMismatch,
    EscrowInsufficient,
    GamesOpen,
    JobExists,
    JobUnfinished,
    NoSuchSlot,
    NotSlotOwner,
    NotYourTurn,
    ProofInvalid,
    RoundNotStartable,
    SlotTaken,
    TooEarly,
    Unauthorized,
    WindowClosed,
    WrongJobStatus,
    WrongPhase
} from "./libraries/Errors.sol";
import {Ids} from "./libraries/Ids.sol";
import {JobRules} from "./libraries/JobRules.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {States} from "./libraries/States.sol";
import {Terms} from "./libraries/Terms.sol";

/// @title JobMarket
/// @notice The job's state machine: rounds, slots, claims and pay. No owner, no setter; every wait has a default.
/// @dev The Python twin is lockstep/protocol/rounds.py: the same names in the same order.
contract JobMarket is IJobMarket {
    uint32 private constant MERGE = Ids.MERGE;
    /// @dev EVM: blockhash knows this many blocks.
    uint256 private constant SEAL_BLOCKS = 256;

    address public immutable token;
    IStakeVault public immutable vault;
    address public immutable game;

    mapping(bytes32 jobId => Job) private _jobs;
    mapping(bytes32 jobId => address) private _terms;
    mapping(bytes32 jobId => mapping(uint32 r => Round)) private _rounds;
    mapping(bytes32 claimId => Claim) private _claims;
    /// @notice Who was convicted of a merge of the job: it merges and attests there no more.
    mapping(bytes32 jobId => mapping(address account => bool)) public barred;

    constructor(address token_, IStakeVault vault_, address game_) {
        token = token_;
        vault = vault_;
        game = game_;
    }

    // -- the requester

    /// @inheritdoc IJobMarket
    function create(JobParams memory p, uint256 nonce, uint256 escrow) external returns (bytes32 jobId) {
        jobId = _create(p, nonce, escrow);
        vault.escrow(msg.sender, escrow);
    }

    function createWithPermit(
        JobParams memory p,
        uint256 nonce,
        uint256 escrow,
        uint256 deadline,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external returns (bytes32 jobId) {
        jobId = _create(p, nonce, escrow);
        vault.escrowWithPermit(msg.sender, escrow, deadline, v, r, s);
    }

    /// @inheritdoc IJobMarket
    function cancel(bytes32 jobId) external {
        Job storage j = _jobs[jobId];
        if (msg.sender != j.requester) revert Unauthorized(msg.sender);
        if (j.status != JobStatus.Active) revert WrongJobStatus(jobId);
        // INVARIANT: what rounds in flight may still pay stays in escrow.
        uint256 reserved = uint256(j.started - j.settled) * JobRules.roundPay(params(jobId));
        uint256 refund = uint256(j.escrow) - j.paid - reserved;

        j.status = JobStatus.Cancelled;

        emit JobCancelled(jobId, refund);

        _refund(j, refund);
    }

    // -- anyone

    /// @inheritdoc IJobMarket
    function startRound(bytes32 jobId, uint32 r) external {
        Job storage j = _jobs[jobId];
        JobParams memory p = params(jobId);
        Round storage ro = _rounds[jobId][r];
        if (j.status != JobStatus.Active) revert WrongJobStatus(jobId);
        // INVARIANT: rounds start in order, on a merged or carried-over base, at most maxLead ahead of the last settled one.
        if (r != j.started || r >= p.rounds || j.failed > p.maxFail || r - j.settled >= p.maxLead) {
            revert RoundNotStartable(r);
        }
        (bytes32 base, bytes32 outer) = _baseOf(jobId, p, r);
        if (ro.phase == Phase.Void) _releaseAll(jobId, r, ro);

        delete _rounds[jobId][r];
        ro.phase = Phase.Joining;
        ro.attempt = j.attempt;
        ro.joinEnds = uint64(block.timestamp + p.joinSeconds);
        ro.base = base;
        ro.outer = outer;
        j.started = r + 1;

        emit RoundStarted(jobId, r, j.attempt, base, outer);
    }

    /// @inheritdoc IJobMarket
    function seal(bytes32 jobId, uint32 r) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Sealing);
        if (ro.seedBlock == 0) {
            if (ro.joined < p.minSlots) return _fail(jobId, r, ro);
            return _closeRoster(jobId, r, ro);
        }
        if (block.number <= ro.seedBlock) revert TooEarly(uint256(ro.seedBlock) + 1);
        // INVARIANT: one seed per roster: a round that nobody sealed in time fails, it is never drawn again.
        if (block.number > ro.seedBlock + SEAL_BLOCKS) return _fail(jobId, r, ro);

        ro.seed = Ids.seed(blockhash(ro.seedBlock), jobId, r, ro.attempt);
        _setWindows(ro, p, block.timestamp + p.trainSeconds, p.revealSeconds);

        emit Sealed(jobId, r, ro.seed);
    }

    /// @inheritdoc IJobMarket
    function freeze(bytes32 jobId, uint32 r) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Freezing);
        (uint256 mask, uint16 accepted, bytes32[] memory payloads) = _accepted(jobId, r, p, ro);
        if (accepted < p.minSlots) return _fail(jobId, r, ro);

        // INVARIANT: the contract computes what is merged: nobody can omit, add or change a payload.
        ro.mergeIn = States.mergeIn(
            ro.base, ro.outer, payloads, States.maskTensor(mask, p.slots), p.sharedDepth, p.payloadDepth
        );
        ro.mask = mask;
        ro.accepted = accepted;
        ro.phase = Phase.Merging;
        ro.mergeOpens = uint64(block.timestamp);
        ro.turn = _hasAggregator(jobId, p) ? 0 : 1;

        emit Frozen(jobId, r, ro.mergeIn, mask);

        for (uint32 s = 0; s < p.slots; s++) {
            (bytes32 claimId, Claim storage c) = _claimAt(jobId, r, ro, s);
            if (c.status == ClaimStatus.Revealed) {
                c.status = (mask >> s) & 1 == 1 ? ClaimStatus.Accepted : ClaimStatus.Excluded;
            } else if (c.status == ClaimStatus.Joined || c.status == ClaimStatus.Committed) {
                _absent(claimId, c, p.slotPrice);
            }
        }
    }

    /// @inheritdoc IJobMarket
    function finalize(bytes32 jobId, uint32 r) external {
        Job storage j = _jobs[jobId];
        JobParams memory p = params(jobId);
        Round storage ro = _rounds[jobId][r];
        if (ro.phase == Phase.Merging && _turn(p, ro) > ro.accepted) return _fail(jobId, r, ro);
        // INVARIANT: final iff the challenge window is over, no game is open and the base is final.
        if (ro.phase != Phase.Lead || r != j.settled) revert WrongPhase(jobId, r);
        if (block.timestamp < ro.mergedAt + p.challengeSeconds) revert TooEarly(ro.mergedAt + p.challengeSeconds);
        if (ro.openGames != 0) revert GamesOpen(ro.openGames);

        ro.phase = Phase.Final;

        emit RoundFinal(jobId, r);

        uint256 paid = 0;
        for (uint32 s = 0; s < p.slots; s++) {
            (bytes32 claimId, Claim storage c) = _claimAt(jobId, r, ro, s);
            // INVARIANT: pay follows from accepted, unconvicted claims, never from what a claimant says.
            if (c.status == ClaimStatus.Accepted) {
                paid += _pay(claimId, c, p.slotPrice);
            } else if (c.status == ClaimStatus.Excluded) {
                _giveBack(claimId, c, ClaimStatus.Final);
            }
        }
        paid += _pay(ro.mergeClaim, _claims[ro.mergeClaim], p.mergePrice);
        j.paid += uint128(paid);
        _settle(jobId, j);
    }

    /// @inheritdoc IJobMarket
    function release(bytes32 jobId, uint32 r) external {
        (, Round storage ro) = _inPhase(jobId, r, Phase.Void);

        _releaseAll(jobId, r, ro);
    }

    /// @inheritdoc IJobMarket
    function finish(bytes32 jobId) external {
        Job storage j = _jobs[jobId];
        JobParams memory p = params(jobId);
        if (j.status != JobStatus.Active && j.status != JobStatus.Cancelled) revert WrongJobStatus(jobId);
        bool startable = j.status == JobStatus.Active && j.started < p.rounds && j.failed <= p.maxFail;
        if (startable || j.settled != j.started) revert JobUnfinished();
        // INVARIANT: escrow = paid + refunded, exactly.
        uint256 refund = uint256(j.escrow) - j.paid - j.refunded;

        j.status = JobStatus.Done;
        _refund(j, refund);

        emit JobDone(jobId, j.paid, j.refunded);
    }

    // -- workers, aggregator

    /// @inheritdoc IJobMarket
    function join(bytes32 jobId, uint32 r, uint32 slot) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Joining);
        if (slot >= p.slots) revert NoSuchSlot(slot);
        (bytes32 claimId, Claim storage c) = _claimAt(jobId, r, ro, slot);
        if (c.worker != address(0)) revert SlotTaken(slot);

        _write(c, jobId, r, ro.attempt, slot, p.innerSteps + 1);
        ro.joined += 1;

        emit Joined(jobId, r, slot, msg.sender);

        vault.lock(msg.sender, claimId, p.slotStake);
        if (ro.joined == p.slots) _closeRoster(jobId, r, ro);
    }

    /// @inheritdoc IJobMarket
    function leave(bytes32 jobId, uint32 r, uint32 slot) external {
        (, Round storage ro) = _inPhase(jobId, r, Phase.Joining);
        (bytes32 claimId,) = _ownClaim(jobId, r, ro, slot);

        delete _claims[claimId];
        ro.joined -= 1;

        emit Left(jobId, r, slot, msg.sender);

        vault.unlock(claimId);
    }

    /// @inheritdoc IJobMarket
    function commit(bytes32 jobId, uint32 r, uint32 slot, bytes32 commitment) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Training);
        (, Claim storage c) = _ownClaim(jobId, r, ro, slot);
        // INVARIANT: a commitment is made once: nobody looks at the others' and changes its own.
        if (c.status != ClaimStatus.Joined) revert AlreadyDone();

        c.status = ClaimStatus.Committed;
        c.commitment = commitment;
        ro.committed += 1;
        if (ro.committed == ro.joined) _setWindows(ro, p, block.timestamp, p.revealSeconds);

        emit Committed(jobId, r, slot, commitment);
    }

    /// @inheritdoc IJobMarket
    function reveal(bytes32 jobId, uint32 r, uint32 slot, Reveal calldata opened) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Revealing);
        (bytes32 claimId, Claim storage c) = _ownClaim(jobId, r, ro, slot);
        if (c.status != ClaimStatus.Committed) revert AlreadyDone();
        // INVARIANT: what is revealed is what was committed, by this worker for this claim.
        if (c.commitment != Ids.commitment(claimId, msg.sender, opened)) revert CommitmentMismatch();
        // INVARIANT: the outputs are those of the last state of the trace.
        Merkle.verify(
            opened.traceRoot,
            Merkle.leaf(Merkle.node(opened.out, opened.out2)),
            c.transitions - 1,
            Merkle.depthOf(c.transitions),
            opened.proofT
        );

        c.status = ClaimStatus.Revealed;
        c.claimedAt = uint64(block.timestamp);
        c.traceRoot = opened.traceRoot;
        c.out = opened.out;
        c.out2 = opened.out2;
        ro.revealed += 1;
        if (ro.revealed == ro.committed) _setWindows(ro, p, ro.commitEnds, block.timestamp - ro.commitEnds);

        _emitRevealed(claimId, c, opened);
    }

    /// @inheritdoc IJobMarket
    function attest(bytes32 jobId, uint32 r, uint256 mask) external {
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Attesting);
        if (msg.sender != p.aggregator) revert Unauthorized(msg.sender);

        ro.attested = true;
        ro.attestation = mask;

        emit Attested(jobId, r, mask);
    }

    /// @inheritdoc IJobMarket
    function merge(bytes32 jobId, uint32 r, bytes32 out, bytes32 out2, string calldata checkpointCid) external {
        Job storage j = _jobs[jobId];
        (JobParams memory p, Round storage ro) = _inPhase(jobId, r, Phase.Merging);
        // INVARIANT: the aggregator merges until its time is over, then slot owners in seed order; no convicted one.
        address merger = mergerOf(jobId, r);
        if (msg.sender != merger) revert NotYourTurn(merger);
        bytes32 claimId = Ids.claim(jobId, r, j.attempt, MERGE);
        Claim storage c = _claims[claimId];

        _write(c, jobId, r, j.attempt, MERGE, 1);
        c.status = ClaimStatus.Accepted;
        c.claimedAt = uint64(block.timestamp);
        c.traceRoot = Merkle.leaf(Merkle.node(out, out2));
        c.out = out;
        c.out2 = out2;
        ro.turn = uint16(_turn(p, ro));
        ro.phase = Phase.Lead;
        ro.mergedAt = uint64(block.timestamp);
        ro.mergeClaim = claimId;

        emit Merged(jobId, r, claimId, msg.sender, out, out2, checkpointCid);

        vault.lock(msg.sender, claimId, p.mergeStake);
    }

    // -- the game

    modifier onlyGame() {
        // INVARIANT: verdicts come from the game alone.
        if (msg.sender != game) revert Unauthorized(msg.sender);
        _;
    }

    /// @inheritdoc IJobMarket
    function onOpen(bytes32 claimId) external onlyGame returns (GameTerms memory) {
        Claim storage c = _claims[claimId];
        JobParams memory p = params(c.job);
        if (!windowOpen(claimId)) revert WindowClosed(claimId);
        uint32 before = c.openGames;

        c.openGames = before + 1;
        _rounds[c.job][c.round].openGames += 1;

        return GameTerms(c.worker, c.transitions, before, p.clockSeconds, p.stepSeconds, p.bond, c.traceRoot);
    }

    /// @inheritdoc IJobMarket
    function onConvicted(bytes32 claimId, address challenger) external onlyGame {
        Claim storage c = _claims[claimId];
        Job storage j = _jobs[c.job];
        Round storage ro = _rounds[c.job][c.round];
        if (!live(claimId)) revert ClaimClosed(claimId);

        c.status = ClaimStatus.Convicted;
        ro.openGames -= c.openGames;
        c.openGames = 0;

        emit Convicted(claimId, c.job, c.round, c.slot, c.worker, challenger);

        if (c.slot == MERGE) _rewind(c, j, ro);
        vault.slash(claimId, challenger, j.requester);
    }

    /// @inheritdoc IJobMarket
    function onRejected(bytes32 claimId) external onlyGame {
        Claim storage c = _claims[claimId];
        Round storage ro = _rounds[c.job][c.round];
        if (!live(claimId)) revert ClaimClosed(claimId);

        c.openGames -= 1;
        ro.openGames -= 1;
        // A failed round kept this stake for its games alone.
        if (ro.phase == Phase.Failed && c.openGames == 0) _giveBack(claimId, c, ClaimStatus.Void);
    }

    // -- views

    function job(bytes32 jobId) external view returns (Job memory) {
        return _jobs[jobId];
    }

    function params(bytes32 jobId) public view returns (JobParams memory) {
        return Terms.load(_terms[jobId]);
    }

    function round(bytes32 jobId, uint32 r) external view returns (Round memory) {
        return _rounds[jobId][r];
    }

    function phase(bytes32 jobId, uint32 r) external view returns (Phase) {
        return _phase(jobId, params(jobId), _rounds[jobId][r]);
    }

    /// @inheritdoc IJobMarket
    function claim(bytes32 claimId) external view returns (Claim memory c) {
        c = _claims[claimId];
        if (c.status != ClaimStatus.None && _isVoid(claimId, c.status, _claims[claimId])) c.status = ClaimStatus.Void;
    }

    /// @inheritdoc IJobMarket
    function claimIdOf(bytes32 jobId, uint32 r, uint32 slot) external view returns (bytes32) {
        Round storage ro = _rounds[jobId][r];
        return slot == MERGE ? ro.mergeClaim : Ids.claim(jobId, r, ro.attempt, slot);
    }

    /// @inheritdoc IJobMarket
    function mergerOf(bytes32 jobId, uint32 r) public view returns (address merger) {
        JobParams memory p = params(jobId);
        Round storage ro = _rounds[jobId][r];
        if (ro.phase != Phase.Merging) return address(0);
        uint256 turn = _turn(p, ro);
        if (turn == 0) {
            merger = p.aggregator;
        } else {
            uint256 first = uint256(ro.seed) % p.slots;
            for (uint256 i = 0; i < p.slots && turn > 0; i++) {
                uint256 s = (first + i) % p.slots;
                if ((ro.mask >> s) & 1 == 0) continue;
                turn -= 1;
                (, Claim storage c) = _claimAt(jobId, r, ro, uint32(s));
                if (turn == 0 && c.status != ClaimStatus.Convicted) merger = c.worker;
            }
        }
        if (barred[jobId][merger]) merger = address(0);
    }

    /// @inheritdoc IJobMarket
    function live(bytes32 claimId) public view returns (bool) {
        Claim storage c = _claims[claimId];
        ClaimStatus status = c.status;
        bool judged = status == ClaimStatus.Revealed || status == ClaimStatus.Accepted || status == ClaimStatus.Excluded;
        return judged && !_isVoid(claimId, status, c) && _rounds[c.job][c.round].phase != Phase.Final;
    }

    /// @inheritdoc IJobMarket
    function windowOpen(bytes32 claimId) public view returns (bool) {
        Claim storage c = _claims[claimId];
        if (!live(claimId) || _rounds[c.job][c.round].phase == Phase.Failed) return false;
        return block.timestamp < c.claimedAt + params(c.job).challengeSeconds;
    }

    /// @inheritdoc IJobMarket
    function programOf(bytes32 claimId, uint32 t) external view returns (bytes32) {
        Claim storage c = _claims[claimId];
        JobParams memory p = params(c.job);
        // INVARIANT: a claim has transitions 1..T and no other.
        if (t == 0 || t > c.transitions) revert ProofInvalid();
        if (c.slot == MERGE) return p.mergeProgram;
        return t == c.transitions ? p.encodeProgram : p.stepProgram;
    }

    /// @inheritdoc IJobMarket
    function stateZero(bytes32 claimId) external view returns (bytes32) {
        Claim storage c = _claims[claimId];
        JobParams memory p = params(c.job);
        Round storage ro = _rounds[c.job][c.round];
        if (!live(claimId)) revert ClaimClosed(claimId);
        if (c.slot == MERGE) return ro.mergeIn;
        return States.slotZero(ro.base, p.zeroCarry, c.round * p.innerSteps, p.sharedDepth);
    }

    function contextOf(bytes32 claimId) external view returns (bytes32 seed, uint32 r, uint32 slot) {
        Claim storage c = _claims[claimId];
        return (_rounds[c.job][c.round].seed, c.round, c.slot);
    }

    function datasetOf(bytes32 claimId) external view returns (bytes32 root, uint32 rows, uint32 rowLength) {
        JobParams memory p = params(_claims[claimId].job);
        return (p.datasetRoot, p.datasetRows, p.rowLength);
    }

    // -- inside: jobs and rounds

    function _create(JobParams memory p, uint256 nonce, uint256 escrow) private returns (bytes32 jobId) {
        JobRules.check(p, vault.unbondSeconds());
        uint256 needed = p.rounds * JobRules.roundPay(p);
        // INVARIANT: the escrow covers every slot and every merge of every round.
        if (escrow < needed || escrow > type(uint128).max) revert EscrowInsufficient(needed, escrow);
        jobId = Ids.job(msg.sender, nonce, p);
        if (_jobs[jobId].status != JobStatus.None) revert JobExists(jobId);

        _terms[jobId] = Terms.store(p);
        Job storage j = _jobs[jobId];
        j.requester = msg.sender;
        j.status = JobStatus.Active;
        j.escrow = uint128(escrow);

        emit JobCreated(jobId, msg.sender, p.specDigest);
    }

    function _refund(Job storage j, uint256 amount) private {
        j.refunded += uint128(amount);

        vault.credit(j.requester, amount);
    }

    /// @dev Reverts unless round r - 1 is merged, final or failed.
    function _baseOf(bytes32 jobId, JobParams memory p, uint32 r) private view returns (bytes32 base, bytes32 outer) {
        if (r == 0) return (p.genesisShared, p.genesisOuter);
        Round storage previous = _rounds[jobId][r - 1];
        if (previous.phase == Phase.Failed) return (previous.base, previous.outer);
        if (previous.phase != Phase.Lead && previous.phase != Phase.Final) revert RoundNotStartable(r);
        Claim storage c = _claims[previous.mergeClaim];
        return (c.out, c.out2);
    }

    /// @dev The phase now: what is stored, and what time and completeness make of it.
    function _phase(bytes32 jobId, JobParams memory p, Round storage ro) private view returns (Phase) {
        if (ro.phase != Phase.Joining) return ro.phase;
        if (ro.seed == 0) {
            return ro.seedBlock == 0 && block.timestamp < ro.joinEnds ? Phase.Joining : Phase.Sealing;
        }
        if (block.timestamp < ro.commitEnds) return Phase.Training;
        if (block.timestamp < ro.revealEnds && ro.revealed < ro.committed) return Phase.Revealing;
        if (block.timestamp < ro.attestEnds && ro.revealed > 0 && !ro.attested && _hasAggregator(jobId, p)) {
            return Phase.Attesting;
        }
        return Phase.Freezing;
    }

    function _hasAggregator(bytes32 jobId, JobParams memory p) private view returns (bool) {
        return p.aggregator != address(0) && !barred[jobId][p.aggregator];
    }

    function _inPhase(bytes32 jobId, uint32 r, Phase wanted)
        private
        view
        returns (JobParams memory p, Round storage ro)
    {
        p = params(jobId);
        ro = _rounds[jobId][r];
        // INVARIANT: every act has its phase; what comes before or after it is refused.
        if (_phase(jobId, p, ro) != wanted) revert WrongPhase(jobId, r);
    }

    function _closeRoster(bytes32 jobId, uint32 r, Round storage ro) private {
        // INVARIANT: nobody who joins or closes knows the seed: it is the hash of a block yet to come.
        ro.seedBlock = uint64(block.number + 1);

        emit RosterClosed(jobId, r, ro.seedBlock);
    }

    /// @dev Committing ends at `commitEnds`, revealing `revealSeconds` later, attesting after that.
    function _setWindows(Round storage ro, JobParams memory p, uint256 commitEnds, uint256 revealSeconds) private {
        ro.commitEnds = uint64(commitEnds);
        ro.revealEnds = uint64(commitEnds + revealSeconds);
        ro.attestEnds = uint64(commitEnds + revealSeconds + p.attestSeconds);
    }

    /// @dev Accepted = revealed, attested and not convicted; the payload of any other slot is the zero payload.
    function _accepted(bytes32 jobId, uint32 r, JobParams memory p, Round storage ro)
        private
        view
        returns (uint256 mask, uint16 accepted, bytes32[] memory payloads)
    {
        uint256 attestation = ro.attested ? ro.attestation : type(uint256).max;
        payloads = new bytes32[](uint256(1) << Merkle.depthOf(p.slots));
        bytes32 beyond = Merkle.zero(p.payloadDepth);
        for (uint32 s = 0; s < payloads.length; s++) {
            payloads[s] = s < p.slots ? p.zeroPayload : beyond;
            if (s >= p.slots || (attestation >> s) & 1 == 0) continue;
            (, Claim storage c) = _claimAt(jobId, r, ro, s);
            if (c.status != ClaimStatus.Revealed) continue;
            payloads[s] = c.out;
            mask |= uint256(1) << s;
            accepted += 1;
        }
    }

    /// @dev The merge turn now: each lasts mergeSeconds.
    function _turn(JobParams memory p, Round storage ro) private view returns (uint256) {
        return uint256(ro.turn) + (block.timestamp - ro.mergeOpens) / p.mergeSeconds;
    }

    /// @dev The checkpoint carries over. Nobody is paid, stakes return; a stake with open games returns when they are over.
    function _fail(bytes32 jobId, uint32 r, Round storage ro) private {
        Job storage j = _jobs[jobId];
        JobParams memory p = params(jobId);
        bool isSealed = ro.seed != 0;

        ro.phase = Phase.Failed;
        j.failed += 1;

        emit RoundFailed(jobId, r);

        for (uint32 s = 0; s < p.slots; s++) {
            (bytes32 claimId, Claim storage c) = _claimAt(jobId, r, ro, s);
            bool silent = c.status == ClaimStatus.Joined || c.status == ClaimStatus.Committed;
            if (silent && isSealed) _absent(claimId, c, p.slotPrice);
            else if (_holdsStake(c.status) && c.openGames == 0) _giveBack(claimId, c, ClaimStatus.Void);
        }
        _settle(jobId, j);
    }

    /// @dev Moves past every leading round that can no more be voided.
    function _settle(bytes32 jobId, Job storage j) private {
        uint32 settled = j.settled;
        while (settled < j.started) {
            Phase at = _rounds[jobId][settled].phase;
            if (at != Phase.Final && at != Phase.Failed) break;
            settled++;
        }
        j.settled = settled;
    }

    /// @dev A convicted merge: what was built on it is void without fault, and the round merges again from the same mergeIn.
    function _rewind(Claim storage c, Job storage j, Round storage ro) private {
        (bytes32 jobId, uint32 r) = (c.job, c.round);
        for (uint32 k = r + 1; k < j.started; k++) {
            Round storage later = _rounds[jobId][k];
            if (later.phase == Phase.Failed) j.failed -= 1;
            later.phase = Phase.Void;
            emit RoundVoid(jobId, k, later.attempt);
        }
        // INVARIANT: no two claims share an id: what is claimed after a rewind carries a higher attempt.
        j.attempt += 1;
        j.started = r + 1;
        barred[jobId][c.worker] = true;
        ro.phase = Phase.Merging;
        ro.mergeClaim = 0;
        ro.turn += 1;
        ro.mergeOpens = uint64(block.timestamp);
    }

    // -- inside: claims and stakes

    function _write(Claim storage c, bytes32 jobId, uint32 r, uint32 attempt, uint32 slot, uint32 transitions) private {
        c.job = jobId;
        c.worker = msg.sender;
        c.round = r;
        c.attempt = attempt;
        c.slot = slot;
        c.status = ClaimStatus.Joined;
        c.transitions = transitions;
    }

    /// @dev The claim of a slot in the round's current attempt.
    function _claimAt(bytes32 jobId, uint32 r, Round storage ro, uint32 slot)
        private
        view
        returns (bytes32 claimId, Claim storage c)
    {
        claimId = Ids.claim(jobId, r, ro.attempt, slot);
        c = _claims[claimId];
    }

    function _ownClaim(bytes32 jobId, uint32 r, Round storage ro, uint32 slot)
        private
        view
        returns (bytes32 claimId, Claim storage c)
    {
        (claimId, c) = _claimAt(jobId, r, ro, slot);
        if (c.worker != msg.sender) revert NotSlotOwner(slot);
    }

    /// @dev A round is Void as a whole; a claim also is when its round was started or merged again.
    function _isVoid(bytes32 claimId, ClaimStatus status, Claim storage c) private view returns (bool) {
        if (status == ClaimStatus.Convicted || status == ClaimStatus.Absent) return false;
        Round storage ro = _rounds[c.job][c.round];
        bool standing = c.slot == MERGE ? ro.mergeClaim == claimId : ro.attempt == c.attempt;
        return !standing || ro.phase == Phase.Void;
    }

    function _holdsStake(ClaimStatus status) private pure returns (bool) {
        return status >= ClaimStatus.Joined && status <= ClaimStatus.Excluded;
    }

    /// @dev No reveal: the slot's price of the stake is burned.
    function _absent(bytes32 claimId, Claim storage c, uint256 fine) private {
        c.status = ClaimStatus.Absent;

        vault.slashLiveness(claimId, fine);
    }

    function _giveBack(bytes32 claimId, Claim storage c, ClaimStatus status) private {
        c.status = status;

        vault.unlock(claimId);
    }

    /// @dev Gives back every stake that a Void round still holds.
    function _releaseAll(bytes32 jobId, uint32 r, Round storage ro) private {
        uint16 slots = params(jobId).slots;
        for (uint32 s = 0; s < slots; s++) {
            (bytes32 claimId, Claim storage c) = _claimAt(jobId, r, ro, s);
            if (_holdsStake(c.status)) _giveBack(claimId, c, ClaimStatus.Void);
        }
        if (ro.mergeClaim == 0) return;
        Claim storage m = _claims[ro.mergeClaim];
        if (_holdsStake(m.status)) _giveBack(ro.mergeClaim, m, ClaimStatus.Void);
    }

    function _pay(bytes32 claimId, Claim storage c, uint256 amount) private returns (uint256) {
        _giveBack(claimId, c, ClaimStatus.Final);

        emit Paid(c.job, c.round, c.slot, c.worker, amount);

        vault.credit(c.worker, amount);
        return amount;
    }

    function _emitRevealed(bytes32 claimId, Claim storage c, Reveal calldata o) private {
        emit Revealed(
            c.job, c.round, c.slot, claimId, msg.sender, o.traceRoot, o.out, o.out2, o.traceCid, o.payloadCid
        );
    }
}
