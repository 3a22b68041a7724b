// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {Availability} from "../../contracts/Availability.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {DemandClosed, Row, Shown, Status} from "../../contracts/interfaces/IAvailability.sol";
import {Body, Claim, IJobMarket, Job, JobParams, JobStatus} from "../../contracts/interfaces/IJobMarket.sol";
import {Code} from "../../contracts/interfaces/IValidator.sol";
import {ANSWER_GAS, DEFENDER_GAS, LEAF_GAS} from "../../contracts/libraries/Constants.sol";
import "../../contracts/libraries/Errors.sol";
import {Ids} from "../../contracts/libraries/Ids.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {Prices} from "../../contracts/libraries/Prices.sol";
import {ClaimId, JobId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";

contract PlainToken is ERC20 {
    constructor() ERC20("Plain", "PLAIN") {
        _mint(msg.sender, 1 << 250);
    }
}

/// @title AvailabilityTest
/// @notice Rows cut in any way, answers copied, and a leaf of 1,024 that is hidden; this contract is the market.
contract AvailabilityTest {
    JobId private constant JOB = JobId.wrap(keccak256("job"));
    ClaimId private constant CLAIM = ClaimId.wrap(keccak256("claim"));
    address private constant ASKER = address(0xA5C);
    address private constant POSTER = address(0x9057);
    address private constant WORKER = address(0x3043);
    uint256 private constant BOND = 1_000_003;
    uint256 private constant LEAVES = 8;
    uint256 private constant LEVELS = 10;

    StakeVault private vault;
    Availability private availability;
    JobParams private terms;
    Claim private claimed;
    bytes32 private dataset;
    bytes private header;
    bool public isVoid;

    function setUp() external {
        IERC20 token = IERC20(address(new PlainToken()));
        address next = address(
            uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), bytes1(uint8(3))))))
        );
        vault = new StakeVault(token, address(this), address(1), address(2), next, 1 days);
        availability = new Availability(IJobMarket(address(this)), vault);
        require(address(availability) == next, "born for each other");
        token.transfer(ASKER, 1 << 200);
        CHEATS.startPrank(ASKER);
        token.approve(address(vault), type(uint256).max);
        vault.deposit(1 << 200);
        CHEATS.stopPrank();
        CHEATS.roll(1_000);
        CHEATS.warp(1_000_000);

        bytes32[] memory nodes = new bytes32[](LEAVES);
        for (uint256 i = 0; i < LEAVES; i++) nodes[i] = Merkle.leaf(_leaf(i));
        dataset = Merkle.rootOf(nodes);
        terms.roles.push();
        (terms.roles[0].datasetRows, terms.roles[0].rowLength, terms.windows.answerSeconds) = (1, uint32(256 * LEAVES), 60);
        (terms.prices.gasPrice, terms.prices.feeCap) = (1, 100);
        CHEATS.fee(50);
        terms.roles[0].datasetRoot = sha256(
            abi.encodePacked(bytes1(0x02), uint8(1), uint8(2), terms.roles[0].datasetRows, terms.roles[0].rowLength, dataset)
        );
    }

    // -- what it asks of the market

    function params(JobId) external view returns (JobParams memory) {
        return terms;
    }

    function bondOf(JobId) external pure returns (uint256) {
        return BOND;
    }

    function job(JobId) external view returns (Job memory j) {
        j.status = isVoid ? JobStatus.Void : JobStatus.Active;
    }

    function claimIdOf(JobId, uint32, uint32) external pure returns (ClaimId) {
        return CLAIM;
    }

    function claim(ClaimId) external view returns (Claim memory) {
        return claimed;
    }

    function onDemanded(JobId, uint32, uint32, bool) external {}

    function onInvalid(JobId, address prover) external {
        require(prover == ASKER, "who asked is the prover");
        isVoid = true;
    }

    // -- rows

    function testFuzz_any_cuts_of_a_row_post_it_and_pay_all_of_the_bond(uint8[8] calldata cuts, uint8[8] calldata back)
        external
    {
        bytes32 id = _demand();
        uint256 bond = vault.lockOf(id).amount;
        uint256 next = 0;
        for (uint256 i = 0; next < LEAVES; i++) {
            uint256 begin = next - back[i] % (next + 1);
            uint256 end = next + 1 + (i < 7 ? cuts[i] % (LEAVES - next) : LEAVES - next - 1);
            _post(begin, end);
            next = end;
            require(availability.demand(id).next == next, "what is there already is skipped");
        }
        require(availability.demand(id).status == Status.Answered, "whole");
        require(vault.lockOf(id).account == address(0), "nothing is left of the bond");
        uint256 paid = vault.credits(POSTER);
        require(paid + vault.credits(vault.BURN()) == bond, "paid or burned");
        require(paid <= bond * 60 / 100 && bond * 60 / 100 - paid < LEAVES, "60 %, each share rounded down");
    }

    function testFuzz_the_rest_of_the_bond_of_a_row_that_is_not_whole_returns(uint8 posted) external {
        uint256 n = posted % LEAVES;
        bytes32 id = _demand();
        uint256 bond = vault.lockOf(id).amount;
        if (n > 0) _post(0, n);
        require(vault.credits(POSTER) == bond * n / LEAVES * 60 / 100, "a share for each leaf");
        CHEATS.warp(block.timestamp + 61);
        availability.voidForRow(JOB, 0);
        require(isVoid, "a row that nobody has voids the job");
        require(vault.free(ASKER) == (1 << 200) - bond * n / LEAVES, "the rest of the bond");
    }

    function testFuzz_a_bond_holds_three_times_the_gas_of_every_leaf(uint64 own) external {
        terms.prices.bond = own % uint64(BOND);
        uint256 gas = BOND - terms.prices.bond; // of three defences
        uint256 leaves = availability.rowBondOf(JOB, 0) - BOND;
        require(leaves * DEFENDER_GAS >= gas * LEAVES * LEAF_GAS && (leaves - 1) * DEFENDER_GAS < gas * LEAVES * LEAF_GAS, "rounded up");
    }

    function testFuzz_a_copy_of_an_answer_is_refused(address copier, uint8 later) external {
        _demand();
        bytes memory answer = _answer(0, LEAVES);
        _commit(POSTER, answer);
        if (copier != POSTER) {
            CHEATS.roll(block.number + 1 + later);
            _refused(copier, answer, _notCommitted(copier, answer));
            // Who sees it and commits at once is a block late.
            _commit(copier, answer);
            _refused(copier, answer, _notCommitted(copier, answer));
        }
        CHEATS.roll(block.number + 1);
        _refused(POSTER, abi.encodePacked(answer, bytes1(0)), _notCommitted(POSTER, abi.encodePacked(answer, bytes1(0))));
        _send(POSTER, answer);
        require(vault.credits(POSTER) > 0, "who committed first is paid");
    }

    function _demand() private returns (bytes32) {
        CHEATS.prank(ASKER);
        return availability.demandRow(JOB, 0);
    }

    function _post(uint256 begin, uint256 end) private {
        bytes memory answer = _answer(begin, end);
        _commit(POSTER, answer);
        CHEATS.roll(block.number + 1);
        _send(POSTER, answer);
    }

    function _answer(uint256 begin, uint256 end) private view returns (bytes memory) {
        Row[] memory rows = new Row[](end - begin);
        for (uint256 i = begin; i < end; i++) {
            rows[i - begin] = Row(_leaf(i), _rowProof(i));
        }
        return abi.encodeCall(availability.answerRow, (JOB, 0, dataset, uint32(begin), rows));
    }

    function _leaf(uint256 i) private pure returns (bytes memory leaf) {
        leaf = new bytes(1024);
        leaf[0] = bytes1(uint8(i));
    }

    function _rowProof(uint256 i) private view returns (bytes32[] memory proof) {
        proof = new bytes32[](3);
        for (uint256 k = 0; k < 3; k++) {
            uint256 at = (i >> k) ^ 1;
            bytes32[] memory under = new bytes32[](1 << k);
            for (uint256 j = 0; j < under.length; j++) under[j] = Merkle.leaf(_leaf((at << k) + j));
            proof[k] = Merkle.rootOf(under);
        }
    }

    // -- a payload of 1,024 leaves, one of them hidden

    function testFuzz_a_leaf_that_the_asker_names_must_be_shown(uint16 which, bytes32 beacon) external {
        uint256 hidden = which % 1024;
        bytes32 root = _claimPayload(hidden);
        CHEATS.prank(ASKER);
        // The asker lacks it, and names it in the second place; the others are leaf 5.
        bytes32 id = availability.unavailable(JOB, 0, 0, 5 | (hidden << 64) | (5 << 128) | (5 << 192));
        CHEATS.roll(block.number + 2);
        CHEATS.setBlockhash(block.number - 1, beacon);
        bytes32 seed = availability.seedOf(id);
        Shown[] memory shown = new Shown[](8);
        for (uint256 i = 0; i < 8; i++) {
            uint256 at = i == 1 ? hidden : i < 4 ? 5 : uint128(uint256(keccak256(abi.encode(seed, i - 4)))) % 1024;
            shown[i] = _shown(at, hidden, root);
        }
        Body memory body = Body(0, root, bytes32(0));
        Code memory code = Code(header, 0, 0);
        bytes memory truth = shown[1].leaf;
        shown[1].leaf = new bytes(1024);
        bytes memory without = abi.encodeCall(availability.answer, (id, body, code, shown));
        _refused(WORKER, without, abi.encodeWithSelector(ProofInvalid.selector));
        shown[1].leaf = truth;
        _send(WORKER, abi.encodeCall(availability.answer, (id, body, code, shown)));
        require(vault.credits(WORKER) == ANSWER_GAS / 2, "who has it is paid its gas");
        require(vault.free(ASKER) == (1 << 200) - ANSWER_GAS / 2, "the rest of the bond returns");
    }

    function testFuzz_an_answer_earns_its_gas_and_no_more_than_the_bond(uint16 price, uint16 fee) external {
        bytes32 root = _claimPayload(0);
        CHEATS.prank(ASKER);
        bytes32 id = availability.unavailable(JOB, 0, 0, 0);
        CHEATS.roll(block.number + 2);
        terms.prices.gasPrice = price % 8;
        CHEATS.fee(fee);
        availability.answer(id, Body(0, root, bytes32(0)), Code(header, 0, 0), _named(id, 0, root));
        uint256 paid = vault.credits(WORKER);
        uint256 due = ANSWER_GAS * (price % 8) * (fee < 100 ? fee : 100) / 100;
        require(paid == (due < BOND ? due : BOND), "its gas at the block's fee, below the cap");
        require(vault.free(ASKER) == (1 << 200) - paid && vault.credits(vault.BURN()) == 0, "nothing is burned");
    }

    /// Who hides leaves waits until the chain has forgotten the beacon's block, and is held to it all the same.
    function testFuzz_a_seed_that_was_kept_names_the_leaves_for_ever(bytes32 beacon, uint16 later) external {
        bytes32 root = _claimPayload(0);
        CHEATS.prank(ASKER);
        bytes32 id = availability.unavailable(JOB, 0, 0, 0);
        uint256 number = block.number + 1;
        CHEATS.roll(number + 256);
        CHEATS.setBlockhash(number, beacon);
        bytes32 seed = availability.seedOf(id);
        CHEATS.prank(address(0xAB1));
        availability.keepSeed(id);
        Shown[] memory first = _named(id, 0, root);
        CHEATS.roll(number + 257 + later);
        require(availability.seedOf(id) == seed && availability.keptSeed(id) == seed, "the same word");
        Body memory body = Body(0, root, bytes32(0));
        _send(WORKER, abi.encodeCall(availability.answer, (id, body, Code(header, 0, 0), first)));
    }

    function test_a_seed_that_nobody_kept_in_time_is_a_word_known_before() external {
        _claimPayload(0);
        CHEATS.prank(ASKER);
        bytes32 id = availability.unavailable(JOB, 0, 0, 0);
        CHEATS.roll(block.number + 1 + 257);
        _refused(ASKER, abi.encodeCall(availability.keepSeed, (id)), abi.encodeWithSelector(DemandClosed.selector, id));
        require(availability.seedOf(id) == keccak256(abi.encode(id, bytes32(0))), "of the demand alone");
    }

    /// @dev The leaves that a demand names whose asker names the first in all of its places.
    function _named(bytes32 id, uint256 hidden, bytes32 root) private view returns (Shown[] memory shown) {
        bytes32 seed = availability.seedOf(id);
        shown = new Shown[](8);
        for (uint256 i = 0; i < 8; i++) {
            shown[i] = _shown(i < 4 ? 0 : uint128(uint256(keccak256(abi.encode(seed, i - 4)))) % 1024, hidden, root);
        }
    }

    /// @dev The claim's payload: one vector of 1,024 leaves, all zero but one.
    function _claimPayload(uint256 hidden) private returns (bytes32 root) {
        bytes memory fixedPart = abi.encodePacked(bytes8(0x4c53503100010001), uint16(1), uint8(1), uint8(0), uint8(1), uint16(0));
        bytes memory input = abi.encodePacked(uint8(2), uint8(0), uint32(1024 * 256));
        header = abi.encodePacked(fixedPart, input, uint8(2), uint16(0), uint8(0), uint16(0));
        bytes32 tree = _node(LEVELS, 0, hidden);
        root = sha256(abi.encodePacked(bytes1(0x02), uint8(0), uint8(1), uint32(1024 * 256), tree));
        bytes32 leaf = sha256(abi.encodePacked(bytes1(0x00), header));
        terms.roles[0].encodeProgram = sha256(abi.encodePacked(bytes1(0x03), leaf, bytes32(0), bytes32(0)));
        (claimed.job, claimed.worker) = (JOB, WORKER);
        claimed.digest = keccak256(abi.encode(bytes32(0), root, bytes32(0)));
    }

    function _shown(uint256 at, uint256 hidden, bytes32) private view returns (Shown memory s) {
        s.leaf = new bytes(1024);
        if (at == hidden) s.leaf[0] = 0xff;
        s.leafProof = new bytes32[](LEVELS);
        for (uint256 k = 0; k < LEVELS; k++) s.leafProof[k] = _node(k, (at >> k) ^ 1, hidden);
        s.entryProof = new bytes32[](1); // out2
    }

    function _node(uint256 level, uint256 at, uint256 hidden) private view returns (bytes32 node) {
        bytes memory leaf = new bytes(1024);
        node = Merkle.leaf(leaf);
        leaf[0] = 0xff;
        bytes32 path = Merkle.leaf(leaf);
        for (uint256 k = 0; k < level; k++) {
            path = (hidden >> k) & 1 == 0 ? Merkle.node(path, node) : Merkle.node(node, path);
            node = Merkle.node(node, node);
        }
        return at == hidden >> level ? path : node;
    }

    // -- inside

    function _digest(address sender, bytes memory data) private pure returns (bytes32) {
        return keccak256(abi.encode(sender, keccak256(data)));
    }

    function _notCommitted(address sender, bytes memory data) private pure returns (bytes memory) {
        return abi.encodeWithSelector(NotCommitted.selector, _digest(sender, data));
    }

    function _commit(address sender, bytes memory data) private {
        bytes32[] memory digests = new bytes32[](1);
        digests[0] = _digest(sender, data);
        availability.commit(digests);
    }

    function _send(address sender, bytes memory data) private {
        CHEATS.prank(sender);
        (bool done,) = address(availability).call(data);
        require(done, "accepted");
    }

    function _refused(address sender, bytes memory data, bytes memory why) private {
        CHEATS.prank(sender);
        (bool done, bytes memory returned) = address(availability).call(data);
        require(!done && keccak256(returned) == keccak256(why), "refused by its rule");
    }
}
