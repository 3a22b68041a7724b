"""Workers outlive their jobs: they defend what they claimed until no game is open, restarted or not, and leave then."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.chain import games
from lockstep.disputes import HeldClaim
from lockstep.jobs import Job, slot_run
from lockstep.merging import base_checkpoint
from lockstep.protocol import honest, merkle, moves
from lockstep.protocol.game import levels
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.program import CHUNK, Kind
from lockstep.protocol.types import Digest, GameId, Seconds, Seed
from tests.e2e.test_worker import Challenger, Market, Process, events_of, homes_of, ledger_of, reveals, up, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

CLOCK = Seconds(900)
POINTED = (moves.Phase.GRAPH_PICK, moves.Phase.TENSOR_PICK, moves.Phase.ELEMENT)
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

    def send(self, call: object, key: str) -> None:
        self.challenger.outbox.send(call, key)  # type: ignore[arg-type]

    def open(self, slot: int, t: int = 1, nonce: int = 0) -> GameId:
        """A game about a slot's claim of round 0, whose S_t it pretends to differ from."""
        contracts = self.market.contracts
        ledger = ledger_of(self.market).jobs[self.job.id]
        base = base_checkpoint(self.job, self.market.store, [])
        true = HeldClaim.of(slot_run(self.job, base, Seed(ledger.rounds[0].seed), 0, slot))
        other = Digest(b"\1" * 32)
        own = HeldClaim(true.run, [*true.trace[: t - 1], other, *true.trace[t:]])  # type: ignore[list-item]
        record = ledger.rounds[0].claims[slot]
        opening = honest.opening(games.claim(contracts.market, record.id, record.body), own, list(true.trace), nonce)
        assert opening is not None
        game = GameId(contracts.game.read("gameIdOf", record.id, self.challenger.address, nonce))
        self.send(games.call(contracts.game, opening, game), f"open/{slot}/{t}/{nonce}")
        return game

    def point(self, game: GameId) -> None:
        """The challenger's next move towards the first fold's first element, whatever is shown."""
        contract = self.market.contracts.game
        state, log = games.read(contract, game), games.log(contract, game, 0)
        program = self.job.programs.step
        fold = next(i for i, op in enumerate(program.ops) if op.kind == Kind.FOLD and op.k_terms > CHUNK)
        if state.phase == moves.Phase.ELEMENT:
            leaf = [e for e in log if isinstance(e, moves.LeafPosted)][-1].data
            call = games.call(contract, moves.PickElement(state.node, 0, leaf), game)
        else:
            shown = (moves.Defended, moves.Revealed, moves.TensorRevealed)
            children = [e for e in log if isinstance(e, shown)][-1].children
            down = levels(state.rem)
            towards = fold if state.phase == moves.Phase.GRAPH_PICK else 0
            i = (towards >> (state.rem - down)) & ((1 << down) - 1)
            proof = tuple(merkle.proof(merkle.levels(list(children)), i))
            call = games.call(contract, moves.Pick(state.node, i, children[i], proof), game)
        self.send(call, f"point/{game.hex()}/{state.node.hex()}/{state.phase}")

    def answered(self, opened: list[GameId]) -> bool:
        """Tells if it is the attacker's turn everywhere."""
        return not any(self.phase(game) in moves.DEFENDERS for game in opened)

    def phase(self, game: GameId) -> moves.Phase:
        return games.read(self.market.contracts.game, game).phase

    def ends(self, opened: list[GameId]) -> list[moves.Verdict]:
        """Who won, once the attacker's clocks have run out; anybody may resolve, and the defender does."""
        self.market.devnet.advance(Seconds(CLOCK + 1))
        contract = self.market.contracts.game
        wait(lambda: all(games.read(contract, g).verdict for g in opened), 90, "verdicts")
        return [games.read(contract, g).verdict for g in opened]


