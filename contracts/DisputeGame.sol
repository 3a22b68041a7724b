// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

import {IArbiter, Opening, OpeningsWrong} from "./interfaces/IArbiter.sol";
import {
    EqualBits,
    Finding,
    GameExists,
    GamePhase,
    GameState,
    IDisputeGame,
    LengthWrong,
    PhaseWrong,
    Proof,
    Signed,
    StandingStale,
    StatementWrong,
    Step,
    StepOutOfRange,
    Stored,
    Verdict,
    Work,
    Wrong
} from "./interfaces/IDisputeGame.sol";
import {Body, Claim, Facts, GameTerms, IJobMarket} from "./interfaces/IJobMarket.sol";
import {IStakeVault, Refund} from "./interfaces/IStakeVault.sol";
import {Clock} from "./libraries/Clock.sol";
import {
    BYTE_GAS,
    CHUNK,
    COMBINED,
    LEVELS,
    MAX_SPENT,
    PARTIALS,
    SCAN,
    TRANSACTION_GAS,
    TWO_MOVES,
    WINNERS,
    ZERO_GAS
} from "./libraries/Constants.sol";
import {GamesOpen, ProofInvalid, Unauthorized} from "./libraries/Errors.sol";
import {GameStates} from "./libraries/GameStates.sol";
import {Ids} from "./libraries/Ids.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Openings} from "./libraries/Openings.sol";
import {DescriptorInvalid, Program} from "./libraries/Program.sol";
import {Rounds} from "./libraries/Rounds.sol";
import {Signatures} from "./libraries/Signatures.sol";
import {Statement} from "./libraries/Statement.sol";
import {ClaimId, GameId, NO_GAME} from "./types/Ids.sol";

