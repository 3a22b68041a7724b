"""Jobs whose Programs this process has traced already."""

import pytest

from tests.support import traced


@pytest.fixture
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at what stands around the Programs of a job."""
    traced.install(monkeypatch)
