"""The game on a real chain beside its Python twin: after every move the same stored game and the same events."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest

from lockstep.chain import games as chain_games
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import DisputedClaim as ProtocolClaim
from lockstep.protocol.dispute.game import Game, MoveRefused
from lockstep.protocol.dispute.moves import Verdict, Wrong
from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed, StateRoot
from tests.support import games
from tests.support.arena import Arena, Outcome, Terms
from tests.support.games import Lie, Match, PlainClaim
from tests.support.replay import replayed

pytestmark = pytest.mark.chain

STEP, ENCODE = games.step_program(), games.encode_program()
NO_OUTER = StateRoot(merkle.EMPTY[1])
GARBAGE = Digest(b"\xee" * 32)

LIES = (
    Lie(2, element=300, bits=1 << 20),
    Lie(5, element=1, chunk=1),
    Lie(8, chunk=0),
    Lie(9, chunk=269),
    Lie(16, element=258),
    Lie(18),
)
"""One of each way down: an element, a word of partials, of one chunk alone, of groups of them, the last leaf, a scalar.

Ops of every kind: tests/unit/protocol/dispute/test_game.py; what they compute: test_arbiter.py.
"""
TAMPERED = (
    {STEP.state_block + 2: games.root_of(games.tensor(0, (1,), [1]))},
    {STEP.state_block + 7: GARBAGE},
    {len(STEP.ops) + 3: GARBAGE},
)


@dataclass(frozen=True)
class Case:
    """What a slot's worker does: a lie in an op, or a tampered G."""

    lie: Lie | None = None
    tampered: int | None = None

    def claim(self, seed: Seed, slot: int) -> PlainClaim:
        tampered = {} if self.tampered is None else TAMPERED[self.tampered]
        return PlainClaim(
            (STEP, ENCODE), games.start_state(), games.dataset(), seed, 0, slot, lie_at=1, lie=self.lie,
            tampered=dict(tampered),
        )  # fmt: skip


CASES = (
    Case(),
    *(Case(lie=lie) for lie in LIES),
    *(Case(tampered=i) for i in range(len(TAMPERED))),
)


@dataclass
class Stage:
    """A chain with one claim for each case, the same job, another slot each."""

    arena: Arena
    claims: list[ClaimId]
    seed: Seed
    made: dict[int, PlainClaim]
    """What was committed, by its case."""
    games: int = 0

    def held(self, case: int) -> PlainClaim:
        assert self.made[case].seed == self.seed
        return self.made[case]

    @cache  # noqa: B019 - lives as long as the module
    def truth(self, slot: int) -> PlainClaim:
        return Case().claim(self.seed, slot)

    def twin(self, case: int) -> Match:
        """The Python game on the claim as the chain has it."""
        return Match(
            chain_games.claim(self.arena.contracts.market, self.claims[case], self.arena.bodies[self.claims[case]])
        )

    @cache  # noqa: B019
    def unchallenged(self) -> ProtocolClaim:
        """The honest claim with no game open on it."""
        return chain_games.claim(self.arena.contracts.market, self.claims[0], self.arena.bodies[self.claims[0]])

    def nonce(self) -> int:
        self.games += 1
        return self.games

    def __hash__(self) -> int:
        return id(self)


