// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title TestToken
/// @notice An ERC-20 with permit that anybody may mint: for local chains and tests, worth nothing.
contract TestToken is ERC20, ERC20Permit {
    constructor() ERC20("Lockstep Test Token", "LST") ERC20Permit("Lockstep Test Token") {}

    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }
}
