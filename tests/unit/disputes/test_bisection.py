"""A game's log as moves, as a place and as a tree: for every kind of lie, at every length of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from lockstep.chain.games import LoggedEvent
from lockstep.disputes.bisection import Agreement, Range, bisection, shown_word
from lockstep.disputes.gamelog import moves_of, place_of
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.moves import GameEvent, Wrong
from lockstep.protocol.dispute.openings import Levels
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.types import Digest, GameId, Seed
from tests.support import games
from tests.support.games import Lie, Match, PlainClaim

SEED = Seed(b"\x11" * 32)
STEP, ENCODE = games.step_program(), games.encode_program()
PROGRAMS = (STEP, STEP, STEP, ENCODE)
LIES = [
    Lie(2, element=300, bits=1 << 20),
    Lie(5, element=1, chunk=1),
    Lie(7),
    Lie(9, chunk=269),
    Lie(10, element=30, bits=0x240),
    Lie(14, chunk=5, bits=1 << 20),
    Lie(15, element=6),
    Lie(16, element=258),
]
DEFENDERS_CALLS = {"defend", "reveal", "revealTensor", "postLeaf", "postPartials"}


def held(lie: Lie | None = None, tampered: dict[int, Digest] | None = None) -> PlainClaim:
    at = 2 if lie or tampered else 0
    return PlainClaim(
        PROGRAMS, games.start_state(), games.dataset(), SEED, 3, 1, lie_at=at, lie=lie, tampered=tampered or {}
    )


HONEST = held()


def played(liar: PlainClaim, listed: bool) -> Match:
    """A game that convicts; `listed`: the claim's roots were published."""
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace if listed else None, 0)
    match.run(opening or games.open_at(match.claim, liar, 2), games.defends(liar), games.challenges(HONEST))
    return match


def entries(log: list[GameEvent]) -> list[LoggedEvent]:
    """As the chain has them: a transaction a move."""
    found: list[LoggedEvent] = []
    for event in log:
        one = isinstance(event, moves.Resolved) or (isinstance(event, moves.Argued) and len(found) == 1)
        one = one or (isinstance(event, moves.Staged) and isinstance(found[-1].event, moves.ElementPicked))
        number = (found[-1].block if found else 0) + (0 if one and found else 1)
        if isinstance(event, moves.Argued) and len(found) == 1 and isinstance(log[0], moves.Opened) and not log[0].t:
            number += 1
        found.append(LoggedEvent(GameId(bytes(32)), event, number, bytes([number]) * 32, len(found)))
    return found


def walk(part: Range) -> Iterator[Range]:
    yield part
    for inner in part.parts:
        yield from walk(inner)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "withheld"])
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_log_is_its_moves_and_leads_to_the_lie(lie: Lie, listed: bool) -> None:
    match = played(held(lie), listed)
    made = moves_of(entries(match.log), 4, STEP.ops[lie.op])
    assert [m.call for m in made] == [m.call for m in match.played]
    assert all((m.call in DEFENDERS_CALLS) == (m.by == "defender") for m in made)
    assert all(m.shows for m in made)
    assert match.finding is not None
    place = place_of(match.log)
    assert (place.t, place.wrong, place.position, place.element) == (2, Wrong.OP, lie.op, lie.element)
    assert (place.chunk, place.claimed, place.computed) == (
        match.finding.chunk, match.finding.claimed_bits, match.finding.contract_bits,
    )  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "withheld"])
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_every_range_is_cut_whole_and_says_what_is_so(lie: Lie, listed: bool) -> None:
    liar = held(lie)
    match = played(liar, listed)
    root = bisection(match.log, 4, STEP.ops[lie.op])
    for part in walk(root):
        cut = [p for p in part.parts if p.first is not None and p.last is not None]
        assert all(a.last is not None and a.last + 1 == b.first for a, b in pairwise(cut)), part.label
        assert sum(p.agreement is Agreement.DIFFERS for p in part.parts) <= 1
    checked = 0
    trees = (
        (root, honest.trace_levels(liar.trace), honest.trace_levels(HONEST.trace), 1),
        (_at(root, "G_2"), liar.step(2).graph, HONEST.step(2).graph, 0),
        (_at(root, "output of op"), liar.step(2).output(lie.op).levels, HONEST.step(2).output(lie.op).levels, 0),
    )
    for top, theirs, own, begin in trees:
        for part in _of_one_tree(top):
            if part.node is None or part.first is None or part.last is None:
                continue
            first, height = part.first - begin, (part.last - part.first).bit_length()
            node = _node(theirs, height, first >> height)
            if part is not top:
                assert part.node == node, f"{part.label}: the defender's own node"
                equal = node == _node(own, height, first >> height)
                assert part.agreement is Agreement.UNSAID or (part.agreement is Agreement.AGREES) == equal, part.label
                checked += 1
    assert checked >= 5
    labels = [p.label for p in walk(root)]
    assert f"op {lie.op}" in labels
    assert any(label.startswith(f"element {lie.element}: claimed 0x") for label in labels)
    if lie.chunk is not None:
        assert any(label.startswith(f"chunk {lie.chunk}: claimed 0x") for label in labels)
    assert match.finding is not None
    computed = int.from_bytes(match.finding.contract_bits, "big")
    assert root.deepest.label == f"the contract computes {shown_word(computed, STEP.ops[lie.op])}"


