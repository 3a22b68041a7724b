"""`lockstep verifier`: replays claims and challenges the wrong ones."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated

import typer

from lockstep.base.lines import event
from lockstep.base.naming import JOBS_SHOWN, digits_of
from lockstep.base.signals import ignore_stops, stop_by_signals
from lockstep.cli import health, retry, service, staking
from lockstep.cli.device import on_device, tell
from lockstep.cli.options import Commands, ComputingFlags, CoordinatorUrl, Json, Metrics, PartyFlags, ProgramFlags
from lockstep.cli.output import emit
from lockstep.protocol.errors import Mismatch

Witness = Annotated[
    bool,
    typer.Option(
        "--witness",
        help="Enrol as a witness: stake, replay the claims for which this account is drawn, and earn a fee.",
    ),
]

Volunteer = Annotated[bool, typer.Option("--volunteer", help="With --witness: also replay every other claim.")]

app = Commands(name="verifier", help="Replay claims and challenge the wrong ones.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Replay claims and challenge the wrong ones."""


@app.command("up")
def up(
    flags: ProgramFlags,
    *,
    coordinator: CoordinatorUrl = None,
    computing: ComputingFlags,
    witness: Witness = False,
    volunteer: Volunteer = False,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Audit every revealed claim and every merge. Prints events on stdout: sentences on a terminal, JSON lines
    otherwise or with --json; logs go to stderr.

    With --witness: enrol in every job that draws witnesses, audit the claims for which this account is drawn, and earn
    the fee. With --coordinator (one URL or several, comma-separated): convict workers that signed two claims for one
    slot. SIGTERM stops auditing, plays open games to their end, withdraws earnings and exits with code 0.
    """
    settings = flags.settings("verifier", computing, coordinator=coordinator, metrics=metrics)
    from lockstep.cli.screen import speak
    from lockstep.runtime import logs
    from lockstep.runtime.metrics import served
    from lockstep.runtime.party import Party
    from verifier.journal import Journal
    from verifier.service import Verifier

    logs.configure()
    speak("verifier", as_json)
    settings, chosen = on_device(settings)
    stop = threading.Event()
    with (
        Journal(settings.home_dir) as journal,
        Party.open(settings) as party,
        served("verifier", settings, party.address),
    ):
        stop_by_signals(stop, signal.SIGTERM)
        tell(chosen)
        event("ready", time=party.head().time, address=party.address, pid=os.getpid())
        Verifier(party, journal, witness=witness, volunteer=volunteer or not witness).run(stop)
        ignore_stops()


@app.command("void")
def void(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or at least its first 6 hex digits.")],
    flags: PartyFlags,
    as_json: Json = False,
) -> None:
    """Void a job whose Programs could not be defended; the prover earns 30 % of what is left of its deposit.

    Exit 10 if the Programs break no rule: then there is nothing to prove.
    """
    settings = flags.settings("verifier")
    from lockstep.chain.events import EventReader
    from lockstep.execution.invalidity import evidence_against, proof
    from lockstep.market.ledger import ledger_of
    from lockstep.runtime.party import Party

    digits_of(job, "job", JOBS_SHOWN)
    with Party.open(settings) as party:
        wanted = ledger_of(EventReader(party.w3, party.addresses)).job_named(job)
        found = evidence_against(party.contracts.market.params(wanted), party.store)
        if found is None:
            raise Mismatch("the job breaks no rule and cannot be voided", hint="its Programs can be defended")
        evidence, rule = found
        key = "commit"
        while key.startswith("commit"):
            key, call = proof(party.contracts.validator, party.address, wanted, evidence)
            party.outbox.send(call, key)
    broken = {"rule": rule.name.lower(), "subject": evidence.subject.name.lower(), "index": evidence.index}
    emit(
        {"job": wanted.hex(), **broken}, as_json, text=f"void: {broken['rule']} ({broken['subject']} {evidence.index})"
    )


staking.add_to(app)
retry.add_to(app, "`retry` events in the verifier's log name refused jobs")
health.add_to(app)
app.add_typer(service.app)
