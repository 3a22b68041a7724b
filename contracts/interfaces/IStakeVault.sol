// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @notice The contracts that lock stake: the market claims, the game bonds, the others theirs.
enum Keeper { Market, Game, Witnesses, Availability }

/// @param keeper Which contract locked: it alone unlocks or takes.
struct Lock {
    address account;
    uint88 amount;
    Keeper keeper;
}

/// @notice What a challenger paid for gas, to be given back from a slash.
struct Refund {
    address account;
    uint256 amount;
}

/// @title IStakeVault
/// @notice Holds every token of the market: free stake, locks, unbonding stake, escrow and credits.
///
///   free -> locked(key) -> free | slashed;   free -> unbonding -> withdrawn;   escrow -> credits -> withdrawn
///
/// Locks belong to the contract that made them (the market: claims, by ClaimId; the game: bonds, by GameId; and so on). Verdicts move internal
/// balances only: a token that reverts cannot block a slash. Burned amounts are the credits of `BURN`, pushed there by `burn()`.
///
/// An account is a key that is at hand (it stakes, joins, commits, moves in games). It may have an owner, a key that is kept away: the owner
/// alone unbonds, and everything that leaves the vault for the account goes to the owner. Stakes, locks, bonds and slashes know no owner.
interface IStakeVault {
    event Deposited(address indexed account, uint256 amount);
    event UnbondRequested(address indexed account, uint256 amount, uint256 availableAt);
    event Unbonded(address indexed account, uint256 amount);
    event Locked(bytes32 indexed key, address indexed account, uint256 amount);
    event Unlocked(bytes32 indexed key, address indexed account, uint256 amount);
    /// @dev amount = burned + toChallenger + toRequester + owed; `owed` becomes escrow for work that fell with the claim; toChallenger is what all challengers have together, refunds included. For a
    ///      liveness slash the last three are zero.
    event Slashed(
        bytes32 indexed key, address indexed account, uint256 amount, uint256 burned, uint256 toChallenger, uint256 toRequester,
        uint256 owed
    );
    /// @dev amount = burned + toDefender.
    event BondTaken(bytes32 indexed key, address indexed account, uint256 amount, uint256 burned, uint256 toDefender);
    event Escrowed(address indexed from, uint256 amount);
    event Credited(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, uint256 amount);
    event NodeRegistered(address indexed account, bytes32 key);
    event Delegated(address indexed account, address delegate);
    /// @dev From now on; the proposal that stood, if any, is gone.
    event OwnerSet(address indexed account, address indexed owner);
    event OwnerProposed(address indexed account, address indexed owner);

    // -- anyone, for themselves

    /// @notice Pulls `amount` of the token from the caller (who approved the vault) into its free stake.
    function deposit(uint256 amount) external;
    function depositWithPermit(uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external;
    /// @notice Moves free stake to unbonding; a further request restarts the delay for all of it. Reverts `NotOwner` if the caller has an owner.
    function requestUnbond(uint256 amount) external;
    /// @notice Pays the unbonding stake out, to the caller's owner if it has one, once the delay has passed.
    function withdrawUnbonded() external;
    /// @notice Pays the caller's credits out, to its owner if it has one.
    function withdraw() external returns (uint256 amount);
    /// @notice Pushes what was burned so far to the burn address. Anyone.
    function burn() external returns (uint256 amount);
    /// @notice Announces the ed25519 key that signs for this account off chain.
    function registerNode(bytes32 key) external;
    /// @notice Names the one account that may post game moves for the caller (0: none). Reverts `NotOwner` if the caller has an owner.
    function setDelegate(address delegate) external;
    /// @notice Names the caller's owner, once and at once: an address of which nobody has the key loses whatever the caller ever holds here.
    /// `proposeOwner` waits for that key.
    function setOwner(address owner) external;

    // -- an owner, for its accounts; an account without one is its own

    /// @notice As `requestUnbond`, of `account`'s free stake.
    function requestUnbondFor(address account, uint256 amount) external;
    /// @notice As `withdrawUnbonded`: to the owner.
    function withdrawUnbondedFor(address account) external;
    /// @notice As `withdraw`: to the owner.
    function withdrawFor(address account) external returns (uint256 amount);
    /// @notice As `setDelegate`: when the account's key is lost, another one can still answer games about its claims.
    function setDelegateFor(address account, address delegate) external;
    /// @notice Offers the account to another owner, who takes it by `acceptOwner` (0: to nobody any more).
    function proposeOwner(address account, address owner) external;
    /// @notice The owner that was proposed takes the account.
    function acceptOwner(address account) external;

    // -- the keepers

    /// @notice Locks free stake of `account` under an unused `key`. Reverts `StakeTooLow` if free stake does not suffice.
    function lock(address account, bytes32 key, uint256 amount) external;
    /// @notice The market: adds free stake of the lock's account to it.
    function raise(bytes32 key, uint256 amount) external;
    /// @notice Gives a lock back to its account's free stake.
    function unlock(bytes32 key) external;
    /// @notice A lost challenge or demand. Takes `amount` of the bond, all of it if it holds less: 60 % (rounded down) of that becomes
    /// the defender's credit, the rest is burned; the lock keeps what was not taken.
    function takeBond(bytes32 key, address defender, uint256 amount) external;
    /// @notice A demand that was answered. `amount` of the bond, all of it if it holds less, becomes the credit of `account`; the rest is
    /// free again.
    function payBond(bytes32 key, address account, uint256 amount) external;
    /// @notice The market: a convicted claim. `owed` of the stake becomes escrow, for work that fell with it. Of the rest, 30 % to one to
    /// three winners, by 2 : 1 : 1; 20 % to the requester, of which up to 10 % of it pay `refunds`, in order; every part rounded down,
    /// what is left is burned.
    function slash(
        bytes32 key, uint256 owed, address[] calldata winners, Refund[] calldata refunds, address requester
    ) external;
    /// @notice No reveal, or a broken duty. `amount` of the lock is burned, the rest is free again.
    function slashLiveness(bytes32 key, uint256 amount) external;
    /// @notice The market: pulls a job's escrow from its requester, who approved the vault.
    function escrow(address from, uint256 amount) external;
    function escrowWithPermit(address from, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external;
    /// @notice The market: turns escrow into a credit of `account`.
    function credit(address account, uint256 amount) external;

    // -- views

    function free(address account) external view returns (uint256);
    function credits(address account) external view returns (uint256);
    function unbonding(address account) external view returns (uint256 amount, uint256 availableAt);
    function lockOf(bytes32 key) external view returns (Lock memory);
    function delegateOf(address account) external view returns (address);
    /// @notice Who alone unbonds and is paid what leaves the vault for `account`; 0: the account itself.
    function ownerOf(address account) external view returns (address);
    function proposedOwnerOf(address account) external view returns (address);
    /// @notice Whether `actor` is `account` or its delegate.
    function mayAct(address account, address actor) external view returns (bool);
    function unbondSeconds() external view returns (uint256);
    function totalEscrow() external view returns (uint256);
}
