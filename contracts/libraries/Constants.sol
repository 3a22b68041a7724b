// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

// Every percentage and limit that the contracts share with the SDK, each named once. A section names the Python module, under
// sdk/lockstep, where the same names stand; tests/unit/protocol/test_constants.py holds the two equal.

// -- protocol/market/prices.py

/// @dev Gas of a whole game, both sides, of the dearest step that is admitted: 2^14 ops, 2^31 elements, 2^24 terms.
uint256 constant GAME_GAS = 2_600_000;
/// @dev Gas of the defender's moves in such a game.
uint256 constant DEFENDER_GAS = 1_100_000;
/// @dev A stake is at least this many times the price of what it backs ...
uint256 constant STAKE_PRICES = 10;
/// @dev ... and this many times the gas of a game at the cap.
uint256 constant STAKE_GAMES = 4;
/// @dev Gas of posting one leaf of a row, in the deepest dataset.
uint256 constant LEAF_GAS = 80_000;
/// @dev Gas that the answer to a demand for a payload or a carry is paid: the largest takes 1.07 M.
uint256 constant ANSWER_GAS = 600_000;
/// @dev A bond holds this many times the gas of the defender, a row's also of its leaves.
uint256 constant BOND_GAMES = 3;
/// @dev A witness's stake is at least this many fees ...
uint256 constant WITNESS_FEES = 20;
/// @dev ... and this many for each round that may be in flight.
uint256 constant LEAD_FEES = 2;

/// @dev Base fees of the last seals that are remembered.
uint256 constant FEES = 9;
/// @dev Bits of one of them: nine fill a word. The highest bit of each stays free, for comparisons of all nine at once.
uint256 constant FEE_BITS = 28;
/// @dev Wei per gas that a remembered fee is rounded up to.
uint256 constant FEE_UNIT = 8192;
/// @dev The highest fee that can be remembered, about 1,099 gwei: no job's cap lies above it.
uint256 constant MAX_FEE_CAP = ((1 << (FEE_BITS - 1)) - 2) * FEE_UNIT;

/// @dev Of a lost bond, to who answered it; the rest is burned.
uint256 constant BOND_PERCENT_DEFENDER = 60;
/// @dev Of a void job's deposit, to who had it voided; the rest is burned.
uint256 constant PROVER_PERCENT = 30;
/// @dev Of a slash, less what it owes to work, to the challengers ...
uint256 constant SLASH_PERCENT_WINNERS = 30;
/// @dev ... and to the requester, gas refunds included; the rest, at least half, is burned.
uint256 constant SLASH_PERCENT_REQUESTER = 20;
/// @dev Of a slash, to refund gas at most: it is part of the requester's.
uint256 constant SLASH_PERCENT_REFUNDS = 10;

// -- protocol/market/job_rules.py

uint256 constant MAX_SLOTS = 64;
/// @dev Speakers have bits: 64 slots, then the witnesses.
uint256 constant MAX_WITNESSES = 64;
uint256 constant MAX_LEAD = 16;
uint256 constant MAX_DEPTH = 24;
uint256 constant MAX_STEPS = 1 << 24;
/// @dev Words of a dataset's row: its leaves fit seventeen parts, and the gas of all blocks of a few minutes.
uint256 constant MAX_ROW = 1 << 18;
/// @dev Leaves of a row that one transaction posts: below 128 KiB in the deepest dataset.
uint256 constant PART = 64;
/// @dev Transactions that post a part, one after the other: its commitment, then the part.
uint256 constant PART_TRANSACTIONS = 2;
/// @dev Seconds of the shortest clock on any chain.
uint256 constant MIN_CLOCK = 60;
/// @dev Moves of one side in the longest game: 5 reveals of a trace, 3 of a graph, 4 of a tensor, leaf, 2 of partials, and the first.
uint256 constant GAME_MOVES = 16;
/// @dev A clock holds this many materialised steps: games on one's own claim lock nobody's stake for long.
uint256 constant CLOCK_STEPS = 4;
/// @dev A merge's stake is at most this many slot's stakes: who can work can merge.
uint256 constant MERGE_SLOTS = 2;
/// @dev A slot's stake is more than this many times its witnesses' stakes: who convicts itself to take them along loses more than half
/// of its own.
uint256 constant SLOT_WITNESSES = 2;
/// @dev Windows of an audit: witnesses commit, owners publish their traces, witnesses reveal ...
uint256 constant AUDIT_WINDOWS = 3;
/// @dev ... the last two of them after the commitments.
uint256 constant AUDIT_REVEAL_WINDOWS = 2;
/// @dev A slot is given back in the first of this many parts of the join window.
uint32 constant LEAVE_PARTS = 2;
uint256 constant MAX_WINDOW = 30 days;
/// @dev What a lock's field holds.
uint256 constant MAX_LOCK = type(uint88).max;

