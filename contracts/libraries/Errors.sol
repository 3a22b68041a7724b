// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

// The rules that a transaction can break, one error each; the SDK decodes them by these names (lockstep/chain/contracts.py).

/// A Merkle proof does not lead from the value to the root, or has another depth than the tree.
error ProofInvalid();

/// The caller is not the contract or the account that alone may do this.
error Unauthorized(address caller);
