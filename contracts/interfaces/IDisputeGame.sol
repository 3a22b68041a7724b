// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Opening} from "./IArbiter.sol";
import {Body} from "./IJobMarket.sol";
import {ClaimId, GameId, JobId} from "../types/Ids.sol";

enum GamePhase {
    None,
    TraceReveal,
    TracePick,
    Adjacent,
    Defend,
    GraphReveal,
    GraphPick,
    Tensor,
    TensorReveal,
    TensorPick,
    Leaf,
    Element,
    Partials,
    PartialPick,
    LowPartials,
    Proof,
    Alias,
    Padding,
    Closed
}

/// Void: the claim was decided elsewhere; the bond went back.
enum Verdict { None, Fraud, Timeout, Rejected, Void }

/// What was proved wrong: an op's element, an entry of the state block, a position that must be EMPTY, or that two claims were
/// signed for the same work.
enum Wrong { Op, Alias, Padding, Equivocation }

/// @notice A game as it stands, which movers show and events say. Who opened it is in its id.
/// @param claim What is challenged.
/// @param parties The fields below that change least, packed (libraries/GameStates.sol):
///   defender    the claim's worker
///   size        T until a step is defended, then the number of ops, below an op the elements of its output
///   t           the transition that is argued about; 0 until it is known
///   terms       K of a fold; 0 for other kinds
/// @param node The node that the next move answers; of an element that has partials keccak(leaf node, element u64), once posted
/// keccak(words, node that they answer), of a group of them keccak(that, group u64).
/// @param statement keccak of the statement's bytes (libraries/Statement.sol); below an op, keccak of that and of the op's
/// descriptor; the claim's trace root until t is known.
/// @param turn Those that change most, packed:
///   phase            whose turn it is, at what
///   rem              levels left below `node` in the tree being descended
///   deadline         the mover's (seconds)
///   leftDefender     seconds left when its clock last stopped
///   leftChallenger   likewise
///   word             the claimed bits of an element of at most 256 terms, once it is picked, or of the picked group of chunks
///   position         of `node` in its tree; from `Element` on, the flat element
///   op               position of the op in G
///   group            the picked top partial of a fold of two levels
///   stateBlock       position in G of the state block's first entry
/// @param staged Words of a map's first tensor operands: the k-th in bits 32k, their number from bit 248. Of a fold, a chunk that
/// was executed: its word, the chunk from bit 32, 1 from bit 248.
struct GameState {
    ClaimId claim;
    uint256 parties;
    bytes32 node;
    bytes32 statement;
    uint256 turn;
    uint256 staged;
}

/// @notice What the contract stores of a game: one word.
/// @param standing The first 224 bits of keccak of the game as it stands; 0 once it is closed.
/// @param spent Gas of the challenger's moves so far.
/// @param verdict Once closed.
struct Stored {
    bytes28 standing;
    uint24 spent;
    Verdict verdict;
}

/// @notice A transition's Program and the state before it.
/// @param prevProof leaf(prev) is at position t - 2 of the trace: siblings; for t = 1, where the contract computes S_0, the
/// words of the Body that its carry comes from, if any.
struct Step {
    bytes32 prev;
    bytes32[] prevProof;
    bytes header;
    bytes32 opsRoot;
    bytes32 constsRoot;
}

/// @notice What `proveOp` shows.
/// @param chunk Of the posted partials, or all ones: their combination. In phase `Element` the word of the leaf. Else 0.
/// @param posted The posted partials and, behind them, the node that they answered. In phase `Element` the posted leaf. Else empty.
/// @param openings Of a combination that is the element: the posted leaf, as the data of one.
/// @param context The statement's bytes.
struct Proof {
    bytes descriptor;
    uint32 chunk;
    bytes posted;
    Opening[] openings;
    bytes context;
}

/// @notice The work that a claim is about: the first half of the EIP-712 `Claim` (docs/protocol.md, section 4).
struct Work {
    JobId job;
    uint32 round;
    uint32 attempt;
    uint32 slot;
    bytes32 seed;
    bytes32 base;
}