/// @title DisputeGame
/// @notice The court: two parties descend from a claim to one element, the Arbiter recomputes it, the loser pays.
/// @dev No owner, no setter. The Python twins: protocol/dispute/game.py has the rules, protocol/market/court.py what is stored and paid.
contract DisputeGame is IDisputeGame {
    using GameStates for GameState;
    using Statement for bytes;

    IJobMarket public immutable market;
    IStakeVault public immutable vault;
    IArbiter public immutable arbiter;

    /// The phases in which the defender moves, a bit each.
    uint256 private constant DEFENDERS = 1 << uint256(GamePhase.TraceReveal) | 1 << uint256(GamePhase.Defend)
        | 1 << uint256(GamePhase.GraphReveal) | 1 << uint256(GamePhase.Tensor) | 1 << uint256(GamePhase.TensorReveal)
        | 1 << uint256(GamePhase.Leaf) | 1 << uint256(GamePhase.Partials) | 1 << uint256(GamePhase.LowPartials);
    /// Those in which a node's descendants are shown, and those in which one of them is picked.
    uint256 private constant REVEALS =
        1 << uint256(GamePhase.TraceReveal) | 1 << uint256(GamePhase.GraphReveal) | 1 << uint256(GamePhase.TensorReveal);
    uint256 private constant PICKS =
        1 << uint256(GamePhase.TracePick) | 1 << uint256(GamePhase.GraphPick) | 1 << uint256(GamePhase.TensorPick);
    /// Those in which operands are shown.
    uint256 private constant PROOFS =
        1 << uint256(GamePhase.Element) | 1 << uint256(GamePhase.PartialPick) | 1 << uint256(GamePhase.Proof);
    /// Those in which partials are posted.
    uint256 private constant POSTS = 1 << uint256(GamePhase.Partials) | 1 << uint256(GamePhase.LowPartials);
    /// What `staged` is for a fold: this, the chunk from bit 32, its word.
    uint256 private constant STAGED_CHUNK = 1 << 248;

    bytes32 private constant CLAIM_TYPE = keccak256(
        "Claim(bytes32 job,uint32 round,uint32 attempt,uint32 slot,bytes32 seed,bytes32 base,bytes32 traceRoot,uint32 transitions,bytes32 out,bytes32 out2)"
    );

    mapping(GameId id => Stored) private _games;
    /// Games in the order of their opening, by how many the market had seen before; those before `_firstLive` are closed.
    mapping(ClaimId claim => mapping(uint256 number => GameId)) private _gamesOn;
    mapping(ClaimId claim => uint256) private _firstLive;
    /// Games that an account defends, on whatever claims.
    mapping(address defender => uint256) public defending;

    constructor(IJobMarket market_, IStakeVault vault_, IArbiter arbiter_) {
        market = market_;
        vault = vault_;
        arbiter = arbiter_;
    }

    // -- opening ---------------------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function open(
        ClaimId claim,
        Body calldata body,
        uint32 nonce,
        uint32 t,
        bytes32 next,
        bytes32[] calldata nextProof,
        Step calldata step
    ) external returns (GameId id) {
        uint256 begun = gasleft();
        id = gameIdOf(claim, msg.sender, nonce);
        // INVARIANT: a claim, a challenger and a nonce name one game.
        if (_games[id].standing != 0 || _isClosed(_games[id])) revert GameExists(id);
        GameTerms memory terms = market.onOpen(claim, body);
        // INVARIANT: a game is about one of the claim's transitions, or about all of them (t = 0).
        if (t > terms.transitions) revert StepOutOfRange(t);

        GameState memory standing;
        standing.claim = claim;
        standing.parties = GameStates.partiesOf(terms.defender, terms.transitions);
        // INVARIANT: every game that an account defends lengthens its clock in the next: many games starve nobody.
        standing.setLeftDefender(Clock.budget(terms.clockSeconds, terms.stepSeconds, defending[terms.defender]++));
        standing.setLeftChallenger(Clock.budget(terms.clockSeconds, 0, 0));

        bytes memory statement;
        GamePhase phase = GamePhase.Defend;
        if (t == 0) {
            (standing.node, standing.statement) = (body.traceRoot, body.traceRoot);
            standing.setRem(uint8(Program.depthOf(standing.size())));
            phase = standing.rem() == 0 ? GamePhase.Adjacent : GamePhase.TraceReveal;
        } else {
            standing.node = Merkle.leaf(next);
            // INVARIANT: the step's end is the claim's own.
            Merkle.verify(body.traceRoot, standing.node, t - 1, Program.depthOf(standing.size()), nextProof);
            statement = _argue(standing, body.traceRoot, t, step);
        }
        _turn(id, standing, phase);
        _begin(id, standing, nonce, statement, terms);
        _spend(id, begun);
    }

    function _begin(
        GameId id,
        GameState memory standing,
        uint32 nonce,
        bytes memory statement,
        GameTerms memory terms
    ) private {
        emit Opened(id, standing, standing.claim, msg.sender, standing.defender(), nonce, standing.t());
        if (standing.t() != 0) emit Argued(id, standing, statement);
        _gamesOn[standing.claim][terms.games] = id;
        vault.lock(msg.sender, GameId.unwrap(id), terms.bond);
    }

    /// @inheritdoc IDisputeGame
    function adjacent(GameId id, GameState memory standing, Step calldata step) external metered(id) {
        _move(id, standing, 1 << uint256(GamePhase.Adjacent));
        bytes memory statement = _argue(standing, standing.statement, standing.position() + 1, step);
        _turn(id, standing, GamePhase.Defend);
        emit Argued(id, standing, statement);
    }

    /// @dev Fixes what is argued: transition t from `step.prev` to the S_t under the trace leaf that is the node.
    function _argue(GameState memory standing, bytes32 traceRoot, uint32 t, Step calldata step)
        private
        view
        returns (bytes memory statement)
    {
        Facts memory facts = market.factsOf(standing.claim, t, step.prevProof);
        if (t == 1) {
            // INVARIANT: the first step starts at the state that the contract computes.
            if (step.prev != facts.stateZero) revert ProofInvalid();
        } else {
            // INVARIANT: the step's start is the claim's own.
            Merkle.verify(traceRoot, Merkle.leaf(step.prev), t - 2, Program.depthOf(standing.size()), step.prevProof);
        }
        // INVARIANT: the job names the Program of every transition.
        if (Statement.programRoot(step.header, step.opsRoot, step.constsRoot) != facts.program) revert ProofInvalid();
        statement = _statement(facts, t, step);
        standing.statement = keccak256(statement);
        standing.setT(t);
    }

    function _statement(Facts memory f, uint32 t, Step calldata step) private pure returns (bytes memory) {
        return
            bytes.concat(
                abi.encodePacked(step.prev, bytes32(0), step.opsRoot, step.constsRoot, f.datasetRoot, f.seed),
                abi.encodePacked(f.datasetRows, f.rowLength, f.round, f.slot, t, f.program, Program.headOf(step.header))
            );
    }

    // -- the defender's moves --------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function defend(
        GameId id,
        GameState memory standing,
        bytes calldata context,
        bytes32 graph,
        bytes32 state,
        bytes32[] calldata blockProof,
        bytes32[] calldata children
    ) external {
        _move(id, standing, 1 << uint256(GamePhase.Defend));
        _requireStatement(standing, context);
        Program.Header memory h = context.head();
        // INVARIANT: what is defended is the S_t of the claim's trace.
        if (Merkle.leaf(state) != standing.node) revert ProofInvalid();
        _requireBlock(h, graph, state, blockProof, children);

        standing.statement = keccak256(context.withGraph(graph));
        standing.node = graph;
        standing.setRem(uint8(h.depth));
        standing.setPosition(0);
        standing.setSize(uint32(h.n));
        standing.setStateBlock(uint32((1 << h.depth) - (1 << h.stateOut)));
        _turn(id, standing, GamePhase.GraphPick);
        emit Defended(id, standing, state, children);
    }

    /// @inheritdoc IDisputeGame
    function reveal(GameId id, GameState memory standing, bytes32[] calldata children) external {
        _move(id, standing, REVEALS);
        _requireChildren(standing.node, standing.rem(), children);
        _turn(id, standing, GamePhase(uint8(standing.phase()) + 1));
        emit Revealed(id, standing, children);
    }

    /// @inheritdoc IDisputeGame
    function revealTensor(
        GameId id,
        GameState memory standing,
        bytes calldata context,
        bytes calldata descriptor,
        bytes32[] calldata descriptorProof,
        bytes32 tree,
        bytes32[] calldata children
    ) external {
        _move(id, standing, 1 << uint256(GamePhase.Tensor));
        _descend(standing, context, descriptor, descriptorProof, tree);
        if (standing.rem() != 0) _requireChildren(tree, standing.rem(), children);
        _turn(id, standing, standing.rem() == 0 ? GamePhase.Leaf : GamePhase.TensorPick);
        emit TensorRevealed(id, standing, children);
    }

    /// @dev From an op in G to the tree of its output.
    function _descend(
        GameState memory standing,
        bytes calldata context,
        bytes calldata descriptor,
        bytes32[] calldata descriptorProof,
        bytes32 tree
    ) private view {
        _requireStatement(standing, context);
        _requireDescriptor(context, standing.position(), descriptor, descriptorProof);
        Program.Op memory op = Program.decode(descriptor);
        // INVARIANT: dtype, rank and dims of an op's output come from its descriptor, never from a mover.
        if (Program.outputRoot(descriptor, op, tree) != standing.node) revert ProofInvalid();
        uint256 size = Program.elements(descriptor, op);

        standing.statement = _below(context, descriptor);
        standing.node = tree;
        standing.setRem(uint8(Program.depthOf(Program.leaves(size))));
        standing.setSize(uint32(size));
        standing.setTerms(_termsOf(descriptor, op));
        standing.setOp(uint16(standing.position()));
        standing.setPosition(0);
    }

    /// @inheritdoc IDisputeGame
    function postLeaf(GameId id, GameState memory standing, bytes calldata data) external {
        _move(id, standing, 1 << uint256(GamePhase.Leaf));
        uint256 rest = 4 * (standing.size() - CHUNK * standing.position());
        // INVARIANT: a leaf has 1 KiB, the last one what is left.
        _requireLength(rest < 4 * CHUNK ? rest : 4 * CHUNK, data.length);
        // INVARIANT: the bytes are those that the leaf commits to.
        if (Openings.leafHash(data) != standing.node) revert ProofInvalid();
        _turn(id, standing, GamePhase.Element);
        emit LeafPosted(id, standing, data);
    }

    /// @inheritdoc IDisputeGame
    function postPartials(GameId id, GameState memory standing, bytes calldata words) external {
        _move(id, standing, POSTS);
        uint256 count = Program.leaves(standing.terms());
        bool grouped = _isGrouped(standing);
        if (grouped) {
            count = standing.phase() == GamePhase.Partials ? Program.leaves(count) : count - CHUNK * standing.group();
            if (count > CHUNK) count = CHUNK;
        }
        // INVARIANT: a level has as many partials as the fold's terms imply.
        _requireLength(4 * count, words.length);

        standing.node = keccak256(bytes.concat(words, standing.node));
        GamePhase then = grouped && standing.phase() == GamePhase.Partials ? GamePhase.PartialPick : GamePhase.Proof;
        _turn(id, standing, then);
        emit PartialsPosted(id, standing, words);
    }

    // -- the challenger's moves ------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function pick(GameId id, GameState memory standing, uint256 i, bytes32 child, bytes32[] calldata siblings)
        external
        metered(id)
    {
        _move(id, standing, PICKS);
        (uint256 rem, uint256 position) = (standing.rem(), standing.position());
        uint256 levels = _levels(rem);
        // INVARIANT: what is picked is one of the nodes that were revealed.
        _requireLength(levels, siblings.length);
        if (Merkle.climb(child, i, siblings) != standing.node) revert ProofInvalid();

        rem -= levels;
        position = uint32((position << levels) | i);
        standing.node = child;
        standing.setRem(uint8(rem));
        standing.setPosition(uint32(position));
        GamePhase then = rem != 0 ? GamePhase(uint8(standing.phase()) - 1) : _bottom(standing);
        _turn(id, standing, then);
        emit Picked(id, standing);
    }

    /// @dev What stands at `position` of the tree that was descended: the phase in which it is argued about.
    function _bottom(GameState memory standing) private pure returns (GamePhase) {
        (GamePhase phase, uint256 position) = (standing.phase(), standing.position());
        if (phase == GamePhase.TracePick) return position < standing.size() ? GamePhase.Adjacent : GamePhase.Padding;
        if (phase == GamePhase.TensorPick) return position < Program.leaves(standing.size()) ? GamePhase.Leaf : GamePhase.Padding;
        if (position < standing.size()) return GamePhase.Tensor;
        return position >= standing.stateBlock() ? GamePhase.Alias : GamePhase.Padding;
    }

    /// @inheritdoc IDisputeGame
    function pickElement(GameId id, GameState memory standing, uint256 i) external metered(id) {
        _move(id, standing, 1 << uint256(GamePhase.Element));
        // What has no partials is picked by its proof.
        if (standing.terms() <= CHUNK) revert PhaseWrong(standing.phase());
        _pickElement(standing, i);
        standing.node = _under(standing.node, standing.position());
        _turn(id, standing, GamePhase.Partials);
        emit ElementPicked(id, standing);
    }

    function _pickElement(GameState memory standing, uint256 i) private pure {
        uint256 words = standing.size() - CHUNK * standing.position();
        if (words > CHUNK) words = CHUNK;
        // INVARIANT: an element that is picked was posted.
        if (i >= words) revert LengthWrong(words, i);
        standing.setPosition(uint32(standing.position() * CHUNK + i));
    }

    /// @inheritdoc IDisputeGame
    function pickPartial(GameId id, GameState memory standing, uint16 i, bytes calldata posted) external metered(id) {
        _move(id, standing, 1 << uint256(GamePhase.PartialPick));
        uint32 word = _wordAt(_posted(standing.node, posted), i);
        standing.setGroup(uint8(i));
        standing.setWord(word);
        standing.node = _under(standing.node, i);
        _turn(id, standing, GamePhase.LowPartials);
        emit PartialPicked(id, standing);
    }

    /// @inheritdoc IDisputeGame
    function stage(GameId id, GameState memory standing, Proof calldata proof) external metered(id) {
        _execution(id, standing, proof, false);
        bool picks = standing.phase() == GamePhase.Element;
        uint256 staged;
        if (standing.terms() == 0) {
            bytes memory where = abi.encode(proof.context.roots(), proof.context.context(standing.op()), standing.position());
            staged = _ask(proof, IArbiter.stage.selector, where, standing.staged);
        } else {
            (, uint32 chunk) = _claimed(standing, proof);
            staged = STAGED_CHUNK | uint256(chunk) << 32 | _execute(standing, proof, chunk);
        }
        standing.staged = staged;
        _turn(id, standing, GamePhase.Proof);
        if (picks) emit ElementPicked(id, standing);
        emit Staged(id, standing);
    }

    /// @inheritdoc IDisputeGame
    function proveOp(GameId id, GameState memory standing, Proof calldata proof) external {
        uint256 begun = gasleft();
        _execution(id, standing, proof, proof.chunk == COMBINED);
        (uint32 claimed, uint32 chunk) = _claimed(standing, proof);
        bool executed = standing.terms() != 0 && standing.staged >> 32 == STAGED_CHUNK >> 32 | chunk;
        uint32 computed = executed ? uint32(standing.staged) : _execute(standing, proof, chunk);
        // INVARIANT: equal bits convict nobody.
        if (computed == claimed) revert EqualBits(bytes32(uint256(computed)));
        Finding memory found = _finding(Wrong.Op, standing.op(), bytes32(uint256(claimed)), bytes32(uint256(computed)));
        (found.program, found.t) = (proof.context.program(), proof.context.t());
        (found.element, found.chunk) = (standing.position(), chunk);
        _convict(id, standing, found, begun);
    }

    /// @dev A move that shows an op's operands begins. Where nothing is posted below a leaf, it picks the leaf's element, too.
    /// @param combined Whether it is about the combination of the words that are posted.
    function _execution(GameId id, GameState memory standing, Proof calldata proof, bool combined) private view {
        _move(id, standing, PROOFS);
        GamePhase phase = standing.phase();
        bool picks = phase == GamePhase.Element && standing.terms() <= CHUNK;
        if (phase != GamePhase.Proof && !picks && !(phase == GamePhase.PartialPick && combined)) revert PhaseWrong(phase);
        // INVARIANT: a game argues about one statement, and below an op about that op.
        if (_below(proof.context, proof.descriptor) != standing.statement) revert StatementWrong();
        if (!picks) return;
        _pickElement(standing, proof.chunk);
        // INVARIANT: the bytes are those that the leaf commits to.
        if (Openings.leafHash(proof.posted) != standing.node) revert ProofInvalid();
        standing.setWord(uint32(Openings.word(proof.posted, proof.chunk)));
    }

    /// @dev What is claimed of the element, or of the chunk that the proof names among the posted words, or of their combination;
    /// and which chunk it is.
    function _claimed(GameState memory standing, Proof calldata proof) private view returns (uint32, uint32) {
        if (standing.terms() <= CHUNK) return (standing.word(), 0);
        bytes calldata words = _posted(standing.node, proof.posted);
        if (proof.chunk != COMBINED) return (_wordAt(words, proof.chunk), uint32(CHUNK * standing.group() + proof.chunk));
        if (standing.phase() == GamePhase.Proof && _isGrouped(standing)) return (standing.word(), COMBINED);
        // INVARIANT: an element reads exactly the openings that its descriptor implies.
        if (proof.openings.length != 1) revert OpeningsWrong(proof.openings.length);
        bytes calldata leaf = proof.openings[0].data;
        // INVARIANT: the bytes are those that the leaf commits to.
        if (_under(Openings.leafHash(leaf), standing.position()) != bytes32(proof.posted[words.length:])) revert ProofInvalid();
        return (uint32(Openings.word(leaf, standing.position() % CHUNK)), COMBINED);
    }

    /// @dev The node of what was picked in a leaf, or among partials: an answer to one pick answers no other.
    function _under(bytes32 node, uint64 place) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(node, place));
    }

    /// @dev The partials in `posted`, where the node that they answered stands behind them.
    function _posted(bytes32 node, bytes calldata posted) private pure returns (bytes calldata) {
        // INVARIANT: the words are those that were posted.
        if (keccak256(posted) != node) revert ProofInvalid();
        return posted[:posted.length - 32];
    }

    function _execute(GameState memory standing, Proof calldata proof, uint32 chunk) private view returns (uint32) {
        // INVARIANT: partials combine to the word that they explain.
        if (chunk == COMBINED) return arbiter.combine(uint8(proof.descriptor[1]), proof.posted[:proof.posted.length - 32]);
        bytes memory where = abi.encode(proof.context.roots(), proof.context.context(standing.op()), standing.position(), chunk);
        return uint32(_ask(proof, IArbiter.execute.selector, where, standing.staged));
    }

    /// @dev What the Arbiter says about the proof's op at `where`. Descriptor and openings go on as they came: behind the arguments
    /// of fixed length lie the call's own bytes from the proof on, which the two offsets point into.
    function _ask(Proof calldata proof, bytes4 what, bytes memory where, uint256 staged) private view returns (uint256 word) {
        bytes calldata descriptor = proof.descriptor;
        Opening[] calldata openings = proof.openings;
        IArbiter asked = arbiter;
        assembly ("memory-safe") {
            let begin := mload(0x40)
            let length := mload(where)
            mstore(begin, what)
            // From what lies 32 bytes, its length, before the first byte or opening, to what lies behind the arguments.
            let moved := sub(add(length, 0x40), proof)
            mstore(add(begin, 0x04), add(descriptor.offset, moved))
            let to := add(begin, 0x24)
            for { let i := 0 } lt(i, length) { i := add(i, 0x20) } { mstore(add(to, i), mload(add(add(where, 0x20), i))) }
            to := add(to, length)
            mstore(to, add(openings.offset, moved))
            mstore(add(to, 0x20), staged)
            to := add(to, 0x40)
            let rest := sub(calldatasize(), proof)
            calldatacopy(to, proof, rest)
            if iszero(staticcall(gas(), asked, begin, sub(add(to, rest), begin), 0x00, 0x20)) {
                returndatacopy(begin, 0x00, returndatasize())
                revert(begin, returndatasize())
            }
            word := mload(0x00)
        }
    }

    /// @dev Whether a fold shows the partials of its groups before those of a group's chunks.
    function _isGrouped(GameState memory standing) private pure returns (bool) {
        return Program.leaves(standing.terms()) > PARTIALS;
    }

    /// @inheritdoc IDisputeGame
    function proveAlias(
        GameId id,
        GameState memory standing,
        bytes calldata context,
        bytes calldata header,
        bytes32 value,
        bytes32[] calldata proof
    ) external {
        uint256 begun = gasleft();
        _move(id, standing, 1 << uint256(GamePhase.Alias));
        _requireStatement(standing, context);
        uint256 entry = standing.position() - standing.stateBlock();
        value = _named(context, header, entry, value, proof);
        // INVARIANT: equal bits convict nobody.
        if (value == standing.node) revert EqualBits(value);
        Finding memory found = _finding(Wrong.Alias, uint64(entry), standing.node, value);
        (found.program, found.t) = (context.program(), context.t());
        _convict(id, standing, found, begun);
    }

    /// @dev What an entry of the state block is, by the Program's state table: `value`, which the proof shows, or EMPTY.
    function _named(
        bytes calldata context, bytes calldata header, uint256 entry, bytes32 value, bytes32[] calldata proof
    ) private view returns (bytes32) {
        // INVARIANT: the state table is the Program's own.
        if (Statement.programRoot(header, context.opsRoot(), context.constsRoot()) != context.program()) revert ProofInvalid();
        Program.Header memory h = Program.decodeHeader(header);
        (uint256 kind, uint256 index) = Program.aliasOf(header, h, entry);
        if (kind == Program.ALIAS_EMPTY) return 0;
        if (kind == Program.ALIAS_OP) Merkle.verify(context.graph(), value, index, h.depth, proof);
        else Merkle.verify(context.prev(), value, index, h.stateIn, proof);
        return value;
    }

    /// @inheritdoc IDisputeGame
    function provePadding(GameId id, GameState memory standing) external {
        uint256 begun = gasleft();
        _move(id, standing, 1 << uint256(GamePhase.Padding));
        // INVARIANT: equal bits convict nobody; padding is EMPTY.
        if (standing.node == 0) revert EqualBits(0);
        Finding memory found = _finding(Wrong.Padding, standing.position(), standing.node, 0);
        found.t = standing.t();
        _convict(id, standing, found, begun);
    }

    /// @inheritdoc IDisputeGame
    function equivocate(Work calldata work, Signed calldata a, Signed calldata b) external {
        uint256 begun = gasleft();
        ClaimId claim = Ids.claim(work.job, work.round, work.attempt, work.slot);
        Claim memory c = market.claim(claim);
        address worker = c.worker;
        (bytes32 first, bytes32 second) = (_digestOf(work, a), _digestOf(work, b));
        // INVARIANT: a claim that is signed twice is still one claim.
        if (first == second) revert EqualBits(first);
        // INVARIANT: only the claim's own worker equivocates.
        if (!Signatures.isSigned(worker, first, a.signature) || !Signatures.isSigned(worker, second, b.signature)) {
            revert Unauthorized(worker);
        }
        // INVARIANT: no worker takes the prize of a game on its claim by two signatures of its own.
        if (c.openGames != 0) revert GamesOpen(c.openGames);
        emit Convicted(NO_GAME, claim, _finding(Wrong.Equivocation, 0, first, second));
        // INVARIANT: two signatures earn nobody a prize: who shows them has its gas back.
        _award(claim, 0, Rounds.BURN, Refund(msg.sender, _metered(0, begun)));
    }

    /// @dev What is signed: EIP-712, in the domain of the market.
    function _digestOf(Work calldata work, Signed calldata said) private view returns (bytes32) {
        bytes memory encoded = bytes.concat(
            abi.encode(CLAIM_TYPE, work.job, work.round, work.attempt, work.slot, work.seed, work.base),
            abi.encode(said.traceRoot, said.transitions, said.out, said.out2)
        );
        return Ids.typed(address(market), keccak256(encoded));
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function resolve(GameId id, GameState memory standing) external {
        _requireStanding(id, standing);
        // INVARIANT: a claim is convicted once; games on it that come too late cost their challengers nothing.
        if (!market.live(standing.claim)) return _close(id, standing, Verdict.Void);
        Clock.requireExpired(standing.deadline());
        _close(id, standing, _isDefenders(standing.phase()) ? Verdict.Timeout : Verdict.Rejected);
    }

    function _finding(Wrong wrong, uint64 position, bytes32 claimed, bytes32 computed)
        private
        pure
        returns (Finding memory found)
    {
        found.wrong = wrong;
        found.position = position;
        found.claimedBits = claimed;
        found.contractBits = computed;
    }

    function _convict(GameId id, GameState memory standing, Finding memory found, uint256 begun) private {
        emit Convicted(id, standing.claim, found);
        _spend(id, begun);
        _close(id, standing, Verdict.Fraud);
    }

    function _close(GameId id, GameState memory standing, Verdict verdict) private {
        (ClaimId claim, address challenger, address defender) = (standing.claim, _challengerOf(id), standing.defender());
        // A missed deadline proves no step wrong.
        (uint32 t, uint256 spent) = (verdict == Verdict.Fraud ? standing.t() : 0, _games[id].spent);
        defending[defender] -= 1;
        _games[id] = Stored(0, 0, verdict);
        address winner = verdict == Verdict.Rejected ? defender : verdict == Verdict.Void ? address(0) : challenger;
        emit Resolved(id, claim, verdict, winner);
        if (verdict == Verdict.Rejected) {
            _skipClosed(claim);
            market.onRejected(claim);
            vault.takeBond(GameId.unwrap(id), defender, type(uint256).max);
        } else {
            if (verdict != Verdict.Void) _award(claim, t, winner, Refund(winner, spent));
            vault.unlock(GameId.unwrap(id));
        }
    }

    /// @dev The claim is wrong: the prize is `first`'s and the two earliest other live games', who are given their gas back, too. A game
    ///      beyond SCAN from the earliest live one has no part: a verdict costs the same however many games there are.
    function _award(ClaimId claim, uint32 t, address first, Refund memory spent) private {
        address[] memory winners = new address[](WINNERS);
        Refund[] memory refunds = new Refund[](SCAN + 1);
        (winners[0], refunds[0]) = (first, spent);
        (uint256 sharing, uint256 refunded) = (1, 1);
        uint256 i = _firstLive[claim];
        for (uint256 end = i + SCAN; i < end; i++) {
            GameId id = _gamesOn[claim][i];
            Stored storage stored = _games[id];
            if (_isClosed(stored)) continue;
            if (stored.standing == 0) break;
            if (sharing < WINNERS) winners[sharing++] = _challengerOf(id);
            refunds[refunded++] = Refund(_challengerOf(id), stored.spent);
        }
        assembly ("memory-safe") {
            mstore(winners, sharing)
            mstore(refunds, refunded)
        }
        market.onConvicted(claim, t, winners, refunds);
    }

    /// @dev Some steps at a time, as games close.
    function _skipClosed(ClaimId claim) private {
        uint256 from = _firstLive[claim];
        uint256 i = from;
        while (i < from + SCAN && _isClosed(_games[_gamesOn[claim][i]])) i++;
        if (i != from) _firstLive[claim] = i;
    }

    // -- turns -----------------------------------------------------------------------------------------------------

    function _requireStanding(GameId id, GameState memory standing) private view {
        Stored storage stored = _games[id];
        if (stored.standing == 0) revert PhaseWrong(_isClosed(stored) ? GamePhase.Closed : GamePhase.None);
        // INVARIANT: a move answers the game as it stands.
        if (standing.digest() != stored.standing) revert StandingStale(stored.standing);
    }

    /// @dev A move begins: about the game as it stands, in one of `phases`, in time, by the side whose turn it is.
    function _move(GameId id, GameState memory standing, uint256 phases) private view {
        _requireStanding(id, standing);
        GamePhase phase = standing.phase();
        if (phases >> uint256(phase) & 1 == 0) revert PhaseWrong(phase);
        uint24 left = Clock.stop(standing.deadline());
        if (_isDefenders(phase)) {
            // INVARIANT: the defender or its delegate answers.
            if (msg.sender != standing.defender() && !vault.mayAct(standing.defender(), msg.sender)) revert Unauthorized(msg.sender);
            standing.setLeftDefender(left);
        } else {
            // INVARIANT: the challenger alone points.
            if (msg.sender != _challengerOf(id)) revert Unauthorized(msg.sender);
            standing.setLeftChallenger(left);
        }
    }

    /// @dev A move ends: the clock of whoever moves in `phase` starts, and the hash of the game as it then stands is stored.
    function _turn(GameId id, GameState memory standing, GamePhase phase) private {
        standing.setTurn(phase, Clock.start(_isDefenders(phase) ? standing.leftDefender() : standing.leftChallenger()));
        _games[id].standing = standing.digest();
    }

    function _isClosed(Stored storage stored) private view returns (bool) {
        return stored.verdict != Verdict.None;
    }

    /// @dev Counts the gas of a challenger's move.
    modifier metered(GameId id) {
        uint256 begun = gasleft();
        _;
        _spend(id, begun);
    }

    function _spend(GameId id, uint256 begun) private {
        Stored storage stored = _games[id];
        stored.spent = _metered(stored.spent, begun);
    }

    /// @dev What a call has spent, and what was spent before it.
    function _metered(uint256 before, uint256 begun) private view returns (uint24) {
        uint256 data = _dataGas();
        return uint24(Math.min(before + TRANSACTION_GAS + data + begun - gasleft(), MAX_SPENT));
    }

    function _dataGas() private pure returns (uint256) {
        uint256 zeros;
        assembly ("memory-safe") {
            let low := div(not(0), 0xff)
            let rest := mul(low, 0x7f)
            for { let at := 0 } lt(at, calldatasize()) { at := add(at, 0x20) } {
                let word := calldataload(at)
                // The high bit of every byte that is zero; the top byte of the product is their number.
                let found := not(or(or(add(and(word, rest), rest), word), rest))
                zeros := add(zeros, shr(248, mul(shr(7, found), low)))
            }
            // The last word is filled up with zeros.
            zeros := sub(zeros, and(sub(0, calldatasize()), 0x1f))
        }
        // INVARIANT: nobody is refunded more for a call's data than it costs: zeros behind the arguments earn nothing.
        return BYTE_GAS * msg.data.length - (BYTE_GAS - ZERO_GAS) * zeros;
    }

    /// @dev The account that opened the game: its id ends with it.
    function _challengerOf(GameId id) private pure returns (address) {
        return address(uint160(uint256(GameId.unwrap(id))));
    }

    function _isDefenders(GamePhase phase) private pure returns (bool) {
        return DEFENDERS >> uint256(phase) & 1 == 1;
    }

    // -- shapes ----------------------------------------------------------------------------------------------------

    /// @dev r: equal parts of at most 6 levels; 13 levels are two moves.
    function _levels(uint256 rem) private pure returns (uint256) {
        uint256 moves = rem == TWO_MOVES ? 2 : (rem + LEVELS - 1) / LEVELS;
        return (rem + moves - 1) / moves;
    }

    function _requireChildren(bytes32 node, uint256 rem, bytes32[] calldata children) private view {
        // INVARIANT: a reveal shows exactly the 2^r descendants, r levels down, of the node that it answers.
        _requireLength(1 << _levels(rem), children.length);
        if (Merkle.rootOf(children) != node) revert ProofInvalid();
    }

    /// @dev S_t stands above the nodes that are shown, or `blockProof` leads from it to the last of them.
    function _requireBlock(
        Program.Header memory h,
        bytes32 graph,
        bytes32 state,
        bytes32[] calldata blockProof,
        bytes32[] calldata children
    ) private view {
        (uint256 up, uint256 shown) = (h.depth - h.stateOut, _levels(h.depth));
        _requireLength(1 << shown, children.length);
        bytes32[] memory nodes = children;
        uint256 level = up < shown ? up : shown;
        Merkle.reduce(nodes, 1 << level);
        up -= level;
        // INVARIANT: S_t is the last aligned block of 2^s_out leaves of G_t.
        Merkle.verify(nodes[nodes.length - 1], state, (1 << up) - 1, up, blockProof);
        // INVARIANT: what is shown are the descendants of G_t.
        if (Merkle.rootOf(nodes) != graph) revert ProofInvalid();
    }

    function _requireLength(uint256 expected, uint256 given) private pure {
        if (expected != given) revert LengthWrong(expected, given);
    }

    function _requireStatement(GameState memory standing, bytes calldata context) private pure {
        // INVARIANT: a game argues about one statement.
        if (keccak256(context) != standing.statement) revert StatementWrong();
    }

    function _requireDescriptor(
        bytes calldata context, uint256 op, bytes calldata descriptor, bytes32[] calldata descriptorProof
    ) private view {
        // INVARIANT: the descriptor is the Program's own.
        Merkle.verify(context.opsRoot(), Openings.leafHash(descriptor), op, Program.depthOf(context.head().n), descriptorProof);
    }

    function _termsOf(bytes calldata descriptor, Program.Op memory op) private pure returns (uint32) {
        uint256 terms = Program.terms(descriptor, op);
        // INVARIANT: elements and terms of an op are counted in 32 bits.
        if (terms > type(uint32).max) revert DescriptorInvalid();
        return uint32(terms);
    }

    /// @dev What is argued below an op: the statement and the op's descriptor, of which the first has a fixed length here.
    function _below(bytes calldata context, bytes calldata descriptor) private pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(context), descriptor));
    }

    function _wordAt(bytes calldata words, uint256 i) private pure returns (uint32) {
        // INVARIANT: a partial that is picked was posted.
        if (4 * i >= words.length) revert LengthWrong(words.length / 4, i);
        return uint32(bytes4(words[4 * i:4 * i + 4]));
    }

    // -- views -----------------------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function game(GameId id) external view returns (Stored memory) {
        return _games[id];
    }

    /// @inheritdoc IDisputeGame
    function gameIdOf(ClaimId claim, address challenger, uint32 nonce) public pure returns (GameId) {
        bytes32 digest = keccak256(abi.encode(claim, challenger, nonce));
        return GameId.wrap(bytes32((uint256(digest) >> 160) << 160 | uint160(challenger)));
    }
}
