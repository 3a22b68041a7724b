"""Groups of options: each field is an option, and what is given reaches the settings."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from lockstep.base.settings import Settings
from lockstep.cli.options import ChainFlags, Commands, ComputingFlags, Home, Json, LimitFlags
from lockstep.protocol.errors import UsageError

FOUND: list[Settings] = []

app = Commands()


@app.command("one")
def one(flags: ChainFlags, *, home: Home = None, computing: ComputingFlags, limits: LimitFlags) -> None:
    FOUND.append(flags.settings("worker", computing, limits, home=home))


@app.command("none")
def none(as_json: Json = False) -> None:
    assert as_json


def settings_of(*words: str) -> Settings:
    FOUND.clear()
    result = CliRunner().invoke(app, ["one", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return FOUND[0]


def test_every_field_of_a_group_is_an_option_that_reaches_the_settings() -> None:
    found = settings_of(
        "--rpc", "http://a", "--deployment", "b.json", "--home", "c", "--threads", "3", "--device", "cpu",
        "--max-stake", "7", "--jobs-from", "d", "--min-price", "1", "--hours", "22-6", "--max-memory", "5",
        "--download", "6", "--max-unpaid", "8",
    )  # fmt: skip
    assert (found.rpc, found.deployment, found.home, found.threads, found.device) == (
        "http://a",
        "b.json",
        "c",
        3,
        "cpu",
    )
    assert (found.max_stake, found.jobs_from, found.min_price, found.hours) == ("7", "d", "1", "22-6")
    assert (found.max_memory_mib, found.download_mbit, found.max_unpaid) == (5, 6, 8)


def test_what_is_not_given_comes_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_RPC", "http://environment")
    monkeypatch.setenv("LOCKSTEP_DOWNLOAD_MBIT", "9")
    found = settings_of("--threads", "2")
    assert (found.rpc, found.download_mbit, found.threads) == ("http://environment", 9, 2)


def test_a_value_that_no_setting_can_have_is_an_error_of_its_setting() -> None:
    with pytest.raises(UsageError, match="max_memory_mib"):
        settings_of("--max-memory", "-1")


def test_a_command_without_a_group_is_as_it_was() -> None:
    assert CliRunner().invoke(app, ["none", "--json"]).exit_code == 0
    assert "--rpc" not in CliRunner().invoke(app, ["none", "--help"]).output
