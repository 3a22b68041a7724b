"""`lockstep worker`: train for jobs, see what came of it."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from lockstep.base.settings import Settings, resolve
from lockstep.cli import guard
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
from lockstep.cli.output import emit
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import JobId

app = typer.Typer(name="worker", help="Stake, train, commit, defend.", no_args_is_help=True)
app.add_typer(guard.app)

JobOption = Annotated[str | None, typer.Option("--job", help="Take this job alone (64 hex digits).")]


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
    once: Annotated[
        bool, typer.Option("--once", help="Leave with exit code 0 when a job is done and nothing is at stake.")
    ] = False,
    job: JobOption = None,
    as_json: Json = False,
) -> None:
    """Work until SIGTERM and until nothing is at stake: JSON Lines of what happened on stdout, logs on stderr."""
    settings = resolve(
        rpc=rpc, rpc_check=rpc_check, storage=storage, deployment=deployment, home=home, password_file=password_file,
        coordinator=coordinator, threads=threads, device=device, listen_seconds=listen_seconds,
    )  # fmt: skip
    only = _job_id(job)
    from lockstep.node import logs
    from worker.service import Worker
    from worker.setup import assemble

    logs.configure()
    settings, chosen = on_device(settings)
    with assemble(settings) as parts:
        worker = Worker(parts, once=once, only=only)
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
    """Stake, credits, claims in flight, open games."""
    from worker.account import open_account, status_of

    emit(status_of(open_account(_reading(rpc, deployment, home, password_file))), as_json)


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
    """Why each round paid, did not pay, or has not paid yet."""
    from worker.account import open_account, reasons_of

    rows = reasons_of(open_account(_reading(rpc, deployment, home, password_file)))
    text = "\n".join(f"job {r['job'][:16]}  round {r['round']:>3}  {r['reason']:<14} {r['means']}" for r in rows)
    emit(rows, as_json, text=text or "no round of any job yet")


def _reading(rpc: str | None, deployment: str | None, home: str | None, password_file: str | None) -> Settings:
    return resolve(rpc=rpc, deployment=deployment, home=home, password_file=password_file)


def _job_id(text: str | None) -> JobId | None:
    if text is None:
        return None
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""
    if len(value) != 32:
        raise UsageError(f"{text!r} is no job", hint="a job's id has 64 hex digits; `lockstep train run` prints it")
    return JobId(value)
