"""Rows of the rules: expectation, sender, function, arguments.

An expectation is an error's name or the names of the events in order, either with values in brackets:
`Credited(worker-0, 101)`. Arguments that are functions are evaluated in the scene's world. games.py has the calls of
games.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body
from lockstep.protocol.market import ids, views
from lockstep.protocol.market.availability import payload_demand_id, row_demand_id
from lockstep.protocol.market.calls import MAX_UINT
from lockstep.protocol.market.job_rules import MAX_ROW
from lockstep.protocol.market.prices import MAX_FEE_CAP
from lockstep.protocol.market.token import permit_digest
from lockstep.protocol.market.types import BURN, StateLeaf
from lockstep.protocol.types import MERGE_SLOT, Digest, StateRoot, TraceRoot
from tests.rules.games import GAMES
from tests.rules.rows import Row, row
from tests.rules.scenes import (
    AHEAD,
    ALONE,
    ANSWER_ROW,
    BROKEN,
    BY,
    CHOSEN,
    DISTINCT,
    DUO,
    ENCODE,
    EVIDENCE,
    HOLDING,
    JOB,
    KEY,
    NOTHING,
    OWNERS,
    RECEIPTS,
    SHORT,
    UNCARRIED,
    WRONG_ANSWERS,
    asked_for,
    audit,
    committed,
    demand,
    elsewhere,
    last_state,
    merger,
    next_leaf,
    shown,
    with_leaf,
    word,
)  # fmt: skip
from tests.support.market.twin import ACCOUNTS, NAMES, PARAMS, STAKE, World, job_of, signature
from tests.support.params import amended

OTHER = Digest(keccak(b"another"))
LONG = "c" * 129
ZERO = "0x" + 40 * "0"
NO_JOB = job_of(PARAMS, 99)
NO_WORD = bytes(32)
OTHER_BODY = Body(TraceRoot(OTHER), StateRoot(OTHER), StateRoot(OTHER))
MERGE_LOCK = PARAMS.merge.stake + 2 * PARAMS.round_pay
"""Lock of a merge that backs two rounds."""


def claim(slot: int, r: int = 0) -> Callable[[World], Any]:
    """Returns the id of a slot's claim."""
    return lambda w: w.claim(slot, r)


def body(slot: int, r: int = 0) -> Callable[[World], Any]:
    """Returns the body of a slot's claim, or of the merge for MERGE_SLOT."""
    return lambda w: w.held[w.claim(slot, r)].body


def again(r: int = 0) -> tuple[Callable[[World], Any], ...]:
    """Returns the outputs of the current merge."""
    return tuple(lambda w, out=out: getattr(body(MERGE_SLOT, r)(w), out) for out in ("out", "out2"))


def replaced(w: World) -> Any:
    """Returns the id of the first merge."""
    return ids.claim_id(w.job, 0, 0, MERGE_SLOT)


def last_audit(w: World) -> Any:
    """Returns the audit of the job's last round."""
    return audit(w, w.params.schedule.rounds - 1)


def second_audit(w: World) -> Any:
    """Returns the audit of the second round."""
    return audit(w, 1)


def opened(slot: int, r: int = 0, **changed: Any) -> Callable[[World], Any]:
    """Returns a slot's reveal."""
    return lambda w: w.opened(slot, r, **changed)


def receipts(*speakers: int, **said: Any) -> Callable[[World], Any]:
    """Returns signed receipts of these speakers, the argument of `attest`."""
    return lambda w: [w.receipt(who, **said) for who in speakers]


def bodies(*slots: int) -> Callable[[World], Any]:
    """Returns the argument of `freeze`."""
    return lambda w: w.bodies(slots=slots)


def other_body(part: str) -> Callable[[World], Any]:
    """Returns the first slot's reveal with one wrong word in its body."""
    return lambda w: w.opened(0, body=replace(w.made(0).body, **{part: OTHER}))


def but_for(slot: int) -> Callable[[World], Any]:
    """Returns the argument of `freeze` with one wrong body."""
    return lambda w: [OTHER_BODY if s == slot else said for s, said in enumerate(w.bodies())]


def _of_void(slots: int) -> str:
    """Returns the events at the end of a void job with so many paid slots: 30 % of the remaining deposit go to the
    prover.
    """
    left = PARAMS.deposit - slots * PARAMS.role.slot_price
    return (f"Credited(requester, {PARAMS.escrow}) Credited(verifier, {left * 30 // 100}) "
            f"Credited({BURN}, {left - left * 30 // 100}) JobDone")  # fmt: skip


def permit(amount: int, *, by: str = "mallory", deadline: int = 1 << 40) -> tuple[Callable[[World], Any], ...]:
    """Returns deadline, v, r and s of mallory's permit for the vault."""

    def signed(w: World) -> bytes:
        return signature(by, permit_digest(w.state, ACCOUNTS["mallory"], ACCOUNTS["vault"], amount, deadline))

    return lambda w: deadline, lambda w: signed(w)[64], lambda w: signed(w)[:32], lambda w: signed(w)[32:64]


def invalid_job(**changed: Any) -> Row:
    """Returns a row of a job with refused parameters."""
    p = amended(PARAMS, **changed)
    return row("JobInvalid", "requester", "market.create", p, 3, 1 << 100)


def paid(slots: int) -> str:
    """Returns the events at the end of a round with so many paid slots and a merge."""
    return "RoundFinal " + (slots + 1) * "Unlocked Paid Credited "


def words(slot: int, upto: int = 3) -> Callable[[World], Any]:
    """Returns the words of a slot's claim in the first round."""
    return lambda w: list(w.made(slot).body.words)[:upto]


def only(*senders: str, function: str, arguments: tuple[Any, ...]) -> list[Row]:
    """Returns rows in which all other senders are refused: people, and contracts that are not named."""
    others = [name for name in ("mallory", "token", "market", "game", "validator", "witnesses", "demands")
              if name not in senders]  # fmt: skip
    return [row(f"Unauthorized({who})", who, function, *arguments) for who in others]


CALLBACKS: tuple[tuple[tuple[str, ...], str, tuple[Any, ...]], ...] = (
    (("game",), "market.onOpen", (claim(0), body(0))),
    (("game", "demands"), "market.onConvicted", (claim(0), 1, ["0x" + 40 * "1"], [])),
    (("game", "demands"), "market.onRejected", (claim(0),)),
    (("validator", "demands"), "market.onInvalid", (JOB, "verifier")),
    (("witnesses",), "market.onDrawn", (JOB, 0, 1)),
    (("witnesses",), "market.onWitnessed", (JOB, "witness")),
    (("demands",), "market.onDemanded", (JOB, 0, 0, False)),
    (("market",), "vault.raise", (claim(0), 1)),
    (("market",), "vault.slash", (claim(0), 0, ["0x" + 40 * "1"], [], "requester")),
    (("market",), "vault.escrow", ("requester", 1)),
    (("market",), "vault.credit", ("mallory", 1)),
)
KEEPERS = ("market", "game", "witnesses", "demands")

ACTS: tuple[tuple[str, str, tuple[Any, ...], str], ...] = (
    ("worker-0", "market.join", (JOB, 0, 2), "JOINING"), ("worker-0", "market.leave", (JOB, 0, 0), "JOINING"),
    ("poor", "market.seal", (JOB, 0), "SEALING"), ("worker-0", "market.commit", (JOB, 0, 0, OTHER), "TRAINING"),
    ("worker-0", "market.reveal", (JOB, 0, 0, lambda w: w.opened(0)), "REVEALING"),
    ("poor", "market.attest", (JOB, 0, []), "ATTESTING"), ("witnesses", "market.onDrawn", (JOB, 0, 1), "ATTESTING"),
    ("demands", "market.onDemanded", (JOB, 0, 0, False), "ATTESTING"),
    ("poor", "market.freeze", (JOB, 0, []), "FREEZING"),
    ("aggregator", "market.merge", (JOB, 0, OTHER, OTHER, "", 0), "MERGING"),
    ("aggregator", "market.back", (JOB, 0, 1), "LEAD"), ("poor", "market.finalize", (JOB, 0), "LEAD FAILED"),
    ("poor", "market.release", (JOB, 0), "VOID"),
)  # fmt: skip
"""Acts of a round, each with its phases."""
PHASES = {
    "job": "NONE", "joining": "JOINING", "roster to close": "SEALING", "roster closed": "SEALING",
    "training": "TRAINING", "too late to commit": "REVEALING", "attesting": "ATTESTING", "freezing": "FREEZING",
    "merging": "MERGING", "merged": "LEAD", "final": "FINAL", "nobody merged": "FAILED",
}  # fmt: skip
"""Scenes, each with the phase of the first round."""


def out_of_phase(phase: str) -> list[Row]:
    """Returns rows in which acts of other phases are refused with the job and round."""
    return [
        row("WrongPhase", sender, function, *arguments)
        for sender, function, arguments, at in ACTS
        if phase not in at.split()
    ]


