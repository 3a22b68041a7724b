// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Refund} from "./IStakeVault.sol";
import {AuditId, ClaimId, JobId} from "../types/Ids.sol";

enum JobStatus { None, Active, Cancelled, Done, Void }

enum Phase { None, Joining, Sealing, Training, Revealing, Attesting, Freezing, Merging, Lead, Final, Failed, Void }

enum ClaimStatus { None, Joined, Committed, Revealed, Accepted, Excluded, Missing, Absent, Final, Convicted, Void }

/// @notice What a job fixes for ever, in groups; its hash is part of the JobId.
/// @dev Fields at values that are refused today are there so that no id moves when they are allowed (JobRules says which).
/// @param roles One to four kinds of slots. Slots are numbered through: the first role's come first.
struct JobParams {
    SpecRef spec;
    Genesis genesis;
    RoundSchedule schedule;
    Windows windows;
    Merging merge;
    Pricing prices;
    Role[] roles;
}

/// @param digest SHA-256 of the spec's one block: the digest in its CID.
/// @param profile, opset The arithmetic that the Programs are in, and the kinds of ops that they may have.
struct SpecRef {
    bytes32 digest;
    uint16 profile;
    uint16 opset;
}

/// @param sharedDepth b: depth of the shared and of the outer subtree.
struct Genesis {
    bytes32 shared;
    bytes32 outer;
    uint8 sharedDepth;
}

/// @param maxLead Rounds that may run ahead of the last settled one, this one counted.
/// @param maxFail More failed rounds than this end the job.
/// @param baseLag d: round r starts from the merge of round r - d. Today 1.
struct RoundSchedule {
    uint32 rounds;
    uint16 maxLead;
    uint16 maxFail;
    uint8 baseLag;
}

/// @param challengeSeconds From the reveal (or merge) of a claim: how long games may be opened on it.
/// @param answerSeconds Within which a demand for data must be answered.
/// @param auditSeconds A witness's time to commit, then the owners' to publish their traces, then the witness's to reveal.
/// @param clockSeconds T of each side's clock in a game.
/// @param stepSeconds tau: what every further game that the defender has open, on whatever claims, adds to its clock.
struct Windows {
    uint32 joinSeconds;
    uint32 challengeSeconds;
    uint32 answerSeconds;
    uint32 auditSeconds;
    uint32 clockSeconds;
    uint32 stepSeconds;
}

/// @param turnSeconds Of each merge turn: the aggregator's, then each accepted slot owner's.
/// @param aggregator Merges first; 0: nobody does.
struct Merging {
    bytes32 program;
    address aggregator;
    uint32 turnSeconds;
    uint128 price;
    uint128 stake;
}

/// @param bond What a challenger locks for each game, beside the price of gas.
/// @param gasPrice Tokens for one gas at the cap.
/// @param feeCap The cap, wei for one gas: above it gas costs no more than at it.
struct Pricing {
    uint128 bond;
    uint128 witnessStake;
    uint128 gasPrice;
    uint64 feeCap;
}

/// @notice What the slots of one kind do and earn.
/// @param datasetRoot tensor_root of the i32 tensor of dims (datasetRows, rowLength) that the role's slots draw from.
/// @param zeroPayload The payload root that stands in the merge for a slot without an accepted claim.
/// @param carryDepth Depth of the carry. Today sharedDepth.
/// @param payloadDepth p: depth of one payload subtree.
/// @param carryPeriod Rounds after which a slot starts from a zero carry again; 0: it always does, and nothing of a worker's own
///        state survives a round.
/// @param merged Whether the merge reads the role's payloads. Today it does.
/// @param innerSteps H.
/// @param minSlots Fewer accepted claims than this fail the round.
/// @param slotPrice Also the fine for not revealing.
/// @param witnesses Drawn of every round, for this role's slots.
/// @param inboxLag l: a slot reads the accepted payloads of role `inboxRole` in round r - l. Today 0: of none.
struct Role {
    bytes32 stepProgram;
    bytes32 encodeProgram;
    bytes32 datasetRoot;
    uint32 datasetRows;
    uint32 rowLength;
    bytes32 zeroCarry;
    bytes32 zeroPayload;
    uint8 carryDepth;
    uint8 payloadDepth;
    uint32 carryPeriod;
    bool merged;
    uint32 innerSteps;
    uint16 slots;
    uint16 minSlots;
    uint32 trainSeconds;
    uint32 revealSeconds;
    uint32 attestSeconds;
    uint128 slotPrice;
    uint128 slotStake;
    uint16 witnesses;
    uint128 witnessFee;
    uint8 inboxRole;
    uint8 inboxLag;
}

