"""A merger gives up a right merge to void what stands on it.

Its stake pays the voided work before anybody shares it.
"""

from __future__ import annotations

import pytest

from lockstep.protocol.jobs import Body, Phase
from lockstep.protocol.types import ClaimId, TraceRoot
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import lying
from tests.adversarial.test_equivocation import body_of, signed, work
from tests.adversarial.test_moment_flip import STEP, flips

LIAR = 0


def begun(court: Court, **changes: object) -> ClaimId:
    """Round 0 merged, rightly, by an aggregator whose stake answers for what may follow."""
    court.reset(aggregator=court.address("aggregator"), rounds=3, max_lead=3, **changes)
    court.claim()
    return court.merge()


def equivocate(court: Court, merge: ClaimId) -> Where:
    """The aggregator signs another merge, and its accomplice shows both."""
    body = body_of(court, merge)
    other = Body(TraceRoot(b"\x33" * 32), body.out, body.out2)
    pair = [signed(court, merge, said, "aggregator") for said in (body, other)]
    court.send(court.contracts.game.call("equivocate", work(court, merge), *pair), "accomplice")
    assert court.convicted(merge)
    finding = next(e.args["finding"] for e in court.events("Convicted") if e.contract == "DisputeGame")
    return Where(rule=("op", "alias", "padding", "equivocation")[finding["wrong"]])


def two_rounds(court: Court) -> ClaimId:
    """Honest work of two rounds on the merge that is to fall: of round 1 merged, of round 2
    revealed."""
    merge = begun(court)
    court.seal(1)
    court.claim(r=1)
    court.merge(r=1)
    court.seal(2)
    court.claim(r=2)
    return merge


def weighed(court: Court) -> None:
    """The voided work is paid, every stake is free, and the merger has paid for it all."""
    market, params = court.contracts.market, court.params
    assert [court.phase(r) for r in (1, 2)] == [Phase.VOID, Phase.VOID]
    vault, worker = court.contracts.vault, court.address("worker-1")
    before = vault.credits(worker)
    for r in (1, 2):
        court.send(market.release(court.job_id, r), "requester")
    assert vault.credits(worker) - before == 2 * params.role.slot_price, "two rounds of work, paid at once"
    for r in (1, 2):
        if r == 1:
            court.merge()
        court.seal(r)
        court.claim(r=r)
        court.merge(r=r)
    court.settle()
    gained = court.balance({"aggregator": params.merge.stake + 2 * params.round_pay})
    assert gained["aggregator"] + gained["accomplice"] <= -params.merge.stake // 2, "the two together gain nothing"
    work_ = sum(gained[f"worker-{slot}"] for slot in range(params.role.slots))
    assert work_ == 5 * params.role.slots * params.role.slot_price + 3 * params.merge.price, (
        "five rounds of work, three merges"
    )


def two_signatures(court: Court) -> Ended:
    """Nobody was wrong: the merger convicts itself with two signatures."""
    merge = two_rounds(court)
    where = equivocate(court, merge)
    weighed(court)
    return Ended("fraud", Where(rule="equivocation"), where)


def silence(court: Court) -> Ended:
    """Nobody was wrong: the merger keeps silent in its accomplice's game."""
    merge = two_rounds(court)
    court.silent.add(merge)
    game = court.open_at(merge, 1, "accomplice")
    court.play(game, court.defender(game))
    assert court.convicted(merge)
    weighed(court)
    return ended(court, game, Where(t=1))


def accomplice_of_a_liar(court: Court) -> Ended:
    """A liar's clock is about to run out when the base of its claim is voided: its game goes on,
    its stake stays."""
    merge = begun(court)
    court.seal(1)
    wrong = court.claim({LIAR: lying(court.run(LIAR, 1), flips("m", 7))}, r=1)[LIAR]
    ((claim, found),) = court.audits().items()
    assert claim == wrong
    game = court.open(claim, found)
    court.advance(court.params.windows.clock_seconds - 10)
    equivocate(court, merge)
    market = court.contracts.market
    assert court.phase(1) == Phase.VOID
    assert market.live(wrong), "its game goes on"
    assert court.refused(market.release(court.job_id, 1), "worker-0") == "GamesOpen"
    court.silent.add(wrong)
    court.play(game, court.defender(game))
    assert court.convicted(wrong)
    court.send(market.release(court.job_id, 1), "requester")
    court.merge()
    for r in (1, 2):
        court.seal(r)
        court.claim(r=r)
        court.merge(r=r)
    court.settle()
    lost = {
        "worker-0": court.params.role.slot_stake,
        "aggregator": court.params.merge.stake + 2 * court.params.round_pay,
    }
    assert court.balance(lost)["verifier"] > 0, "who caught it is rewarded"
    return ended(court, game, Where(t=STEP))


def unbacked(court: Court) -> Ended:
    """A merger that answers for one round lets one round start on its merge, and no second one."""
    court.reset(aggregator=court.address("aggregator"), rounds=3, max_lead=3)
    market = court.contracts.market
    court.claim()
    court.merge(backed=1)
    court.seal(1)
    court.claim(r=1)
    court.merge(r=1)
    rule = court.refused(market.start_round(court.job_id, 2), "requester")
    assert court.refused(market.back(court.job_id, 0, 1), "mallory") == "NotYourTurn"
    court.send(market.back(court.job_id, 0, 1), "aggregator")
    court.seal(2)
    court.claim(r=2)
    court.merge(r=2)
    court.settle()
    assert court.balance()["aggregator"] == 3 * court.params.merge.price, "its stake is back"
    return Ended("refused", Where(rule="NotBacked"), Where(rule=rule))


CHEATS = (
    Cheat("self-convicted merger", "fraud", {"two signatures": two_signatures}),
    Cheat(
        "self-convicted merger", "timeout",
        {"silence in an accomplice's game": silence, "to save a liar": accomplice_of_a_liar},
    ),
    Cheat("self-convicted merger", "refused", {"a round that no stake covers": unbacked}),
)  # fmt: skip


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_work_on_a_merge_that_convicts_itself_is_paid_and_no_liar_escapes(
    court: Court, cheat: Cheat, form: str
) -> None:
    run(court, cheat, form)
