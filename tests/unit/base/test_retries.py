"""Retries are logged as a command's logs are, and never on its stdout."""

from __future__ import annotations

import pytest
import structlog

from lockstep.base.retries import retry_context
from lockstep.runtime import logs


def test_a_retry_of_a_command_leaves_its_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()
    logs.only_warnings()
    tried = 0
    for attempt in retry_context(lambda error: isinstance(error, OSError), attempts=2, wait_initial=0, wait_jitter=0):
        with attempt:
            tried += 1
            if tried == 1:
                raise OSError("busy")
    assert tried == 2
    assert capsys.readouterr().out == ""
