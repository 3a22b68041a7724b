"""The outcomes of a worker's rounds: pay, or a reason code for every round that did not pay."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.base.durations import moment
from lockstep.base.naming import short
from lockstep.base.settings import Settings
from lockstep.market.ledger import JobLedger, Ledger, RoundLedger, ledger_of
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, Address

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts

MEANINGS = {
    "paid": "accepted and paid",
    "pending": "accepted; paid once the challenge window is over and the rounds before it are final",
    "unmerged": "accepted, and not merged yet",
    "training": "joined, not revealed yet",
    "withheld": "joined, and not claimed: wrong bits were computed, and silence costs the slot's price",
    "not_joined": "this account held no slot of the round",
    "absent": "joined and did not reveal in time: the slot's price was burned",
    "excluded": "half of the others did not have the payload in time: unpaid, the stake is returned",
    "convicted": "a challenger proved the claim wrong: the stake was slashed",
    "missing": "the payload was demanded and nobody posted it: unpaid, the slot's price is burned at the round's end",
    "round_failed": "the round failed before a seed was drawn: the stake is returned",
    "round_void": "an earlier merge was convicted: this round does not count; the stake is returned, without pay",
    "void_paid": "the round does not count, but its work is paid: from the stake that the convicted merge lost, or "
    "from the deposit of the invalid job",
    "job_void": "the job was proven invalid before this claim earned anything: the stake is returned, without pay",
}
"""Reason codes, as people are told."""

_OF_STATUS = {
    ClaimStatus.JOINED: "training",
    ClaimStatus.COMMITTED: "training",
    ClaimStatus.REVEALED: "pending",
    ClaimStatus.ACCEPTED: "pending",
    ClaimStatus.EXCLUDED: "excluded",
    ClaimStatus.MISSING: "missing",
    ClaimStatus.ABSENT: "absent",
    ClaimStatus.CONVICTED: "convicted",
    ClaimStatus.VOID: "round_failed",
}


@dataclass(frozen=True)
class Account:
    """An account as a command reads it: its address and home, the ledger of events, the contracts."""

    address: Address
    ledger: Ledger
    contracts: Contracts
    home: Path


def open_account(settings: Settings) -> Account:
    """Opens the account of a home and reads the ledger up to the latest block; it signs nothing, so it needs no
    password."""

    from lockstep.chain.addresses import Addresses
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.events import EventReader
    from lockstep.chain.keys import KEYSTORE, account_address
    from lockstep.chain.logcache import FILE_NAME, LogCache, users_cache
    from lockstep.chain.rpc import connect

    address = account_address(settings.home_path / KEYSTORE)
    addresses = Addresses.load(settings.deployment)
    w3 = connect(settings.rpc, addresses.chain_id)
    # The worker's own copy if there is one, else the user's: a command that reads makes no files in a home.
    copy = settings.home_path / FILE_NAME
    with closing(LogCache(copy, w3, addresses)) if copy.exists() else users_cache(settings.rpc, w3, addresses) as cache:
        ledger = ledger_of(EventReader(w3, addresses, cache=cache))
    return Account(address, ledger, Contracts.at(w3, addresses), settings.home_path)


def earnings_of(account: Account) -> dict[str, Any]:
    """Returns every payment to the account and every slash of it, with their sums."""
    me = account.address
    paid = [p for p in account.ledger.pays if p.account == me]
    slashes = [
        (row, account.ledger.slashed[claim])
        for row, claim in _rounds(account)
        if claim in account.ledger.slashed and row["slot"] is not None
    ]
    return {
        "address": me,
        "earned": str(sum(p.amount for p in paid)),
        "slashed": str(sum(amount for _, amount in slashes)),
        "paid": [
            {
                "job": p.job.hex(), "round": p.round, "slot": "merge" if p.slot == MERGE_SLOT else p.slot,
                "amount": str(p.amount), "time": p.time,
            }
            for p in paid
        ],
        "slashes": [{**row, "amount": str(amount)} for row, amount in slashes],
    }  # fmt: skip


def earnings_lines(found: Mapping[str, Any]) -> list[str]:
    """Returns an account's earnings as lines of text, the latest payment last."""

    def place(row: Mapping[str, Any]) -> str:
        slot = "the merge" if row["slot"] == "merge" else f"slot {row['slot']}"
        return f"round {row['round']}, {slot} of job {short(row['job'])}"

    head = f"{found['address']} earned {tokens(found['earned'])}, and lost {tokens(found['slashed'])} of its stake"
    paid = [f"{moment(row['time'])}  {tokens(row['amount'])} for {place(row)}" for row in found["paid"]]
    lost = [f"lost  {tokens(row['amount'])} in {place(row)}: {row['means']}" for row in found["slashes"]]
    return [head, *paid, *lost]


def reasons_of(account: Account) -> list[dict[str, Any]]:
    """Returns one row for each round of every job: its reason code and the meaning of that code."""
    return [row for row, _ in _rounds(account)]


def _rounds(account: Account) -> list[tuple[dict[str, Any], bytes]]:
    """Returns (row, ClaimId) of every round of every attempt, ordered by number and attempt within a job."""
    rows = []
    paid = frozenset(p.claim for p in account.ledger.pays)
    for job in account.ledger.jobs.values():
        for r in sorted(job.all_rounds(), key=lambda r: (r.number, r.attempt)):
            slot = next((s for s, (holder, _) in r.holders.items() if holder == account.address), None)
            claim = b"" if slot is None else claim_id(job.id, r.number, r.attempt, slot)
            code = reason_of(job, r, slot, earned=claim in paid)
            row = {
                "job": job.id.hex(), "round": r.number, "attempt": r.attempt, "slot": slot, "reason": code,
                "means": MEANINGS[code],
            }  # fmt: skip
            rows.append((row, claim))
    return rows


def reason_of(job: JobLedger, r: RoundLedger, slot: int | None, *, earned: bool) -> str:
    """Returns the reason code of an account's slot in a round; `earned`: its claim was paid."""
    if slot is None:
        return "not_joined"
    status = r.holders[slot][1]
    if r.phase == Phase.VOID and status != ClaimStatus.CONVICTED:
        return "void_paid" if earned else "job_void" if job.void else "round_void"
    if status == ClaimStatus.FINAL:
        return "paid" if earned else "missing" if slot in r.missing else "excluded"
    return _OF_STATUS[status]
