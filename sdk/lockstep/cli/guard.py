"""`guard export` and `guard import`: moves a home's signing records as a file, to move its key to another machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.files import open_regular
from lockstep.base.settings import Settings
from lockstep.cli.options import ChainFlags, Commands, Home, Json, role_of
from lockstep.cli.output import emit
from lockstep.protocol.errors import UsageError

if TYPE_CHECKING:
    from lockstep.runtime.guard.memory import GuardMemory

app = Commands(
    name="guard", help="Move the records that keep a key from signing two claims for one slot.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(help="File of exported signing records.", show_default=False)]


@app.command("export")
def export(context: typer.Context, file: File, flags: ChainFlags, home: Home = None, as_json: Json = False) -> None:
    """Export this home's signing records to FILE (mode 0600). Stop the program in this home first, and never start it
    again."""
    from lockstep.runtime.guard import interchange

    with _memory(flags.settings(role_of(context), home=home)) as memory:
        records = memory.records()
        interchange.save(file, interchange.dumps(memory.scope, records))
    emit({"file": str(file), "promises": len(records)}, as_json, text=f"{len(records)} entries in {file}")


@app.command("import")
def import_(context: typer.Context, file: File, flags: ChainFlags, home: Home = None, as_json: Json = False) -> None:
    """Merge the records of FILE into this home's. A claim on which both differ is never signed again."""
    from lockstep.runtime.guard import interchange

    try:
        with open_regular(file) as opened:
            text = opened.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint="name the file that `guard export` wrote") from error
    with _memory(flags.settings(role_of(context), home=home)) as memory:
        records = interchange.loads(text, memory.scope)
        changed = memory.merge(records)
        torn = sum(p.torn for _, p in memory.records())
    told = (
        f"{len(records)} entries read, {changed} new or changed; {torn} claims are blocked: two records differ on them"
    )
    emit({"promises": len(records), "changed": changed, "torn": torn}, as_json, text=told)


@contextmanager
def _memory(settings: Settings) -> Iterator[GuardMemory]:
    """Opens the signing records of a home in which no process runs, for the chain and market of the settings."""
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.keys import KEYSTORE, account_address
    from lockstep.chain.rpc import connect
    from lockstep.runtime.guard import lock
    from lockstep.runtime.guard.memory import GuardMemory, Scope

    home = settings.home_path
    mine = account_address(home / KEYSTORE)
    addresses = Addresses.load(settings.deployment)
    w3 = connect(settings.rpc, addresses.chain_id)
    with lock.held(home, "guard command"), GuardMemory(home, Scope.of(w3, addresses, mine)) as memory:
        yield memory
