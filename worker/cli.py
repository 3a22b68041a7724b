"""`lockstep worker`: trains for jobs, and shows offers, funding, status, earnings and reasons."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.amounts import tokens
from lockstep.base.lines import say
from lockstep.base.naming import JOBS_SHOWN, digits_of
from lockstep.base.settings import Settings
from lockstep.base.signals import ignore_stops
from lockstep.cli import guard, health, retry, service, staking
from lockstep.cli.device import machine_name, on_device, tell
from lockstep.cli.options import (
    AccountFlags,
    Commands,
    ComputingFlags,
    CoordinatorUrl,
    GasPrice,
    Home,
    Json,
    LimitFlags,
    Listen,
    MaxStake,
    Metrics,
    ProgramFlags,
    PublicFlags,
    Yes,
    a_job,
)
from lockstep.cli.output import confirm, emit, interactive
from lockstep.protocol.errors import TryLater, Unreachable, UsageError
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from lockstep.runtime.refusals import Refusal
    from worker.parts import WorkerParts

app = Commands(name="worker", help="Train for jobs: stake, commit, defend.", no_args_is_help=True)
app.add_typer(guard.app)

JobOption = Annotated[
    str | None, typer.Option("--job", help="Take only this job: its id, or at least its first 6 hex digits.")
]


@app.command("up")
def up(
    flags: ProgramFlags,
    *,
    coordinator: CoordinatorUrl = None,
    computing: ComputingFlags,
    listen_seconds: Listen = None,
    limits: LimitFlags,
    metrics: Metrics = None,
    once: Annotated[
        bool, typer.Option("--once", help="Exit with code 0 when a job is done and nothing is at stake.")
    ] = False,
    job: JobOption = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Work until SIGTERM, then until nothing is at stake. Prints events on stdout: sentences on a terminal, JSON lines
    otherwise or with --json; logs go to stderr."""
    settings = flags.settings(
        "worker", computing, limits, coordinator=coordinator, listen_seconds=listen_seconds, metrics=metrics
    )
    if job is not None:
        digits_of(job, "job", JOBS_SHOWN)
    from lockstep.cli.screen import speak
    from lockstep.runtime import logs
    from lockstep.runtime.metrics import served
    from worker.service import Worker
    from worker.setup import assemble

    logs.configure()
    speak("worker", as_json)
    settings, chosen = on_device(settings)
    named = bool(settings.max_stake)
    settings = _with_limit(settings, as_json)
    with assemble(settings, machine_name(settings, chosen)) as parts, served("worker", settings, parts.address):
        # Who has just typed the amount was told what it is at risk for.
        _agree_to_stake(parts, yes or as_json or not named)
        worker = Worker(parts, once=once, only=None if job is None else _job_named(parts, job))
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: worker.drain())
        tell(chosen)
        worker.run()
        ignore_stops()


@app.command("quote")
def quote(
    *,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", callback=a_job, help="The job's id, or at least its first 6 hex digits."),
    ] = None,
    flags: PublicFlags,
    home: Home = None,
    computing: ComputingFlags,
    limits: LimitFlags,
    tries: Annotated[
        bool, typer.Option("--try/--no-try", help="Run some steps to time them, or only estimate them.")
    ] = True,
    gas_price: GasPrice = None,
    as_json: Json = False,
) -> None:
    """Show what this machine may earn and lose with each open job, or with one, and any reason not to join it."""
    settings = flags.settings("worker", computing, limits, home=home)
    from lockstep.chain import gas
    from worker.account import open_account
    from worker.offers import offers_of

    stated = None if gas_price is None else gas.fees_stated(gas_price)
    settings, _ = on_device(replace(settings, max_stake=settings.max_stake or "all"))
    account = open_account(settings)
    fees = stated or gas.fees_now(account.contracts.vault.w3)
    found = offers_of(account, settings, job, fees, tries=tries)
    text = "\n\n".join("\n".join(offer.lines()) for offer in found) or "no jobs are open on this market"
    emit([offer.to_dict() for offer in found], as_json, text=text)


@app.command("fund")
def fund(
    flags: AccountFlags,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", callback=a_job, help="Only what this job needs: its id, or at least its first 6 hex digits."
        ),
    ] = None,
    max_stake: MaxStake = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Time to wait for the missing funds.")
    ] = 0,
    from_faucet: Annotated[
        bool, typer.Option("--from-faucet", help="On a local test chain: fund the account with what is missing.")
    ] = False,
    gas_price: GasPrice = None,
    as_json: Json = False,
) -> None:
    """Show where to send coin and tokens, what is held and what is missing; exit code 75 if anything is missing."""
    settings = flags.settings("worker", max_stake=max_stake)
    from lockstep.chain import gas
    from worker.account import open_account
    from worker.funding import give, missing_of, wait_for

    stated = None if gas_price is None else gas.fees_stated(gas_price)
    account = open_account(settings)
    need = missing_of(account, settings, job, stated)
    if from_faucet and not need.enough:
        give(account, settings, need)
        need = missing_of(account, settings, job, stated)
    if wait and not need.enough:
        say("\n".join(need.lines()))
        need = wait_for(lambda: missing_of(account, settings, job, stated), wait)
    emit(need.to_dict(), as_json, text="\n".join(need.lines()))
    if not need.enough:
        raise typer.Exit(TryLater.exit_code)