/// @param started Rounds started so far, voided ones not counted: the next round's number.
/// @param settled Leading rounds that are Final, or Failed with nothing to judge.
/// @param failed Rounds that failed, voided ones not counted.
/// @param attempt Raised by every convicted merge; part of the ids of the claims made after it.
/// @param deposit What a void job still has for those who worked on it, and for its prover.
/// @param feesDue Fees of witnesses who were drawn and are neither paid nor out of time.
/// @param prover Who proved the job invalid; 0 if nobody did.
/// @param lingering Games open on claims of rounds that a convicted merge voided.
struct Job {
    address requester;
    JobStatus status;
    uint32 started;
    uint32 settled;
    uint32 failed;
    uint32 attempt;
    uint128 escrow;
    uint128 paid;
    uint128 refunded;
    uint128 deposit;
    uint128 feesDue;
    address prover;
    uint32 lingering;
}

/// @dev What every claim reads and writes is one word: phase to attestEnds.
/// @param phase As stored: Joining to Freezing are all `Joining` until `freeze`; `phase(job, r)` tells them apart.
/// @param turn Merge turns passed over by convictions, or the turn in which it was first merged since: 0 is the aggregator's, k the
///        k-th accepted slot in seed order.
/// @param silent Owners of slots that were convicted before they gave a receipt: nobody waits for theirs.
/// @param receipts How many were given. `spoke` has the bits of who gave one (s: the owner of slot s, 64 + i: the i-th witness).
/// @param mergeOpens When its merge turns began; of a Failed round, when it failed; of a settled one, when stakes came free.
/// @param mergedAt When it was merged; of a Failed round in which claims were revealed, when it failed.
/// @param witnesses Drawn, once `drawn`.
/// @param demands For payloads of this round, answered or not.
/// @param backed Later rounds whose pay the merge's stake covers.
/// @param due Void, and its work is still to be paid from the slash that voided it.
/// @param named Receipts that name a slot, its owner's not counted: a byte a slot (libraries/Receipts.sol).
/// @param nextShared, nextOuter The next round's base: outputs of the standing merge; this round's own base if it failed.
struct Round {
    Phase phase;
    uint32 attempt;
    uint16 joined;
    uint16 committed;
    uint16 revealed;
    uint16 accepted;
    uint16 turn;
    uint40 commitEnds;
    uint40 revealEnds;
    uint40 attestEnds;
    uint64 joinEnds;
    uint64 seedBlock;
    uint32 openGames;
    uint64 mergeOpens;
    uint16 silent;
    uint64 mergedAt;
    uint16 receipts;
    uint16 witnesses;
    bool drawn;
    uint16 demands;
    uint16 backed;
    bool due;
    bytes32 seed;
    bytes32 base;
    bytes32 outer;
    bytes32 mergeIn;
    uint256 spoke;
    uint256[2] named;
    uint256 mask;
    ClaimId mergeClaim;
    bytes32 nextShared;
    bytes32 nextOuter;
}

/// @dev What a game writes is one word, which is never zero: transitions to games.
/// @param claimedAt When it was revealed or merged (seconds); the challenge window starts here.
/// @param transitions T: innerSteps + 1 of a slot, 1 of a merge.
/// @param slot 0xffffffff for a merge.
/// @param convictedAt The transition that was proven wrong; 0 where none was (a clock ran out, two signatures).
/// @param games Opened on it so far.
/// @param carries S_0 holds the carry of its worker's claim of the slot in the round before, not zero.
/// @param digest The commitment, and from the reveal on keccak(abi.encode(Body)).
struct Claim {
    JobId job;
    address worker;
    ClaimStatus status;
    uint40 claimedAt;
    uint32 round;
    uint32 transitions;
    uint32 attempt;
    uint32 slot;
    uint32 openGames;
    uint32 convictedAt;
    uint32 games;
    bool carries;
    bytes32 digest;
}

