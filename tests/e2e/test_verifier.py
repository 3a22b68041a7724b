"""The verifier as a process: what it finds from public data alone, and what becomes of it on chain."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from lockstep.demo.cheats import lies
from lockstep.demo.cheats.lies import lying_aggregator
from lockstep.execution.jobs import ClaimRun
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import GamePhase, Verdict
from lockstep.protocol.programs.program import CHUNK
from lockstep.protocol.types import ClaimId, Seconds
from tests.e2e.market import NOWHERE, Market, kill, wait_for
from tests.support.waiting import wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

MOST_TRANSACTIONS, MOST_GAS, MOST_GAS_IN_ONE = 16, 2_000_000, 600_000


def lie(market: Market, name: str, slot: int) -> tuple[lies.Cheat, ClaimRun]:
    """A lie and a slot's lying run; the chain's own seed decides which one-ulp lies are rounded away."""
    for seed in range(20):
        chain_id = market.contracts.addresses.chain_id
        cheat = lies.cheat_of(name, market.job.programs, market.params, seed, chain_id)
        run = cheat.run(market.run(slot))
        if [root for _, _, root in run.states()] != [root for _, _, root in market.run(slot).states()]:
            return cheat, run
    raise AssertionError(f"{name} is rounded away, whatever its place")


def test_a_lie_is_convicted_where_it_was_told_and_honest_claims_are_left_alone(market: Market) -> None:
    market.seal()
    market.defend()
    cheat, lying = lie(market, "one-ulp", 1)
    runs = [market.run(0), lying, market.run(2)]
    verifier = market.verifier()
    claims = market.claim(runs)

    won = wait_for(verifier, "won")
    for slot in (0, 2):
        assert wait_for(verifier, "audited", claim=claims[slot].hex())["verdict"] == "match", slot
    audited = wait_for(verifier, "audited", claim=claims[1].hex())
    assert (audited["verdict"], audited["t"]) == ("mismatch", cheat.expectation.step)

    assert won["verdict"] == "fraud"
    (game,) = market.games_on(claims[1])
    assert not market.games_on(claims[0]) + market.games_on(claims[2])
    convicted = next(e for e in market.log(game) if isinstance(e, moves.Convicted))
    found, expected = convicted.finding, cheat.expectation
    assert (found.t, found.position, found.element) == (expected.step, expected.op_index, expected.element)
    assert found.chunk == (expected.chunk or 0)

    gas = market.receipts(game)
    print(f"{len(gas)} transactions, {sum(gas)} gas, worst {max(gas)}; moves {verifier.named('moved')}")
    assert len(gas) <= MOST_TRANSACTIONS
    assert sum(gas) <= MOST_GAS
    assert max(gas) <= MOST_GAS_IN_ONE

    mapped = Path(f"/proc/{verifier.popen.pid}/maps").read_text()
    assert "_native" in mapped
    assert "torch" not in mapped, "a verifier needs no PyTorch"
    before = market.contracts.token.balance_of(market.address("verifier"))
    assert verifier.stop(60) == 0, verifier.last_words()
    withdrawn = int(verifier.named("withdrawn")[0]["amount"])
    assert withdrawn == market.params.role.slot_stake * 3 // 10
    assert market.contracts.token.balance_of(market.address("verifier")) == before + withdrawn

    told = json.loads(market.replay(claims[0], "--json").stdout)["data"]
    assert told["verdict"] == "match"
    second = market.replay(claims[1], "--json", "--roots", "--path", "scalar", "--threads", "2")
    told = json.loads(second.stdout)["data"]
    assert second.returncode == 10
    assert (told["step"], told["op"]["index"], told["element"]) == (expected.step, expected.op_index, expected.element)
    assert len(told["roots"]) == expected.step + 1


def test_a_killed_verifier_sits_down_again_and_a_silent_liar_loses_by_the_clock(market: Market) -> None:
    market.seal()
    market.defend()
    market.workers[2].silent = True
    (cheat, first), (_, second) = (lie(market, "other-data", slot) for slot in (1, 2))
    runs = [market.run(0), first, second]
    verifier = market.verifier()
    # Slot 1 withholds the list of its roots: the game begins at the trace root. Slot 0's payload is lost.
    claims = market.claim(runs, trace_cids={1: NOWHERE}, payload_cids={0: NOWHERE})
    honest = wait_for(verifier, "audited", claim=claims[0].hex())
    assert (honest["verdict"], honest["payload"]) == ("match", "blob_missing")
    # Killed between finding the lie and opening the game, or just after; then twice in the game.
    wait_for(verifier, "audited", claim=claims[1].hex(), verdict="mismatch")
    kill(verifier)
    for _ in range(2):
        verifier = market.verifier()
        wait_for(verifier, "moved", claim=claims[1].hex())
        kill(verifier)
    (game,) = market.games_on(claims[1])
    opened = next(e for e in market.log(game) if isinstance(e, moves.Opened))
    assert opened.t == 0
    assert market.game(game).verdict == Verdict.NONE, "the game still runs"

    again = market.verifier()
    assert wait_for(again, "won", game=game.hex())["verdict"] == "fraud"
    assert market.games_on(claims[1]) == [game]
    assert not [e for e in again.named("audited") if e["claim"] == claims[0].hex() and "seconds" in e], "replayed twice"
    found = next(e for e in market.log(game) if isinstance(e, moves.Convicted)).finding
    assert (found.t, found.position) == (1, cheat.expectation.op_index)

    wait(lambda: bool(market.games_on(claims[2])), "the silent liar is challenged")
    (silent,) = market.games_on(claims[2])
    market.devnet.advance(Seconds(market.params.windows.clock_seconds + market.params.windows.step_seconds + 1))
    assert wait_for(again, "won", game=silent.hex())["verdict"] == "timeout"


def test_a_lying_merge_is_convicted_and_a_false_challenge_loses_its_bond(market: Market) -> None:
    market.seal()
    market.defend()
    verifier = market.verifier()
    claims = market.claim([market.run(slot) for slot in range(3)])
    challenger = market.verifier("challenger", ("false-challenge", 1))
    expected = wait_for(challenger, "lie")["expectation"]
    attacked = ClaimId(bytes.fromhex(wait_for(challenger, "challenged")["claim"]))
    (game,) = market.games_on(attacked)

    lying = lying_aggregator(market.job.programs, market.params, Random(0))
    merge, liar = market.merge(lying.run)
    assert wait_for(verifier, "audited", claim=merge.hex())["verdict"] == "mismatch"
    assert wait_for(verifier, "won", claim=merge.hex())["verdict"] == "fraud"
    (on_merge,) = market.games_on(merge)
    found = next(e for e in market.log(on_merge) if isinstance(e, moves.Convicted)).finding
    assert (found.t, found.position, found.program) == (1, lying.expectation.op_index, market.job.programs.merge.root)
    again, merger = market.merge()
    assert merger is not liar
    assert wait_for(verifier, "audited", claim=again.hex())["verdict"] == "match"

    for claim in claims:
        assert wait_for(verifier, "audited", claim=claim.hex())["verdict"] == "match"
    wait(lambda: market.game(game).phase == GamePhase.ELEMENT, "the liar comes to the leaf")
    leaf = market.game(game).position
    market.devnet.advance(Seconds(market.params.windows.clock_seconds + 1))
    assert wait_for(challenger, "lost")["verdict"] == expected["verdict"] == "rejected"
    argued = next(e for e in market.log(game) if isinstance(e, moves.Argued))
    assert argued.t == expected["step"]
    assert leaf == expected["aims_at"]["element"] // CHUNK
    assert market.contracts.vault.free(market.address("challenger")) == 0
    lock = market.contracts.vault.lock_of(attacked)
    assert lock is not None
    assert lock.amount == market.params.role.slot_stake
    assert not [e for e in verifier.named("challenged") if e["claim"] != merge.hex()], "honest claims are left alone"