@app.command("status")
def status(flags: AccountFlags, as_json: Json = False) -> None:
    """Show if a worker runs here, where the account's money is, its claims in flight and its open games."""
    from worker.account import open_account
    from worker.explaining import status_of

    found = status_of(open_account(flags.settings("worker")))
    emit(found.to_dict(), as_json, text="\n".join(found.lines()))


@app.command("earnings")
def earnings(flags: AccountFlags, as_json: Json = False) -> None:
    """List every payment and every slash, with totals."""
    from worker.account import earnings_lines, earnings_of, open_account

    found = earnings_of(open_account(flags.settings("worker")))
    emit(found, as_json, text="\n".join(earnings_lines(found)))


@app.command("why")
def why(flags: AccountFlags, as_json: Json = False) -> None:
    """Explain why each round paid, did not pay or has not paid yet; why a job is not joined; when that may change."""
    from worker.account import open_account
    from worker.explaining import why_of, why_without_chain

    settings = flags.settings("worker")
    try:
        found = why_of(open_account(settings))
    except Unreachable as error:
        found = why_without_chain(settings.home_path, error)
    emit(found.to_dict(), as_json, text="\n".join(found.lines()))


@app.command("support-bundle")
def support_bundle(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="New file to write, e.g. support.tar.gz.")
    ] = None,
    flags: AccountFlags,
    log: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="Log file of the worker; may be repeated.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=0, max=100_000, help="Number of last lines of each log.")] = 500,
    as_json: Json = False,
) -> None:
    """Collect a support archive, without keys, passwords and secret parts of URLs."""
    settings = flags.settings("worker")
    from worker.supporting import collect

    path = out if out is not None else Path(f"lockstep-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    found = collect(path, settings, log or [], lines)
    rows = [f"  {f['name']:<16} {f['bytes']:>8,} bytes" + (f"  {f['error']}" if f["error"] else "") for f in found]
    emit(
        {"path": str(path), "files": found},
        as_json,
        text="\n".join([f"{path}: look through it before you share it", *rows]),
    )


def _with_limit(settings: Settings, as_json: bool) -> Settings:
    """Returns the settings with a limit on the stake, asked for on a terminal: nothing is staked without consent."""
    if settings.max_stake:
        return settings
    if as_json or not interactive():
        raise UsageError(
            "no limit is set on this worker's stake",
            hint="give --max-stake 100 or --max-stake all, or set LOCKSTEP_MAX_STAKE or max_stake in lockstep.toml",
        )
    say("Jobs lock stake behind your claims. A claim that is proven wrong loses it, and so does silence in a dispute.")
    return replace(
        settings,
        max_stake=typer.prompt("How much may this worker stake in total (a number of tokens, or all)", err=True),
    )


def _agree_to_stake(parts: WorkerParts, agreed: bool) -> None:
    """Asks for consent to a home's first deposit, its amount and its risks. Raises UsageError if the answer is no."""
    from lockstep.runtime.staking import Holdings
    from worker.admission import DEPOSITS

    if agreed or not interactive() or parts.outbox.keys(DEPOSITS):
        return
    held, limit = Holdings.of(parts.contracts, parts.address), parts.policy.max_stake
    if held.free or held.unbonding:
        return
    most = held.wallet if limit is None else min(held.wallet, limit)
    confirm(
        f"This worker stakes up to {tokens(most)} of {tokens(held.wallet)} for the jobs that it joins. A claim that is "
        "proven wrong loses its stake, and so does silence in a dispute. Continue?"
    )


def _job_named(parts: WorkerParts, text: str) -> JobId:
    """Returns a job's id from its first digits; a whole id may name a job that is not open yet."""
    from lockstep.chain.events import EventReader
    from lockstep.market.ledger import ledger_of

    digits = digits_of(text, "job", JOBS_SHOWN)
    if len(digits) == 64:
        return JobId(bytes.fromhex(digits))
    return ledger_of(EventReader(parts.party.w3, parts.party.addresses)).job_named(text)


def _clear(home: Path, refusal: Refusal) -> None:
    from worker.progress import clear

    clear(home, refusal)


staking.add_to(app)
retry.add_to(app, "`lockstep worker why` lists refused jobs", _clear)
health.add_to(app)
app.add_typer(service.app)