/// @notice What a claim says: T transitions from S_0 to node(out, out2), their states under `traceRoot`.
struct Body {
    bytes32 traceRoot;
    bytes32 out;
    bytes32 out2;
}

/// @param nonce Drawn at commit: without it, a copied trace could be told from its commitment.
/// @param proofT node(out, out2) is leaf T of the trace: siblings upward.
/// @param carries It starts from the carry of the worker's own claim of the slot in the round before; else from zero.
struct Reveal {
    Body body;
    bytes32 nonce;
    bytes32[] proofT;
    bytes traceCid;
    bytes payloadCid;
    bool carries;
}

/// @notice Bit s of `mask`: the speaker fetched and decoded slot s's payload.
/// @param who s: the owner of slot s; 64 + i: the round's i-th drawn witness.
/// @param signature Of the typed data Receipt(job, round, attempt, who, mask), by the speaker or its delegate.
struct Receipt {
    uint32 who;
    uint256 mask;
    bytes signature;
}

/// @notice What a game must know when it opens.
/// @param games Opened on the claim before this one.
struct GameTerms {
    address defender;
    uint32 transitions;
    uint32 games;
    uint32 clockSeconds;
    uint32 stepSeconds;
    uint256 bond;
}

/// @notice What the market knows of one transition of a claim.
/// @param program Root of the Program that it runs.
/// @param stateZero Of the first transition, S_0, computed (docs/protocol.md, section 3); of any other 0.
struct Facts {
    bytes32 program;
    bytes32 stateZero;
    bytes32 datasetRoot;
    uint32 datasetRows;
    uint32 rowLength;
    bytes32 seed;
    uint32 round;
    uint32 slot;
}

/// @title IJobMarket
/// @notice Jobs, rounds, slots, claims and pay (docs/protocol.md, sections 3, 4 and 7).
///
///   job     Active -> Done | Cancelled -> Done | Void -> Done
///   round   Joining -> Sealing -> Training -> Revealing -> Attesting -> Freezing -> Merging -> Lead | Failed -> Final | Void
///   claim   Joined -> Committed -> Revealed -> Accepted | Excluded | Missing | Absent -> Final | Convicted | Void
///
/// Phases follow from timestamps and advance early when everybody has acted. Anyone may call startRound, seal, freeze, finalize,
/// release and finish.
interface IJobMarket {
    event JobCreated(JobId indexed job, address indexed requester, bytes32 specDigest, uint256 escrow, uint256 deposit);
    event JobCancelled(JobId indexed job, uint256 refunded);
    event JobVoid(JobId indexed job, address indexed prover);
    /// @dev escrow = paid + refunded + fees still due; `returned` of the deposit goes back to the requester.
    event JobDone(JobId indexed job, uint256 paid, uint256 refunded, uint256 returned);
    event RoundStarted(JobId indexed job, uint32 indexed round, uint32 attempt, bytes32 base, bytes32 outer);
    event Joined(JobId indexed job, uint32 indexed round, uint32 indexed slot, address worker);
    event Left(JobId indexed job, uint32 indexed round, uint32 indexed slot, address worker);
    event RosterClosed(JobId indexed job, uint32 indexed round, uint64 seedBlock);
    event Sealed(JobId indexed job, uint32 indexed round, bytes32 seed);
    event Committed(JobId indexed job, uint32 indexed round, uint32 indexed slot, bytes32 commitment);
    event Revealed(
        JobId indexed job,
        uint32 indexed round,
        uint32 indexed slot,
        ClaimId claim,
        address worker,
        bytes32 traceRoot,
        bytes32 out,
        bytes32 out2,
        bytes traceCid,
        bytes payloadCid
    );
    /// @dev A claim that was just revealed starts from the carry of its worker's claim in the round before.
    event Carried(JobId indexed job, uint32 indexed round, uint32 indexed slot);
    event Attested(JobId indexed job, uint32 indexed round, uint32 indexed who, address account, uint256 mask);
    event Frozen(JobId indexed job, uint32 indexed round, bytes32 mergeIn, uint256 mask);
    event Merged(
        JobId indexed job, uint32 indexed round, ClaimId claim, address worker, bytes32 out, bytes32 out2, bytes checkpointCid
    );
    /// @dev The standing merge's stake now covers the pay of `rounds` rounds after it.
    event Backed(JobId indexed job, uint32 indexed round, uint16 rounds);
    event RoundFinal(JobId indexed job, uint32 indexed round);
    event RoundFailed(JobId indexed job, uint32 indexed round);
    event RoundVoid(JobId indexed job, uint32 indexed round, uint32 attempt);
    /// @dev slot 0xffffffff: the merger.
    event Paid(JobId indexed job, uint32 indexed round, uint32 indexed slot, address account, uint256 amount);
    event Convicted(ClaimId indexed claim, JobId indexed job, uint32 indexed round, uint32 slot, address worker, address challenger);

