"""The advice that `worker why` gives for each reason code."""

from __future__ import annotations

from lockstep.runtime import feewatch

HINTS = {
    # of the process
    "working": "nothing has to be done",
    "listening": "nothing has to be done; it begins by itself",
    "draining": "nothing has to be done; it leaves by itself",
    "stopped": "`lockstep worker up --max-stake AMOUNT` starts it",
    "killed": "`lockstep worker up --max-stake AMOUNT` starts it again",
    "fee": feewatch.HINT,
    "hours": "--hours of `lockstep worker up` names other hours",
    "disk_full": "free some space on that disk: a running worker continues by itself",
    "chain_halted": "make sure that the node behind --rpc runs, or add another one; the worker continues by itself",
    "key": "`lockstep worker up --password-file FILE` with the keystore's password starts it",
    "guard_refused": "end the other process that works in this home, or with this key",
    # of the account
    "gas": "send the account some of the chain's coin: `lockstep worker fund` shows where to and how much",
    "funds": "send the account more tokens: `lockstep worker fund` shows where to and how much",
    "unbonding": "`lockstep worker withdraw` then pays it out; to work with it, `lockstep worker stake` it again",
    # of a job
    "policy": "start the worker with another --max-stake, --jobs-from or --min-price to take such jobs",
    "unfit": "give it more --threads, another --device or more --max-memory, or leave the job to other machines",
    "unpaid": "a higher --max-unpaid works for that requester again; its rounds fail, or leave this account out",
    "bond": "leave the job: whoever demands this account's data would have it answer at its own cost",
    "busy": "nothing has to be done: jobs that are quick to look at come first",
    "room": "nothing has to be done: claims of other jobs settle first",
    "full": "nothing has to be done: slots are assigned anew in each round",
    "joining": "nothing has to be done",
    "no_round": "nothing has to be done: any worker of the job starts the next round",
    "unbacked": "nothing has to be done; who owns a slot of that round and has more stake backs it itself",
    "not_seen": "`lockstep worker up --max-stake AMOUNT` looks at it",
    "unreachable": "check --rpc, --storage and the network; the worker continues by itself",
    "blob_missing": "nothing has to be done: the job's data are looked for again; without them it is voided",
    "blob_corrupt": "check --storage: its content does not match the chain's hashes",
    "try_later": "nothing has to be done; it is tried again",
    "program_invalid": "leave the job: it is voided",
    "mismatch": "leave the job: its parts are not what the chain names",
    "defect": "report it with the worker's log: `lockstep worker support-bundle` collects it",
    "doctor": "`lockstep doctor` tests this machine",
    "wrong_bits": "report it (`lockstep worker support-bundle`); another build tries the job again by itself, and this "
    "one after `lockstep worker retry JOB`",
    "crashed": "leave the job: its Programs harm what runs them; another build tries it again by itself, and this one "
    "after `lockstep worker retry JOB`",
    # of a round
    "paid": "nothing has to be done",
    "pending": "keep the worker running: silence in a dispute loses the stake",
    "unmerged": "keep the worker running: it merges when its turn comes",
    "training": "keep the worker running",
    "withheld": "see the job's own line: a wrong claim would lose its stake",
    "not_joined": "see the job's own line, if it is still open",
    "absent": "keep the worker running and its machine free: `lockstep worker quote` says what a round takes",
    "excluded": "check that --storage is one that others can fetch from",
    "missing": "keep the worker running: it posts the demanded data, if it still has it",
    "convicted": "stop this machine and run `lockstep doctor`: it computed wrong bits, or was silent in a dispute",
    "round_failed": "nothing has to be done: too few of the others were in time",
    "round_void": "nothing has to be done: the round is done again",
    "void_paid": "nothing has to be done",
    "job_void": "nothing has to be done: the job is over",
}
DEFAULT = "the worker's log says more; `lockstep doctor` tests this machine"


def hint_of(code: str) -> str:
    """Returns the hint on a reason or an error, by its code or the part of the code that names its kind."""
    return HINTS.get(code) or HINTS.get(code.partition(".")[0], DEFAULT)
