"""`lockstep worker`: train for jobs, see what came of it."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.naming import JOBS_SHOWN, digits_of
from lockstep.base.settings import Settings, resolve
from lockstep.cli import guard, purse
from lockstep.cli.device import on_device, tell
from lockstep.cli.options import (
    CoordinatorUrl,
    DeploymentFile,
    Device,
    Home,
    Json,
    Listen,
    PasswordFile,
    Rpc,
    RpcCheck,
    Storage,
    Threads,
)
from lockstep.cli.output import emit, interactive, say
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from worker.parts import WorkerParts

app = typer.Typer(name="worker", help="Stake, train, commit, defend.", no_args_is_help=True)
app.add_typer(guard.app)

JobOption = Annotated[str | None, typer.Option("--job", help="Take this job alone; its id, or 6 hex digits of it.")]
MaxStake = Annotated[
    str | None,
    typer.Option(
        "--max-stake", metavar="AMOUNT|all",
        help="What this account may have staked in all, lost stake included. On a terminal it is asked for.",
    ),
]  # fmt: skip
JobsFrom = Annotated[
    str | None, typer.Option("--jobs-from", metavar="ADDRESS,...", help="Take the jobs of these requesters alone.")
]
MinPrice = Annotated[
    str | None,
    typer.Option("--min-price", metavar="AMOUNT", help="The least that a slot pays for 10^15 operations of training."),
]
Hours = Annotated[
    str | None, typer.Option("--hours", metavar="FROM-TO", help="Join rounds in these local hours alone, as 22-6.")
]
MaxMemory = Annotated[
    int | None, typer.Option("--max-memory", metavar="MIB", help="Take no job that needs more memory than this.")
]


@app.command("up")
def up(
    rpc: Rpc = None,
    rpc_check: RpcCheck = None,
    storage: Storage = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    coordinator: CoordinatorUrl = None,
    threads: Threads = None,
    device: Device = None,
    listen_seconds: Listen = None,
    max_stake: MaxStake = None,
    jobs_from: JobsFrom = None,
    min_price: MinPrice = None,
    hours: Hours = None,
    max_memory: MaxMemory = None,
    once: Annotated[
        bool, typer.Option("--once", help="Leave with exit code 0 when a job is done and nothing is at stake.")
    ] = False,
    job: JobOption = None,
    as_json: Json = False,
) -> None:
    """Work until SIGTERM and until nothing is at stake: JSON Lines of what happened on stdout, logs on stderr."""
    settings = resolve(
        "worker", rpc=rpc, rpc_check=rpc_check, storage=storage, deployment=deployment, home=home,
        password_file=password_file,
        coordinator=coordinator, threads=threads, device=device, listen_seconds=listen_seconds,
        max_stake=max_stake, jobs_from=jobs_from, min_price=min_price, hours=hours, max_memory_mib=max_memory,
    )  # fmt: skip
    if job is not None:
        digits_of(job, "job", JOBS_SHOWN)
    from lockstep.node import logs
    from worker.service import Worker
    from worker.setup import assemble

    logs.configure()
    settings, chosen = on_device(settings)
    settings = _with_limit(settings, as_json)
    with assemble(settings) as parts:
        worker = Worker(parts, once=once, only=None if job is None else _job_named(parts, job))
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: worker.drain())
        tell(chosen)
        worker.run()


@app.command("status")
def status(
    rpc: Rpc = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Whether a worker runs here, where the account's money is, claims in flight, open games."""
    from worker.account import open_account
    from worker.explaining import status_of

    found = status_of(open_account(_reading(rpc, deployment, home, password_file)))
    emit(found.to_dict(), as_json, text="\n".join(found.lines()))


@app.command("earnings")
def earnings(
    rpc: Rpc = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Every payment and every slash, with their sums."""
    from worker.account import earnings_of, open_account

    emit(earnings_of(open_account(_reading(rpc, deployment, home, password_file))), as_json)


@app.command("why")
def why(
    rpc: Rpc = None,
    deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Why each round paid, did not pay, or has not paid yet; why a job is not joined; when that may change."""
    from worker.account import open_account
    from worker.explaining import why_of

    found = why_of(open_account(_reading(rpc, deployment, home, password_file)))
    emit(found.to_dict(), as_json, text="\n".join(found.lines()))


def _reading(rpc: str | None, deployment: str | None, home: str | None, password_file: str | None) -> Settings:
    return resolve("worker", rpc=rpc, deployment=deployment, home=home, password_file=password_file)


def _with_limit(settings: Settings, as_json: bool) -> Settings:
    """The settings with what may be staked: nobody's wallet is staked without a word from its owner."""
    if settings.max_stake:
        return settings
    if as_json or not interactive():
        raise UsageError(
            "it is not said how much this worker may stake",
            hint="--max-stake 100, or --max-stake all; LOCKSTEP_MAX_STAKE and lockstep.toml's max_stake work, too",
        )
    say("Jobs lock stake behind your claims. A claim that is proven wrong loses it, and so does silence in a dispute.")
    return replace(settings, max_stake=typer.prompt("How much may this worker stake in all (tokens, or all)", err=True))


def _job_named(parts: WorkerParts, text: str) -> JobId:
    """A job by its whole id, which may be opened later, or by its first digits."""
    from lockstep.chain.events import EventReader
    from lockstep.node.ledger import ledger_of

    digits = digits_of(text, "job", JOBS_SHOWN)
    if len(digits) == 64:
        return JobId(bytes.fromhex(digits))
    return ledger_of(EventReader(parts.party.w3, parts.party.addresses)).job_named(text)


purse.add_to(app)
