// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {JobParams, Role} from "../../contracts/interfaces/IJobMarket.sol";

/// @dev Gives the job the one role that jobs of today have.
function oneRole(JobParams memory p) pure {
    p.roles = new Role[](1);
    p.roles[0].merged = true;
    p.schedule.baseLag = 1;
}

/// @dev To storage, group by group: the compiler copies no list of structs.
function keep(JobParams storage to, JobParams memory p) {
    (to.spec, to.genesis, to.schedule, to.windows) = (p.spec, p.genesis, p.schedule, p.windows);
    (to.merge, to.prices) = (p.merge, p.prices);
    delete to.roles;
    for (uint256 i = 0; i < p.roles.length; i++) to.roles.push(p.roles[i]);
}