def failed_round(market: Market, workers: list[Path]) -> Attacker:
    """A job whose only round fails, since one of three slots is a silent attacker's; two honest claims are revealed."""
    challenger = Challenger(market, "mallory")
    job = market.submit(
        rounds=1, max_lead=1, max_fail=0, min_slots=3, join_seconds=Seconds(600), train_seconds=Seconds(600),
        reveal_seconds=Seconds(300), attest_seconds=Seconds(40), challenge_seconds=Seconds(600), clock_seconds=CLOCK,
    )  # fmt: skip
    attacker = Attacker(market, job, challenger)
    wait(lambda: len(events_of(market, "Joined")) == len(workers), 60, "honest joins")
    free = ({0, 1, 2} - {e.slot for e in events_of(market, "Joined")}).pop()
    attacker.send(market.contracts.market.join(job.id, 0, free), "join")
    wait(lambda: len(events_of(market, "Sealed")) == 1, 60, "seal")
    attacker.send(market.contracts.market.commit(job.id, 0, free, Digest(b"\7" * 32)), "commit")
    wait(lambda: len(reveals(market)) == len(workers), 60, "reveals")
    return attacker


def job_ends(market: Market, attacker: Attacker) -> None:
    """The attacker reveals nothing: two of three, and min_slots is three."""
    market.devnet.advance(Seconds(301))
    wait(lambda: market.contracts.market.job(attacker.job.id).status == JobStatus.DONE, 90, "job done")


def slot_of(market: Market, process_home: Path) -> int:
    address = market.devnet.account(process_home.name).address
    return next(int(e.slot) for e in events_of(market, "Joined") if e.worker == address)


def test_claims_are_defended_after_their_job_ended_by_who_stayed_and_by_who_came_back(market: Market) -> None:
    once, daemon = homes_of(market, "w0", "w1")
    workers = {home: up(market, home, *flags) for home, flags in ((once, ["--once"]), (daemon, []))}
    attacker = failed_round(market, [once, daemon])
    opened = [attacker.open(slot_of(market, home)) for home in (once, daemon)]
    wait(lambda: all(attacker.phase(g) == moves.Phase.GRAPH_PICK for g in opened), 60, "defences")
    job_ends(market, attacker)
    done: list[Process] = list(workers.values())
    for worker in done:
        worker.wait_for("done", 60)
    assert workers[once].popen.poll() is None, "--once stays: its claim is under a game"
    assert list(daemon.glob("work/*/material.json")), "the material is there"

    workers[daemon].popen.send_signal(signal.SIGKILL)
    workers[daemon].popen.wait()
    workers[daemon] = up(market, daemon)
    for game in opened:
        attacker.point(game)
    wait(lambda: attacker.answered(opened), 60, "answers after the job's end")
    assert attacker.ends(opened) == [moves.Verdict.REJECTED] * 2, "nobody is convicted"

    assert workers[once].popen.wait(60) == 0, "--once leaves once nothing is at stake"
    vault = market.contracts.vault
    for home in (once, daemon):
        me = market.devnet.account(home.name).address
        assert not ledger_of(market).staked(me), "every stake is back"  # type: ignore[arg-type]
        assert vault.free(me) > 0  # type: ignore[arg-type]
    wait(lambda: not list(daemon.glob("work/*/material.json")), 60, "material that nobody needs any more to go")
    assert not list(daemon.glob("states/*")), "nor do its states stay"
    assert workers[daemon].stop() == 0


def test_sixteen_games_at_once_are_all_defended_in_time(market: Market) -> None:
    """On two claims of one worker's key and eight steps, with S_0 .. S_T replayed about once for each claim."""
    homes = homes_of(market, "w0", "w1")
    workers = [up(market, home) for home in homes]
    attacker = failed_round(market, homes)
    slots = [slot_of(market, home) for home in homes]
    steps = attacker.job.params.inner_steps
    began = market.now()
    opened = [attacker.open(slots[0], t=1 + nonce % steps, nonce=nonce) for nonce in range(16)]
    wait(lambda: all(attacker.phase(g) == moves.Phase.GRAPH_PICK for g in opened), 120, "sixteen defences", every=1.0)
    answers = 16
    while (live := [g for g in opened if attacker.phase(g) in POINTED]) and answers < 100:
        for game in live:
            attacker.point(game)
        answers += len(live)
        wait(lambda: attacker.answered(opened), 120, "answers", every=1.0)
    print("16 games,", answers, "moves of the defender in", market.now() - began, "s of chain time")
    assert answers >= 64, "defend, revealTensor, postLeaf, postPartials in each"
    assert attacker.ends(opened) == [moves.Verdict.REJECTED] * 16
    assert [w.popen.poll() for w in workers] == [None, None]
    assert len(workers[0].named("defending")) >= 16
