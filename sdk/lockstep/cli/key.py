"""`lockstep key`: make a home's two keys, show what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import Home, Json, PasswordFile
from lockstep.cli.output import emit
from lockstep.protocol.errors import KeyStoreError
from lockstep.settings import resolve

KEYSTORE = "keystore.json"
NODE_KEY = "node.key"

app = typer.Typer(name="key", help="Staking key and node key.", no_args_is_help=True)


@app.command("new")
def new(
    home: Home = None,
    password_file: PasswordFile = None,
    backup: Annotated[Path | None, typer.Option(help="Where the second copy of the keystore goes.")] = None,
    as_json: Json = False,
) -> None:
    """Make a staking key (encrypted keystore v3) and a node key (ed25519); keep a backup elsewhere."""
    from lockstep.chain.keys import create_account, create_node_key

    settings = resolve(home=home, password_file=password_file)
    password = settings.password()
    if not password:
        raise KeyStoreError("the password is empty", hint="put a password in the password file")
    if backup is None:
        raise KeyStoreError(
            "no backup is named", hint="pass --backup FILE on another disk: one lost file is a lost stake"
        )
    if backup.exists():
        raise KeyStoreError(f"{backup} exists", hint="choose another path for the backup")
    folder = settings.home_dir
    account = create_account(folder / KEYSTORE, password)
    node = create_node_key(folder / NODE_KEY)
    backup.write_bytes((folder / KEYSTORE).read_bytes())
    backup.chmod(0o600)
    data = {
        "address": account.address,
        "node_key": bytes(node.verify_key).hex(),
        "keystore": str(folder / KEYSTORE),
        "backup": str(backup),
    }
    emit(data, as_json, text=f"{account.address}\nbackup: {backup}")


@app.command("show")
def show(home: Home = None, password_file: PasswordFile = None, as_json: Json = False) -> None:
    """The address and the public node key of a home; checks that the password opens the keystore."""
    from lockstep.chain.keys import load_account, load_node_key

    settings = resolve(home=home, password_file=password_file)
    folder = settings.home_dir
    account = load_account(folder / KEYSTORE, settings.password())
    node = load_node_key(folder / NODE_KEY)
    data = {"address": account.address, "node_key": bytes(node.verify_key).hex()}
    emit(data, as_json, text=account.address)
