// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {Arbiter} from "../../contracts/Arbiter.sol";
import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {Opening} from "../../contracts/interfaces/IArbiter.sol";
import {GamePhase, GameState, Proof, Step, Stored, Verdict} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, GameTerms, IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {COMBINED} from "../../contracts/libraries/Constants.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS, dataGas} from "./Cheats.sol";
import {ClaimDouble} from "./ClaimDouble.sol";
import {Letters} from "./Letters.sol";
import {Watching} from "./Watching.sol";

/// @title GamesTable
/// @notice One claim of letters, the games on it and who plays them: honest, lying, silent, random, exhaustive, sandbagging, copycat.
contract GamesTable is Watching {
    using Letters for Letters.Claim;
    using GameStates for GameState;

    uint32 public constant CLOCK = 120;
    uint32 public constant TAU = 10;
    uint128 public constant BOND = 10_007;
    uint128 public constant STAKE = 1_000_003;
    uint256 public constant DEPOSIT = 1e9;
    ClaimId public constant CLAIM = ClaimId.wrap(keccak256("claim"));
    address public constant WORKER = address(0x1111);
    address public constant STRANGER = address(0x5555);
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;
    uint256 public constant SEATS = 10;
    /// @dev What the meter does not see: the call, its dispatch and answer, the second write of the word that a game is stored in.
    uint256 private constant UNSEEN_GAS = 5_000;
    /// @dev The same of code that was not optimised.
    uint256 private constant PLAIN_UNSEEN_GAS = 6_500;

    /// Honest argues from the truth, Liar from its own claim, both promptly. Silent never moves. Random points anywhere and sends much
    /// that is refused. Exhaustive sends a call of every kind first. Sandbagging uses its clock to the last second and then stops.
    /// Copycat sends what the other claim would.
    enum Actor { Honest, Liar, Silent, Random, Exhaustive, Sandbagging, Copycat }
    uint256 public constant ACTORS = 7;

    struct Seat {
        GameId id;
        Actor actor;
        uint256 opened;
        uint256 budget;
        uint256 effort;
        uint32 t;
    }

    TestToken public token;
    ClaimDouble public market;
    StakeVault public vault;

    Letters.Claim public held;
    Actor public defender;
    /// @notice Whether the claim's every state is what the Program computes.
    bool public isTrue;
    Seat[] public seats;
    uint256 private _luck;
    /// @dev The partials that a game's defender posted, whatever they are.
    mapping(GameId id => bytes) private _words;

    error Metered(uint256 spent, uint256 charged);

    constructor() {
        token = new TestToken();
        market = new ClaimDouble();
        Arbiter arbiter = new Arbiter();
        // Creation 5 of this contract, after token, market, arbiter and vault.
        address at = address(uint160(uint256(keccak256(abi.encodePacked(hex"d694", address(this), hex"05")))));
        vault = new StakeVault(IERC20(address(token)), address(market), at, address(0), address(0), 1 days);
        game = new DisputeGame(IJobMarket(address(market)), vault, arbiter);
        require(address(game) == at, "the game is elsewhere");
        _fund(WORKER);
        for (uint256 i = 0; i < SEATS; i++) _fund(account(i));
        CHEATS.warp(1_000_000);
    }

    function account(uint256 seat) public pure returns (address) {
        return address(uint160(0x2200 + seat));
    }

    function _fund(address who) private {
        token.mint(who, DEPOSIT);
        CHEATS.startPrank(who);
        token.approve(address(vault), DEPOSIT);
        vault.deposit(DEPOSIT);
        CHEATS.stopPrank();
    }

    // -- the claim -------------------------------------------------------------------------------------------------

    /// @notice Locks the stake of a claim; `by` answers for it.
    function claims(Letters.Claim calldata c, Actor by, uint256 luck) external {
        (held, defender, _luck) = (c, by, luck);
        isTrue = Merkle.rootOf(Letters.trace(c)) == Merkle.rootOf(Letters.truth(c).trace());
        bytes32 program = Letters.programRoot();
        market.set(
            vault, GameTerms(WORKER, Letters.T, 0, CLOCK, TAU, BOND), Letters.state(c, 0), program, program
        );
        market.lock(CLAIM, WORKER, STAKE);
    }

    /// @notice A game on transition t (0: on the trace) by the next seat.
    function open(Actor actor, uint32 t) external {
        bytes32 next;
        bytes32[] memory nextProof;
        Step memory step;
        if (t > 0) (next, nextProof, step) = (held.state(t), Letters.proof(held.trace(), t - 1), held.step(t));
        Body memory body = Body(Merkle.rootOf(held.trace()), 0, 0);
        bytes memory call = abi.encodeCall(game.open, (CLAIM, body, 0, t, next, nextProof, step));
        (bool opened,, uint256 used) = _plays(account(seats.length), call);
        require(opened, "not opened");
        GameId id = game.gameIdOf(CLAIM, account(seats.length), 0);
        _checkMeter(id, 0, used, call);
        GameState memory g = standingOf(id);
        uint256 budget = uint256(g.leftDefender()) + g.leftChallenger();
        seats.push(Seat(id, actor, block.timestamp, budget, dice(12), t));
    }

    // -- playing ---------------------------------------------------------------------------------------------------

    function dice(uint256 sides) public returns (uint256) {
        _luck = uint256(keccak256(abi.encode(_luck)));
        return _luck % sides;
    }

    function isOver() public view returns (bool) {
        for (uint256 i = 0; i < seats.length; i++) {
            if (phaseOf(seats[i].id) != GamePhase.Closed) return false;
        }
        return true;
    }

    /// @notice One turn of one game: its mover moves, or its clock has run out, or the claim is decided. Whether anything happened.
    function turn(uint256 i) external returns (bool) {
        Seat storage seat = seats[i];
        GameState memory g = standingOf(seat.id);
        if (g.phase() == GamePhase.Closed) return false;
        if (!market.live(CLAIM) || block.timestamp > g.deadline()) {
            game.resolve(seat.id, g);
            return true;
        }
        if (dice(8) == 0) _intrude(seat, g);
        bool defends = _defends(g);
        return _plays(seat, g, defends, defends ? defender : seat.actor);
    }

    /// @notice Time passes: to the next deadline, or beyond it. Whoever had a move to make has made it.
    function pass() external {
        uint256 next = type(uint256).max;
        for (uint256 i = 0; i < seats.length; i++) {
            GameState memory g = standingOf(seats[i].id);
            if (g.phase() == GamePhase.Closed) continue;
            uint256 at = block.timestamp < g.deadline() ? g.deadline() : uint256(g.deadline()) + 1;
            if (at < next) next = at;
        }
        CHEATS.warp(next);
    }

    /// @dev Whether the mover made a move.
    function _plays(Seat storage seat, GameState memory g, bool defends, Actor actor) private returns (bool) {
        address mover = defends ? WORKER : _challengerOf(seat.id);
        Letters.Claim memory own = _argues(actor);
        uint32 t = _step(seat, g);
        if (actor == Actor.Silent || (actor == Actor.Random && dice(30) == 0)) return false;
        if (actor == Actor.Sandbagging) {
            if (seat.effort == 0 || block.timestamp != g.deadline()) return false;
            seat.effort -= 1;
        }
        if (actor == Actor.Exhaustive) {
            for (uint256 k = 0; k < KINDS; k++) if (_tries(mover, anyCall(seat.id, g, k))) return true;
        }
        if (actor == Actor.Random && _tries(mover, anyCall(seat.id, g, dice(KINDS)))) return true;
        bool wild = actor == Actor.Random || actor == Actor.Exhaustive;
        bytes memory call = defends ? _answer(seat.id, g, own, t) : _point(seat.id, g, own, t, wild);
        if (call.length == 0) return false;
        uint256 spent = game.game(seat.id).spent;
        (bool played,, uint256 used) = _plays(mover, call);
        if (played && !defends) _checkMeter(seat.id, spent, used, call);
        // An honest side is never without a move, but for a challenge that has nothing to prove.
        require(played || actor != Actor.Honest, "an honest move is refused");
        return played;
    }

    /// @dev Who opened a game: its id ends with the account.
    function _challengerOf(GameId id) private pure returns (address) {
        return address(uint160(uint256(GameId.unwrap(id))));
    }

    /// @dev What an actor argues from.
    function _argues(Actor actor) private view returns (Letters.Claim memory own) {
        own = held;
        if (actor == Actor.Honest || actor == Actor.Copycat) return Letters.truth(own);
    }

    /// @dev The step that is argued about, or will be: a game on the trace goes where the first difference is, or anywhere.
    function _step(Seat storage seat, GameState memory g) private returns (uint32 t) {
        if (seat.t != 0) return seat.t;
        if (g.phase() == GamePhase.Adjacent) return g.position() + 1;
        if (g.phase() != GamePhase.TracePick) return 1;
        uint256 first = Letters.firstDifference(Letters.truth(held).trace(), held.trace());
        bool knows = seat.actor == Actor.Honest && first < Letters.T;
        t = uint32(knows ? first : dice(Letters.T)) + 1;
        seat.t = t;
    }

    function _tries(address sender, bytes memory call) private returns (bool done) {
        (done,,) = _plays(sender, call);
    }

    function _plays(address sender, bytes memory call) private returns (bool done, bytes memory said, uint256 used) {
        (done, said, used) = _sends(sender, call);
        if (done && bytes4(call) == game.postPartials.selector) this.keep(call);
    }

    function keep(bytes calldata call) external {
        (GameId id,, bytes memory words) = abi.decode(call[4:], (GameId, GameState, bytes));
        _words[id] = words;
    }

    /// @dev What a challenger has spent is what the chain charges: for a transaction, its data and its work.
    function _checkMeter(GameId id, uint256 before, uint256 used, bytes memory call) private view {
        Stored memory stored = game.game(id);
        if (stored.verdict != Verdict.None) return;
        uint256 charged = before + 21_000 + dataGas(call) + used;
        bool plain = keccak256(bytes(CHEATS.envOr("FOUNDRY_PROFILE", ""))) == keccak256("quick");
        uint256 unseen = plain ? PLAIN_UNSEEN_GAS : UNSEEN_GAS;
        if (stored.spent > charged || charged > stored.spent + unseen) revert Metered(stored.spent, charged);
    }

    /// @dev No other key moves, and nobody ends a game that runs.
    function _intrude(Seat storage seat, GameState memory g) private {
        bool defends = _defends(g);
        uint32 t = seat.t == 0 ? 1 : seat.t;
        Letters.Claim memory own = held;
        bytes memory call = defends ? _answer(seat.id, g, own, t) : _point(seat.id, g, own, t, true);
        if (call.length == 0) return;
        bytes32 before = keccak256(abi.encode(game.game(seat.id)));
        require(!_tries(STRANGER, call), "a stranger moved");
        require(!_tries(defends ? _challengerOf(seat.id) : WORKER, call), "the other side moved");
        require(!_tries(STRANGER, abi.encodeCall(game.resolve, (seat.id, g))), "ended while a clock runs");
        require(keccak256(abi.encode(game.game(seat.id))) == before, "what is refused changes nothing");
    }

    // -- moves -----------------------------------------------------------------------------------------------------

    uint256 private constant KINDS = 14;

    /// @notice A call of each kind with nothing to show for it.
    function anyCall(GameId id, GameState memory g, uint256 kind) private view returns (bytes memory) {
        bytes32[] memory two = new bytes32[](2);
        two[0] = two[1] = keccak256("garbage");
        Step memory none;
        Proof memory nothing;
        if (kind == 0) return abi.encodeCall(game.reveal, (id, g, two));
        if (kind == 1) return abi.encodeCall(game.pick, (id, g, 0, two[0], two));
        if (kind == 2) return abi.encodeCall(game.adjacent, (id, g, none));
        if (kind == 3) return abi.encodeCall(game.defend, (id, g, "", two[0], two[0], two, two));
        if (kind == 4) return abi.encodeCall(game.revealTensor, (id, g, "", "", two, two[0], two));
        if (kind == 5) return abi.encodeCall(game.postLeaf, (id, g, Letters.word(uint32(_luck))));
        if (kind == 6) return abi.encodeCall(game.pickElement, (id, g, 0));
        if (kind == 7) return abi.encodeCall(game.postPartials, (id, g, abi.encodePacked(uint96(_luck))));
        if (kind == 8) return abi.encodeCall(game.pickPartial, (id, g, 0, abi.encodePacked(uint96(_luck))));
        if (kind == 9) return abi.encodeCall(game.proveOp, (id, g, nothing));
        if (kind == 10) return abi.encodeCall(game.proveAlias, (id, g, "", "", two[0], two));
        if (kind == 11) return abi.encodeCall(game.provePadding, (id, g));
        if (kind == 12) return abi.encodeCall(game.stage, (id, g, nothing));
        return abi.encodeCall(game.resolve, (id, g));
    }

    /// @dev The defender's move, from the claim `c`.
    function _answer(GameId id, GameState memory g, Letters.Claim memory c, uint32 t)
        private
        view
        returns (bytes memory)
    {
        if (g.phase() == GamePhase.TraceReveal) return abi.encodeCall(game.reveal, (id, g, c.trace()));
        bytes32 root = c.graphRoot(t);
        if (g.phase() == GamePhase.Defend) {
            return abi.encodeCall(
                game.defend,
                (id, g, c.statement(t, 0), root, c.state(t), new bytes32[](0), c.graph(t))
            );
        }
        if (g.phase() == GamePhase.Tensor) {
            bytes memory d = Letters.descriptor(g.position());
            bytes32[] memory where = Letters.proof(Letters.opsTree(), g.position());
            bytes32 leaf = Merkle.leaf(Letters.word(c.valueOf(t, g.position())));
            return abi.encodeCall(
                game.revealTensor, (id, g, c.statement(t, root), d, where, leaf, new bytes32[](0))
            );
        }
        if (g.phase() == GamePhase.Leaf) {
            return abi.encodeCall(game.postLeaf, (id, g, Letters.word(c.valueOf(t, g.op()))));
        }
        return abi.encodeCall(game.postPartials, (id, g, c.partials(t)));
    }

    function _one(bytes32 x) private pure returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = x;
    }

    /// @notice The proof of a chunk that the fold of step `t` does not have, in a game that has come to the proof.
    function chunkBeyond(uint256 i, uint32 t) external returns (bool done, bytes memory answer) {
        GameState memory g = standingOf(seats[i].id);
        Letters.Claim memory c = held;
        Proof memory p;
        (p.descriptor, p.posted) = (Letters.descriptor(g.op()), _posted(seats[i].id, c, t));
        (p.context, p.chunk) = (c.statement(t, c.graphRoot(t)), uint32(Letters.CHUNKS));
        (done, answer,) = _sends(account(i), abi.encodeCall(game.proveOp, (seats[i].id, g, p)));
    }

    /// @dev The challenger's move by what differs from `own`; anywhere if it is `wild`. Empty if nothing differs.
    function _point(GameId id, GameState memory g, Letters.Claim memory own, uint32 t, bool wild)
        private
        returns (bytes memory)
    {
        Letters.Claim memory c = held;
        if (g.phase() == GamePhase.TracePick) {
            return abi.encodeCall(game.pick, (id, g, t - 1, c.trace()[t - 1], Letters.proof(c.trace(), t - 1)));
        }
        if (g.phase() == GamePhase.Adjacent) return abi.encodeCall(game.adjacent, (id, g, c.step(t)));
        if (g.phase() == GamePhase.GraphPick) {
            bytes32[] memory shown = c.graph(t);
            uint256 i = wild ? dice(8) : Letters.firstDifference(shown, own.graph(t));
            if (i == 8) return "";
            return abi.encodeCall(game.pick, (id, g, i, shown[i], Letters.proof(c.graph(t), i)));
        }
        if (g.phase() == GamePhase.Element && g.op() == 1) return abi.encodeCall(game.pickElement, (id, g, 0));
        if (g.phase() == GamePhase.Padding) return abi.encodeCall(game.provePadding, (id, g));
        bytes memory context = c.statement(t, c.graphRoot(t));
        if (g.phase() == GamePhase.Element || g.phase() == GamePhase.Proof) {
            return _proof(id, g, own, t, wild, context);
        }
        (bytes32 value, bytes32[] memory proof) = _named(g.position() - Letters.BLOCK, t);
        return abi.encodeCall(game.proveAlias, (id, g, context, Letters.header(), value, proof));
    }

    /// @dev What the state table names for an entry of step `t`, with its proof.
    function _named(uint256 entry, uint32 t) private view returns (bytes32, bytes32[] memory) {
        if (entry == 3) return (0, new bytes32[](0));
        Letters.Claim memory c = held;
        bytes32[] memory leaves = entry == 2 ? c.entries(t - 1) : c.graph(t);
        uint256 i = entry == 0 ? 0 : 2;
        return (leaves[i], Letters.proof(leaves, i));
    }

    function _proof(
        GameId id, GameState memory g, Letters.Claim memory own, uint32 t, bool wild, bytes memory context
    ) private returns (bytes memory) {
        Letters.Claim memory c = held;
        Proof memory p;
        p.descriptor = Letters.descriptor(g.op());
        p.openings = c.openings(t, g.op());
        p.context = context;
        p.posted = Letters.word(c.valueOf(t, g.op()));
        if (g.op() == 1) {
            bytes memory words = _words[id];
            while (p.chunk < Letters.CHUNKS && _word(words, p.chunk) == own.chunkOf(t, p.chunk)) p.chunk++;
            if (wild) p.chunk = uint32(dice(Letters.CHUNKS + 1));
            if (p.chunk == Letters.CHUNKS) {
                // No chunk is wrong: then it is how they combine. The leaf is shown for the word that they make.
                p.chunk = COMBINED;
                p.openings = new Opening[](1);
                p.openings[0].data = p.posted;
            }
            p.posted = _posted(id, c, t);
        }
        return abi.encodeCall(game.proveOp, (id, g, p));
    }

    /// @dev What a proof about the fold shows of what was posted: the partials, and the node of element 0 behind them.
    function _posted(GameId id, Letters.Claim memory c, uint32 t) private view returns (bytes memory) {
        bytes32 leaf = Merkle.leaf(Letters.word(c.valueOf(t, 1)));
        return abi.encodePacked(_words[id], keccak256(abi.encodePacked(leaf, uint64(0))));
    }

    function _word(bytes memory words, uint256 i) private pure returns (uint32 word) {
        for (uint256 k = 0; k < 4; k++) word = word << 8 | uint8(words[4 * i + k]);
    }

    // -- what must hold --------------------------------------------------------------------------------------------

    /// @notice Nothing is made or lost: free, locked and credited stake together are what was deposited.
    function checkMoney() external view {
        uint256 sum = vault.lockOf(ClaimId.unwrap(CLAIM)).amount + vault.credits(BURN) + vault.credits(market.REQUESTER());
        sum += vault.free(WORKER) + vault.credits(WORKER);
        for (uint256 i = 0; i < SEATS; i++) sum += vault.free(account(i)) + vault.credits(account(i));
        for (uint256 i = 0; i < seats.length; i++) sum += vault.lockOf(GameId.unwrap(seats[i].id)).amount;
        require(sum == DEPOSIT * (SEATS + 1), "money is made or lost");
        require(token.balanceOf(address(vault)) == sum, "the vault is not solvent");
    }

    /// @notice A game that is not over is within both clocks; whoever is honest has lost none.
    function checkGames() external view {
        for (uint256 i = 0; i < seats.length; i++) {
            GameState memory g = standingOf(seats[i].id);
            Stored memory stored = game.game(seats[i].id);
            bool closed = g.phase() == GamePhase.Closed;
            if (closed) {
                require(stored.standing == 0 && stored.spent == 0, "a closed game keeps its verdict alone");
                require(stored.verdict != Verdict.None, "and has one");
                require(vault.lockOf(GameId.unwrap(seats[i].id)).amount == 0, "a bond is stuck");
                require(
                    seats[i].actor != Actor.Honest || stored.verdict != Verdict.Rejected || isTrue,
                    "an honest challenger lost"
                );
            } else {
                require(g.deadline() <= seats[i].opened + seats[i].budget, "longer than both clocks");
            }
            if (defender == Actor.Honest && isTrue && held.lie == Letters.Lie.None) {
                require(!closed || stored.verdict == Verdict.Rejected, "an honest defender lost");
                require(vault.lockOf(ClaimId.unwrap(CLAIM)).amount == STAKE, "an honest stake was touched");
            }
        }
    }
}
