// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {IJobMarket} from "../interfaces/IJobMarket.sol";
import {JobInvalid} from "./Errors.sol";
import {Merkle} from "./Merkle.sol";

/// @title JobRules
/// @notice Floors and ceilings of a job's parameters: a job that passes can be trained, judged and paid within block gas.
library JobRules {
    uint256 internal constant MAX_SLOTS = 64;
    uint256 internal constant MAX_LEAD = 16;
    uint256 internal constant MAX_DEPTH = 24;
    uint256 internal constant MAX_STEPS = 1 << 24;
    uint256 internal constant MAX_ROUNDS = 1 << 20;
    uint256 internal constant MIN_CLOCK = 60;
    uint256 internal constant MAX_WINDOW = 30 days;

    /// @notice Reverts `JobInvalid` with the first group of parameters that is out of bounds.
    /// @dev The Python twin (rounds.check_params) names the parameter itself; the SDK asks it before it sends anything.
    function check(IJobMarket.JobParams memory p, uint256 unbondSeconds) internal pure {
        _require(p.profile == 1 && p.opset == 1, "profile");
        _require(p.stepProgram != 0 && p.encodeProgram != 0 && p.mergeProgram != 0, "programs");
        _require(p.datasetRows > 0 && p.rowLength > 0, "dataset");
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
            _isWindow(p.joinSeconds) && _isWindow(p.trainSeconds) && _isWindow(p.revealSeconds)
                && _isWindow(p.attestSeconds) && _isWindow(p.mergeSeconds) && _isWindow(p.challengeSeconds),
            "windows"
        );
        // INVARIANT: every game that is open lengthens the defender's clock in the next: many games starve nobody.
        _require(
            p.clockSeconds >= MIN_CLOCK && p.clockSeconds <= MAX_WINDOW && p.stepSeconds > 0 && p.stepSeconds <= MAX_WINDOW,
            "clocks"
        );
        // INVARIANT: unbonding takes longer than a challenge window and both clocks.
        _require(uint256(p.challengeSeconds) + 2 * uint256(p.clockSeconds) <= unbondSeconds, "unbonding");
        // INVARIANT: a stake covers the fine for not revealing.
        _require(p.slotStake > 0 && p.slotPrice <= p.slotStake && p.mergeStake > 0 && p.bond > 0, "stakes");
        // INVARIANT: stakes and bonds fit the vault's locks: no job can be without challengers.
        _require((p.slotStake | p.mergeStake | p.bond) <= type(uint88).max, "stakes");
    }

    /// @notice The pay of one round in which everybody is paid.
    function roundPay(IJobMarket.JobParams memory p) internal pure returns (uint256) {
        return uint256(p.slots) * p.slotPrice + p.mergePrice;
    }

    function _isWindow(uint32 seconds_) private pure returns (bool) {
        return seconds_ > 0 && seconds_ <= MAX_WINDOW;
    }

    function _require(bool holds, bytes32 parameter) private pure {
        if (!holds) revert JobInvalid(parameter);
    }
}
