// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {JobParams, Pricing, Role, Windows} from "../interfaces/IJobMarket.sol";
import {
    AUDIT_WINDOWS,
    CHUNK,
    CLOCK_STEPS,
    GAME_MOVES,
    MAX_DEPTH,
    MAX_FEE_CAP,
    MAX_LEAD,
    MAX_LOCK,
    MAX_ROW,
    MAX_SLOTS,
    MAX_STEPS,
    MAX_WINDOW,
    MAX_WITNESSES,
    MERGE_SLOTS,
    MIN_CLOCK,
    PART,
    PART_TRANSACTIONS,
    SLOT_WITNESSES
} from "./Constants.sol";
import {JobInvalid} from "./Errors.sol";
import {Merkle} from "./Merkle.sol";
import {Prices} from "./Prices.sol";

/// @title JobRules
/// @notice Floors and ceilings of a job's parameters: a job that passes can be trained, judged and paid within block gas.
library JobRules {
    /// @notice Reverts `JobInvalid` with the first group of parameters that is out of bounds.
    /// @dev The Python twin (job_rules.check_params) names the parameter itself; the SDK asks it before it sends anything.
    /// @param inclusion Seconds within which the chain takes a transaction.
    /// @param censor Seconds for which one may be held back.
    function check(JobParams memory p, uint256 unbondSeconds, uint256 inclusion, uint256 censor) internal pure {
        // Of what may come, jobs of today have one role whose payloads are merged, and start from the merge just before.
        _require(p.roles.length == 1 && p.roles[0].merged, "roles");
        _require(p.schedule.baseLag == 1, "baseLag");
        _require(p.roles[0].inboxRole == 0 && p.roles[0].inboxLag == 0, "inbox");
        Role memory role = p.roles[0];
        Windows memory windows = p.windows;
        Pricing memory prices = p.prices;
        _require(p.spec.profile == 1 && (p.spec.opset == 1 || p.spec.opset == 2), "profile");
        _require(role.stepProgram != 0 && role.encodeProgram != 0 && p.merge.program != 0, "programs");
        _require(role.datasetRows > 0 && role.rowLength > 0 && role.rowLength <= MAX_ROW, "dataset");
        _require(role.slots <= MAX_SLOTS && role.minSlots > 0 && role.minSlots <= role.slots, "slots");
        // The clock of a state is an i32: the last step of the last round must fit.
        _require(
            p.schedule.rounds > 0 && role.innerSteps > 0
                && uint256(role.innerSteps) * p.schedule.rounds <= MAX_STEPS,
            "rounds"
        );
        _require(p.schedule.maxLead > 0 && p.schedule.maxLead <= MAX_LEAD, "maxLead");
        // INVARIANT: a merge's payload half is at least as deep as its base half, or it could not hold it.
        _require(
            p.genesis.sharedDepth <= MAX_DEPTH && role.payloadDepth <= MAX_DEPTH
                && role.carryDepth == p.genesis.sharedDepth
                && role.payloadDepth + Merkle.depthOf(role.slots) >= p.genesis.sharedDepth,
            "depths"
        );
        _require(
            _isWindow(windows.joinSeconds, inclusion) && _isWindow(role.trainSeconds, inclusion)
                && _isWindow(role.revealSeconds, inclusion) && _isWindow(role.attestSeconds, inclusion)
                && _isWindow(p.merge.turnSeconds, inclusion) && _isWindow(windows.challengeSeconds, inclusion),
            "windows"
        );
        // INVARIANT: who is silent when a reveal, a receipt or a merge is due holds the others' stakes no longer than a challenger may.
        _require(
            role.revealSeconds <= windows.challengeSeconds && role.attestSeconds <= windows.challengeSeconds
                && p.merge.turnSeconds <= windows.challengeSeconds,
            "windows"
        );
        // INVARIANT: every game that is open lengthens the defender's clock in the next: many games starve nobody. A clock covers every
        // move of a game on this chain, and its steps are small against it.
        _require(
            windows.clockSeconds >= clockFloor(inclusion, censor) && windows.clockSeconds <= MAX_WINDOW && windows.stepSeconds > 0
                && CLOCK_STEPS * uint256(windows.stepSeconds) <= windows.clockSeconds,
            "clocks"
        );
        // INVARIANT: unbonding takes longer than a challenge window and both clocks.
        _require(uint256(windows.challengeSeconds) + 2 * uint256(windows.clockSeconds) <= unbondSeconds, "unbonding");
        _require(prices.feeCap > 0 && prices.feeCap <= MAX_FEE_CAP, "gas");
        // INVARIANT: a lie costs at least ten times what it earns, and more than the gas of its games; a stake covers every fine; who
        // can stake on a slot can stake on a merge.
        _require(
            role.slotStake > 0 && role.slotStake >= Prices.stakeFloor(role.slotPrice, prices.gasPrice) && p.merge.stake > 0
                && p.merge.stake >= Prices.stakeFloor(p.merge.price, prices.gasPrice)
                && p.merge.stake <= MERGE_SLOTS * uint256(role.slotStake),
            "stakes"
        );
        // INVARIANT: a false challenge costs at least the step that answers it.
        _require(prices.bond > 0 && prices.bond >= Prices.bondFloor(role.slotPrice, role.innerSteps), "bond");
        // INVARIANT: stakes and bonds fit the vault's locks: no job can be without challengers.
        _require(
            (role.slotStake | p.merge.stake | prices.witnessStake) <= MAX_LOCK
                && Prices.dearestRowBond(prices.bond, prices.gasPrice, rowLeaves(role.rowLength)) <= MAX_LOCK,
            "locks"
        );
        // INVARIANT: a witness's stake is at least twenty fees, and two for each round in flight; all stakes on one claim are less than
        // half of what a worker loses that convicts itself to take them along; who was drawn has spoken before the claim can no longer
        // be challenged.
        _require(
            role.witnesses == 0
                || (role.witnesses <= MAX_WITNESSES && role.witnessFee > 0
                    && prices.witnessStake >= Prices.witnessFloor(role.witnessFee, p.schedule.maxLead)
                    && SLOT_WITNESSES * claimWitnesses(role) * prices.witnessStake < role.slotStake && _isWindow(windows.auditSeconds, inclusion)
                    && windows.challengeSeconds
                        >= uint256(role.revealSeconds) + role.attestSeconds + AUDIT_WINDOWS * uint256(windows.auditSeconds)),
            "witnesses"
        );
        // INVARIANT: a row that somebody holds can be posted in time, however long it is.
        _require(
            _isWindow(windows.answerSeconds, inclusion) && windows.answerSeconds >= answerFloor(role.rowLength, inclusion), "answers"
        );
        // INVARIANT: a carry that survives a round is public, and as deep as its payload: out2 is a carry quarter. It is zero again
        // before the rounds that may run ahead have passed; 0 alone says that it always is.
        _require(
            role.carryPeriod == 0
                || (role.carryPeriod > 1 && role.carryPeriod < p.schedule.maxLead && role.payloadDepth == p.genesis.sharedDepth),
            "carry"
        );
    }

    /// @notice The most witnesses of one claim.
    function claimWitnesses(Role memory role) internal pure returns (uint256) {
        return (uint256(role.witnesses) + role.minSlots - 1) / role.minSlots;
    }

    /// @notice The most leaves that hold words of one row.
    function rowLeaves(uint256 rowLength) internal pure returns (uint256) {
        return (rowLength + CHUNK - 2) / CHUNK + 1;
    }

    /// @notice The least time in which the longest answer can be posted: a commitment and its part, one after the other.
    function answerFloor(uint256 rowLength, uint256 inclusion) internal pure returns (uint256) {
        return PART_TRANSACTIONS * inclusion * ((rowLeaves(rowLength) + PART - 1) / PART);
    }

    /// @notice The pay of one round in which everybody is paid.
    function roundPay(JobParams memory p) internal pure returns (uint256) {
        Role memory role = p.roles[0];
        return uint256(role.slots) * role.slotPrice + p.merge.price + uint256(role.witnesses) * role.witnessFee;
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
