"""Checks every JSON line that a command prints in a test against the schema that `lockstep schema` publishes.

Lines are intercepted in three places: `lines.write` in this process, `communicate` of a child process, and the reader
of the demo's processes. Differences are recorded, and fail the test that printed the line.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from lockstep.base import lines
from lockstep.cli import main as command_line
from lockstep.cli.schema import bundled, names

if TYPE_CHECKING:
    from lockstep.demo.processes import Process

STREAMS = (
    "worker.up", "verifier.up", "coordinator.up", "storage.serve", "train.watch", "dispute.watch", "dispute.defend",
)  # fmt: skip
"""Commands that print events: every line is one, until an error ends them."""
EXACT = 2**53
"""Bound above which JavaScript cannot represent JSON integers exactly."""


@cache
def validator(name: str) -> Draft202012Validator:
    """Returns the validator of a named schema."""
    return Draft202012Validator(bundled(name))


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns the commands of a tree by their words."""
    verbs = getattr(command, "commands", None)
    if verbs is None:
        return {path: command}
    return {words: leaf for name in verbs for words, leaf in leaves(verbs[name], (*path, name)).items()}


@cache
def commands() -> Mapping[tuple[str, ...], Any]:
    """Returns every command with its options."""
    return leaves(command_line.whole())


def command_of(arguments: Sequence[str]) -> str | None:
    """Returns the name of the schema for a command line; None if it names no command."""
    for length in (3, 2, 1):
        if tuple(arguments[:length]) in commands():
            return ".".join(arguments[:length])
    return None


def arguments_of(call: Any) -> Sequence[str] | None:
    """Returns the arguments that a child process passes to `lockstep`; None for another program."""
    words = [str(word) for word in call] if isinstance(call, (list, tuple)) else []
    if words[1:3] == ["-m", "lockstep.cli.main"]:
        return words[3:]
    if words[1:3] == ["-m", "lockstep.demo.cheats"]:
        return words[5:]
    return words[1:] if words and words[0].endswith("/lockstep") else None


def amount_names(schema: Any) -> Iterator[str]:
    """Yields the properties of a schema, at any depth, that are amounts."""
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            if isinstance(inner, dict) and str(inner.get("$ref", "")).endswith("/amount"):
                yield name
        for inner in schema.values():
            yield from amount_names(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from amount_names(inner)


@cache
def amounts() -> frozenset[str]:
    """Returns every key that is an amount in some schema."""
    return frozenset(name for schema in names() for name in amount_names(bundled(schema)))


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """Yields paths of amounts that are numbers, and of numbers that JSON cannot represent."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in amounts() and isinstance(inner, (int, float)) and not isinstance(inner, bool):
                yield f"{path}/{name} is an amount and the number {inner}"
            yield from numbers(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}/{i}")
    elif isinstance(value, int) and abs(value) > EXACT:
        yield f"{path} is {value}, more than a number of JSON holds"


def faults(line: Mapping[str, Any], command: str | None) -> Iterator[str]:
    """Yields differences between a line and its command's schema."""
    if "event" not in line:
        yield from differing("envelope", line)
        if command is not None and line.get("ok") is True:
            if command in STREAMS:
                yield f"{command} prints events, not {line}"
            else:
                yield from differing(command, line["data"])
            if command != "schema":
                yield from numbers(line["data"])
    elif command is not None:
        # A `ready` line counts as a result: `local up` and similar commands print no events.
        yield from differing(command, line) if command in STREAMS else [f"{command} has no events: {line}"]
        yield from numbers(line)


def differing(name: str, value: Any) -> Iterator[str]:
    """Yields the most specific error, if any."""
    error = best_match(validator(name).iter_errors(value))
    if error is not None:
        where = "/".join(map(str, error.absolute_path))
        yield f"{name}: {error.message[:600]} at /{where}; of {json.dumps(value)[:1000]}"


class Watch:
    """Checks printed lines while it is installed."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.seen: set[str] = set()
        """Schemas against which a line was checked."""
        self._running: list[list[str]] = []

    def line(self, line: Mapping[str, Any], arguments: Sequence[str] | None) -> None:
        """Checks one line of a command; `arguments` None: the command is unknown."""
        command = None if arguments is None else command_of(arguments)
        self.seen.add(command or "envelope")
        self.faults += [f"lockstep {' '.join(arguments or ['?'])}: {fault}" for fault in faults(line, command)]

    def text(self, text: str, arguments: Sequence[str]) -> None:
        """Checks the stdout of a finished command."""
        for line in text.splitlines():
            # A line truncated by a kill is ignored.
            if line.startswith(('{"schema": "lockstep/1"', '{"event": ')) and line.endswith("}"):
                self.line(json.loads(line), arguments)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Installs the interception in the three places."""
        run, write = command_line._run, lines.write
        communicate = subprocess.Popen.communicate

        def running(args: list[str]) -> int:
            self._running.append(args)
            try:
                return run(args)
            finally:
                self._running.pop()

        def written(line: dict[str, Any]) -> None:
            self.line(json.loads(json.dumps(line, default=str)), self._running[-1] if self._running else None)
            write(line)

        def communicated(popen: subprocess.Popen[Any], *args: Any, **more: Any) -> Any:
            out, err = communicate(popen, *args, **more)
            arguments = arguments_of(popen.args)
            if arguments is not None and out:
                self.text(out if isinstance(out, str) else out.decode(errors="replace"), arguments)
            return out, err

        patch.setattr(command_line, "_run", running)
        patch.setattr(lines, "write", written)
        patch.setattr(subprocess.Popen, "communicate", communicated)
        # The roles' tests also run without the demo (`make test-honest`).
        if find_spec("lockstep.demo") is not None:
            self._install_reader(patch)

    def _install_reader(self, patch: pytest.MonkeyPatch) -> None:
        from lockstep.demo.processes import Process

        read = Process._read

        def reading(process: Process, on_event: Callable[[str, dict[str, Any]], None] | None) -> None:
            def seen(name: str, event: dict[str, Any]) -> None:
                arguments = arguments_of(process.popen.args)
                if arguments is not None:
                    self.line(event, arguments)
                if on_event is not None:
                    on_event(name, event)

            read(process, seen)

        patch.setattr(Process, "_read", reading)
