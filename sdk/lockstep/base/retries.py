"""Retries by stamina, which logs each one through structlog: that is configured first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.base.log import configure_now


def retry_context(on: Callable[[Exception], bool | float], **options: Any) -> Any:
    """Returns `stamina.retry_context` of these options; `on` tells for an error if, or after how many seconds, to try
    again."""
    import stamina

    def again(error: Exception) -> bool | float:
        # Without it the line would go to stdout, which is a command's result.
        configure_now()
        return on(error)

    return stamina.retry_context(on=again, **options)
