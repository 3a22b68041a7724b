"""A confined child that was taken over: whatever a test writes runs in it, as an exploit of its executor would."""

from __future__ import annotations

from typing import Any

from lockstep.execution.box.handle import Box
from lockstep.protocol.errors import LockstepError

SECONDS = 60.0
"""A child's time where a test is about something else."""


class Exploit:
    """Runs Python in the child that reads it; its value there is what the code leaves in `found`."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Parent to child, an order is a pickle."""
        run = (
            "(lambda names: (exec(code, names), str(names.get('found')))[1])({'wire': int(__import__('sys').argv[1])})"
        )
        return eval, (run, {"code": self.code})


def exploit(box: Box, code: str, seconds: float = SECONDS) -> str:
    """What the code finds; raises what becomes of the child. `wire` is the file descriptor that leads to the parent."""
    try:
        box.call("roots", seconds=seconds, program=Exploit(code), state=(), context=None, dataset=None)
    except LockstepError as error:
        if type(error) is not LockstepError:
            raise
        # The child knows no Program by that name.
        return error.message.removeprefix("KeyError: ").strip("'\"")
    raise AssertionError("no Program has this name")
