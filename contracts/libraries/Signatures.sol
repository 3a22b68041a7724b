// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

/// @title Signatures
/// @notice Signatures of keys, and of contracts that can say yes (ERC-1271).
/// @dev OpenZeppelin's SignatureChecker needs Cancun.
library Signatures {
    /// @notice Whether `account` signed `digest`. A key that lent its account to code (EIP-7702) still speaks for it.
    function isSigned(address account, bytes32 digest, bytes calldata signature) internal view returns (bool) {
        (address signer, ECDSA.RecoverError error,) = ECDSA.tryRecover(digest, signature);
        if (error == ECDSA.RecoverError.NoError && signer == account) return true;
        if (account.code.length == 0) return false;
        (bool done, bytes memory said) =
            account.staticcall(abi.encodeCall(IERC1271.isValidSignature, (digest, signature)));
        return done && said.length >= 32 && abi.decode(said, (bytes32)) == bytes32(IERC1271.isValidSignature.selector);
    }
}
