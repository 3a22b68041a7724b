"""Sections: the states of docs/protocol.md, section 3, entry by entry."""

from __future__ import annotations

from lockstep.protocol.sections import Sections

S = Sections(shared_depth=1, payload_depth=0, slots=3)
"""A merge has room for four payloads of one entry."""


def test_states_are_their_parts_each_filled_up() -> None:
    assert S.slot_state(["l"], ["a", "A"], [], "t") == ["l", None, "a", "A", None, None, "t", None]
    assert S.encoded(["p"]) == ["p", None]
    assert S.checkpoint(["s", "S"], ["o"]) == ["s", "S", "o", None]
    half = ["s", None, "o", None, *[None] * 4]
    assert S.merge_state(["s"], ["o"], [["p"], ["q"], ["r"]], "m") == [
        *half,
        "p",
        "q",
        "r",
        None,
        "m",
        None,
        None,
        None,
    ]


def test_slices_find_the_parts_again() -> None:
    slot = S.slot_state(["l", "L"], ["a", "A"], ["c", "C"], "t")
    assert (slot[S.live], slot[S.anchor], slot[S.carry], slot[S.clock]) == (["l", "L"], ["a", "A"], ["c", "C"], "t")
    after = S.encoded(["p"], ["c"])
    assert (after[S.payload], after[S.carried]) == (["p"], ["c"])
    merge = S.merge_state(["s", "S"], ["o", "O"], [["p"], ["q"], ["r"]], "m")
    assert (merge[S.shared], merge[S.outer], merge[S.received]) == (["s", "S"], ["o", "O"], ["p", "q", "r"])
    assert ([merge[payload] for payload in S.payloads], merge[S.mask]) == ([["p"], ["q"], ["r"]], "m")
