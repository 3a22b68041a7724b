"""`lockstep coordinator`: up, migrate, reindex, doctor."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.settings import CoordinatorSettings, resolve_coordinator
from lockstep.cli import guard, purse
from lockstep.cli.device import on_device, tell
from lockstep.cli.options import DeploymentFile, Device, Home, Json, PasswordFile, Rpc, RpcCheck, Storage, Threads
from lockstep.cli.output import emit, event
from lockstep.protocol.errors import DoctorError, FundsError, LockstepError

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts

app = typer.Typer(name="coordinator", help="Index of the chain, blob relay, aggregator.", no_args_is_help=True)
app.add_typer(guard.app)

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any free one.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL of the index; default: SQLite in the home.")]
Broker = Annotated[str | None, typer.Option(help="Celery broker URL; default: a folder in the home.")]


@app.command("up")
def up(
    rpc: Rpc = None, rpc_check: RpcCheck = None, storage: Storage = None, deployment: DeploymentFile = None,
    home: Home = None,
    password_file: PasswordFile = None, threads: Threads = None, host: Host = None, port: Port = None,
    database: DatabaseUrl = None, broker: Broker = None, device: Device = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Serve the API, follow the chain, aggregate; one JSON line `ready` on stdout, SIGTERM ends it with exit code 0."""
    settings = resolve_coordinator(
        rpc=rpc, rpc_check=rpc_check, storage=storage, deployment=deployment, home=home,
        password_file=password_file, threads=threads,
        host=host, port=port, database=database, broker=broker, device=device,
    )  # fmt: skip
    from coordinator import queue, supervisor
    from coordinator.api import create_app
    from coordinator.parts import CoordinatorParts
    from coordinator.poking import Pokes
    from lockstep.node import logs
    from lockstep.node.guard import lock

    logs.configure()
    shared, chosen = on_device(settings.shared)
    settings = replace(settings, shared=shared)
    with lock.held(settings.home, "coordinator"), supervisor.listen(settings.host, settings.port) as sock:
        parts = CoordinatorParts.open(settings)
        parts.database.migrate()
        pokes = Pokes(queue.poker(settings))
        api = create_app(parts.context(pokes))
        url = f"http://{settings.host}:{sock.getsockname()[1]}"

        def ready() -> None:
            tell(chosen)
            event("ready", url=url, address=parts.me, pid=os.getpid())

        try:
            supervisor.run(api, sock, supervisor.queue_children(), settings.environment(), ready)
        finally:
            pokes.close()
            parts.close()


@app.command("migrate")
def migrate(home: Home = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Bring the index's schema to this build's."""
    from coordinator.db import Database

    settings = resolve_coordinator(home=home, database=database)
    index = Database(settings.database_url)
    revision = index.migrate()
    index.close()
    emit({"database": index.name, "revision": revision}, as_json, text=f"at revision {revision}")


@app.command("reindex")
def reindex(
    rpc: Rpc = None, deployment: DeploymentFile = None, home: Home = None, database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Drop everything that came from the chain and read it again; the coordinator must not be running."""
    settings = resolve_coordinator(rpc=rpc, deployment=deployment, home=home, database=database)

    from coordinator.db import Database
    from coordinator.indexer import Indexer
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.rpc import connect
    from lockstep.node.guard import lock

    with lock.held(settings.home, "coordinator"):
        addresses = Addresses.load(settings.shared.deployment)
        w3 = connect(settings.shared.rpc, addresses.chain_id)
        index = Database(settings.database_url)
        index.migrate()
        events = Indexer(index, w3, addresses).reindex()
        index.close()
    emit({"events": events, "database": index.name}, as_json, text=f"{events} events")


@app.command("doctor")
def doctor(
    rpc: Rpc = None, storage: Storage = None, deployment: DeploymentFile = None, home: Home = None,
    password_file: PasswordFile = None, database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check whatever `up` needs; exit code 3 if something is missing."""
    settings = resolve_coordinator(
        rpc=rpc, storage=storage, deployment=deployment, home=home, password_file=password_file, database=database
    )
    results = examine(settings)
    bad = [r for r in results if not r["ok"]]
    if bad:
        told = "; ".join(f"{r['check']}: {r['message']}" for r in bad)
        raise DoctorError(told, hint=next((r["hint"] for r in bad if r["hint"]), "see the checks that failed"))
    emit(results, as_json, text="\n".join(f"ok  {r['check']}: {r['message']}" for r in results))


def examine(settings: CoordinatorSettings) -> list[dict[str, Any]]:
    """Every check: {check, ok, message, hint}. What needs the chain is left out once the chain is not there."""
    from coordinator.parts import CoordinatorParts

    results = [_check("kernels", _kernels)]
    parts: list[CoordinatorParts] = []

    def opened() -> str:
        parts.append(CoordinatorParts.open(settings))
        return f"{parts[0].me} on chain {parts[0].party.addresses.chain_id}"

    results.append(_check("key, chain, contracts, storage", opened))
    if parts:
        results.append(_check("database", parts[0].database.migrate))
        results.append(_check("funds", lambda: _funds(parts[0])))
        parts[0].close()
    return results


def _check(name: str, run: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "message": run(), "hint": ""}
    except LockstepError as error:
        return {"check": name, "ok": False, "message": error.message, "hint": error.hint}


def _kernels() -> str:
    from lockstep.numerics.built import kernels
    from lockstep.numerics.selftest import check_machine

    check_machine()
    return f"{kernels.best_isa()}, self-test passed"


def _funds(parts: CoordinatorParts) -> str:
    coin = parts.party.w3.eth.get_balance(parts.party.account.address)
    if coin == 0:
        raise FundsError(f"{parts.me} has nothing to pay gas with", hint="send it some of the chain's coin")
    free, tokens = parts.party.contracts.vault.free(parts.me), parts.party.contracts.token.balance_of(parts.me)
    if free + tokens == 0:
        raise FundsError(
            f"{parts.me} has neither stake nor tokens", hint="send it the market's token: merges are staked"
        )
    return f"{free} staked, {tokens} in the account"


purse.add_to(app)
