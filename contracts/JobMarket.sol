// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IAvailability} from "./interfaces/IAvailability.sol";
import {
    Body,
    Claim,
    ClaimStatus,
    Facts,
    GameTerms,
    IJobMarket,
    Job,
    JobParams,
    JobStatus,
    Phase,
    Pricing,
    Receipt,
    Reveal,
    Role,
    Round
} from "./interfaces/IJobMarket.sol";
import {IStakeVault, Refund} from "./interfaces/IStakeVault.sol";
import {IWitnesses} from "./interfaces/IWitnesses.sol";
import {
    AlreadyDone,
    ClaimClosed,
    CommitmentMismatch,
    EscrowTooLow,
    ProofInvalid,
    Unauthorized,
    WindowClosed,
    WrongPhase
} from "./libraries/Errors.sol";
import {Ids} from "./libraries/Ids.sol";
import {Jobs} from "./libraries/Jobs.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Prices} from "./libraries/Prices.sol";
import {Rounds} from "./libraries/Rounds.sol";
import {Settling} from "./libraries/Settling.sol";
import {States} from "./libraries/States.sol";
import {AuditId, ClaimId, JobId} from "./types/Ids.sol";

/// @title JobMarket
/// @notice The job's state machine: rounds, slots, claims and pay. No owner, no setter; every wait has a default.
/// @dev The Python twins are in lockstep/protocol/market: the same names in the same order.
contract JobMarket is IJobMarket {
    using Rounds for Rounds.Book;
    using Settling for Rounds.Book;

    address public immutable token;
    IStakeVault public immutable vault;
    address public immutable game;
    address public immutable validator;
    IWitnesses public immutable witnesses;
    IAvailability public immutable availability;
    uint256 public immutable inclusionSeconds;
    uint256 public immutable censorSeconds;

    Rounds.Book private _book;

    constructor(
        address token_,
        IStakeVault vault_,
        address game_,
        address validator_,
        IWitnesses witnesses_,
        IAvailability availability_,
        uint256 inclusionSeconds_,
        uint256 censorSeconds_
    ) {
        token = token_;
        vault = vault_;
        game = game_;
        validator = validator_;
        witnesses = witnesses_;
        availability = availability_;
        inclusionSeconds = inclusionSeconds_;
        censorSeconds = censorSeconds_;
        _book.inclusionSeconds = inclusionSeconds_;
    }

    // -- the requester

    /// @inheritdoc IJobMarket
    function create(JobParams memory p, uint256 nonce, uint256 escrow) external returns (JobId jobId) {
        uint256 pulled;
        (jobId, pulled) = _create(p, nonce, escrow);
        vault.escrow(msg.sender, pulled);
    }

    function createWithPermit(
        JobParams memory p,
        uint256 nonce,
        uint256 escrow,
        uint256 deadline,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external returns (JobId jobId) {
        uint256 pulled;
        (jobId, pulled) = _create(p, nonce, escrow);
        vault.escrowWithPermit(msg.sender, pulled, deadline, v, r, s);
    }

    /// @inheritdoc IJobMarket
    function cancel(JobId jobId) external {
        Jobs.cancel(_book, vault, jobId);
    }

    // -- anyone

    /// @inheritdoc IJobMarket
    function startRound(JobId jobId, uint32 r) external {
        _book.startRound(vault, jobId, r);
    }

    /// @inheritdoc IJobMarket
    function seal(JobId jobId, uint32 r) external {
        _book.seal(vault, jobId, r);
    }

    /// @inheritdoc IJobMarket
    function attest(JobId jobId, uint32 r, Receipt[] calldata receipts) external {
        _book.attest(vault, witnesses, jobId, r, receipts);
    }

    /// @inheritdoc IJobMarket
    function freeze(JobId jobId, uint32 r, Body[] calldata bodies) external {
        _book.freeze(vault, availability, jobId, r, bodies);
    }

    /// @inheritdoc IJobMarket
    function finalize(JobId jobId, uint32 r) external {
        _book.finalize(vault, jobId, r);
    }

    /// @inheritdoc IJobMarket
    function release(JobId jobId, uint32 r) external {
        _book.release(vault, jobId, r);
    }

    /// @inheritdoc IJobMarket
    function finish(JobId jobId) external {
        Jobs.finish(_book, vault, jobId);
    }

    // -- workers, aggregator

    /// @inheritdoc IJobMarket
    function join(JobId jobId, uint32 r, uint32 slot) external {
        _book.join(vault, jobId, r, slot);
    }

    /// @inheritdoc IJobMarket
    function leave(JobId jobId, uint32 r, uint32 slot) external {
        _book.leave(vault, jobId, r, slot);
    }

    /// @inheritdoc IJobMarket
    function commit(JobId jobId, uint32 r, uint32 slot, bytes32 commitment) external {
        Round storage ro = _inTime(jobId, r, Phase.Training);
        (, Claim storage c) = _book.ownClaim(jobId, r, ro, slot);
        // INVARIANT: a commitment is made once: nobody looks at the others' and changes its own.
        if (c.status != ClaimStatus.Joined) revert AlreadyDone();

        c.status = ClaimStatus.Committed;
        c.digest = commitment;
        if (++ro.committed == ro.joined) Rounds.endCommits(ro);

        emit Committed(jobId, r, slot, commitment);
    }

    /// @inheritdoc IJobMarket
    function reveal(JobId jobId, uint32 r, uint32 slot, Reveal calldata opened) external {
        Round storage ro = _inTime(jobId, r, Phase.Revealing);
        (ClaimId claimId, Claim storage c) = _book.ownClaim(jobId, r, ro, slot);
        if (c.status != ClaimStatus.Committed) revert AlreadyDone();
        Rounds.requireCid(opened.traceCid);
        Rounds.requireCid(opened.payloadCid);
        // INVARIANT: what is revealed is what was committed, by this worker for this claim.
        if (c.digest != Ids.commitment(claimId, msg.sender, opened)) revert CommitmentMismatch();
        // INVARIANT: the outputs are those of the last state of the trace.
        Merkle.verify(
            opened.body.traceRoot,
            Merkle.leaf(Merkle.node(opened.body.out, opened.body.out2)),
            c.transitions - 1,
            Merkle.depthOf(c.transitions),
            opened.proofT
        );

        c.status = ClaimStatus.Revealed;
        c.claimedAt = uint40(block.timestamp);
        c.digest = Ids.body(opened.body);
        if (++ro.revealed == ro.committed) {
            Rounds.setWindows(ro, ro.commitEnds, block.timestamp - ro.commitEnds, _attestSeconds(ro));
        }

        _emitRevealed(jobId, r, slot, claimId, opened);

        if (opened.carries) _book.carry(jobId, r, slot, c);
    }

    /// @inheritdoc IJobMarket
    function merge(JobId jobId, uint32 r, bytes32 out, bytes32 out2, bytes calldata checkpointCid, uint16 rounds)
        external
    {
        _book.merge(vault, jobId, r, out, out2, checkpointCid, rounds);
    }

    /// @inheritdoc IJobMarket
    function back(JobId jobId, uint32 r, uint16 rounds) external {
        _book.back(vault, jobId, r, rounds);
    }

    // -- the game

    modifier onlyGame() {
        // INVARIANT: claims are challenged in the game alone.
        if (msg.sender != game) revert Unauthorized(msg.sender);
        _;
    }

    modifier onlyVerdict() {
        // INVARIANT: verdicts come from games, of which a demand for a carry is one.
        if (msg.sender != game && msg.sender != address(availability)) revert Unauthorized(msg.sender);
        _;
    }

    /// @inheritdoc IJobMarket
    function onOpen(ClaimId claimId, Body calldata body) external onlyGame returns (GameTerms memory) {
        Claim storage c = _book.claims[claimId];
        JobParams memory p = params(c.job);
        if (!_windowOpen(claimId, p)) revert WindowClosed(claimId);
        // INVARIANT: what is challenged is what was claimed.
        if (c.digest != Ids.body(body)) revert CommitmentMismatch();
        uint32 number = c.games;

        (c.openGames, c.games) = (c.openGames + 1, number + 1);
        _book.rounds[c.job][c.round].openGames += 1;

        return GameTerms(c.worker, c.transitions, number, p.windows.clockSeconds, p.windows.stepSeconds, _bond(p));
    }

    /// @inheritdoc IJobMarket
    function onConvicted(ClaimId claimId, uint32 t, address[] calldata winners, Refund[] calldata refunds)
        external
        onlyVerdict
    {
        _book.onConvicted(vault, claimId, t, winners, refunds);
    }

    /// @inheritdoc IJobMarket
    function onRejected(ClaimId claimId) external onlyVerdict {
        Claim storage c = _book.claims[claimId];
        Round storage ro = _book.rounds[c.job][c.round];
        if (!live(claimId)) revert ClaimClosed(claimId);

        c.openGames -= 1;
        ro.openGames -= 1;
        // A void round's stakes are given back together (`release`).
        if (ro.phase == Phase.Void) _book.jobs[c.job].lingering -= 1;
    }

    // -- the validator, the witnesses, demands

    /// @inheritdoc IJobMarket
    function onInvalid(JobId jobId, address prover) external {
        // INVARIANT: a job is void by a proof that it could not be defended, or by a row that nobody has.
        if (msg.sender != validator && msg.sender != address(availability)) revert Unauthorized(msg.sender);
        _book.onInvalid(jobId, prover);
    }

    /// @inheritdoc IJobMarket
    function onDrawn(JobId jobId, uint32 r, uint16 count) external returns (uint16) {
        // INVARIANT: the witnesses' contract alone says who was drawn.
        if (msg.sender != address(witnesses)) revert Unauthorized(msg.sender);
        return _book.onDrawn(jobId, r, count);
    }

    /// @inheritdoc IJobMarket
    function onWitnessed(JobId jobId, address account) external {
        // INVARIANT: a drawn duty's fee is paid once or given up once.
        if (msg.sender != address(witnesses)) revert Unauthorized(msg.sender);
        Job storage j = _book.jobs[jobId];
        uint128 fee = params(jobId).roles[0].witnessFee;
        if (fee > j.feesDue) revert EscrowTooLow(fee, j.feesDue);

        j.feesDue -= fee;
        if (account != address(0)) {
            j.paid += fee;
            vault.credit(account, fee);
        } else if (j.status == JobStatus.Done) {
            j.refunded += fee;
            vault.credit(j.requester, fee);
        }
    }

    /// @inheritdoc IJobMarket
    function onDemanded(JobId jobId, uint32 r, uint32 slot, bool carry) external {
        // INVARIANT: the demands' contract alone says what was demanded.
        if (msg.sender != address(availability)) revert Unauthorized(msg.sender);
        _book.onDemanded(jobId, r, slot, carry);
    }

    // -- views

    function job(JobId jobId) external view returns (Job memory) {
        return _book.jobs[jobId];
    }

    function params(JobId jobId) public view returns (JobParams memory) {
        return _book.params(jobId);
    }

    function round(JobId jobId, uint32 r) external view returns (Round memory) {
        return _book.rounds[jobId][r];
    }

    function phase(JobId jobId, uint32 r) external view returns (Phase) {
        return _book.phase(jobId, r);
    }

    /// @inheritdoc IJobMarket
    function claim(ClaimId claimId) external view returns (Claim memory c) {
        c = _book.claims[claimId];
        if (c.status != ClaimStatus.None && _book.isVoid(claimId, _book.claims[claimId])) c.status = ClaimStatus.Void;
    }

    /// @inheritdoc IJobMarket
    function claimIdOf(JobId jobId, uint32 r, uint32 slot) external view returns (ClaimId) {
        Round storage ro = _book.rounds[jobId][r];
        return slot == Ids.MERGE ? ro.mergeClaim : Ids.claim(jobId, r, ro.attempt, slot);
    }

    /// @inheritdoc IJobMarket
    function mergerOf(JobId jobId, uint32 r) external view returns (address) {
        return _book.mergerOf(jobId, r);
    }

    function barred(JobId jobId, address account) external view returns (bool) {
        return _book.barred[jobId][account];
    }

    /// @inheritdoc IJobMarket
    function bondOf(JobId jobId) external view returns (uint256) {
        return _bond(params(jobId));
    }

    /// @inheritdoc IJobMarket
    function live(ClaimId claimId) public view returns (bool) {
        return _book.live(claimId);
    }

    /// @inheritdoc IJobMarket
    function rewound(AuditId auditId) external view returns (bool) {
        return _book.rewound[auditId];
    }

    /// @inheritdoc IJobMarket
    function convictedAt(ClaimId claimId) external view returns (uint32) {
        return _book.claims[claimId].convictedAt;
    }

    /// @inheritdoc IJobMarket
    function windowOpen(ClaimId claimId) external view returns (bool) {
        return _windowOpen(claimId, params(_book.claims[claimId].job));
    }

    /// @inheritdoc IJobMarket
    function factsOf(ClaimId claimId, uint32 t, bytes32[] calldata carried) external view returns (Facts memory f) {
        Claim storage c = _book.claims[claimId];
        JobParams memory p = params(c.job);
        Round storage ro = _book.rounds[c.job][c.round];
        // INVARIANT: a claim has transitions 1..T and no other.
        if (t == 0 || t > c.transitions) revert ProofInvalid();
        if (t == 1) f.stateZero = _stateZero(claimId, c, p, ro, carried);
        Role memory role = p.roles[0];
        f.program = c.slot == Ids.MERGE ? p.merge.program : t == c.transitions ? role.encodeProgram : role.stepProgram;
        (f.datasetRoot, f.datasetRows, f.rowLength) = (role.datasetRoot, role.datasetRows, role.rowLength);
        (f.seed, f.round, f.slot) = (ro.seed, c.round, c.slot);
    }

    // -- inside: jobs and rounds

    function _create(JobParams memory p, uint256 nonce, uint256 escrow) private returns (JobId, uint256) {
        return Jobs.create(_book, vault, p, nonce, escrow, inclusionSeconds, censorSeconds);
    }

    function _emitRevealed(JobId jobId, uint32 r, uint32 slot, ClaimId claimId, Reveal calldata o) private {
        Body calldata b = o.body;
        emit Revealed(
            jobId, r, slot, claimId, msg.sender, b.traceRoot, b.out, b.out2, o.traceCid, o.payloadCid
        );
    }

    /// @dev A round that is under way, by time and the job's prover alone: no parameter is read where every transaction counts.
    function _inTime(JobId jobId, uint32 r, Phase wanted) private view returns (Round storage ro) {
        ro = _book.rounds[jobId][r];
        // INVARIANT: every act has its phase; what comes before or after it is refused.
        // INVARIANT: in a void job nothing goes on: no seat becomes work that is paid.
        if (Rounds.phaseOf(ro) != wanted || Rounds.isVoided(_book.jobs[jobId])) revert WrongPhase(jobId, r);
    }

    /// @dev As `seal` wrote it: cheaper than to read the job's terms.
    function _attestSeconds(Round storage ro) private view returns (uint256) {
        return ro.attestEnds - ro.revealEnds;
    }

    /// @dev S_0 of a claim.
    function _stateZero(
        ClaimId claimId,
        Claim storage c,
        JobParams memory p,
        Round storage ro,
        bytes32[] calldata carried
    ) private view returns (bytes32) {
        if (!live(claimId)) revert ClaimClosed(claimId);
        if (c.slot == Ids.MERGE) return ro.mergeIn;
        Role memory role = p.roles[0];
        bytes32 carry = c.carries ? _book.carryIn(c, carried) : role.zeroCarry;
        return States.slotZero(ro.base, carry, c.round * role.innerSteps, p.genesis.sharedDepth);
    }

    /// @dev Whether games may be opened on the claim now.
    function _windowOpen(ClaimId claimId, JobParams memory p) private view returns (bool) {
        Claim storage c = _book.claims[claimId];
        // A void round keeps the games that it has.
        if (!live(claimId) || _book.rounds[c.job][c.round].phase == Phase.Void) return false;
        if (c.slot == Ids.MERGE || p.roles[0].carryPeriod == 0) {
            return block.timestamp < c.claimedAt + p.windows.challengeSeconds;
        }
        // INVARIANT: a claim that others may stand on can be challenged until it can be final, and no longer.
        (, uint256 over) = _book.overAt(c.job, p, c.round);
        return over == 0 || block.timestamp < over;
    }

    /// @dev What a challenger locks now.
    function _bond(JobParams memory p) private view returns (uint256) {
        Pricing memory prices = p.prices;
        return Prices.bondOf(prices.bond, prices.gasPrice, prices.feeCap, Prices.median(_book.baseFees, prices.feeCap));
    }
}