DEAR = {"gas_price": (1 << 88) // 240_000_000, "slot_stake": 1 << 87, "merge_stake": 1 << 87}
INVALID: tuple[dict[str, int], ...] = (
    {"slots": 0, "min_slots": 0}, {"slot_price": 0, "slot_stake": 0}, {"slot_stake": 1 << 87, "merge_stake": 1 << 88},
    {"shared_depth": 24, "payload_depth": 21, "carry_period": 0}, {"shared_depth": 1, "payload_depth": 0},
    {"shared_depth": 1, "payload_depth": 2}, {"answer_seconds": 3, "row_length": 63 * 256 + 2},
    {"witnesses": 3, "witness_stake": 254}, {"max_lead": 11, "witness_stake": 241},
    {"answer_seconds": 33, "row_length": MAX_ROW}, {"answer_seconds": 600, "row_length": MAX_ROW, **DEAR},
    {"turn_seconds": 301}, {"attest_seconds": 301, "witnesses": 0}, {"reveal_seconds": 301, "witnesses": 0},
)  # fmt: skip
"""Sets of terms that are refused together."""
VALID: tuple[dict[str, int], ...] = (
    {"audit_seconds": 73}, {"challenge_seconds": 200}, {"witness_stake": 220}, {"witness_stake": 506},
    {"witnesses": 2, "witness_stake": 506}, {"witnesses": 3, "witness_stake": 253},
    {"slot_stake": 1_010}, {"merge_stake": 570}, {"merge_stake": 2_026}, {"bond": 101}, {"clock_seconds": 60},
    {"challenge_seconds": 3_360}, {"shared_depth": 1, "payload_depth": 1},
    {"carry_period": 15, "max_lead": 16, "witness_stake": 352},
    {"shared_depth": 24, "payload_depth": 22, "carry_period": 0}, {"answer_seconds": 2, "row_length": 63 * 256 + 1},
    {"answer_seconds": 34, "row_length": MAX_ROW}, DEAR, {"turn_seconds": 300}, {"attest_seconds": 300, "witnesses": 0},
    {"reveal_seconds": 300, "witnesses": 0},
)  # fmt: skip
"""Terms at their bounds."""


LATER = {
    "commit": (0, OTHER), "seal": (), "attest": ([],), "freeze": ([],), "merge": (OTHER, OTHER, "", 0), "back": (1,),
    "finalize": (), "release": (),
}  # fmt: skip
"""Acts of a round with workers, with their further arguments."""


def out_of_turn(*verbs: str) -> list[Row]:
    """Returns rows in which a worker acts in the wrong phase: the phase is checked before the sender."""
    return [row("WrongPhase", "worker-0", f"market.{verb}", JOB, 0, *LATER.get(verb, (0,))) for verb in verbs]


# fmt: off
RULES: dict[str, list[Row]] = {
    "begun": [
        # the token of the tests
        row("Transfer(0x0000000000000000000000000000000000000000, poor, 5)", "poor", "token.mint", "poor", 5),
        row("ERC20InvalidReceiver", "poor", "token.mint", ZERO, 5),
        row("Transfer(mallory, poor, 5)", "mallory", "token.transfer", "poor", 5),
        row("ERC20InvalidReceiver", "mallory", "token.transfer", ZERO, 5),
        row("ERC20InsufficientBalance(poor, 0, 5)", "poor", "token.transfer", "mallory", 5),
        row("Approval(poor, vault, 5)", "poor", "token.approve", "vault", 5),
        row("ERC20InvalidSpender", "poor", "token.approve", ZERO, 5),
        row("Transfer(mallory, poor, 5)", "vault", "token.transferFrom", "mallory", "poor", 5),
        row("ERC20InsufficientAllowance(poor, 0, 5)", "poor", "token.transferFrom", "mallory", "poor", 5),
        row("ERC20InvalidApprover", "poor", "token.transferFrom", ZERO, "poor", 0),
        row("Approval(mallory, vault, 9)", "poor", "token.permit", "mallory", "vault", 9, *permit(9)),
        row("ERC2612ExpiredSignature(5)", "poor", "token.permit", "mallory", "vault", 9, *permit(9, deadline=5)),
        row("ERC2612InvalidSigner(poor, mallory)", "poor", "token.permit", "mallory", "vault", 9, *permit(9,
            by="poor")),
        row("ECDSAInvalidSignature", "poor", "token.permit", "mallory", "vault", 9, 1 << 40, 27, NO_WORD, NO_WORD),
        row("ECDSAInvalidSignatureS", "poor", "token.permit", "mallory", "vault", 9, 1 << 40, 27, OTHER, b"\xff" * 32),
        # stakes
        row("Deposited(mallory, 7) Transfer(mallory, vault, 7)", "mallory", "vault.deposit", 7),
        row("ERC20InsufficientAllowance(vault, 0, 7)", "poor", "vault.deposit", 7),
        row("ERC20InsufficientBalance", "mallory", "vault.deposit", 10**7),
        row("Panic", "mallory", "vault.deposit", MAX_UINT),
        row("Approval Deposited(mallory, 9) Transfer", "mallory", "vault.depositWithPermit", 9, *permit(9)),
        row("Deposited(mallory, 9) Transfer", "mallory", "vault.depositWithPermit", 9, *permit(9, by="poor")),
        row("UnbondRequested(mallory, 500, 1700003601)", "mallory", "vault.requestUnbond", 500),
        row(f"StakeTooLow(mallory, {STAKE + 1}, {STAKE})", "mallory", "vault.requestUnbond", STAKE + 1),
        row("NothingDue", "mallory", "vault.withdrawUnbonded"),
        row("NothingDue", "mallory", "vault.withdraw"),
        row("NothingDue", "mallory", "vault.burn"),
        row("NodeRegistered", "mallory", "vault.registerNode", OTHER),
        row("Delegated(mallory, poor)", "mallory", "vault.setDelegate", "poor"),
        row("Delegated(mallory, poor)", "mallory", "vault.setDelegateFor", "mallory", "poor"),
        row("NotOwner(mallory, mallory)", "verifier", "vault.setDelegateFor", "mallory", "poor"),
        row("OwnerSet(mallory, verifier)", "mallory", "vault.setOwner", "verifier"),
        row("OwnerInvalid", "mallory", "vault.setOwner", ZERO),
        row("OwnerInvalid(vault)", "mallory", "vault.setOwner", "vault"),
        row("OwnerProposed(mallory, verifier)", "mallory", "vault.proposeOwner", "mallory", "verifier"),
        row("NotOwner(mallory, mallory)", "verifier", "vault.proposeOwner", "mallory", "verifier"),
        row("Unauthorized(verifier)", "verifier", "vault.acceptOwner", "mallory"),
        row("NotOwner(mallory, mallory)", "verifier", "vault.requestUnbondFor", "mallory", 1),
        row("NotOwner(mallory, mallory)", "verifier", "vault.withdrawFor", "mallory"),
        row("NotOwner(mallory, mallory)", "verifier", "vault.withdrawUnbondedFor", "mallory"),
        # locks and escrow
        row(f"Locked(0x{KEY['game'][:4].hex()}.., mallory, 5)", "game", "vault.lock", "mallory", KEY["game"], 5),
        row("StakeTooLow(poor, 5, 0)", "game", "vault.lock", "poor", KEY["game"], 5),
        row("NotLocked", "market", "vault.raise", OTHER, 1),
        *(row("NotLocked", who, "vault.unlock", OTHER) for who in KEEPERS),
        row("NotLocked", "game", "vault.takeBond", OTHER, "mallory", 1),
        row("NotLocked", "game", "vault.payBond", OTHER, "mallory", 1),
        row("NotLocked", "market", "vault.slash", OTHER, 0, ["0x" + 40 * "1"], [], "requester"),
        row("NotLocked", "market", "vault.slashLiveness", OTHER, 0),
        row("EscrowTooLow(1, 0)", "market", "vault.credit", "mallory", 1),
        row("Escrowed(mallory, 7) Transfer(mallory, vault, 7)", "market", "vault.escrow", "mallory", 7),
        row("AmountTooLarge", "market", "vault.escrow", "mallory", 1 << 128),
        row("Approval Escrowed(mallory, 7) Transfer", "market", "vault.escrowWithPermit", "mallory", 7, *permit(7)),
        *only("market", function="vault.escrowWithPermit", arguments=("mallory", 7, 1 << 40, 27, NO_WORD, NO_WORD)),
        row("Escrowed(mallory, 7) Transfer", "market", "vault.escrowWithPermit", "mallory", 7, *permit(7, by="poor")),
        # jobs
        row(f"JobCreated Escrowed(requester, {PARAMS.escrow + PARAMS.deposit}) Transfer", "requester", "market.create",
            PARAMS, 1, PARAMS.escrow),
        row(f"EscrowInsufficient({PARAMS.escrow}, {PARAMS.escrow - 1})", "requester", "market.create", PARAMS, 1,
            PARAMS.escrow - 1),
        row("EscrowInsufficient", "requester", "market.create", PARAMS, 1, 1 << 120),
        row("ERC20InsufficientAllowance", "poor", "market.create", PARAMS, 1, PARAMS.escrow),
        row("JobCreated Approval Escrowed Transfer", "mallory", "market.createWithPermit", PARAMS, 1, PARAMS.escrow,
            *permit(PARAMS.escrow + PARAMS.deposit)),
        *(
            invalid_job(**{name: value})
            for name, value in (
                ("rounds", 0),
                ("inner_steps", 0),
                ("inner_steps", 1 << 24),
                ("slots", 65),
                ("min_slots", 0),
                ("min_slots", 4),
                ("max_lead", 0),
                ("max_lead", 17),
                ("profile", 2),
                ("opset", 0),
                ("opset", 3),
                ("step_program", NO_WORD),
                ("encode_program", NO_WORD),
                ("merge_program", NO_WORD),
                ("dataset_rows", 0),
                ("row_length", 0),
                ("row_length", (1 << 18) + 1),
                ("shared_depth", 25),
                ("payload_depth", 25),
                ("join_seconds", 0),
                ("train_seconds", 0),
                ("reveal_seconds", 0),
                ("attest_seconds", 0),
                ("turn_seconds", 0),
                ("challenge_seconds", 0),
                ("join_seconds", 30 * 86_400 + 1),
                ("clock_seconds", 59),
                ("step_seconds", 0),
                ("step_seconds", 31),
                ("challenge_seconds", 3_361),
                ("fee_cap", 0),
                ("fee_cap", MAX_FEE_CAP + 1),
                ("slot_stake", 1_009),
                ("merge_stake", 569),
                ("merge_stake", 2_027),
                ("bond", 0),
                ("bond", 1 << 88),
                ("witnesses", 65),
                ("witness_fee", 0),
                ("witness_stake", 219),
                ("witness_stake", 507),
                ("audit_seconds", 0),
                ("audit_seconds", 74),
                ("answer_seconds", 1),
                ("carry_period", 1),
                ("carry_period", 3),
                ("merged", False),
                ("base_lag", 2),
                ("inbox_role", 1),
                ("inbox_lag", 1),
                ("max_lead", 2),
                ("carry_depth", 1),
                ("challenge_seconds", 31 * 86_400),
                ("challenge_seconds", 199),
                ("gas_price", 1_013),
                ("bond", 100),
                ("slot_stake", 1 << 88),
            )
        ),
        *(invalid_job(**changed) for changed in INVALID),
        row("JobInvalid", "requester", "market.create", replace(PARAMS, roles=2 * PARAMS.roles), 3, 1 << 100),
        *(row("JobCreated Escrowed Transfer", "requester", "market.create", p, 3, p.escrow)
          for changed in VALID for p in (amended(PARAMS, **changed),)),
        # of what is not there
        row("WrongJobStatus", "poor", "market.startRound", NO_JOB, 0),
        row("Unauthorized(requester)", "requester", "market.cancel", NO_JOB),
        row("WrongJobStatus", "requester", "market.finish", NO_JOB),
        row("WrongPhase", "poor", "market.release", NO_JOB, 0),
        row("WrongPhase", "poor", "market.finalize", NO_JOB, 0),
        row("WrongJobStatus", "validator", "market.onInvalid", NO_JOB, "verifier"),
        row("WrongJobStatus", "witness", "witnesses.enrol", NO_JOB, OTHER),
        row("NotWitness(witness)", "witness", "witnesses.retire", NO_JOB),
        row("WrongPhase", "poor", "witnesses.draw", NO_JOB, 0),
        row("AlreadyDone", "poor", "witnesses.settle", OTHER, 0),
        row("NotWitness(witness)", "witness", "witnesses.commit", OTHER, 0, OTHER),
        row("WrongJobStatus", "verifier", "demands.demandRow", NO_JOB, 0),
        row("WrongPhase", "verifier", "demands.unavailable", NO_JOB, 0, 0, 0),
        row("NoCarry(0)", "verifier", "demands.carryUnavailable", NO_JOB, 0, 0, 0),
        row("DemandClosed", "poor", "demands.settle", OTHER),
        row("DemandClosed", "poor", "demands.voidForRow", NO_JOB, 0),
        row("", "poor", "demands.commit", [OTHER, OTHER]),
        row("", "poor", "validator.commit", [OTHER]),
        row("NotCommitted", "poor", "validator.proveInvalid", NO_JOB, EVIDENCE),
        row("Panic", "poor", "demands.rowBondOf", NO_JOB, 0),
        row("ClaimClosed", "game", "market.onConvicted", OTHER, 0, ["0x" + 40 * "1"], []),
        row("WindowClosed", "game", "market.onOpen", OTHER, OTHER_BODY),
    ],
    "handed over": [
        row("UnbondRequested", "mallory", "vault.requestUnbond", 0),
        row("OwnerSet(mallory, verifier)", "verifier", "vault.acceptOwner", "mallory"),
    ],
    "proposed before": [
        row("Unauthorized(verifier)", "verifier", "vault.acceptOwner", "mallory"),
    ],
    "owner changed": [
        row("Unauthorized(witness)", "witness", "vault.acceptOwner", "mallory"),
        row("NotOwner(mallory, witness)", "verifier", "vault.withdrawUnbondedFor", "mallory"),
        row("NotOwner(mallory, witness)", "verifier", "vault.proposeOwner", "mallory", "verifier"),
    ],
    "proposed twice": [
        row("Unauthorized(witness)", "witness", "vault.acceptOwner", "mallory"),
        row("OwnerSet(mallory, poor)", "poor", "vault.acceptOwner", "mallory"),
    ],
    "unbonding": [
        row("Unbonding", "mallory", "vault.withdrawUnbonded"),
        row("UnbondRequested", "mallory", "vault.requestUnbond", 1),
    ],
    "unbonded": [
        row("Unbonded(mallory, 500) Transfer(vault, mallory, 500)", "mallory", "vault.withdrawUnbonded"),
    ],
    "owned": [
        row("NotOwner(mallory, verifier)", "mallory", "vault.setOwner", "poor"),
        row("Deposited Transfer", "mallory", "vault.deposit", 77),
        row("Locked", "game", "vault.lock", "mallory", KEY["game"], 10),
        row("NodeRegistered", "mallory", "vault.registerNode", OTHER),
        *(row("", "poor", "vault.mayAct", account, actor) for account in ("mallory", "worker-0")
          for actor in (account, "verifier", ZERO)),
        row("NotOwner(mallory, verifier)", "mallory", "vault.requestUnbond", 1),
        row("NotOwner(mallory, verifier)", "mallory", "vault.setDelegate", "poor"),
        row("NotOwner(mallory, verifier)", "mallory", "vault.proposeOwner", "mallory", "poor"),
        row("UnbondRequested", "verifier", "vault.requestUnbondFor", "mallory", 1),
        row("Unbonded(mallory, 500) Transfer(vault, verifier, 500)", "mallory", "vault.withdrawUnbonded"),
        row("Unbonded(mallory, 500) Transfer(vault, verifier, 500)", "verifier", "vault.withdrawUnbondedFor",
            "mallory"),
        row("NothingDue", "verifier", "vault.withdrawFor", "mallory"),
        row("Delegated(mallory, poor)", "verifier", "vault.setDelegateFor", "mallory", "poor"),
        row("OwnerProposed", "verifier", "vault.proposeOwner", "mallory", ZERO),
        row("OwnerSet(mallory, witness)", "witness", "vault.acceptOwner", "mallory"),
        row("Unauthorized(verifier)", "verifier", "vault.acceptOwner", "mallory"),
    ],
    "owned and credited": [
        row("Withdrawn(mallory, 300) Transfer(vault, verifier, 300)", "mallory", "vault.withdraw"),
        row("Withdrawn(mallory, 300) Transfer(vault, verifier, 300)", "verifier", "vault.withdrawFor", "mallory"),
        row("NotOwner(mallory, verifier)", "mallory", "vault.withdrawFor", "mallory"),
    ],
    "locked": [
        *(row("AlreadyLocked", who, "vault.lock", "mallory", key, 1) for who, key in KEY.items()),
        *(row("Unlocked", who, "vault.unlock", key) for who, key in KEY.items()),
        *(row("WrongKeeper", who, "vault.unlock", key) for who in KEY for other, key in KEY.items() if other != who),
        *(row("WrongKeeper", who, "vault.slashLiveness", key, 1) for who in KEY for other, key in KEY.items()
          if other != who),
        *(row("WrongKeeper", who, "vault.takeBond", key, "mallory", 1) for who in KEEPERS[1:]
          for other, key in KEY.items() if other != who),
        *(row("Slashed Unlocked", who, "vault.slashLiveness", key, 1) for who, key in KEY.items()),
        *only(*KEEPERS, function="vault.unlock", arguments=(KEY["market"],)),
        *only(*KEEPERS, function="vault.lock", arguments=("mallory", OTHER, 1)),
        *only(*KEEPERS, function="vault.slashLiveness", arguments=(KEY["market"], 1)),
        *only(*KEEPERS[1:], function="vault.takeBond", arguments=(KEY["game"], "mallory", 1)),
        *(row("WrongKeeper", who, "vault.payBond", key, "mallory", 1) for who in KEEPERS[1:]
          for other, key in KEY.items() if other != who),
        *only(*KEEPERS[1:], function="vault.payBond", arguments=(KEY["game"], "mallory", 1)),
        row(f"BondTaken(0x{KEY['demands'][:4].hex()}.., worker-0, 7, 0, 7) Credited(mallory, 7) Unlocked(0x"
            f"{KEY['demands'][:4].hex()}.., worker-0, 993)", "demands", "vault.payBond", KEY["demands"], "mallory", 7),
        row(f"BondTaken Credited(mallory, 1000) Unlocked(0x{KEY['game'][:4].hex()}.., worker-0, 0)", "game",
            "vault.payBond", KEY["game"], "mallory", 1_001),
        row("BondTaken Credited(mallory, 600)", "game", "vault.takeBond", KEY["game"], "mallory", MAX_UINT),
        row("BondTaken Credited(mallory, 4)", "witnesses", "vault.takeBond", KEY["witnesses"], "mallory", 7),
        row("BondTaken Credited(mallory, 600)", "demands", "vault.takeBond", KEY["demands"], "mallory", 1_000),
        row("Locked", "market", "vault.raise", KEY["market"], 5),
        row(f"StakeTooLow(worker-0, {STAKE}, {STAKE - 4_000})", "market", "vault.raise", KEY["market"], STAKE),
        row("Credited(verifier, 300) Credited(requester, 200) Slashed", "market", "vault.slash", KEY["market"], 0,
            [ACCOUNTS["verifier"]], [], "requester"),
        row("Credited(poor, 90) Credited(verifier, 135) Credited(mallory, 67) Credited(witness, 67) "
            "Credited(requester, 90) Slashed",
            "market", "vault.slash", KEY["market"], 100, [ACCOUNTS["verifier"], ACCOUNTS["mallory"],
            ACCOUNTS["witness"]], [(ACCOUNTS["poor"], 500)], "requester"),
        *(
            row(f"Credited(poor, {given}) Credited(witness, {rest}) Credited(verifier, 300) "
                f"Credited(requester, {200 - given - rest}) Slashed".replace("Credited(witness, 0) ", ""), "market",
                "vault.slash", KEY["market"], 0, [ACCOUNTS["verifier"]],
                [(ACCOUNTS["poor"], asked), (ACCOUNTS["witness"], more)], "requester")
            for asked, more, given, rest in ((40, 80, 40, 60), (40, 20, 40, 20), (100, 1, 100, 0))
        ),
        row("Panic", "market", "vault.slash", KEY["market"], 1_001, [ACCOUNTS["verifier"]], [], "requester"),
        row("WrongKeeper", "market", "vault.slash", KEY["game"], 0, [ACCOUNTS["verifier"]], [], "requester"),
        row("Slashed Unlocked", "market", "vault.slashLiveness", KEY["market"], 10),
        row("StakeTooLow(worker-0, 1001, 1000)", "market", "vault.slashLiveness", KEY["market"], 1_001),
        row("Credited(mallory, 5000)", "market", "vault.credit", "mallory", 5_000),
        row("EscrowTooLow(5001, 5000)", "market", "vault.credit", "mallory", 5_001),
    ],
    "rich": [
        row(f"AmountTooLarge({1 << 192})", "mallory", "vault.requestUnbond", 1 << 192),
        row("UnbondRequested", "mallory", "vault.requestUnbond", (1 << 192) - 1),
        row(f"AmountTooLarge({1 << 88})", "game", "vault.lock", "mallory", KEY["game"], 1 << 88),
        row("Locked", "game", "vault.lock", "mallory", KEY["game"], (1 << 88) - 1),
        row("JobCreated Escrowed Transfer", "mallory", "market.create", PARAMS, 1, (1 << 120) - 1),
        row(f"AmountTooLarge({1 << 88})", "market", "vault.raise", KEY["market"], 1),
    ],
    "credited": [
        row("Withdrawn(mallory, 300) Transfer(vault, mallory, 300)", "mallory", "vault.withdraw"),
        row("Withdrawn(mallory, 300) Transfer(vault, mallory, 300)", "mallory", "vault.withdrawFor", "mallory"),
        row("NotOwner(mallory, mallory)", "poor", "vault.withdrawFor", "mallory"),
        row("Withdrawn Transfer", "poor", "vault.burn"),
    ],
    "job": [
        row("JobExists", "requester", "market.create", PARAMS, 1, PARAMS.escrow),
        row("JobExists", "requester", "market.create", PARAMS, 1, PARAMS.escrow + 1),
        row("RoundStarted", "poor", "market.startRound", JOB, 0),
        row("RoundNotStartable(1)", "poor", "market.startRound", JOB, 1),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row("Unauthorized(mallory)", "mallory", "market.cancel", JOB),
        row(f"JobCancelled Credited(requester, {PARAMS.escrow})", "requester", "market.cancel", JOB),
        *out_of_turn("join", "leave", *LATER),
        row("Enrolled Locked", "witness", "witnesses.enrol", JOB, OTHER),
        row("StakeTooLow(poor, 223, 0)", "poor", "witnesses.enrol", JOB, OTHER),
        row("NotWitness(witness)", "witness", "witnesses.retire", JOB),
        row("RowDemanded Locked", "verifier", "demands.demandRow", JOB, 0),
        row("NoSuchRow(1)", "verifier", "demands.demandRow", JOB, 1),
        row("StakeTooLow", "poor", "demands.demandRow", JOB, 0),
        row("DemandClosed", "worker-0", "demands.answerRow", *ANSWER_ROW),
        row("JobVoid", "validator", "market.onInvalid", JOB, "verifier"),
        row("EscrowTooLow(11, 0)", "witnesses", "market.onWitnessed", JOB, "witness"),
    ],
    "cancelled": [
        row("WrongJobStatus", "requester", "market.cancel", JOB),
        row("WrongJobStatus", "poor", "market.startRound", JOB, 0),
        row("WrongJobStatus", "witness", "witnesses.enrol", JOB, OTHER),
        row(f"Credited(requester, {PARAMS.deposit}) JobDone", "poor", "market.finish", JOB),
        row("RowDemanded Locked", "verifier", "demands.demandRow", JOB, 0),
    ],
    "finished": [
        row("WrongJobStatus", "poor", "market.finish", JOB),
        row("WrongJobStatus", "requester", "market.cancel", JOB),
        row("WrongJobStatus", "poor", "market.startRound", JOB, 0),
        row("WrongJobStatus", "verifier", "demands.demandRow", JOB, 0),
        row("WrongJobStatus", "validator", "market.onInvalid", JOB, "verifier"),
    ],
    "joining": [
        row("Joined Locked", "worker-1", "market.join", JOB, 0, 1),
        row("Joined Locked", "worker-0", "market.join", JOB, 0, 2),
        row("SlotTaken(0)", "worker-1", "market.join", JOB, 0, 0),
        row("NoSuchSlot(3)", "worker-1", "market.join", JOB, 0, 3),
        row("StakeTooLow(poor, 1013, 0)", "poor", "market.join", JOB, 0, 1),
        row("Left Unlocked", "worker-0", "market.leave", JOB, 0, 0),
        row("NotSlotOwner(0)", "worker-1", "market.leave", JOB, 0, 0),
        row("NotSlotOwner(1)", "worker-1", "market.leave", JOB, 0, 1),
        row("RoundNotStartable(0)", "poor", "market.startRound", JOB, 0),
        row("RoundNotStartable(1)", "poor", "market.startRound", JOB, 1),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row(f"JobCancelled Credited(requester, {PARAMS.escrow - PARAMS.round_pay})", "requester", "market.cancel", JOB),
        *out_of_turn(*LATER),
        row("WrongPhase", "poor", "witnesses.draw", JOB, 0),
        row("WindowClosed", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
        row("NotSlotOwner(0)", "worker-1", "witnesses.publish", JOB, 0, 0, "list"),
        row("CidTooLong(129)", "worker-0", "witnesses.publish", JOB, 0, 0, LONG),
        row("WindowClosed", "game", "market.onOpen", claim(0), OTHER_BODY),
        row("WrongPhase", "verifier", "demands.unavailable", JOB, 0, 0, 0),
    ],
    "too late to leave": [
        row("WrongPhase", "worker-0", "market.leave", JOB, 0, 0),
        row("Joined Locked", "worker-1", "market.join", JOB, 0, 1),
    ],
    "short of workers": [
        row("RoundFailed Unlocked", "poor", "market.seal", JOB, 0),
        row("WrongPhase", "worker-1", "market.join", JOB, 0, 1),
    ],
    "roster to close": [
        row("RoundFailed Unlocked Unlocked", "poor", "market.seal", JOB, 0),
        row("WrongPhase", "worker-2", "market.join", JOB, 0, 2),
        row("WrongPhase", "worker-0", "market.leave", JOB, 0, 0),
    ],
    "enough workers": [row("Joined Locked RosterClosed", "worker-2", "market.join", JOB, 0, 2)],
    "roster closed": [
        row("TooEarly", "poor", "market.seal", JOB, 0),
        row("WrongPhase", "worker-0", "market.leave", JOB, 0, 0),
        row("WrongPhase", "worker-0", "market.commit", JOB, 0, 0, OTHER),
    ],
    "last block of a seed": [row("Sealed", "poor", "market.seal", JOB, 0)],
    "seed due": [row("Sealed", "poor", "market.seal", JOB, 0)],
    "seed forgotten": [row("RoundFailed Unlocked Unlocked Unlocked", "poor", "market.seal", JOB, 0)],
    "training": [
        row("Committed", "worker-0", "market.commit", JOB, 0, 0, OTHER),
        row("NotSlotOwner(0)", "worker-1", "market.commit", JOB, 0, 0, OTHER),
        row("NotSlotOwner(3)", "worker-1", "market.commit", JOB, 0, 3, OTHER),
        row("WrongPhase", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
        row("WrongPhase", "poor", "market.seal", JOB, 0),
        row("WrongPhase", "witnesses", "market.onDrawn", JOB, 0, 1),
        row("WrongPhase", "demands", "market.onDemanded", JOB, 0, 0, False),
        row("WindowClosed", "game", "market.onOpen", claim(0), OTHER_BODY),
    ],
    "half committed": [
        row("AlreadyDone", "worker-0", "market.commit", JOB, 0, 0, OTHER),
        row("Committed", "worker-2", "market.commit", JOB, 0, 2, OTHER),
        row("WrongPhase", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
    ],
    "too late to commit": [
        row("WrongPhase", "worker-2", "market.commit", JOB, 0, 2, OTHER),
        row("Revealed", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
        row("AlreadyDone", "worker-2", "market.reveal", JOB, 0, 2, opened(2)),
        row("NotSlotOwner(0)", "worker-1", "market.reveal", JOB, 0, 0, opened(0)),
        row("CommitmentMismatch", "worker-0", "market.reveal", JOB, 0, 0, opened(0, nonce=OTHER)),
        row("CommitmentMismatch", "worker-0", "market.reveal", JOB, 0, 0, opened(0, carries=True)),
        *(row("CommitmentMismatch", "worker-0", "market.reveal", JOB, 0, 0, other_body(part))
          for part in ("trace_root", "out", "out2")),
        row("ProofInvalid", "worker-0", "market.reveal", JOB, 0, 0, opened(0, proof_t=())),
        row("ProofInvalid", "worker-0", "market.reveal", JOB, 0, 0, opened(0, proof_t=(OTHER,))),
        row("CidTooLong(129)", "worker-0", "market.reveal", JOB, 0, 0, opened(0, trace_cid=LONG)),
        row("CidTooLong(129)", "worker-0", "market.reveal", JOB, 0, 0, opened(0, payload_cid=LONG)),
        row("Revealed", "worker-0", "market.reveal", JOB, 0, 0, opened(0, trace_cid=LONG[:-1], payload_cid=LONG[:-1])),
    ],
    "nobody committed": [
        row(3 * "Slashed Unlocked " + "Frozen RoundFailed", "poor", "market.freeze", JOB, 0, []),
        row("WrongPhase", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
    ],
    "one unrevealed": [
        row("Attested Attested", "poor", "market.attest", JOB, 0, receipts(0, 1)),
        row("NotSlotOwner(2)", "poor", "market.attest", JOB, 0, receipts(2)),
        row("NoSuchSlot(2)", "demands", "market.onDemanded", JOB, 0, 2, False),
        row("NoSuchSlot(2)", "verifier", "demands.unavailable", JOB, 0, 2, 0),
    ],
    "delegate speaks": [
        row("Attested", "poor", "market.attest", JOB, 0, receipts(0, by="poor")),
        row("SignatureInvalid(worker-0)", "poor", "market.attest", JOB, 0, receipts(0, by="witness")),
        row("SignatureInvalid(worker-1)", "poor", "market.attest", JOB, 0, receipts(1, by="poor")),
    ],
    "all spoke": [
        row("Frozen", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
        row("WrongPhase", "poor", "market.attest", JOB, 0, receipts(0)),
    ],
    "carry from nowhere": [
        row("NoCarry(0)", "worker-0", "market.reveal", JOB, 0, 0, opened(0, carries=True)),
    ],
    "half revealed": [
        row("AlreadyDone", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
        row("WrongPhase", "poor", "market.attest", JOB, 0, receipts(0)),
        row("WindowClosed", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
    ],
    "enrolled": [
        row("AlreadyDone", "witness", "witnesses.enrol", JOB, OTHER),
        row("Retired Unlocked", "witness", "witnesses.retire", JOB),
        row("NotWitness(verifier)", "verifier", "witnesses.retire", JOB),
    ],
    "attesting": [
        row("Attested Attested", "poor", "market.attest", JOB, 0, receipts(0, 2)),
        row("AlreadyDone", "poor", "market.attest", JOB, 0, receipts(0, 0)),
        row("SignatureInvalid(worker-1)", "poor", "market.attest", JOB, 0, receipts(1, by="worker-0")),
        row("NotSlotOwner(3)", "poor", "market.attest", JOB, 0, receipts(3, by="worker-0")),
        row("NotSlotOwner(64)", "poor", "market.attest", JOB, 0, receipts(64, by="witness")),
        row("WrongPhase", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
        row("WrongPhase", "worker-0", "market.reveal", JOB, 0, 0, opened(0)),
        row("AuditOpened", "poor", "witnesses.draw", JOB, 0),
        row("WindowClosed", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
        row("", "game", "market.onOpen", claim(0), body(0)),
        row("CommitmentMismatch", "game", "market.onOpen", claim(0), OTHER_BODY),
        row("ClaimClosed", "game", "market.onConvicted", OTHER, 1, [ACCOUNTS["verifier"]], []),
        row("Convicted Credited(verifier, 303) Credited(requester, 202) Slashed", "game", "market.onConvicted",
            claim(0), 1, [ACCOUNTS["verifier"]], []),
        row("", "witnesses", "market.onDrawn", JOB, 0, 1),
        row("AlreadyDone", "witnesses", "market.onDrawn", JOB, 0, 2),
        row("", "demands", "market.onDemanded", JOB, 0, 0, False),
        row("", "demands", "market.onDemanded", JOB, 0, 0, True),
        row("NoSuchSlot(3)", "demands", "market.onDemanded", JOB, 0, 3, False),
        row("PayloadDemanded Locked", "verifier", "demands.unavailable", JOB, 0, 0, 0),
        row("NoSuchSlot(3)", "verifier", "demands.unavailable", JOB, 0, 3, 0),
        row("StakeTooLow(poor, 153, 0)", "poor", "demands.unavailable", JOB, 0, 0, 0),
        row("NoCarry(0)", "verifier", "demands.carryUnavailable", JOB, 0, 0, 0),
        row("SignatureInvalid(worker-1)", "poor", "market.attest", JOB, 0,
            lambda w: [replace(w.receipt(0), who=1)]),
        row("SignatureInvalid(worker-0)", "poor", "market.attest", JOB, 0,
            lambda w: [replace(w.receipt(0), mask=5)]),
        *(
            line
            for senders, function, arguments in CALLBACKS
            for line in only(*senders, function=function, arguments=arguments)
        ),
    ],
    "half attested": [
        row("ProofInvalid", "poor", "market.factsOf", claim(0), 0, []),
        row("ProofInvalid", "poor", "market.factsOf", claim(0), 3, []),
        row("AlreadyDone", "poor", "market.attest", JOB, 0, receipts(0)),
        row("Attested", "poor", "market.attest", JOB, 0, receipts(2)),
    ],
    "too late to draw": [
        row("WrongPhase", "poor", "witnesses.draw", JOB, 0),
        row("WrongPhase", "poor", "market.attest", JOB, 0, receipts(0)),
        row("WrongPhase", "verifier", "demands.unavailable", JOB, 0, 0, 0),
        row("TracePublished", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
    ],
    "cancelled meanwhile": [
        row("JobUnfinished", "poor", "market.finish", JOB),
        row("WrongJobStatus", "poor", "market.startRound", JOB, 1),
    ],
    "one left out": [
        *(row("CommitmentMismatch", "poor", "market.freeze", JOB, 0, but_for(slot)) for slot in range(3)),
        row("Frozen", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
        row("CommitmentMismatch", "poor", "market.freeze", JOB, 0, bodies(0, 1)),
        row("CommitmentMismatch", "poor", "market.freeze", JOB, 0, [OTHER_BODY] * 3),
        row("WrongPhase", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "", 0),
    ],
    **{
        f"named {i}": [row("Frozen" if accepted.bit_count() > 1 else "Frozen RoundFailed", "poor",
            "market.freeze", JOB, 0, bodies(0, 1, 2))]
        for i, (_, accepted) in enumerate(RECEIPTS)
    },
    "slot convicted": [
        row(paid(2), "poor", "market.finalize", JOB, 0),
    ],
    "convicted and merged": [
        row(paid(2), "poor", "market.finalize", JOB, 0),
    ],
    "two games": [
        row("ClaimClosed", "game", "market.onRejected", claim(0)),
        row("ClaimClosed", "game", "market.onConvicted", claim(0), 1, [ACCOUNTS["verifier"]], []),
    ],
    "void under game": [row("", "poor", "market.live", claim(0))],
    "failed under game, void": [
        row("RoundVoid Unlocked Unlocked Unlocked Paid Credited(worker-2, 101)", "poor", "market.release", JOB, 0),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row("", "poor", "market.live", claim(0)),
    ],
    "failed, one released": [row(_of_void(1), "poor", "market.finish", JOB)],
    "failed once": [
        row("RoundStarted", "poor", "market.startRound", JOB, 1), row("JobUnfinished", "poor", "market.finish", JOB),
    ],
    "failed twice": [
        row("RoundNotStartable(2)", "poor", "market.startRound", JOB, 2),
        row(f"Credited(requester, {PARAMS.escrow + PARAMS.deposit}) JobDone", "poor", "market.finish", JOB),
    ],
    "merge voided": [
        row(3 * "Unlocked Paid Credited " + "Unlocked Paid Credited(aggregator, 57) Credited", "poor",
            "market.release", JOB, 1),
        row("WindowClosed", "game", "market.onOpen", claim(0, 1), body(0, 1)),
        row("", "poor", "market.live", claim(0, 1)),
        row("", "poor", "market.live", claim(0)),
    ],
    "seat voided": [
        row("Unlocked Paid Credited(worker-0, 101) Unlocked Unlocked Credited", "poor", "market.release", JOB, 1),
    ],
    "liar voided": [
        row(f"{2 * 'Unlocked Paid Credited '}Credited({BURN}, 101)", "poor", "market.release", JOB, 1),
    ],
    "failure voided": [
        row(f"Unlocked Unlocked Unlocked Paid Credited(worker-2, 101) Credited({BURN}, 202)", "poor", "market.release",
            JOB, 1),
        row("", "poor", "market.job", JOB),
    ],
    "silence voided": [
        row(f"{2 * 'Unlocked Paid Credited '}Unlocked Credited({BURN}, 0)", "poor", "market.release", JOB, 1),
    ],
    "late reveal voided": [
        row(f"{3 * 'Unlocked Paid Credited '}Credited({BURN}, 0)", "poor", "market.release", JOB, 1),
    ],
    "nobody named": [row("Frozen RoundFailed", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2))],
    # witnesses
    "beacon fixed": [
        row("TooEarly", "poor", "witnesses.draw", JOB, 0),
        row("TooEarly", "witness", "witnesses.retire", JOB),
        row("TooEarly", "verifier", "witnesses.enrol", JOB, OTHER),
        row("WindowClosed", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
    ],
    "beacon forgotten": [
        row("AuditSkipped", "poor", "witnesses.draw", JOB, 0),
        row("AuditSkipped Enrolled Locked", "verifier", "witnesses.enrol", JOB, OTHER),
        row("AuditSkipped Retired Unlocked", "witness", "witnesses.retire", JOB),
    ],
    "drawn": [
        row("AlreadyDone", "poor", "witnesses.draw", JOB, 0),
        row("AlreadyDone", "witnesses", "market.onDrawn", JOB, 0, 0),
        row("Attested", "poor", "market.attest", JOB, 0, receipts(64, by="witness")),
        row("NotSlotOwner(65)", "poor", "market.attest", JOB, 0, receipts(65, by="witness")),
        row("SignatureInvalid(witness)", "poor", "market.attest", JOB, 0, receipts(64, by="verifier")),
        row("VerdictCommitted CommitsEnded", "witness", "witnesses.commit", audit, 0, OTHER),
        row("NotWitness(verifier)", "verifier", "witnesses.commit", audit, 0, OTHER),
        row("NotWitness(witness)", "witness", "witnesses.commit", audit, 1, OTHER),
        row("AlreadyDone", "witness", "witnesses.reveal", audit, 0, word),
        row("NotWitness(verifier)", "verifier", "witnesses.reveal", audit, 0, word),
        row("DutyOpen", "poor", "witnesses.settle", audit, 0),
        row("AlreadyDone", "poor", "witnesses.settle", audit, 1),
        row("WindowClosed", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
        row("Retired", "witness", "witnesses.retire", JOB),
        row("AlreadyDone", "witness", "witnesses.enrol", JOB, OTHER),
        row("", "witnesses", "market.onWitnessed", JOB, ZERO),
        row("Credited(witness, 11)", "witnesses", "market.onWitnessed", JOB, "witness"),
    ],
    "silent witness": [
        row("WindowClosed", "witness", "witnesses.commit", audit, 0, OTHER),
        row("Retired Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", audit, 0),
        row("TracePublished", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
    ],
    "word committed": [
        row("AlreadyDone", "witness", "witnesses.commit", audit, 0, OTHER),
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, word),
        row("NotWitness(verifier)", "verifier", "witnesses.reveal", audit, 0, word),
        row("CommitmentMismatch", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, state=StateRoot(OTHER))),
        row("CommitmentMismatch", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, salt=OTHER)),
        row("CommitmentMismatch", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, preimage=OTHER)),
        row("CommitmentMismatch", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, body=OTHER_BODY)),
        row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, proof=(OTHER,))),
        row("DutyOpen", "poor", "witnesses.settle", audit, 0),
        row("TracePublished", "worker-0", "witnesses.publish", JOB, 0, 0, "list"),
    ],
    "wide word committed": [
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, word),
        row("CommitmentMismatch", "witness", "witnesses.reveal", audit, 0, next_leaf),
        *[
            row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, changed)
            for changed in (
                with_leaf(code=ENCODE), with_leaf(leaf_proof=()), with_leaf(entry_proof=()),
                with_leaf(entry_proof=(OTHER, OTHER, OTHER)),
            )
        ],
    ],
    "leaf of another state": [row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, elsewhere)],
    "leaf of another place": [row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, next_leaf)],
    "list of roots alone": [
        row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, with_leaf(digest=CHOSEN)),
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, lambda w: word(
            w, leaf=StateLeaf(CHOSEN), agrees=False)),
    ],
    "list of roots alone, final": [
        row("Retired Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", audit, 0),
    ],
    "looked to the end": [
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, word),
    ],
    "last state named": [row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, last_state)],
    "another preimage": [
        row("PreimageWrong", "witness", "witnesses.reveal", audit, 0, lambda w: word(w,
            preimage=Digest(keccak(b"chosen")))),
    ],
    "differing word": [
        row("ProofInvalid", "witness", "witnesses.reveal", audit, 0, lambda w: word(w,
            state=StateRoot(keccak(b"garbage")))),
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, lambda w: word(w,
            state=StateRoot(keccak(b"garbage")), agrees=False)),
    ],
    "word unrevealed": [
        row("WindowClosed", "witness", "witnesses.reveal", audit, 0, word),
        row("Retired Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", audit, 0),
    ],
    "word revealed": [
        row("AlreadyDone", "witness", "witnesses.reveal", audit, 0, word),
        row("DutyOpen", "poor", "witnesses.settle", audit, 0),
    ],
    "witness slashed": [
        row("Retired Slashed Unlocked DutyClosed", "poor", "witnesses.settle", audit, 0),
    ],
    "convicted without a proof": [row("DutyClosed", "poor", "witnesses.settle", audit, 0)],
    "retired with a duty": [row("DutyClosed Credited(witness, 11) Unlocked", "poor", "witnesses.settle", audit, 0)],
    "failed with a word": [row("DutyOpen", "poor", "witnesses.settle", audit, 0)],
    "failed with a word, final": [
        row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", audit, 0),
    ],
    "many silent": [
        row("Slashed(0x8a49bcad.., witness, 3, 3, 0, 0, 0) Unlocked Locked DutyClosed Unlocked", "poor",
            "witnesses.settle", last_audit, 0),
    ],
    "word on voided work": [row("DutyOpen", "poor", "witnesses.settle", second_audit, 0)],
    "word on voided work, its game over": [
        row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", second_audit, 0),
    ],
    "one revealed for a crowd": [
        row("DutyDrawn DutyDrawn AuditDrawn", "poor", "witnesses.draw", lambda w: w.job, 0),
    ],
    "fees due, beacon fixed": [
        row("DutyClosed", "poor", "witnesses.settle", lambda w: ids.audit_id(w.job, 1, 0), 0),
    ],
    "fees due, beacon there": [
        row("DutyDrawn AuditDrawn", "poor", "witnesses.draw", job_of(DUO, 7), 1),
        row("DutyClosed", "poor", "witnesses.settle", lambda w: ids.audit_id(w.job, 1, 0), 0),
    ],
    "silent, next beacon fixed": [row("TooEarly", "poor", "witnesses.settle", audit, 0)],
    "silent, next beacon there": [
        row("DutyDrawn AuditDrawn Retired Slashed Unlocked Locked DutyClosed", "poor", "witnesses.settle", audit, 0),
    ],
    "fees given up": [row("DutyDrawn AuditDrawn", "poor", "witnesses.draw", job_of(DUO, 7), 1)],
    "second silent": [row("DutyOpen", "poor", "witnesses.settle", second_audit, 0)],
    "second silent, merging": [
        row("Retired Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", second_audit, 0),
    ],
    "its carry asked for": [row("DutyOpen", "poor", "witnesses.settle", second_audit, 0)],
    "left out for its carry": [row("DutyClosed", "poor", "witnesses.settle", second_audit, 0)],
    "asked for, convicted": [row("Settled Unlocked", "poor", "demands.settle", asked_for)],
    "asked for, failed": [
        row("Settled Convicted Credited Credited Slashed Unlocked", "poor", "demands.settle", asked_for),
        row("DutyClosed", "poor", "witnesses.settle", second_audit, 0),
    ],
    "asked for, failed, settled": [row("DutyClosed", "poor", "witnesses.settle", second_audit, 0)],
    "looked at, carry fallen": [row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", second_audit, 0)],
    "differed from what stands": [
        row("Retired Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", audit, 0),
    ],
    "differed from what fell": [row("DutyOpen", "poor", "witnesses.settle", audit, 0)],
    "differed, final": [row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", audit, 0)],
    **{
        scene: [row("DutyOpen", "poor", "witnesses.settle", audit, 0)]
        for scene in ("failed with a differing word", "failed, differed from what fell")
    },
    "failed, differed, final": [row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", audit, 0)],
    "drawn for a void job": [row("DutyClosed", "poor", "witnesses.settle", audit, 0)],
    "three enrolled": [row("Retired Unlocked", "witness", "witnesses.retire", JOB)],
    "first retired": [
        row("", "poor", "witnesses.accounts", JOB),
        row("", "poor", "witnesses.witness", JOB, "mallory"),
        row("", "poor", "witnesses.witness", JOB, "witness"),
        row("Retired Unlocked", "mallory", "witnesses.retire", JOB),
        row("NotWitness(witness)", "witness", "witnesses.retire", JOB),
    ],
    "worker enrolled": [row("AuditDrawn", "poor", "witnesses.draw", JOB, 0)],
    "one enrolled for two": [row("DutyDrawn AuditDrawn", "poor", "witnesses.draw", lambda w: w.job, 0)],
    "two enrolled for two": [row("DutyDrawn DutyDrawn AuditDrawn", "poor", "witnesses.draw", lambda w: w.job, 0)],
    "one word of two": [
        row("TooEarly", "verifier", "witnesses.reveal", audit, 0, word),
        row("VerdictCommitted CommitsEnded", "witness", "witnesses.commit", audit, 1, OTHER),
    ],
    "second word first": [
        row("VerdictRevealed", "witness", "witnesses.reveal", audit, 0, word),
        row("DutyOpen", "poor", "witnesses.settle", audit, 0),
    ],
    "another preimage behind": [
        row("PreimageWrong", "witness", "witnesses.reveal", audit, 0, lambda w: word(w, preimage=CHOSEN)),
    ],
    "two silent": [
        row("Slashed Unlocked Locked DutyClosed Unlocked", "poor", "witnesses.settle", second_audit, 0),
        row("AlreadyDone", "poor", "witnesses.settle", audit, 0),
    ],
    "slashed with another": [row("DutyClosed", "poor", "witnesses.settle", second_audit, 0)],
    "witness to be paid": [
        row("DutyClosed Credited(witness, 11)", "poor", "witnesses.settle", audit, 0),
    ],
    # the merge
    "freezing": [
        row("Frozen", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
        row("CommitmentMismatch", "poor", "market.freeze", JOB, 0, []),
    ],
    "merging": [
        row("Merged Locked", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("NotYourTurn(aggregator)", "worker-0", "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("CidTooLong(129)", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, LONG, 0),
        row("WrongPhase", "aggregator", "market.merge", NO_JOB, 0, OTHER, OTHER, "", 0),
        row("StakeTooLow", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "", 60_000),
        row("Merged Locked", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, LONG[:-1], 2),
        row("RoundNotStartable(1)", "poor", "market.startRound", JOB, 1),
        row("WrongPhase", "poor", "market.finalize", JOB, 0),
        row("WrongPhase", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
    ],
    "owners merge": [
        row("NotYourTurn", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("Merged Locked", merger, "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("NotYourTurn", "mallory", "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
    ],
    "nobody merges": [
        row("RoundFailed", "poor", "market.finalize", JOB, 0),
        row("NotYourTurn(0x0000000000000000000000000000000000000000)", "aggregator", "market.merge", JOB, 0, OTHER,
            OTHER, "checkpoint", 0),
    ],
    "merged": [
        row("NotBacked(0)", "poor", "market.startRound", JOB, 1),
        row("Backed Locked", "aggregator", "market.back", JOB, 0, 1),
        row("NotYourTurn(aggregator)", "worker-0", "market.back", JOB, 0, 1),
        row("StakeTooLow", "aggregator", "market.back", JOB, 0, 60_000),
        row("TooEarly", "poor", "market.finalize", JOB, 0),
        row("WrongPhase", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "", 0),
        row("WrongPhase", "poor", "market.release", JOB, 0),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row("", "game", "market.onOpen", claim(MERGE_SLOT), body(MERGE_SLOT)),
        *(row("", "poor", "market.factsOf", claim(slot), t, []) for slot, t in ((2, 1), (2, 2), (MERGE_SLOT, 1))),
        row("ProofInvalid", "poor", "market.factsOf", claim(MERGE_SLOT), 2, []),
    ],
    # the merge again
    **{
        scene: [
            row("Unlocked Merged Locked", merger, "market.merge", JOB, 0, *again(), "again", least),
            row("StakeTooLow", merger, "market.merge", JOB, 0, *again(), "again", 60_000),
            row("NotBacked(0)", merger, "market.merge", JOB, 0, *again(), "again", least - 1),
            row("CommitmentMismatch", merger, "market.merge", JOB, 0, OTHER, again()[1], "again", least),
            row("CommitmentMismatch", merger, "market.merge", JOB, 0, again()[0], OTHER, "again", least),
            row("NotYourTurn", "mallory", "market.merge", JOB, 0, *again(), "again", least),
        ]
        for scene, least in (
            ("unbacked", 1), ("unbacked, second turn", 1), ("unbacked by an owner", 1), ("unbacked, defended", 1),
            ("unbacked, next failed", 2), ("lingering, unbacked, no more", 1),
            ("unbacked, half of its window", 1),
        )
    },
    **{
        scene: [row(f"NotYourTurn({ZERO})", "aggregator", "market.merge", JOB, 0, *again(), "again", 1)]
        for scene in (
            "merged again, next failed", "unbacked after a conviction", "unbacked, next of the order convicted",
        )
    },
    **{
        scene: [row("WrongPhase", who, "market.merge", JOB, 0, *again(), "again", 2)
            for who in ("aggregator", "worker-0", "worker-1", "worker-2")]
        for scene in (
            "unbacked, its turn", "unbacked, half of its window over", "unbacked, window over", "unbacked, judged",
            "unbacked, cancelled", "unbacked, void", "backed for one", "unbacked, next under way",
            "unbacked, next failed now", "lingering, unbacked",
        )
    },
    "unbacked, next failed, none to come": [
        row("WrongPhase", who, "market.merge", JOB, 1, *again(1), "again", 2)
        for who in ("aggregator", "worker-0", "worker-1", "worker-2")
    ],
    "short job, unbacked": [
        row("WrongPhase", f"worker-{s}", "market.merge", job_of(SHORT, 2), 0, *again(), "", 1)
        for s in range(3)
    ],
    "unbacked, next under way without a carry": [
        row("WrongPhase", f"worker-{s}", "market.merge", job_of(UNCARRIED, 10), 0, *again(), "", 2) for s in range(3)
    ],
    "merged again in the second turn, fallen": [
        row("Merged Locked", lambda w: f"worker-{views.seed_order(w.params, w.round())[0]}", "market.merge", JOB, 0,
            OTHER, OTHER, "", 0),
    ],
    "two rounds ahead, unbacked": [
        row("WrongPhase", f"worker-{s}", "market.merge", job_of(AHEAD, 4), 1, *again(1), "", 1)
        for s in range(3)
    ],
    **{
        scene: [
            row("WrongPhase", f"worker-{s}", "market.merge", job_of(AHEAD, 4), 1, *again(1), "", 1) for s in range(3)
        ]
        for scene in (
            "one round settled, unbacked", "one round settled, its turn", "one round settled, time over",
            "one round settled late", "one round settled early, half over",
        )
    },
    **{
        scene: [row("Unlocked Merged Locked", lambda w: merger(w, 1), "market.merge", job_of(AHEAD, 4), 1, *again(1),
                    "", 1)]
        for scene in (
            "one round settled, a turn ago", "one round settled, last second", "one round settled early",
        )
    },
    "two rounds settled": [
        row("Unlocked Merged Locked", lambda w: merger(w, 2), "market.merge", lambda w: w.job, 2, *again(2), "", 1),
    ],
    "two rounds settled, its turn": [
        row("WrongPhase", f"worker-{s}", "market.merge", lambda w: w.job, 2, *again(2), "", 1) for s in range(3)
    ],
    "merged again": [
        row("RoundStarted", "poor", "market.startRound", JOB, 1),
        row("NotYourTurn", "aggregator", "market.back", JOB, 0, 1),
        row("Backed Locked", lambda w: NAMES[w.state.claims[w.claim(MERGE_SLOT)].worker], "market.back", JOB, 0, 1),
        *(row("WrongPhase", f"worker-{s}", "market.merge", JOB, 0, *again(), "", 2) for s in range(3)),
        row("WindowClosed", "game", "market.onOpen", replaced, body(MERGE_SLOT)),
        row("ClaimClosed", "game", "market.onConvicted", replaced, 1, [ACCOUNTS["verifier"]], []),
        row("", "game", "market.onOpen", claim(MERGE_SLOT), body(MERGE_SLOT)),
        row("TooEarly", "poor", "market.finalize", JOB, 0),
    ],
    "merged again, first's window over": [
        row("TooEarly", "poor", "market.finalize", JOB, 0),
        row("", "game", "market.onOpen", claim(MERGE_SLOT), body(MERGE_SLOT)),
    ],
    "period merged, first again": [row("TooEarly", "poor", "market.finalize", JOB, 0)],
    "merged again, over": [row(paid(3), "poor", "market.finalize", JOB, 0)],
    "merged again, second round": [
        row("Convicted RoundVoid Credited Credited Slashed", "game", "market.onConvicted", claim(MERGE_SLOT), 1,
            [ACCOUNTS["verifier"]], []),
    ],
    "merged again, carrying": [
        row("Revealed Carried", "worker-0", "market.reveal", JOB, 1, 0, opened(0, 1, carries=True)),
    ],
    "last second": [
        row("TooEarly", "poor", "market.finalize", JOB, 0),
        row("", "game", "market.onOpen", claim(MERGE_SLOT), body(MERGE_SLOT)),
        row("", "poor", "market.windowOpen", claim(MERGE_SLOT)),
    ],
    "window over": [
        row("WindowClosed", "game", "market.onOpen", claim(MERGE_SLOT), body(MERGE_SLOT)),
        row("", "poor", "market.windowOpen", claim(MERGE_SLOT)),
        row("", "poor", "market.windowOpen", claim(0)),
        row("RoundFinal " + 3 * "Unlocked Paid Credited " + "Unlocked Paid Credited(aggregator, 57)", "poor",
            "market.finalize", JOB, 0),
    ],
    "under game": [
        row("", "game", "market.onRejected", claim(0)),
        row("Convicted Credited(verifier, 303) Credited(requester, 202) Slashed", "game", "market.onConvicted",
            claim(0), 1, [ACCOUNTS["verifier"]], []),
    ],
    "game outlives": [row("GamesOpen(1)", "poor", "market.finalize", JOB, 0)],
    "final": [
        row("ClaimClosed", "poor", "market.factsOf", claim(0), 1, []),
        row("ClaimClosed", "game", "market.onRejected", claim(0)),
        row("WrongPhase", "poor", "market.finalize", JOB, 0),
        row("RoundStarted", "poor", "market.startRound", JOB, 1),
        row("ClaimClosed", "game", "market.onConvicted", claim(0), 1, [ACCOUNTS["verifier"]], []),
        row("WrongPhase", "aggregator", "market.back", JOB, 0, 1),
        row("WindowClosed", "game", "market.onOpen", claim(0), OTHER_BODY),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row(f"JobCancelled Credited(requester, {PARAMS.escrow - PARAMS.round_pay + PARAMS.role.witness_fee})",
            "requester", "market.cancel", JOB),
    ],
    "backed": [
        row("RoundStarted", "poor", "market.startRound", JOB, 1),
    ],
    "second round": [
        row("RoundNotStartable(2)", "poor", "market.startRound", JOB, 2),
        row("WrongPhase", "poor", "market.finalize", JOB, 1),
        row("WrongPhase", "poor", "market.finalize", JOB, 0),
        row(f"Convicted RoundVoid Credited(verifier, {MERGE_LOCK * 30 // 100}) "
            f"Credited(requester, {MERGE_LOCK * 20 // 100}) Slashed",
            "game", "market.onConvicted", claim(MERGE_SLOT), 1, [ACCOUNTS["verifier"]], []),
    ],
    "rewound": [
        row("Merged Locked", merger, "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("NotYourTurn", "aggregator", "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("Unlocked Unlocked Unlocked Credited", "poor", "market.release", JOB, 1),
        row("WrongPhase", "poor", "market.release", JOB, 0),
        row("ClaimClosed", "game", "market.onConvicted", claim(MERGE_SLOT), 1, [ACCOUNTS["verifier"]], []),
        row("RoundNotStartable(1)", "poor", "market.startRound", JOB, 1),
    ],
    "two liars": [
        row("Merged Locked", merger, "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0),
        row("ClaimClosed", "poor", "market.factsOf",
            lambda w: ids.claim_id(w.job, 0, w.state.jobs[w.job].attempt - 1, MERGE_SLOT), 1, []),
        row("", "poor", "market.factsOf", claim(0), 1, []),
    ],
    **{
        scene: [row("", "poor", "market.mergerOf", JOB, 1),
                row("NotYourTurn", "aggregator", "market.merge", JOB, 1, OTHER, OTHER, "", 0)]
        for scene in ("liars passed over", "first turn over", "second turn over")
    },
    "turns over": [row("RoundFailed", "poor", "market.finalize", JOB, 1)],
    "released": [row("", "poor", "market.release", JOB, 1)],
    "lingering": [
        row("GamesOpen(1)", "poor", "market.release", JOB, 1),
        row("GamesOpen(1)", "poor", "market.startRound", JOB, 1),
    ],
    "lingering, one merges": [row("GamesOpen(1)", "poor", "market.startRound", JOB, 1)],
    "lingering no more": [
        row(3 * "Unlocked Paid Credited " + "Credited RoundStarted", "poor", "market.startRound", JOB, 1),
    ],
    "lingering, nobody merges": [row("GamesOpen(1)", "poor", "market.finalize", JOB, 0)],
    **{
        scene: [
            row(f"NoCarry({slot})", f"worker-{slot}", "market.reveal", JOB, r, slot, opened(slot, r, carries=True)),
            *(row("Revealed Carried", f"worker-{s}", "market.reveal", JOB, r, s, opened(s, r, carries=True))
              for s in others),
        ]
        for scene, r, slot, others in (
            ("left out, second", 1, 2, (0, 1)), ("absent, second", 1, 2, (0, 1)), ("convicted, second", 1, 0, (1,)),
            ("convicted before the reveal", 1, 0, (1,)), ("failed, second", 1, 0, ()), ("third round", 2, 0, ()),
            ("failed under a game, second", 1, 0, ()), ("final, second", 1, 0, ()),
        )
    },
    "from zero": [row("", "poor", "market.factsOf", claim(0, 1), 1, words(0))],
    "from zero, base convicted": [
        row(paid(3), "poor", "market.finalize", JOB, 1),
    ],
    "later convicted": [
        row("", "poor", "market.factsOf", claim(0, 1), 1, words(0)),
        row("WrongPhase", "poor", "market.finalize", JOB, 0),
    ],
    "carry fallen": [
        row("RoundFinal Unlocked " + 2 * "Unlocked Paid Credited " + "Unlocked Paid Credited", "poor",
            "market.finalize", JOB, 1),
    ],
    "last second of a period": [
        row("TooEarly", "poor", "market.finalize", JOB, 0),
        row("", "poor", "market.windowOpen", claim(0)),
        row("", "poor", "market.windowOpen", claim(MERGE_SLOT)),
    ],
    "period over": [
        row(paid(3), "poor", "market.finalize", JOB, 0),
        row("WrongPhase", "poor", "market.finalize", JOB, 1),
        row("WindowClosed", "game", "market.onOpen", claim(0), body(0)),
        row("WindowClosed", "game", "market.onOpen", claim(1, 1), body(1, 1)),
    ],
    "first of a period over": [
        row("WindowClosed", "game", "market.onOpen", claim(0), body(0)),
        row(paid(3), "poor", "market.finalize", JOB, 0),
    ],
    "second failed": [
        row("TooEarly", "poor", "market.finalize", JOB, 0), row("", "game", "market.onOpen", claim(0), body(0)),
        row("", "game", "market.onOpen", claim(0, 1), body(0, 1)),
    ],
    "second failed, first's window over": [
        row("TooEarly", "poor", "market.finalize", JOB, 0), row("", "game", "market.onOpen", claim(0), body(0)),
    ],
    "second failed, window over": [
        row(paid(3), "poor", "market.finalize", JOB, 0), row("WrongPhase", "poor", "market.finalize", JOB, 1),
        row("WindowClosed", "game", "market.onOpen", claim(0), body(0)),
    ],
    "next round failed": [
        row(paid(3), "poor", "market.finalize", JOB, 0),
    ],
    "run again": [
        row("", "poor", "market.factsOf", claim(0, 1), 1, words(0)),
        row("ClaimClosed", "poor", "market.factsOf", lambda w: ids.claim_id(JOB, 1, 0, 0), 1, words(0)),
    ],
    "slots swapped": [
        row("NoCarry(0)", "worker-1", "market.reveal", JOB, 1, 0, opened(0, 1, carries=True)),
        row("Revealed Carried", "worker-2", "market.reveal", JOB, 1, 2, opened(2, 1, carries=True)),
    ],
    "second revealing": [
        row("Revealed Carried", "worker-0", "market.reveal", JOB, 1, 0, opened(0, 1, carries=True)),
        row("CommitmentMismatch", "worker-0", "market.reveal", JOB, 1, 0, opened(0, 1)),
    ],
    "carrying": [
        row("CommitmentMismatch", "poor", "market.factsOf", claim(0, 1), 1, [OTHER] * 3),
        row("", "poor", "market.factsOf", claim(0, 1), 1,
            words(0)),
        *(row("CommitmentMismatch", "poor", "market.factsOf", claim(0, 1), 1, wrong)
          for wrong in ([], words(0, upto=2), lambda w: [*words(0)(w), OTHER])),
        row("WrongPhase(0xe259ca29.., 1)", "poor", "market.finalize", JOB, 0),
        row("PayloadDemanded Locked", "verifier", "demands.carryUnavailable", JOB, 1, 0, 0),
        row("StakeTooLow(poor, 153, 0)", "poor", "demands.carryUnavailable", JOB, 1, 0, 0),
    ],
    "carry demanded": [
        row("TooEarly", "poor", "demands.settle", lambda w: demand(w, 0, 1)),
        row("Settled BondTaken Credited(worker-0, 0) Unlocked", "poor", "demands.answer", lambda w: demand(w, 0, 1),
            body(0), ENCODE, lambda w: shown(w, demand(w, 0, 1), carry=True)),
        row("CommitmentMismatch", "poor", "demands.answer", lambda w: demand(w, 0, 1), OTHER_BODY, ENCODE, []),
    ],
    "carry withheld": [
        row("Settled Convicted Credited(verifier, 303) Credited(requester, 202) Slashed Unlocked", "poor",
            "demands.settle", lambda w: demand(w, 0, 1)),
        row("DemandClosed", "poor", "demands.answer", lambda w: demand(w, 0, 1), body(0), ENCODE, []),
    ],
    "void": [
        row("WrongJobStatus", "requester", "market.cancel", JOB),
        row("WrongJobStatus", "poor", "market.startRound", JOB, 2),
        row("WrongJobStatus", "poor", "market.finalize", JOB, 0),
        row("WrongJobStatus", "validator", "market.onInvalid", JOB, "verifier"),
        row("WrongJobStatus", "verifier", "demands.demandRow", JOB, 0),
        row("WrongPhase", "poor", "market.release", JOB, 1),
        row("JobUnfinished", "poor", "market.finish", JOB),
        row("WindowClosed", "game", "market.onOpen", claim(0), OTHER_BODY),
        row("RoundVoid " + 4 * "Unlocked Paid Credited ", "poor", "market.release", JOB, 0),
    ],
    "void, first released": [row("RoundVoid Unlocked Unlocked Unlocked", "poor", "market.release", JOB, 1)],
    "void, released": [
        row("Credited Credited Credited JobDone", "poor", "market.finish", JOB),
        row("WrongPhase", "poor", "market.release", JOB, 2),
    ],
    "void, one left out": [
        row("RoundVoid " + 2 * "Unlocked Paid Credited " + "Unlocked", "poor", "market.release", JOB, 0),
    ],
    "void, one silent": [
        row("RoundVoid " + 2 * "Unlocked Paid Credited " + "Unlocked", "poor", "market.release", JOB, 0),
    ],
    "void in the last second of revealing": [
        row("RoundVoid" + 3 * " Unlocked Paid Credited", "poor", "market.release", JOB, 0),
    ],
    "seats released": [row(_of_void(0), "poor", "market.finish", JOB)],
    "void while revealing": [
        row("WrongPhase", "worker-2", "market.reveal", JOB, 0, 2, opened(2)),
    ],
    "void while training": [
        row("WrongPhase", "worker-2", "market.commit", JOB, 0, 2, OTHER),
        row("RoundVoid Unlocked Paid Credited Unlocked Paid Credited Unlocked", "poor", "market.release", JOB, 0),
    ],
    "seats and work released": [row(_of_void(2), "poor", "market.finish", JOB)],
    "all in flight, cancelled": [row("JobUnfinished", "poor", "market.finish", JOB)],
    "short job": [
        row("WrongJobStatus", "witness", "witnesses.enrol", job_of(SHORT, 2), OTHER),
    ],
    "two rounds ahead": [row("RoundNotStartable(2)", "poor", "market.startRound", job_of(AHEAD, 4), 2)],
    "one round settled": [row("RoundStarted", "poor", "market.startRound", job_of(AHEAD, 4), 2)],
    "second joining": [
        row("SlotTaken(0)", "worker-1", "market.join", JOB, 1, 0),
        row("Joined Locked", "worker-0", "market.join", JOB, 1, 0),
    ],
    "second joining, half over": [row("Joined Locked", "worker-1", "market.join", JOB, 1, 0)],
    "second joining, one convicted": [
        row("Joined Locked", "worker-1", "market.join", JOB, 1, 0),
        row("SlotTaken(1)", "worker-0", "market.join", JOB, 1, 1),
    ],
    "second joining, one left out": [
        row("Joined Locked", "worker-1", "market.join", JOB, 1, 2),
        row("SlotTaken(0)", "worker-1", "market.join", JOB, 1, 0),
    ],
    "second joining, first final": [row("Joined Locked", "worker-1", "market.join", JOB, 1, 0)],
    "third joining": [row("Joined Locked", "worker-1", "market.join", JOB, 2, 0)],
    "all spoken": [
        row("WrongPhase", "poor", "market.freeze", job_of(SHORT, 2), 0, bodies(0, 1, 2)),
        row("PayloadDemanded Locked", "verifier", "demands.unavailable", job_of(SHORT, 2), 0, 0, 0),
    ],
    "all spoken, time of demands over": [
        row("Frozen", "poor", "market.freeze", job_of(SHORT, 2), 0, bodies(0, 1, 2)),
        row("WrongPhase", "verifier", "demands.unavailable", job_of(SHORT, 2), 0, 0, 0),
    ],
    "alone, spoken": [row("WrongPhase", "poor", "market.freeze", job_of(ALONE, 2), 0, bodies(0))],
    "alone, time over": [row("Frozen", "poor", "market.freeze", job_of(ALONE, 2), 0, bodies(0))],
    "alone, aggregator late": [
        row("Merged Locked", "worker-0", "market.merge", job_of(ALONE, 2), 0, OTHER, OTHER, "checkpoint", 0),
    ],
    "alone, over": [
        row("RoundFinal Unlocked Paid Credited(worker-0, 101) Unlocked Paid Credited(aggregator, 57)", "poor",
            "market.finalize", job_of(ALONE, 2), 0),
    ],
    "alone, convicted": [row("Frozen RoundFailed", "poor", "market.freeze", job_of(ALONE, 2), 0, [])],
    "owners' job, merging": [
        row("Merged Locked", merger, "market.merge", job_of(OWNERS, 2), 0, OTHER, OTHER, "checkpoint", 0),
        row("NotYourTurn", "aggregator", "market.merge", job_of(OWNERS, 2), 0, OTHER, OTHER, "checkpoint", 0),
    ],
    "first of the order convicted": [
        row("NotYourTurn(0x0000000000000000000000000000000000000000)", "aggregator", "market.merge", JOB, 0, OTHER,
            OTHER, "checkpoint", 0),
    ],
    "its turn over": [row("Merged Locked", merger, "market.merge", JOB, 0, OTHER, OTHER, "checkpoint", 0)],
    "short job failed": [
        row("RoundNotStartable(1)", "poor", "market.startRound", job_of(SHORT, 2), 1),
        row(f"Credited(requester, {SHORT.escrow + SHORT.deposit}) JobDone", "poor", "market.finish", job_of(SHORT, 2)),
    ],
    "distinct job": [row("", "poor", "market.params", job_of(DISTINCT, 2))],
    "short job's window over": [
        row("WindowClosed", "game", "market.onOpen", claim(0), body(0)),
        row("RoundFinal " + 3 * "Unlocked Paid Credited " + "Unlocked Paid Credited(aggregator, 57)", "poor",
            "market.finalize", job_of(SHORT, 2), 0),
    ],
    "short job over": [
        row("RoundNotStartable(1)", "poor", "market.startRound", job_of(SHORT, 2), 1),
        row(f"Credited(requester, {SHORT.deposit}) JobDone", "poor", "market.finish", job_of(SHORT, 2)),
    ],
    # demands
    "demanded": [
        row("TooEarly", "poor", "demands.missing", claim(0)),
        row("TooEarly", "poor", "demands.answer", demand, body(0), ENCODE, []),
        row("TooEarly", "poor", "demands.seedOf", demand),
        row("TooEarly", "poor", "demands.keepSeed", demand),
        row("TooEarly", "poor", "demands.settle", demand),
    ],
    "seed there": [
        row("SeedKept", "poor", "demands.keepSeed", demand),
        row("Settled BondTaken Credited(worker-0, 0) Unlocked", "poor", "demands.answer", demand, body(0), ENCODE,
            lambda w: shown(w, demand(w))),
        row("CommitmentMismatch", "poor", "demands.answer", demand, OTHER_BODY, ENCODE, lambda w: shown(w, demand(w))),
        row("ProofInvalid", "poor", "demands.answer", demand, body(0), replace(ENCODE, ops_root=OTHER), lambda w:
            shown(w, demand(w))),
        row("AnswerWrong", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: shown(w, demand(w))[:-1]),
        row("ProofInvalid", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: [replace(s,
            leaf_proof=(OTHER,)) for s in shown(w, demand(w))]),
        row("ProofInvalid", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: [replace(s,
            entry_proof=(OTHER,)) for s in shown(w, demand(w))]),
        row("AnswerWrong", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: [replace(s, leaf=bytes(8)) for s
            in shown(w, demand(w))]),
    ],
    "priced, demanded": [
        row("Settled BondTaken Credited(worker-0, 42) Unlocked", "poor", "demands.answer", demand, body(0), ENCODE,
            lambda w: shown(w, demand(w))),
    ],
    "seed nearly forgotten": [row("SeedKept", "poor", "demands.keepSeed", demand)],
    "seed just forgotten": [row("DemandClosed", "poor", "demands.keepSeed", demand)],
    "seed kept": [
        row("AlreadyDone", "poor", "demands.keepSeed", demand),
        row("", "poor", "demands.keptSeed", demand),
    ],
    "seed kept, beacon forgotten": [
        row("", "poor", "demands.seedOf", demand),
        row("Settled BondTaken Credited(worker-0, 0) Unlocked", "poor", "demands.answer", demand, body(0), ENCODE,
            lambda w: shown(w, demand(w))),
    ],
    "demand's beacon forgotten": [
        row("DemandClosed", "poor", "demands.keepSeed", demand),
        row("", "poor", "demands.seedOf", demand),
        row("Settled BondTaken Credited(worker-0, 0) Unlocked", "poor", "demands.answer", demand, body(0), ENCODE,
            lambda w: shown(w, demand(w))),
    ],
    "asked again": [row("Settled Unlocked", "poor", "demands.settle", lambda w: payload_demand_id(w.claim(0), 1))],
    "asked again, settled": [
        row("", "poor", "demands.missing", claim(0)),
        row("Frozen", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
    ],
    "last second of a demand": [
        row("TooEarly", "poor", "demands.settle", demand),
        row("Settled BondTaken Credited(worker-0, 0) Unlocked", "poor", "demands.answer", demand, body(0), ENCODE,
            lambda w: shown(w, demand(w))),
    ],
    "answer late": [
        row("", "poor", "demands.missing", claim(0)),
        row("DemandClosed", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: shown(w, demand(w))),
        row("Settled Unlocked", "poor", "demands.settle", demand),
    ],
    "answered": [
        row("DemandClosed", "poor", "demands.keepSeed", demand),
        row("DemandClosed", "poor", "demands.answer", demand, body(0), ENCODE, lambda w: shown(w, demand(w))),
        row("DemandClosed", "poor", "demands.settle", demand),
    ],
    "two payloads missing": [
        row("Frozen RoundFailed", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2)),
    ],
    "one missing, merged": [
        row(f"RoundFinal Slashed(0x4617d54d.., worker-0, 101, 101, 0, 0, 0) Unlocked {3 * 'Unlocked Paid Credited '}",
            "poor", "market.finalize", JOB, 0),
    ],
    "one left out, window over": [
        row(f"RoundFinal {2 * 'Unlocked Paid Credited '}Unlocked Unlocked Paid Credited(aggregator, 57) "
            f"Credited({BURN}, 101)", "poor", "market.finalize", JOB, 0),
    ],
    "one left out, final": [row("", "poor", "market.job", JOB)],
    "failed under game": [
        row("", "game", "market.onRejected", claim(0)), row("", "game", "market.onOpen", claim(0), body(0)),
        row("", "poor", "market.windowOpen", claim(1)), row("WrongPhase", "poor", "market.release", JOB, 0),
        row("RoundStarted", "poor", "market.startRound", JOB, 1),
    ],
    "failed, window over": [
        row("RoundFinal Slashed Unlocked Slashed Unlocked Unlocked Paid Credited(worker-2, 101)", "poor",
            "market.finalize", JOB, 0),
        row("WindowClosed", "game", "market.onOpen", claim(0), body(0)),
        row("WindowClosed", "game", "market.onOpen", claim(2), body(2)),
    ],
    "failed, game outlives": [row("GamesOpen(1)", "poor", "market.finalize", JOB, 0)],
    "failed, one convicted": [
        row("RoundFinal Slashed Unlocked Unlocked Paid Credited(worker-2, 101)", "poor", "market.finalize", JOB, 0),
    ],
    "failed and final": [
        row("RoundStarted", "poor", "market.startRound", JOB, 1), row("WrongPhase", "poor", "market.finalize", JOB, 0),
        row("ClaimClosed", "game", "market.onConvicted", claim(2), 1, [ACCOUNTS["verifier"]], []),
    ],
    "unnamed, one silent": [
        row("Slashed Unlocked Frozen RoundFailed", "poor", "market.freeze", JOB, 0, bodies(0, 1)),
    ],
    "nobody merged, base": [row("", "poor", "market.round", JOB, 1), row("", "poor", "market.round", JOB, 0)],
    "nobody merged, last second": [
        row("TooEarly", "poor", "market.finalize", JOB, 0), row("", "game", "market.onOpen", claim(0), body(0)),
        row("JobUnfinished", "poor", "market.finish", JOB),
    ],
    "nobody merged, window over": [
        row("RoundFinal " + 3 * "Unlocked Paid Credited ", "poor", "market.finalize", JOB, 0),
    ],
    "failed, one game left": [
        row("", "game", "market.onRejected", claim(0)),
        row("Convicted Credited(verifier, 303) Credited(requester, 202) Slashed", "game", "market.onConvicted",
            claim(0), 1, [ACCOUNTS["verifier"]], []),
    ],
    "payload missing": [
        row("DemandClosed", "poor", "demands.settle", demand),
        row("", "poor", "demands.missing", claim(0)),
    ],
    "frozen too early": [row("TooEarly", "poor", "market.freeze", JOB, 0, bodies(0, 1, 2))],
    "row demanded": [
        row("DemandClosed", "poor", "demands.keepSeed", row_demand_id(JOB, 0)),
        row("AlreadyDone", "verifier", "demands.demandRow", JOB, 0),
        row("TooEarly", "poor", "demands.voidForRow", JOB, 0),
        row("NotCommitted", "worker-1", "demands.answerRow", *ANSWER_ROW),
    ],
    "row committed": [
        row("RowPosted Settled BondTaken Credited(worker-0, 91)", "worker-0", "demands.answerRow", *ANSWER_ROW),
        row("NotCommitted", "worker-1", "demands.answerRow", *ANSWER_ROW),
        *(
            row(error, "worker-0", "demands.answerRow", *WRONG_ANSWERS[what])
            for error, what in (
                ("ProofInvalid", "of another tree"),
                ("AnswerWrong", "of a later part"),
                ("AnswerWrong", "of two leaves"),
                ("AlreadyDone", "of nothing"),
                ("ProofInvalid", "of another leaf"),
                ("AnswerWrong", "of a short leaf"),
            )
        ),
    ],
    "row late": [
        row("DemandClosed", "worker-0", "demands.answerRow", *ANSWER_ROW),
        row("DemandClosed", "poor", "demands.settle", row_demand_id(JOB, 0)),
        row("Settled JobVoid Unlocked", "poor", "demands.voidForRow", JOB, 0),
    ],
    "row answered": [
        row("DemandClosed", "worker-0", "demands.answerRow", *ANSWER_ROW),
        row("DemandClosed", "poor", "demands.voidForRow", JOB, 0),
        row("AlreadyDone", "verifier", "demands.demandRow", JOB, 0),
    ],
    "row of a job that is over": [row("Settled Unlocked", "poor", "demands.voidForRow", JOB, 0)],
    # evidence
    "evidence committed": [row("NotCommitted", "poor", "validator.proveInvalid", job_of(BROKEN, 2), EVIDENCE)],
    "evidence of nothing": [
        row("RuleHolds", *BY, job_of(SHORT, 2), HOLDING),
        row("EvidenceWrong", *BY, job_of(SHORT, 2), NOTHING),
        row("EvidenceWrong", *BY, JOB, NOTHING),
        row("ProofInvalid", *BY, JOB, HOLDING),
    ],
    "evidence copied": [
        row("", "poor", "validator.committedAt",
            lambda w: committed(w, "verifier", "validator.proveInvalid", w.job, EVIDENCE)),
        row("Invalid JobVoid", "verifier", "validator.proveInvalid", job_of(BROKEN, 2), EVIDENCE),
        row("NotCommitted", "poor", "validator.proveInvalid", job_of(BROKEN, 2), EVIDENCE),
    ],
    "evidence ready": [
        row("Invalid JobVoid", "verifier", "validator.proveInvalid", job_of(BROKEN, 2), EVIDENCE),
        row("NotCommitted", "poor", "validator.proveInvalid", job_of(BROKEN, 2), EVIDENCE),
    ],
}

# fmt: on
TABLE = {
    scene: [*RULES.get(scene, ()), *GAMES.get(scene, ()), *(out_of_phase(PHASES[scene]) if scene in PHASES else ())]
    for scene in dict.fromkeys((*RULES, *GAMES, *PHASES))
}
"""All rows, by the scene in which they are tried."""
