"""Errors with which contracts revert, under the names of contracts/libraries/Errors.sol, each with a hint.

The twin raises them, and the chain package decodes them from a revert: each is a `ChainError` with the code
"chain.<Name>".
"""

from __future__ import annotations

from typing import Any

from lockstep.protocol.errors import ChainError, FundsError, LockstepError

HINTS: dict[str, str] = {
    # anywhere
    "ProofInvalid": "the proof was made for another root, position or depth: build it again from the claim's files",
    "NotCommitted": "commit to this very call first, and send it in a later block",
    "Unauthorized": "another account alone may do this: check which key signs",
    "Panic": "the numbers do not fit the contract's integers: use smaller ones",
    # vault
    "StakeTooLow": "deposit more stake first; `lockstep worker up` does it from the account's tokens",
    "NothingDue": "there is nothing to pay out yet",
    "AlreadyLocked": "this claim or game has its lock already",
    "NotLocked": "the lock was given back or taken already",
    "WrongKeeper": "the other contract made this lock",
    "Unbonding": "wait until the chain's time has reached the one given",
    "AmountTooLarge": "use a smaller amount",
    "NotOwner": "send it with the key of the owner that is named: `lockstep worker owner show`",
    "OwnerInvalid": "name an account that somebody has the key of",
    "TokenMismatch": "this token takes a fee on transfers and cannot be used",
    "EscrowTooLow": "the job's escrow does not cover this payment: report it as a bug",
    # market
    "JobInvalid": "correct the parameters of the group named, then submit again",
    "EscrowInsufficient": "offer at least rounds x (slots x slotPrice + mergePrice + witnesses x witnessFee)",
    "JobExists": "choose another nonce",
    "WrongJobStatus": "the job is not active any more, or does not exist",
    "WrongPhase": "the round is in another phase: look at it again before acting",
    "TooEarly": "wait until the chain's time or block has reached the one given",
    "RoundNotStartable": "the round before must be merged or failed first, and only so many rounds may be unsettled",
    "NotBacked": "wait until the merger has locked the pay of the rounds on its merge, or that is final",
    "CidTooLong": "write the content identifier in base32, at most 128 bytes",
    "NoSuchSlot": "choose a slot below the job's number of slots",
    "SlotTaken": "choose another slot",
    "NotSlotOwner": "another account joined this slot",
    "AlreadyDone": "this was done already, or the step before it is missing",
    "CommitmentMismatch": "reveal exactly the values and the nonce that were committed",
    "NoCarry": "reveal a claim that starts from zero: no carry of this slot's owner stands",
    "SignatureInvalid": "sign the receipt for this round and attempt with the slot's own key, or its delegate's",
    "NotYourTurn": "wait for your turn to merge; a convicted merger has none",
    "GamesOpen": "wait until the games on this round are resolved",
    "JobUnfinished": "finish when the last round is final, or cancel first",
    "WindowClosed": "the claim can no longer be challenged",
    "ClaimClosed": "the claim is convicted or void: its games close with the bonds returned",
    # game
    "PhaseWrong": "the game has moved on: read it again before answering",
    "StandingStale": "the game stands elsewhere: read it again before answering",
    "GameExists": "choose another game nonce",
    "StepOutOfRange": "the claim has no such transition",
    "StatementWrong": "send the statement bytes of the event Argued",
    "ClockExpired": "the mover's clock ran out: call resolve",
    "ClockRunning": "the mover still has time: resolve after the deadline",
    "EqualBits": "the contract computes the same bits: there is nothing to convict",
    "LengthWrong": "the bytes do not have the length that the descriptor implies",
    # witnesses
    "NotWitness": "another account was drawn for this, or this one is not enrolled",
    "PreimageWrong": "reveal the secret whose turn it is in the hash chain given at enrolment",
    "DutyOpen": "the duty's windows are not over, or its claim is not decided yet",
    # arbiter
    "DescriptorInvalid": "the op breaks a rule of the validator: nobody can prove it, and no worker should have joined",
    "OpUnknown": "the op-set has no such kind, fold mode, opcode or register",
    "OperandNotEarlier": "an operand must be the output of an earlier op",
    "OpeningsWrong": "open every leaf that an operand touches: operands in order, lowest leaf first",
    "OutOfRange": "a view or an opening reads outside its tensor",
    "DatasetInvalid": "the opened row is not of the job's dataset",
    # validator
    "EvidenceWrong": "the evidence does not open the bytes that its subject needs: build it again from the job's files",
    "RuleHolds": "what was opened breaks no rule: the job stands",
    # demands
    "DemandClosed": "the demand was answered, is over, or was never made",
    "NoSuchRow": "choose a row below the dataset's number of rows",
    "AnswerWrong": "post exactly the leaves that are demanded, in order",
    # tokens (OpenZeppelin)
    "ERC20InsufficientBalance": "fund the account with the job's token",
    "ERC20InsufficientAllowance": "approve the vault for the amount, or use a permit",
    "ERC20InvalidReceiver": "send the tokens to an account",
    "ERC20InvalidApprover": "name an account that owns tokens",
    "ERC20InvalidSpender": "approve an account",
    "ERC2612ExpiredSignature": "sign the permit again with a later deadline",
    "ECDSAInvalidSignature": "sign the permit again: these 65 bytes are no signature",
    "ECDSAInvalidSignatureS": "use the signature with the lower s",
    "ERC2612InvalidSigner": "sign the permit with the owner's own key, with its next nonce",
}

_FUNDS = {"StakeTooLow", "EscrowInsufficient", "ERC20InsufficientBalance", "ERC20InsufficientAllowance"}


class Reverted(LockstepError):
    """A contract reverts a transaction."""

    def __init__(self, rule: str, values: tuple[Any, ...], message: str, hint: str, code: str) -> None:
        super().__init__(message, hint, code=code)
        self.rule = rule
        """The Solidity error's name."""
        self.values = values
        """The error's arguments."""


class ChainRevert(Reverted, ChainError):
    """A transaction breaks a rule of the contracts."""


class FundsRevert(Reverted, FundsError):
    """A transaction needs more tokens than the account has."""


def described(rule: str, values: tuple[Any, ...]) -> str:
    """Formats a revert as Name(value, value, ...), with bytes in hexadecimal."""
    shown = ", ".join(f"0x{a.hex()}" if isinstance(a, bytes) else str(a) for a in values)
    return f"{rule}({shown})"


def revert(name: str, *arguments: Any, hint: str = "") -> ChainRevert | FundsRevert:
    """Returns the error for a broken rule; `arguments` are those of the Solidity error, `hint` replaces the rule's."""
    kind = FundsRevert if name in _FUNDS else ChainRevert
    prefix = "funds" if name in _FUNDS else "chain"
    hint = hint or HINTS.get(name, "look the rule up in docs/protocol.md")
    return kind(name, arguments, described(name, arguments), hint, f"{prefix}.{name}")


def overflow() -> ChainRevert | FundsRevert:
    """Returns the revert of checked arithmetic: Panic(0x11)."""
    return revert("Panic", 0x11)