def test_a_log_can_be_read_at_every_length_and_without_the_op() -> None:
    for listed in (True, False):
        match = played(held(Lie(9, chunk=269)), listed)
        depths = []
        for length in range(1, len(match.log) + 1):
            for op in (None, STEP.ops[9]):
                log = match.log[:length]
                depths.append(sum(1 for _ in walk(bisection(log, 4, op))))
                assert moves_of(entries(log), 4, op)
                place_of(log)
        assert depths == sorted(depths), "it only grows"


@pytest.mark.parametrize(
    ("position", "node", "wrong", "named"),
    [
        (STEP.state_block + 1, Digest(b"\xee" * 32), Wrong.ALIAS, "entry 1 of the state"),
        (len(STEP.ops), Digest(b"\xee" * 32), Wrong.PADDING, "padding"),
    ],
    ids=["alias", "padding"],
)
def test_an_entry_and_padding_end_the_tree_with_what_the_program_says(
    position: int, node: Digest, wrong: Wrong, named: str
) -> None:
    match = played(held(tampered={position: node}), True)
    place = place_of(match.log)
    assert match.finding is not None
    assert (place.wrong, place.position, place.element) == (wrong, match.finding.position, None)
    assert (place.claimed, place.computed) == (node, match.finding.contract_bits)
    root = bisection(match.log, 4)
    labels = [p.label for p in walk(root) if p.agreement is Agreement.DIFFERS]
    assert labels[-2:] == [named, f"the Program says 0x{match.finding.contract_bits.hex()}"]
    assert moves_of(entries(match.log), 4)[-1].call == ("proveAlias" if wrong is Wrong.ALIAS else "provePadding")


def test_a_list_with_something_behind_its_end_is_read_to_it() -> None:
    truth, garbage = PlainClaim((STEP, STEP, ENCODE), games.start_state(), games.dataset(), SEED), Digest(b"\xee" * 32)
    tree = merkle.levels([*(merkle.leaf(s) for s in truth.trace), garbage])
    match = Match(replace(games.claim_of(truth), body=Body(tree[-1][0], NO_STATE, NO_STATE)))  # type: ignore[arg-type]
    match.play(games.open_at(match.claim, truth, 0), games.CHALLENGER)
    assert match.state is not None
    match.play(moves.Reveal(match.state.standing, tuple(tree[0])), games.WORKER)
    move = honest.point(match.state, match.log, truth)
    assert move is not None
    match.play(move, games.CHALLENGER)
    match.play(moves.ProvePadding(match.state.standing), games.CHALLENGER)
    place = place_of(match.log)
    assert (place.t, place.wrong, place.position) == (None, Wrong.PADDING, 3)
    root = bisection(match.log, 3)
    assert [p.label for p in walk(root) if p.agreement is Agreement.AGREES] == ["S_1 to S_2", "S_3"]
    assert root.deepest.label == f"the Program says 0x{bytes(32).hex()}"
    assert moves_of(entries(match.log), 3)[-1].call == "provePadding"


def _at(root: Range, label: str) -> Range:
    return next(p for p in walk(root) if p.label.startswith(label))


def _of_one_tree(top: Range) -> Iterator[Range]:
    """The ranges down to where the next tree begins, or the leaf's elements."""
    yield top
    for part in top.parts:
        if not part.label.startswith(("G_", "output of op")):
            yield from _of_one_tree(part)


def _node(tree: Levels, height: int, index: int) -> Digest:
    return merkle.node_at(tree, height, index)
