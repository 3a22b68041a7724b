"""`lockstep local`: a market on this machine that stays up."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base import networks
from lockstep.cli.options import Json
from lockstep.cli.output import emit
from lockstep.market.narrator import ALERT, STEP, STRONG, Line
from lockstep.protocol.errors import NotFoundError

if TYPE_CHECKING:
    from lockstep.demo.local import LocalState

app = typer.Typer(name="local", help="Run a local market that stays up across commands.", no_args_is_help=True)

NEXT = (
    "next, in any folder:",
    "  lockstep train init --example && lockstep train run job.toml --budget 60",
    "  lockstep worker up --max-stake 100",
    "  lockstep local forward 60        (moves the chain's time)",
)


@app.command("up")
def up(
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Number of the market's own workers, in addition to yours. Default: 3."),
    ] = None,
    block_seconds: Annotated[int | None, typer.Option(min=1, max=60, help="Time between blocks. Default: 1.")] = None,
    liar: Annotated[
        bool, typer.Option("--liar", help="The last worker lies, and no verifier but yours looks for it.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove an earlier market's data, and start a new market.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a funded market: chain, storage, coordinator, verifier, workers. Every command then finds it."""
    from lockstep.cli.screen import Screen
    from lockstep.demo import local

    folder = networks.local_folder()
    begun = time.monotonic()
    given = {"workers": workers, "block_seconds": block_seconds, "liar": liar or None}
    wanted = {name: value for name, value in given.items() if value is not None}
    with Screen(lambda: [_starting(begun)], sys.stderr):
        state = local.up(folder, wanted, fresh=fresh)
    _answer(folder, state, as_json, [Line(text, STRONG if text == NEXT[0] else "") for text in NEXT])


@app.command("down")
def down(as_json: Json = False) -> None:
    """End the market; chain, keys and jobs are kept. Deadlines stand still with the chain."""
    from lockstep.demo import local

    folder = networks.local_folder()
    was_up = local.down(folder)
    text = f"the market is down; `lockstep local up` resumes it from {folder}" if was_up else "no market was up"
    emit({"folder": str(folder), "was_up": was_up}, as_json, text=text)


@app.command("status")
def status(as_json: Json = False) -> None:
    """Show who runs, where, and the chain's time."""
    from lockstep.demo import local

    folder = networks.local_folder()
    state = local.status(folder)
    if state is None:
        raise NotFoundError("no local market is up", hint="`lockstep local up` starts one")
    _answer(folder, state, as_json)


@app.command("forward")
def forward(
    seconds: Annotated[str, typer.Argument(metavar="TIME", help="As 90, 10m, 2h or 3d.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Move the chain's time forward, as if nothing happened meanwhile: unfinished claims may miss their deadlines."""
    from lockstep.base.durations import moment, seconds_of
    from lockstep.chain.devnet import move_time
    from lockstep.chain.rpc import connect
    from lockstep.demo import local

    by = seconds_of(seconds, "TIME")
    state = local.status(networks.local_folder())
    if state is None:
        raise NotFoundError("no local market is up", hint="`lockstep local up` starts one")
    now = move_time(connect(state.rpc), by)
    emit({"time": now}, as_json, text=f"chain time {moment(now)}")


def _starting(begun: float) -> Line:
    members = "chain, storage, coordinator, verifier, workers"
    return Line(f"starting {members}: {time.monotonic() - begun:.0f} s", STEP)


def _answer(folder: Path, state: LocalState, as_json: bool, more: Sequence[Line] = ()) -> None:
    """Prints what is up, as JSON or in colours where there are some."""
    from lockstep.cli.screen import show

    if as_json:
        emit(_data(folder, state), as_json)
    else:
        show([*_lines(folder, state), *more])


def _data(folder: Path, state: LocalState) -> dict[str, Any]:
    from lockstep.demo import local

    return {
        "folder": str(folder),
        "rpc": state.rpc,
        "storage": state.storage,
        "coordinator": state.coordinator,
        "pages": f"{state.coordinator}/",
        "deployment": str(folder / "deployment.json"),
        "homes": {role: str(folder / role) for role in local.YOURS},
        "members": [
            {"name": m.name, "role": m.role, "address": m.address, "pid": m.pid, "restarts": m.restarts}
            for m in state.members
        ],
    }


def _lines(folder: Path, state: LocalState) -> list[Line]:
    from lockstep.base.durations import moment
    from lockstep.demo.local import contracts_of

    with contracts_of(folder, state) as (contracts, now):
        block = contracts.vault.w3.eth.block_number
    members = [
        Line(
            f"  {m.name:<12} {m.role:<12} {m.address}  process {m.pid}"
            + (f", restarted {m.restarts} x" if m.restarts else ""),
            ALERT if m.restarts else "",
        )
        for m in state.members
    ]
    return [
        Line(f"chain        {state.rpc}, block {block}, {moment(now)}"),
        Line(f"storage      {state.storage}"),
        Line(f"coordinator  {state.coordinator}"),
        Line(f"pages        {state.coordinator}/  (open it in a browser)", STRONG),
        Line(f"keys         {folder}: requester, worker and verifier are yours, each began with 1,000 LST"),
        Line("members", STRONG),
        *members,
    ]
