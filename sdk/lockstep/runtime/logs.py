"""Configures logging: structlog to stderr, as JSON unless stderr is a terminal; stdout is for events."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from lockstep.base.escaping import legible, on_one_line
from lockstep.base.log import before_first_line
from lockstep.base.redaction import scrubbed

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

NOISY = ("web3", "urllib3", "httpx2", "asyncio", "celery", "kombu", "alembic", "uvicorn.access")
"""Libraries of which only warnings are logged."""
TRACE = "exception"
"""The field of a stack trace, the only one that may have several lines."""
RETRIED = "stamina.retry_scheduled"
"""stamina's event for each retry; dropped, since an endpoint that goes into back-off after them is logged."""


def scrub(_logger: object, _name: str, line: Any) -> str:
    """Removes keys in URLs from a line; the last processor."""
    return scrubbed(line)


class ScrubbedFormatter(logging.Formatter):
    """Formats the standard library's log records, with keys in URLs removed."""

    def format(self, record: logging.LogRecord) -> str:
        return legible(scrubbed(super().format(record)))


def spell_controls(_logger: object, _name: str, fields: EventDict) -> EventDict:
    """Escapes control characters, so that no field commands a terminal or forges a line; runs before the renderer."""
    return {
        name: (legible if name == TRACE else on_one_line)(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def drop_retries(_logger: object, _name: str, fields: EventDict) -> EventDict:
    """Drops the line that stamina logs for each retry."""
    from structlog import DropEvent

    if fields.get("event") == RETRIED:
        raise DropEvent
    return fields


def only_warnings() -> None:
    """Sends structlog's warnings to stderr as text and drops all other lines: a command's stdout is its result."""
    before_first_line(_warnings_as_text)
    # Libraries with loggers of their own use only Python's handler of last resort.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(ScrubbedFormatter())


def _warnings_as_text() -> None:
    import structlog

    structlog.configure(
        processors=[
            drop_retries,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            spell_controls,
            # A plain stack trace: one with the values of variables would show secrets.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
            scrub,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up for each line, so that it is the current stderr.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def configure(level: int = logging.INFO) -> None:
    """Sends structlog and the standard library's loggers to stderr in one format."""
    import structlog

    before_first_line(None)
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[drop_retries, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                spell_controls,
                renderer,
                scrub,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    # kombu warns that a broker that is a folder has no host name.
    logging.getLogger("kombu.connection").setLevel(logging.ERROR)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
