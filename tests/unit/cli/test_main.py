"""The command line itself: help, usage errors, the envelope, what is imported."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lockstep.base import lines
from lockstep.base.networks import PROGRAMS
from lockstep.chain.keys import create_account
from lockstep.cli import main as command
from lockstep.cli import output
from lockstep.cli.main import root, whole
from lockstep.cli.options import PLUMBING
from lockstep.protocol.errors import TryLater, UsageError
from tests.support.waiting import PATIENCE

from .conftest import Lockstep

NOUNS = ("demo", "train", "worker", "verifier", "coordinator", "storage", "replay", "doctor", "key", "dispute")
COMMANDS = [
    *(("local", verb) for verb in ("up", "down", "status", "forward")),
    *(("contracts", verb) for verb in ("deploy", "verify", "addresses")),
    ("demo",), ("doctor",), ("replay",), ("schema",), ("trust",), ("key", "new"), ("key", "show"),
    *(("dataset", verb) for verb in ("build", "pack", "show", "verify")),
    *(("dispute", verb) for verb in ("list", "show", "tree", "check", "watch")),
    *(("dispute", verb) for verb in ("open", "respond", "prove", "resolve", "defend")),
    *(("train", verb) for verb in ("init", "quote", "run", "resume", "list", "status", "why", "watch", "metrics")),
    *(("train", verb) for verb in ("pull", "load", "audit", "cancel", "withdraw", "check", "rehearse")),
    *(("worker", verb) for verb in ("up", "status", "earnings", "why", "retry")),
    ("verifier", "up"), ("verifier", "retry"), ("coordinator", "retry"),
    ("verifier", "void"),
    *((noun, verb) for noun in PROGRAMS for verb in ("stake", "unstake", "withdraw", "drain", "doctor")),
    *((noun, "owner", verb) for noun in PROGRAMS for verb in ("set", "propose", "accept", "delegate", "show")),
    *((noun, "service", verb) for noun in PROGRAMS for verb in ("install", "uninstall", "status")),
    *(("worker", verb) for verb in ("quote", "fund", "support-bundle")),
    *((noun, "guard", verb) for noun in ("worker", "coordinator") for verb in ("export", "import")),
    *(("coordinator", verb) for verb in ("up", "migrate", "reindex", "backup", "restore")),
    *(("storage", verb) for verb in ("serve", "put", "get", "stat")),
]  # fmt: skip


def test_help_names_every_noun(lockstep: Lockstep) -> None:
    ended = lockstep("--help")
    assert ended.code == 0
    assert [n for n in NOUNS if n not in ended.out] == []
    assert ended.err == ""


def test_help_lists_nouns_in_the_order_of_use_and_plumbing_apart(lockstep: Lockstep) -> None:
    told = lockstep("--help").out
    places = [told.index(f"\n│ {noun} ") for noun in command.COMMANDS]
    assert places == sorted(places)
    told = lockstep("train", "watch", "--help").out
    assert told.index("--loss") < told.index(PLUMBING) < told.index("--rpc") < told.index("--network")


@pytest.mark.parametrize(
    "command",
    [("train", "list"), ("train", "why", "ab" * 32), ("train", "run", "job.toml", "--budget", "1"),
     ("worker", "up", "--max-stake", "1"), ("worker", "status"), ("verifier", "up")],
    ids=" ".join,
)  # fmt: skip
def test_without_a_market_every_command_names_the_two_ways_on(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    if command[0] == "train":
        assert lockstep("train", "init", "--example").code == 0
    else:
        create_account(Path("home/keystore.json"), "password", work=2)
        command = (*command, "--home", "home")
    ended = lockstep(*command, "--json")
    assert (ended.code, ended.error["code"]) == (7, "not_found"), ended
    assert ended.error["message"].startswith("no market is known here")
    assert "`lockstep local up`" in ended.error["hint"]
    assert "--network" in ended.error["hint"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("verb", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_takes_json(lockstep: Lockstep, verb: tuple[str, ...]) -> None:
    ended = lockstep(*verb, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "--json" in ended.out, ended.out


def test_the_list_of_commands_above_is_all_of_them() -> None:
    def leaves(command: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        verbs = getattr(command, "commands", None)
        return {path} if verbs is None else {leaf for name in verbs for leaf in leaves(verbs[name], (*path, name))}

    found = leaves(whole())
    assert found == set(COMMANDS)


def test_the_help_of_what_is_not_imported_is_its_own() -> None:
    before, after = root().commands, whole().commands
    assert list(before) == list(after) == list(command.COMMANDS)
    assert [each.help for each in before.values()] == [each.help.partition("\n\n")[0] for each in after.values()]


@pytest.mark.parametrize("nothing", [(), ("train",), ("worker",)], ids=str)
def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(
    lockstep: Lockstep, nothing: tuple[str, ...]
) -> None:
    ended = lockstep(*nothing)
    assert ended.code == 2
    assert "Usage: lockstep" in ended.out
    assert "hint: see `lockstep" in ended.err


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("bogus",), "bogus"),
        (("--bogus",), "--bogus"),
        (("worker", "up", "--bogus"), "--bogus"),
        (("worker", "up", "--threads", "many"), "--threads"),
        (("worker", "up", "--threads", "0"), "threads is 0"),
        (("worker", "up", "--device", "gpu"), "device is 'gpu'"),
        (("verifier", "up", "--device", "cuda:x"), "device is 'cuda:x'"),
        (("worker", "up", "--device", "cuda:999"), "CUDA"),
        (("verifier", "up", "--device", "cuda:999"), "CUDA"),
        (("coordinator", "up", "--device", "cuda:999"), "CUDA"),
        (("replay", "ab" * 32, "--device", "cuda:999"), "CUDA"),
        (("replay", "ab" * 32, "--device", "emulated", "--path", "scalar"), "--path scalar"),
        (("doctor", "--device", "cuda:999"), "CUDA"),
        (("worker", "up", "--job", "xyz"), "xyz"),
        (("coordinator", "up", "--port", "70000"), "70000"),
        (("coordinator", "up", "--poll", "1"), "--poll"),
        (("coordinator", "migrate", "--database", "nonsense"), "database"),
        (("coordinator", "migrate", "--database", "nonsense://x"), "database"),
        (("worker", "up", "--coordinator", "ftp://x"), "ftp://x"),
        (("storage", "serve"), "--home"),
        (("demo", "--seed", "-1"), "--seed"),
        (("demo", "--cheat", "kindness"), "kindness"),
        (("demo", "--workers", "99"), "99"),
        (("demo", "--out", "/dev/null"), "/dev/null"),
        (("replay",), "CLAIM"),
        (("replay", "xyz"), "xyz"),
        (("replay", "abab"), "abab"),
        (("replay", "ab" * 32, "--path", "abacus"), "abacus"),
        (("train", "run", "job.toml"), "--budget"),
        (("train", "run", "job.toml", "--budget", "much"), "--budget"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_command_line_is_2_with_a_hint(lockstep: Lockstep, arguments: tuple[str, ...], named: str) -> None:
    told = lockstep(*arguments)
    assert told.code == 2
    assert told.out == "", "stdout is for data"
    assert named in told.err
    assert "hint: " in told.err
    assert "Traceback" not in told.err
    as_json = lockstep(*arguments, "--json")
    assert (as_json.code, as_json.error["code"]) == (2, "usage")
    assert named in as_json.error["message"]
    assert as_json.err == ""
    assert list(Path.cwd().iterdir()) == [], "nothing was written"


def test_a_wrong_settings_file_is_2(lockstep: Lockstep) -> None:
    Path("lockstep.toml").write_text("threads = 'many'\n")
    assert lockstep("worker", "up", "--json").error["code"] == "usage"


def test_a_bug_leaves_its_trace_in_a_file_and_exits_with_1(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> typer.Typer:
        raise ZeroDivisionError("one over nothing")

    monkeypatch.setattr(command, "root", broken)
    ended = lockstep("--json")
    assert (ended.code, ended.error["code"]) == (1, "internal")
    assert "one over nothing" in ended.error["message"]
    trace = Path(ended.error["hint"].rpartition(" ")[2])
    assert "ZeroDivisionError" in trace.read_text()
    assert "Traceback" not in ended.out + ended.err
    trace.unlink()


def full_database() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), full_database()], ids=repr)
def test_a_full_disk_is_told_as_that_and_is_no_bug(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("lockstep.cli.options.resolve", full)
    monkeypatch.setattr(command.tempfile, "NamedTemporaryFile", full)
    ended = lockstep("worker", "up", "--json")
    assert (ended.code, ended.error["code"]) == (3, "doctor")
    assert "the disk is full" in ended.error["message"]
    assert ended.error["hint"] == "free some space, then start it again"
    assert "Traceback" not in ended.out + ended.err


def test_a_bug_whose_trace_cannot_be_written_is_told_all_the_same(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system") if __ else ZeroDivisionError("one over nothing")

    monkeypatch.setattr(command, "root", broken)
    monkeypatch.setattr(command.tempfile, "NamedTemporaryFile", broken)
    ended = lockstep("--json")
    assert (ended.code, ended.error["code"]) == (1, "internal")
    assert "one over nothing" in ended.error["message"]
    assert ended.error["hint"] == "report it; the stack trace could not be written: Read-only file system"


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (("demo",), "torch", "train"),
        (("coordinator", "migrate", "--home", "home"), "sqlalchemy", "coordinator"),
        (("storage", "serve", "--home", "home"), "uvicorn", "coordinator"),
    ],
)
def test_a_part_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, arguments: tuple[str, ...], missing: str, extra: str
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from lockstep.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "doctor"
    assert missing in error["message"]
    assert f"lockstep-compute[{extra}]" in error["hint"]


@pytest.mark.slow
def test_help_imports_neither_web3_nor_torch_and_a_command_no_structlog() -> None:
    program = (
        "import sys, json, contextlib, io\n"
        "from lockstep.cli.main import load, main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "assert 'worker' in shown.getvalue()\n"
        "for then in (lambda: None, lambda: load('train')):\n"
        "    then()\n"
        "    print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    helped, loaded = (set(json.loads(line)) for line in done.stdout.splitlines())
    heavy = {"web3", "torch", "eth_account", "sqlalchemy", "celery", "fastapi", "numpy", "safetensors"}
    assert heavy & helped == set()
    assert (heavy | {"structlog", "asyncio"}) & loaded == set(), "a command that logs nothing imports no structlog"


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = "from lockstep.cli.main import main; main(['train', '--help'])"
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    running.stdout.close()
    told = running.communicate(timeout=PATIENCE)[1]
    assert (running.returncode, told) == (0, "")


def test_an_envelope_is_one_line_of_success_or_of_failure(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"a": 1}, True)
    assert json.loads(capsys.readouterr().out) == {"schema": "lockstep/1", "ok": True, "data": {"a": 1}}
    assert output.fail(TryLater("not yet", hint="wait\na bit"), True) == 75
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert json.loads(out)["error"] == {"code": "try_later", "message": "not yet", "hint": "wait\na bit"}
    assert err == ""


def test_for_people_data_is_on_stdout_and_everything_else_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"a": 1}, False, text="one")
    lines.say("working")
    assert output.fail(UsageError("no such file", hint="name another"), False) == 2
    out, err = capsys.readouterr()
    assert out == "one\n"
    assert err == "working\nerror: no such file\nhint: name another\n"
