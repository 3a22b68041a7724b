"""What every Python test shares: one thread a process, the repository's root, repeatable examples."""

import gc
import os
from pathlib import Path

# Before anything imports numpy or torch: they read these once.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", "out/hypothesis")
# Keys of tests were made for them: no other machine has them.
os.environ.setdefault("LOCKSTEP_LISTEN_SECONDS", "0")
# Test tokens: a worker of a test may stake all that it has.
os.environ.setdefault("LOCKSTEP_MAX_STAKE", "all")
# The user's own markets and settings are none of the tests'.
os.environ.setdefault("LOCKSTEP_LOCAL", str(Path(__file__).resolve().parent.parent / "out/no-local-market"))
os.environ.setdefault("LOCKSTEP_CONFIG", str(Path(__file__).resolve().parent.parent / "out/no-config"))
# Compiled loops of tests' Programs: not among the user's own.
os.environ.setdefault("LOCKSTEP_CACHE", str(Path(__file__).resolve().parent.parent / "out/loops"))

from collections.abc import Generator, Iterator
from typing import Any

import pytest
import structlog
from coverage import Coverage
from hypothesis import settings
from web3 import HTTPProvider, Web3

from lockstep.base.log import before_first_line
from lockstep.chain.contracts import Contract
from lockstep.chain.devnet import Devnet
from tests.support import published, recordings, servers

ROOT = Path(__file__).resolve().parent.parent
HANGING = 7_200
"""Seconds after which a slow test is ended; the limit of the others is pyproject.toml's. No test counts on either."""
METERED = ("game",)
"""Views that tell the gas of moves, which no other machine repeats to the unit: not recorded."""

# No deadline: machines are shared. The same examples each run: a failure is then the change's own.
settings.register_profile(
    "lockstep",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("LOCKSTEP_EXAMPLES", "50")),
    print_blob=True,
)
settings.load_profile("lockstep")


@pytest.fixture(autouse=True)
def _logging() -> None:
    """Every level, whatever a command of an earlier test has set; as the programs have it, no trace with the values of
    variables, which takes seconds to lay out."""
    before_first_line(None)
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave n cases of a test that bears `sampled(n)` to the quick run, spread evenly; the rest are slow.

    What plays at random, or both sides against each other, is not counted: it takes three to ten times as long so, and
    unit tests reach the same lines.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if {"differential", "property"} & set(item.path.relative_to(ROOT / "tests").parts):
            item.add_marker(pytest.mark.uncounted)
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        marker = of_one_test[0].get_closest_marker("sampled")
        assert marker is not None
        kept = {round(i * (len(of_one_test) - 1) / max(1, marker.args[0] - 1)) for i in range(marker.args[0])}
        for i, item in enumerate(of_one_test):
            if i not in kept:
                item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGING))


def pytest_collection_finish() -> None:
    """Freeze what is imported, which stays for good: a tracer that looks through all objects for generators, and the
    collector of garbage, need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Stop every measurement of coverage for a test that is not counted. pytest-cov's own marker stops one of the two
    that run in a process of xdist, and leaves fixtures counted."""
    stopped: list[Coverage] = []
    while item.get_closest_marker("uncounted") is not None and (running := Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        return (yield)
    finally:
        for coverage in reversed(stopped):
            coverage.start()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def vectors(repository: Path) -> Path:
    """The folder of JSON vectors that Python and Solidity both read."""
    return repository / "tests/vectors"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL cluster: its URL, to be formatted with a database's name."""
    with servers.postgres_cluster() as url:
        yield url


@pytest.fixture(scope="session")
def redis() -> Iterator[str]:
    """A Redis server's URL."""
    with servers.redis_server() as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def recorded_chains() -> Iterator[None]:
    """With LOCKSTEP_RECORD set, each chain of the tests is recorded before it ends or goes back, questions included."""
    if recordings.folder_of() is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        stop, revert, read, codes = Devnet.stop, Devnet.revert, Contract.read, recordings.creation_codes()
        questions: dict[str, dict[recordings.Question, None]] = {}

        def record(self: Devnet) -> None:
            url = url_of(self.w3)
            recordings.record(url, "chain", codes, questions.pop(url, {}))

        def record_and_stop(self: Devnet) -> None:
            record(self)
            stop(self)

        def record_and_revert(self: Devnet, mark: str) -> None:
            record(self)
            revert(self, mark)

        def ask_and_read(self: Contract, function: str, *arguments: Any, **options: Any) -> Any:
            # A chain in memory has nothing that forge could repeat.
            if function not in METERED and isinstance(self.w3.provider, HTTPProvider):
                sender = options.get("sender") or recordings.NOWHERE
                data = self.call(function, *arguments).data
                asked = recordings.Question(self.w3.eth.block_number, sender, self.address, data)
                questions.setdefault(url_of(self.w3), {})[asked] = None
            return read(self, function, *arguments, **options)

        patch.setattr(Devnet, "stop", record_and_stop)
        patch.setattr(Devnet, "revert", record_and_revert)
        patch.setattr(Contract, "read", ask_and_read)
        yield


@pytest.fixture(scope="session")
def watch_of_lines() -> Iterator[published.Watch]:
    """Holds every line of JSON that a command prints against its schema."""
    with pytest.MonkeyPatch.context() as patch:
        watch = published.Watch()
        watch.install(patch)
        yield watch


@pytest.fixture(autouse=True)
def published_lines(watch_of_lines: published.Watch) -> Iterator[None]:
    """After each test: what commands printed in it is what `lockstep schema` says."""
    watch_of_lines.faults.clear()
    yield
    assert watch_of_lines.faults == [], "not as published: " + "\n".join(watch_of_lines.faults)


def url_of(w3: Web3) -> str:
    """Where the node listens."""
    return str(w3.provider.endpoint_uri)  # type: ignore[attr-defined]