def toy_terms() -> Terms:
    """The toy Programs as a job: one step, then the encode."""
    start, data = games.start_state(), games.dataset()
    step = PlainClaim((STEP,), start, data, Seed(bytes(32))).step(1)
    rows, length = data.header.shape
    return Terms(
        STEP, ENCODE, ENCODE, games.tensor_root(data), rows, length, StateRoot(step.prev[1][0]), NO_OUTER,
        StateRoot(step.prev[1][2]), 1, 1, 1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    made: dict[int, PlainClaim] = {}

    def trace(seed: Seed, slot: int) -> tuple[StateRoot, ...]:
        made[slot] = CASES[slot].claim(seed, slot)
        return made[slot].trace

    def ends(slot: int) -> tuple[StateRoot, StateRoot]:
        last = made[slot].steps[-1].graph[1]
        return StateRoot(last[-2]), StateRoot(last[-1])

    claims = arena.claims(toy_terms(), len(CASES), trace, ends)
    seed = arena.contracts.market.facts_of(claims[0], 1).seed
    yield Stage(arena, claims, seed, made)
    arena.stop()


def of_kind(lie: bool) -> list[int]:
    return [i for i, case in enumerate(CASES) if (case.lie is not None) == lie]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", of_kind(lie=True), ids=lambda i: str(CASES[i].lie))
def test_one_flip_is_convicted_on_chain(stage: Stage, case: int) -> None:
    lie = CASES[case].lie
    assert lie is not None
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    outcome = stage.arena.convicted(lie, held, truth, twin, stage.nonce)
    assert len(outcome.spent) <= 16, "transactions"
    assert outcome.gas <= 2_000_000, "gas of the game"
    assert outcome.worst <= 600_000, f"worst transaction: {max(outcome.spent, key=lambda s: s.gas)}"


def test_wrong_alias_is_convicted_on_chain(stage: Stage) -> None:
    case = CASES.index(Case(tampered=0))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    opening = honest.opening(twin.claim, truth, held.trace, stage.nonce())
    assert opening is not None
    outcome = stage.arena.play(opening, games.defends(held), games.challenges(truth), twin)
    assert outcome.finding is not None
    assert (outcome.finding.wrong, outcome.finding.position) == (Wrong.ALIAS, 2)


def test_entry_that_must_be_empty_is_convicted_on_chain(stage: Stage) -> None:
    case = CASES.index(Case(tampered=1))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    outcome = stage.arena.play(
        games.open_at(twin.claim, held, 0, stage.nonce()), games.defends(held), games.challenges(truth), twin
    )
    assert outcome.finding is not None
    assert (outcome.finding.wrong, outcome.finding.position) == (Wrong.ALIAS, 7)


def test_garbage_padding_is_convicted_on_chain(stage: Stage) -> None:
    case = CASES.index(Case(tampered=2))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    outcome = stage.arena.play(
        games.open_at(twin.claim, held, 1, stage.nonce()), games.defends(held), games.challenges(truth), twin
    )
    assert outcome.finding is not None
    assert outcome.finding.wrong == Wrong.PADDING


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(100))
def test_random_games_agree_and_the_honest_worker_wins(stage: Stage, seed: int) -> None:
    assert play_at_random(stage, seed).verdict == Verdict.REJECTED, "an honest claim is never convicted"


def play_at_random(stage: Stage, seed: int) -> Outcome:
    """Every move of a random challenger, and what the contract says to the proof that does not convict."""
    rng = random.Random(seed)
    held, twin = stage.held(0), Match(stage.unchallenged())
    choose = games.random_challenger(rng, held, concede=0.02)
    last: list[moves.Move] = []

    def challenger(state: object, log: object) -> moves.Move | None:
        assert twin.state is not None
        move = choose(twin.state, twin.log)
        if isinstance(move, moves.ProveOp | moves.ProveAlias | moves.ProvePadding):
            last.append(move)
            return None
        return move

    opening = games.open_at(twin.claim, held, rng.randrange(3), stage.nonce())
    if seed % 3:
        opening = games.open_at(twin.claim, held, seed % 3, opening.nonce)
    arena = stage.arena

    def refusing(state: object, log: object) -> moves.Move | None:
        move = challenger(state, log)
        if last:
            assert twin.state is not None
            game_id = chain_games.game.game_id(opening.claim, Address(arena.challenger.address), opening.nonce)
            with pytest.raises(ChainError, match="EqualBits"):
                arena.send(chain_games.call(arena.contracts.game, last[-1], game_id), arena.challenger)
            with pytest.raises(MoveRefused, match="EqualBits"):
                twin.play(last[-1], Address(arena.challenger.address))
        return move

    return arena.play(opening, games.defends(held), refusing, twin)


def both_refuse(stage: Stage, twin: Match, opening: moves.Open, move: moves.Move, rule: str, *, worker: bool) -> None:
    arena = stage.arena
    sender = arena.worker if worker else arena.challenger
    game_id = chain_games.game.game_id(opening.claim, Address(arena.challenger.address), opening.nonce)
    with pytest.raises(ChainError, match=rule):
        arena.send(chain_games.call(arena.contracts.game, move, game_id), sender)
    twin.now = Seconds(arena.now() - twin.seconds_per_move)
    with pytest.raises(MoveRefused, match=rule):
        twin.play(move, Address(sender.address))


PARTIALS, LOW_PARTIALS = moves.GamePhase.PARTIALS, moves.GamePhase.LOW_PARTIALS


