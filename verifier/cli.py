"""`lockstep verifier`: replay every claim, challenge the wrong ones."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated, Any

import typer

from lockstep.cli.options import DeploymentFile, Home, Json, PasswordFile, Rpc, Storage, Threads
from lockstep.cli.output import event
from lockstep.settings import resolve

Witness = Annotated[bool, typer.Option("--witness", help="Look only where drawn, with a stake, for a fee.")]

app = typer.Typer(name="verifier", help="Replays every claim, challenges the wrong ones.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Replays every claim, challenges the wrong ones."""


@app.command("up")
def up(
    rpc: Rpc = None, storage: Storage = None, deployment: DeploymentFile = None, home: Home = None,
    password_file: PasswordFile = None, threads: Threads = None, witness: Witness = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Audit every revealed claim and every merge; one JSON line per event on stdout.

    With --witness: enrol in every job that draws witnesses, look where this account is drawn, and earn the fee.
    SIGTERM stops auditing, plays the games that run to their end, withdraws what was earned and exits with code 0.
    """
    settings = resolve(
        rpc=rpc, storage=storage, deployment=deployment, home=home, password_file=password_file, threads=threads
    )
    from lockstep import logs
    from lockstep.party import Party
    from verifier import cheats
    from verifier.memory import Memory
    from verifier.service import Service

    logs.configure()
    stop = threading.Event()

    def told_to_stop(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with Memory(settings.home_dir) as memory, Party.open(settings) as party:
        seed = cheats.seed_of(os.environ, party.addresses.chain_id)
        signal.signal(signal.SIGTERM, told_to_stop)
        event("ready", time=party.head().time, address=party.address, pid=os.getpid())
        runner = Service(party, memory, witness=witness) if seed is None else cheats.FalseChallenger(party, seed)
        runner.run(stop)
