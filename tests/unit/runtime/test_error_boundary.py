"""What goes wrong in one part ends no other, and is said once."""

from __future__ import annotations

import errno

import pytest
from structlog.testing import capture_logs

from lockstep.execution.box.handle import Cancelled
from lockstep.protocol.errors import LockstepError, Mismatch, TryLater, Unreachable
from lockstep.runtime.error_boundary import ErrorBoundary


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (TryLater("later", ""), "warning"), (Mismatch("no", ""), "error"), (KeyError("x"), "error"),
        (Cancelled(), "info"),
    ],
)  # fmt: skip
def test_each_reason_is_logged_once_for_each_subject(error: Exception, level: str) -> None:
    isolation = ErrorBoundary()
    with capture_logs() as logs:
        for about in ("a", "a", "b"):
            assert isolation.run(lambda: raising(error), about, job=about) is error
        assert isolation.run(lambda: None, "a") is None
    assert [(line["log_level"], line["job"]) for line in logs] == [(level, "a"), (level, "b")]


@pytest.mark.parametrize("error", [Unreachable("nobody answers", ""), OSError(errno.ENOSPC, "full")])
def test_without_chain_or_disk_nothing_goes_on(error: Exception) -> None:
    with capture_logs() as logs, pytest.raises(Unreachable):
        ErrorBoundary().run(lambda: raising(error), "a")
    assert logs == []


def test_the_log_names_an_error_s_rule_and_hint() -> None:
    with capture_logs() as logs:
        ErrorBoundary().run(lambda: raising(LockstepError("no", hint="do this", code="rule.x")), "a")
    assert (logs[0]["code"], logs[0]["message"], logs[0]["hint"]) == ("rule.x", "no", "do this")
