"""The error tree: every failure that a user can meet, with its code, exit status and hint.

    LockstepError            1   internal         a bug in Lockstep: nothing below fits
    ├── UsageError           2   usage            the request itself is wrong
    │   ├── ProgramInvalid       program_invalid  a Program breaks a rule of the validator
    │   └── LoweringError        lowering         a model uses an operation that cannot become a Program
    ├── DoctorError          3   doctor           this machine or its set-up is not fit to run
    │   ├── Unfit                unfit            .. a job: too slow for its windows, too small for its tensors
    │   ├── WrongBits            wrong_bits       .. a job: it computes other bits than the specification
    │   └── Crashed              crashed          .. a job: the process that runs its Programs died, or was ended
    ├── KeyStoreError        4   key              a key is missing, locked or its password is wrong
    │   ├── AuthError            auth             a request is unsigned, expired or replayed
    │   └── NotOwner             not_owner        another key owns the account's money
    ├── ChainError           5   chain            a transaction reverted or the chain is not the one expected
    ├── FundsError           6   funds            too little balance, stake or allowance
    │   └── BudgetExceeded       budget_exceeded  the job costs more than its hard cap
    ├── NotFoundError        7   not_found        the holder answered that it does not exist
    │   └── BlobMissing          blob_missing     a store answered that it does not have the block
    │       └── RowMissing       blob_missing     .. of the dataset, which has this row
    ├── GuardRefused         8   guard_refused    the commitment guard would sign two claims for one slot
    ├── Unreachable          9   unreachable      no answer: nothing is known about the data
    ├── Mismatch            10   mismatch         bytes or values differ from what was committed
    │   ├── BlobCorrupt          blob_corrupt     a block's bytes do not hash to its CID
    │   ├── PayloadInvalid       payload_invalid  a payload has the wrong length, dtype or shape
    │   └── Malformed            malformed        untrusted bytes have an invalid form
    ├── Inconclusive        11   inconclusive     the evidence decides neither way
    └── TryLater            75   try_later        correct, but not now: waiting helps
        └── StillRunning         still_running    the time of a wait is over, the job is not

The number is the process exit status (docs/commands.md); a child without one inherits its parent's.
"""

from __future__ import annotations

from typing import ClassVar


class LockstepError(Exception):
    """A failure with a machine-readable code, an exit status, a message and a hint of what to do next.

    `message` states what happened, `hint` the next action ("" if none is known), which a traceback shows below it.
    `code` defaults to the class's own; pass a finer one (`code="auth.replayed"`) where a caller must tell cases apart.
    """

    code: str = "internal"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")
        if code is not None:
            self.code = code

    def to_dict(self) -> dict[str, str]:
        """The `error` member of the JSON envelope: {"code", "message", "hint"}."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(LockstepError):
    """The request itself is wrong: a bad flag, value, file or combination."""

    code = "usage"
    exit_code = 2


class ProgramInvalid(UsageError):
    """A Program breaks a rule of the validator."""

    code = "program_invalid"


class LoweringError(UsageError):
    """A model uses an operation that cannot become a Program; the message names the op and its module."""

    code = "lowering"


class DoctorError(LockstepError):
    """This machine or its set-up is not fit to run."""

    code = "doctor"
    exit_code = 3


class Unfit(DoctorError):
    """This machine cannot keep a job's windows or hold its tensors; it may be fit for others."""

    code = "unfit"


class WrongBits(DoctorError):
    """This machine or build computes other bits of a job than the specification; it may be right about others."""

    code = "wrong_bits"


class Crashed(DoctorError):
    """The process that runs a job's Programs died, was late or sent an invalid answer; this process is unharmed."""

    code = "crashed"


class KeyStoreError(LockstepError):
    """A key is missing, locked, or its password is wrong."""

    code = "key"
    exit_code = 4


class AuthError(KeyStoreError):
    """A request is unsigned, signed by another key, expired, or replayed."""

    code = "auth"


class NotOwner(KeyStoreError):
    """Another key owns the account's money."""

    code = "not_owner"


class ChainError(LockstepError):
    """A transaction reverted, or the chain is not the one expected."""

    code = "chain"
    exit_code = 5


class FundsError(LockstepError):
    """Too little balance, stake or allowance."""

    code = "funds"
    exit_code = 6


class BudgetExceeded(FundsError):
    """The job would cost more than its hard cap."""

    code = "budget_exceeded"


class NotFoundError(LockstepError):
    """The holder answered that the requested thing does not exist."""

    code = "not_found"
    exit_code = 7


class BlobMissing(NotFoundError):
    """A store answered that it does not have the block."""

    code = "blob_missing"


class RowMissing(BlobMissing):
    """A store answered that it does not have the dataset's block with `row`."""

    def __init__(self, error: BlobMissing, row: int) -> None:
        super().__init__(f"row {row} of the dataset: {error.message}", error.hint)
        self.row = row


class GuardRefused(LockstepError):
    """The commitment guard refuses to sign a second, different claim for one slot."""

    code = "guard_refused"
    exit_code = 8


class Unreachable(LockstepError):
    """A store, a chain or a server did not answer, which does not mean that data is missing or that a call failed."""

    code = "unreachable"
    exit_code = 9


class Mismatch(LockstepError):
    """Bytes or values differ from what was committed."""

    code = "mismatch"
    exit_code = 10


class BlobCorrupt(Mismatch):
    """A block's bytes do not hash to its CID."""

    code = "blob_corrupt"


class PayloadInvalid(Mismatch):
    """A payload has the wrong length, dtype or shape."""

    code = "payload_invalid"


class Malformed(Mismatch):
    """Untrusted bytes have an invalid form; most decoders raise an error of their own instead."""

    code = "malformed"


class Inconclusive(LockstepError):
    """The evidence decides neither way."""

    code = "inconclusive"
    exit_code = 11


class TryLater(LockstepError):
    """The request is correct, but not now: waiting helps."""

    code = "try_later"
    exit_code = 75


class StillRunning(TryLater, TimeoutError):
    """The time of a wait is over, and the job is not."""

    code = "still_running"