// -- protocol/market/requester.py

/// @dev Of a job's escrow: what is added to it fits its field.
uint256 constant MAX_ESCROW = type(uint120).max;

// -- protocol/market/vault.py

/// @dev What an unbonding stake's field holds.
uint256 constant MAX_UNBOND = type(uint192).max;
/// @dev What the field of all escrows together holds.
uint256 constant MAX_ESCROWED = type(uint128).max;

// -- protocol/market/receipts.py

/// @dev Speaker WITNESS + i is the round's i-th drawn witness; below it, speaker s is the owner of slot s.
uint32 constant WITNESS = 64;
/// @dev Attesting lasts at least this many times that of a transaction's inclusion ...
uint256 constant DEMAND_INCLUSIONS = 4;
/// @dev ... and one of this many parts of its window, whoever has spoken.
uint256 constant DEMAND_PARTS = 4;
/// @dev A payload counts as had if this many ...
uint256 constant QUORUM = 1;
/// @dev ... of this many others name it.
uint256 constant QUORUM_OF = 2;

// -- protocol/market/calls.py

/// @dev EVM: blockhash knows this many blocks.
uint256 constant HASH_BLOCKS = 256;

// -- protocol/market/availability.py

/// @dev Leaves of a payload that a demand names ...
uint256 constant LEAVES = 8;
/// @dev ... and those of them that its asker names.
uint256 constant WANTED = 4;

// -- protocol/market/court.py

/// @dev Gas of a transaction before its first instruction, of a byte of its data, and of one that is zero.
uint256 constant TRANSACTION_GAS = 21_000;
uint256 constant BYTE_GAS = 16;
uint256 constant ZERO_GAS = 4;
/// @dev What a game's field of spent gas holds.
uint256 constant MAX_SPENT = type(uint24).max;

// -- protocol/jobs.py

/// @dev Bytes of a CID: what a stranger stores in a log is bounded.
uint256 constant MAX_CID = 128;

// -- protocol/dispute/docket.py

/// @dev Games that one verdict looks at, from the earliest that may be live.
uint256 constant SCAN = 8;
/// @dev Challengers who share a prize.
uint256 constant WINNERS = 3;

// -- protocol/dispute/moves.py

/// @dev Stands in a chunk's place for the combination of all that were posted.
uint32 constant COMBINED = type(uint32).max;

// -- protocol/dispute/game.py

/// @dev Levels that a move goes down at most, but for the first move of TWO_MOVES.
uint256 constant LEVELS = 6;
/// @dev Levels that two moves go down, with 2^7 and 2^6 nodes.
uint256 constant TWO_MOVES = 13;
/// @dev Seconds that other games add to a clock at most: no game locks a stake for longer.
uint256 constant MAX_EXTRA = 30 days;
/// @dev Seconds that a clock's field holds: more than the longest clock and MAX_EXTRA.
uint256 constant MAX_LEFT = type(uint24).max;

// -- protocol/programs/rules.py

uint256 constant MAX_OPS = 1 << 14;
uint256 constant MAX_AXES = 8;
/// @dev Of one tensor.
uint256 constant MAX_ELEMENTS = (1 << 31) - 1;
/// @dev K of a fold: two levels of partials.
uint256 constant MAX_TERMS = 1 << 24;
uint256 constant MAX_OPERANDS = 8;
/// @dev Of a map: those that cost an opening.
uint256 constant MAX_TENSOR_OPERANDS = 6;
uint256 constant MAX_INSTRS = 32;
uint256 constant MAX_FUNCTIONS = 8;
/// @dev Elements of all ops of one Program.
uint256 constant MAX_TOTAL = 1 << 40;
/// @dev log2 of a state's entries.
uint256 constant MAX_STATE_DEPTH = 10;

// -- protocol/programs/program.py

/// @dev Terms of a fold that one chunk chains, and words of a leaf.
uint256 constant CHUNK = 256;
/// @dev Partials that one move of a game shows at most: a fold of more chunks shows those of its groups of 256 first.
uint256 constant PARTIALS = 512;
/// @dev Words of codes in a group: 256 codes, one leaf.
uint256 constant MAX_GROUP_WORDS = 64;

// -- protocol/merkle.py

/// @dev Bytes of tensor contents in one leaf.
uint256 constant LEAF_BYTES = 1024;
