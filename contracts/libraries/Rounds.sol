// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IAvailability} from "../interfaces/IAvailability.sol";
import {
    Body,
    Claim,
    ClaimStatus,
    IJobMarket,
    Job,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Role,
    Round
} from "../interfaces/IJobMarket.sol";
import {IStakeVault, Refund} from "../interfaces/IStakeVault.sol";
import {IWitnesses} from "../interfaces/IWitnesses.sol";
import {DEMAND_INCLUSIONS, DEMAND_PARTS, HASH_BLOCKS, LEAVE_PARTS, MAX_CID, WITNESS} from "./Constants.sol";
import {
    AlreadyDone,
    CidTooLong,
    ClaimClosed,
    CommitmentMismatch,
    GamesOpen,
    NoCarry,
    NoSuchSlot,
    NotBacked,
    NotSlotOwner,
    NotYourTurn,
    RoundNotStartable,
    SignatureInvalid,
    SlotTaken,
    TooEarly,
    WrongJobStatus,
    WrongPhase
} from "./Errors.sol";
import {Draws} from "./Draws.sol";
import {Ids} from "./Ids.sol";
import {JobRules} from "./JobRules.sol";
import {Merkle} from "./Merkle.sol";
import {Prices} from "./Prices.sol";
import {Receipts} from "./Receipts.sol";
import {Settling} from "./Settling.sol";
import {Signatures} from "./Signatures.sol";
import {States} from "./States.sol";
import {Terms} from "./Terms.sol";
import {AuditId, ClaimId, JobId, NO_CLAIM} from "../types/Ids.sol";