/// @notice What a worker signed about its work: the second half, and the signature (65 bytes, or what an ERC-1271 account takes).
struct Signed {
    bytes32 traceRoot;
    uint32 transitions;
    bytes32 out;
    bytes32 out2;
    bytes signature;
}

/// @notice What was claimed, and what the contract computed.
/// @param program Its root; 0 for padding, where `Argued` says the rest, and for an equivocation.
/// @param position Of the op in G, of the entry in the state block, or of the padding leaf in its tree.
/// @param element Flat element of the op's output; 0 for the other two.
/// @param chunk Of the fold's terms, counted over the whole fold; 0 where there is one; all ones if what is wrong is how they combine.
/// @param claimedBits A word in the low 32 bits for an op, a root for an alias and padding; for an equivocation the two digests
/// that were signed.
struct Finding {
    Wrong wrong;
    bytes32 program;
    uint32 t;
    uint64 position;
    uint64 element;
    uint32 chunk;
    bytes32 claimedBits;
    bytes32 contractBits;
}

/// The game is in another phase.
error PhaseWrong(GamePhase current);
/// The game stands elsewhere than where the mover shows it (a reorganised chain, or a second answer).
error StandingStale(bytes28 stored);
/// This claim, challenger and nonce have a game already.
error GameExists(GameId game);
/// The step is not one of the claim's transitions.
error StepOutOfRange(uint32 t);
/// The statement's bytes are not those that were argued.
error StatementWrong();
/// Not the number of nodes, bytes or words that the Program implies.
error LengthWrong(uint256 expected, uint256 given);
/// The contract computes the same bits: nothing is wrong here.
error EqualBits(bytes32 bits);

/// @title IDisputeGame
/// @notice From a claim down to one chunk of arithmetic (docs/protocol.md, section 6).
///
///   [TraceReveal - TracePick ...- Adjacent -] Defend - GraphPick [- GraphReveal - GraphPick ...] - Tensor | Alias | Padding
///   Tensor - TensorPick [- TensorReveal - TensorPick ...] - Leaf - Element [- Partials [- PartialPick - LowPartials] - Proof]
///
/// The defender only opens its own commitments; the challenger only points. A game stands at one node. `reveal` shows the 2^r
/// descendants r levels below it, r = ceil(rem / ceil(rem / 6)), 7 of 13; `pick` proves the first of them that differs from the
/// challenger's own tree. Every move shows the game as it stands, of which a hash is stored. Any number of games run on a claim, keyed
/// (claim, challenger, nonce); a lost game affects no other.
interface IDisputeGame {
    event Opened(
        GameId indexed game,
        GameState standing,
        ClaimId indexed claim,
        address indexed challenger,
        address defender,
        uint32 nonce,
        uint32 t
    );
    /// @notice t is known from here on; the node is the leaf of S_t in the trace.
    event Argued(GameId indexed game, GameState standing, bytes statement);
    event Defended(GameId indexed game, GameState standing, bytes32 state, bytes32[] children);
    event Revealed(GameId indexed game, GameState standing, bytes32[] children);
    event Picked(GameId indexed game, GameState standing);
    event TensorRevealed(GameId indexed game, GameState standing, bytes32[] children);
    event LeafPosted(GameId indexed game, GameState standing, bytes data);
    event ElementPicked(GameId indexed game, GameState standing);
    event PartialsPosted(GameId indexed game, GameState standing, bytes words);
    event PartialPicked(GameId indexed game, GameState standing);
    /// @notice Some tensor operands of the picked element are known.
    event Staged(GameId indexed game, GameState standing);
    /// @notice Emitted before `Resolved` where a proof decided; game 0 for an equivocation, which needs none.
    event Convicted(GameId indexed game, ClaimId indexed claim, Finding finding);
    event Resolved(GameId indexed game, ClaimId indexed claim, Verdict verdict, address winner);

    // -- the challenger

