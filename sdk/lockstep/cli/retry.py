"""`retry`: allows again a job that a home refuses permanently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.naming import identified, short
from lockstep.base.settings import resolve
from lockstep.cli.options import Home, Json, a_job, role_of
from lockstep.cli.output import emit
from lockstep.protocol.types import JobId

if TYPE_CHECKING:
    from lockstep.runtime.refusals import Refusal

Clear = Callable[[Path, "Refusal"], None]
"""Removes a home's refusal of a job, and the files that must not outlive it."""


def forget(home: Path, refusal: Refusal) -> None:
    """Removes a refusal, including one of the job's loss."""
    from lockstep.runtime.refusals import FOLDER, LOSSES, Refusals

    for folder in (FOLDER, LOSSES):
        Refusals(home, folder).forget(refusal.job)


def add_to(app: typer.Typer, where: str, clear: Clear = forget) -> None:
    """Adds the command `retry` to a program; `where` names the command that lists refused jobs."""

    @app.command("retry")
    def retry(
        context: typer.Context,
        job: Annotated[
            str, typer.Argument(metavar="JOB", callback=a_job, help="The job's id, or at least its first 6 hex digits.")
        ],
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Allow again a job that this home refuses permanently; a running program then retries it by itself."""
        from lockstep.runtime.refusals import LOSSES, Refusals

        folder = resolve(role_of(context), home=home).home_path
        found = Refusals(folder, LOSSES).all() | Refusals(folder).all()
        wanted = JobId(identified(job, found, "refused job", where))
        clear(folder, found[wanted])
        said = {"job": wanted.hex(), "was": found[wanted].message}
        emit(
            said, as_json, text=f"job {short(wanted)} will be tried again; it was refused for: {found[wanted].message}"
        )
