"""The default broker of a coordinator: a folder of messages, each written atomically.

Kombu's filesystem transport writes a message byte by byte under its final name. On a full disk, or for a reader in
between, that message is truncated, and Celery's worker dies of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time, time_ns
from typing import Any, TypeVar
from uuid import uuid4

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

from lockstep.base.log import Logger

log = Logger(__name__)

SCHEME = "folder"
UNFINISHED = ".part"
PART_SECONDS = 60.0
Result = TypeVar("Result")


class Channel(filesystem.Channel):
    """A channel whose messages may be lost, but are never truncated."""

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        whole = Path(self.data_folder_out) / f"{time_ns():020}_{uuid4()}.{queue}.msg"
        part = whole.with_name(whole.name + UNFINISHED)
        # INVARIANT: whoever lists the folder sees whole messages only.
        try:
            part.write_text(dumps(payload))
            os.replace(part, whole)
        except OSError as error:
            log.warning("a task message was not queued; the next one covers its work", why=str(error))
            part.unlink(missing_ok=True)

    def _get(self, queue: str, timeout: Any = None) -> Any:
        while True:
            try:
                return super()._get(queue)
            # It is gone from the folder: the next one is read.
            except ValueError as error:
                log.warning("a truncated task message was dropped", why=str(error))

    def get_table(self, exchange: str) -> Any:
        """Returns the queues bound to an exchange."""
        return self._mended(exchange, super().get_table)

    def _queue_bind(self, exchange: str, *names: Any) -> None:
        self._mended(exchange, lambda own: super(Channel, self)._queue_bind(own, *names))

    def _mended(self, exchange: str, act: Callable[[str], Result]) -> Result:
        """Returns the result of `act`; removes a truncated table, which the next binding writes anew."""
        try:
            return act(exchange)
        except ValueError:
            self._exchange_file(exchange).unlink(missing_ok=True)
            return act(exchange)


class Transport(filesystem.Transport):
    """The transport of broker URLs `folder://`."""

    Channel = Channel


def prepare(home: Path, polling_seconds: float) -> dict[str, Any]:
    """Make the folders in a coordinator's home; returns the transport's options."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
    folder, control = home / "queue", home / "queue-control"
    for path in (folder, control):
        path.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(f"*{UNFINISHED}"):
        # Of a process that was killed; one that is being written is younger.
        with suppress(FileNotFoundError):
            if time() - part.stat().st_mtime > PART_SECONDS:
                part.unlink()
    return {
        "data_folder_in": str(folder),
        "data_folder_out": str(folder),
        "control_folder": str(control),
        "polling_interval": polling_seconds,
    }
