"""The shelf: bounded in bytes, what is needed is the last to go."""

from __future__ import annotations

import numpy as np

from lockstep.base.shelf import Shelf, bytes_of


def test_what_was_used_longest_ago_goes_first() -> None:
    shelf = Shelf(30)
    for name in "abc":
        shelf.put(name, name.upper(), 10)
    assert shelf.get("a") == "A"
    shelf.put("d", "D", 10)
    assert shelf.keys() == ["c", "a", "d"]
    assert shelf.used == 30


def test_what_nothing_needs_goes_before_what_something_waits_for() -> None:
    shelf, needed = Shelf(20), {"a"}
    shelf.put("a", 1, 10, lambda: "a" in needed)
    shelf.put("b", 2, 10)
    shelf.put("c", 3, 10)
    assert shelf.keys() == ["a", "c"]
    needed.clear()
    shelf.put("d", 4, 10)
    assert shelf.keys() == ["c", "d"]


def test_one_thing_is_kept_however_large_it_is() -> None:
    shelf = Shelf(5)
    shelf.put("small", 1, 1)
    shelf.put("large", 2, 100)
    assert shelf.keys() == ["large"]
    shelf.drop("large")
    assert (shelf.used, shelf.get("large")) == (0, None)


def test_shared_arrays_are_counted_once() -> None:
    a, b = np.zeros(4, np.float32), np.zeros(8, np.float32)
    assert bytes_of([a, b, a, None]) == 48
    assert bytes_of([a, b], besides=[b]) == 16
