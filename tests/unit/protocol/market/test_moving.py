"""The leaf that a witness binds: of what a step computes, wherever its preimage says, and of no other state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market import moving
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import I32, Alias, Program, ProgramHeader
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import StateRoot
from tests.support import constant, wide

HEADER = ProgramHeader.decode(wide.program().header)
ROOT = wide.program().root
ONE, OTHER = wide.state(b"one"), wide.state(b"other")


def refused(state: StateRoot, word: int, leaf: StateLeaf, program: bytes = ROOT) -> bool:
    try:
        moving.require_leaf(state, program, word, leaf)  # type: ignore[arg-type]
    except Reverted as error:
        return error.rule == "ProofInvalid"
    return False


def test_every_leaf_that_moves_is_drawn_alike_and_no_other() -> None:
    """Neither what a step leaves as it is, nor the clock, nor what is EMPTY."""
    drawn = Counter()  # type: ignore[var-annotated]
    for k in range(6_000):
        place = moving.place_of(HEADER, int.from_bytes(keccak(b"%d" % k), "big") >> 128)
        assert place is not None
        drawn[place.entry, place.at] += 1
    assert sorted(drawn) == list(wide.PLACES)
    assert min(drawn.values()) > 880, drawn


@pytest.mark.parametrize("word", range(len(wide.PLACES)), ids=str)
def test_a_leaf_is_proven_for_its_state_and_its_place_alone(word: int) -> None:
    leaf = ONE.leaf(word)
    entry, at = wide.PLACES[word]
    assert leaf.digest == merkle.leaf(ONE.tensor(entry).leaf(at))
    assert not refused(ONE.root, word, leaf)
    assert not refused(ONE.root, word + len(wide.PLACES), leaf), "a remainder counts"
    assert refused(OTHER.root, word, leaf)
    assert [refused(ONE.root, w, leaf) for w in range(len(wide.PLACES))].count(False) == 1
    assert refused(ONE.root, word, replace(leaf, digest=OTHER.leaf(word).digest))


def test_a_leaf_is_shown_with_the_steps_program_and_proofs_as_deep_as_it_says() -> None:
    leaf = ONE.leaf(1)
    assert refused(ONE.root, 1, leaf, constant.step_program().root)
    assert refused(ONE.root, 1, replace(leaf, code=replace(leaf.code, ops_root=leaf.code.consts_root)))
    assert refused(ONE.root, 1, replace(leaf, leaf_proof=leaf.leaf_proof[:-1]))
    assert refused(ONE.root, 1, replace(leaf, entry_proof=leaf.entry_proof[:-1]))
    # A node in the place of a leaf, the rest of the way above it.
    above = merkle.climb(leaf.digest, 1, leaf.leaf_proof[:1])
    assert refused(ONE.root, 1, replace(leaf, digest=above, leaf_proof=leaf.leaf_proof[1:]))


def header_of(inputs: Sequence[TensorHeader | None], outputs: Sequence[tuple[int, int]]) -> Program:
    return Program(wide.program().ops, tuple(inputs), tuple(Alias(*alias) for alias in outputs))


KEPT, MADE, NONE = (2, 0), (1, 1), (0, 0)
SCALAR = TensorHeader(I32, ())


@pytest.mark.parametrize(
    ("program", "entry"),
    [
        (header_of([SCALAR], [MADE]), None),
        (header_of([SCALAR] * 2, [MADE, MADE]), 0),
        (header_of([SCALAR] * 4, [KEPT, KEPT, KEPT, MADE]), None),
        (header_of([SCALAR] * 4, [KEPT, KEPT, MADE, MADE]), 2),
        (header_of([None, SCALAR, SCALAR, SCALAR], [MADE, KEPT, KEPT, MADE]), None),
        (header_of([SCALAR] * 4, [MADE, MADE]), None),
    ],
    ids=["one entry", "two entries", "the clock alone", "an evaluation", "an op for nothing", "of another size"],
)
def test_where_nothing_moves_but_the_clock_no_leaf_is_asked_for(program: Program, entry: int | None) -> None:
    place = moving.place_of(ProgramHeader.decode(program.header), 7)
    assert (place.entry if place else None) == entry
    if place is None:
        leaf = moving.leaf_of(program, 7, [], lambda _: [])
        assert leaf.digest == merkle.EMPTY[0]
        assert not refused(ONE.root, 7, leaf, program.root)
        assert refused(ONE.root, 7, leaf), "the Program is shown all the same"
