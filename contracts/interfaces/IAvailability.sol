// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket} from "./IJobMarket.sol";
import {IStakeVault} from "./IStakeVault.sol";
import {IValidator} from "./IValidator.sol";

/// @title IAvailability
/// @notice Bonded demands for data that cannot be had: payloads while receipts are given, dataset rows at any time.
///
///   demand  Open -> Answered | Missing | Closed
///
/// What is demanded is posted within answerSeconds, and the bond goes as a lost game's does: 60 % to who had the data. Or it is not:
/// the bond returns, the payload cannot be accepted, and a row that nobody has voids the job.
interface IAvailability {
    enum Status { None, Open, Answered, Missing, Closed }

    /// @param subject The claim whose payload is demanded, or the job whose row is.
    /// @param beacon The block whose hash names a payload's leaves.
    /// @param deadline Answers count up to and including this second.
    /// @param row Of the dataset; 0 for a payload.
    /// @param next Leaves of the row that are posted.
    struct Demand {
        bytes32 subject;
        address asker;
        Status status;
        uint64 beacon;
        uint64 deadline;
        uint32 row;
        uint32 next;
    }

    /// @notice All demands for one claim's payload.
    /// @param count So far; the next one's number.
    /// @param until The latest deadline.
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

    event PayloadDemanded(
        bytes32 indexed demand,
        bytes32 indexed job,
        bytes32 indexed claim,
        address asker,
        uint32 round,
        uint32 slot,
        uint64 beacon,
        uint64 deadline
    );
    event RowDemanded(
        bytes32 indexed demand, bytes32 indexed job, uint32 indexed row, address asker, uint64 deadline
    );
    /// @param index Of the leaf in the dataset.
    event RowPosted(bytes32 indexed demand, uint32 indexed index, bytes leaf);
    event Settled(bytes32 indexed demand, bytes32 indexed subject, Status status, address answerer);

    // -- payloads

    /// @notice Demands four leaves of the payload of a slot that has revealed, while receipts are given. Locks a game's bond.
    function unavailable(bytes32 job, uint32 round, uint32 slot) external returns (bytes32 demand);
    /// @notice Posts them; anyone. 60 % of the bond to the slot's worker, the rest burned.
    /// @param body What the claim said; `code` the encode Program's parts; `shown` the leaves in `leavesOf`'s order.
    function answer(
        bytes32 demand, IJobMarket.Body calldata body, IValidator.Code calldata code, Shown[] calldata shown
    ) external;
    /// @notice After the deadline: the payload is missing, the bond returns. Anyone.
    function settle(bytes32 demand) external;

    // -- rows

    /// @notice Demands a row of the job's dataset. Locks a game's bond.
    function demandRow(bytes32 job, uint32 row) external returns (bytes32 demand);
    /// @notice Posts the row's leaves, in order, in one transaction or several; anyone. 60 % of the bond to who posts the last one.
    /// @param tree The dataset's tree: its root without the header.
    function answerRow(bytes32 job, uint32 row, bytes32 tree, Row[] calldata rows) external;
    /// @notice After the deadline: the job is void, the bond returns, and who demanded the row is the prover. Anyone.
    function voidForRow(bytes32 job, uint32 row) external;

    // -- views

    /// @notice Whether a demand for the claim's payload ended unanswered. Reverts while one is open.
    function missing(bytes32 claim) external view returns (bool);
    function demand(bytes32 id) external view returns (Demand memory);
    function asked(bytes32 claim) external view returns (Asked memory);
    /// @notice The word that names the leaves of a payload's demand: known from the block after it on.
    function seedOf(bytes32 demand) external view returns (bytes32);
    function payloadDemandId(bytes32 claim, uint32 n) external pure returns (bytes32);
    function rowDemandId(bytes32 job, uint32 row) external pure returns (bytes32);
    function market() external view returns (IJobMarket);
    function vault() external view returns (IStakeVault);
}
