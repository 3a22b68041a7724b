"""The queue: Celery tasks that are short, idempotent notifications ("look at job J").

A lost or repeated message changes nothing: beat notifies again every second, and a task acts only while it holds the
row that is the lock. `python -m coordinator.queue worker|beat` are the child processes of `lockstep coordinator up`;
they end when their standard input does, so that no child outlives a parent that was killed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from celery import Celery
from celery.signals import setup_logging, worker_shutdown
from kombu import Connection
from kombu.exceptions import OperationalError

from coordinator import broker
from coordinator.settings import CoordinatorSettings, resolve_coordinator
from lockstep.base.log import Logger
from lockstep.protocol.errors import LockstepError, TryLater, Unreachable, UsageError
from lockstep.runtime.outage import Outage

if TYPE_CHECKING:
    from coordinator.service import Coordinator

log = Logger(__name__)

QUEUE = "coordinator"
LOOK = "coordinator.look"
STALE_NOTIFIES = 5
"""A notification that is older than this many periods is dropped, since a newer one follows."""


def build(settings: CoordinatorSettings) -> Celery:
    """The Celery application on the settings' broker, with its schedule; raises UsageError for no such broker."""
    check(settings.broker)
    app = Celery(QUEUE)
    app.conf.update(
        broker_url=settings.broker or f"{broker.SCHEME}://",
        task_default_queue=_name(settings),
        task_ignore_result=True,
        task_always_eager=False,
        broker_connection_retry_on_startup=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        beat_scheduler="celery.beat:Scheduler",  # nothing of a schedule needs to outlive its process
        beat_max_loop_interval=settings.poll_seconds,
        beat_schedule={
            "index": {
                "task": "coordinator.index",
                "schedule": settings.poll_seconds,
                "options": {"expires": STALE_NOTIFIES * settings.poll_seconds},
            }
        },
    )
    if not settings.broker:
        app.conf.broker_transport_options = broker.prepare(settings.home, min(0.2, settings.poll_seconds))

    notify = notifier(settings, app)

    @app.task(name="coordinator.index")
    def index() -> None:
        """Read new blocks, then notify every job that is not over."""
        with _no_trace():
            for job in _service().index():
                notify(job)

    @app.task(name=LOOK)
    def look(job: str) -> None:
        """Acts on one job."""
        with _no_trace():
            _service().poll(job)

    return app


def _name(settings: CoordinatorSettings) -> str:
    """Returns the queue's name, which differs between coordinators that share a broker."""
    return f"{QUEUE}-{settings.home_name}" if settings.broker else QUEUE


def waiting(settings: CoordinatorSettings) -> int:
    """Returns the number of waiting messages; raises what the broker's client raises."""
    if not settings.broker:
        return sum(1 for _ in (settings.home / "queue").glob("*.msg"))
    with Connection(settings.broker, connect_timeout=1) as connection:
        return int(connection.SimpleQueue(_name(settings)).qsize())


def check(url: str) -> None:
    """Raises UsageError if the URL's scheme is not a supported broker."""
    try:
        if url:
            Connection(url).get_transport_cls()
    except (KeyError, AttributeError, ImportError, ValueError) as error:
        # The URL may hold a password: only its scheme is told.
        raise UsageError(
            f"the broker scheme {url.partition(':')[0]!r} is not supported",
            hint="pass --broker redis://... with its client installed, or leave it out to use a folder in the home",
        ) from error


def notifier(settings: CoordinatorSettings, app: Celery | None = None) -> Callable[[str], None]:
    """Returns a function that notifies the worker about a job; an unreachable broker costs seconds and raises no
    error."""
    queue = build(settings) if app is None else app
    expires = STALE_NOTIFIES * settings.poll_seconds

    def notify(job: str) -> None:
        try:
            queue.send_task(LOOK, (job,), expires=expires, retry=False)
        except (OperationalError, OSError) as error:
            log.warning("a task could not be queued", job=job, why=str(error))

    return notify


@cache
def _outage() -> Outage:
    """Returns this process's outage record, which persists between notifications."""
    from lockstep.base.lines import event

    return Outage(event)


@contextmanager
def _no_trace() -> Iterator[None]:
    """Logs temporary errors in one line without a stack trace; the next notification retries."""
    try:
        yield
        _outage().over()
    except (Unreachable, TryLater) as error:
        _outage().failed(error)
    except LockstepError as error:
        log.warning(
            "work on a job failed: the next notification retries", code=error.code, why=error.message, hint=error.hint
        )


@cache
def _service() -> Coordinator:
    """Returns this process's service, opened once."""
    from coordinator.service import Coordinator

    service = Coordinator.open(resolve_coordinator())
    worker_shutdown.connect(lambda **_: service.close(), weak=False)
    return service


def end_with_parent() -> None:
    """Exits at once when standard input closes, whose other end the parent holds while it lives."""

    def wait() -> None:
        # readinto on the raw descriptor: buffered input would hold a lock that the interpreter's exit needs.
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def keep_stdout_for_events() -> None:
    """Let `print` alone reach standard output: Celery writes to the descriptor itself when it shuts down."""
    events = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(events, "w", buffering=1)


def main(argv: list[str]) -> None:
    """Run `worker` or `beat` until told to stop."""
    from lockstep.runtime.logs import configure

    keep_stdout_for_events()
    configure()
    end_with_parent()
    settings = resolve_coordinator()
    app = build(settings)
    # Our own logging stands: Celery would else put its handlers over it.
    setup_logging.connect(lambda **_: None, weak=False)
    if argv == ["worker"]:
        options = ["--pool=solo", "--concurrency=1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.start(["--quiet", "worker", f"--queues={_name(settings)}", *options])
    elif argv == ["beat"]:
        app.start(["--quiet", "beat", "--pidfile="])
    else:
        raise SystemExit("usage: python -m coordinator.queue worker|beat")


if __name__ == "__main__":
    main(sys.argv[1:])
