"""What the demo's chain says in the end: games, parties, money; everything from logs and receipts.

Amounts are decimal strings of the token's smallest unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.chain import games
from lockstep.execution.jobs import Job
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict, Wrong
from lockstep.protocol.jobs import NOTHING, Claim
from lockstep.protocol.market.types import Outcome
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import Address, ClaimId, GameId, Wei

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts, Vault
    from lockstep.chain.events import Event

VERDICTS = {Verdict.FRAUD: "fraud", Verdict.TIMEOUT: "timeout", Verdict.REJECTED: "rejected", Verdict.VOID: "void"}


@dataclass(frozen=True)
class Participant:
    """Somebody who takes part."""

    role: str
    address: Address
    cheat: str | None = None


def deposited(events: Sequence[Event], account: Address) -> Wei:
    """What an account staked."""
    return Wei(sum(e.args["amount"] for e in events if e.name == "Deposited" and e.args["account"] == account))


def stake_of(vault: Vault, events: Sequence[Event], account: Address) -> Wei:
    """What is left of an account's stake: free, locked, unbonding, or paid out again."""
    paid_out = sum(e.args["amount"] for e in events if e.name == "Unbonded" and e.args["account"] == account)
    return Wei(vault.free(account) + vault.unbonding(account)[0] + _locked(events, account) + paid_out)


def _locked(events: Sequence[Event], account: Address) -> int:
    """Stake and bonds under locks that nothing has ended."""
    open_locks: dict[bytes, int] = {}
    for event in events:
        if event.name == "Locked" and event.args["account"] == account:
            open_locks[event.args["key"]] = event.args["amount"]
        elif event.name in ("Unlocked", "Slashed", "BondTaken"):
            open_locks.pop(event.args["key"], None)
    return sum(open_locks.values())


def money(events: Sequence[Event], witness_fee: Wei = NOTHING) -> dict[str, str]:
    """Escrow and slashes, summed over the log; raises nothing: whether they add up is the reader's to check.

    Work that fell with a convicted claim is paid from the slash. A duty that closes after the job is done is paid, or
    its fee goes back to the requester.
    """
    created = [e for e in events if e.name == "JobCreated"]
    done = [e for e in events if e.name == "JobDone"]
    slashed = [e for e in events if e.name == "Slashed"]
    bonds = [e for e in events if e.name == "BondTaken"]
    ended = next((i for i, e in enumerate(events) if e.name == "JobDone"), len(events))
    late = [e for e in events[ended:] if e.name == "DutyClosed" and not _is_fee(e)]
    totals = {
        "escrow_in": sum(e.args["escrow"] for e in created),
        "deposit_in": sum(e.args["deposit"] for e in created),
        "deposit_returned": sum(e.args["returned"] for e in done),
        "paid_out": sum(e.args["amount"] for e in events if e.name == "Paid" or _is_fee(e)),
        "witness_fees": sum(e.args["amount"] for e in events if _is_fee(e)),
        "refunded": sum(e.args["refunded"] for e in done) + len(late) * witness_fee,
        "slashed": sum(e.args["amount"] for e in slashed),
        "burned": sum(e.args["burned"] for e in slashed),
        "to_challenger": sum(e.args["to_challenger"] for e in slashed),
        "to_requester": sum(e.args["to_requester"] for e in slashed),
        "to_work": sum(e.args["owed"] for e in slashed),
        "bonds_lost": sum(e.args["amount"] for e in bonds),
        "bonds_burned": sum(e.args["burned"] for e in bonds),
        "bonds_to_defender": sum(e.args["to_defender"] for e in bonds),
    }
    return {name: str(amount) for name, amount in totals.items()}


def adds_up(totals: Mapping[str, str]) -> bool:
    """To the wei: escrow + slashed for work = paid + refunded, deposit = returned, slashed = burned + challengers +
    requester + work, bonds = burned + defenders."""
    n = {name: int(amount) for name, amount in totals.items()}
    return (
        n["escrow_in"] + n["to_work"] == n["paid_out"] + n["refunded"]
        and n["deposit_in"] == n["deposit_returned"]
        and n["slashed"] == n["burned"] + n["to_challenger"] + n["to_requester"] + n["to_work"]
        and n["bonds_lost"] == n["bonds_burned"] + n["bonds_to_defender"]
    )


def earned(events: Sequence[Event], account: Address) -> Wei:
    """What the job paid an account for slots, merges and looking."""
    paid = sum(e.args["amount"] for e in events if e.name == "Paid" and e.args["account"] == account)
    return Wei(paid + fees(events, account))


