"""Workers outlive their rounds: they defend what they claimed until it is final, restarted or not, and leave then."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.execution.jobs import Job, slot_run
from lockstep.execution.merging import base_checkpoint
from lockstep.market.held import HeldClaim
from lockstep.presets import CHAINS
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import levels
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.market.job_rules import GAME_MOVES
from lockstep.protocol.programs.program import CHUNK, Kind
from lockstep.protocol.types import Digest, GameId, Seconds, Seed, StateRoot
from tests.e2e.test_worker import Challenger, Market, events_of, homes_of, ledger_of, reveals, up
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

CLOCK = Seconds(900)
POINTED = (moves.GamePhase.GRAPH_PICK, moves.GamePhase.TENSOR_PICK, moves.GamePhase.ELEMENT)
"""Where an attacker with nothing to prove can still point somewhere."""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


@dataclass
class Attacker:
    """Challenges honest claims, plays as long as it likes, and never proves anything."""

    market: Market
    job: Job
    challenger: Challenger
    true: dict[tuple[int, int], HeldClaim] = field(default_factory=dict)

    def send(self, call: Call, key: str) -> None:
        self.challenger.outbox.send(call, key)

    def opening(self, r: int, slot: int, t: int, nonce: int) -> tuple[GameId, Call]:
        """A game about a slot's claim of a round, whose S_t it pretends to differ from."""
        contracts = self.market.contracts
        ledger = ledger_of(self.market).jobs[self.job.id]
        if (r, slot) not in self.true:
            records = ledger.records(r, self.job.params.role.slots)
            base = base_checkpoint(self.job, self.market.store, records)
            self.true[r, slot] = HeldClaim.of(slot_run(self.job, base, Seed(ledger.rounds[r].seed), r, slot))
        true = self.true[r, slot]
        other = StateRoot(b"\1" * 32)
        own = HeldClaim(true.run, [*true.trace[: t - 1], other, *true.trace[t:]])
        record = ledger.rounds[r].claims[slot]
        opening = honest.opening(games.claim(contracts.market, record.id, record.body), own, list(true.trace), nonce)
        assert opening is not None
        game = GameId(contracts.game.read("gameIdOf", record.id, self.challenger.address, nonce))
        return game, games.call(contracts.game, opening, game)

    def open(self, *places: tuple[int, int, int]) -> list[GameId]:
        """A game for each (round, slot, t), all at once."""
        made = [self.opening(*place, nonce) for nonce, place in enumerate(places)]
        self.challenger.outbox.send_all([(f"open/{game.hex()}", call) for game, call in made])
        return [game for game, _ in made]

    def point_all(self, opened: list[GameId]) -> int:
        """The attacker's next move in every game in which it has one, all at once."""
        live = [game for game in opened if self.phase(game) in POINTED]
        self.challenger.outbox.send_all([self.point(game) for game in live])
        return len(live)

    def point(self, game: GameId) -> tuple[str, Call]:
        """The challenger's next move towards the first fold's first element, whatever is shown."""
        contract = self.market.contracts.game
        state, log = games.read(contract, game), games.log(contract, game, 0)
        program = self.job.programs.step
        fold = next(i for i, op in enumerate(program.ops) if op.kind == Kind.FOLD and op.k_terms > CHUNK)
        if state.phase == moves.GamePhase.ELEMENT:
            call = games.call(contract, moves.PickElement(state.standing, 0), game)
        else:
            shown = (moves.Defended, moves.Revealed, moves.TensorRevealed)
            children = [e for e in log if isinstance(e, shown)][-1].children
            down = levels(state.rem)
            towards = fold if state.phase == moves.GamePhase.GRAPH_PICK else 0
            i = (towards >> (state.rem - down)) & ((1 << down) - 1)
            proof = tuple(merkle.proof(merkle.levels(list(children)), i))
            call = games.call(contract, moves.Pick(state.standing, i, children[i], proof), game)
        return f"point/{game.hex()}/{state.standing.digest.hex()}", call

    def answered(self, opened: list[GameId]) -> bool:
        """Tells if it is the attacker's turn everywhere."""
        return not any(self.phase(game) in moves.DEFENDERS for game in opened)

    def phase(self, game: GameId) -> moves.GamePhase:
        return games.read(self.market.contracts.game, game).phase

    def ends(self, opened: list[GameId]) -> list[moves.Verdict]:
        """Who won, once the attacker's clocks have run out; anybody may resolve, and the defender does."""
        self.market.devnet.advance(Seconds(CLOCK + 1))
        contract = self.market.contracts.game
        wait(lambda: all(games.read(contract, g).verdict for g in opened), "verdicts")
        return [games.read(contract, g).verdict for g in opened]


def failed_round(market: Market, workers: list[Path]) -> Attacker:
    """A job whose only round fails, since one of three slots is a silent attacker's; two honest claims are revealed."""
    challenger = Challenger(market, "mallory")
    job = market.submit(
        rounds=1, max_lead=1, max_fail=0, min_slots=3, join_seconds=Seconds(600), train_seconds=Seconds(600),
        reveal_seconds=Seconds(300), attest_seconds=Seconds(40), challenge_seconds=Seconds(600), clock_seconds=CLOCK,
    )  # fmt: skip
    attacker = Attacker(market, job, challenger)
    wait(lambda: len(events_of(market, "Joined")) == len(workers), "honest joins")
    free = ({0, 1, 2} - {e.slot for e in events_of(market, "Joined")}).pop()
    attacker.send(market.contracts.market.join(job.id, 0, free), "join")
    wait(lambda: len(events_of(market, "Sealed")) == 1, "seal")
    attacker.send(market.contracts.market.commit(job.id, 0, free, Digest(b"\7" * 32)), "commit")
    wait(lambda: len(reveals(market)) == len(workers), "reveals")
    return attacker


