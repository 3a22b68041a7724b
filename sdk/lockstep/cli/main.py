"""The `lockstep` command: nouns, each a typer app, the programs found by entry points.

Imports stay light (no web3, no torch): a command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from importlib.metadata import entry_points

import click
import typer

from lockstep.cli import key, storage, train
from lockstep.cli.demo import demo
from lockstep.cli.output import fail
from lockstep.cli.replay import replay
from lockstep.protocol.errors import LockstepError, UsageError


def build() -> typer.Typer:
    """The whole command tree."""
    app = typer.Typer(
        name="lockstep",
        help="Training compute in which every float is accountable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.command("demo")(demo)
    app.command("replay")(replay)
    app.add_typer(train.app, name="train")
    app.add_typer(key.app, name="key")
    app.add_typer(storage.storage_app, name="storage")
    for entry in sorted(entry_points(group="lockstep.programs"), key=lambda e: e.name):
        app.add_typer(entry.load(), name=entry.name)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with the error tree's code; a bug leaves its trace in a file, not on the screen."""
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in args
    try:
        result = typer.main.get_command(build())(args=args, standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.exceptions.Abort:
        code = 130
    except click.exceptions.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "lockstep"
        code = fail(UsageError(error.format_message(), hint=f"see `{where} --help`"), as_json)
    except LockstepError as error:
        code = fail(error, as_json)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = fail(_bug(error), as_json)
    sys.exit(code)


def _bug(error: Exception) -> LockstepError:
    with tempfile.NamedTemporaryFile("w", prefix="lockstep-", suffix=".trace", delete=False) as file:
        traceback.print_exc(file=file)
    return LockstepError(f"a bug in Lockstep: {type(error).__name__}: {error}", hint=f"report it with {file.name}")


if __name__ == "__main__":
    main()
