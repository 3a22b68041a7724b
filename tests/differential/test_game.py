"""The game on a real chain beside its Python twin: after every move the same stored game and the same events."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain import games as chain_games
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import DisputedClaim as ProtocolClaim
from lockstep.protocol.dispute.game import Game, MoveRefused, equivocate
from lockstep.protocol.dispute.moves import Verdict, Wrong
from lockstep.protocol.errors import ChainError
from lockstep.protocol.market import ids
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed, StateRoot
from tests.support import games
from tests.support.arena import STAKE, Arena, Terms, plain
from tests.support.games import Lie, Match, PlainClaim
from tests.support.replay import replayed

pytestmark = pytest.mark.chain

STEP, ENCODE = games.step_program(), games.encode_program()
NO_OUTER = StateRoot(merkle.EMPTY[1])
GARBAGE = Digest(b"\xee" * 32)

LIES = tuple(lie for lie in games.LIES if lie not in (Lie(5, element=2, chunk=2, bits=1 << 20), Lie(9, chunk=3)))
"""A second one in the same op is played off chain alone."""
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


@pytest.mark.parametrize("seed", range(100))
def test_random_games_agree_and_the_honest_worker_wins(stage: Stage, seed: int) -> None:
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

    outcome = arena.play(opening, games.defends(held), refusing, twin)
    assert outcome.verdict == Verdict.REJECTED, "an honest claim is never convicted"


def test_silent_defender_loses_by_the_clock_on_chain(stage: Stage) -> None:
    held, twin = stage.held(0), stage.twin(0)
    mark = stage.arena.devnet.snapshot()
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    outcome = stage.arena.play(opening, games.silent, games.challenges(held), twin)
    assert outcome.verdict == Verdict.TIMEOUT
    stage.arena.devnet.revert(mark)


# -- two claims for the same work


@dataclass(frozen=True)
class Signer:
    """Who signs which claims for the arena's first slot."""

    stage: Stage

    def digest(self, **changes: object) -> Digest:
        return ids.typed_hash(*self._message(**changes))  # type: ignore[arg-type]

    def signed(self, account: LocalAccount, **changes: object) -> tuple[object, ...]:
        _, _, claim, body, *_ = self._message(**changes)
        signature = account.unsafe_sign_hash(self.digest(**changes)).signature
        return (body.trace_root, claim.transitions, body.out, body.out2, bytes(signature))

    def work(self) -> tuple[object, ...]:
        _, _, claim, _, seed, base = self._message()
        return (claim.job, claim.round, claim.attempt, claim.slot, seed, base)

    def _message(self, **changes: object) -> tuple[Any, ...]:
        market = self.stage.arena.contracts.market
        claim = market.claim(self.stage.claims[0])
        body = replace(self.stage.arena.bodies[self.stage.claims[0]], **changes)  # type: ignore[arg-type]
        return market.w3.eth.chain_id, market.address, claim, body, self.stage.seed, StateRoot(GARBAGE)


def test_two_claims_signed_for_the_same_work_convict_without_a_game(stage: Stage) -> None:
    arena, signer = stage.arena, Signer(stage)
    one, other = signer.signed(arena.worker), signer.signed(arena.worker, out=StateRoot(GARBAGE))
    call = arena.contracts.game.call("equivocate", signer.work(), one, other)
    mark = arena.devnet.snapshot()
    before = arena.contracts.vault.read("credits", arena.challenger.address)
    receipt = arena.send(call, arena.challenger)
    assert not arena.contracts.market.live(stage.claims[0]), "convicted"
    assert arena.contracts.vault.read("credits", arena.challenger.address) - before == STAKE * 30 // 100
    assert arena.contracts.market.claim(stage.claims[0]).convicted_at == 0, "no step was proved wrong"
    told = [chain_games.decode(plain(log)) for log in receipt["logs"] if log["address"] == call.to.lower()]
    (convicted,) = told
    assert isinstance(convicted, moves.Convicted)
    worker = Address(arena.worker.address)
    digests = signer.digest(), signer.digest(out=StateRoot(GARBAGE))
    assert convicted.finding == equivocate(worker, *digests, (worker, worker)), "as the twin finds"
    arena.devnet.revert(mark)


def test_what_is_no_equivocation_is_refused_with_the_same_rule(stage: Stage) -> None:
    arena, signer = stage.arena, Signer(stage)
    worker, stranger = Address(arena.worker.address), Address(arena.challenger.address)
    one, other = signer.signed(arena.worker), signer.signed(arena.worker, out=StateRoot(GARBAGE))
    foreign = signer.signed(arena.challenger, out=StateRoot(GARBAGE))
    changed = signer.digest(out=StateRoot(GARBAGE))
    for rule, pair, digests, signers in (
        ("EqualBits", (one, one), (signer.digest(), signer.digest()), (worker, worker)),
        ("Unauthorized", (one, foreign), (signer.digest(), changed), (worker, stranger)),
        ("Unauthorized", (foreign, one), (changed, signer.digest()), (stranger, worker)),
    ):
        with pytest.raises(ChainError, match=rule):
            arena.send(arena.contracts.game.call("equivocate", signer.work(), *pair), arena.challenger)
        with pytest.raises(MoveRefused, match=rule):
            equivocate(worker, *digests, signers)
    _, *rest = signer.work()
    with pytest.raises(ChainError, match="Unauthorized"):
        arena.send(arena.contracts.game.call("equivocate", (GARBAGE, *rest), one, other), arena.challenger)


