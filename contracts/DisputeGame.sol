// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

import {IArbiter} from "./interfaces/IArbiter.sol";
import {IDisputeGame} from "./interfaces/IDisputeGame.sol";
import {IJobMarket} from "./interfaces/IJobMarket.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {Clock} from "./libraries/Clock.sol";
import {BYTE_GAS, CHUNK, COMBINED, LEVELS, MAX_SPENT, PARTIALS, SCAN, TRANSACTION_GAS, TWO_MOVES, WINNERS} from "./libraries/Constants.sol";
import {ProofInvalid, Unauthorized} from "./libraries/Errors.sol";
import {Ids} from "./libraries/Ids.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Openings} from "./libraries/Openings.sol";
import {DescriptorInvalid, Program} from "./libraries/Program.sol";
import {Signatures} from "./libraries/Signatures.sol";
import {Statement} from "./libraries/Statement.sol";
import {ClaimId, GameId, NO_GAME} from "./types/Ids.sol";

/// @title DisputeGame
/// @notice The court: two parties descend from a claim to one element, the Arbiter recomputes it, the loser pays.
/// @dev No owner, no setter. The Python twins: protocol/dispute/game.py has the rules, protocol/market/court.py what is stored and paid.
contract DisputeGame is IDisputeGame {
    using Statement for bytes;

    IJobMarket public immutable market;
    IStakeVault public immutable vault;
    IArbiter public immutable arbiter;

    /// Of storage, that a game takes.
    uint256 private constant GAME_WORDS = 6;
    /// The word of it with the phase, and where its fields begin: phase u8, rem u8, deadline u40, verdict u8, leftDefender u24,
    /// leftChallenger u24.
    uint256 private constant TURN_WORD = 4;
    uint256 private constant DEADLINE_AT = 16;
    uint256 private constant LEFT_DEFENDER_AT = 64;
    uint256 private constant LEFT_CHALLENGER_AT = 88;
    uint256 private constant CLOCK_MASK = type(uint24).max;
    uint256 private constant TURN_MASK = uint256(type(uint40).max) << DEADLINE_AT | type(uint8).max;
    /// The phases in which the defender moves, a bit each.
    uint256 private constant DEFENDERS = 1 << uint256(Phase.TraceReveal) | 1 << uint256(Phase.Defend)
        | 1 << uint256(Phase.GraphReveal) | 1 << uint256(Phase.Tensor) | 1 << uint256(Phase.TensorReveal)
        | 1 << uint256(Phase.Leaf) | 1 << uint256(Phase.Partials) | 1 << uint256(Phase.LowPartials);
    /// Those in which a node's descendants are shown, and those in which one of them is picked.
    uint256 private constant REVEALS =
        1 << uint256(Phase.TraceReveal) | 1 << uint256(Phase.GraphReveal) | 1 << uint256(Phase.TensorReveal);
    uint256 private constant PICKS =
        1 << uint256(Phase.TracePick) | 1 << uint256(Phase.GraphPick) | 1 << uint256(Phase.TensorPick);
    /// Those in which partials are posted.
    uint256 private constant POSTS = 1 << uint256(Phase.Partials) | 1 << uint256(Phase.LowPartials);
    /// What `staged` is for a fold: this, the chunk from bit 32, its word.
    uint256 private constant STAGED_CHUNK = 1 << 248;

    bytes32 private constant CLAIM_TYPE = keccak256(
        "Claim(bytes32 job,uint32 round,uint32 attempt,uint32 slot,bytes32 seed,bytes32 base,bytes32 traceRoot,uint32 transitions,bytes32 out,bytes32 out2)"
    );

    mapping(GameId id => Game) private _games;
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
        IJobMarket.Body calldata body,
        uint32 nonce,
        uint32 t,
        bytes32 next,
        bytes32[] calldata nextProof,
        Step calldata step
    ) external returns (GameId id) {
        uint256 begun = gasleft();
        id = gameIdOf(claim, msg.sender, nonce);
        Game storage g = _games[id];
        // INVARIANT: a claim, a challenger and a nonce name one game.
        if (g.phase != Phase.None) revert GameExists(id);
        IJobMarket.GameTerms memory terms = market.onOpen(claim, body);
        // INVARIANT: a game is about one of the claim's transitions, or about all of them (t = 0).
        if (t > terms.transitions) revert StepOutOfRange(t);

        g.claim = claim;
        g.defender = terms.defender;
        // INVARIANT: every game that an account defends lengthens its clock in the next: many games starve nobody.
        g.leftDefender = Clock.budget(terms.clockSeconds, terms.stepSeconds, defending[terms.defender]++);
        g.leftChallenger = Clock.budget(terms.clockSeconds, 0, 0);
        emit Opened(id, claim, msg.sender, terms.defender, nonce, t);

        uint256 depth = Program.depthOf(terms.transitions);
        if (t == 0) {
            g.node = body.traceRoot;
            g.statement = body.traceRoot;
            g.rem = uint8(depth);
            g.size = terms.transitions;
            _turn(g, depth == 0 ? Phase.Adjacent : Phase.TraceReveal);
        } else {
            bytes32 node = Merkle.leaf(next);
            // INVARIANT: the step's end is the claim's own.
            Merkle.verify(body.traceRoot, node, t - 1, depth, nextProof);
            g.node = node;
            _argue(id, g, body.traceRoot, depth, t, step);
        }
        _gamesOn[claim][terms.games] = id;
        vault.lock(msg.sender, GameId.unwrap(id), terms.bond);
        _spend(g, begun);
    }

    /// @inheritdoc IDisputeGame
    function adjacent(GameId id, bytes32 answered, Step calldata step) external metered(id) {
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Adjacent));
        _argue(id, g, g.statement, Program.depthOf(g.size), g.position + 1, step);
    }

    /// @dev Fixes what is argued: transition t from `step.prev` to the S_t under the stored trace leaf.
    function _argue(GameId id, Game storage g, bytes32 traceRoot, uint256 depth, uint32 t, Step calldata step) private {
        IJobMarket.Facts memory facts = market.factsOf(g.claim, t, step.prevProof);
        if (t == 1) {
            // INVARIANT: the first step starts at the state that the contract computes.
            if (step.prev != facts.stateZero) revert ProofInvalid();
        } else {
            // INVARIANT: the step's start is the claim's own.
            Merkle.verify(traceRoot, Merkle.leaf(step.prev), t - 2, depth, step.prevProof);
        }
        // INVARIANT: the job names the Program of every transition.
        if (Statement.programRoot(step.header, step.opsRoot, step.constsRoot) != facts.program) revert ProofInvalid();
        bytes memory statement = _statement(facts, t, step);
        g.statement = keccak256(statement);
        g.t = t;
        emit Argued(id, t, g.node, statement);
        _turn(g, Phase.Defend);
    }

    function _statement(IJobMarket.Facts memory f, uint32 t, Step calldata step) private pure returns (bytes memory) {
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
        bytes32 answered,
        bytes calldata context,
        bytes32 graph,
        bytes32 state,
        bytes32[] calldata blockProof,
        bytes32[] calldata children
    ) external {
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Defend));
        _requireStatement(g, context);
        Program.Header memory h = context.head();
        // INVARIANT: what is defended is the S_t of the claim's trace.
        if (Merkle.leaf(state) != answered) revert ProofInvalid();
        // INVARIANT: S_t is the last aligned block of 2^s_out leaves of G_t.
        uint256 up = h.depth - h.stateOut;
        Merkle.verify(graph, state, (1 << up) - 1, up, blockProof);
        _requireChildren(graph, h.depth, children);

        g.statement = keccak256(context.withGraph(graph));
        g.node = graph;
        g.rem = uint8(h.depth);
        g.position = 0;
        g.size = uint32(h.n);
        g.block_ = uint32((1 << h.depth) - (1 << h.stateOut));
        emit Defended(id, graph, state, children);
        _turn(g, Phase.GraphPick);
    }

    /// @inheritdoc IDisputeGame
    function reveal(GameId id, bytes32 answered, bytes32[] calldata children) external {
        (Game storage g, Phase phase) = _move(id, answered, REVEALS);
        _requireChildren(answered, g.rem, children);
        emit Revealed(id, answered, children);
        _turn(g, Phase(uint8(phase) + 1));
    }

    /// @inheritdoc IDisputeGame
    function revealTensor(
        GameId id,
        bytes32 answered,
        bytes calldata context,
        bytes calldata descriptor,
        bytes32[] calldata descriptorProof,
        bytes32 tree,
        bytes32[] calldata children
    ) external {
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Tensor));
        _requireStatement(g, context);
        uint256 at = g.position;
        _requireDescriptor(context, at, descriptor, descriptorProof);
        Program.Op memory op = Program.decode(descriptor);
        // INVARIANT: dtype, rank and dims of an op's output come from its descriptor, never from a mover.
        if (Program.outputRoot(descriptor, op, tree) != answered) revert ProofInvalid();
        uint256 size = Program.elements(descriptor, op);
        uint256 depth = Program.depthOf(Program.leaves(size));
        if (depth != 0) _requireChildren(tree, depth, children);

        g.statement = _below(context, descriptor);
        g.node = tree;
        g.rem = uint8(depth);
        g.position = 0;
        g.size = uint32(size);
        g.terms = _termsOf(descriptor, op);
        g.op = uint16(at);
        emit TensorRevealed(id, uint16(at), tree, children);
        _turn(g, depth == 0 ? Phase.Leaf : Phase.TensorPick);
    }

    /// @inheritdoc IDisputeGame
    function postLeaf(GameId id, bytes32 answered, bytes calldata data) external {
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Leaf));
        uint256 rest = 4 * (g.size - CHUNK * g.position);
        // INVARIANT: a leaf has 1 KiB, the last one what is left.
        _requireLength(rest < 4 * CHUNK ? rest : 4 * CHUNK, data.length);
        // INVARIANT: the bytes are those that the leaf commits to.
        if (Openings.leafHash(data) != answered) revert ProofInvalid();
        emit LeafPosted(id, data);
        _turn(g, Phase.Element);
    }

    /// @inheritdoc IDisputeGame
    function postPartials(GameId id, bytes32 answered, bytes calldata words) external {
        (Game storage g, Phase phase) = _move(id, answered, POSTS);
        uint256 count = Program.leaves(g.terms);
        bool grouped = _isGrouped(g);
        if (grouped) {
            count = phase == Phase.Partials ? Program.leaves(count) : count - CHUNK * g.group;
            if (count > CHUNK) count = CHUNK;
        }
        // INVARIANT: a level has as many partials as the fold's terms imply.
        _requireLength(4 * count, words.length);

        g.node = keccak256(bytes.concat(words, answered));
        emit PartialsPosted(id, words);
        _turn(g, grouped && phase == Phase.Partials ? Phase.PartialPick : Phase.Proof);
    }

    // -- the challenger's moves ------------------------------------------------------------------------------------

    /// @inheritdoc IDisputeGame
    function pick(GameId id, bytes32 answered, uint256 i, bytes32 child, bytes32[] calldata siblings)
        external
        metered(id)
    {
        (Game storage g, Phase phase) = _move(id, answered, PICKS);
        (uint256 rem, uint256 position) = (g.rem, g.position);
        uint256 levels = _levels(rem);
        // INVARIANT: what is picked is one of the nodes that were revealed.
        _requireLength(levels, siblings.length);
        if (Merkle.climb(child, i, siblings) != answered) revert ProofInvalid();

        rem -= levels;
        position = uint32((position << levels) | i);
        g.node = child;
        g.rem = uint8(rem);
        g.position = uint32(position);
        Phase then = rem != 0 ? Phase(uint8(phase) - 1) : _bottom(g, phase, position);
        emit Picked(id, then, uint64(position), child);
        _turn(g, then);
    }

    /// @dev What stands at `position` of the tree that was descended: the phase in which it is argued about.
    function _bottom(Game storage g, Phase phase, uint256 position) private view returns (Phase) {
        if (phase == Phase.TracePick) return position < g.size ? Phase.Adjacent : Phase.Padding;
        if (phase == Phase.TensorPick) return position < Program.leaves(g.size) ? Phase.Leaf : Phase.Padding;
        if (position < g.size) return Phase.Tensor;
        return position >= g.block_ ? Phase.Alias : Phase.Padding;
    }

    /// @inheritdoc IDisputeGame
    function pickElement(GameId id, bytes32 answered, uint256 i) external metered(id) {
        // What has no partials is picked by its proof.
        if (_games[id].terms <= CHUNK) revert PhaseWrong(_games[id].phase);
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Element));
        _pickElement(g, i);
        g.node = _under(answered, g.position);
        emit ElementPicked(id, g.position);
        _turn(g, Phase.Partials);
    }

    function _pickElement(Game storage g, uint256 i) private {
        uint256 words = g.size - CHUNK * g.position;
        if (words > CHUNK) words = CHUNK;
        // INVARIANT: an element that is picked was posted.
        if (i >= words) revert LengthWrong(words, i);
        g.position = uint32(g.position * CHUNK + i);
    }

    /// @inheritdoc IDisputeGame
    function pickPartial(GameId id, bytes32 answered, uint16 i, bytes calldata posted) external metered(id) {
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.PartialPick));
        uint32 word = _wordAt(_posted(answered, posted), i);
        g.group = uint8(i);
        g.word = word;
        g.node = _under(answered, i);
        emit PartialPicked(id, i, word);
        _turn(g, Phase.LowPartials);
    }

    /// @inheritdoc IDisputeGame
    function stage(GameId id, bytes32 answered, Proof calldata proof) external metered(id) {
        bool picks = _games[id].phase == Phase.Element;
        Game storage g = _execution(id, answered, proof, false);
        if (picks) emit ElementPicked(id, g.position);
        uint256 staged;
        if (g.terms == 0) {
            staged = arbiter.stage(
                proof.descriptor, proof.context.roots(), proof.context.context(g.op), g.position, proof.openings, g.staged
            );
        } else {
            (, uint32 chunk) = _claimed(g, answered, proof);
            staged = STAGED_CHUNK | uint256(chunk) << 32 | _execute(g, proof, chunk);
        }
        g.staged = staged;
        emit Staged(id, staged);
        _turn(g, Phase.Proof);
    }

    /// @inheritdoc IDisputeGame
    function proveOp(GameId id, bytes32 answered, Proof calldata proof) external {
        uint256 begun = gasleft();
        Game storage g = _execution(id, answered, proof, proof.chunk == COMBINED);
        (uint32 claimed, uint32 chunk) = _claimed(g, answered, proof);
        bool executed = g.terms != 0 && g.staged >> 32 == STAGED_CHUNK >> 32 | chunk;
        uint32 computed = executed ? uint32(g.staged) : _execute(g, proof, chunk);
        // INVARIANT: equal bits convict nobody.
        if (computed == claimed) revert EqualBits(bytes32(uint256(computed)));
        Finding memory found = _finding(Wrong.Op, g.op, bytes32(uint256(claimed)), bytes32(uint256(computed)));
        (found.program, found.t) = (proof.context.program(), proof.context.t());
        (found.element, found.chunk) = (g.position, chunk);
        _convict(id, g, found, begun);
    }

    /// @dev A move that shows an op's operands begins. Where nothing is posted below a leaf, it picks the leaf's element, too.
    /// @param combined Whether it is about the combination of the words that are posted.
    function _execution(GameId id, bytes32 answered, Proof calldata proof, bool combined) private returns (Game storage g) {
        g = _games[id];
        Phase phase = g.phase;
        bool picks = phase == Phase.Element && g.terms <= CHUNK;
        if (phase != Phase.Proof && !picks && !(phase == Phase.PartialPick && combined)) revert PhaseWrong(phase);
        _move(id, answered, 1 << uint256(phase));
        // INVARIANT: a game argues about one statement, and below an op about that op.
        if (_below(proof.context, proof.descriptor) != g.statement) revert StatementWrong();
        if (!picks) return g;
        _pickElement(g, proof.chunk);
        // INVARIANT: the bytes are those that the leaf commits to.
        if (Openings.leafHash(proof.posted) != answered) revert ProofInvalid();
        g.word = uint32(Openings.word(proof.posted, proof.chunk));
    }

    /// @dev What is claimed of the element, or of the chunk that the proof names among the posted words, or of their combination;
    /// and which chunk it is.
    function _claimed(Game storage g, bytes32 answered, Proof calldata proof) private view returns (uint32, uint32) {
        if (g.terms <= CHUNK) return (g.word, 0);
        bytes calldata words = _posted(answered, proof.posted);
        if (proof.chunk != COMBINED) return (_wordAt(words, proof.chunk), uint32(CHUNK * g.group + proof.chunk));
        if (g.phase == Phase.Proof && _isGrouped(g)) return (g.word, COMBINED);
        // INVARIANT: an element reads exactly the openings that its descriptor implies.
        if (proof.openings.length != 1) revert IArbiter.OpeningsWrong(proof.openings.length);
        bytes calldata leaf = proof.openings[0].data;
        // INVARIANT: the bytes are those that the leaf commits to.
        if (_under(Openings.leafHash(leaf), g.position) != bytes32(proof.posted[words.length:])) revert ProofInvalid();
        return (uint32(Openings.word(leaf, g.position % CHUNK)), COMBINED);
    }

    /// @dev The node of what was picked in a leaf, or among partials: an answer to one pick answers no other.
    function _under(bytes32 node, uint64 place) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(node, place));
    }

    /// @dev The partials in `posted`, where the node that they answered stands behind them.
    function _posted(bytes32 answered, bytes calldata posted) private pure returns (bytes calldata) {
        // INVARIANT: the words are those that were posted.
        if (keccak256(posted) != answered) revert ProofInvalid();
        return posted[:posted.length - 32];
    }

    function _execute(Game storage g, Proof calldata proof, uint32 chunk) private view returns (uint32) {
        // INVARIANT: partials combine to the word that they explain.
        if (chunk == COMBINED) return arbiter.combine(uint8(proof.descriptor[1]), proof.posted[:proof.posted.length - 32]);
        return arbiter.execute(
            proof.descriptor, proof.context.roots(), proof.context.context(g.op), g.position, chunk, proof.openings, g.staged
        );
    }

    /// @dev Whether a fold shows the partials of its groups before those of a group's chunks.
    function _isGrouped(Game storage g) private view returns (bool) {
        return Program.leaves(g.terms) > PARTIALS;
    }

    /// @inheritdoc IDisputeGame
    function proveAlias(
        GameId id,
        bytes32 answered,
        bytes calldata context,
        bytes calldata header,
        bytes32 value,
        bytes32[] calldata proof
    ) external {
        uint256 begun = gasleft();
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Alias));
        _requireStatement(g, context);
        uint256 entry = g.position - g.block_;
        value = _named(context, header, entry, value, proof);
        // INVARIANT: equal bits convict nobody.
        if (value == answered) revert EqualBits(value);
        Finding memory found = _finding(Wrong.Alias, uint64(entry), answered, value);
        (found.program, found.t) = (context.program(), context.t());
        _convict(id, g, found, begun);
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
    function provePadding(GameId id, bytes32 answered) external {
        uint256 begun = gasleft();
        (Game storage g,) = _move(id, answered, 1 << uint256(Phase.Padding));
        // INVARIANT: equal bits convict nobody; padding is EMPTY.
        if (answered == 0) revert EqualBits(0);
        Finding memory found = _finding(Wrong.Padding, g.position, answered, 0);
        found.t = g.t;
        _convict(id, g, found, begun);
    }

    /// @inheritdoc IDisputeGame
    function equivocate(Work calldata work, Signed calldata a, Signed calldata b) external {
        ClaimId claim = Ids.claim(work.job, work.round, work.attempt, work.slot);
        address worker = market.claim(claim).worker;
        (bytes32 first, bytes32 second) = (_digestOf(work, a), _digestOf(work, b));
        // INVARIANT: a claim that is signed twice is still one claim.
        if (first == second) revert EqualBits(first);
        // INVARIANT: only the claim's own worker equivocates.
        if (!Signatures.isSigned(worker, first, a.signature) || !Signatures.isSigned(worker, second, b.signature)) {
            revert Unauthorized(worker);
        }
        emit Convicted(NO_GAME, claim, _finding(Wrong.Equivocation, 0, first, second));
        _award(claim, 0, msg.sender, 0);
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
    function resolve(GameId id) external {
        Game storage g = _games[id];
        Phase phase = g.phase;
        if (phase == Phase.None || phase == Phase.Closed) revert PhaseWrong(phase);
        // INVARIANT: a claim is convicted once; games on it that come too late cost their challengers nothing.
        if (!market.live(g.claim)) return _close(id, g, Verdict.Void);
        Clock.requireExpired(g.deadline);
        _close(id, g, _isDefenders(phase) ? Verdict.Timeout : Verdict.Rejected);
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

    function _convict(GameId id, Game storage g, Finding memory found, uint256 begun) private {
        emit Convicted(id, g.claim, found);
        _spend(g, begun);
        _close(id, g, Verdict.Fraud);
    }

    function _close(GameId id, Game storage g, Verdict verdict) private {
        (ClaimId claim, address challenger, address defender) = (g.claim, _challengerOf(id), g.defender);
        // A missed deadline proves no step wrong.
        (uint32 t, uint256 spent) = (verdict == Verdict.Fraud ? g.t : 0, g.spent);
        defending[defender] -= 1;
        _clear(g);
        (g.phase, g.verdict) = (Phase.Closed, verdict);
        address winner = verdict == Verdict.Rejected ? defender : verdict == Verdict.Void ? address(0) : challenger;
        emit Resolved(id, claim, verdict, winner);
        if (verdict == Verdict.Rejected) {
            _skipClosed(claim);
            market.onRejected(claim);
            vault.takeBond(GameId.unwrap(id), defender, type(uint256).max);
        } else {
            if (verdict != Verdict.Void) _award(claim, t, winner, spent);
            vault.unlock(GameId.unwrap(id));
        }
    }

    /// @dev Deletes all but the claim, a word at a time: the compiler would do it field by field.
    function _clear(Game storage g) private {
        assembly ("memory-safe") {
            for { let i := 1 } lt(i, GAME_WORDS) { i := add(i, 1) } { sstore(add(g.slot, i), 0) }
        }
    }

    /// @dev The claim is wrong: the prize is `first`'s and the two earliest other live games', who are given their gas back, too. A game
    ///      beyond SCAN from the earliest live one has no part: a verdict costs the same however many games there are.
    function _award(ClaimId claim, uint32 t, address first, uint256 spent) private {
        address[] memory winners = new address[](WINNERS);
        IStakeVault.Refund[] memory refunds = new IStakeVault.Refund[](SCAN + 1);
        (winners[0], refunds[0]) = (first, IStakeVault.Refund(first, spent));
        (uint256 sharing, uint256 refunded) = (1, 1);
        uint256 i = _firstLive[claim];
        for (uint256 end = i + SCAN; i < end; i++) {
            GameId id = _gamesOn[claim][i];
            Game storage g = _games[id];
            if (g.phase == Phase.None) break;
            if (g.phase == Phase.Closed) continue;
            if (sharing < WINNERS) winners[sharing++] = _challengerOf(id);
            refunds[refunded++] = IStakeVault.Refund(_challengerOf(id), g.spent);
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
        while (i < from + SCAN && _games[_gamesOn[claim][i]].phase == Phase.Closed) i++;
        if (i != from) _firstLive[claim] = i;
    }

    // -- turns -----------------------------------------------------------------------------------------------------

    /// @dev A move begins: in one of `phases`, the right answer, in time, by the side whose turn it is.
    function _move(GameId id, bytes32 answered, uint256 phases) private view returns (Game storage g, Phase phase) {
        g = _games[id];
        phase = g.phase;
        if (phases >> uint256(phase) & 1 == 0) revert PhaseWrong(phase);
        // INVARIANT: a move answers the node that is stored.
        if (g.node != answered) revert AnsweredStale(g.node);
        Clock.stop(g.deadline);
        if (_isDefenders(phase)) {
            // INVARIANT: the defender or its delegate answers.
            if (msg.sender != g.defender && !vault.mayAct(g.defender, msg.sender)) revert Unauthorized(msg.sender);
        } else {
            // INVARIANT: the challenger alone points.
            if (msg.sender != _challengerOf(id)) revert Unauthorized(msg.sender);
        }
    }

    /// @dev A move ends: the mover's clock stops, and that of whoever moves in `phase` starts. They are in one word with the phase,
    ///      which is read once and written once: the compiler would do it field by field.
    function _turn(Game storage g, Phase phase) private {
        uint256 turn;
        assembly ("memory-safe") {
            turn := sload(add(g.slot, TURN_WORD))
        }
        uint40 deadline = uint40(turn >> DEADLINE_AT);
        uint256 at = _clockOf(Phase(uint8(turn)));
        // No clock runs before the game is open.
        if (deadline != 0) turn = turn & ~(CLOCK_MASK << at) | uint256(Clock.stop(deadline)) << at;
        deadline = Clock.start(uint24(turn >> _clockOf(phase)));
        turn = turn & ~TURN_MASK | uint256(deadline) << DEADLINE_AT | uint256(phase);
        assembly ("memory-safe") {
            sstore(add(g.slot, TURN_WORD), turn)
        }
    }

    /// @dev The bit of the word with the phase at which the clock stands of whoever moves in `phase`.
    function _clockOf(Phase phase) private pure returns (uint256) {
        return _isDefenders(phase) ? LEFT_DEFENDER_AT : LEFT_CHALLENGER_AT;
    }

    /// @dev Counts the gas of a challenger's move.
    modifier metered(GameId id) {
        uint256 begun = gasleft();
        _;
        _spend(_games[id], begun);
    }

    function _spend(Game storage g, uint256 begun) private {
        uint256 spent = g.spent + TRANSACTION_GAS + BYTE_GAS * msg.data.length + begun - gasleft();
        g.spent = uint24(Math.min(spent, MAX_SPENT));
    }

    /// @dev The account that opened the game: its id ends with it.
    function _challengerOf(GameId id) private pure returns (address) {
        return address(uint160(uint256(GameId.unwrap(id))));
    }

    function _isDefenders(Phase phase) private pure returns (bool) {
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
        if (Openings.fold(children) != node) revert ProofInvalid();
    }

    function _requireLength(uint256 expected, uint256 given) private pure {
        if (expected != given) revert LengthWrong(expected, given);
    }

    function _requireStatement(Game storage g, bytes calldata context) private view {
        // INVARIANT: a game argues about one statement.
        if (keccak256(context) != g.statement) revert StatementWrong();
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
    function game(GameId id) external view returns (Game memory) {
        return _games[id];
    }

    /// @inheritdoc IDisputeGame
    function gameIdOf(ClaimId claim, address challenger, uint32 nonce) public pure returns (GameId) {
        bytes32 digest = keccak256(abi.encode(claim, challenger, nonce));
        return GameId.wrap(bytes32((uint256(digest) >> 160) << 160 | uint160(challenger)));
    }

    /// @inheritdoc IDisputeGame
    function defenderMoves(GameId id) external view returns (bool) {
        return _isDefenders(_games[id].phase);
    }
}
