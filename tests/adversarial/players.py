"""Challengers that lie, and a liar's game: who stalls, withdraws, throws a game, takes another's or convicts itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.demo.cheats.challenges import Aim, InventedStep, place_of
from lockstep.disputes.player import Side
from lockstep.market.held import HeldClaim
from lockstep.protocol.dispute import honest as play_of
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import ClaimId, GameId, Seconds, StateRoot, Wei
from tests.adversarial.cheat import Story
from tests.adversarial.claims import flips
from tests.adversarial.court import UNBOND_SECONDS, Court, Turn
from tests.adversarial.lies import lying

REJECTED = {Verdict.REJECTED}
DAY = 86_400


def accused(court: Court) -> tuple[ClaimId, HeldClaim, Callable[[str], GameId]]:
    """Slot 0 has flipped a bit of a moment, and a verifier has found it: the claim, what is right, and who opens."""
    court.claim({0: lying(court.run(0), flips("m", 7))})
    claim, found = court.accused()
    return claim, found.held, lambda name: court.open(claim, found, name)


# -- false challenges --------------------------------------------------------------------------------------------------


def challenged(t: int, r: int = 0, slot: int = 0) -> Story:
    """An honest claim, after `r` honest rounds, is challenged, and its challenger never moves again."""

    def story(court: Court) -> GameId:
        for earlier in range(r):
            court.rounds(earlier)
            court.seal(earlier + 1)
        claims = court.claim(r=r)
        assert court.audits() == {}, "every claim is right"
        if r and court.params.role.carries:
            assert all(court.run(slot, r).carried is not None for slot in range(3))
        game = court.open_at(claims[slot], t, "mallory")
        court.play(game, court.defender(game))
        return game

    return story


def invented(court: Court) -> GameId:
    """Played as far as it goes with a step of the challenger's invention (the demo's lie)."""
    claim = court.claim()[0]
    game, challenger = attack(court, claim, "mallory")
    court.play(game, court.defender(game), challenger)
    return game


def attack(court: Court, claim: ClaimId, name: str, nonce: int = 0, aim: Aim | None = None) -> tuple[GameId, Turn]:
    """A game about an honest claim, by a challenger that has flipped a bit of step 1, at `aim` or somewhere; it plays
    until the contract refuses a proof, and then waits for its clock. With an `aim` it finds the transition, too."""
    honest = court.held[claim]
    step = InventedStep(honest.step(1), aim or place_of(court.job.programs, 1))
    held = HeldClaim(honest.run, [StateRoot(step.root), *honest.trace[1:]])
    held.keep(1, step)
    opening = play_of.opening(court.known(claim), held, None if aim else honest.trace, nonce)
    assert opening is not None
    game = court.begin(opening, name)
    turn, refused = court.challenger(game, held, name), list[str]()

    def player(now: Seconds) -> moves.Move | None:
        try:
            return None if refused else turn(now)
        except ChainError as error:
            if error.code != "chain.EqualBits":
                raise
            refused.append(error.code)
            return None

    return game, player


def hundred(court: Court) -> GameId:
    """A hundred games at once on one honest claim: each adds the time of a step to the defender's clock; the defender
    takes less than that for an answer, and in all more than one clock."""
    claim, windows, t = court.claim()[0], court.params.windows, court.params.role.transitions
    for i in range(4):
        court.fund(f"sybil-{i}")
    opened = [court.open_at(claim, 1 + i * t // 100, f"sybil-{i % 4}", nonce=i // 4) for i in range(100)]
    begun, allowed = court.now(), games.read(court.contracts.game, opened[-1]).left_defender
    assert allowed == windows.clock_seconds + 99 * windows.step_seconds
    for game in opened:
        court.advance(9)
        assert court.defender(game)(court.now()) is not None, "the defender answers each in time"
    assert court.now() - begun > windows.clock_seconds, "one clock would not have done"
    for game in opened:
        court.play(game, court.defender(game))
    assert {court.verdict(g) for g in opened} == REJECTED
    return opened[0]


SIXTEEN = 16


def sixteen(court: Court) -> GameId:
    """Sixteen games attack all claims of one honest worker, half of them played as far as a false challenge goes. Its
    one machine answers one game at a time, and takes nearly a step's time to make the step of each."""
    court.owners = dict.fromkeys(range(3), "worker-0")
    court.create(clock_seconds=Seconds(600), step_seconds=Seconds(60))
    court.seal()
    claims, game, windows = court.claim(), court.contracts.game, court.params.windows
    challengers: dict[GameId, Turn] = {}
    for i in range(SIXTEEN):
        assert game.defending(court.address("worker-0")) == i
        opened, plays = attack(court, claims[i % 3], ("mallory", "accomplice")[i % 2], i)
        challengers[opened] = plays if i % 4 < 2 else lambda now: None
        left = games.read(game, opened).left_defender
        assert left == windows.clock_seconds + i * windows.step_seconds, "one step more for each game that is open"
    begun = court.now()
    _defend_all(court, challengers)
    assert court.now() - begun > windows.clock_seconds, "one clock would not have done"
    for opened, challenger in challengers.items():
        court.play(opened, court.defender(opened), challenger)
    assert {court.verdict(g) for g in challengers} == REJECTED
    assert game.defending(court.address("worker-0")) == 0
    return next(iter(challengers))


