// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {StakeVault} from "../../contracts/StakeVault.sol";
import {Demand, Row, Status} from "../../contracts/interfaces/IAvailability.sol";
import {GamePhase, GameState, Proof, Signed, Step, Verdict, Work} from "../../contracts/interfaces/IDisputeGame.sol";
import {
    Body,
    Claim,
    ClaimStatus,
    Facts,
    Job,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Reveal,
    Role,
    Round
} from "../../contracts/interfaces/IJobMarket.sol";
import {Lock} from "../../contracts/interfaces/IStakeVault.sol";
import {Code} from "../../contracts/interfaces/IValidator.sol";
import {
    Audit,
    AuditStatus,
    Duty,
    DutyStatus,
    IWitnesses,
    Outcome,
    Word
} from "../../contracts/interfaces/IWitnesses.sol";
import {Draws} from "../../contracts/libraries/Draws.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Ids} from "../../contracts/libraries/Ids.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {AuditId, ClaimId, GameId, JobId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {Constant} from "./Constant.sol";
import {Deployed} from "./Deployed.sol";
import {Letters} from "./Letters.sol";
import {oneRole, keep} from "./OneRole.sol";

/// @title SystemHandler
/// @notice What the fuzzer may do to one job on the whole deployment: a worker, a verifier and a witness are honest, the others do as it likes.
/// @dev Time passes only when who is honest has done what it owes: that is what honest programs promise.
contract SystemHandler is Deployed {
    using Constant for Constant.Claim;
    using GameStates for GameState;

    uint256 public constant ACCOUNTS = 8;
    uint256 public constant DEPOSIT = 100_000;
    uint256 public constant FEE = 11;
    uint256 internal constant REQUESTER = 0;
    uint256 internal constant AGGREGATOR = 1;
    uint256 internal constant WORKER = 2;
    uint256 internal constant VERIFIER = 3;
    uint256 internal constant LIAR = 4;
    uint256 internal constant WITNESS = 6;
    uint16 internal constant SLOTS = 3;
    uint32 internal constant ROUNDS = 4;
    uint256 internal constant LINKS = 40;
    /// @dev Keys that own the worker's and the witness's account, one after the other: nobody else has either.
    uint256 internal constant COLD = 8;
    uint256 internal constant HEIR = 9;
    /// @dev After its reveal: witnesses have committed by then.
    uint256 internal constant CHALLENGE_AFTER = 230;

    struct Seat {
        GameId id;
        ClaimId claim;
        address challenger;
        uint32 t;
    }

    struct Seen {
        AuditId audit;
        uint16 i;
    }

    Seat[] public seats;
    Seen[] public duties;
    ClaimId[] public claims;
    bytes32[] private _demands;
    bytes32[] private _keys;
    mapping(bytes32 key => bool) private _seen;
    mapping(ClaimId claim => Constant.Claim) private _made;
    mapping(ClaimId claim => bool) private _equivocated;
    mapping(ClaimId claim => bool) private _dead;
    mapping(AuditId audit => bool) private _noted;
    mapping(address account => bytes32) private _bottom;
    mapping(address account => uint256) private _enrolments;
    /// @dev Nobody has the dataset's row any more.
    bool private _isRowGone;

    /// @notice Sums that the invariants compare with balances.
    uint256 public deposited;
    uint256 public withdrawn;
    /// @notice What must never happen, counted: an honest act that is refused, a dead claim that lives, a stake that falls without a reason.
    uint256 public refused;
    uint256 public risen;
    uint256 public wronged;
    /// @notice What was let be done with a stolen key, or by a stranger, that an owner alone may; and what owners did.
    uint256 public usurped;
    uint256 public commanded;
    /// @notice What left the vault for an account that has an owner.
    mapping(address account => uint256) public paidOut;
    /// @notice How games and duties ended.
    mapping(Verdict => uint256) public verdicts;
    mapping(Outcome => uint256) public ended;
    uint256 public convicted;
    /// @notice Merges that were made again.
    uint256 public replaced;

    address[ACCOUNTS] private _accounts;
    mapping(address account => uint256) private _indexOf;

    constructor() {
        for (uint256 i = 0; i < ACCOUNTS; i++) (_accounts[i], _indexOf[acc(i)]) = (acc(i), i);
        _deploy(1_000);
        for (uint256 i = 0; i < ACCOUNTS; i++) _fund(i, DEPOSIT);
        // Computed before the prank: hashing calls a precompile, which the prank would be spent on.
        JobParams memory p = _params();
        keep(terms, p);
        CHEATS.prank(_who(REQUESTER));
        job = market.create(p, 0, 1e6 + 1);
        deposited = token.balanceOf(address(vault));
        _enrol(_who(WITNESS));
        _enrol(_who(WITNESS + 1));
        for (uint256 k = 0; k < 2; k++) {
            CHEATS.prank(_owned(k));
            vault.setOwner(acc(COLD));
        }
    }

    // -- what the fuzzer may do ------------------------------------------------------------------------------------

    /// @notice Time passes, when who is honest has acted.
    function pass(uint256 time, uint256 blocks) external {
        _behave();
        CHEATS.warp(block.timestamp + 1 + time % 40);
        CHEATS.roll(block.number + (blocks % 48 == 0 ? 300 : 2));
        _behave();
    }

    /// @notice What the phase of a round asks for, by those whose bit in `who` is set and by nobody honest.
    function advance(uint256 back, uint256 who, uint256 luck) external {
        uint32 r = _round(back);
        Phase phase = market.phase(job, r);
        uint32 started = market.job(job).started;
        if (phase == Phase.Sealing) {
            CHEATS.roll(block.number + 2);
            market.seal(job, r);
        } else if (phase == Phase.Attesting) {
            _speak(r, who, luck);
        } else if (phase == Phase.Freezing) {
            market.freeze(job, r, _revealed(r));
        } else if (phase == Phase.Merging && market.mergerOf(job, r) != address(0)) {
            if (!_isHonest(market.mergerOf(job, r))) _mergeBy(r, market.mergerOf(job, r), luck);
        } else if (phase == Phase.Lead && luck % 4 == 1 && market.mergerOf(job, r) != address(0)) {
            if (!_isHonest(market.mergerOf(job, r))) _mergeBy(r, market.mergerOf(job, r), luck);
        } else if (phase == Phase.Lead && started < ROUNDS && luck % 4 != 0) {
            _backAll(r, started);
            market.startRound(job, started);
        } else if (phase == Phase.Failed && started < ROUNDS && luck % 2 != 0) {
            market.startRound(job, started);
        } else if (phase == Phase.Failed && market.job(job).settled > r) {
            market.finish(job);
        } else if (
            phase == Phase.Merging || phase == Phase.Lead || phase == Phase.Failed
        ) {
            market.finalize(job, r);
        } else if (phase == Phase.Void) {
            market.release(job, r);
        } else if (phase == Phase.None || phase == Phase.Final) {
            started < ROUNDS && luck % 8 != 0 ? market.startRound(job, started) : market.finish(job);
        } else {
            for (uint32 s = 0; s < SLOTS; s++) if ((who >> s) & 1 == 1) _work(r, s, phase, _who(LIAR + (luck >> s) % 2));
        }
        _note();
    }

    /// @notice What happens beside the rounds.
    function aside(uint256 kind, uint256 who, uint256 amount) external {
        address actor = _dishonest(who);
        kind %= 12;
        if (kind == 0) {
            amount %= 10_000;
            CHEATS.prank(actor);
            vault.deposit(amount);
            deposited += amount;
        } else if (kind == 1) {
            CHEATS.prank(actor);
            withdrawn += vault.withdraw();
        } else if (kind == 2) {
            withdrawn += vault.burn();
        } else if (kind == 3) {
            CHEATS.prank(actor);
            vault.requestUnbond(amount % 30_000);
        } else if (kind == 4) {
            (uint256 unbonding,) = vault.unbonding(actor);
            CHEATS.prank(actor);
            vault.withdrawUnbonded();
            withdrawn += unbonding;
        } else if (kind == 5) {
            uint32 r = _round(amount);
            uint32 slot = uint32(who % SLOTS);
            address owner = market.claim(market.claimIdOf(job, r, slot)).worker;
            if (!_isHonest(owner)) {
                CHEATS.prank(owner);
                market.leave(job, r, slot);
            }
        } else if (kind == 6 && amount % 8 == 0) {
            CHEATS.prank(_who(REQUESTER));
            market.cancel(job);
        } else if (kind == 7) {
            if (amount % 2 == 0) {
                _enrol(actor);
            } else {
                CHEATS.prank(actor);
                witnesses.retire(job);
            }
        } else if (kind == 8) {
            _demandPayload(actor, amount);
        } else if (kind == 9 && amount % 4 == 0) {
            CHEATS.prank(actor);
            _demanded(availability.demandRow(job, 0));
            if (amount % 16 == 0) _isRowGone = true;
        } else if (kind == 10 && _demands.length > 0) {
            bytes32 demand = _demands[amount % _demands.length];
            demand == availability.rowDemandId(job, 0) ? availability.voidForRow(job, 0) : availability.settle(demand);
        } else {
            market.finish(job);
        }
        _note();
    }

    /// @notice A thief has a copy of an honest account's key, and one of its own: it tries every verb of an owner with both.
    /// @dev What the account's key may do at work is not tried: who has it could sign two claims for one slot.
    function steal(uint256 verb, uint256 who, uint256 amount) external {
        (address account, address thief) = (_owned(who >> 8), _dishonest(who));
        bytes[9] memory tries = [
            abi.encodeCall(vault.setOwner, (thief)),
            abi.encodeCall(vault.setDelegate, (thief)),
            abi.encodeCall(vault.requestUnbond, (amount % 1_000)),
            abi.encodeCall(vault.proposeOwner, (account, thief)),
            abi.encodeCall(vault.acceptOwner, (account)),
            abi.encodeCall(vault.requestUnbondFor, (account, amount % 1_000)),
            abi.encodeCall(vault.withdrawUnbondedFor, (account)),
            abi.encodeCall(vault.withdrawFor, (account)),
            abi.encodeCall(vault.setDelegateFor, (account, thief))
        ];
        verb %= 11;
        if (verb > 8) return _push(account, verb == 9);
        // The first three are about who sends them: with the stolen key alone they are about the account.
        CHEATS.prank(verb < 3 || amount % 2 == 0 ? account : thief);
        (bool done,) = address(vault).call(tries[verb]);
        if (done) usurped += 1;
    }

    /// @notice An owner takes out what is free, and what is due, names a delegate and hands the account on.
    function command(uint256 verb, uint256 who, uint256 amount) external {
        address account = _owned(who);
        address owner = vault.ownerOf(account);
        address next = owner == acc(COLD) ? acc(HEIR) : acc(COLD);
        (uint256 unbonding,) = vault.unbonding(account);
        uint256 credits = vault.credits(account);
        verb %= 6;
        // An owner leaves its account what it needs for its work.
        if (verb == 0 && vault.free(account) < DEPOSIT / 2) return;
        CHEATS.prank(verb == 4 ? next : owner);
        if (verb == 0) vault.requestUnbondFor(account, amount % 10_000);
        else if (verb == 1) vault.withdrawUnbondedFor(account);
        else if (verb == 2) vault.withdrawFor(account);
        else if (verb == 3) vault.proposeOwner(account, next);
        else if (verb == 4) vault.acceptOwner(account);
        else vault.setDelegateFor(account, next);
        if (verb == 1) _left(account, unbonding);
        if (verb == 2) _left(account, credits);
        commanded += 1;
    }

    /// @dev With the account's own key: what is due goes to the owner.
    function _push(address account, bool unbonded) private {
        (uint256 amount,) = vault.unbonding(account);
        if (!unbonded) amount = vault.credits(account);
        CHEATS.prank(account);
        if (unbonded) vault.withdrawUnbonded();
        else vault.withdraw();
        _left(account, amount);
    }

    function _left(address account, uint256 amount) private {
        withdrawn += amount;
        paidOut[account] += amount;
    }

    function _owned(uint256 k) private view returns (address) {
        return _who(k % 2 == 0 ? WORKER : WITNESS);
    }

    /// @notice What the keys that work for an owner have in their wallets beyond what they began with, the owners less what they were paid.
    function astray() external view returns (bool) {
        (address worker, address witness) = (_owned(0), _owned(1));
        uint256 had = 1e27 - DEPOSIT;
        bool isKept = token.balanceOf(worker) == had && token.balanceOf(witness) == had;
        return !isKept || token.balanceOf(acc(COLD)) + token.balanceOf(acc(HEIR)) != paidOut[worker] + paidOut[witness];
    }

    /// @notice Accounts whose owner is none of the keys that it was given to.
    function taken() external view returns (bool) {
        for (uint256 k = 0; k < 2; k++) {
            address owner = vault.ownerOf(_owned(k));
            if (owner != acc(COLD) && owner != acc(HEIR)) return true;
        }
        return false;
    }

    /// @notice Somebody who is not honest challenges a claim at a transition, or its trace; a worker signs its own claim twice.
    function open(uint256 who, uint256 k, uint256 t) external {
        ClaimId claim = claims[k % claims.length];
        Constant.Claim memory c = _made[claim];
        address actor = _dishonest(who);
        if (t % 16 == 15) return _equivocate(claim, actor);
        uint32 at = c.isMerge ? 1 : uint32(t % 3);
        _open(claim, actor, at);
        _note();
    }

    /// @notice Of the games where it is a dishonest party's turn, one goes on: by its claim, or anywhere.
    function play(uint256 k, uint256 luck) external {
        for (uint256 n = 0; n < seats.length; n++) {
            Seat storage seat = seats[(k % seats.length + n) % seats.length];
            GameState memory g = standingOf(seat.id);
            if (g.phase() == GamePhase.Closed) continue;
            bool defends = _defends(g);
            address mover = defends ? g.defender() : seat.challenger;
            if (_isHonest(mover)) continue;
            bytes memory move = defends ? _answer(seat, g) : _point(seat, g, luck, true);
            (bool done,,) = _sends(mover, move);
            if (done && seat.t == 0 && g.phase() == GamePhase.TracePick) seat.t = 1 + uint32(luck % 2);
            break;
        }
        _note();
    }

    /// @notice Witnesses that are not honest commit to what the worker told them or to nothing, then agree or differ.
    function say(uint256 k) external {
        for (uint256 n = 0; n < duties.length; n++) {
            Seen memory at = duties[n];
            Duty memory d = witnesses.duty(at.audit, at.i);
            bool mayCommit = d.status == DutyStatus.Drawn;
            if (_isHonest(d.account) || (!mayCommit && d.status != DutyStatus.Committed)) continue;
            ClaimId claim = _claimOf(at, d);
            uint256 luck = uint256(keccak256(abi.encode(claim, at.i)));
            Word memory word = _word(at, d, _made[claim], luck % 4 != 0);
            if (luck % 5 == 0) word.state = bytes32(k);
            if (luck % 7 == 0) word.leaf.digest = bytes32(k);
            bytes32 commitment = _bound(claim, d.account, word);
            CHEATS.prank(d.account);
            // What comes too early or too late is refused.
            if (mayCommit) try witnesses.commit(at.audit, at.i, commitment) {} catch {}
            else try witnesses.reveal(at.audit, at.i, word) {} catch {}
        }
    }

    function settle(uint256 k) external {
        for (uint256 n = 0; n < duties.length; n++) {
            Seen memory at = duties[(k % duties.length + n) % duties.length];
            if (witnesses.duty(at.audit, at.i).status == DutyStatus.Closed) continue;
            try this.settleOne(at) {
                break;
            } catch {}
        }
        _note();
    }

    /// @notice Everybody who is honest does what is at hand, and anybody may: what is over must end, whatever was done before.
    /// @return held What is locked still, of the job itself or of one key; 0 if the job is done and nothing is locked.
    function end() external returns (bytes32 held) {
        for (uint256 i = 0; i < 400; i++) {
            _behave();
            _tidy();
            held = market.job(job).status == JobStatus.Done ? _anyLock() : JobId.unwrap(job);
            if (held == 0) return held;
            CHEATS.warp(block.timestamp + 40);
            CHEATS.roll(block.number + 3);
        }
    }

    // -- what the invariants ask -----------------------------------------------------------------------------------

    function isHonest(uint256 i) public pure returns (bool) {
        return i == WORKER || i == VERIFIER || i == WITNESS;
    }

    function _isHonest(address who) private view returns (bool) {
        return isHonest(_indexOf[who]);
    }

    function _who(uint256 i) private view returns (address) {
        return _accounts[i];
    }

    /// @notice Everything that everybody has in the vault, and what is burned; for each account what is its own.
    function worth() external view returns (uint256 sum, uint256[ACCOUNTS] memory own) {
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            own[i] = _wealth(_who(i));
            sum += own[i];
            own[i] += paidOut[_who(i)];
        }
        for (uint256 k = 0; k < _keys.length; k++) {
            Lock memory held = vault.lockOf(_keys[k]);
            sum += held.amount;
            own[_indexOf[held.account]] += held.amount;
        }
        sum += vault.credits(vault.BURN());
    }

    /// @dev What is not locked for a claim, a game or a demand.
    function _wealth(address who) private view returns (uint256) {
        (uint256 unbonding,) = vault.unbonding(who);
        return vault.free(who) + vault.credits(who) + unbonding + vault.lockOf(Draws.stakeKey(job, who)).amount;
    }

    /// @notice What slashes owe to work of void rounds that nobody has released yet.
    function owed() external view returns (uint256 sum) {
        for (uint32 r = 0; r < ROUNDS; r++) {
            Round memory ro = market.round(job, r);
            if (!ro.due) continue;
            sum += ro.committed * uint256(terms.roles[0].slotPrice);
            if (ClaimId.unwrap(ro.mergeClaim) != 0) sum += terms.merge.price;
        }
    }

    function openDuties() external view returns (uint256 count) {
        for (uint256 k = 0; k < duties.length; k++) {
            if (witnesses.duty(duties[k].audit, duties[k].i).status != DutyStatus.Closed) count++;
        }
    }

    function theVault() external view returns (StakeVault) {
        return vault;
    }

    function theToken() external view returns (TestToken) {
        return token;
    }

    function theWitnesses() external view returns (IWitnesses, JobId) {
        return (witnesses, job);
    }

    function theJob() external view returns (Job memory) {
        return market.job(job);
    }

    /// @notice Reverts if a game is not what its events say.
    function checkGames() external view {
        for (uint256 k = 0; k < seats.length; k++) standingOf(seats[k].id);
    }

    /// @notice Claims that stand though nobody argues about them.
    function idleClaims() external view returns (uint256 count) {
        for (uint256 k = 0; k < claims.length; k++) {
            if (market.live(claims[k]) && market.claim(claims[k]).openGames == 0) count++;
        }
    }

    // -- who is honest ---------------------------------------------------------------------------------------------

    /// @dev Whatever of it is refused is a defect: of the contracts, or of this.
    function _behave() private {
        try this.behave() {}
        catch {
            refused += 1;
        }
        _note();
    }

    function behave() external {
        require(msg.sender == address(this), "inside");
        for (uint32 r = 0; r < market.job(job).started; r++) _honestRound(r);
        for (uint256 k = 0; k < duties.length; k++) _honestDuty(duties[k]);
        for (uint256 k = 0; k < claims.length; k++) _honestChallenge(claims[k]);
        for (uint256 k = 0; k < seats.length; k++) _honestMove(k);
        for (uint256 k = 0; k < _demands.length; k++) _honestAnswer(_demands[k]);
    }

    function _honestRound(uint32 r) private {
        Phase phase = market.phase(job, r);
        address me = _who(WORKER);
        if (phase == Phase.Merging && market.mergerOf(job, r) == me) return _mergeBy(r, me, 2);
        if (phase == Phase.Lead && market.mergerOf(job, r) == me) {
            if (_made[market.round(job, r).mergeClaim].lie == Constant.Lie.None) _mergeBy(r, me, 2);
            return;
        }
        if (phase == Phase.Joining) {
            for (uint32 s = 0; s < SLOTS; s++) if (_owner(r, s) == me) return;
            for (uint32 s = 0; s < SLOTS; s++) if (_owner(r, s) == address(0)) return _work(r, s, phase, me);
            return;
        }
        for (uint32 s = 0; s < SLOTS; s++) {
            if (_owner(r, s) != me) continue;
            if (phase == Phase.Attesting) _attest(r, s, me, type(uint256).max);
            else _work(r, s, phase, me);
        }
    }

    function _honestDuty(Seen memory at) private {
        Duty memory d = witnesses.duty(at.audit, at.i);
        if (!_isHonest(d.account)) return;
        Audit memory a = witnesses.audit(at.audit);
        ClaimId claim = _claimOf(at, d);
        Constant.Claim memory c = _made[claim];
        uint32 t = _step(at, d);
        uint32 wrong = c.wrongFrom();
        Word memory word = _word(at, d, c, wrong == 0 || wrong > t);
        (word.state, word.leaf) = (c.truth().state(1), c.truth().leaf());
        if (d.status == DutyStatus.Drawn && block.timestamp < a.commitEnds) {
            bytes32 commitment = _bound(claim, d.account, word);
            CHEATS.prank(d.account);
            witnesses.commit(at.audit, at.i, commitment);
        } else if (
            d.status == DutyStatus.Committed && block.timestamp >= a.commitEnds && block.timestamp < a.revealEnds
        ) {
            CHEATS.prank(d.account);
            witnesses.reveal(at.audit, at.i, word);
        }
    }

    function _honestChallenge(ClaimId claim) private {
        Constant.Claim memory c = _made[claim];
        uint32 wrong = c.wrongFrom();
        if (wrong == 0 || !market.live(claim) || !market.windowOpen(claim)) return;
        Claim memory stored = market.claim(claim);
        if (stored.digest == 0 || block.timestamp < stored.claimedAt + CHALLENGE_AFTER) return;
        if (phaseOf(game.gameIdOf(claim, _who(VERIFIER), 0)) != GamePhase.None) return;
        _open(claim, _who(VERIFIER), wrong);
    }

    function _honestMove(uint256 k) private {
        // Each answer may be answered: a few in one look.
        for (uint256 i = 0; i < 4; i++) {
            Seat memory seat = seats[k];
            GameState memory g = standingOf(seat.id);
            if (g.phase() == GamePhase.Closed) return;
            if (!market.live(seat.claim) || block.timestamp > g.deadline()) return game.resolve(seat.id, g);
            bool defends = _defends(g);
            address mover = defends ? g.defender() : seat.challenger;
            if (!_isHonest(mover)) return;
            bytes memory move = defends ? _answer(seat, g) : _point(seat, g, 0, false);
            (bool done,,) = _sends(mover, move);
            require(done, "an honest move is refused");
        }
    }

    function _honestAnswer(bytes32 id) private {
        Demand memory d = availability.demand(id);
        if (d.status != Status.Open || block.timestamp > d.deadline) return;
        if (d.beacon == 0) {
            if (_isRowGone) return;
            Row[] memory rows = new Row[](1);
            rows[0].leaf = Letters.word(Constant.ROW);
            bytes memory call = abi.encodeCall(availability.answerRow, (job, 0, Constant.datasetTree(), 0, rows));
            bytes32[] memory digests = new bytes32[](1);
            digests[0] = keccak256(abi.encode(_who(WORKER), keccak256(call)));
            if (availability.committedAt(digests[0]) == 0) return availability.commit(digests);
            if (availability.committedAt(digests[0]) >= block.number) return;
            CHEATS.prank(_who(WORKER));
            (bool done,) = address(availability).call(call);
            require(done, "a row is refused");
        } else if (_isHonest(market.claim(ClaimId.wrap(d.subject)).worker) && block.number > d.beacon) {
            Constant.Claim memory c = _made[ClaimId.wrap(d.subject)];
            Code memory code = Code(Constant.header(Constant.Kind.Encode), Constant.opsRoot(), 0);
            availability.answer(id, c.body(), code, c.shown());
        }
    }

    // -- rounds ----------------------------------------------------------------------------------------------------

    /// @dev A slot's part in a phase. What it may not do, it leaves.
    function _work(uint32 r, uint32 s, Phase phase, address who) private {
        ClaimId claim = market.claimIdOf(job, r, s);
        address worker = _owner(r, s);
        ClaimStatus status = market.claim(claim).status;
        if (phase == Phase.Joining && worker == address(0)) {
            CHEATS.prank(who);
            market.join(job, r, s);
            _lock(ClaimId.unwrap(claim));
            return;
        }
        if (_isHonest(worker) != _isHonest(who)) return;
        if (phase == Phase.Training && status == ClaimStatus.Joined) {
            _make(claim, Constant.Claim(_isHonest(worker) ? Constant.Lie.None : _lieOf(claim), false, market.round(job, r).base, r));
            Reveal memory o = _shown(claim);
            bytes32 commitment = keccak256(abi.encode(claim, worker, o.body, o.carries, o.nonce));
            CHEATS.prank(worker);
            market.commit(job, r, s, commitment);
        } else if (phase == Phase.Revealing && status == ClaimStatus.Committed) {
            Reveal memory o = _shown(claim);
            CHEATS.prank(worker);
            market.reveal(job, r, s, o);
        }
    }

    function _shown(ClaimId claim) private view returns (Reveal memory o) {
        Constant.Claim memory c = _made[claim];
        (o.body, o.nonce, o.proofT) = (c.body(), ClaimId.unwrap(claim), c.traceProof(2));
    }

    function _lieOf(ClaimId claim) private pure returns (Constant.Lie) {
        uint256 luck = uint256(keccak256(abi.encode(claim, "lie"))) % 7;
        return luck < 5 ? Constant.Lie(1 + luck) : Constant.Lie.None;
    }

    function _speak(uint32 r, uint256 who, uint256 luck) private {
        Round memory ro = market.round(job, r);
        if (!ro.drawn && luck % 4 != 0) return witnesses.draw(job, r);
        for (uint32 s = 0; s < SLOTS + ro.witnesses; s++) {
            uint32 speaker = s < SLOTS ? s : 64 + s - SLOTS;
            address by = s < SLOTS ? _owner(r, s) : witnesses.witnessOf(job, r, s - SLOTS);
            if ((who >> s) & 1 == 0 || by == address(0) || _isHonest(by)) continue;
            _attest(r, speaker, by, luck % 7 == 0 ? luck >> 8 : type(uint256).max);
        }
    }

    function _attest(uint32 r, uint32 speaker, address by, uint256 mask) private {
        Round memory ro = market.round(job, r);
        if ((ro.spoke >> speaker) & 1 == 1) return;
        if (speaker < 64 && market.claim(market.claimIdOf(job, r, speaker)).status != ClaimStatus.Revealed) return;
        Receipt[] memory given = new Receipt[](1);
        bytes32 kind = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");
        bytes32 digest = Ids.typed(address(market), keccak256(abi.encode(kind, job, r, ro.attempt, speaker, mask)));
        given[0] = Receipt(speaker, mask, _signedBy(by, digest));
        market.attest(job, r, given);
    }

    function _mergeBy(uint32 r, address merger, uint256 luck) private {
        ClaimId first = market.round(job, r).mergeClaim;
        Constant.Claim memory c = Constant.Claim(Constant.Lie.None, true, 0, 0);
        uint16 rounds = uint16(luck % 3);
        if (!_isHonest(merger) && luck % 8 < 2) c.lie = luck % 8 == 0 ? Constant.Lie.Value : Constant.Lie.Padding;
        if (ClaimId.unwrap(first) != 0) {
            (c, rounds) = (_made[first], uint16(market.job(job).started - r + luck % 2));
            replaced += 1;
        }
        Body memory body = c.body();
        CHEATS.prank(merger);
        market.merge(job, r, body.out, body.out2, "", rounds);
        ClaimId claim = market.claimIdOf(job, r, MERGE);
        _make(claim, c);
        _lock(ClaimId.unwrap(claim));
    }

    /// @dev Who merged covers what is to start on its merge, if it is not honest: honest ones have done so when they merged.
    function _backAll(uint32 r, uint32 started) private {
        uint16 lacking = uint16(started - r);
        Round memory ro = market.round(job, r);
        address merger = market.claim(ro.mergeClaim).worker;
        if (ro.backed >= lacking || _isHonest(merger)) return;
        CHEATS.prank(merger);
        market.back(job, r, lacking - ro.backed);
    }

    /// @dev Of the revealed slots, in order.
    function _revealed(uint32 r) private view returns (Body[] memory bodies) {
        bodies = new Body[](SLOTS);
        uint256 count = 0;
        for (uint32 s = 0; s < SLOTS; s++) {
            ClaimId claim = market.claimIdOf(job, r, s);
            if (market.claim(claim).status == ClaimStatus.Revealed) bodies[count++] = _made[claim].body();
        }
        assembly ("memory-safe") {
            mstore(bodies, count)
        }
    }

    function _demandPayload(address actor, uint256 luck) private {
        uint32 r = _round(luck);
        CHEATS.prank(actor);
        _demanded(availability.unavailable(job, r, uint32(luck % SLOTS), luck));
    }

    // -- games -----------------------------------------------------------------------------------------------------

    function _open(ClaimId claim, address challenger, uint32 t) private watched {
        Constant.Claim memory c = _made[claim];
        Step memory step;
        (bytes32 next, bytes32[] memory nextProof) = (bytes32(0), new bytes32[](0));
        if (t > 0) {
            bytes32 zero = market.factsOf(claim, t, new bytes32[](0)).stateZero;
            (next, nextProof, step) = (c.state(t), c.traceProof(t), c.step(t, zero));
        }
        uint32 nonce = 0;
        while (phaseOf(game.gameIdOf(claim, challenger, nonce)) != GamePhase.None) nonce++;
        Body memory body = c.body();
        CHEATS.prank(challenger);
        GameId id = game.open(claim, body, nonce, t, next, nextProof, step);
        seats.push(Seat(id, claim, challenger, t));
        _lock(GameId.unwrap(id));
    }

    /// @dev The defender's move, from its claim.
    function _answer(Seat memory seat, GameState memory g) private view returns (bytes memory) {
        Constant.Claim memory c = _made[seat.claim];
        uint32 t = seat.t == 0 ? 1 : seat.t;
        if (g.phase() == GamePhase.TraceReveal) return abi.encodeCall(game.reveal, (seat.id, g, c.trace()));
        Facts memory f = market.factsOf(seat.claim, t, new bytes32[](0));
        if (g.phase() == GamePhase.Defend) {
            return abi.encodeCall(
                game.defend, (seat.id, g, c.statement(t, 0, f), c.graphRoot(t), c.state(t), new bytes32[](0), c.graph(t))
            );
        }
        if (g.phase() == GamePhase.Tensor) {
            bytes32 leaf = Merkle.leaf(Letters.word(c.valueOf(t)));
            return abi.encodeCall(
                game.revealTensor,
                (
                    seat.id, g, c.statement(t, c.graphRoot(t), f), Constant.descriptor(), new bytes32[](0), leaf,
                    new bytes32[](0)
                )
            );
        }
        return abi.encodeCall(game.postLeaf, (seat.id, g, Letters.word(c.valueOf(t))));
    }

    /// @dev The challenger's move: at what differs from the truth, or anywhere.
    function _point(Seat memory seat, GameState memory g, uint256 luck, bool wild) private view returns (bytes memory) {
        Constant.Claim memory c = _made[seat.claim];
        uint32 t = seat.t == 0 ? 1 + uint32(luck % 2) : seat.t;
        if (g.phase() == GamePhase.TracePick) {
            return abi.encodeCall(game.pick, (seat.id, g, t - 1, c.trace()[t - 1], c.traceProof(t)));
        }
        Facts memory f = market.factsOf(seat.claim, t, new bytes32[](0));
        if (g.phase() == GamePhase.Adjacent) return abi.encodeCall(game.adjacent, (seat.id, g, c.step(t, f.stateZero)));
        bytes memory context = c.statement(t, c.graphRoot(t), f);
        if (g.phase() == GamePhase.GraphPick) {
            bytes32[] memory shown = c.graph(t);
            uint256 i = wild ? luck % shown.length : Letters.firstDifference(shown, c.truth().graph(t));
            return abi.encodeCall(game.pick, (seat.id, g, i, shown[i], Letters.proof(c.graph(t), i)));
        }
        if (g.phase() == GamePhase.Padding) return abi.encodeCall(game.provePadding, (seat.id, g));
        if (g.phase() == GamePhase.Element) {
            Proof memory p;
            (p.descriptor, p.posted, p.context) = (Constant.descriptor(), Letters.word(c.valueOf(t)), context);
            return abi.encodeCall(game.proveOp, (seat.id, g, p));
        }
        (bytes32 value, bytes32[] memory proof) = _named(c, t, g.position() - c.blockAt(t));
        return abi.encodeCall(game.proveAlias, (seat.id, g, context, Constant.header(c.kindOf(t)), value, proof));
    }

    /// @dev What entry `entry` of the state block is, and where it stands.
    function _named(Constant.Claim memory c, uint32 t, uint256 entry) private view returns (bytes32, bytes32[] memory) {
        if (entry == 0 || c.isMerge) return (c.graph(t)[0], Letters.proof(c.graph(t), 0));
        // Step: entry k is S_(t-1)'s k-th; encode: entry 1 is its second.
        uint256 k = t == 1 ? entry : 2;
        return (c.entries(t - 1)[k], Letters.proof(c.entries(t - 1), k));
    }

    function _equivocate(ClaimId claim, address sender) private {
        Claim memory stored = market.claim(claim);
        if (_isHonest(stored.worker)) return;
        bytes32 any = ClaimId.unwrap(claim);
        Work memory w = Work(stored.job, stored.round, stored.attempt, stored.slot, any, any);
        uint256 key = _keyOf(stored.worker);
        (Signed memory a, Signed memory b) = (_signed(w, keccak256("one"), key), _signed(w, keccak256("other"), key));
        CHEATS.prank(sender);
        game.equivocate(w, a, b);
        _equivocated[claim] = true;
        _note();
    }

    // -- witnesses -------------------------------------------------------------------------------------------------

    function _enrol(address who) private {
        bytes32 bottom = keccak256(abi.encode(who, _enrolments[who]));
        bytes32 top = Draws.chained(bottom, LINKS);
        CHEATS.prank(who);
        witnesses.enrol(job, top);
        _enrolments[who] += 1;
        _bottom[who] = bottom;
    }

    function _word(Seen memory at, Duty memory d, Constant.Claim memory c, bool agrees)
        private
        view
        returns (Word memory word)
    {
        word.preimage = Draws.chained(_bottom[d.account], LINKS - d.serial);
        // Of the two states the last one is public.
        (word.state, word.salt, word.agrees) = (c.state(1), keccak256(abi.encode(at.audit, at.i)), agrees);
        (word.leaf, word.body, word.proof) = (c.leaf(), c.body(), c.traceProof(1));
    }

    function _bound(ClaimId claim, address account, Word memory word) private pure returns (bytes32) {
        return Draws.commitment(claim, account, word.state, word.leaf.digest, word.preimage, word.salt);
    }

    function _step(Seen memory at, Duty memory d) private view returns (uint32) {
        bytes32 preimage = Draws.chained(_bottom[d.account], LINKS - d.serial);
        return Draws.stepOf(preimage, witnesses.audit(at.audit).beacon, at.i, 2);
    }

    function _claimOf(Seen memory at, Duty memory d) private view returns (ClaimId) {
        Audit memory a = witnesses.audit(at.audit);
        return Ids.claim(a.job, a.round, a.attempt, d.slot);
    }

    function settleOne(Seen memory at) external {
        require(msg.sender == address(this), "inside");
        Duty memory d = witnesses.duty(at.audit, at.i);
        uint256 before = _wealth(d.account);
        Outcome outcome = witnesses.settle(at.audit, at.i);
        ended[outcome] += 1;
        if (_isHonest(d.account) && _wealth(d.account) < before) wronged += 1;
        uint32 wrong = _made[_claimOf(at, d)].wrongFrom();
        if (outcome == Outcome.Slashed && (wrong == 0 || wrong > d.t)) wronged += 1;
    }

    // -- inside ----------------------------------------------------------------------------------------------------

    /// @dev Whatever anybody may do about what is over, once.
    function _tidy() private {
        for (uint256 k = 0; k < duties.length; k++) {
            if (witnesses.duty(duties[k].audit, duties[k].i).status == DutyStatus.Closed) continue;
            try this.settleOne(duties[k]) {} catch {}
        }
        for (uint256 k = 0; k < _demands.length; k++) {
            if (availability.demand(_demands[k]).status != Status.Open) continue;
            if (availability.demand(_demands[k]).beacon == 0) try availability.voidForRow(job, 0) {} catch {}
            else try availability.settle(_demands[k]) {} catch {}
        }
        Job memory j = market.job(job);
        // Rounds that a conviction voided lie above those that are started again.
        for (uint32 r = 0; r < ROUNDS; r++) {
            Phase phase = market.phase(job, r);
            if (phase == Phase.Sealing) try market.seal(job, r) {} catch {}
            if (phase == Phase.Freezing) try market.freeze(job, r, _revealed(r)) {} catch {}
            try market.finalize(job, r) {} catch {}
            try market.release(job, r) {} catch {}
        }
        if (j.started < ROUNDS) try market.startRound(job, j.started) {} catch {}
        try market.finish(job) {} catch {}
        address[] memory listed = witnesses.accounts(job);
        if (market.job(job).status != JobStatus.Done) return _note();
        for (uint256 k = 0; k < listed.length; k++) {
            CHEATS.prank(listed[k]);
            try witnesses.retire(job) {} catch {}
        }
        _note();
    }

    function _anyLock() private view returns (bytes32) {
        if (_keys.length != 0) return _keys[0];
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            bytes32 key = Draws.stakeKey(job, _who(i));
            if (vault.lockOf(key).amount != 0) return key;
        }
        return 0;
    }

    /// @notice For a person who reads a failure.
    function whatIs(bytes32 key) external view returns (string memory) {
        if (key == JobId.unwrap(job)) return "the job";
        for (uint256 k = 0; k < claims.length; k++) if (ClaimId.unwrap(claims[k]) == key) return "a claim";
        for (uint256 k = 0; k < seats.length; k++) if (GameId.unwrap(seats[k].id) == key) return "a game";
        for (uint256 k = 0; k < _demands.length; k++) if (_demands[k] == key) return "a demand";
        return "a witness";
    }

    /// @dev Looks at every claim, game and audit: what is new is kept, what changed is judged.
    function _note() private {
        for (uint256 k = _keys.length; k > 0; k--) {
            if (vault.lockOf(_keys[k - 1]).amount != 0) continue;
            _seen[_keys[k - 1]] = false;
            _keys[k - 1] = _keys[_keys.length - 1];
            _keys.pop();
        }
        for (uint32 r = 0; r < market.job(job).started; r++) {
            AuditId audit = Draws.auditId(job, r, market.round(job, r).attempt);
            if (_noted[audit] || witnesses.audit(audit).status != AuditStatus.Drawn) continue;
            _noted[audit] = true;
            for (uint16 i = 0; i < witnesses.audit(audit).duties; i++) duties.push(Seen(audit, i));
        }
        for (uint256 k = 0; k < claims.length; k++) {
            ClaimId claim = claims[k];
            Claim memory stored = market.claim(claim);
            bool isOver = stored.status == ClaimStatus.Final || stored.status == ClaimStatus.Convicted
                || (stored.status == ClaimStatus.Void && !market.live(claim));
            if (_dead[claim] && market.live(claim)) risen += 1;
            if (isOver && !_dead[claim] && stored.status == ClaimStatus.Convicted) _judge(claim, stored);
            if (isOver) _dead[claim] = true;
        }
    }

    /// @dev A claim fell: by a proof of a lie, two signatures, or a move that its owner did not make.
    function _judge(ClaimId claim, Claim memory stored) private {
        convicted += 1;
        if (_isHonest(stored.worker)) wronged += 1;
        if (_equivocated[claim]) return;
        for (uint256 k = 0; k < seats.length; k++) {
            if (ClaimId.unwrap(seats[k].claim) != ClaimId.unwrap(claim)) continue;
            Verdict verdict = game.game(seats[k].id).verdict;
            verdicts[verdict] += 1;
            if (verdict == Verdict.Fraud && _made[claim].lie == Constant.Lie.None) wronged += 1;
        }
    }

    function _make(ClaimId claim, Constant.Claim memory c) private {
        _made[claim] = c;
        claims.push(claim);
    }

    /// @dev What money may be locked under.
    function _lock(bytes32 key) private {
        if (_seen[key]) return;
        _seen[key] = true;
        _keys.push(key);
    }

    /// @dev A demand's bond is locked under its id.
    function _demanded(bytes32 id) private {
        _demands.push(id);
        _lock(id);
    }

    function _dishonest(uint256 who) private view returns (address) {
        uint8[5] memory all = [0, 1, 4, 5, 7];
        return _who(all[who % 5]);
    }

    function _keyOf(address who) private view returns (uint256) {
        return KEY + _indexOf[who];
    }

    function _signedBy(address by, bytes32 digest) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = CHEATS.sign(_keyOf(by), digest);
        return abi.encodePacked(r, s, v);
    }

    function _owner(uint32 r, uint32 slot) private view returns (address) {
        return market.claim(market.claimIdOf(job, r, slot)).worker;
    }

    /// @dev A round that was started, most often the latest.
    function _round(uint256 back) private view returns (uint32) {
        uint32 started = market.job(job).started;
        back = back % 3 != 0 ? 1 : back % 2 == 0 ? 2 : 3;
        return started >= back ? started - uint32(back) : 0;
    }

    function _params() private view returns (JobParams memory p) {
        oneRole(p);
        Role memory role = p.roles[0];
        (role.stepProgram, role.encodeProgram) = (Constant.programRoot(Constant.Kind.Step), Constant.programRoot(Constant.Kind.Encode));
        (p.merge.program, role.datasetRoot) = (Constant.programRoot(Constant.Kind.Merge), Constant.datasetRoot());
        (p.genesis.shared, p.genesis.outer) = (Letters.rootOf(1), Letters.rootOf(2));
        (role.zeroCarry, role.zeroPayload) = (Letters.rootOf(Constant.CARRY), keccak256("zero payload"));
        (role.datasetRows, role.rowLength, role.innerSteps, p.schedule.rounds) = (1, 1, 1, ROUNDS);
        (role.slots, role.minSlots, p.schedule.maxLead, p.schedule.maxFail) = (SLOTS, 2, 3, 3);
        (p.windows.joinSeconds, role.trainSeconds, role.revealSeconds, role.attestSeconds) = (100, 100, 60, 60);
        (p.merge.turnSeconds, p.windows.challengeSeconds, p.windows.clockSeconds, p.windows.stepSeconds) = (100, 500, 200, 10);
        (role.slotPrice, p.merge.price, role.slotStake, p.merge.stake, p.prices.bond) = (101, 57, 1_013, 1_019, 153);
        (role.witnesses, p.windows.auditSeconds, role.witnessFee, p.prices.witnessStake) = (2, 60, uint128(FEE), 223);
        (p.windows.answerSeconds, p.prices.feeCap) = (60, 1e9);
        p.merge.aggregator = _who(AGGREGATOR);
        (p.spec.profile, p.spec.opset) = (1, 1);
    }
}
