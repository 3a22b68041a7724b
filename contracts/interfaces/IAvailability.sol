// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Body, IJobMarket} from "./IJobMarket.sol";
import {IPrecommitted} from "./IPrecommitted.sol";
import {IStakeVault} from "./IStakeVault.sol";
import {Code} from "./IValidator.sol";
import {ClaimId, JobId} from "../types/Ids.sol";

enum Status { None, Open, Answered, Missing, Closed }

/// @param subject The claim whose payload is demanded, or the job whose row is.
/// @param beacon The block whose hash names a payload's leaves.
/// @param deadline Answers count up to and including this second.
/// @param row Of the dataset; 0 for a payload, 1 for the carry that a claim starts from.
/// @param next Leaves of the row that are posted.
/// @param wanted The leaves of a payload that the asker names.
struct Demand {
    bytes32 subject;
    address asker;
    Status status;
    uint64 beacon;
    uint64 deadline;
    uint32 row;
    uint32 next;
    uint256 wanted;
}

/// @notice All demands for one claim's payload and the carry that it starts from.
/// @param count So far; the next one's number.
/// @param until The latest second in which an answer keeps the claim in the merge.
struct Asked {
    uint32 count;
    uint32 open;
    uint64 until;
    bool missing;
}

/// @param leaf The bytes of a leaf: 1 KiB, or what is left.
/// @param leafProof From the leaf to the tensor's tree.
/// @param entryProof From the tensor's root to node(out, out2).
/// @param descriptor Of the op behind the entry; empty where the entry is a tensor of the encode's input.
/// @param descriptorProof From its leaf to the ops' root.
struct Shown {
    bytes leaf;
    bytes32[] leafProof;
    bytes32[] entryProof;
    bytes descriptor;
    bytes32[] descriptorProof;
}

/// @notice A leaf of the dataset: its bytes, and the way to the dataset's tree.
struct Row {
    bytes leaf;
    bytes32[] proof;
}

/// The demand is not open.
error DemandClosed(bytes32 demand);
/// The dataset has no such row.
error NoSuchRow(uint32 row);
/// The leaves are not as many, or not as long, as was demanded.
error AnswerWrong();

/// @title IAvailability
/// @notice Bonded demands for data that cannot be had: payloads while receipts are given, dataset rows at any time.
///
///   demand  Open -> Answered | Missing | Closed
///
/// What is demanded is posted within answerSeconds: of a payload or a carry, the worker is paid the gas of its answer out of the bond; of a
/// row, who posts it has 60 % of the bond, as a defender has of a lost game's. Or it is not: the bond returns, the payload cannot be accepted, and a row that nobody has voids the job. Who starts from a carry and shows it to
/// nobody is convicted: a demand for it is a game of one move.
interface IAvailability is IPrecommitted {
    event PayloadDemanded(
        bytes32 indexed demand,
        JobId indexed job,
        ClaimId indexed claim,
        address asker,
        uint32 round,
        uint32 slot,
        uint64 beacon,
        uint64 deadline,
        uint256 wanted
    );
    event RowDemanded(
        bytes32 indexed demand, JobId indexed job, uint32 indexed row, address asker, uint64 deadline
    );
    /// @param index Of the leaf in the dataset.
    event RowPosted(bytes32 indexed demand, uint32 indexed index, bytes leaf);
    event SeedKept(bytes32 indexed demand, bytes32 seed);
    event Settled(bytes32 indexed demand, bytes32 indexed subject, Status status, address answerer);

    // -- payloads

    /// @notice Demands eight leaves of the payload of a slot that has revealed, while receipts are given. Locks a game's bond.
    /// @param wanted Four of the leaves, 64 bits each, the first in the lowest: 24 bits name the tensor, by its number among those that
    ///        are not EMPTY, the lower 40 its leaf; each counts modulo what there is. The beacon names the other four.
    function unavailable(JobId job, uint32 round, uint32 slot, uint256 wanted) external returns (bytes32 demand);
    /// @notice The same of the carry that a slot's claim starts from. A claim whose carry is not shown within answerSeconds is not
    /// accepted; one whose carry is not shown within clockSeconds more is convicted, and the asker wins as a challenger does.
    function carryUnavailable(JobId job, uint32 round, uint32 slot, uint256 wanted) external returns (bytes32 demand);
    /// @notice Keeps the word that names a demand's leaves, within 256 blocks of its beacon: an answer may come later, and one that nobody
    /// has kept is then replaced by a word that was known before. Anyone.
    function keepSeed(bytes32 demand) external;
    /// @notice Posts them; anyone. The gas of 0.6 M at the block's base fee, out of the bond, to the slot's worker; the rest returns.
    /// @param body What the claim said, of a carry the claim of the round before; `code` the encode Program's parts; `shown` the leaves, those that the asker named first.
    function answer(bytes32 demand, Body calldata body, Code calldata code, Shown[] calldata shown) external;
    /// @notice After the deadline: the payload is missing, the bond returns; of a carry, the claim is convicted. Anyone.
    function settle(bytes32 demand) external;

    // -- rows

    /// @notice Demands a row of the job's dataset. Locks `rowBondOf`: a game's bond and the gas of posting its leaves.
    function demandRow(JobId job, uint32 row) external returns (bytes32 demand);
    /// @notice Posts a part of the row's leaves; anyone who committed to this call in an earlier block. Every part is paid at once: its
    /// share of the bond goes to who posts it (60 %), the rest is burned.
    /// @param tree The dataset's tree: its root without the header.
    /// @param begin The first of `rows` among the row's leaves. Leaves that others have posted meanwhile are skipped.
    function answerRow(JobId job, uint32 row, bytes32 tree, uint32 begin, Row[] calldata rows) external;
    /// @notice After the deadline: the job is void, the rest of the bond returns, and who demanded the row is the prover. Anyone.
    function voidForRow(JobId job, uint32 row) external;

    // -- views

    /// @notice Whether a demand for the claim's payload ended unanswered. Reverts while one is open.
    function missing(ClaimId claim) external view returns (bool);
    function demand(bytes32 id) external view returns (Demand memory);
    function asked(ClaimId claim) external view returns (Asked memory);
    /// @notice The word that names the leaves of a payload's demand: known from the block after it on.
    function seedOf(bytes32 demand) external view returns (bytes32);
    /// @notice The same, if somebody kept it; else 0.
    function keptSeed(bytes32 demand) external view returns (bytes32);
    /// @notice What the asker of a row locks now.
    function rowBondOf(JobId job, uint32 row) external view returns (uint256);
    function payloadDemandId(ClaimId claim, uint32 n) external pure returns (bytes32);
    function rowDemandId(JobId job, uint32 row) external pure returns (bytes32);
    function market() external view returns (IJobMarket);
    function vault() external view returns (IStakeVault);
}
