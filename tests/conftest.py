"""What every Python test shares: one thread a process, the repository's root, repeatable examples."""

import os
from pathlib import Path

# Before anything imports numpy or torch: they read these once.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", "out/hypothesis")
# Keys of tests were made for them: no other machine has them.
os.environ.setdefault("LOCKSTEP_LISTEN_SECONDS", "0")
# Compiled loops of tests' Programs: not among the user's own.
os.environ.setdefault("LOCKSTEP_CACHE", str(Path(__file__).resolve().parent.parent / "out/loops"))

from collections.abc import Iterator

import pytest
from hypothesis import settings

from lockstep.chain.devnet import Devnet
from tests import recordings

ROOT = Path(__file__).resolve().parent.parent

# No deadline: machines are shared. The same examples each run: a failure is then the change's own.
settings.register_profile(
    "lockstep",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("LOCKSTEP_EXAMPLES", "50")),
    print_blob=True,
)
settings.load_profile("lockstep")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def vectors(repository: Path) -> Path:
    """The folder of JSON vectors that Python and Solidity both read."""
    return repository / "tests/vectors"


@pytest.fixture(scope="session", autouse=True)
def recorded_chains() -> Iterator[None]:
    """With LOCKSTEP_RECORD set, each chain of the tests is recorded before it ends."""
    if recordings.folder_of() is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        stop, codes = Devnet.stop, recordings.creation_codes()

        def record_and_stop(self: Devnet) -> None:
            recordings.record(str(self.w3.provider.endpoint_uri), "chain", codes)  # type: ignore[attr-defined]
            stop(self)

        patch.setattr(Devnet, "stop", record_and_stop)
        yield
