"""Loggers of structlog that import it with the first line: most commands that read log nothing, and structlog imports
rich and asyncio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_setup: Callable[[], None] | None = None


def before_first_line(setup: Callable[[], None] | None) -> None:
    """Sets the function that configures structlog before the first line; None: structlog is configured already."""
    global _setup
    _setup = setup


def configure_now() -> None:
    """Configures structlog as before a first line: for libraries that log through it themselves."""
    if _setup is not None:
        setup = _setup
        before_first_line(None)
        setup()


class Logger:
    """A logger by name; each method writes an event with its fields."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def debug(self, event: str, **fields: object) -> None:
        """Logs for developers."""
        self._imported().debug(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """Logs what happened as it should."""
        self._imported().info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Logs what goes on by itself, or needs a look."""
        self._imported().warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """Logs a failure."""
        self._imported().error(event, **fields)

    def exception(self, event: str, **fields: object) -> None:
        """Logs a failure with the stack trace of the exception that is handled."""
        self._imported().exception(event, **fields)

    def _imported(self) -> Any:
        configure_now()
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(self._name)
        return self._logger
