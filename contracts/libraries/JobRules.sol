// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket} from "../interfaces/IJobMarket.sol";
import {JobInvalid} from "./Errors.sol";
import {Merkle} from "./Merkle.sol";
import {Prices} from "./Prices.sol";
import {Program} from "./Program.sol";

/// @title JobRules
/// @notice Floors and ceilings of a job's parameters: a job that passes can be trained, judged and paid within block gas.
library JobRules {
    uint256 internal constant MAX_SLOTS = 64;
    uint256 internal constant MAX_LEAD = 16;
    uint256 internal constant MAX_DEPTH = 24;
    uint256 internal constant MAX_STEPS = 1 << 24;
    uint256 internal constant MAX_ROUNDS = 1 << 20;
    uint256 internal constant MIN_CLOCK = 60;
    /// @dev Moves of one side in the longest game: 5 reveals of a trace, 3 of a graph, 4 of a tensor, leaf, 2 of partials, and the first.
    uint256 internal constant GAME_MOVES = 16;
    /// @dev A clock holds this many materialised steps: games on one's own claim lock nobody's stake for long.
    uint256 internal constant CLOCK_STEPS = 4;
    /// @dev A merge's stake is at most this many slot's stakes: who can work can merge.
    uint256 internal constant MERGE_SLOTS = 2;
    uint256 internal constant MAX_WINDOW = 30 days;
    /// @dev Words of a dataset's row: its leaves fit seventeen parts, and the gas of all blocks of a few minutes.
    uint256 internal constant MAX_ROW = 1 << 18;
    /// @dev Leaves of a row that one transaction posts: below 128 KiB in the deepest dataset.
    uint256 internal constant PART = 64;
    /// @dev Speakers have bits: 64 slots, then the witnesses.
    uint256 internal constant MAX_WITNESSES = 64;

    /// @notice Reverts `JobInvalid` with the first group of parameters that is out of bounds.
    /// @dev The Python twin (job_rules.check_params) names the parameter itself; the SDK asks it before it sends anything.
    /// @param inclusion Seconds within which the chain takes a transaction.
    /// @param censor Seconds for which one may be held back.
    function check(IJobMarket.JobParams memory p, uint256 unbondSeconds, uint256 inclusion, uint256 censor) internal pure {
        _require(p.profile == 1 && p.opset == 1, "profile");
        _require(p.stepProgram != 0 && p.encodeProgram != 0 && p.mergeProgram != 0, "programs");
        _require(p.datasetRows > 0 && p.rowLength > 0 && p.rowLength <= MAX_ROW, "dataset");
        _require(p.slots <= MAX_SLOTS && p.minSlots > 0 && p.minSlots <= p.slots, "slots");
        // The clock of a state is an i32: the last step of the last round must fit.
        _require(p.rounds > 0 && p.innerSteps > 0 && uint256(p.innerSteps) * p.rounds <= MAX_STEPS, "rounds");
        _require(p.maxLead > 0 && p.maxLead <= MAX_LEAD, "maxLead");
        // INVARIANT: a merge's payload half is at least as deep as its base half, or it could not hold it.
        _require(
            p.sharedDepth <= MAX_DEPTH && p.payloadDepth <= MAX_DEPTH
                && p.payloadDepth + Merkle.depthOf(p.slots) >= p.sharedDepth,
            "depths"
        );
        _require(
            _isWindow(p.joinSeconds, inclusion) && _isWindow(p.trainSeconds, inclusion)
                && _isWindow(p.revealSeconds, inclusion) && _isWindow(p.attestSeconds, inclusion)
                && _isWindow(p.mergeSeconds, inclusion) && _isWindow(p.challengeSeconds, inclusion),
            "windows"
        );
        // INVARIANT: every game that is open lengthens the defender's clock in the next: many games starve nobody. A clock covers every
        // move of a game on this chain, and its steps are small against it.
        _require(
            p.clockSeconds >= clockFloor(inclusion, censor) && p.clockSeconds <= MAX_WINDOW && p.stepSeconds > 0
                && CLOCK_STEPS * uint256(p.stepSeconds) <= p.clockSeconds,
            "clocks"
        );
        // INVARIANT: unbonding takes longer than a challenge window and both clocks.
        _require(uint256(p.challengeSeconds) + 2 * uint256(p.clockSeconds) <= unbondSeconds, "unbonding");
        _require(p.feeCap > 0 && p.feeCap <= Prices.MAX_FEE_CAP, "gas");
        // INVARIANT: a lie costs at least ten times what it earns, and more than the gas of its games; a stake covers every fine; who
        // can stake on a slot can stake on a merge.
        _require(
            p.slotStake > 0 && p.slotStake >= Prices.stakeFloor(p.slotPrice, p.gasPrice) && p.mergeStake > 0
                && p.mergeStake >= Prices.stakeFloor(p.mergePrice, p.gasPrice)
                && p.mergeStake <= MERGE_SLOTS * uint256(p.slotStake),
            "stakes"
        );
        // INVARIANT: a false challenge costs at least the step that answers it.
        _require(p.bond > 0 && p.bond >= Prices.bondFloor(p.slotPrice, p.innerSteps), "bond");
        // INVARIANT: stakes and bonds fit the vault's locks: no job can be without challengers.
        _require(
            (p.slotStake | p.mergeStake | p.witnessStake) <= type(uint88).max
                && Prices.dearestRowBond(p.bond, p.gasPrice, rowLeaves(p.rowLength)) <= type(uint88).max,
            "locks"
        );
        // INVARIANT: a witness's word costs at least twenty times what it is paid, and less than half of what a worker loses
        // that convicts itself to take it along; who was drawn has spoken before the claim can no longer be challenged.
        _require(
            p.witnesses == 0
                || (p.witnesses <= MAX_WITNESSES && p.witnessFee > 0
                    && p.witnessStake >= Prices.witnessFloor(p.witnessFee)
                    && 2 * uint256(p.witnessStake) < p.slotStake && _isWindow(p.auditSeconds, inclusion)
                    && p.challengeSeconds
                        >= uint256(p.revealSeconds) + p.attestSeconds + 3 * uint256(p.auditSeconds)),
            "witnesses"
        );
        // INVARIANT: a row that somebody holds can be posted in time, however long it is.
        _require(
            _isWindow(p.answerSeconds, inclusion) && p.answerSeconds >= answerFloor(p.rowLength, inclusion), "answers"
        );
        // INVARIANT: a carry that survives a round is public, and as deep as its payload: out2 is a carry quarter.
        _require(p.carry == 0 || (p.carry == 1 && p.payloadDepth == p.sharedDepth), "carry");
    }

    /// @notice The most leaves that hold words of one row.
    function rowLeaves(uint256 rowLength) internal pure returns (uint256) {
        return (rowLength + Program.CHUNK - 2) / Program.CHUNK + 1;
    }

    /// @notice The least time in which the longest answer can be posted: a commitment and its part, one after the other.
    function answerFloor(uint256 rowLength, uint256 inclusion) internal pure returns (uint256) {
        return 2 * inclusion * ((rowLeaves(rowLength) + PART - 1) / PART);
    }

    /// @notice The pay of one round in which everybody is paid.
    function roundPay(IJobMarket.JobParams memory p) internal pure returns (uint256) {
        return uint256(p.slots) * p.slotPrice + p.mergePrice + uint256(p.witnesses) * p.witnessFee;
    }

    /// @notice The shortest clock: each move of a game in its time, and one of them held back.
    function clockFloor(uint256 inclusion, uint256 censor) internal pure returns (uint256) {
        uint256 moves = GAME_MOVES * inclusion + censor;
        return moves > MIN_CLOCK ? moves : MIN_CLOCK;
    }

    /// @dev Long enough for one transaction.
    function _isWindow(uint32 seconds_, uint256 inclusion) private pure returns (bool) {
        return seconds_ > 0 && seconds_ >= inclusion && seconds_ <= MAX_WINDOW;
    }

    function _require(bool holds, bytes32 parameter) private pure {
        if (!holds) revert JobInvalid(parameter);
    }
}
