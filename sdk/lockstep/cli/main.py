"""The `lockstep` command: nouns, each a typer app, the programs found by entry points.

Imports stay light (no web3, no torch): a command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from copy import copy
from functools import cache
from importlib.metadata import entry_points, requires, version
from typing import Annotated, Any

import typer

from lockstep.base.machine import is_full
from lockstep.base.redaction import scrubbed
from lockstep.base.settings import NETWORK
from lockstep.cli import contracts, dataset, dispute, key, storage, train
from lockstep.cli.doctor import doctor
from lockstep.cli.options import Commands
from lockstep.cli.output import fail
from lockstep.cli.replay import replay
from lockstep.cli.schema import schema
from lockstep.cli.trust import trust
from lockstep.protocol.errors import DoctorError, LockstepError, UsageError
from lockstep.runtime import logs

DISTRIBUTION = "lockstep-compute"
PANELS = {
    "Begin here": ("demo", "local", "train", "worker"),
    "Check and judge": ("verifier", "replay", "dispute"),
    "Serve a market": ("coordinator", "storage", "contracts"),
    "This machine": ("dataset", "key", "doctor", "trust", "schema"),
}
"""The nouns of `lockstep --help` in the order of their use."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version(DISTRIBUTION))
        raise typer.Exit


def build() -> typer.Typer:
    """Returns the tree of all commands."""
    app = Commands(
        name="lockstep",
        help="Training compute in which every float is accountable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(lockstep)
    app.command("replay")(replay)
    app.command("doctor")(doctor)
    app.command("schema")(schema)
    app.command("trust")(trust)
    app.add_typer(train.app, name="train")
    app.add_typer(dispute.app, name="dispute")
    app.add_typer(contracts.app, name="contracts")
    app.add_typer(dataset.app, name="dataset")
    app.add_typer(key.app, name="key")
    app.add_typer(storage.storage_app, name="storage")
    for entry in sorted(entry_points(group="lockstep.programs"), key=lambda e: e.name):
        program = entry.load()
        if isinstance(program, typer.Typer):
            app.add_typer(program, name=entry.name)
        else:
            app.command(entry.name)(program)
    return app


def lockstep(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Training compute in which every float is accountable."""


@cache
def command() -> Any:
    """Returns the tree of commands, with --network added wherever --rpc is."""
    tree: Any = typer.main.get_command(build())
    for panel, nouns in PANELS.items():
        for noun in filter(tree.commands.__contains__, nouns):
            tree.commands[noun] = tree.commands.pop(noun)
            tree.commands[noun].rich_help_panel = panel
    for leaf in _leaves(tree):
        for rpc in [option for option in leaf.params if option.name == "rpc"]:
            network = copy(rpc)
            network.name, network.opts, network.metavar = NETWORK, [f"--{NETWORK}"], "NAME"
            network.help = "A market by name (local, or one of networks.toml) or by its coordinator's URL."
            network.expose_value, network.callback = False, _choose
            leaf.params.append(network)
    return tree


def _leaves(tree: Any) -> Iterator[Any]:
    verbs = getattr(tree, "commands", None)
    if verbs is None:
        yield tree
    else:
        for verb in verbs.values():
            yield from _leaves(verb)


def _choose(context: typer.Context, option: Any, name: str | None) -> None:
    """Puts the chosen network into the environment, so that child processes use it too."""
    if name is not None:
        os.environ[f"LOCKSTEP_{NETWORK.upper()}"] = name


def main(argv: list[str] | None = None) -> None:
    """Runs a command and exits with its error's code; the stack trace of a bug goes into a file, not to the screen."""
    args = sys.argv[1:] if argv is None else argv
    logs.only_warnings()
    try:
        code = _run(args)
    except LockstepError as error:
        code = fail(error, as_json="--json" in args)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _run(args: list[str]) -> int:
    """Runs a command and returns its exit code; raises only LockstepError."""
    try:
        result = command()(args=args, prog_name="lockstep", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "lockstep"
        # Without a command typer has shown the help, and its message is empty.
        raise UsageError(error.format_message() or "a command is due", hint=f"see `{where} --help`") from error
    except (LockstepError, typer.Abort):
        raise
    except (BrokenPipeError, SystemExit) as leave:
        # typer leaves by SystemExit when nobody reads on: `lockstep train watch JOB | head`.
        if not isinstance(leave, BrokenPipeError) and not isinstance(leave.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
        return 0
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    except Exception as error:
        if is_full(error) or is_full(error.__cause__):
            raise DoctorError(
                f"nothing can be written: the disk is full ({error})", hint="free some space, then start it again"
            ) from error
        raise _bug(error) from error
    return result if isinstance(result, int) else 0


def _missing(error: ModuleNotFoundError) -> LockstepError:
    """Returns the error for a part of the distribution that is not installed; any other missing module is reported as
    a bug."""
    module = (error.name or "").partition(".")[0]
    for requirement in requires(DISTRIBUTION) or ():
        named = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"""extra == ["'](train|hf|coordinator)["']""", requirement)
        if named and extra and named[0].replace("-", "_").lower() == module:
            return DoctorError(
                f"this command needs {module}", hint=f"install it: pip install '{DISTRIBUTION}[{extra[1]}]'"
            )
    return _bug(error)


def _bug(error: Exception) -> LockstepError:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="lockstep-", suffix=".trace", delete=False) as file:
            file.write(scrubbed(traceback.format_exc()))
        hint = f"report it with {file.name}"
    except OSError as unwritten:
        hint = f"report it; its trace cannot be written: {unwritten.strerror}"
    return LockstepError(f"a bug in Lockstep: {type(error).__name__}: {error}", hint=hint)


if __name__ == "__main__":
    main()
