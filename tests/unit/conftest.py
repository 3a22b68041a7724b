"""The toy job in a store of its own; Programs that are traced once."""

from pathlib import Path

import pytest

from lockstep.execution.jobs import ClaimRun, Job, slot_run
from lockstep.storage import ContentStore
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob


@pytest.fixture(scope="session")
def toy_store(tmp_path_factory: pytest.TempPathFactory) -> ContentStore:
    return DirectoryStore(Path(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="session")
def toy(toy_store: ContentStore) -> Job:
    return toyjob.load(toy_store)


@pytest.fixture(scope="session")
def honest_run(toy: Job) -> ClaimRun:
    """Slot 1 of round 0."""
    return slot_run(toy, toy.genesis, toyjob.SEED, 0, 1)


@pytest.fixture
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at what stands around the Programs of a job."""
    from tests.support import traced  # it imports torch

    traced.install(monkeypatch)