def _defend_all(court: Court, challengers: Mapping[GameId, Turn]) -> None:
    """Answer the game whose clock runs out first, until the challengers alone are to move; they answer at once."""
    made: set[GameId] = set()
    while True:
        stored = {g: games.read(court.contracts.game, g) for g in challengers}
        waiting = [g for g, state in stored.items() if state.defender_moves]
        if not waiting:
            if not any(turn(court.now()) for turn in challengers.values()):
                return
            continue
        first = min(waiting, key=lambda g: stored[g].deadline)
        if first not in made:
            made.add(first)
            court.advance(court.params.windows.step_seconds - 2)
        assert court.defender(first)(court.now()) is not None, "the defender answers each in time"
        challengers[first](court.now())


LONG_CLOCK = Seconds(6 * DAY)
DOZENS = 24


def with_oneself(court: Court) -> GameId:
    """The owner answers each of two dozen games in its last second, its accomplice then keeps silent; both have all the
    time that the longest clocks and steps give: thirty days more, whatever the number of games."""
    claim, game, begun = court.claim()[0], court.contracts.game, court.now()
    court.merge()
    most = LONG_CLOCK + 30 * DAY
    opened = [court.open_at(claim, 0, "accomplice", nonce) for nonce in range(DOZENS)]
    left = [games.read(game, g).left_defender for g in opened]
    assert max(left) == left[-1] == most
    begun = court.now()
    for one in opened:
        court.advance(min(games.read(game, one).deadline - 60, begun + most) - court.now())
        assert court.defender(one)(court.now()) is not None
    for one in opened:
        court.play(one)
    assert {court.verdict(g) for g in opened} == REJECTED
    court.settle()
    assert most < court.now() - begun <= most + LONG_CLOCK + court.params.windows.challenge_seconds
    for slot in range(3):
        assert court.contracts.vault.lock_of(court.contracts.market.claim_id_of(court.job_id, 0, slot)) is None
    return opened[0]


# -- a liar's game -----------------------------------------------------------------------------------------------------


def stalls(late: int) -> Story:
    """The first move comes `late` seconds before (or, negative, after) the end of the defender's clock; the game ends
    within both clocks all the same."""

    def story(court: Court) -> GameId:
        claim, right, opens = accused(court)
        game, begun, stalled, windows = opens("verifier"), court.now(), list[str](), court.params.windows
        defender = court.defender(game)

        def turn(now: Seconds) -> moves.Move | None:
            state = games.read(court.contracts.game, game)
            if stalled or not state.defender_moves:
                # The next block would be too late, and a worker knows it.
                return defender(now) if now < state.deadline else None
            court.advance(state.deadline - now - late - 1)
            if late >= 0:
                stalled.append("moved")
                return defender(court.now())
            move = moves.PostLeaf(state.standing, b"")
            stalled.append(court.refused(games.call(court.contracts.game, move, game), "worker-0"))
            return None

        court.play(game, turn, court.challenger(game, right))
        assert court.now() - begun <= 2 * windows.clock_seconds + windows.step_seconds, "within both clocks"
        assert stalled in ([["moved"]] if late >= 0 else [["PhaseWrong"], ["ClockExpired"]])
        assert court.convicted(claim)
        return game

    return story


