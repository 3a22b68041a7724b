"""Kept pages: exactly what was kept, under bounds."""

from __future__ import annotations

from coordinator.page_cache import PageCache


def test_a_body_is_given_back_for_its_key_alone() -> None:
    kept = PageCache()
    kept.keep(("a", 1), b"one")
    assert kept.get(("a", 1)) == b"one"
    assert kept.get(("a", 2)) is None
    kept.keep(("a", 1), b"another")
    assert kept.get(("a", 1)) == b"another"


def test_what_was_asked_for_longest_ago_makes_room() -> None:
    kept = PageCache(pages=2)
    for name in ("a", "b"):
        kept.keep(name, b"x")
    kept.get("a")
    kept.keep("c", b"x")
    assert [kept.get(name) for name in ("a", "b", "c")] == [b"x", None, b"x"]


def test_bodies_have_a_bound_together() -> None:
    kept = PageCache(size=10)
    for name in ("a", "b", "c"):
        kept.keep(name, b"x" * 4)
    assert [kept.get(name) is None for name in ("a", "b", "c")] == [True, False, False]
    kept.keep("large", b"x" * 11)
    assert kept.get("large") is None, "what is larger than all room is not kept"
    assert kept.get("c") is not None
    kept.keep("c", b"x" * 6)
    assert [kept.get(name) is None for name in ("b", "c")] == [False, False], "a body in its own place counts once"
