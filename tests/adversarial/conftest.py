"""One chain for the whole folder; each cheat begins where it was funded. Seven runs of it are in the normal suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.court import Court
from tests.support.replay import replayed

HERE = Path(__file__).parent
SAMPLE = frozenset(
    {
        "test_one_ulp_is_convicted_at_its_element_and_chunk[seed 1]",
        "test_a_tampered_payload_is_convicted_in_encode[with noise]",
        "test_a_withheld_trace_hides_nothing_and_proves_nothing[stored nowhere]",
        "test_a_false_challenge_is_rejected_and_pays_for_it[an invented word]",
        "test_a_lying_aggregator_is_convicted_and_succeeded[one ulp]",
        "test_a_statistic_that_no_batch_gave_is_convicted_at_its_word[a channel's mean by one ulp]",
        "test_a_recurrence_is_convicted_at_the_token_where_it_lies[an LSTM's cell]",
    }
)
"""A step, a payload, missing data, a lying challenger, a lying aggregator, two models of one's own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests; those of the sample alone are not slow."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.adversarial)
            item.add_marker(pytest.mark.chain)
            if item.name not in SAMPLE:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    """A market whose parties hold stakes."""
    running = Court.start(tmp_path_factory.mktemp("adversarial"))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _the_twin_says_the_same(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each cheat: every transaction of its chain, honest or not, ends in the twin as it did on the chain."""
    yield
    if "court" in request.fixturenames:
        court: Court = request.getfixturevalue("court")
        replayed(court.devnet.w3, court.contracts.addresses)
