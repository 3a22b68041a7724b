// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Draws} from "../../contracts/libraries/Draws.sol";
import {AuditId, ClaimId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";

/// @title DrawsTest
/// @notice Draws, t*, commitments and chains as tests/vectors/witnesses.json has them; what must hold of any draw.
contract DrawsTest {
    address[] private _accounts;

    function test_draws_are_those_of_the_vectors() external {
        string memory json = CHEATS.readFile("tests/vectors/witnesses.json");
        for (uint256 k = 0; k < 24; k++) _draw(json, string.concat(".draws[", CHEATS.toString(k), "]"));
    }

    function _draw(string memory json, string memory at) private {
        AuditId audit = AuditId.wrap(CHEATS.parseJsonBytes32(json, string.concat(at, ".audit")));
        bytes32 beacon = Draws.beaconOf(CHEATS.parseJsonBytes32(json, string.concat(at, ".blockHash")), audit);
        require(beacon == CHEATS.parseJsonBytes32(json, string.concat(at, ".beacon")), "another beacon");

        uint256[] memory wanted = CHEATS.parseJsonUintArray(json, string.concat(at, ".order"));
        uint32[] memory slots = _narrow(CHEATS.parseJsonUintArray(json, string.concat(at, ".slots")));
        uint32[] memory order = Draws.slotOrder(beacon, slots, wanted.length);
        for (uint256 i = 0; i < wanted.length; i++) require(order[i] == wanted[i], "another slot");

        _accounts = CHEATS.parseJsonAddressArray(json, string.concat(at, ".accounts"));
        address[] memory owners = CHEATS.parseJsonAddressArray(json, string.concat(at, ".owners"));
        address[] memory expected = CHEATS.parseJsonAddressArray(json, string.concat(at, ".drawn"));
        address[] memory drawn = new address[](owners.length);
        for (uint256 i = 0; i < owners.length; i++) {
            drawn[i] = Draws.pick(_accounts, beacon, i, owners[i], drawn);
            require(drawn[i] == expected[i], "another account");
        }
    }

    function test_words_are_those_of_the_vectors() external view {
        string memory json = CHEATS.readFile("tests/vectors/witnesses.json");
        for (uint256 k = 0; k < 24; k++) _word(json, string.concat(".words[", CHEATS.toString(k), "]"));
    }

    function _word(string memory json, string memory at) private pure {
        bytes32 preimage = CHEATS.parseJsonBytes32(json, string.concat(at, ".preimage"));
        uint32 t = Draws.stepOf(
            preimage,
            CHEATS.parseJsonBytes32(json, string.concat(at, ".beacon")),
            uint16(CHEATS.parseJsonUint(json, string.concat(at, ".i"))),
            uint32(CHEATS.parseJsonUint(json, string.concat(at, ".transitions")))
        );
        require(t == CHEATS.parseJsonUint(json, string.concat(at, ".t")), "another t*");
        _place(json, at, preimage, t);
        bytes32 commitment = Draws.commitment(
            ClaimId.wrap(CHEATS.parseJsonBytes32(json, string.concat(at, ".claim"))),
            CHEATS.parseJsonAddress(json, string.concat(at, ".account")),
            CHEATS.parseJsonBytes32(json, string.concat(at, ".state")),
            CHEATS.parseJsonBytes32(json, string.concat(at, ".leaf")),
            preimage,
            CHEATS.parseJsonBytes32(json, string.concat(at, ".salt"))
        );
        require(commitment == CHEATS.parseJsonBytes32(json, string.concat(at, ".commitment")), "another commitment");
        bytes32 head = Draws.chained(preimage, CHEATS.parseJsonUint(json, string.concat(at, ".links")));
        require(head == CHEATS.parseJsonBytes32(json, string.concat(at, ".head")), "another head");
    }

    function _place(string memory json, string memory at, bytes32 preimage, uint32 t) private pure {
        bytes32 beacon = CHEATS.parseJsonBytes32(json, string.concat(at, ".beacon"));
        uint16 i = uint16(CHEATS.parseJsonUint(json, string.concat(at, ".i")));
        uint32 transitions = uint32(CHEATS.parseJsonUint(json, string.concat(at, ".transitions")));
        require(Draws.seenOf(t, transitions) == CHEATS.parseJsonUint(json, string.concat(at, ".u")), "another state");
        bytes32 named = bytes32(Draws.leafWord(preimage, beacon, i));
        require(named == CHEATS.parseJsonBytes32(json, string.concat(at, ".leafWord")), "another leaf");
    }

    function testFuzz_nobody_is_drawn_for_its_own_slot_nor_twice(bytes32 beacon, uint8 n, uint8 q) external {
        n = uint8(1 + n % 9);
        q = uint8(1 + q % 12);
        delete _accounts;
        for (uint160 k = 0; k < n; k++) _accounts.push(address(0x100 + k));
        address[] memory drawn = new address[](q);
        uint256 duties = 0;
        for (uint256 i = 0; i < q; i++) {
            address owner = _accounts[uint256(keccak256(abi.encode(beacon, "owner", i))) % n];
            address account = Draws.pick(_accounts, beacon, duties, owner, drawn);
            require(account != owner, "drawn for its own slot");
            require((account == address(0)) == (_left(drawn, duties, owner) == 0), "there was somebody else, or nobody");
            if (account == address(0)) continue;
            require(!_among(drawn, duties, account), "drawn twice");
            drawn[duties++] = account;
        }
    }

    function testFuzz_every_slot_is_dealt_once_before_any_twice(bytes32 beacon, uint8 n, uint8 count) external pure {
        n = uint8(1 + n % 64);
        uint32[] memory slots = new uint32[](n);
        for (uint32 s = 0; s < n; s++) slots[s] = s;
        uint32[] memory order = Draws.slotOrder(beacon, slots, count);
        require(order.length == count, "one slot a duty");
        uint256 seen = 0;
        for (uint256 i = 0; i < count; i++) {
            if (i % n == 0) seen = 0;
            require((seen >> order[i]) & 1 == 0 && order[i] < n, "dealt twice in one pass");
            seen |= uint256(1) << order[i];
        }
    }

    function testFuzz_where_nobody_revealed_no_slot_is_dealt(bytes32 beacon, uint8 count) external {
        require(Draws.slotOrder(beacon, new uint32[](0), count).length == 0, "no slots, no duties");
        delete _accounts;
        require(Draws.pick(_accounts, beacon, 0, address(1), new address[](0)) == address(0), "and nobody to draw");
    }

    function testFuzz_t_star_is_one_of_the_steps(bytes32 preimage, bytes32 beacon, uint16 i, uint32 transitions) external pure {
        if (transitions == 0) transitions = 1;
        uint32 t = Draws.stepOf(preimage, beacon, i, transitions);
        require(t >= 1 && t <= transitions, "no such step");
    }

    /// @dev Accounts that are neither drawn nor the owner.
    function _left(address[] memory drawn, uint256 count, address owner) private view returns (uint256 left) {
        for (uint256 k = 0; k < _accounts.length; k++) {
            if (_accounts[k] != owner && !_among(drawn, count, _accounts[k])) left++;
        }
    }

    function _among(address[] memory drawn, uint256 count, address account) private pure returns (bool) {
        for (uint256 k = 0; k < count; k++) if (drawn[k] == account) return true;
        return false;
    }

    function _narrow(uint256[] memory wide) private pure returns (uint32[] memory narrow) {
        narrow = new uint32[](wide.length);
        for (uint256 k = 0; k < wide.length; k++) narrow[k] = uint32(wide[k]);
    }
}
