"""Collects a worker's support bundle: machine, settings, sent transactions, notes, logs and the account's state on
chain."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli import doctor
from lockstep.runtime import bundle
from worker.account import open_account
from worker.explaining import status_of, why_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.base.settings import Settings
    from worker.account import Account


def collect(path: Path, settings: Settings, logs: Sequence[Path], lines: int) -> list[dict[str, Any]]:
    """Writes the bundle; returns {name, bytes, error} of each file in it. Raises UsageError if `path` cannot be
    written."""

    @cache
    def account() -> Account:
        return open_account(settings)

    def log_of(log: Path) -> bundle.Part:
        return lambda: bundle.tail(log, lines)

    parts: dict[str, bundle.Part] = {
        "versions.json": bundle.versions,
        "doctor.json": lambda: doctor.report(settings)[0],
        "settings.json": lambda: bundle.settings_of(settings),
        "heads.json": lambda: bundle.heads_of(settings),
        "outbox.json": lambda: bundle.outbox_of(settings),
        "notes.json": lambda: bundle.notes_of(settings),
        "status.json": lambda: status_of(account()).to_dict(),
        "why.json": lambda: why_of(account()).to_dict(),
        **{f"log-{i}.txt": log_of(log) for i, log in enumerate(logs)},
    }
    return bundle.write(path, parts, bundle.Cleaner.of(settings))