def round_fails(market: Market, attacker: Attacker) -> None:
    """The attacker reveals nothing: two of three, and min_slots is three."""
    market.devnet.advance(Seconds(301))
    wait(lambda: market.contracts.market.phase(attacker.job.id, 0) == Phase.FAILED, "failure of the round")


def slot_of(market: Market, process_home: Path) -> int:
    address = market.devnet.account(process_home.name).address
    return next(int(e.slot) for e in events_of(market, "Joined") if e.worker == address)


def test_claims_of_a_failed_round_are_defended_by_who_stayed_and_by_who_came_back(market: Market) -> None:
    once, daemon = homes_of(market, "w0", "w1")
    workers = {home: up(market, home, *flags) for home, flags in ((once, ["--once"]), (daemon, []))}
    attacker = failed_round(market, [once, daemon])
    opened = attacker.open(*((0, slot_of(market, home), 1) for home in (once, daemon)))
    wait(lambda: all(attacker.phase(g) == moves.GamePhase.GRAPH_PICK for g in opened), "defences")
    round_fails(market, attacker)
    assert workers[once].popen.poll() is None, "--once stays: its claim is under a game"
    assert list(daemon.glob("work/*/material.json")), "the material is there"

    workers[daemon].popen.send_signal(signal.SIGKILL)
    workers[daemon].popen.wait()
    workers[daemon] = up(market, daemon)
    attacker.point_all(opened)
    wait(lambda: attacker.answered(opened), "answers after the round's failure")
    # Longer than the challenge window: the games alone keep the round from being final.
    assert attacker.ends(opened) == [moves.Verdict.REJECTED] * 2, "nobody is convicted"

    wait(lambda: market.contracts.market.job(attacker.job.id).status == JobStatus.DONE, "job done")
    assert len(events_of(market, "Paid")) == 2, "what was revealed is paid"
    for worker in workers.values():
        worker.wait_for("done")
    assert workers[once].popen.wait(PATIENCE) == 0, "--once leaves once nothing is at stake"
    vault = market.contracts.vault
    for home in (once, daemon):
        me = market.devnet.account(home.name).address
        assert not ledger_of(market).staked(me), "every stake is back"  # type: ignore[arg-type]
        assert vault.free(me) > 0  # type: ignore[arg-type]
    wait(lambda: not list(daemon.glob("work/*/material.json")), "material that nobody needs any more to go")
    assert not list(daemon.glob("states/*")), "nor do its states stay"
    assert workers[daemon].stop() == 0


def test_sixteen_games_at_once_are_all_defended_in_time(tmp_path: Path) -> None:
    """Against one worker, on four claims and four steps of each, while time passes by blocks of 12 s."""
    chain, block_seconds = CHAINS["ethereum"], 12
    market = Market.build(tmp_path, chain)
    try:
        market.devnet._request("anvil_setBlockTimestampInterval", [block_seconds])
        homes = homes_of(market, "w0", "w1", "w2")
        workers = [up(market, home) for home in homes]
        b = block_seconds
        clock = Seconds(GAME_MOVES * max(chain.inclusion, 2) + 60)
        job = market.submit(
            rounds=4, max_lead=4, join_seconds=Seconds(60 * b), train_seconds=Seconds(60 * b),
            reveal_seconds=Seconds(60 * b), attest_seconds=Seconds(60 * b), merge_seconds=Seconds(60 * b),
            challenge_seconds=Seconds(180 * b), answer_seconds=Seconds(60 * b), clock_seconds=clock,
            step_seconds=Seconds(5),
        )  # fmt: skip
        attacker = Attacker(market, job, Challenger(market, "mallory"))
        wait(lambda: len(reveals(market)) == 12, "reveals of four rounds", every=1.0)
        own = [e for e in reveals(market) if e.worker == market.devnet.account("w0").address]
        opened = attacker.open(*((e.round, e.slot, t) for t in (5, 2, 4, 1) for e in own))
        assert len(opened) == 16
        began, answers = market.now(), 16
        wait(lambda: attacker.answered(opened), "sixteen defences", every=0.5)
        while moved := attacker.point_all(opened):
            answers += moved
            wait(lambda: attacker.answered(opened), "answers", every=0.5)
        took = market.now() - began
        table = market.contracts.game
        left = min(games.read(table, game).left_defender for game in opened)
        spent = sum(e["seconds"] for e in workers[0].named("defending"))
        print(f"{b} s blocks: {answers} moves in {took} s of chain time, {spent:.2f} s of the machine; of clocks of")
        print(f"{clock} s and more the least that was left is {left} s")
        assert answers >= 48
        market.devnet.advance(Seconds(clock + 16 * 5 + 1))
        wait(lambda: all(games.read(table, g).verdict for g in opened), "verdicts", every=1.0)
        assert {games.read(table, g).verdict for g in opened} == {moves.Verdict.REJECTED}, "nobody is convicted"
        assert [w.popen.poll() for w in workers] == [None] * 3
        assert not any("Traceback" in w.log.read_text() for w in workers)
    finally:
        market.close()