def fees(events: Sequence[Event], account: Address) -> Wei:
    """What the job paid an account for its duties as a drawn witness."""
    return Wei(sum(e.args["amount"] for e in events if _is_fee(e) and e.args["account"] == account))


def _is_fee(event: Event) -> bool:
    return event.name == "DutyClosed" and event.args["outcome"] == Outcome.PAID


def received_from_slash(events: Sequence[Event], account: Address, requester: Address) -> Wei:
    """What slashes and lost bonds gave an account."""
    total = 0
    for event in events:
        if event.name == "Slashed":
            if _challenger(events, event.args["key"]) == account:
                total += event.args["to_challenger"]
            if requester == account:
                total += event.args["to_requester"]
        elif event.name == "BondTaken" and _defender(events, event.args["key"]) == account:
            total += event.args["to_defender"]
    return Wei(total)


def _challenger(events: Sequence[Event], claim: bytes) -> Address | None:
    for event in events:
        if event.name == "Convicted" and event.contract == "JobMarket" and event.args["claim"] == claim:
            return Address(event.args["challenger"])
    return None


def _defender(events: Sequence[Event], game: bytes) -> Address | None:
    for event in events:
        if event.name == "Opened" and event.args["game"] == game:
            return Address(event.args["defender"])
    return None


def game_reports(contracts: Contracts, events: Sequence[Event], job: Job) -> list[dict[str, Any]]:
    """Every game of the log: where it ended, what it cost."""
    opened = [e for e in events if e.name == "Opened" and e.contract == "DisputeGame"]
    return [_game_report(contracts, GameId(e.args["game"]), ClaimId(e.args["claim"]), events, job) for e in opened]


def _game_report(
    contracts: Contracts, game: GameId, claim_id: ClaimId, events: Sequence[Event], job: Job
) -> dict[str, Any]:
    claim = contracts.market.claim(claim_id)
    hashes = list(dict.fromkeys(e.transaction for e in events if e.args.get("game") == game))
    receipts = [contracts.game.w3.eth.get_transaction_receipt("0x" + h.hex()) for h in hashes]  # type: ignore[arg-type]
    gas = [int(r["gasUsed"]) for r in receipts]
    log = games.log(contracts.game, game, contracts.addresses.block)
    stored = games.read(contracts.game, game)
    report: dict[str, Any] = {
        "game": game.hex(),
        "claim": claim_id.hex(),
        "round": claim.round,
        "slot": claim.slot,
        "program": None,
        "step": None,
        "op": None,
        "element": None,
        "chunk": None,
        "claimed_bits": None,
        "contract_bits": None,
        "transactions": len(hashes),
        "gas_total": sum(gas),
        "gas_max": max(gas, default=0),
        "verdict": VERDICTS.get(stored.verdict, "open"),
    }
    return report | _place(log, claim, job)


def _place(log: Sequence[moves.GameEvent], claim: Claim, job: Job) -> dict[str, Any]:
    """How far the game came: the transition, and where a proof decided, what it proved."""
    out: dict[str, Any] = {}
    argued = next((e for e in log if isinstance(e, moves.Argued)), None)
    if argued is not None:
        out["step"] = int(argued.t)
        out["program"] = job.programs.name_of(claim.slot, argued.t, job.params.role.inner_steps)
    convicted = next((e for e in log if isinstance(e, moves.Convicted)), None)
    if convicted is None or argued is None:
        return out
    finding = convicted.finding
    program = job.programs.of(claim.slot, argued.t, job.params.role.inner_steps)
    return out | {
        "op": _op(program, finding),
        "element": finding.element if finding.wrong is Wrong.OP else None,
        "chunk": finding.chunk if finding.wrong is Wrong.OP else None,
        "claimed_bits": _bits(finding.claimed_bits, finding.wrong),
        "contract_bits": _bits(finding.contract_bits, finding.wrong),
    }


def _op(program: Program, finding: moves.Finding) -> dict[str, Any]:
    if finding.wrong is not Wrong.OP:
        kind = finding.wrong.name.lower()
        return {"index": finding.position, "kind": kind, "name": f"{kind} {finding.position}"}
    kind = program.ops[finding.position].kind.name.lower()
    return {"index": finding.position, "kind": kind, "name": program.name_of(finding.position)}


def _bits(digest: bytes, wrong: Wrong) -> str:
    return "0x" + (digest[-4:] if wrong is Wrong.OP else digest).hex()