def withdraws(court: Court) -> GameId:
    """A liar takes out what it can before the window ends; what it cannot is slashed."""
    vault, market = court.contracts.vault, court.contracts.market
    assert court.params.windows.challenge_seconds < UNBOND_SECONDS, "unbonding is longer than any window"
    claim, right, opens = accused(court)
    free = vault.free(court.address("worker-0"))
    assert court.refused(vault.request_unbond(Wei(free + 1)), "worker-0") == "StakeTooLow", "a claim's stake is locked"
    court.send(vault.request_unbond(free), "worker-0")
    assert court.refused(vault.withdraw_unbonded(), "worker-0") == "Unbonding"
    assert court.refused(market.leave(court.job_id, 0, 0), "worker-0") == "WrongPhase"
    game = opens("verifier")
    court.play(game, court.defender(game), court.challenger(game, right))
    assert court.convicted(claim)
    court.settle()
    court.advance(UNBOND_SECONDS)
    court.send(vault.withdraw_unbonded(), "worker-0")
    return game


def thrown(court: Court) -> GameId:
    """An accomplice opens the first game and lets it run out: a lost game acquits nobody."""
    claim, right, opens = accused(court)
    lost = opens("accomplice")
    court.play(lost, court.defender(lost))
    assert court.verdict(lost) == Verdict.REJECTED
    assert not court.convicted(claim)
    game = opens("verifier")
    court.play(game, court.defender(game), court.challenger(game, right))
    return game


def front_run(court: Court) -> GameId:
    """Every move of the challenger is sent by mallory first; nothing but the challenger's own counts."""
    _, right, opens = accused(court)
    game, refusals = opens("verifier"), list[str]()

    def watched(call: Call, key: str) -> object:
        refusals.append(court.refused(call, "mallory"))
        return court.send(call, "verifier")

    seat = court.seat(game, Side.CHALLENGER, right, "verifier")
    seat.send = watched
    court.play(game, court.defender(game), seat.turn)
    assert set(refusals) == {"Unauthorized"}
    return game


def copied(court: Court) -> GameId:
    """A game beside the verifier's, its moves copied, its last one mined first: the copier wins, nobody is hurt."""
    _, right, opens = accused(court)
    game, copy = opens("verifier"), opens("mallory")
    verifier, copier = court.challenger(game, right), court.challenger(copy, right, "mallory")
    defenders = court.defender(game), court.defender(copy)

    def waits(now: Seconds) -> moves.Move | None:
        """The verifier's last move is held up in the pool."""
        last = games.read(court.contracts.game, game).phase in (moves.GamePhase.ELEMENT, moves.GamePhase.PROOF)
        open_ = games.read(court.contracts.game, copy).phase != moves.GamePhase.CLOSED
        return None if last and open_ else verifier(now)

    while games.read(court.contracts.game, copy).phase != moves.GamePhase.CLOSED:
        assert any(turn(court.now()) is not None for turn in (*defenders, waits, copier))
    court.play(game, verifier)
    return copy


def convicts_itself(races: bool) -> Story:
    """The liar's accomplice convicts it; `races`: before the verifier's game, which is open, is over."""

    def story(court: Court) -> GameId:
        _, right, opens = accused(court)
        theirs = opens("verifier") if races else None
        own = opens("accomplice")
        court.play(own, court.defender(own), court.challenger(own, right, "accomplice"))
        if theirs is not None:
            court.play(theirs, court.challenger(theirs, right))
        return own

    return story