    // -- the requester

    /// @notice Opens a job and pulls `escrow` >= rounds x (slots x slotPrice + mergePrice + witnesses x witnessFee) from the caller
    /// into the vault, and with it a deposit of maxLead + 1 rounds' pay: a job that is proven invalid pays its workers from that.
    function create(JobParams memory params, uint256 nonce, uint256 escrow) external returns (JobId job);
    function createWithPermit(
        JobParams memory params, uint256 nonce, uint256 escrow, uint256 deadline, uint8 v, bytes32 r, bytes32 s
    ) external returns (JobId job);
    /// @notice Stops new rounds and refunds all escrow that no round in flight has reserved; `finish` refunds the rest.
    function cancel(JobId job) external;

    // -- anyone

    function startRound(JobId job, uint32 round) external;
    /// @notice First call after the join window: closes the roster and fixes seedBlock = next block (a full roster needs no such call).
    /// Call from seedBlock + 1 to seedBlock + 256: sets the seed. Later, or with too small a roster: the round fails, stakes back.
    function seal(JobId job, uint32 round) external;
    /// @notice Hands in receipts; the first of each speaker counts.
    function attest(JobId job, uint32 round, Receipt[] calldata receipts) external;
    /// @notice Fixes the accepted claims and mergeIn; burns slotPrice of the stakes of absent workers.
    /// @param bodies Of the revealed slots, in order.
    function freeze(JobId job, uint32 round, Body[] calldata bodies) external;
    /// @notice Pays a round that nobody can overturn any more; or fails a round that everybody entitled has failed to merge.
    function finalize(JobId job, uint32 round) external;
    /// @notice Gives back the stakes of a Void round once no game about it is open; pays its committed claims from the slash that
    /// voided it. Of a void job: also ends the first unsettled round, whose committed claims the deposit pays.
    function release(JobId job, uint32 round) external;
    /// @notice Refunds what is left once no round is in flight and none can start.
    function finish(JobId job) external;

    // -- workers, aggregator

    function join(JobId job, uint32 round, uint32 slot) external;
    /// @notice Gives a slot back in the first half of the join window.
    function leave(JobId job, uint32 round, uint32 slot) external;
    function commit(JobId job, uint32 round, uint32 slot, bytes32 commitment) external;
    function reveal(JobId job, uint32 round, uint32 slot, Reveal calldata opened) external;
    /// @notice Claims the merge; locks mergeStake, and the pay of `rounds` later rounds, which may start on it. A merge whose backing alone
    /// keeps the next round from starting is merged again, with the same outputs, by the turns after its first merger's, in the first half
    /// of its window: it is then Void.
    function merge(
        JobId job, uint32 round, bytes32 out, bytes32 out2, bytes calldata checkpointCid, uint16 rounds
    ) external;
    /// @notice The merger of a round in Lead: locks the pay of `rounds` more later rounds.
    function back(JobId job, uint32 round, uint16 rounds) external;

