"""`lockstep key`: creates a home's staking key and node key, and shows their public parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lockstep.base.settings import resolve
from lockstep.chain.keys import KEYSTORE, NODE_KEY
from lockstep.cli.options import Commands, Home, Json, PasswordFile
from lockstep.cli.output import emit
from lockstep.protocol.errors import KeyStoreError

app = Commands(name="key", help="Create and show the staking key and the node key.", no_args_is_help=True)


@app.command("new")
def new(
    home: Home = None,
    password_file: PasswordFile = None,
    backup: Annotated[Path | None, typer.Option(help="File for the backup of the keystore.")] = None,
    as_json: Json = False,
) -> None:
    """Create a staking key (encrypted keystore v3) and a node key (ed25519), and back the keystore up
    elsewhere."""
    from lockstep.chain.keys import create_account, create_node_key

    settings = resolve(home=home, password_file=password_file)
    password = settings.password()
    if not password:
        raise KeyStoreError("the password is empty", hint="put a password in the password file")
    if backup is None:
        raise KeyStoreError(
            "no backup file is given", hint="pass --backup FILE on another disk: if the key is lost, so is its stake"
        )
    keystore, node_key = settings.home_path / KEYSTORE, settings.home_path / NODE_KEY
    for path in (keystore, node_key, backup):
        if path.exists():
            raise KeyStoreError(f"{path} exists", hint="choose another path, or move the old key away")
    if not backup.parent.is_dir():
        raise KeyStoreError(f"the folder {backup.parent} does not exist", hint="mount the disk, or create the folder")
    _ = settings.home_dir
    made: list[Path] = []
    try:
        account = create_account(keystore, password)
        made.append(keystore)
        node = create_node_key(node_key)
        made.append(node_key)
        _copy(keystore, backup)
    except BaseException as error:
        # INVARIANT: a key without its backup does not stay.
        for path in made:
            path.unlink()
        if isinstance(error, OSError):
            raise KeyStoreError(
                f"cannot write {error.filename}: {error.strerror}", hint="the home and the backup must be writable"
            ) from error
        raise
    data = {
        "address": account.address,
        "node_key": bytes(node.verify_key).hex(),
        "keystore": str(keystore),
        "backup": str(backup),
    }
    emit(data, as_json, text=f"{account.address}\nbackup: {backup}")


def _copy(keystore: Path, backup: Path) -> None:
    """Writes the backup of the keystore durably; raises OSError, and then leaves no file."""
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(keystore.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        backup.unlink()
        raise


@app.command("show")
def show(home: Home = None, password_file: PasswordFile = None, as_json: Json = False) -> None:
    """Show a home's address and public node key; check that the password opens the keystore."""
    from lockstep.chain.keys import load_account, load_node_key

    settings = resolve(home=home, password_file=password_file)
    folder = settings.home_path
    account = load_account(folder / KEYSTORE, settings.password())
    node = load_node_key(folder / NODE_KEY)
    data = {"address": account.address, "node_key": bytes(node.verify_key).hex()}
    emit(data, as_json, text=account.address)
