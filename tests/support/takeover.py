"""A compromised confined child: code of the test runs in it, as an exploit of its executor would."""

from __future__ import annotations

from typing import Any

from lockstep.execution.box.handle import Box
from lockstep.protocol.errors import LockstepError

SECONDS = 60.0
"""Time limit of a child in tests about something else."""


class Exploit:
    """Runs Python code in the child that unpickles it; the result is the code's variable `found`."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Orders from parent to child are pickles."""
        run = (
            "(lambda names: (exec(code, names), str(names.get('found')))[1])({'wire': int(__import__('sys').argv[1])})"
        )
        return eval, (run, {"code": self.code})


def exploit(box: Box, code: str, seconds: float = SECONDS) -> str:
    """Returns the code's result; raises the child's failure.

    In the code, `wire` is the descriptor of the connection to the parent.
    """
    try:
        box.call("roots", seconds=seconds, program=Exploit(code), state=(), context=None, dataset=None)
    except LockstepError as error:
        if type(error) is not LockstepError:
            raise
        # The child has no Program of that name.
        return error.message.removeprefix("KeyError: ").strip("'\"")
    raise AssertionError("no Program has this name")