@pytest.mark.parametrize(
    ("lie", "phase"),
    [(Lie(5, element=1, chunk=1), PARTIALS), (Lie(9, chunk=269), PARTIALS), (Lie(9, chunk=269), LOW_PARTIALS)],
    ids=["all chunks", "groups", "chunks of a group"],
)
def test_partials_that_do_not_combine_are_convicted_by_their_combination(
    stage: Stage, lie: Lie, phase: moves.GamePhase
) -> None:
    case = CASES.index(Case(lie=lie))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    opening = games.open_at(twin.claim, held, 1, stage.nonce())

    def defender(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        return honest.answer(state, log, truth if state.phase == phase else held)

    mark = stage.arena.devnet.snapshot()
    outcome = stage.arena.play(opening, defender, games.challenges(truth), twin)
    stage.arena.devnet.revert(mark)
    found = outcome.finding
    assert found is not None
    assert (found.position, found.element, found.chunk) == (lie.op, lie.element, moves.COMBINED)
    assert found.one_chunk is None
    assert outcome.worst <= 600_000, "a verdict and the combination"


def test_a_combination_is_shown_with_the_leaf_that_was_posted(stage: Stage) -> None:
    case = CASES.index(Case(lie=Lie(9, chunk=269)))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    refused: list[moves.GamePhase] = []

    def challenger(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        move = honest.point(state, log, truth)
        if state.phase not in (moves.GamePhase.PARTIAL_PICK, moves.GamePhase.PROOF) or move is None:
            return move
        leaf = honest.GameLog(log).last(moves.LeafPosted)
        assert leaf is not None
        shown = moves.Opening(b"", leaf.data, (), (), 0)
        other = replace(shown, data=leaf.data[:-1] + bytes([leaf.data[-1] ^ 1]))
        step = truth.step(1)
        combined = moves.ProveOp(
            state.standing, step.program.descriptors[state.op], moves.COMBINED, honest.GameLog(log).posted, (shown,),
            honest.GameLog(log).statement.encode(),
        )  # fmt: skip
        both_refuse(stage, twin, opening, combined, "EqualBits", worker=False)
        if state.phase == moves.GamePhase.PARTIAL_PICK:
            wrong = [("OpeningsWrong", ()), ("OpeningsWrong", (shown, shown)), ("ProofInvalid", (other,))]
            for rule, opened in wrong:
                both_refuse(stage, twin, opening, replace(combined, openings=opened), rule, worker=False)
            early = replace(combined, chunk=0, openings=())
            both_refuse(stage, twin, opening, early, "PhaseWrong", worker=False)
        refused.append(state.phase)
        return move

    mark = stage.arena.devnet.snapshot()
    stage.arena.play(opening, games.defends(held), challenger, twin)
    stage.arena.devnet.revert(mark)
    assert refused == [moves.GamePhase.PARTIAL_PICK, moves.GamePhase.PROOF]


def test_what_has_partials_is_picked_before_it_is_proved_and_nothing_else(stage: Stage) -> None:
    for lie, rule in ((Lie(2, element=300, bits=1 << 20), "pickElement"), (Lie(5, element=1, chunk=1), "proveOp")):
        case = CASES.index(Case(lie=lie))
        held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
        opening = games.open_at(twin.claim, held, 1, stage.nonce())
        refused: list[str] = []

        def challenger(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
            move = honest.point(state, log, truth)  # noqa: B023 - played before the next
            if state.phase == moves.GamePhase.ELEMENT:
                proof = moves.ProveOp(state.standing, b"", 0, b"", (), b"")
                other = moves.PickElement(state.standing, 0) if rule == "pickElement" else proof  # noqa: B023
                both_refuse(stage, twin, opening, other, "PhaseWrong", worker=False)  # noqa: B023
                if isinstance(move, moves.PickElement):
                    both_refuse(stage, twin, opening, replace(move, i=256), "LengthWrong", worker=False)  # noqa: B023
                refused.append(other.call)  # noqa: B023
            return move

        mark = stage.arena.devnet.snapshot()
        stage.arena.play(opening, games.defends(held), challenger, twin)
        stage.arena.devnet.revert(mark)
        assert refused == [rule]


def test_words_that_were_not_posted_are_refused_with_the_same_rule(stage: Stage) -> None:
    """At both levels of a fold: the challenger points at other words, and at a word after the last."""
    case = CASES.index(Case(lie=Lie(9, chunk=269)))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    points = games.challenges(truth)
    refused: list[str] = []

    def challenger(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        move = points(state, log)
        if isinstance(move, moves.PickPartial | moves.ProveOp):
            place = "i" if isinstance(move, moves.PickPartial) else "chunk"
            count = len(move.posted) // 4 - 8
            beyond = replace(move, **{place: count})  # type: ignore[arg-type]
            both_refuse(
                stage, twin, opening, replace(move, posted=move.posted + bytes(4)), "ProofInvalid", worker=False
            )
            both_refuse(stage, twin, opening, beyond, rf"LengthWrong\({count}, {count}\)", worker=False)
            refused.append(move.call)
        return move

    mark = stage.arena.devnet.snapshot()
    outcome = stage.arena.play(opening, games.defends(held), challenger, twin)
    assert refused == ["pickPartial", "proveOp"]
    assert outcome.finding is not None
    assert outcome.finding.chunk == 269
    stage.arena.devnet.revert(mark)


@pytest.mark.slow
def test_every_transaction_of_these_games_replays_in_the_twin(stage: Stage) -> None:
    """Market, vault and court, to the byte of every event and to every stored word."""
    for seed in range(12):
        play_at_random(stage, seed)
    replay = replayed(stage.arena.devnet.w3, stage.arena.contracts.addresses)
    assert replay.calls["DisputeGame.open"] > 10, replay.calls
    assert replay.refused.total() > 10, replay.refused