    // -- the game

    /// @notice Counts a game in. Reverts `WindowClosed` unless `windowOpen(claim)`.
    function onOpen(ClaimId claim, Body calldata body) external returns (GameTerms memory);
    /// @notice The claim is wrong: slashes its stake; a merge's later rounds become Void, and their work is paid from the slash before
    /// anybody shares it. Reverts `ClaimClosed` unless `live(claim)`.
    /// @param t The step that was proved wrong; 0 where none was (a missed deadline, padding of the trace, an equivocation, a carry
    ///        that was not shown).
    /// @param winners Who shares the prize, the one who convicted first.
    /// @param refunds Gas that challengers spent on games still open; here `amount` is gas.
    function onConvicted(ClaimId claim, uint32 t, address[] calldata winners, Refund[] calldata refunds) external;
    /// @notice The challenge failed, or the carry was shown: counts the game out. Reverts `ClaimClosed` unless `live(claim)`.
    function onRejected(ClaimId claim) external;

    // -- the validator, the witnesses, demands

    /// @notice The validator, or a demand for a row that nobody answered: ends the job; `release` and `finish` pay what it owes.
    function onInvalid(JobId job, address prover) external;
    /// @notice The witnesses' contract: how many were drawn for the round; reserves their fees.
    function onDrawn(JobId job, uint32 round, uint16 count) external returns (uint16 paid);
    /// @notice The witnesses' contract: pays one drawn fee, or gives it up (account 0).
    function onWitnessed(JobId job, address account) external;
    /// @notice The demands' contract: somebody asks for slot's payload, or the carry that it starts from; `freeze` will ask whether it was
    /// answered. A demand for a carry counts as a game.
    function onDemanded(JobId job, uint32 round, uint32 slot, bool carry) external;

    // -- views

    /// @notice Seconds within which the chain takes a transaction that nobody censors, and for how long one may be held back: the clocks
    /// of jobs are no shorter than a game needs on such a chain.
    function inclusionSeconds() external view returns (uint256);
    function censorSeconds() external view returns (uint256);
    function job(JobId job) external view returns (Job memory);
    function params(JobId job) external view returns (JobParams memory);
    function round(JobId job, uint32 round) external view returns (Round memory);
    function phase(JobId job, uint32 round) external view returns (Phase);
    /// @notice The claim with its effective status (Void once its round is).
    function claim(ClaimId claim) external view returns (Claim memory);
    /// @notice The id of the current attempt's claim of a slot; slot 0xffffffff: of the standing merge (0 if none).
    function claimIdOf(JobId job, uint32 round, uint32 slot) external view returns (ClaimId);
    /// @notice Who may merge now, or merge again: 0 if nobody (turn passed to a convicted or barred owner, or all turns over).
    function mergerOf(JobId job, uint32 round) external view returns (address);

    /// @notice What a game on a claim of the job costs its challenger now.
    function bondOf(JobId job) external view returns (uint256);
    function barred(JobId job, address account) external view returns (bool);
    /// @notice Whether a convicted merge voided the round of this audit: who agreed in it is paid.
    function rewound(AuditId audit) external view returns (bool);
    /// @notice The transition that convicted the claim; 0: not convicted, or without one.
    function convictedAt(ClaimId claim) external view returns (uint32);

    /// @notice Whether a verdict on the claim still counts. A game on a claim that is not live closes: bond back, no callback.
    function live(ClaimId claim) external view returns (bool);
    /// @notice Whether a game may be opened on the claim now.
    function windowOpen(ClaimId claim) external view returns (bool);
    /// @notice What is certain of transition t (1..T) of the claim. Reverts `ClaimClosed` for t = 1 unless `live(claim)`.
    /// @param carried Of t = 1: the three words of the Body that S_0's carry comes from; where that is zero, they are not read.
    function factsOf(ClaimId claim, uint32 t, bytes32[] calldata carried) external view returns (Facts memory);
}
