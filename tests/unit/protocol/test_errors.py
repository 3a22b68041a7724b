"""Errors as a script meets them: a traceback shows the hint below the message, once."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from lockstep.protocol.errors import LockstepError, StillRunning, TryLater, UsageError
from lockstep.protocol.reverts import revert


@pytest.mark.parametrize("moved", [lambda e: e, copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_hint_stands_once_in_a_traceback_and_not_in_the_message(moved: object) -> None:
    error = moved(UsageError("rounds is 0", "use at least 1"))  # type: ignore[operator]
    told = "".join(traceback.format_exception(error))
    assert told.splitlines()[-2:] == ["lockstep.protocol.errors.UsageError: rounds is 0", "hint: use at least 1"]
    assert told.count("use at least 1") == 1
    assert (str(error), error.message, error.hint) == ("rounds is 0", "rounds is 0", "use at least 1")


def test_an_error_without_a_hint_has_no_empty_line() -> None:
    assert traceback.format_exception(LockstepError("a"))[-1] == "lockstep.protocol.errors.LockstepError: a\n"
    assert not hasattr(LockstepError("a"), "__notes__")


def test_a_rule_s_own_hint_is_the_only_one() -> None:
    told = "".join(traceback.format_exception(revert("JobInvalid", b"slots", hint="required: slots > 0")))
    assert told.count("hint:") == 1
    assert told.endswith("hint: required: slots > 0\n")


def test_the_end_of_a_wait_is_caught_as_pythons_own() -> None:
    error = StillRunning("not done", "wait again")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, TryLater)
    assert (str(error), error.to_dict()["code"]) == ("not done", "still_running")
