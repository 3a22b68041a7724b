"""`lockstep coordinator`: runs, migrates, reindexes, backs up and examines a coordinator."""

from __future__ import annotations

import gc
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from coordinator.settings import resolve_coordinator
from lockstep.base.lines import event
from lockstep.cli import guard, health, retry, service, staking
from lockstep.cli.device import on_device, tell
from lockstep.cli.options import ChainFlags, Commands, DeploymentFile, Device, Home, Json, ProgramFlags, Threads
from lockstep.cli.output import emit

app = Commands(name="coordinator", help="Run a coordinator: chain index, blob relay, aggregator.", no_args_is_help=True)
app.add_typer(guard.app)

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0: any free port.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL of the index; default: SQLite in the home.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="File of the backup.")]
Broker = Annotated[str | None, typer.Option(help="Celery broker URL; default: a folder in the home.")]


@app.command("up")
def up(
    flags: ProgramFlags,
    threads: Threads = None,
    host: Host = None,
    port: Port = None,
    database: DatabaseUrl = None,
    broker: Broker = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Serve the API, follow the chain and aggregate until SIGTERM, then exit with code 0. Prints events, `ready` among
    them, on stdout: sentences on a terminal, JSON lines otherwise or with --json; logs go to stderr."""
    settings = resolve_coordinator(
        **flags.given(), threads=threads, host=host, port=port, database=database, broker=broker, device=device
    )
    from coordinator import queue, supervisor
    from coordinator.account_metrics import WatchedAccount
    from coordinator.api import create_app
    from coordinator.backup import require_whole
    from coordinator.notifying import Notifications
    from coordinator.parts import CoordinatorParts
    from lockstep.base.signals import ignore_stops
    from lockstep.cli.screen import speak
    from lockstep.runtime import logs
    from lockstep.runtime.guard import lock
    from lockstep.runtime.metrics import Sampler, reader

    logs.configure()
    speak("coordinator", as_json)
    shared, chosen = on_device(settings.shared)
    settings = replace(settings, shared=shared)
    with lock.held(settings.home, "coordinator"), supervisor.listen(settings.host, settings.port) as sock:
        require_whole(settings.home)
        parts = CoordinatorParts.open(settings)
        parts.database.migrate()
        notifications = Notifications(queue.notifier(settings))
        sampler = Sampler(reader(settings.shared, parts.me))
        account = WatchedAccount(settings.home, sampler, lambda: queue.waiting(settings))
        api = create_app(parts.context(notifications, account))
        url = f"http://{settings.host}:{sock.getsockname()[1]}"

        def ready() -> None:
            # What is there by now stays: collections need not go through it while a page waits.
            gc.collect()
            gc.freeze()
            tell(chosen)
            event("ready", url=url, address=parts.me, pid=os.getpid())

        try:
            children = supervisor.queue_children()
            supervisor.run(api, sock, children, settings.environment(), ready, api.state.stream.close)
            ignore_stops()
        finally:
            sampler.close()
            notifications.close()
            parts.close()


@app.command("migrate")
def migrate(home: Home = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Migrate the index's schema to this build's."""
    from coordinator.db import Database

    settings = resolve_coordinator(home=home, database=database)
    index = Database(settings.database_url)
    revision = index.migrate()
    index.close()
    emit({"database": index.name, "revision": revision}, as_json, text=f"at revision {revision}")


@app.command("reindex")
def reindex(flags: ChainFlags, home: Home = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Drop all data that came from the chain and read it again; the coordinator must not be running."""
    settings = resolve_coordinator(**flags.given(), home=home, database=database)

    from coordinator.db import Database
    from coordinator.indexer import Indexer
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.rpc import connect
    from lockstep.runtime.guard import lock

    with lock.held(settings.home, "coordinator"):
        addresses = Addresses.load(settings.shared.deployment)
        w3 = connect(settings.shared.rpc, addresses.chain_id)
        index = Database(settings.database_url)
        index.migrate()
        events = Indexer(index, w3, addresses).reindex()
        index.close()
    emit({"events": events, "database": index.name}, as_json, text=f"{events} events")


@app.command("backup")
def backup(
    file: File,
    deployment: DeploymentFile = None,
    home: Home = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Back up to FILE (mode 0600) what the chain cannot restore: keys, guard, nonces, signed claims, receipts.

    The command may run while `up` runs. The backup does not contain the password.
    """
    settings = resolve_coordinator(deployment=deployment, home=home, database=database)
    from coordinator.backup import back_up
    from coordinator.db import Database
    from lockstep.chain.addresses import Addresses

    addresses = Addresses.load(settings.shared.deployment)
    index = Database(settings.database_url)
    try:
        index.check()
        kept = back_up(settings.home, index, addresses.chain_id, addresses.market, file)
    finally:
        index.close()
    emit({"file": str(file), **asdict(kept)}, as_json, text=f"{kept.files} files and {kept.rows} rows in {file}")


@app.command("restore")
def restore(
    file: File,
    deployment: DeploymentFile = None,
    home: Home = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Restore FILE into a home that has no guard of its own; then run `reindex`. If interrupted, restore again."""
    settings = resolve_coordinator(deployment=deployment, home=home, database=database)
    from coordinator import backup as copies
    from coordinator.db import Database
    from lockstep.chain.addresses import Addresses
    from lockstep.runtime.guard import lock

    addresses = Addresses.load(settings.shared.deployment)
    with lock.held(settings.home, "restore"):
        index = Database(settings.database_url)
        try:
            index.migrate()
            kept = copies.restore(settings.home, index, addresses.chain_id, addresses.market, file)
        finally:
            index.close()
    emit(
        {"file": str(file), **asdict(kept)}, as_json,
        text=f"{kept.files} files and {kept.rows} rows restored; now `lockstep coordinator reindex`",
    )  # fmt: skip


@app.command("doctor")
def doctor(
    flags: ProgramFlags,
    database: DatabaseUrl = None,
    broker: Broker = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check everything that `up` needs, one line per check; exit code 3 if one fails."""
    settings = resolve_coordinator(**flags.given(), database=database, broker=broker, device=device)
    from coordinator.checks import broker as reached
    from coordinator.checks import database as usable
    from lockstep.runtime.examining import Examination

    results = Examination(settings.shared, "coordinator").run(
        ("database", lambda: usable(settings)), ("broker", lambda: reached(settings))
    )
    health.report(results, as_json)


staking.add_to(app)
retry.add_to(app, "`retry` events in the coordinator's log name refused jobs")
app.add_typer(service.app)
