"""`lockstep dispute`: read games, follow them, play them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.settings import DEFAULTS, Settings, resolve
from lockstep.cli.options import DeploymentFile, Json, Rpc, Storage
from lockstep.cli.output import emit
from lockstep.protocol.errors import LockstepError, UsageError

if TYPE_CHECKING:
    from lockstep.node.disputes import DisputeReader
    from lockstep.protocol.types import JobId

app = typer.Typer(name="dispute", help="Games about claims: read them, follow them, play them.", no_args_is_help=True)

GameArgument = Annotated[str, typer.Argument(metavar="GAME", help="The game's id, or its first 6 hex digits or more.")]


@app.command("list")
def list_(
    job: Annotated[str | None, typer.Option(metavar="ID", help="Games of one job; its id, 64 hex digits.")] = None,
    ended: Annotated[bool, typer.Option("--all/--open", help="Those that are over, too.")] = False,
    rpc: Rpc = None,
    deployment: DeploymentFile = None,
    as_json: Json = False,
) -> None:
    """Games that run: whose move it is, and what is left of each clock."""
    wanted = None if job is None else _job_id(job)
    reader = _reader(resolve(rpc=rpc, deployment=deployment))
    from lockstep.cli.dispute_text import table

    rows, now = reader.rows(wanted, ended=ended), reader.now()
    emit({"chain_time": now, "games": [row.to_dict(now) for row in rows]}, as_json, text=table(rows, now, ended))


@app.command("show")
def show(
    game: GameArgument, rpc: Rpc = None, storage: Storage = None, deployment: DeploymentFile = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """One game: parties, money, every move, how far it is, and what the contract computed.

    The chain alone is read; --storage adds the names of ops.
    """
    reader = _reader(resolve(rpc=rpc, storage=storage, deployment=deployment))
    from lockstep.cli.dispute_text import card

    found, now = reader.read(reader.find(game)), reader.now()
    command = replay_command(found.opened.claim.hex(), rpc=rpc, storage=storage, deployment=deployment)
    emit(
        {**found.to_dict(now), "chain_time": now, "replay": command}, as_json,
        text=None if as_json else card(found, now, command),
    )  # fmt: skip


@app.command("tree")
def tree(game: GameArgument, rpc: Rpc = None, deployment: DeploymentFile = None, as_json: Json = False) -> None:
    """The bisection: each range that was halved, and which half differs, down to the number that the contract
    computed."""
    reader = _reader(resolve(rpc=rpc, deployment=deployment))
    from lockstep.cli.dispute_text import drawn
    from lockstep.node.bisection import bisection

    found, now = reader.read(reader.find(game)), reader.now()
    root = bisection(found.events, found.claim.transitions, found.op)
    emit({**found.to_dict(now), "tree": root.to_dict()}, as_json, text=None if as_json else drawn(found, root, now))


def replay_command(claim: str, **flags: str | None) -> str:
    """What reproduces a claim: `lockstep replay` with the places that this command was given."""
    import shlex

    given = [part for name, value in flags.items() if value is not None for part in (f"--{name}", value)]
    return shlex.join(["lockstep", "replay", claim, *given])


def _reader(settings: Settings) -> DisputeReader:
    """What reads the chain; with a store only where somebody has named one."""
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.rpc import connect
    from lockstep.node.disputes import DisputeReader
    from lockstep.storage import open_store

    addresses = Addresses.load(settings.deployment)
    contracts = Contracts.at(connect(settings.rpc, addresses.chain_id), addresses)
    store = None
    if settings.storage != DEFAULTS["storage"]:
        try:
            store = open_store(settings.storage)
        except UsageError:
            raise
        except LockstepError:
            # It adds names alone.
            store = None
    return DisputeReader(contracts, store)


def _job_id(text: str) -> JobId:
    from lockstep.protocol.types import JobId

    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""
    if len(value) != 32:
        raise UsageError(f"{text!r} is not a job id", hint="64 hex digits, as `train run` printed them")
    return JobId(value)