    /// @notice Opens a game on transition `t` of a claim and locks the bond. t >= 1: S_{t-1} and S_t are proven in the claim.
    /// t = 0: the roots were withheld, the game starts at the trace root and `step`, `next`, `nextProof` are ignored.
    /// @param nextProof leaf(next) is at position t - 1 of the trace.
    /// @param body What the claim says.
    function open(
        ClaimId claim,
        Body calldata body,
        uint32 nonce,
        uint32 t,
        bytes32 next,
        bytes32[] calldata nextProof,
        Step calldata step
    ) external returns (GameId game);

    /// @notice The i-th of the revealed nodes is `child`.
    function pick(GameId game, GameState calldata standing, uint256 i, bytes32 child, bytes32[] calldata siblings) external;

    /// @notice A game without t, once a leaf of the trace is picked: the state before it, and the Program between the two.
    function adjacent(GameId game, GameState calldata standing, Step calldata step) external;

    /// @notice Word `i` of the posted leaf is wrong, and it is a fold's that has partials.
    function pickElement(GameId game, GameState calldata standing, uint256 i) external;

    /// @notice Word `i` of the posted partials of groups is wrong; `posted` as in `Proof`.
    function pickPartial(GameId game, GameState calldata standing, uint16 i, bytes calldata posted) external;

    /// @notice Opens the next tensor operands of a map, or executes a chunk of a fold, for `proveOp` to find: a verdict and six full
    /// leaves, or 256 terms, do not fit one transaction well.
    function stage(GameId game, GameState calldata standing, Proof calldata proof) external;

    /// @notice Executes the picked element or chunk, or combines the posted partials. Convicts, or reverts `EqualBits`. An element of
    /// at most 256 terms is picked by its proof, or by its first `stage`.
    function proveOp(GameId game, GameState calldata standing, Proof calldata proof) external;

    /// @notice The picked entry of the state block is not what the Program's state table names.
    /// @param header The Program's.
    /// @param value What it should be: the leaf of G at the op's position, or of S_{t-1} at the entry; ignored for EMPTY.
    function proveAlias(
        GameId game,
        GameState calldata standing,
        bytes calldata context,
        bytes calldata header,
        bytes32 value,
        bytes32[] calldata proof
    ) external;

    /// @notice The picked leaf must be EMPTY, and is not.
    function provePadding(GameId game, GameState calldata standing) external;

    // -- the defender, or its delegate

    /// @notice Shows the descendants of the node.
    function reveal(GameId game, GameState calldata standing, bytes32[] calldata children) external;

    /// @notice Shows G_t, whose state block is S_t, and its first descendants.
    /// @param blockProof From S_t up to the last of `children`: siblings; none if S_t stands above them.
    function defend(
        GameId game,
        GameState calldata standing,
        bytes calldata context,
        bytes32 graph,
        bytes32 state,
        bytes32[] calldata blockProof,
        bytes32[] calldata children
    ) external;

    /// @notice Shows the tree of the picked op's output and its first descendants (none for a tensor of one leaf).
    function revealTensor(
        GameId game,
        GameState calldata standing,
        bytes calldata context,
        bytes calldata descriptor,
        bytes32[] calldata descriptorProof,
        bytes32 tree,
        bytes32[] calldata children
    ) external;

    /// @notice Shows the picked leaf.
    function postLeaf(GameId game, GameState calldata standing, bytes calldata data) external;

    /// @notice Shows one level of a fold: big-endian words, said to combine to the claimed one.
    function postPartials(GameId game, GameState calldata standing, bytes calldata words) external;

    // -- anyone

    /// @notice Convicts a claim whose worker signed two different ones for the same work. Needs no game and no bond, waits for the
    /// games on the claim, and pays no prize: the sender has its gas back.
    function equivocate(Work calldata work, Signed calldata a, Signed calldata b) external;

    /// @notice Ends a game whose mover's clock has run out, or whose claim was decided elsewhere.
    function resolve(GameId game, GameState calldata standing) external;

    // -- views

    /// @notice What is stored; its last event has the game as it stands.
    function game(GameId game) external view returns (Stored memory);
    /// @notice The first 96 bits of keccak(abi.encode(claim, challenger, nonce)), then the challenger.
    function gameIdOf(ClaimId claim, address challenger, uint32 nonce) external pure returns (GameId);
}
