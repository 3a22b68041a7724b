"""`lockstep trust`: accepts the settings file of the current folder."""

from __future__ import annotations

from pathlib import Path

from lockstep.base import trust as trusted
from lockstep.base.lines import say
from lockstep.base.redaction import shown
from lockstep.base.settings import FOLDER_FILE, read_settings
from lockstep.cli.options import Json, Yes
from lockstep.cli.output import confirm, emit
from lockstep.protocol.errors import NotFoundError


def trust(yes: Yes = False, as_json: Json = False) -> None:
    """Accept the settings of ./lockstep.toml from now on, as long as the file does not change.

    A file that somebody else wrote could choose your keys, your chain and your prices. Until you accept it, it can set
    only threads, the device, and limits of memory and disk.
    """
    path = Path(FOLDER_FILE)
    data, values = read_settings(path)
    if not values:
        raise NotFoundError(f"{path.resolve()} does not exist", hint="run the command in the folder of the file")
    for name, value in values.items():
        say(f"{name} = {shown(value)!r}")
    confirm(f"Accept these settings in {path.resolve().parent}?", yes or as_json)
    trusted.accept(path, data)
    emit({"file": str(path.resolve()), "settings": sorted(values)}, as_json, text=f"{path.resolve()} is trusted")
