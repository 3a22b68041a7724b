"""`service install`, `uninstall`, `status`: manages a systemd unit that runs a program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.files import write_atomically
from lockstep.base.settings import DEFAULTS, FOLDER_FILE, Settings, cache_location, resolve
from lockstep.cli.options import (
    Commands,
    ComputingFlags,
    CoordinatorUrl,
    Home,
    Json,
    LimitFlags,
    Listen,
    Metrics,
    ProgramFlags,
    role_of,
)
from lockstep.cli.output import emit
from lockstep.protocol.errors import KeyStoreError, TryLater, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstep.runtime.systemd_unit import Unit

app = Commands(name="service", help="Run this program as a systemd service.", no_args_is_help=True)

Name = Annotated[
    str | None, typer.Option("--name", help="Name of the unit, after lockstep-; default: the home's folder.")
]
System = Annotated[bool, typer.Option("--system", help="Use a system unit instead of a user unit; needs root.")]
Print = Annotated[bool, typer.Option("--print", help="Print the unit; write nothing.")]
UpFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- FLAGS]", help="Flags of `up` that are not settings, e.g. -- --witness.", show_default=False
    ),
]
SYSTEM_UNITS = Path("/etc/systemd/system")
PATHS = ("storage", "deployment", "home", "password_file")
NOT_WRITTEN = ("home", "password_file")
FLAGS = {"worker": (), "verifier": ("--witness", "--volunteer"), "coordinator": ()}
"""The flags of `up`, by program; everything else is a setting."""


@dataclass(frozen=True)
class ServicePlace:
    """The location of a unit, which need not exist."""

    name: str
    folder: Path
    system: bool

    @property
    def file(self) -> Path:
        """The unit file."""
        return self.folder / f"{self.name}.service"

    @property
    def control(self) -> str:
        """The systemctl command for this unit."""
        return "systemctl" if self.system else "systemctl --user"


@app.command("install")
def install(
    context: typer.Context,
    *,
    more: UpFlags = None,
    flags: ProgramFlags,
    coordinator: CoordinatorUrl = None,
    computing: ComputingFlags,
    listen_seconds: Listen = None,
    metrics: Metrics = None,
    limits: LimitFlags,
    name: Name = None,
    system: System = False,
    only_print: Print = False,
    as_json: Json = False,
) -> None:
    """Install a hardened unit with the settings of this home, this command, the environment and the files.

    The settings go into `lockstep.toml` in the home, mode 0600: the unit itself holds no secrets.
    """
    from lockstep.runtime import systemd_unit as units

    role = role_of(context)
    if role != "worker" and (given := [name for name, value in limits.given().items() if value is not None]):
        raise UsageError(f"{given[0]} is a worker's setting", hint=f"omit it: a {role} joins no jobs")
    settings = flags.settings(
        role, computing, limits, coordinator=coordinator, listen_seconds=listen_seconds, metrics=metrics
    )
    unit = _unit(role, settings, more or [], system)
    place = _place(units.name_of(role, unit.home, name), system)
    values = _values(role, settings)
    told: dict[str, Any] = {"name": place.name, "path": str(place.file), "unit": unit.text(), "written": False}
    if only_print:
        emit(told, as_json, text=unit.text().rstrip("\n"))
        return
    toml = unit.home / FOLDER_FILE
    for file in (place.file, toml):
        if file.exists() and not units.is_ours(file.read_text(errors="replace"), role):
            raise UsageError(
                f"{file} exists but was not written by `install`", hint="move it away, or give another --name"
            )
    if place.file.exists() and f"WorkingDirectory={units.escaped(str(unit.home))}\n" not in place.file.read_text():
        raise UsageError(f"{place.file} belongs to another home", hint="give this service another --name")
    # A folder that is not there cannot be made writable.
    for folder in (unit.cache, *unit.writable):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The settings first: a unit without them would start with defaults.
    _write(toml, units.settings_text(role, values), 0o600)
    if system:
        os.chown(toml, unit.home.stat().st_uid, unit.home.stat().st_gid)
    _write(place.file, unit.text(), 0o644)
    _reload(place)
    linger = "" if system else "; `loginctl enable-linger` keeps it running after you log out"
    text = f"{place.file}\n{toml}\nstart it: {place.control} enable --now {place.name}{linger}"
    emit({**told, "written": True}, as_json, text=text)


@app.command("uninstall")
def uninstall(
    context: typer.Context, home: Home = None, name: Name = None, system: System = False, as_json: Json = False
) -> None:
    """Uninstall the unit and its settings; refused while the program runs, since nothing would restart it."""
    from lockstep.runtime import systemd_unit as units
    from lockstep.runtime.guard import lock

    role = role_of(context)
    path = resolve(role, home=home).home_path.absolute()
    place, removed = _place(units.name_of(role, path, name), system), []
    holder = lock.holder(path) if path.exists() else None
    if holder is not None:
        raise TryLater(
            f"process {holder.pid} ({holder.who}) works in {path}",
            hint=f"drain it first (lockstep {role} drain), then {place.control} disable {place.name}",
        )
    for file in (place.file, path / FOLDER_FILE):
        if file.exists() and units.is_ours(file.read_text(errors="replace"), role):
            _unlink(file)
            removed.append(str(file))
    if removed:
        _reload(place)
    emit({"removed": removed}, as_json, text="\n".join(f"removed {file}" for file in removed) or "nothing is installed")


@app.command("status")
def status(
    context: typer.Context, home: Home = None, name: Name = None, system: System = False, as_json: Json = False
) -> None:
    """Show whether a unit is installed, its state in systemd, and whether the program runs."""
    from lockstep.runtime import systemd_unit as units
    from lockstep.runtime.guard import lock

    role = role_of(context)
    path = resolve(role, home=home).home_path.absolute()
    place = _place(units.name_of(role, path, name), system)
    holder = lock.holder(path) if path.exists() else None
    active = _asked(place, "is-active")
    data = {
        "name": place.name, "path": str(place.file), "installed": place.file.exists(), "active": active,
        "running": None if holder is None else {"pid": holder.pid, "program": holder.who},
    }  # fmt: skip
    running = "nothing runs in its home" if holder is None else f"process {holder.pid} ({holder.who}) runs"
    installed = f"{place.file}: {active or 'systemd does not respond'}" if data["installed"] else "not installed"
    emit(data, as_json, text=f"{installed}; {running}")


# -- inside


def _unit(role: str, settings: Settings, flags: Sequence[str], system: bool) -> Unit:
    from lockstep.runtime.systemd_unit import Unit

    for flag in flags:
        if flag not in FLAGS[role]:
            known = ", ".join(FLAGS[role]) or f"a {role} has no flags"
            raise UsageError(f"{flag!r} is not a flag of a service", hint=f"{known}; settings are options before --")
    if role == "worker" and not settings.max_stake:
        raise UsageError("no limit is set on this worker's stake", hint="give --max-stake 100, or --max-stake all")
    if not settings.password_file:
        raise KeyStoreError("no password file is given", hint="pass --password-file FILE or set LOCKSTEP_PASSWORD_FILE")
    home = settings.home_path.absolute()
    if not home.is_dir():
        raise UsageError(f"the home {home} does not exist", hint="create its keys first: `lockstep key new`")
    command = shutil.which("lockstep", path=str(Path(sys.executable).parent)) or shutil.which("lockstep")
    if command is None:
        raise UsageError("the lockstep command is not installed", hint="install the package and use its command")
    writable = []
    if settings.storage.startswith("dir://"):
        writable.append(Path(settings.storage.removeprefix("dir://")).expanduser().absolute())
    return Unit(
        role, home, Path(command), Path(settings.password_file).expanduser().absolute(),
        cache_location().absolute(), tuple(flags), tuple(writable), home.owner() if system else "",
    )  # fmt: skip


def _values(role: str, settings: Settings) -> Mapping[str, object]:
    """Returns the settings for the unit's program: every non-default one, with absolute paths."""
    from lockstep.base.settings import read_toml

    values: dict[str, object] = {"home": str(settings.home_path.absolute())}
    for name, default in DEFAULTS.items():
        value = getattr(settings, name)
        if name == "deployment":
            value = str(Path(value).expanduser().absolute())
        elif name == "storage" and value.startswith("dir://"):
            value = f"dir://{Path(value.removeprefix('dir://')).expanduser().absolute()}"
        if name not in NOT_WRITTEN and (value != default or name == "rpc"):
            values[name] = value
    if role == "coordinator":
        own = {k: v for k, v in read_toml(Path(FOLDER_FILE)).items() if k.startswith("coordinator_")}
        prefix = "LOCKSTEP_COORDINATOR_"
        values |= own | {k[len("LOCKSTEP_") :].lower(): v for k, v in os.environ.items() if k.startswith(prefix)}
    return values


def _place(name: str, system: bool) -> ServicePlace:
    folder = SYSTEM_UNITS
    if not system:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        folder = Path(base).expanduser() / "systemd/user"
    return ServicePlace(name, folder, system)


def _write(file: Path, text: str, mode: int) -> None:
    """Writes a file atomically, in a folder that is created if necessary."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, [text.encode()], mode=mode)
    except (OSError, UsageError) as error:
        raise UsageError(
            f"the service cannot be written: {error}", hint="--print shows it; --system needs root"
        ) from error


def _unlink(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{file} cannot be removed: {error.strerror}", hint="--system needs root") from error


def _reload(place: ServicePlace) -> None:
    """Makes systemd reload its units; does nothing without a running systemd."""
    _asked(place, "daemon-reload")


def _asked(place: ServicePlace, verb: str) -> str:
    """Runs systemctl and returns its output; empty if there is no systemd."""
    words = [*place.control.split(), verb, *([] if verb == "daemon-reload" else [place.name])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
