"""`doctor` of worker and verifier, and how every role's doctor reports: a line a check, exit code 3 if one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lockstep.base.settings import resolve
from lockstep.cli.options import (
    CoordinatorUrl,
    DeploymentFile,
    Device,
    Home,
    Json,
    PasswordFile,
    Rpc,
    RpcCheck,
    Storage,
    role_of,
)
from lockstep.cli.output import emit
from lockstep.protocol.errors import DoctorError

if TYPE_CHECKING:
    from lockstep.node.examining import Result


def add_to(app: typer.Typer) -> None:
    """Give a program the command."""
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context, rpc: Rpc = None, rpc_check: RpcCheck = None, storage: Storage = None,
    deployment: DeploymentFile = None, home: Home = None, password_file: PasswordFile = None,
    coordinator: CoordinatorUrl = None, device: Device = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Check whatever `up` needs, a line a check; exit code 3 if one fails."""
    role = role_of(context)
    settings = resolve(
        role, rpc=rpc, rpc_check=rpc_check, storage=storage, deployment=deployment, home=home,
        password_file=password_file, coordinator=coordinator, device=device,
    )  # fmt: skip
    from lockstep.node.examining import Examination

    report(Examination(settings, role).run(), as_json)


def report(results: list[Result], as_json: bool) -> None:
    """Print the results; leaves with exit code 3 if one is bad."""
    emit([r.to_dict() for r in results], as_json, text="\n".join(r.line() for r in results))
    if not all(r.ok for r in results):
        raise typer.Exit(DoctorError.exit_code)
