"""The game's rules on toy Programs: the honest side always wins, and the game ends where the lie is."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.numerics import reference
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.dispute.game import MAX_EXTRA, MAX_LEFT, MoveRefused, challenger_of, game_id, partial_count
from lockstep.protocol.dispute.moves import Verdict, Wrong
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.market.job_rules import MAX_STEPS, MAX_WINDOW
from lockstep.protocol.programs.program import Fold, Kind, Op, Program, Tag, View, is_grouped
from lockstep.protocol.programs.rules import MAX_ELEMENTS, MAX_OPS, MAX_TERMS
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed
from tests.support import games
from tests.support.games import CHALLENGER, WORKER, Lie, Match, PlainClaim

SEED = Seed(b"\x11" * 32)
STEP, ENCODE = games.step_program(), games.encode_program()
PROGRAMS = (STEP, STEP, STEP, ENCODE)
GARBAGE = Digest(b"\xee" * 32)


def held(lie_at: int = 0, lie: Lie | None = None, tampered: dict[int, Digest] | None = None) -> PlainClaim:
    return PlainClaim(
        PROGRAMS, games.start_state(), games.dataset(), SEED, 3, 1, lie_at=lie_at, lie=lie, tampered=tampered or {}
    )


HONEST = held()


@pytest.mark.parametrize("program", [STEP, ENCODE], ids=["step", "encode"])
def test_outputs_are_the_reference_s_element_by_element(program: Program) -> None:
    step = HONEST.step(PROGRAMS.index(program) + 1)
    operands = step._operands(step.outputs)
    for index, op in enumerate(program.ops):
        found = struct.unpack(f"<{op.header.elements}I", step.outputs[index].data)
        assert found == tuple(reference.element(op, e, operands) for e in range(op.header.elements)), index


@pytest.mark.sampled(8)
@pytest.mark.parametrize("lie", games.LIES, ids=str)
def test_liar_is_convicted_at_its_lie(lie: Lie) -> None:
    liar = held(lie_at=2, lie=lie)
    claim = games.claim_of(liar)
    opening = honest.opening(claim, HONEST, liar.trace, 0)
    assert opening is not None, "the lie reaches S_t"
    assert opening.t == 2
    match = Match(claim)
    end = match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert (end.verdict, end.winner) == (Verdict.FRAUD, CHALLENGER)
    found = match.finding
    assert found is not None
    assert (found.wrong, found.t, found.program) == (Wrong.OP, 2, STEP.root)
    assert (found.position, found.element, found.chunk) == (lie.op, lie.element, lie.chunk or 0), "op, element, chunk"
    assert found.claimed_bits != found.contract_bits, "bits differ"
    assert len(match.played) <= 16, "transactions"


def test_lie_in_the_last_transition_names_the_last_program() -> None:
    liar = held(lie_at=4, lie=Lie(0, element=7))
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None
    assert opening.t == 4
    match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert match.finding is not None
    assert match.finding.program == ENCODE.root


@pytest.mark.parametrize("lie_at", [1, 2, 3, 4])
def test_game_without_t_finds_the_step(lie_at: int) -> None:
    lie = Lie(0, element=9)
    liar = held(lie_at=lie_at, lie=lie)
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, None, 0)
    assert opening is not None
    assert opening.t == 0
    end = match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert end.verdict == Verdict.FRAUD
    assert match.finding is not None
    assert (match.finding.t, match.finding.position, match.finding.element) == (lie_at, 0, 9)


def test_claim_of_one_transition_without_t_begins_adjacent() -> None:
    def merge(lie: Lie | None) -> PlainClaim:
        return PlainClaim((ENCODE,), games.start_state(), games.dataset(), SEED, lie_at=1 if lie else 0, lie=lie)

    liar = merge(Lie(0, element=3))
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, merge(None), None, 0)
    assert opening is not None
    end = match.run(opening, games.defends(liar), games.challenges(merge(None)))
    assert end.verdict == Verdict.FRAUD
    assert len(match.log) > 4


def test_list_that_is_not_the_trace_counts_as_withheld() -> None:
    liar = held(lie_at=2, lie=Lie(18))
    opening = honest.opening(games.claim_of(liar), HONEST, HONEST.trace, 0)
    assert opening is not None
    assert opening.t == 0


def test_honest_claim_gives_no_opening() -> None:
    claim = games.claim_of(HONEST)
    assert honest.opening(claim, HONEST, HONEST.trace, 0) is None
    assert honest.opening(claim, HONEST, None, 0) is None


def test_wrong_alias_is_convicted_by_its_own_proof() -> None:
    liar = held(lie_at=1, tampered={STEP.state_block + 2: games.root_of(HONEST.step(1).state(1))})
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None
    match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert isinstance(match.played[-1], moves.ProveAlias)
    assert match.finding is not None
    assert (match.finding.wrong, match.finding.position) == (Wrong.ALIAS, 2)


def test_alias_of_an_op_is_convicted_by_its_own_proof() -> None:
    liar = held(lie_at=1, tampered={STEP.state_block + 1: GARBAGE})
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None
    match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert match.finding is not None
    assert (match.finding.wrong, match.finding.position) == (Wrong.ALIAS, 1)
    assert match.finding.contract_bits == games.root_of(HONEST.steps[0].output(STEP.outputs[1].index))


def test_entry_that_must_be_empty_is_convicted_as_an_alias() -> None:
    liar = held(lie_at=1, tampered={STEP.state_block + 7: GARBAGE})
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None
    match.run(opening, games.defends(liar), games.challenges(HONEST))
    assert match.finding is not None
    assert (match.finding.wrong, match.finding.position) == (Wrong.ALIAS, 7)


def test_garbage_padding_of_the_graph_is_convicted_by_its_own_proof() -> None:
    """S_t is right, G is not: nobody who replays opens, but a game on it still ends in a conviction."""
    liar = held(lie_at=2, tampered={len(STEP.ops) + 3: GARBAGE})
    assert liar.trace == HONEST.trace, "S_t is right"
    match = Match(games.claim_of(liar))
    end = match.run(games.open_at(match.claim, liar, 2), games.defends(liar), games.challenges(HONEST))
    assert end.verdict == Verdict.FRAUD
    assert isinstance(match.played[-1], moves.ProvePadding)
    assert match.finding is not None
    assert (match.finding.wrong, match.finding.position) == (Wrong.PADDING, len(STEP.ops) + 3)


def test_right_state_with_garbage_graph_loses_by_the_clock() -> None:
    """The op's root is no tensor's root: it cannot be opened."""
    liar = held(lie_at=2, tampered={4: GARBAGE})
    match = Match(games.claim_of(liar))

    def defender(state: game.Game, log: object) -> moves.Move | None:
        if state.phase == moves.GamePhase.TENSOR:
            return None
        return games.defends(liar)(state, match.log)

    end = match.run(games.open_at(match.claim, liar, 2), defender, games.challenges(HONEST))
    assert (end.verdict, end.winner) == (Verdict.TIMEOUT, CHALLENGER)


def test_garbage_padding_of_the_trace_is_convicted() -> None:
    three = (STEP, STEP, ENCODE)
    truth = PlainClaim(three, games.start_state(), games.dataset(), SEED)
    leaves = [merkle.leaf(s) for s in truth.trace]
    tree = merkle.levels([*leaves, GARBAGE])
    match = Match(replace(games.claim_of(truth), body=Body(tree[-1][0], NO_STATE, NO_STATE)))  # type: ignore[arg-type]
    match.play(games.open_at(match.claim, truth, 0), CHALLENGER)
    assert match.state is not None
    match.play(moves.Reveal(match.state.standing, tuple(tree[0])), WORKER)
    move = honest.point(match.state, match.log, truth)
    assert isinstance(move, moves.Pick)
    assert move.i == 3
    match.play(move, CHALLENGER)
    match.play(moves.ProvePadding(match.state.standing), CHALLENGER)
    assert match.finding is not None
    assert match.finding.wrong == Wrong.PADDING


@pytest.mark.parametrize("t", [0, 1, 2, 4])
def test_honest_defender_beats_a_challenger_with_nothing_to_prove(t: int) -> None:
    match = Match(games.claim_of(HONEST))
    end = match.run(games.open_at(match.claim, HONEST, t), games.defends(HONEST), games.challenges(HONEST))
    assert (end.verdict, end.winner) == (Verdict.REJECTED, WORKER)


@pytest.mark.parametrize("seed", range(40))
def test_honest_defender_beats_random_challengers(seed: int) -> None:
    rng = random.Random(seed)
    match = Match(games.claim_of(HONEST))
    challenger = games.random_challenger(rng, HONEST)

    def play(state: game.Game, log: object) -> moves.Move | None:
        move = challenger(state, match.log)
        if isinstance(move, moves.ProveOp | moves.ProveAlias | moves.ProvePadding):
            with pytest.raises(MoveRefused, match="EqualBits"):
                game.play(state, move, CHALLENGER, state.deadline, match.claim, match.arbiter)
            return None
        return move

    opening = games.open_at(match.claim, HONEST, rng.randrange(len(PROGRAMS) + 1))
    end = match.run(opening, games.defends(HONEST), play)
    assert (end.verdict, end.winner) == (Verdict.REJECTED, WORKER), "an honest claim is never convicted"


# -- guards ------------------------------------------------------------------------------------------------------------


def begun(t: int = 2) -> Match:
    match = Match(games.claim_of(HONEST))
    match.play(games.open_at(match.claim, HONEST, t), CHALLENGER)
    return match


def refused(match: Match, move: moves.Move, sender: Address) -> str:
    with pytest.raises(MoveRefused) as caught:
        match.play(move, sender)
    return caught.value.rule


def defence(match: Match) -> moves.Defend:
    assert match.state is not None
    move = honest.answer(match.state, match.log, HONEST)
    assert isinstance(move, moves.Defend)
    return move


def test_revealed_tree_that_lacks_a_child_reverts() -> None:
    liar = held(lie_at=2, lie=Lie(2, element=300, bits=1 << 20))
    match = Match(games.claim_of(liar))
    match.play(games.open_at(match.claim, liar, 2), CHALLENGER)
    while match.state is not None and match.state.phase != moves.GamePhase.TENSOR:
        move = honest.answer(match.state, match.log, liar) or honest.point(match.state, match.log, HONEST)
        assert move is not None
        match.play(move, match.state.mover)
    assert match.state is not None
    shown = honest.answer(match.state, match.log, liar)
    assert isinstance(shown, moves.RevealTensor)
    assert refused(match, replace(shown, children=shown.children[:-1]), WORKER) == "LengthWrong"


def test_move_at_the_deadline_counts() -> None:
    match = begun()
    move = defence(match)
    assert match.state is not None
    match.now = Seconds(match.state.deadline - 1)
    match.play(move, WORKER)
    assert match.state.left_defender == 0


def test_game_id_ends_with_its_challenger() -> None:
    other = ClaimId(b"other claim".ljust(32))
    made = [game_id(claim, by, n) for claim in (begun().claim.id, other) for by in (CHALLENGER, WORKER) for n in (0, 1)]
    assert len({id_[:12] for id_ in made}) == len(made), "claim, challenger and nonce all count"
    assert [challenger_of(id_).hex() for id_ in made] == 2 * [*2 * [CHALLENGER[2:]], *2 * [WORKER[2:]]]


def test_what_a_valid_job_asks_for_fits_the_fields_of_a_game() -> None:
    assert max(MAX_ELEMENTS, MAX_TERMS, MAX_STEPS + 1, MAX_OPS) < 2**32, "size, t, terms, position, block"
    assert MAX_WINDOW + MAX_EXTRA <= MAX_LEFT, "the longest clock"
    assert partial_count(MAX_TERMS, None) <= 2**8, "group"


@pytest.mark.parametrize(("extents", "groups"), [((1 << 16, (1 << 16) - 1), 1), ((), (1 << 24) - 1)])
def test_elements_and_terms_of_an_op_are_counted_in_32_bits(extents: tuple[int, ...], groups: int) -> None:
    more = (*extents[:1], extents[1] + 1) if extents else ()
    fits, beyond = reveal_of(extents, groups), reveal_of(more, groups + (not extents))
    fits[0].play(fits[1], WORKER)
    assert fits[0].state is not None
    assert max(fits[0].state.size, fits[0].state.terms) >= 0xFFFF0000
    assert refused(*beyond, WORKER) == "DescriptorInvalid"


def reveal_of(extents: tuple[int, ...], groups: int) -> tuple[Match, moves.RevealTensor]:
    """A game about a sum of products of codes, of any shape, and the move that shows its output: 64 EMPTY nodes."""
    view = View(Tag.STATE, 0, 0, (0,) * (len(extents) + 1))
    op = Op(Kind.FOLD, 0, extents, (view, view), (groups,), Fold.QDOT)
    match = begun()
    argued = next(event for event in match.log if isinstance(event, moves.Argued))
    stated = Statement.decode(argued.statement)
    head = stated.head[:8] + bytes((0, 1)) + stated.head[10:]
    context = replace(stated, ops_root=merkle.leaf(op.encode()), head=head).encode()
    children = (merkle.EMPTY[0],) * 64 if extents else ()
    tree = merkle.EMPTY[6] if extents else GARBAGE
    node = Digest(merkle.tensor_root_of_tree(op.header, tree))
    assert match.state is not None
    match.state = replace(match.state, phase=moves.GamePhase.TENSOR, node=node, position=0, statement=keccak(context))
    return match, moves.RevealTensor(match.state.standing, context, op.encode(), (), tree, children)


def test_each_game_already_open_lengthens_the_defenders_clock() -> None:
    claim = games.claim_of(HONEST)
    assert game.budget(replace(claim, open_games=7), defender=True) == claim.clock + 7 * claim.step
    assert game.budget(replace(claim, open_games=7), defender=False) == claim.clock


@pytest.mark.parametrize("lie", [Lie(5, element=0, chunk=1), Lie(9, chunk=269)], ids=str)
def test_right_partials_of_a_wrong_word_are_convicted_by_their_combination(lie: Lie) -> None:
    liar = held(lie_at=2, lie=lie)
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None

    def defender(state: game.Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        return honest.answer(state, log, HONEST if state.phase == moves.GamePhase.PARTIALS else liar)

    end = match.run(opening, defender, games.challenges(HONEST))
    assert end.verdict == Verdict.FRAUD
    found = match.finding
    assert found is not None
    assert (found.position, found.element, found.chunk) == (lie.op, lie.element, moves.COMBINED)
    assert found.claimed_bits != found.contract_bits


@pytest.mark.parametrize(
    ("lie", "phase"),
    [
        (Lie(5, element=1, chunk=1), moves.GamePhase.ELEMENT), (Lie(9, chunk=269), moves.GamePhase.PARTIAL_PICK),
    ],
    ids=["element", "group"],
)  # fmt: skip
def test_partials_meant_for_one_pick_answer_no_other(lie: Lie, phase: moves.GamePhase) -> None:
    """A reorganisation may put another pick in the place of the one that the defender has seen."""
    liar = held(lie_at=2, lie=lie)
    match = Match(games.claim_of(liar))
    opening = honest.opening(match.claim, HONEST, liar.trace, 0)
    assert opening is not None
    match.play(opening, CHALLENGER)
    state = match.state
    while state is not None and state.phase != phase:
        move = honest.answer(state, match.log, liar) or honest.point(state, match.log, HONEST)
        assert move is not None
        match.play(move, state.mover)
        state = match.state
    assert state is not None

    def picked(i: int) -> tuple[game.Game, moves.Answer]:
        shown = honest.GameLog(match.log).posted
        pick = moves.PickPartial(state.standing, i, shown) if shown else moves.PickElement(state.standing, i)
        after, events = game.play(state, pick, CHALLENGER, match.now, match.claim, match.arbiter)
        answer = honest.answer(after, [*match.log, *events], liar)
        assert answer is not None
        return after, answer

    (first, answer), (other, _) = picked(0), picked(1)
    game.play(first, answer, WORKER, match.now, match.claim, match.arbiter)
    with pytest.raises(MoveRefused, match="StandingStale"):
        game.play(other, answer, WORKER, match.now, match.claim, match.arbiter)


@pytest.mark.parametrize(
    ("chunks", "first"), [(2, 2), (256, 256), (512, 512), (513, 3), (768, 3), (65_536, 256)], ids=str
)
def test_more_chunks_than_one_move_shows_are_shown_by_groups(chunks: int, first: int) -> None:
    terms = 256 * chunks - 255
    assert game.partial_count(terms, None) == first
    if is_grouped(terms):
        assert sum(game.partial_count(terms, group) for group in range(first)) == chunks


@pytest.mark.parametrize(
    ("rem", "parts"),
    [(1, [1]), (6, [6]), (7, [4, 3]), (13, [7, 6]), (14, [5, 5, 4]), (19, [5, 5, 5, 4]), (23, [6, 6, 6, 5])],
)
def test_levels_are_equal_parts_of_at_most_six_and_thirteen_are_two_parts(rem: int, parts: list[int]) -> None:
    made = []
    while rem:
        made.append(game.levels(rem))
        rem -= made[-1]
    assert made == parts


def test_both_twins_state_the_same_invariants(repository: Path) -> None:
    def sentences(*paths: str) -> set[str]:
        return {x for p in paths for x in re.findall(r"INVARIANT: (.*)", (repository / p).read_text())}

    contracts = sentences("contracts/DisputeGame.sol", "contracts/libraries/Clock.sol")
    inside = sentences("contracts/libraries/Merkle.sol", "contracts/libraries/Openings.sol")
    twin = sentences("sdk/lockstep/protocol/dispute/game.py", "sdk/lockstep/protocol/market/court.py")
    assert contracts - twin == set(), "in Solidity alone"
    assert twin - contracts - inside == set(), "in Python alone"
