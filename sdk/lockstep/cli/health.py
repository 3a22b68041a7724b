"""The command `doctor` of worker and verifier, and the report of every role's doctor: one line per check, exit
code 3 if one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lockstep.cli.options import CoordinatorUrl, Device, Json, ProgramFlags, role_of
from lockstep.cli.output import emit
from lockstep.protocol.errors import DoctorError

if TYPE_CHECKING:
    from lockstep.runtime.examining import Result


def add_to(app: typer.Typer) -> None:
    """Adds the command `doctor` to a program."""
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    flags: ProgramFlags,
    coordinator: CoordinatorUrl = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check everything that `up` needs, one line per check; exit code 3 if one fails."""
    role = role_of(context)
    settings = flags.settings(role, coordinator=coordinator, device=device)
    from lockstep.runtime.examining import Examination

    report(Examination(settings, role).run(), as_json)


def report(results: list[Result], as_json: bool) -> None:
    """Prints the results; exits with code 3 if a check failed."""
    emit([r.to_dict() for r in results], as_json, text="\n".join(r.line() for r in results))
    if not all(r.ok for r in results):
        raise typer.Exit(DoctorError.exit_code)
