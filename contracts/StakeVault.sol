// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";

import {IStakeVault, Keeper, Lock, Refund} from "./interfaces/IStakeVault.sol";
import {
    BOND_PERCENT_DEFENDER,
    MAX_ESCROWED,
    MAX_LOCK,
    MAX_UNBOND,
    SLASH_PERCENT_REFUNDS,
    SLASH_PERCENT_REQUESTER,
    SLASH_PERCENT_WINNERS
} from "./libraries/Constants.sol";
import {
    AlreadyLocked,
    AmountTooLarge,
    EscrowTooLow,
    NotLocked,
    NotOwner,
    NothingDue,
    OwnerInvalid,
    StakeTooLow,
    TokenMismatch,
    Unauthorized,
    Unbonding,
    WrongKeeper
} from "./libraries/Errors.sol";

/// @title StakeVault
/// @notice Holds stake, bonds, escrow and credits of one token; verdicts move balances inside it, payouts are pulled.
contract StakeVault is IStakeVault, ReentrancyGuard {
    using SafeERC20 for IERC20;

    /// @notice Where burned tokens end: no key is known for it, and any ERC-20 can be sent to it.
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;

    IERC20 public immutable token;
    address public immutable market;
    address public immutable game;
    address public immutable witnesses;
    address public immutable availability;
    uint256 public immutable unbondSeconds;

    mapping(address account => uint256) public free;
    mapping(address account => address) public delegateOf;
    mapping(address account => address) public ownerOf;
    mapping(address account => address) public proposedOwnerOf;

    mapping(address account => uint256) private _credits;
    /// Of one word, which is not zero while there is a job: the first verdict of a market writes no new one for what it burns.
    uint128 private _escrowed;
    uint128 private _burned;

    struct Unbond {
        uint192 amount;
        uint64 availableAt;
    }

    mapping(address account => Unbond) private _unbonding;
    mapping(bytes32 key => Lock) private _locks;

    constructor(
        IERC20 token_,
        address market_,
        address game_,
        address witnesses_,
        address availability_,
        uint256 unbondSeconds_
    ) {
        token = token_;
        market = market_;
        game = game_;
        witnesses = witnesses_;
        availability = availability_;
        unbondSeconds = unbondSeconds_;
    }

    modifier onlyMarket() {
        // INVARIANT: escrow, credits of pay and slashes of claims move by the market's rules alone.
        if (msg.sender != market) revert Unauthorized(msg.sender);
        _;
    }

    // -- anyone, for themselves

    /// @inheritdoc IStakeVault
    function deposit(uint256 amount) public nonReentrant {
        free[msg.sender] += amount;

        emit Deposited(msg.sender, amount);

        _pull(msg.sender, amount);
    }

    function depositWithPermit(uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external {
        _permit(msg.sender, amount, deadline, v, r, s);
        deposit(amount);
    }

    /// @inheritdoc IStakeVault
    function requestUnbond(uint256 amount) external {
        requestUnbondFor(msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function withdrawUnbonded() external nonReentrant {
        _payOutUnbonded(msg.sender);
    }

    /// @inheritdoc IStakeVault
    function withdraw() external nonReentrant returns (uint256) {
        return _payOut(msg.sender, _payee(msg.sender));
    }

    /// @inheritdoc IStakeVault
    function burn() external nonReentrant returns (uint256) {
        return _payOut(BURN, BURN);
    }

    /// @inheritdoc IStakeVault
    function registerNode(bytes32 key) external {
        emit NodeRegistered(msg.sender, key);
    }

    /// @inheritdoc IStakeVault
    function setDelegate(address delegate) external {
        setDelegateFor(msg.sender, delegate);
    }

    /// @inheritdoc IStakeVault
    function setOwner(address owner) external {
        address standing = ownerOf[msg.sender];
        // INVARIANT: an account names its owner once; from then on the owner alone hands it on.
        if (standing != address(0)) revert NotOwner(msg.sender, standing);
        if (owner == address(0) || owner == address(this)) revert OwnerInvalid(owner);

        _own(msg.sender, owner);
    }

    // -- an owner, for its accounts

    /// @inheritdoc IStakeVault
    function requestUnbondFor(address account, uint256 amount) public {
        _onlyOwner(account);
        uint256 available = free[account];
        // INVARIANT: stake leaves only from what no claim and no game has locked.
        if (amount > available) revert StakeTooLow(account, amount, available);
        uint256 total = _unbonding[account].amount + amount;
        if (total > MAX_UNBOND) revert AmountTooLarge(total);
        uint256 availableAt = block.timestamp + unbondSeconds;

        free[account] = available - amount;
        _unbonding[account] = Unbond(uint192(total), uint64(availableAt));

        emit UnbondRequested(account, total, availableAt);
    }

    /// @inheritdoc IStakeVault
    function withdrawUnbondedFor(address account) external nonReentrant {
        _onlyOwner(account);
        _payOutUnbonded(account);
    }

    /// @inheritdoc IStakeVault
    function withdrawFor(address account) external nonReentrant returns (uint256) {
        _onlyOwner(account);
        return _payOut(account, _payee(account));
    }

    /// @inheritdoc IStakeVault
    function setDelegateFor(address account, address delegate) public {
        _onlyOwner(account);

        delegateOf[account] = delegate;

        emit Delegated(account, delegate);
    }

    /// @inheritdoc IStakeVault
    function proposeOwner(address account, address owner) external {
        _onlyOwner(account);

        proposedOwnerOf[account] = owner;

        emit OwnerProposed(account, owner);
    }

    /// @inheritdoc IStakeVault
    function acceptOwner(address account) external {
        // INVARIANT: nobody comes to own another's account but by its owner's word and by a key of its own.
        if (msg.sender != proposedOwnerOf[account]) revert Unauthorized(msg.sender);

        _own(account, msg.sender);
    }

    // -- the keepers

    /// @inheritdoc IStakeVault
    function lock(address account, bytes32 key, uint256 amount) external {
        Keeper keeper = _keeper();
        // INVARIANT: one lock backs one claim or one game, never two.
        if (_locks[key].account != address(0)) revert AlreadyLocked(key);
        uint256 available = free[account];
        if (amount > available) revert StakeTooLow(account, amount, available);
        if (amount > MAX_LOCK) revert AmountTooLarge(amount);

        free[account] = available - amount;
        _locks[key] = Lock(account, uint88(amount), keeper);

        emit Locked(key, account, amount);
    }

    /// @inheritdoc IStakeVault
    function raise(bytes32 key, uint256 amount) external onlyMarket {
        Lock storage held = _locks[key];
        address account = held.account;
        if (account == address(0)) revert NotLocked(key);
        uint256 available = free[account];
        if (amount > available) revert StakeTooLow(account, amount, available);
        uint256 total = held.amount + amount;
        if (total > MAX_LOCK) revert AmountTooLarge(total);

        free[account] = available - amount;
        held.amount = uint88(total);

        emit Locked(key, account, amount);
    }

    /// @inheritdoc IStakeVault
    function unlock(bytes32 key) external {
        Lock memory taken = _take(key);

        free[taken.account] += taken.amount;

        emit Unlocked(key, taken.account, taken.amount);
    }

    /// @inheritdoc IStakeVault
    function takeBond(bytes32 key, address defender, uint256 amount) external {
        // INVARIANT: a stake behind a claim is never taken as a bond.
        if (_keeper() == Keeper.Market) revert Unauthorized(msg.sender);
        Lock memory held = _take(key);
        uint256 taken = amount < held.amount ? amount : held.amount;
        uint256 toDefender = BOND_PERCENT_DEFENDER * taken / 100;
        uint256 burned = taken - toDefender;

        if (taken < held.amount) _locks[key] = Lock(held.account, uint88(held.amount - taken), held.keeper);
        _credits[defender] += toDefender;
        _burned += uint128(burned);

        emit BondTaken(key, held.account, taken, burned, toDefender);
        emit Credited(defender, toDefender);
    }

    /// @inheritdoc IStakeVault
    function payBond(bytes32 key, address account, uint256 amount) external {
        // INVARIANT: a stake behind a claim is never taken as a bond.
        if (_keeper() == Keeper.Market) revert Unauthorized(msg.sender);
        Lock memory held = _take(key);
        uint256 paid = amount < held.amount ? amount : held.amount;

        free[held.account] += held.amount - paid;
        _credits[account] += paid;

        emit BondTaken(key, held.account, paid, 0, paid);
        emit Credited(account, paid);
        emit Unlocked(key, held.account, held.amount - paid);
    }

    /// @inheritdoc IStakeVault
    function slash(bytes32 key, uint256 owed, address[] calldata winners, Refund[] calldata refunds, address requester)
        external
        onlyMarket
    {
        Lock memory taken = _take(key);
        // INVARIANT: work that falls with a claim is paid before anybody shares its stake.
        (uint256 toChallenger, uint256 toRequester) = _shares(taken.amount - owed, winners, refunds, requester);
        _slashed(key, taken, owed, toChallenger, toRequester);
    }

    function _slashed(bytes32 key, Lock memory taken, uint256 owed, uint256 toChallenger, uint256 toRequester) private {
        // INVARIANT: slashed = owed to work + burned + to the challengers + to the requester; of the rest at least half is burned.
        uint256 burned = taken.amount - owed - toChallenger - toRequester;

        _escrowed += uint128(owed);
        _burned += uint128(burned);

        emit Slashed(key, taken.account, taken.amount, burned, toChallenger, toRequester, owed);
    }

    /// @dev 30 % to the winners, 20 % to the requester less the refunds, which are the challengers', too.
    function _shares(uint256 rest, address[] calldata winners, Refund[] calldata refunds, address requester)
        private
        returns (uint256 toChallenger, uint256 toRequester)
    {
        uint256 refunded = _refund(refunds, SLASH_PERCENT_REFUNDS * rest / 100);
        toChallenger = _share(winners, SLASH_PERCENT_WINNERS * rest / 100) + refunded;
        toRequester = SLASH_PERCENT_REQUESTER * rest / 100 - refunded;
        _credit(requester, toRequester);
    }

    /// @dev 2 : 1 : 1, by how many there are.
    function _share(address[] calldata winners, uint256 prize) private returns (uint256 shared) {
        uint256 weights = winners.length + 1;
        for (uint256 i = 0; i < winners.length; i++) {
            uint256 part = (i == 0 ? 2 : 1) * prize / weights;
            shared += part;
            _credit(winners[i], part);
        }
    }

    /// @dev In order, until `left` is spent.
    function _refund(Refund[] calldata refunds, uint256 left) private returns (uint256 refunded) {
        for (uint256 i = 0; i < refunds.length && left > 0; i++) {
            uint256 part = refunds[i].amount < left ? refunds[i].amount : left;
            (refunded, left) = (refunded + part, left - part);
            if (part > 0) _credit(refunds[i].account, part);
        }
    }

    function _credit(address account, uint256 amount) private {
        if (account == BURN) _burned += uint128(amount);
        else _credits[account] += amount;

        emit Credited(account, amount);
    }

    /// @inheritdoc IStakeVault
    function slashLiveness(bytes32 key, uint256 amount) external {
        Lock memory taken = _take(key);
        if (amount > taken.amount) revert StakeTooLow(taken.account, amount, taken.amount);

        _burned += uint128(amount);
        free[taken.account] += taken.amount - amount;

        emit Slashed(key, taken.account, amount, amount, 0, 0, 0);
        emit Unlocked(key, taken.account, taken.amount - amount);
    }

    /// @inheritdoc IStakeVault
    function escrow(address from, uint256 amount) public onlyMarket nonReentrant {
        uint256 total = _escrowed + amount;
        if (total > MAX_ESCROWED) revert AmountTooLarge(total);

        _escrowed = uint128(total);

        emit Escrowed(from, amount);

        _pull(from, amount);
    }

    function escrowWithPermit(address from, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s)
        external
        onlyMarket
    {
        _permit(from, amount, deadline, v, r, s);
        escrow(from, amount);
    }

    /// @inheritdoc IStakeVault
    function credit(address account, uint256 amount) external onlyMarket {
        uint256 held = _escrowed;
        // INVARIANT: pay and refunds together never exceed the escrow.
        if (amount > held) revert EscrowTooLow(amount, held);

        _escrowed = uint128(held - amount);
        _credit(account, amount);
    }

    // -- views

    /// @inheritdoc IStakeVault
    function credits(address account) public view returns (uint256) {
        return account == BURN ? _burned : _credits[account];
    }

    /// @inheritdoc IStakeVault
    function totalEscrow() external view returns (uint256) {
        return _escrowed;
    }

    function unbonding(address account) external view returns (uint256 amount, uint256 availableAt) {
        Unbond memory unbond = _unbonding[account];
        return (unbond.amount, unbond.availableAt);
    }

    function lockOf(bytes32 key) external view returns (Lock memory) {
        return _locks[key];
    }

    /// @inheritdoc IStakeVault
    function mayAct(address account, address actor) external view returns (bool) {
        return actor == account || (actor != address(0) && actor == delegateOf[account]);
    }

    // -- inside

    /// @dev Which of the keepers calls.
    function _keeper() private view returns (Keeper) {
        if (msg.sender == market) return Keeper.Market;
        if (msg.sender == game) return Keeper.Game;
        if (msg.sender == witnesses) return Keeper.Witnesses;
        // INVARIANT: stake is locked, unlocked and taken by the four contracts that this one was born with.
        if (msg.sender != availability) revert Unauthorized(msg.sender);
        return Keeper.Availability;
    }

    /// @dev Removes the lock of `key` and returns it; the caller of this says where its amount goes.
    function _take(bytes32 key) private returns (Lock memory taken) {
        Keeper keeper = _keeper();
        taken = _locks[key];
        if (taken.account == address(0)) revert NotLocked(key);
        // INVARIANT: the contract that locked is the one that unlocks or takes.
        if (keeper != taken.keeper) revert WrongKeeper(key);

        delete _locks[key];
    }

    /// @dev The account itself, as long as it has named nobody.
    function _onlyOwner(address account) private view {
        address owner = _payee(account);
        // INVARIANT: where there is an owner, the account's own key neither unbonds nor names a delegate or an owner.
        if (msg.sender != owner) revert NotOwner(account, owner);
    }

    function _payee(address account) private view returns (address owner) {
        owner = ownerOf[account];
        // INVARIANT: what leaves the vault for an account goes to its owner, whoever asks for it.
        if (owner == address(0)) return account;
    }

    function _own(address account, address owner) private {
        ownerOf[account] = owner;
        // INVARIANT: a proposal falls with the owner that made it.
        delete proposedOwnerOf[account];

        emit OwnerSet(account, owner);
    }

    function _payOutUnbonded(address account) private {
        Unbond memory unbond = _unbonding[account];
        if (unbond.amount == 0) revert NothingDue();
        // INVARIANT: unbonding outlasts every challenge window and both clocks.
        if (block.timestamp < unbond.availableAt) revert Unbonding(unbond.availableAt);

        delete _unbonding[account];

        emit Unbonded(account, unbond.amount);

        token.safeTransfer(_payee(account), unbond.amount);
    }

    function _payOut(address account, address to) private returns (uint256 amount) {
        amount = credits(account);
        if (amount == 0) revert NothingDue();

        if (account == BURN) _burned = 0;
        else delete _credits[account];

        emit Withdrawn(account, amount);

        token.safeTransfer(to, amount);
    }

    function _pull(address from, uint256 amount) private {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        // INVARIANT: what the books say is what the token holds: no token that takes a fee on the way.
        if (received != amount) revert TokenMismatch(amount, received);
    }

    /// @dev Somebody may have sent the permit already: then the allowance is there, and only the pull decides.
    function _permit(address owner, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) private {
        try IERC20Permit(address(token)).permit(owner, address(this), amount, deadline, v, r, s) {} catch {}
    }
}
