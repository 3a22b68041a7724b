"""The cache: bounded in bytes, what is needed is the last to go."""

from __future__ import annotations

import numpy as np

from lockstep.base.cache import MemoryCache, bytes_of


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = MemoryCache(30)
    for name in "abc":
        cache.put(name, name.upper(), 10)
    assert cache.get("a") == "A"
    cache.put("d", "D", 10)
    assert cache.keys() == ["c", "a", "d"]
    assert cache.used == 30


def test_what_nothing_needs_goes_before_what_something_waits_for() -> None:
    cache, needed = MemoryCache(20), {"a"}
    cache.put("a", 1, 10, lambda: "a" in needed)
    cache.put("b", 2, 10)
    cache.put("c", 3, 10)
    assert cache.keys() == ["a", "c"]
    needed.clear()
    cache.put("d", 4, 10)
    assert cache.keys() == ["c", "d"]


def test_one_thing_is_kept_however_large_it_is() -> None:
    cache = MemoryCache(5)
    cache.put("small", 1, 1)
    cache.put("large", 2, 100)
    assert cache.keys() == ["large"]
    cache.drop("large")
    assert (cache.used, cache.get("large")) == (0, None)


def test_shared_arrays_are_counted_once() -> None:
    a, b = np.zeros(4, np.float32), np.zeros(8, np.float32)
    assert bytes_of([a, b, a, None]) == 48
    assert bytes_of([a, b], besides=[b]) == 16
