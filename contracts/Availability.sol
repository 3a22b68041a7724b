// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {
    AnswerWrong,
    Asked,
    Demand,
    DemandClosed,
    IAvailability,
    NoSuchRow,
    Row,
    Shown,
    Status
} from "./interfaces/IAvailability.sol";
import {Body, Claim, IJobMarket, JobParams, JobStatus, Role, Windows} from "./interfaces/IJobMarket.sol";
import {IStakeVault, Refund} from "./interfaces/IStakeVault.sol";
import {Code} from "./interfaces/IValidator.sol";
import {ANSWER_GAS, CHUNK, HASH_BLOCKS, LEAF_BYTES, LEAVES, WANTED} from "./libraries/Constants.sol";
import {AlreadyDone, CommitmentMismatch, NoCarry, ProofInvalid, TooEarly, WrongJobStatus} from "./libraries/Errors.sol";
import {Ids} from "./libraries/Ids.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Openings} from "./libraries/Openings.sol";
import {Precommitted} from "./libraries/Precommitted.sol";
import {Prices} from "./libraries/Prices.sol";
import {Program} from "./libraries/Program.sol";
import {Statement} from "./libraries/Statement.sol";
import {ClaimId, JobId} from "./types/Ids.sol";

/// @title Availability
/// @notice Demands with a bond, a beacon and an answer window: data that nobody posts cannot decide anything.
/// @dev The Python twin is lockstep/protocol/market/availability.py: the same names in the same order.
contract Availability is IAvailability, Precommitted {
    IJobMarket public immutable market;
    IStakeVault public immutable vault;

    uint8 private constant I32 = 1;
    /// `row` of a demand for the carry that a claim starts from.
    uint32 private constant CARRY = 1;

    mapping(bytes32 id => Demand) private _demands;
    mapping(ClaimId claim => Asked) private _asked;
    /// The words of demands whose beacon's block was shown in time.
    mapping(bytes32 id => bytes32) private _seeds;

    constructor(IJobMarket market_, IStakeVault vault_) {
        market = market_;
        vault = vault_;
    }

    // -- payloads --------------------------------------------------------------------------------------------------

    /// @inheritdoc IAvailability
    function unavailable(JobId job, uint32 round, uint32 slot, uint256 wanted) external returns (bytes32) {
        return _demand(job, round, slot, wanted, market.claimIdOf(job, round, slot), 0);
    }

    /// @inheritdoc IAvailability
    function carryUnavailable(JobId job, uint32 round, uint32 slot, uint256 wanted) external returns (bytes32) {
        ClaimId claim = market.claimIdOf(job, round, slot);
        // INVARIANT: a carry is demanded of who starts from it.
        if (!market.claim(claim).carries) revert NoCarry(slot);
        return _demand(job, round, slot, wanted, claim, CARRY);
    }

    function _demand(JobId job, uint32 round, uint32 slot, uint256 wanted, ClaimId claim, uint32 what)
        private
        returns (bytes32 id)
    {
        Asked storage a = _asked[claim];
        uint64 deadline = _setUntil(a, job, what);
        uint64 beacon = uint64(block.number + 1);
        id = payloadDemandId(claim, a.count);

        a.count += 1;
        a.open += 1;
        _demands[id] = Demand(ClaimId.unwrap(claim), msg.sender, Status.Open, beacon, deadline, what, 0, wanted);

        emit PayloadDemanded(id, job, claim, msg.sender, round, slot, beacon, deadline, wanted);

        // INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
        market.onDemanded(job, round, slot, what == CARRY);
        vault.lock(msg.sender, id, market.bondOf(job));
    }

    /// @dev Until when an answer counts; `a.until`: until when it keeps the claim in the merge.
    function _setUntil(Asked storage a, JobId job, uint32 what) private returns (uint64 deadline) {
        Windows memory windows = market.params(job).windows;
        deadline = uint64(block.timestamp + windows.answerSeconds);

        a.until = deadline;

        // INVARIANT: who shows a carry late is left out of the merge, and has a defender's clock more until it is convicted.
        if (what == CARRY) deadline += windows.clockSeconds;
    }

    /// @inheritdoc IAvailability
    function keepSeed(bytes32 id) external {
        Demand storage d = _open(id);
        if (_seeds[id] != 0) revert AlreadyDone();
        // INVARIANT: who hides leaves has one draw: its word is kept before the chain forgets the block, and none is kept after that.
        if (d.beacon == 0 || block.number > d.beacon + HASH_BLOCKS) revert DemandClosed(id);
        bytes32 seed = seedOf(id);

        _seeds[id] = seed;

        emit SeedKept(id, seed);
    }

    /// @inheritdoc IAvailability
    function answer(bytes32 id, Body calldata body, Code calldata code, Shown[] calldata shown) external {
        Demand storage d = _open(id);
        Claim memory c = market.claim(ClaimId.wrap(d.subject));
        JobParams memory p = market.params(c.job);
        // INVARIANT: what is shown is what was claimed: of a carry, in the round before.
        bytes32 digest = d.row == CARRY ? market.claim(market.claimIdOf(c.job, c.round - 1, c.slot)).digest : c.digest;
        if (digest != Ids.body(body)) revert CommitmentMismatch();
        // INVARIANT: evidence is about the Programs that the job names.
        if (Statement.programRoot(code.header, code.opsRoot, code.constsRoot) != p.roles[0].encodeProgram) revert ProofInvalid();
        _requireShown(d, seedOf(id), Merkle.node(body.out, body.out2), code, shown);

        d.status = Status.Answered;
        _asked[ClaimId.wrap(d.subject)].open -= 1;

        emit Settled(id, d.subject, Status.Answered, c.worker);

        if (_isGame(d)) market.onRejected(ClaimId.wrap(d.subject));
        // INVARIANT: an answer is paid its gas and no share of a bond: to withhold what others must then demand is no wage.
        uint256 pay = Prices.gasCost(ANSWER_GAS, p.prices.gasPrice, p.prices.feeCap, block.basefee);
        vault.payBond(id, c.worker, pay);
    }

    /// @inheritdoc IAvailability
    function settle(bytes32 id) external {
        Demand storage d = _expired(id);
        Asked storage a = _asked[ClaimId.wrap(d.subject)];
        // A row's demand is `voidForRow`'s: it belongs to no claim.
        if (d.beacon == 0) revert DemandClosed(id);

        d.status = Status.Missing;
        a.open -= 1;
        a.missing = true;

        emit Settled(id, d.subject, Status.Missing, address(0));

        // INVARIANT: who starts from a carry and shows it to nobody is convicted, as a silent defender is.
        if (_isGame(d)) {
            address[] memory winners = new address[](1);
            winners[0] = d.asker;
            market.onConvicted(ClaimId.wrap(d.subject), 0, winners, new Refund[](0));
        }
        vault.unlock(id);
    }

    /// @dev A demand for a carry is a game, as long as its claim is neither void nor convicted.
    function _isGame(Demand storage d) private view returns (bool) {
        return d.row == CARRY && market.live(ClaimId.wrap(d.subject));
    }

    /// @dev Each of the leaves that the asker and the seed name, under the claim's last state: of its payload or of its carry.
    function _requireShown(
        Demand storage d,
        bytes32 seed,
        bytes32 state,
        Code calldata code,
        Shown[] calldata shown
    ) private view {
        Program.Header memory h = Program.decodeHeader(code.header);
        uint256[] memory entries = _entries(code.header, h, d.row == CARRY);
        uint256 wanted = d.wanted;
        // INVARIANT: a demand names eight leaves, of a payload without tensors none.
        if (shown.length != (entries.length == 0 ? 0 : LEAVES)) revert AnswerWrong();
        for (uint256 i = 0; i < shown.length; i++) {
            (uint256 tensor, uint256 number) = _named(wanted, seed, i);
            _requireLeaf(state, entries[tensor % entries.length], number, code, h, shown[i]);
        }
    }

    /// @dev The tensor's number and the leaf's, neither reduced yet.
    function _named(uint256 wanted, bytes32 seed, uint256 i) private pure returns (uint256, uint256) {
        // INVARIANT: half of the leaves are what the asker lacks, the others nobody's choice.
        if (i < WANTED) {
            uint256 packed = uint64(wanted >> (64 * i));
            return (packed >> 40, uint40(packed));
        }
        uint256 word = uint256(keccak256(abi.encode(seed, i - WANTED)));
        return (word >> 128, uint128(word));
    }

    function _requireLeaf(
        bytes32 state,
        uint256 entry,
        uint256 number,
        Code calldata code,
        Program.Header memory h,
        Shown calldata s
    ) private view {
        (bytes memory header, uint256 elements) = _tensor(entry, code, h, s);
        uint256 leaves = Program.leaves(elements);
        uint256 at = number % leaves;
        _requireLength(elements, at, s.leaf.length);
        // INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        if (s.leafProof.length != Program.depthOf(leaves)) revert ProofInvalid();
        bytes32 tree = Merkle.climb(Openings.leafHash(s.leaf), at, s.leafProof);
        bytes32 root = sha256(abi.encodePacked(bytes1(0x02), header, tree));
        Merkle.verify(state, root, entry, h.stateOut, s.entryProof);
    }

    /// @dev dtype, rank and dims of an entry's tensor, and its elements.
    function _tensor(uint256 entry, Code calldata code, Program.Header memory h, Shown calldata s)
        private
        view
        returns (bytes memory, uint256)
    {
        (uint256 kind, uint256 index) = Program.aliasOf(code.header, h, entry);
        if (kind == Program.ALIAS_OP) {
            // INVARIANT: the descriptor is the Program's own.
            Merkle.verify(
                code.opsRoot, Openings.leafHash(s.descriptor), index, Program.depthOf(h.n), s.descriptorProof
            );
            Program.Op memory op = Program.decode(s.descriptor);
            bytes memory dims = s.descriptor[24:24 + 4 * op.rank];
            return (abi.encodePacked(s.descriptor[2:4], dims), Program.elements(s.descriptor, op));
        }
        return Program.inputTensor(code.header, index);
    }

    /// @dev The entries of the last state that are not EMPTY, in order: of the payload, its first half, or of the carry, its second.
    /// Read once, since there may be 512 of them.
    function _entries(bytes calldata header, Program.Header memory h, bool carry)
        private
        pure
        returns (uint256[] memory entries)
    {
        uint256 half = (uint256(1) << h.stateOut) / 2;
        uint256 begin = Program.INPUTS_AT + (6 << h.stateIn);
        bytes calldata aliases = header[begin:begin + (3 << h.stateOut)];
        entries = new uint256[](half);
        uint256 count = 0;
        uint256 k = carry ? half : 0;
        for (uint256 end = k + half; k < end;) {
            uint256 kind;
            assembly ("memory-safe") {
                kind := byte(0, calldataload(add(aliases.offset, mul(3, k))))
            }
            unchecked {
                if (kind != Program.ALIAS_EMPTY) entries[count++] = k;
                k++;
            }
        }
        assembly ("memory-safe") {
            mstore(entries, count)
        }
    }

    // -- rows ------------------------------------------------------------------------------------------------------

    /// @inheritdoc IAvailability
    function demandRow(JobId job, uint32 row) external returns (bytes32 id) {
        JobParams memory p = market.params(job);
        // INVARIANT: rows are demanded of a job that goes on.
        if (!_goesOn(job)) revert WrongJobStatus(job);
        if (row >= p.roles[0].datasetRows) revert NoSuchRow(row);
        id = rowDemandId(job, row);
        // INVARIANT: a row is demanded once: what was posted is public.
        if (_demands[id].status != Status.None) revert AlreadyDone();
        uint64 deadline = uint64(block.timestamp + p.windows.answerSeconds);

        _demands[id] = Demand(JobId.unwrap(job), msg.sender, Status.Open, 0, deadline, row, 0, 0);

        emit RowDemanded(id, job, row, msg.sender, deadline);

        vault.lock(msg.sender, id, _rowBond(job, p, row));
    }

    /// @inheritdoc IAvailability
    function answerRow(JobId job, uint32 row, bytes32 tree, uint32 begin, Row[] calldata rows) external {
        bytes32 id = rowDemandId(job, row);
        Demand storage d = _open(id);
        _requireCommitted();
        JobParams memory p = market.params(job);
        Role memory role = p.roles[0];
        bytes memory header = abi.encodePacked(I32, uint8(2), role.datasetRows, role.rowLength);
        // INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
        if (sha256(abi.encodePacked(bytes1(0x02), header, tree)) != role.datasetRoot) revert ProofInvalid();
        (uint256 first, uint256 count) = _leavesOf(role, row);
        (uint256 next, uint256 end) = (d.next, begin + rows.length);
        // INVARIANT: a row's leaves are posted in order, each once.
        if (begin > next || end > count) revert AnswerWrong();
        if (end <= next) revert AlreadyDone();
        // INVARIANT: who posts single leaves ahead of others spoils none of their parts: what is there already is skipped.
        _requireRows(uint256(role.datasetRows) * role.rowLength, first + begin, tree, next - begin, rows);

        d.next = uint32(end);
        for (uint256 i = next - begin; i < rows.length; i++) emit RowPosted(id, uint32(first + begin + i), rows[i].leaf);
        uint256 share = type(uint256).max;
        if (end == count) {
            d.status = Status.Answered;

            emit Settled(id, JobId.unwrap(job), Status.Answered, msg.sender);
        } else {
            // INVARIANT: every leaf earns the same share of the bond, and the last one what is left of it.
            share = vault.lockOf(id).amount * (end - next) / (count - next);
        }

        vault.takeBond(id, msg.sender, share);
    }

    /// @dev The first leaf of the dataset that holds words of the row, and how many there are.
    function _leavesOf(Role memory role, uint32 row) private pure returns (uint256 first, uint256 count) {
        uint256 start = uint256(row) * role.rowLength;
        first = start / CHUNK;
        count = (start + role.rowLength - 1) / CHUNK + 1 - first;
    }

    function _rowBond(JobId job, JobParams memory p, uint32 row) private view returns (uint256) {
        (, uint256 count) = _leavesOf(p.roles[0], row);
        return Prices.rowBondOf(market.bondOf(job), p.prices.bond, count);
    }

    function _requireRows(uint256 elements, uint256 first, bytes32 tree, uint256 skipped, Row[] calldata rows)
        private
        view
    {
        uint256 depth = Program.depthOf(Program.leaves(elements));
        for (uint256 i = skipped; i < rows.length; i++) {
            _requireLength(elements, first + i, rows[i].leaf.length);
            Merkle.verify(tree, Openings.leafHash(rows[i].leaf), first + i, depth, rows[i].proof);
        }
    }

    /// @inheritdoc IAvailability
    function voidForRow(JobId job, uint32 row) external {
        bytes32 id = rowDemandId(job, row);
        Demand storage d = _expired(id);
        bool goesOn = _goesOn(job);

        d.status = goesOn ? Status.Missing : Status.Closed;

        emit Settled(id, JobId.unwrap(job), d.status, address(0));

        // INVARIANT: a row that nobody has voids the job; a job that is over needs no row.
        if (goesOn) market.onInvalid(job, d.asker);
        vault.unlock(id);
    }

    // -- inside ----------------------------------------------------------------------------------------------------

    function _open(bytes32 id) private view returns (Demand storage d) {
        d = _demands[id];
        // INVARIANT: an answer counts while its demand is open, up to the deadline.
        if (d.status != Status.Open || block.timestamp > d.deadline) revert DemandClosed(id);
    }

    function _expired(bytes32 id) private view returns (Demand storage d) {
        d = _demands[id];
        if (d.status != Status.Open) revert DemandClosed(id);
        // INVARIANT: a demand ends unanswered after its deadline, no sooner.
        if (block.timestamp <= d.deadline) revert TooEarly(uint256(d.deadline) + 1);
    }

    function _goesOn(JobId job) private view returns (bool) {
        JobStatus status = market.job(job).status;
        return status == JobStatus.Active || status == JobStatus.Cancelled;
    }

    /// @dev Leaf `at` of a tensor has `given` bytes.
    function _requireLength(uint256 elements, uint256 at, uint256 given) private pure {
        uint256 rest = 4 * (elements - CHUNK * at);
        // INVARIANT: a leaf has 1 KiB, the last one what is left.
        if (given != (rest < LEAF_BYTES ? rest : LEAF_BYTES)) revert AnswerWrong();
    }

    // -- views -----------------------------------------------------------------------------------------------------

    /// @inheritdoc IAvailability
    function missing(ClaimId claim) external view returns (bool) {
        Asked storage a = _asked[claim];
        if (a.missing) return true;
        if (a.open == 0) return false;
        // INVARIANT: nothing is decided while a demand may still be answered; what is open after that was not answered.
        if (block.timestamp <= a.until) revert TooEarly(uint256(a.until) + 1);
        return true;
    }

    /// @inheritdoc IAvailability
    function demand(bytes32 id) external view returns (Demand memory) {
        return _demands[id];
    }

    /// @inheritdoc IAvailability
    function asked(ClaimId claim) external view returns (Asked memory) {
        return _asked[claim];
    }

    /// @inheritdoc IAvailability
    function seedOf(bytes32 id) public view returns (bytes32) {
        uint256 beacon = _demands[id].beacon;
        // INVARIANT: nobody who demands or answers knows the leaves before the demand stands.
        if (block.number <= beacon) revert TooEarly(beacon + 1);
        bytes32 kept = _seeds[id];
        if (kept != 0) return kept;
        // A hash that the EVM has forgotten is zero for everybody: the demand's own id, new at its time, names the leaves then.
        return keccak256(abi.encode(id, blockhash(beacon)));
    }

    /// @inheritdoc IAvailability
    function keptSeed(bytes32 id) external view returns (bytes32) {
        return _seeds[id];
    }

    /// @inheritdoc IAvailability
    function rowBondOf(JobId job, uint32 row) external view returns (uint256) {
        return _rowBond(job, market.params(job), row);
    }

    /// @inheritdoc IAvailability
    function payloadDemandId(ClaimId claim, uint32 n) public pure returns (bytes32) {
        return keccak256(abi.encode("payload", claim, n));
    }

    /// @inheritdoc IAvailability
    function rowDemandId(JobId job, uint32 row) public pure returns (bytes32) {
        return keccak256(abi.encode("row", job, row));
    }
}