WRONG = {
    "StatementWrong": lambda m: replace(m, context=m.context + b"\0"),
    "LengthWrong": lambda m: replace(m, children=m.children[:-1]),
    "ProofInvalid": lambda m: replace(m, graph=GARBAGE),
    "StandingStale": lambda m: replace(m, standing=m.standing._replace(node=GARBAGE)),
}


def test_wrong_moves_are_refused_with_the_same_rule(stage: Stage) -> None:
    held, twin = stage.held(0), stage.twin(0)
    arena = stage.arena
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    game_id = chain_games.game.game_id(opening.claim, Address(arena.challenger.address), opening.nonce)
    arena.begin(game_id, opening, twin)
    assert twin.state is not None
    good = honest.answer(twin.state, twin.log, held)
    assert isinstance(good, moves.Defend)
    wrong: list[tuple[str, moves.Move, object]] = [(rule, change(good), arena.worker) for rule, change in WRONG.items()]
    wrong += [
        ("Unauthorized", good, arena.challenger),
        ("PhaseWrong", moves.PostLeaf(good.standing, b""), arena.worker),
        ("ClockRunning", moves.Resolve(good.standing), arena.worker),
        ("GameExists", opening, arena.challenger),
    ]
    for rule, move, sender in wrong:
        with pytest.raises(ChainError, match=rule):
            arena.send(chain_games.call(arena.contracts.game, move, game_id), sender)  # type: ignore[arg-type]
        with pytest.raises(MoveRefused, match=rule):
            twin.play(move, Address(sender.address))  # type: ignore[attr-defined]


def both_refuse(stage: Stage, twin: Match, opening: moves.Open, move: moves.Move, rule: str, *, worker: bool) -> None:
    arena = stage.arena
    sender = arena.worker if worker else arena.challenger
    game_id = chain_games.game.game_id(opening.claim, Address(arena.challenger.address), opening.nonce)
    with pytest.raises(ChainError, match=rule):
        arena.send(chain_games.call(arena.contracts.game, move, game_id), sender)
    twin.now = Seconds(arena.now() - twin.seconds_per_move)
    with pytest.raises(MoveRefused, match=rule):
        twin.play(move, Address(sender.address))


def test_wrong_openings_are_refused_with_the_same_rule(stage: Stage) -> None:
    held, twin = stage.held(0), Match(stage.unchallenged())
    good = games.open_at(twin.claim, held, 2, stage.nonce())
    foreign = replace(good.transition, ops_root=STEP.ops_root)
    other_start = replace(good.transition, prev=held.trace[1])
    for rule, opening in (
        ("StepOutOfRange", replace(good, t=3)),
        ("ProofInvalid", replace(good, transition=foreign)),
        ("ProofInvalid", replace(good, transition=other_start)),
        ("ProofInvalid", replace(good, next=held.trace[0])),
        ("ProofInvalid", replace(good, next_proof=())),
    ):
        both_refuse(stage, twin, opening, opening, rule, worker=False)


def test_move_after_the_clock_is_refused_with_the_same_rule(stage: Stage) -> None:
    held, twin = stage.held(0), stage.twin(0)
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    game_id = chain_games.game.game_id(opening.claim, Address(stage.arena.challenger.address), opening.nonce)
    state, log = stage.arena.begin(game_id, opening, twin)
    move = honest.answer(state, log, held)
    assert move is not None
    mark = stage.arena.devnet.snapshot()
    stage.arena.devnet.advance(Seconds(state.deadline - stage.arena.now() + 1))
    both_refuse(stage, twin, opening, move, "ClockExpired", worker=True)
    stage.arena.devnet.revert(mark)


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


LISTS: dict[type[moves.Move], str] = {
    moves.Defend: "children", moves.Pick: "siblings", moves.RevealTensor: "children", moves.PostLeaf: "data",
}  # fmt: skip
"""What a move must bring as much of as the contract says."""


def test_a_move_that_brings_one_too_few_is_told_both_numbers(stage: Stage) -> None:
    case = CASES.index(Case(lie=Lie(2, element=300, bits=1 << 20)))
    held, truth, twin = stage.held(case), stage.truth(case), stage.twin(case)
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    refused: set[type[moves.Move]] = set()

    def spoiling(own: honest.MaterialisedClaim, *, worker: bool) -> Callable[..., moves.Move | None]:
        points = games.defends(own) if worker else games.challenges(own)

        def policy(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
            move = points(state, log)
            if type(move) in LISTS:
                field = LISTS[type(move)]
                brought = getattr(move, field)
                rule = rf"LengthWrong\({len(brought)}, {len(brought) - 1}\)"
                fewer = replace(move, **{field: brought[:-1]})  # type: ignore[type-var, arg-type]
                both_refuse(stage, twin, opening, fewer, rule, worker=worker)
                refused.add(type(move))
            return move

        return policy

    mark = stage.arena.devnet.snapshot()
    outcome = stage.arena.play(opening, spoiling(held, worker=True), spoiling(truth, worker=False), twin)
    stage.arena.devnet.revert(mark)
    assert refused == set(LISTS)
    assert outcome.verdict == Verdict.FRAUD


def test_every_transaction_of_these_games_replays_in_the_twin(stage: Stage) -> None:
    """Market, vault and court, to the byte of every event and to every stored word."""
    replay = replayed(stage.arena.devnet.w3, stage.arena.contracts.addresses)
    assert replay.calls["DisputeGame.open"] > 20, replay.calls
    assert replay.refused.total() > 20, replay.refused
