"""Honest programs cannot lie: everything that a user can set is listed here, and none of it changes what is claimed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import grimp
import pytest
import typer

import coordinator.cli
import verifier.cli
import worker.cli
from coordinator.settings import DEFAULTS
from lockstep.base.settings import Settings

ROOT = Path(__file__).parents[2]

PLACES = {"rpc", "rpc_check", "storage", "deployment", "home", "password_file", "coordinator"}
"""Where chain, content and keys are."""
MACHINE = {"threads", "device", "memory_mib", "disk_mib", "cache_mib"}
"""What computes, and what it may take: the bits do not depend on it (tests/determinism)."""
POLICY = {"max_stake", "jobs_from", "min_price", "hours", "max_unpaid"}
"""Which jobs a worker joins, with what stake."""
OUTPUT = {"as_json", "json"}
OPTIONS = {
    # once: when to leave; job: which job to join; listen_seconds: how long to watch for its own key first.
    # yes: not to ask before the first stake; the others: what its owner allows it to join.
    worker.cli.app: {"once", "job", "listen_seconds", "max_memory_mib", "download_mbit", "metrics", "yes"} | POLICY,
    # witness, volunteer: which claims to look at; metrics: where numbers are shown.
    verifier.cli.app: {"witness", "volunteer", "metrics"},
    # where the API listens and the index lies; how much it relays, how often it looks; what it demands.
    coordinator.cli.app: {
        "host",
        "port",
        "database",
        "broker",
        "max_blob_bytes",
        "poll_seconds",
        "requests_per_second",
        "demands",
        "public_url",
        "public_rpc",
        "public_gateways",
    },
}
ENVIRONMENT = {
    "LOCKSTEP_CACHE", "LOCKSTEP_FUSED", "LOCKSTEP_ANVIL", "LOCKSTEP_COORDINATOR_", "LOCKSTEP_CONFIG", "LOCKSTEP_LOCAL",
    "LOCKSTEP_HOME",
}  # fmt: skip
"""CONFIG, LOCAL: where the user's settings and the local market are. HOME: whose folder needs no trust.
Beside LOCKSTEP_ and a setting's name. FUSED: whether loops are compiled, to the same bits; ANVIL: where it lies."""


@pytest.mark.parametrize("app", OPTIONS, ids=lambda app: app.info.name)
def test_no_option_changes_a_claim(app: typer.Typer) -> None:
    group: Any = typer.main.get_command(app)
    found = {option.name for option in group.commands["up"].params}
    assert found > PLACES - {"coordinator"}, "these are its options"
    assert found <= PLACES | MACHINE | OUTPUT | OPTIONS[app]


def test_no_setting_changes_a_claim() -> None:
    assert {f.name for f in fields(Settings)} == PLACES | MACHINE | POLICY | {
        "listen_seconds",
        "max_memory_mib",
        "download_mbit",
        "finality",
        "max_fee",
        "max_tip",
        "metrics",
    }
    assert set(DEFAULTS) == OPTIONS[coordinator.cli.app]


def sources() -> Iterator[Path]:
    """Everything that runs in an honest program."""
    for folder in ("worker", "verifier", "coordinator", "sdk/lockstep"):
        yield from (p for p in (ROOT / folder).rglob("*.py") if "demo" not in p.parts)


def test_the_environment_changes_no_claim() -> None:
    read = {
        node.value
        for path in sources()
        if "os.environ" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"LOCKSTEP_[A-Z_]*", node.value)
    }
    assert read - {"LOCKSTEP_"} == ENVIRONMENT


def test_honest_programs_import_nothing_of_the_demo() -> None:
    graph = grimp.build_graph("lockstep", "coordinator", "worker", "verifier", cache_dir=None)
    demo = {"lockstep.demo", *graph.find_descendants("lockstep.demo")}
    honest = set(graph.modules) - demo
    assert {m for m in honest if demo & graph.find_modules_directly_imported_by(m)} == set()
    words = {p.name for p in sources() if "cheat" in p.read_text().lower()}
    assert words == {"economics.py"}, "what lies is in demo/cheats/; the model of stakes says what a cheat earns"
