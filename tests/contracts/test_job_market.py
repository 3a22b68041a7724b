"""JobMarket: rounds on Anvil, verdicts, money to the wei. The rules one by one: tests/rules."""

from hashlib import sha256

from brownie import accounts
from conftest import (
    BOND,
    BURN,
    DEPOSIT,
    ESCROW,
    MERGE_PRICE,
    MERGE_STAKE,
    PRICE,
    STAKE,
    ZERO,
    Job,
    later,
    leaf,
    node,
    reverts,
)

GAME = 9


def status(job, claim):
    return job.market.claim(claim)["status"]


REVEALED, ACCEPTED, EXCLUDED, MISSING, ABSENT, FINAL, CONVICTED, VOID = range(3, 11)


def books(parts):
    """Everything that the vault owes to accounts 0..9, the burn address, claims and jobs - without locks."""
    vault = parts.vault
    people = [*accounts[:10], BURN]
    return sum(vault.free(a) + vault.credits(a) + vault.unbonding(a)[0] for a in people) + vault.totalEscrow()


def plain(value):
    """Nested lists, and digests as bytes."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return bytes(value) if isinstance(value, bytes) else value


def test_an_honest_job_pays_everybody_and_refunds_the_rest(parts):
    job = Job(parts, escrow=ESCROW + 13)
    for r in range(2):
        job.to_lead(r)
    with reverts("TooEarly"):
        job.finalize(0)
    later(101)
    with reverts("WrongPhase"):
        job.finalize(1)
    job.finalize(0)
    job.finalize(1)
    tx = parts.market.finish(job.id, {"from": accounts[8]})
    assert tx.events["JobDone"]["paid"] == ESCROW
    assert tx.events["JobDone"]["refunded"] == 13
    assert [parts.vault.credits(w) for w in job.workers] == [2 * PRICE] * 3
    assert parts.vault.credits(job.aggregator) == 2 * MERGE_PRICE
    assert parts.vault.credits(job.requester) == 13 + DEPOSIT
    assert parts.vault.totalEscrow() == 0
    assert books(parts) == parts.token.balanceOf(parts.vault), "nothing locked, nothing lost"
    assert parts.token.balanceOf(parts.market) == parts.market.balance() == 0


def test_a_worker_that_never_reveals_pays_the_price_of_its_slot(bench):
    job = Job(bench)
    job.start()
    job.join()
    job.seal()
    job.commit(slots=(0, 1))
    later(101)
    assert job.phase() == "Revealing"
    job.reveal(slots=(0, 1))
    job.attest()
    tx = job.freeze(sender=accounts[8])
    assert tx.events["Slashed"]["burned"] == tx.events["Slashed"]["amount"] == PRICE
    assert tx.events["Frozen"]["mask"] == 3
    assert bench.vault.free(job.workers[2]) == 10**5 - PRICE
    assert status(job, job.claim(2)) == ABSENT


def test_a_convicted_slot_is_slashed_to_the_wei_and_earns_nothing(bench):
    game = {"from": accounts[GAME]}
    job = Job(bench)
    job.to_revealed()
    liar = job.claim(1)
    bench.market.onOpen(liar, job.body(liar), game)
    tx = bench.market.onConvicted(liar, 1, [job.challenger], [], game)
    event = tx.events["Slashed"]
    parts = (event["burned"], event["toChallenger"], event["toRequester"])
    assert parts == (STAKE - STAKE * 30 // 100 - STAKE * 20 // 100, STAKE * 30 // 100, STAKE * 20 // 100)
    assert sum(parts) == event["amount"] == STAKE
    job.attest()
    job.freeze(sender=accounts[8])
    assert job.round()["mask"] == 0b101, "excluded from the merge"
    job.merge()
    later(101)
    job.finalize()
    assert [bench.vault.credits(w) for w in job.workers] == [PRICE, 0, PRICE]
    with reverts("ClaimClosed"):
        bench.market.onConvicted(liar, 1, [job.challenger], [], game)


def test_a_convicted_merge_rewinds_the_job_and_the_next_in_line_merges_the_same(bench):
    game = {"from": accounts[GAME]}
    job = Job(bench)
    bad = job.to_lead(0)
    job.to_lead(1)
    merge_in = job.round()["mergeIn"]
    assert bench.market.factsOf(bad, 1, [])["stateZero"] == merge_in
    bench.market.onOpen(bad, job.body(bad), game)
    tx = bench.market.onConvicted(bad, 1, [job.challenger], [], game)
    assert tx.events["RoundVoid"]["round"] == 1
    assert (job.phase(0), job.phase(1)) == ("Merging", "Void")
    assert job.round()["mergeIn"] == merge_in
    assert status(job, job.claim(0, 1)) == VOID
    assert not bench.market.live(job.claim(0, 1))
    bench.market.release(job.id, 1, {"from": accounts[8]})
    assert bench.vault.free(job.aggregator) == 10**5 - MERGE_STAKE - 3 * PRICE - MERGE_PRICE, (
        "its stake, and round 1's pay"
    )
    assert [bench.vault.credits(w) for w in job.workers] == [PRICE] * 3, "voided work is paid from it"

    with reverts("NotYourTurn"):
        job.merge(0)
    merger = accounts.at(bench.market.mergerOf(job.id, 0))
    assert merger in job.workers
    again = job.merge(0, merger)
    assert again != bad
    job.start(1)
    assert job.round(1)["attempt"] == 1, "another attempt"
    later(101)
    job.finalize(0)
    assert bench.vault.credits(merger) == 2 * PRICE + MERGE_PRICE


# -- with the real game: a defender that does not answer

# A Program that nobody ever runs: the clock decides before anything of it is opened.
HEADER, OPS = b"LSP1" + bytes(11), leaf(b"ops")
PROGRAM = sha256(b"\x03" + leaf(HEADER) + OPS + ZERO).digest()


def open_on_slot(parts, job, claim, nonce=0):
    """A game over the whole trace of a slot: its id, and how it stands."""
    step = (ZERO, [], b"", ZERO, ZERO)
    tx = parts.game.open(claim, job.body(claim), nonce, 0, ZERO, [], step, {"from": job.challenger})
    return tx.events["Opened"]["game"], tx.events["Opened"]["standing"]


def open_on_merge(parts, job, claim, nonce=0):
    """A game over the one transition of a merge: its id, and how it stands."""
    step = (job.round()["mergeIn"], [], HEADER, OPS, ZERO)
    end = node(leaf(b"next"), leaf(b"outer"))
    tx = parts.game.open(claim, job.body(claim), nonce, 1, end, [], step, {"from": job.challenger})
    return tx.events["Opened"]["game"], tx.events["Opened"]["standing"]


def test_a_silent_liar_loses_its_stake_by_the_clock(parts):
    job = Job(parts)
    job.to_lead()
    claim = job.claim(1)
    game = open_on_slot(parts, job, claim)
    assert parts.vault.lockOf(game[0])[1] == BOND
    with reverts("ClockRunning"):
        parts.game.resolve(*game, {"from": accounts[8]})
    later(101)
    with reverts("GamesOpen"):
        job.finalize()
    parts.game.resolve(*game, {"from": accounts[8]})
    assert status(job, claim) == CONVICTED
    assert parts.vault.free(job.challenger) == 10**5, "the bond is back"
    assert parts.vault.credits(job.challenger) == STAKE * 30 // 100
    job.finalize()
    assert [parts.vault.credits(w) for w in job.workers] == [PRICE, 0, PRICE]


def test_games_on_what_a_conviction_voids_go_on(parts):
    job = Job(parts, mergeProgram=PROGRAM)
    bad = job.to_lead(0)
    job.to_lead(1)
    first = open_on_merge(parts, job, bad)
    second = open_on_merge(parts, job, bad, 1)
    on_void = open_on_slot(parts, job, job.claim(0, 1))
    later(101)
    parts.game.resolve(*first, {"from": accounts[8]})
    assert status(job, bad) == CONVICTED
    for game in (second, on_void):
        parts.game.resolve(*game, {"from": accounts[8]})
    assert parts.vault.free(job.challenger) == 10**5, "three bonds went out, three came back"
    assert status(job, job.claim(0, 1)) == CONVICTED, "a liar does not escape with its base"
    prizes = MERGE_STAKE * 30 // 100 + STAKE * 30 // 100
    assert parts.vault.credits(job.challenger) == prizes, "each conviction pays once"
