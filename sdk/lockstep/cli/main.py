"""The `lockstep` command: its nouns and verbs, each imported only when it is named, so that `--help` answers at once.

A command imports its other dependencies (web3, torch) when it runs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from lockstep.base.machine import is_full
from lockstep.base.redaction import scrubbed
from lockstep.cli.output import fail
from lockstep.protocol.errors import DoctorError, LockstepError, UsageError

DISTRIBUTION = "lockstep-compute"


class LazyCommand(NamedTuple):
    """A command, or a group of them, that has not been imported."""

    place: str
    """module:attribute, a typer app or a function."""
    help: str
    """The first paragraph of the command's own help."""
    panel: str

    @property
    def package(self) -> str:
        """The package that holds the module."""
        return self.place.rpartition(".")[0]


BEGIN, JUDGE, SERVE, MACHINE = "Begin here", "Check and judge", "Serve a market", "This machine"
"""Panels of `lockstep --help`."""
COMMANDS = {
    "demo": LazyCommand(
        "lockstep.demo.cli:demo",
        "Train a small GPT with three workers on a local chain, catch the one that lies, settle.",
        BEGIN,
    ),
    "local": LazyCommand("lockstep.demo.local_cli:app", "Run a local market that stays up across commands.", BEGIN),
    "train": LazyCommand("lockstep.cli.train:app", "Create, run and follow training jobs.", BEGIN),
    "worker": LazyCommand("worker.cli:app", "Train for jobs: stake, commit, defend.", BEGIN),
    "verifier": LazyCommand("verifier.cli:app", "Replay claims and challenge the wrong ones.", JUDGE),
    "replay": LazyCommand(
        "lockstep.cli.replay:replay",
        "Replay a claim: MATCH (exit 0), or the first differing step, op and element (exit 10).",
        JUDGE,
    ),
    "dispute": LazyCommand("lockstep.cli.dispute:app", "Read, follow and play dispute games about claims.", JUDGE),
    "coordinator": LazyCommand("coordinator.cli:app", "Run a coordinator: chain index, blob relay, aggregator.", SERVE),
    "storage": LazyCommand(
        "lockstep.cli.storage:storage_app", "Serve, fill and read content-addressed storage.", SERVE
    ),
    "contracts": LazyCommand("lockstep.cli.contracts:app", "Deploy, verify and show a market's contracts.", SERVE),
    "dataset": LazyCommand("lockstep.cli.dataset:app", "Build, show and check datasets of tokens or numbers.", MACHINE),
    "key": LazyCommand("lockstep.cli.key:app", "Create and show the staking key and the node key.", MACHINE),
    "doctor": LazyCommand(
        "lockstep.cli.doctor:doctor",
        "Test and benchmark the processor and every CUDA device, or only the named one; exit code 3 if one fails.",
        MACHINE,
    ),
    "trust": LazyCommand(
        "lockstep.cli.trust:trust",
        "Accept the settings of ./lockstep.toml from now on, as long as the file does not change.",
        MACHINE,
    ),
    "schema": LazyCommand(
        "lockstep.cli.schema:schema",
        "Print the JSON schema of a command's --json output; without a command, list the commands that have one.",
        MACHINE,
    ),
}
"""Every noun of `lockstep` in the order in which a newcomer needs it."""


class LazyGroup(TyperGroup):
    """The tree of commands. An entry of `COMMANDS` stands for its command until that is named."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update(
            {name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel) for name, entry in COMMANDS.items()}
        )

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """Imports the command that is named, or lists the nearest names."""
        if args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(context, args)


def load(name: str) -> Any:
    """Returns the imported command or group of `COMMANDS`, with --network wherever --rpc is."""
    from lockstep.base.settings import NETWORK
    from lockstep.cli.options import Commands
    from lockstep.runtime import logs

    logs.only_warnings()
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        tree: Any = typer.main.get_group(found)
    else:
        app = Commands(add_completion=False)
        app.command(name)(found)
        tree = typer.main.get_command(app)
    tree.name, tree.rich_help_panel = name, COMMANDS[name].panel
    for leaf in _leaves(tree):
        for rpc in [option for option in leaf.params if option.name == "rpc"]:
            network = copy(rpc)
            network.name, network.opts, network.metavar = NETWORK, [f"--{NETWORK}"], "NAME"
            network.help = "A market by name (local, or one of networks.toml) or by its coordinator's URL."
            network.expose_value, network.callback = False, _choose
            leaf.params.append(network)
    return tree


def root() -> Any:
    """Returns the tree of commands as it is before one is named."""
    app = typer.Typer(
        name="lockstep", cls=LazyGroup, help="Training compute in which every float is accountable.",
        no_args_is_help=True, pretty_exceptions_enable=False,
    )  # fmt: skip
    app.callback()(lockstep)
    return typer.main.get_command(app)


def whole() -> Any:
    """Returns the tree of commands with every command imported whose package is installed."""
    tree = root()
    tree.commands = {name: load(name) for name in tree.commands if find_spec(COMMANDS[name].package) is not None}
    return tree


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version(DISTRIBUTION))
        raise typer.Exit


def lockstep(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Training compute in which every float is accountable."""


def _leaves(tree: Any) -> Iterator[Any]:
    verbs = getattr(tree, "commands", None)
    if verbs is None:
        yield tree
    else:
        for verb in verbs.values():
            yield from _leaves(verb)


def _choose(context: typer.Context, option: Any, name: str | None) -> None:
    """Puts the chosen network into the environment, so that child processes use it too."""
    from lockstep.base.settings import NETWORK

    if name is not None:
        os.environ[f"LOCKSTEP_{NETWORK.upper()}"] = name


def main(argv: list[str] | None = None) -> None:
    """Runs a command and exits with its error's code; the stack trace of a bug goes into a file, not to the screen."""
    args = sys.argv[1:] if argv is None else argv
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
        result = root()(args=args, prog_name="lockstep", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "lockstep"
        # Without a command typer has shown the help, and its message is empty.
        raise UsageError(error.format_message() or "a command is missing", hint=f"see `{where} --help`") from error
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
            raise DoctorError(f"the disk is full: {error}", hint="free some space, then start it again") from error
        raise _bug(error) from error
    return result if isinstance(result, int) else 0


def _missing(error: ModuleNotFoundError) -> LockstepError:
    """Returns the error for a part of the distribution that is not installed; any other missing module is reported as
    a bug."""
    from importlib.metadata import requires

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
        hint = f"report it; the stack trace could not be written: {unwritten.strerror}"
    return LockstepError(f"a bug in Lockstep: {type(error).__name__}: {error}", hint=hint)


if __name__ == "__main__":
    main()
