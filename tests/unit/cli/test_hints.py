"""Whatever a text tells a user to type exists: commands and options in hints, help, docstrings and documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import commandtext
from tests.support.commandtext import wrong

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = {
    "--recursive": "git",
    "--upgrade": "pip",
}
"""Options in hints that belong to another program."""


def test_every_command_and_option_in_a_hint_exists(repository: Path) -> None:
    found = list(commandtext.hints(repository))
    assert len(found) > 300, "the hints of the code base"
    told = [f"{t.where}: {why}" for t in found for c in commandtext.named_commands(t.text) if (why := wrong(c))]
    known = commandtext.options_of_all() | FOREIGN.keys()
    told += [f"{t.where}: no command has {o}" for t in found for o in OPTION.findall(t.text) if o not in known]
    assert told == []


def test_every_command_in_a_string_of_the_code_exists(repository: Path) -> None:
    named = [(t, c) for t in commandtext.code_texts(repository) for c in commandtext.named_commands(t.text)]
    assert len(named) > 60, "commands in hints, help texts and docstrings"
    assert [f"{t.where}: {why}" for t, c in named if (why := wrong(c))] == []


def test_every_command_in_a_document_exists(repository: Path) -> None:
    named = [
        (file.name, command)
        for file in commandtext.documents(repository)
        for command in commandtext.named_commands(file.read_text())
    ]
    assert len(named) > 90, "commands in documents"
    assert [f"{name}: {why}" for name, command in named if (why := wrong(command))] == []


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("run `lockstep worker\nup --job X` and `guard import FILE`", ["worker up --job X", "guard import FILE"]),
        ("    lockstep train run job.toml \\\n      --budget 60   # comment", ["train run job.toml --budget 60"]),
        ("```\nlockstep local up && .venv/bin/lockstep doctor\n```", ["local up", "doctor"]),
        ("a `worker` does; `worker_id`; `lockstep/1`; `lockstep.connect`", []),
    ],
)
def test_commands_are_found_in_text(text: str, commands: list[str]) -> None:
    assert list(commandtext.named_commands(text)) == commands


@pytest.mark.parametrize(
    "command",
    [
        "worker upp", "worker up --max-steak 5", "train lists", "train run --budgets 5", "guard exports", "bogus",
        "local up forever", "worker bogus", "demo --cheats x",
    ],
)  # fmt: skip
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    assert wrong(command) is not None


@pytest.mark.parametrize(
    "command",
    [
        "worker up", "worker", "worker up ...", "replay CLAIM [--roots] [--threads N] [--device auto|cpu|cuda:N]",
        "train run JOB.toml --budget 5", "dispute list --all", "--version", "worker guard export FILE",
        "worker up --network sepolia",
    ],
)  # fmt: skip
def test_a_command_that_is_there_is_not(command: str) -> None:
    assert wrong(command) is None
