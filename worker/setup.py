"""Putting a worker together from its settings: keys, chain, storage, guard; each failure is its own exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.events import EventReader
from lockstep.chain.keys import load_account
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.identity import NodeKey
from lockstep.protocol.types import Address
from lockstep.settings import Deployment, Settings
from lockstep.storage import open_store
from worker.announcing import Announcer
from worker.guard import Guard
from worker.reading import Watcher
from worker.service import Parts

KEYSTORE, NODE_KEY, OUTBOX = "keystore.json", "node.key", "outbox.sqlite"


@contextmanager
def assemble(settings: Settings) -> Iterator[Parts]:
    """Everything that a worker holds open; raises KeyStoreError, GuardRefused, Unreachable, ChainError, DoctorError."""
    home = settings.home_dir
    deployment = Deployment.load(settings.deployment)
    account = load_account(home / KEYSTORE, settings.password())
    node = NodeKey.open(home / NODE_KEY)
    with ExitStack() as stack:
        guard = stack.enter_context(Guard(home))
        w3 = connect(settings.rpc, deployment.chain_id)
        addresses = Addresses(**deployment.__dict__)
        contracts = Contracts.at(w3, addresses)
        store = stack.enter_context(open_store(settings.storage))
        store.check()
        outbox = Outbox(home / OUTBOX, w3, account)
        stack.callback(outbox.close)
        announcer = Announcer(settings.coordinator, account, node, deployment.chain_id, Address(deployment.market))
        watcher = Watcher(EventReader(w3, addresses))
        yield Parts(home, contracts, outbox, account, node, store, guard, watcher, announcer, settings.threads)


def configure_logs(level: int = logging.INFO) -> None:
    """structlog to stderr: JSON when that is not a terminal."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
