"""A reader asks for as many blocks of logs as its provider gives, and learns that from what it says."""

from __future__ import annotations

import pytest

from lockstep.chain import ranges
from lockstep.chain.ranges import PATIENCE_ANSWERS, Span, hint

# As the providers put it, or did in 2026.
WORDS = [
    (("Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the "
     "response size, or you can request any block range with a cap of 10K logs in the response. Based on your "
     "parameters and the response size limit, this block range should work: [0x10, 0x1f]"), 16),
    (("Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range. Based on your "
     "parameters, this block range should work: [0x1312d00, 0x1312d09]. Upgrade to PAYG for expanded range."), 10),
    ("Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range.", 10),
    ("query returned more than 10000 results. Try with this block range [0x100, 0x11f].", 32),
    ("query returned more than 10000 results", 0),
    ("eth_getLogs is limited to a 5 range", 5),
    ("eth_getLogs is limited to a 1,000 range", 1000),
    ("eth_getLogs is limited to 0 - 5 blocks range", 5),
    ("query exceeds max block range 100", 100),
    ("query exceeds max results 20000, retry with the range 16800000-16800099", 100),
    ("exceed maximum block range: 500", 500),
    ("range is too large, max is 800", 800),
    ("ranges over 1000 blocks are not supported on freetier", 1000),
    ("block range greater than 500 max", 500),
    ("block range is too wide", 0),
    ("query timeout exceeded", 0),
    ("Query timeout: response size is larger than 150MB limit", 0),
    ("up to a 5000 block range", 0),
    ("limited to a 0 range", 0),
    ("this block range should work: [0x20, 0x10]", 0),
    ("", 0),
]  # fmt: skip


@pytest.mark.parametrize(("message", "blocks"), WORDS)
def test_the_range_that_a_refusal_names_is_understood(message: str, blocks: int) -> None:
    assert hint(message, 2_000) == blocks


def test_a_named_range_is_used_at_once_and_kept() -> None:
    span = Span()
    span.refused(2_000, "eth_getLogs is limited to a 5 range")
    assert span.blocks == 5
    for _ in range(PATIENCE_ANSWERS - 1):
        span.answered(5)
        assert span.blocks == 5
    span.answered(5)
    assert span.blocks == 10, "the provider, or its plan, may be another one by now"
    span.refused(10, "eth_getLogs is limited to a 5 range")
    assert span.blocks == 5


def test_a_limit_without_a_name_costs_fewer_refusals_as_time_goes_on() -> None:
    limit, span, refusals = 5, Span(), 0
    for _ in range(1_000):
        asked = span.blocks
        if asked > limit:
            refusals += 1
            span.refused(asked, "too many blocks")
        else:
            assert asked >= 3
            span.answered(asked)
    assert refusals < 40


def test_it_is_one_block_at_least_and_grows_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BLOCKS", 64)
    span = Span()
    for _ in range(20):
        span.refused(span.blocks, "response size")
    assert span.blocks == 1
    seen = []
    for _ in range(8):
        span.answered(span.blocks)
        seen.append(span.blocks)
    assert seen == [2, 4, 8, 16, 32, 64, 64, 64]


def test_a_short_request_tells_nothing() -> None:
    span = Span()
    span.refused(2_000, "too many blocks")
    span.answered(1)
    assert span.blocks == 1_000