/// @title Rounds
/// @notice The rounds of JobMarket's jobs: linked code, run in the market's own storage, so that neither outgrows EIP-170.
/// @dev The Python twins are in lockstep/protocol/market, the same names in the same order: rounds.py has the verbs, verdicts.py what
///      other contracts report (`on...`) and what follows, views.py what is asked.
library Rounds {
    uint32 private constant MERGE = Ids.MERGE;
    address internal constant BURN = 0x000000000000000000000000000000000000dEaD;

    /// @notice Everything that the market stores.
    struct Book {
        mapping(JobId jobId => Job) jobs;
        mapping(JobId jobId => address) terms;
        mapping(JobId jobId => mapping(uint32 r => Round)) rounds;
        mapping(ClaimId claimId => Claim) claims;
        mapping(JobId jobId => mapping(address account => bool)) barred;
        /// Audits of rounds that a convicted merge voided: who agreed there is paid.
        mapping(AuditId auditId => bool) rewound;
        /// Base fees of the last seals (Prices.push).
        uint256 baseFees;
        /// The market's own.
        uint256 inclusionSeconds;
    }

    // -- anyone

    function startRound(Book storage b, IStakeVault vault, JobId jobId, uint32 r) external {
        Job storage j = b.jobs[jobId];
        JobParams memory p = params(b, jobId);
        Round storage ro = b.rounds[jobId][r];
        if (j.status != JobStatus.Active) revert WrongJobStatus(jobId);
        // INVARIANT: rounds start in order, on a merged or carried-over base, at most maxLead ahead of the last settled one.
        if (r != j.started || !_hasNext(j, p)) revert RoundNotStartable(r);
        // INVARIANT: what a game on voided work argues about stands still until the game is over.
        if (j.lingering != 0) revert GamesOpen(j.lingering);
        _requireBacked(b, jobId, j.settled, r);
        (bytes32 base, bytes32 outer) = _baseOf(b, jobId, p, r);
        if (ro.phase == Phase.Void) Settling.releaseAll(b, vault, jobId, r);

        delete b.rounds[jobId][r];
        ro.phase = Phase.Joining;
        ro.attempt = j.attempt;
        ro.joinEnds = uint64(block.timestamp + p.windows.joinSeconds);
        ro.base = base;
        ro.outer = outer;
        j.started = r + 1;

        emit IJobMarket.RoundStarted(jobId, r, j.attempt, base, outer);
    }

    function seal(Book storage b, IStakeVault vault, JobId jobId, uint32 r) external {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Sealing);
        Role memory role = p.roles[0];
        if (ro.seedBlock == 0) {
            // INVARIANT: who fails a sealed round gives up more seats than can be accepted in it, unless every slot is taken.
            uint256 least = 2 * uint256(role.minSlots) - 1;
            if (ro.joined < (least < role.slots ? least : role.slots)) return Settling.fail(b, vault, jobId, r);
            return _closeRoster(jobId, r, ro);
        }
        if (block.number <= ro.seedBlock) revert TooEarly(uint256(ro.seedBlock) + 1);
        // INVARIANT: one seed per roster: a round that nobody sealed in time fails, it is never drawn again.
        if (block.number > ro.seedBlock + HASH_BLOCKS) return Settling.fail(b, vault, jobId, r);

        ro.seed = Ids.seed(blockhash(ro.seedBlock), jobId, r, ro.attempt);
        setWindows(ro, block.timestamp + role.trainSeconds, role.revealSeconds, role.attestSeconds);
        b.baseFees = Prices.push(b.baseFees, block.basefee);

        emit IJobMarket.Sealed(jobId, r, ro.seed);
    }

    function attest(
        Book storage b,
        IStakeVault vault,
        IWitnesses witnesses,
        JobId jobId,
        uint32 r,
        Receipt[] calldata receipts
    ) external {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Attesting);
        for (uint256 i = 0; i < receipts.length; i++) {
            Receipt calldata given = receipts[i];
            // INVARIANT: the first receipt of each counts, and no other.
            if ((ro.spoke >> given.who) & 1 == 1) revert AlreadyDone();
            address account = _speaker(b, witnesses, jobId, r, p.roles[0], ro, given.who);
            _requireSigned(vault, account, Ids.receipt(jobId, r, ro.attempt, given.who, given.mask), given.signature);

            ro.spoke |= uint256(1) << given.who;
            ro.receipts += 1;
            ro.named = Receipts.add(ro.named, given.mask, given.who);

            emit IJobMarket.Attested(jobId, r, given.who, account, given.mask);
        }
    }

    function freeze(
        Book storage b,
        IStakeVault vault,
        IAvailability availability,
        JobId jobId,
        uint32 r,
        Body[] calldata bodies
    ) external {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Freezing);
        uint256 mask = _decide(b, vault, availability, jobId, r, p.roles[0], ro);
        uint16 accepted = Receipts.count(mask);

        // INVARIANT: the contract computes what is merged: nobody can omit, add or change a payload.
        ro.mergeIn = States.mergeIn(
            ro.base,
            ro.outer,
            _payloads(b, jobId, r, p.roles[0], ro, bodies),
            States.maskTensor(mask, p.roles[0].slots),
            p.genesis.sharedDepth,
            p.roles[0].payloadDepth
        );
        ro.mask = mask;
        ro.accepted = accepted;

        emit IJobMarket.Frozen(jobId, r, ro.mergeIn, mask);

        if (accepted < p.roles[0].minSlots) return Settling.fail(b, vault, jobId, r);
        ro.phase = Phase.Merging;
        ro.mergeOpens = uint64(block.timestamp);
        ro.turn = p.merge.aggregator != address(0) && !b.barred[jobId][p.merge.aggregator] ? 0 : 1;
    }

    // -- workers, aggregator

    function join(Book storage b, IStakeVault vault, JobId jobId, uint32 r, uint32 slot) external {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Joining);
        Role memory role = p.roles[0];
        if (slot >= role.slots) revert NoSuchSlot(slot);
        (ClaimId claimId, Claim storage c) = Settling.claimAt(b, jobId, r, ro, slot);
        if (c.worker != address(0)) revert SlotTaken(slot);
        // INVARIANT: who may go on from a carry has its slot to itself in the first part of the join window.
        if (block.timestamp < ro.joinEnds - p.windows.joinSeconds / LEAVE_PARTS && _isReserved(b, jobId, r, role, slot)) {
            revert SlotTaken(slot);
        }

        _write(c, jobId, r, ro.attempt, slot, role.innerSteps + 1);
        ro.joined += 1;

        emit IJobMarket.Joined(jobId, r, slot, msg.sender);

        vault.lock(msg.sender, ClaimId.unwrap(claimId), role.slotStake);
        if (ro.joined == role.slots) _closeRoster(jobId, r, ro);
    }

    function leave(Book storage b, IStakeVault vault, JobId jobId, uint32 r, uint32 slot) external {
        (JobParams memory p, Round storage ro) =
            inPhase(b, jobId, r, Phase.Joining);
        // INVARIANT: a slot is given back while others have half of the window left to take it.
        if (block.timestamp >= ro.joinEnds - p.windows.joinSeconds / LEAVE_PARTS) revert WrongPhase(jobId, r);
        (ClaimId claimId,) = ownClaim(b, jobId, r, ro, slot);

        delete b.claims[claimId];
        ro.joined -= 1;

        emit IJobMarket.Left(jobId, r, slot, msg.sender);

        vault.unlock(ClaimId.unwrap(claimId));
    }

    function merge(
        Book storage b,
        IStakeVault vault,
        JobId jobId,
        uint32 r,
        bytes32 out,
        bytes32 out2,
        bytes calldata checkpointCid,
        uint16 rounds
    ) external {
        requireCid(checkpointCid);
        JobParams memory p = params(b, jobId);
        Round storage ro = b.rounds[jobId][r];
        uint16 at = _requireTurn(b, jobId, p, r, ro);
        // INVARIANT: a merge that is convicted leaves a turn to everybody after its first merger, however often it was made again.
        if (ro.phase == Phase.Merging) ro.turn = at;
        else _replace(b, vault, jobId, r, out, out2, rounds);

        (ClaimId claimId, Claim storage c) = _writeMerge(b, jobId, r);
        c.digest = Ids.body(Body(Merkle.leaf(Merkle.node(out, out2)), out, out2));
        ro.phase = Phase.Lead;
        ro.mergedAt = uint64(block.timestamp);
        ro.mergeClaim = claimId;
        ro.nextShared = out;
        ro.nextOuter = out2;
        ro.backed = rounds;

        emit IJobMarket.Merged(jobId, r, claimId, msg.sender, out, out2, checkpointCid);

        vault.lock(msg.sender, ClaimId.unwrap(claimId), p.merge.stake + rounds * JobRules.roundPay(p));
    }

    function back(Book storage b, IStakeVault vault, JobId jobId, uint32 r, uint16 rounds) external {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Lead);
        ClaimId claimId = ro.mergeClaim;
        address merger = b.claims[claimId].worker;
        // INVARIANT: who merged answers for its merge, and nobody else.
        if (msg.sender != merger) revert NotYourTurn(merger);

        ro.backed += rounds;

        emit IJobMarket.Backed(jobId, r, ro.backed);

        vault.raise(ClaimId.unwrap(claimId), rounds * JobRules.roundPay(p));
    }

    /// @dev A claim that is being revealed names the carry that it starts from.
    function carry(Book storage b, JobId jobId, uint32 r, uint32 slot, Claim storage c) external {
        uint256 period = params(b, jobId).roles[0].carryPeriod;
        // INVARIANT: a carry is zero in every round that the period divides, so that it can be computed again from there.
        if (period == 0 || r % period == 0) revert NoCarry(slot);
        Round storage before = b.rounds[jobId][r - 1];
        Claim storage earlier = Settling.carriedFrom(b, c);
        // INVARIANT: nothing stands on a carry whose claim cannot be challenged any more.
        bool stands = before.phase == Phase.Lead && (before.mask >> slot) & 1 == 1
            && earlier.status != ClaimStatus.Convicted;
        // INVARIANT: a slot starts from the carry of its owner's claim in the round before, accepted and not convicted, or from zero.
        if (!stands || earlier.worker != c.worker) revert NoCarry(slot);

        c.carries = true;

        emit IJobMarket.Carried(jobId, r, slot);
    }

    // -- the game

    function onConvicted(
        Book storage b,
        IStakeVault vault,
        ClaimId claimId,
        uint32 t,
        address[] calldata winners,
        Refund[] memory refunds
    ) external {
        Claim storage c = b.claims[claimId];
        Job storage j = b.jobs[c.job];
        Round storage ro = b.rounds[c.job][c.round];
        if (!live(b, claimId)) revert ClaimClosed(claimId);

        c.status = ClaimStatus.Convicted;
        c.convictedAt = t;
        ro.openGames -= c.openGames;
        if (ro.phase == Phase.Void) j.lingering -= c.openGames;
        c.openGames = 0;

        emit IJobMarket.Convicted(claimId, c.job, c.round, c.slot, c.worker, winners[0]);

        JobParams memory p = params(b, c.job);
        uint256 owed = 0;
        // A merge of a void round has nothing standing on it any more.
        if (c.slot == MERGE && ro.phase == Phase.Lead) owed = _rewind(b, p, c, j, ro);
        // Nobody waits for a receipt of the convicted.
        else if (c.slot != MERGE && (ro.spoke >> c.slot) & 1 == 0) ro.silent += 1;
        for (uint256 i = 0; i < refunds.length; i++) {
            // Gas is paid at what it costs now, capped.
            refunds[i].amount = Prices.gasCost(refunds[i].amount, p.prices.gasPrice, p.prices.feeCap, block.basefee);
        }
        vault.slash(ClaimId.unwrap(claimId), owed, winners, refunds, j.requester);
    }

    // -- the validator, the witnesses, demands

    function onInvalid(Book storage b, JobId jobId, address prover) external {
        Job storage j = b.jobs[jobId];
        if (j.status != JobStatus.Active && j.status != JobStatus.Cancelled) revert WrongJobStatus(jobId);

        j.status = JobStatus.Void;
        j.prover = prover;
        // INVARIANT: who can still reveal when its job becomes void is paid, and who was silent until then is not.
        for (uint32 k = j.settled; k < j.started; k++) {
            _dropSilent(b.rounds[jobId][k]);
        }

        emit IJobMarket.JobVoid(jobId, prover);
    }

    function onDrawn(Book storage b, JobId jobId, uint32 r, uint16 count) external returns (uint16) {
        (JobParams memory p, Round storage ro) = inPhase(b, jobId, r, Phase.Attesting);
        Role memory role = p.roles[0];
        // INVARIANT: witnesses are drawn once a round, no more than the job pays.
        if (ro.drawn || count > role.witnesses) revert AlreadyDone();

        Job storage j = b.jobs[jobId];
        // INVARIANT: witnesses are paid from what slots and merges leave over, should rounds be run again.
        uint256 rounds = (j.status == JobStatus.Active ? p.schedule.rounds : j.started) - j.settled;
        uint256 needed = rounds * (uint256(role.slots) * role.slotPrice + p.merge.price);
        uint256 left = uint256(j.escrow) - j.paid - j.refunded - j.feesDue;
        left = left < needed ? 0 : left - needed;
        if (count * role.witnessFee > left) count = uint16(left / role.witnessFee);

        ro.drawn = true;
        ro.witnesses = count;
        j.feesDue += count * role.witnessFee;
        return count;
    }

    function onDemanded(Book storage b, JobId jobId, uint32 r, uint32 slot, bool carry_) external {
        // INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
        (, Round storage ro) = inPhase(b, jobId, r, Phase.Attesting);
        (, Claim storage c) = Settling.claimAt(b, jobId, r, ro, slot);
        if (c.status != ClaimStatus.Revealed) revert NoSuchSlot(slot);

        ro.demands += 1;
        // INVARIANT: a demand for a carry is a game of one move: while it is open, no stake is free and no round final.
        if (carry_) (c.openGames, ro.openGames) = (c.openGames + 1, ro.openGames + 1);
    }

    // -- views

    /// @dev The carry in the S_0 of a claim that names one.
    function carryIn(Book storage b, Claim storage c, bytes32[] calldata carried) external view returns (bytes32) {
        // INVARIANT: what is carried is what was claimed.
        if (keccak256(abi.encodePacked(carried)) != Settling.carriedFrom(b, c).digest) revert CommitmentMismatch();
        return carried[2];
    }

    function params(Book storage b, JobId jobId) internal view returns (JobParams memory) {
        return Terms.load(b.terms[jobId]);
    }

    /// @dev The phase now: what is stored, and what time and completeness make of it.
    function phase(Book storage b, JobId jobId, uint32 r) internal view returns (Phase) {
        Round storage ro = b.rounds[jobId][r];
        // INVARIANT: in a void job nothing goes on: what was not final or failed is void.
        if (isVoided(b.jobs[jobId])) {
            bool over = ro.phase >= Phase.Final || ro.phase == Phase.None;
            return over ? ro.phase : Phase.Void;
        }
        Phase at = phaseOf(ro);
        if (at != Phase.Attesting) return at;
        // Attesting is over when everybody who may has spoken, and some time later.
        Role memory role = params(b, jobId).roles[0];
        bool all = Receipts.count(ro.spoke) + ro.silent == ro.revealed + ro.witnesses && (role.witnesses == 0 || ro.drawn);
        if (!all) return at;
        // INVARIANT: whoever has spoken, every payload can be demanded for some time after the last reveal.
        uint256 part = (ro.attestEnds - ro.revealEnds) / DEMAND_PARTS;
        uint256 least = DEMAND_INCLUSIONS * b.inclusionSeconds;
        return block.timestamp < ro.revealEnds + (part < least ? least : part) ? at : Phase.Freezing;
    }

    /// @dev `phase`, but for a void job and for receipts that are complete.
    function phaseOf(Round storage ro) internal view returns (Phase) {
        Phase stored = ro.phase;
        if (stored != Phase.Joining) return stored;
        uint256 commitEnds = ro.commitEnds;
        if (commitEnds == 0) {
            return ro.seedBlock == 0 && block.timestamp < ro.joinEnds
                ? Phase.Joining
                : Phase.Sealing;
        }
        if (block.timestamp < commitEnds) return Phase.Training;
        if (block.timestamp < ro.revealEnds && ro.revealed < ro.committed) return Phase.Revealing;
        if (block.timestamp < ro.attestEnds && ro.revealed > 0) return Phase.Attesting;
        return Phase.Freezing;
    }

    function mergerOf(Book storage b, JobId jobId, uint32 r) public view returns (address merger) {
        JobParams memory p = params(b, jobId);
        Role memory role = p.roles[0];
        Round storage ro = b.rounds[jobId][r];
        (bool open, uint256 left) = _turnOf(b, jobId, p, r, ro);
        if (!open) return address(0);
        if (left == 0) {
            merger = p.merge.aggregator;
        } else {
            uint256 first = uint256(ro.seed) % role.slots;
            for (uint256 i = 0; i < role.slots && left > 0; i++) {
                uint256 s = (first + i) % role.slots;
                if ((ro.mask >> s) & 1 == 0) continue;
                left -= 1;
                (, Claim storage c) = Settling.claimAt(b, jobId, r, ro, uint32(s));
                if (left == 0 && c.status != ClaimStatus.Convicted) merger = c.worker;
            }
        }
        // INVARIANT: who has not backed its merge does not merge again.
        if (b.barred[jobId][merger] || merger == b.claims[ro.mergeClaim].worker) merger = address(0);
    }

    function live(Book storage b, ClaimId claimId) internal view returns (bool) {
        Claim storage c = b.claims[claimId];
        ClaimStatus status = c.status;
        bool judged = status >= ClaimStatus.Revealed && status <= ClaimStatus.Missing;
        return judged && !isVoid(b, claimId, c) && b.rounds[c.job][c.round].phase != Phase.Final;
    }

    /// @dev A job that was proven invalid stays so once it is Done.
    function isVoided(Job storage j) internal view returns (bool) {
        return j.prover != address(0);
    }

    /// @dev A job is Void as a whole, and a round; a claim also is when its round was started or merged again. A claim of a void round
    ///      stands as long as games are open on it.
    function isVoid(Book storage b, ClaimId claimId, Claim storage c) internal view returns (bool) {
        ClaimStatus status = c.status;
        if (status >= ClaimStatus.Absent) return status == ClaimStatus.Void;
        Round storage ro = b.rounds[c.job][c.round];
        bool standing = c.slot == MERGE ? ClaimId.unwrap(ro.mergeClaim) == ClaimId.unwrap(claimId) : ro.attempt == c.attempt;
        bool voidRound = ro.phase == Phase.Void && c.openGames == 0;
        return !standing || voidRound || isVoided(b.jobs[c.job]);
    }

    // -- inside: rounds

    function inPhase(Book storage b, JobId jobId, uint32 r, Phase wanted)
        internal
        view
        returns (JobParams memory p, Round storage ro)
    {
        p = params(b, jobId);
        ro = b.rounds[jobId][r];
        // INVARIANT: every act has its phase; what comes before or after it is refused.
        if (phase(b, jobId, r) != wanted) revert WrongPhase(jobId, r);
    }

    function _closeRoster(JobId jobId, uint32 r, Round storage ro) private {
        // INVARIANT: nobody who joins or closes knows the seed: it is the hash of a block yet to come.
        ro.seedBlock = uint64(block.number + 1);

        emit IJobMarket.RosterClosed(jobId, r, ro.seedBlock);
    }

    /// @dev Committing ends at `commitEnds`, revealing `revealSeconds` later, attesting after that.
    function setWindows(Round storage ro, uint256 commitEnds, uint256 revealSeconds, uint256 attestSeconds) internal {
        uint256 revealEnds = commitEnds + revealSeconds;
        uint256 attestEnds = revealEnds + attestSeconds;
        // One write: they share a word.
        (ro.commitEnds, ro.revealEnds, ro.attestEnds) = (uint40(commitEnds), uint40(revealEnds), uint40(attestEnds));
    }

    /// @dev Everybody has committed: the windows begin now, none shorter than it was. In one write, and before commitEnds.
    function endCommits(Round storage ro) internal {
        unchecked {
            uint40 early = ro.commitEnds - uint40(block.timestamp);
            (ro.commitEnds, ro.revealEnds, ro.attestEnds) =
                (ro.commitEnds - early, ro.revealEnds - early, ro.attestEnds - early);
        }
    }

    /// @dev Whether somebody else's claim of the round before has left a carry in the slot that its owner may go on from.
    function _isReserved(Book storage b, JobId jobId, uint32 r, Role memory role, uint32 slot) private view returns (bool) {
        if (role.carryPeriod == 0 || r % role.carryPeriod == 0) return false;
        Round storage before = b.rounds[jobId][r - 1];
        (, Claim storage earlier) = Settling.claimAt(b, jobId, r - 1, before, slot);
        return before.phase == Phase.Lead && earlier.status == ClaimStatus.Accepted
            && earlier.worker != msg.sender;
    }

    /// @dev Whether the job has a next round that its books let start.
    function _hasNext(Job storage j, JobParams memory p) private view returns (bool) {
        uint32 next = j.started;
        bool left = next < p.schedule.rounds && j.failed <= p.schedule.maxFail;
        return j.status == JobStatus.Active && left && next - j.settled < p.schedule.maxLead;
    }

    /// @dev Reverts unless round r - 1 is merged, final or failed.
    function _baseOf(Book storage b, JobId jobId, JobParams memory p, uint32 r)
        private
        view
        returns (bytes32 base, bytes32 outer)
    {
        if (r == 0) return (p.genesis.shared, p.genesis.outer);
        Round storage previous = b.rounds[jobId][r - 1];
        if (previous.phase < Phase.Lead || previous.phase > Phase.Failed) revert RoundNotStartable(r);
        return (previous.nextShared, previous.nextOuter);
    }

    /// @dev Who speaks as `who`: the owner of a revealed slot, or the round's witness who - 64.
    function _speaker(
        Book storage b,
        IWitnesses witnesses,
        JobId jobId,
        uint32 r,
        Role memory role,
        Round storage ro,
        uint32 who
    ) private view returns (address account) {
        if (who < role.slots) {
            (, Claim storage c) = Settling.claimAt(b, jobId, r, ro, who);
            if (c.status == ClaimStatus.Revealed) account = c.worker;
        } else if (who >= WITNESS && who - WITNESS < ro.witnesses) {
            account = witnesses.witnessOf(jobId, r, who - WITNESS);
        }
        // INVARIANT: owners of revealed slots and drawn witnesses speak, and nobody else.
        if (account == address(0)) revert NotSlotOwner(who);
    }

    /// @dev By the account itself, or by its delegate.
    function _requireSigned(IStakeVault vault, address account, bytes32 digest, bytes calldata signature) private view {
        // INVARIANT: a receipt is signed by who gives it.
        if (Signatures.isSigned(account, digest, signature)) return;
        address delegate = vault.delegateOf(account);
        if (delegate != address(0) && Signatures.isSigned(delegate, digest, signature)) return;
        revert SignatureInvalid(account);
    }

    /// @dev Decides what every claim is from now on. Accepted = revealed, named by half of the others' receipts, not convicted, and not
    ///      missing.
    function _decide(
        Book storage b,
        IStakeVault vault,
        IAvailability availability,
        JobId jobId,
        uint32 r,
        Role memory role,
        Round storage ro
    ) private returns (uint256 mask) {
        for (uint32 s = 0; s < role.slots; s++) {
            (ClaimId claimId, Claim storage c) = Settling.claimAt(b, jobId, r, ro, s);
            ClaimStatus status = c.status;
            if (status == ClaimStatus.Joined || status == ClaimStatus.Committed) {
                Settling.absent(vault, claimId, c, role.slotPrice);
            }
            if (status != ClaimStatus.Revealed) continue;
            if (ro.demands != 0 && availability.missing(claimId)) {
                c.status = ClaimStatus.Missing;
            } else if (Receipts.accepts(ro.named, ro.spoke, ro.receipts, s)) {
                c.status = ClaimStatus.Accepted;
                mask |= uint256(1) << s;
            } else {
                c.status = ClaimStatus.Excluded;
            }
        }
    }

    /// @dev What is merged of each slot; of one that is not accepted, the zero payload.
    /// @param bodies Of the revealed slots, in order.
    function _payloads(
        Book storage b,
        JobId jobId,
        uint32 r,
        Role memory role,
        Round storage ro,
        Body[] calldata bodies
    ) private view returns (bytes32[] memory payloads) {
        payloads = new bytes32[](uint256(1) << Merkle.depthOf(role.slots));
        bytes32 beyond = Merkle.zero(role.payloadDepth);
        uint256 next = 0;
        for (uint32 s = 0; s < payloads.length; s++) {
            payloads[s] = s < role.slots ? role.zeroPayload : beyond;
            if (s >= role.slots) continue;
            (, Claim storage c) = Settling.claimAt(b, jobId, r, ro, s);
            ClaimStatus status = c.status;
            if (status < ClaimStatus.Accepted || status > ClaimStatus.Missing) continue;
            // INVARIANT: what is merged is what was revealed.
            if (next == bodies.length || Ids.body(bodies[next]) != c.digest) revert CommitmentMismatch();
            bytes32 payload = bodies[next++].out;
            if (status == ClaimStatus.Accepted) payloads[s] = payload;
        }
    }

    /// @dev Reverts unless it is the caller's turn to merge the round; returns the turn.
    function _requireTurn(Book storage b, JobId jobId, JobParams memory p, uint32 r, Round storage ro)
        private
        view
        returns (uint16)
    {
        (bool open, uint256 at) = _turnOf(b, jobId, p, r, ro);
        // INVARIANT: a round is merged once, and again only while nothing but its merge's backing keeps the next one from starting.
        if (!open || isVoided(b.jobs[jobId])) revert WrongPhase(jobId, r);
        // INVARIANT: the aggregator merges until its time is over, then slot owners in seed order; no convicted one.
        address merger = mergerOf(b, jobId, r);
        if (msg.sender != merger) revert NotYourTurn(merger);
        return uint16(at);
    }

    /// @dev The merge that stands gives way to one of the same outputs: its stake returns, and it is not paid.
    function _replace(Book storage b, IStakeVault vault, JobId jobId, uint32 r, bytes32 out, bytes32 out2, uint16 rounds) private {
        Job storage j = b.jobs[jobId];
        Round storage ro = b.rounds[jobId][r];
        // INVARIANT: who merges again claims the same outputs: what stands on them stays.
        if (out != ro.nextShared || out2 != ro.nextOuter) revert CommitmentMismatch();
        // INVARIANT: who merges again lets the next round start.
        if (r + rounds < j.started) revert NotBacked(r);

        // INVARIANT: no two claims share an id: what is claimed after a merge that gave way carries a higher attempt.
        j.attempt += 1;
        Settling.giveBack(vault, ro.mergeClaim, b.claims[ro.mergeClaim], ClaimStatus.Void);
    }

    /// @dev The merge turn now: each lasts mergeSeconds.
    function turn(JobParams memory p, Round storage ro) internal view returns (uint256) {
        return uint256(ro.turn) + (block.timestamp - ro.mergeOpens) / p.merge.turnSeconds;
    }

    /// @dev The turn of a round that is to be merged, or merged again: then the turns after its first merger's go round in the first half of its window.
    function _turnOf(Book storage b, JobId jobId, JobParams memory p, uint32 r, Round storage ro)
        private
        view
        returns (bool open, uint256 at)
    {
        if (ro.phase == Phase.Merging) return (true, turn(p, ro));
        uint256 since = _unbackedSince(b, jobId, p, r, ro);
        if (since == 0) return (false, 0);
        uint256 passed = (block.timestamp - since) / p.merge.turnSeconds;
        return (passed != 0, (ro.turn + passed) % (uint256(ro.accepted) + 1));
    }

    /// @dev When nothing but a merge's backing began to keep the next round from starting; 0: something else does, or nothing.
    function _unbackedSince(Book storage b, JobId jobId, JobParams memory p, uint32 r, Round storage ro)
        private
        view
        returns (uint256)
    {
        Job storage j = b.jobs[jobId];
        uint32 next = j.started;
        if (ro.phase != Phase.Lead || r + ro.backed >= next || !_hasNext(j, p) || j.lingering != 0) return 0;
        Round storage last = b.rounds[jobId][next - 1];
        if (last.phase != Phase.Lead && last.phase != Phase.Failed) return 0;
        uint256 since = last.mergedAt < last.mergeOpens ? last.mergeOpens : last.mergedAt;
        uint256 half = ro.mergedAt + p.windows.challengeSeconds / 2;
        for (uint32 settled = j.settled; settled > 0; settled--) {
            uint256 freed = b.rounds[jobId][settled - 1].mergeOpens;
            if (freed >= half) continue;
            if (freed <= since) break;
            // INVARIANT: whose stake comes free as a round settles has a turn to back its merge with it; that turn comes on top.
            if (block.timestamp < freed + p.merge.turnSeconds) return 0;
            half += p.merge.turnSeconds;
            break;
        }
        // INVARIANT: a merge that is being judged stays until the verdict; once half of its window is over, to wait for the rest is faster
        // than another one.
        if (block.timestamp >= half || b.claims[ro.mergeClaim].openGames != 0) return 0;
        return since;
    }

    /// @dev A convicted merge: what was built on it is void without fault, and the round merges again from the same mergeIn.
    /// @return owed What the void rounds' work and witnesses are paid from the slash; `release` hands it out.
    function _rewind(
        Book storage b,
        JobParams memory p,
        Claim storage c,
        Job storage j,
        Round storage ro
    ) private returns (uint256 owed) {
        (JobId jobId, uint32 r) = (c.job, c.round);
        for (uint32 k = r + 1; k < j.started; k++) {
            Round storage later = b.rounds[jobId][k];
            j.lingering += later.openGames;
            if (later.phase == Phase.Failed) j.failed -= 1;
            _dropSilent(later);
            uint256 fees = later.witnesses * uint256(p.roles[0].witnessFee);
            if (fees != 0) b.rewound[Draws.auditId(jobId, k, later.attempt)] = true;
            // Duties are paid from the escrow: what they cost comes back to it.
            j.escrow += uint128(fees);
            owed += fees + Settling.worth(p, later);
            later.due = true;
            later.phase = Phase.Void;
            emit IJobMarket.RoundVoid(jobId, k, later.attempt);
        }
        // INVARIANT: no two claims share an id: what is claimed after a rewind carries a higher attempt.
        j.attempt += 1;
        j.started = r + 1;
        b.barred[jobId][c.worker] = true;
        ro.phase = Phase.Merging;
        ro.mergeClaim = NO_CLAIM;
        ro.turn += 1;
        ro.mergeOpens = uint64(block.timestamp);
    }

    /// @dev Once revealing is over, who was silent is owed nothing.
    function _dropSilent(Round storage ro) private {
        if (phaseOf(ro) >= Phase.Attesting) ro.committed = ro.revealed;
    }

    /// @dev Reverts unless every merge that round r would stand on answers for it.
    function _requireBacked(Book storage b, JobId jobId, uint32 settled, uint32 r) private view {
        for (uint32 q = settled; q < r; q++) {
            Round storage below = b.rounds[jobId][q];
            // INVARIANT: a merge's stake covers the pay of every round that its conviction would void.
            if (below.phase == Phase.Lead && q + below.backed < r) revert NotBacked(q);
        }
    }

    /// @dev INVARIANT: what a stranger writes into a log is bounded.
    function requireCid(bytes calldata cid) internal pure {
        if (cid.length > MAX_CID) revert CidTooLong(cid.length);
    }

    // -- inside: claims and stakes

    function _write(Claim storage c, JobId jobId, uint32 r, uint32 attempt, uint32 slot, uint32 transitions) private {
        c.job = jobId;
        c.worker = msg.sender;
        c.round = r;
        c.attempt = attempt;
        c.slot = slot;
        c.status = ClaimStatus.Joined;
        c.transitions = transitions;
    }

    function _writeMerge(Book storage b, JobId jobId, uint32 r) private returns (ClaimId claimId, Claim storage c) {
        uint32 attempt = b.jobs[jobId].attempt;
        claimId = Ids.claim(jobId, r, attempt, MERGE);
        c = b.claims[claimId];
        _write(c, jobId, r, attempt, MERGE, 1);
        c.status = ClaimStatus.Accepted;
        c.claimedAt = uint40(block.timestamp);
    }

    function ownClaim(Book storage b, JobId jobId, uint32 r, Round storage ro, uint32 slot)
        internal
        view
        returns (ClaimId claimId, Claim storage c)
    {
        (claimId, c) = Settling.claimAt(b, jobId, r, ro, slot);
        if (c.worker != msg.sender) revert NotSlotOwner(slot);
    }
}
