"""Scenes in which calls are tried: each extends another scene by some calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from lockstep.chain import games
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus
from lockstep.protocol.market import court, draws, ids, views
from lockstep.protocol.market.availability import payload_answer, payload_demand_id, seed_of
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.types import Row, Shown, StateLeaf, Word
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.program import I32, Program
from lockstep.protocol.types import MERGE_SLOT, Digest, GameId, StateRoot
from tests.support import constant, wide
from tests.support.constant import Lie
from tests.support.market.twin import ACCOUNTS, JOB, NAMES, PARAMS, World
from tests.support.memory import abi
from tests.support.params import amended

SHORT = amended(PARAMS, rounds=1, max_fail=0, witnesses=0, witness_fee=0, carry_period=0)
"""A job of one round without witnesses."""
DISTINCT = amended(
    PARAMS, dataset_rows=2, row_length=3, shared_depth=4, payload_depth=5, inner_steps=6, rounds=7, slots=8,
    min_slots=1, max_lead=9, max_fail=10, join_seconds=11, train_seconds=12, reveal_seconds=13, attest_seconds=14,
    turn_seconds=15, challenge_seconds=116, clock_seconds=117, step_seconds=18, slot_price=1, merge_price=2,
    slot_stake=24_961, merge_stake=22, bond=23, witnesses=24, audit_seconds=25, witness_fee=26, witness_stake=520,
    answer_seconds=28, fee_cap=29, carry_period=0, **{
        root: keccak(root.encode()) for root in ("spec_digest", "step_program", "encode_program", "merge_program",
        "dataset_root", "genesis_shared", "genesis_outer", "zero_carry", "zero_payload")
    },
)  # fmt: skip
"""A job whose terms are pairwise different."""
PRICED = amended(SHORT, gas_price=1, fee_cap=100_000, slot_stake=10_400_000, merge_stake=10_400_000)
"""A job in which one gas costs 7 parts of 100,000 at these blocks' base fee."""
ALONE = amended(SHORT, slots=1, min_slots=1)
OWNERS = amended(SHORT, aggregator="0x" + 40 * "0")
"""A job whose slot owners merge."""
DUO = amended(PARAMS, rounds=2)
MANY = amended(PARAMS, slots=1, min_slots=1, rounds=21, carry_period=0)
"""A job with more rounds than a witness's stake covers fees."""
RECEIPTS: tuple[tuple[dict[int, int], int], ...] = (
    ({}, 7), ({0: 6, 1: 5, 2: 3}, 7), ({0: 2}, 3), ({0: 2, 1: 1, 2: 3}, 3), ({0: 7, 1: 6, 2: 6}, 7),
    ({0: 7, 1: 7, 2: 0}, 7), ({0: 7, 1: 0, 2: 0}, 6),
)  # fmt: skip
"""Receipts (who names whom) and accepted slots: one voice decides about others, never about its own slot; half
suffices.
"""
WIDE = amended(PARAMS, rounds=1, max_fail=0, carry_period=0, inner_steps=3, step_program=wide.program().root)
"""A job of four transitions, in whose states several tensors move."""
CROWD = amended(PARAMS, witnesses=4)
"""A job in which two witnesses may be drawn for one claim."""
BROKEN = amended(SHORT, dataset_rows=1 << 31)
"""A job with a dataset that no Program can read."""
KEY = {keeper: Digest(keccak(keeper.encode())) for keeper in ("market", "game", "witnesses", "demands")}
"""Keys of locks that belong to no claim."""
LINKS = 8
"""Length of the witness's hash chain."""
ROW = constant.held(constant.ROW)


# -- what is said in them ----------------------------------------------------------------------------------------------


def code_of(program: Program) -> defects.Code:
    """Returns a Program as named by evidence and answers."""
    return defects.Code(program.header, program.ops_root, program.consts_root)


ENCODE = code_of(constant.encode_program())
EVIDENCE = defects.Evidence(defects.Subject.DATASET)
"""Evidence against BROKEN."""


def preimage(serial: int) -> Digest:
    """Returns a preimage of the witness's chain; its head is serial 0."""
    return draws.chained(Digest(keccak(b"witness")), LINKS - serial)


def audit(w: World, r: int = 0) -> Any:
    """Returns the id of the round's audit."""
    return ids.audit_id(w.job, r, w.round(r).attempt)


def word(w: World, i: int = 0, state: StateRoot | None = None, agrees: bool = True, r: int = 0, **changed: Any) -> Word:
    """Returns the drawn witness's verdict about the slot of its i-th duty."""
    duty, seen = w.state.duties[audit(w, r), i], w.state.audits[audit(w, r)]
    made, link = w.made(duty.slot, r), preimage(duty.serial)
    u = draws.seen_of(draws.step_of(link, seen.beacon, i, made.transitions), made.transitions)
    leaf = leaf_of(w, i, u, r)
    said = Word(
        link, state or made.trace[u - 1], leaf, Digest(keccak(b"salt")), agrees, made.body,
        tuple(merkle.proof(made.levels, u - 1)),
    )  # fmt: skip
    return replace(said, **changed)


def drawn(w: World, i: int = 0, r: int = 0) -> str:
    """Returns the name of the i-th duty's witness."""
    return NAMES[w.state.duties[audit(w, r), i].account]


def leaf_of(w: World, i: int, u: int, r: int = 0, further: int = 0) -> StateLeaf:
    """Returns the leaf of S_u in the i-th duty's claim that its preimage selects, or a later leaf."""
    duty, beacon = w.state.duties[audit(w, r), i], w.state.audits[audit(w, r)].beacon
    return w.made(duty.slot, r).leaf(draws.leaf_word(preimage(duty.serial), beacon, i) + further, u)


def bound(w: World, said: Word, i: int = 0, r: int = 0) -> Digest:
    """Returns the commitment to a witness's verdict."""
    duty = w.state.duties[audit(w, r), i]
    claim = w.claim(duty.slot, r)
    return draws.commitment(claim, duty.account, said.state, said.leaf.digest, said.preimage, said.salt)


def demand(w: World, slot: int = 0, r: int = 0) -> Digest:
    """Returns the id of the first demand on a slot's claim."""
    return payload_demand_id(w.claim(slot, r), 0)


def shown(w: World, id_: Digest, slot: int = 0, carry: bool = False) -> list[Shown]:
    """Returns the leaves that a demand names."""
    asked, value = w.state.demands[id_], w.made(slot).step(2).value
    contents = {0: constant.held(value), 1: constant.held(constant.CARRY)}
    return list(payload_answer(
        asked.wanted, seed_of(w.state, w.block, id_), constant.encode_program(),
        lambda entry: memoryview(contents[entry].data), carry,
    ))  # fmt: skip


def committed(w: World, sender: str, function: str, *arguments: Any) -> Digest:
    """Returns the commitment to a call."""
    call: MarketCall = w.call(sender, function, *arguments)
    return digest_of(call.sender, abi.data_of(call))


HOLDING = defects.Evidence(
    defects.Subject.DATASET,
    pieces=(
        defects.Piece(TensorHeader(I32, (1, 1)).encode(), Digest(merkle.leaf(bytes(ROW.data)))),
        defects.Piece(bytes(ROW.data)),
    ),
)
"""Evidence about a valid part."""
NOTHING = defects.Evidence(defects.Subject.DATASET)
"""Evidence that shows nothing."""
CHOSEN = Digest(keccak(b"chosen"))
"""A preimage outside of every chain."""
BY = "verifier", "validator.proveInvalid"


ROWS_SHOWN = (Row(bytes(ROW.data), ()),)
ANSWER_ROW = (JOB, 0, ROW.levels[-1][0], 0, ROWS_SHOWN)
WRONG_ANSWERS = {
    "of another tree": (*ANSWER_ROW[:2], bytes(32), *ANSWER_ROW[3:]), "of a later part": (*ANSWER_ROW[:3], 1, ()),
    "of two leaves": (*ANSWER_ROW[:4], ROWS_SHOWN * 2), "of nothing": (*ANSWER_ROW[:4], ()),
    "of another leaf": (*ANSWER_ROW[:4], (Row(bytes(4), ()),)),
    "of a short leaf": (*ANSWER_ROW[:4], (Row(bytes(3), ()),)),
}  # fmt: skip
"""Maps a defect to committed wrong answers."""


def game(w: World, slot: int = 0, nonce: int = 0, r: int = 0) -> GameId:
    """Returns the id of the verifier's game on a claim."""
    return game_id(w.claim(slot, r), ACCOUNTS["verifier"], nonce)


def whole(w: World, slot: int = 0, nonce: int = 0) -> tuple[Any, ...]:
    """Returns the opening of a game on a whole trace."""
    return w.claim(slot), w.held[w.claim(slot)].body, nonce, 0, StateRoot(bytes(32)), (), moves.NO_TRANSITION


def at_step(w: World, t: int, /, slot: int = 0, **changed: Any) -> tuple[Any, ...]:
    """Returns the opening of a game on one transition of a slot's claim."""
    made = w.held[w.claim(slot)]
    program = made.step(t).program
    prev = made.state_zero if t == 1 else made.trace[t - 2]
    proof = () if t == 1 else tuple(merkle.proof(made.levels, t - 2))
    step = moves.Transition(StateRoot(prev), proof, program.header, program.ops_root, program.consts_root)
    move = moves.Open(w.claim(slot), made.body, 0, t, made.trace[t - 1], tuple(merkle.proof(made.levels, t - 1)), step)
    move = replace(move, **changed)
    return move.claim, move.body, move.nonce, move.t, move.next, move.next_proof, move.transition


# -- the scenes --------------------------------------------------------------------------------------------------------


def _locks(w: World) -> None:
    """Creates a lock of each keeper, and an escrow."""
    for keeper, key in KEY.items():
        w.do(keeper, "vault.lock", "worker-0", key, 1_000)
    w.do("market", "vault.escrow", "requester", 5_000)


def _enrolled(w: World) -> None:
    w.do("witness", "witnesses.enrol", w.job, preimage(0))


def _drawn(w: World, r: int = 0) -> World:
    w.do("poor", "witnesses.draw", w.job, r)
    return w.later(2, 2).then("poor", "witnesses.draw", w.job, r)


def _says(w: World, i: int = 0, r: int = 0, **said: Any) -> World:
    """The drawn witness commits to a verdict."""
    return w.then(drawn(w, i, r), "witnesses.commit", audit(w, r), i, bound(w, word(w, i, r=r, **said), i, r))


def _shows(w: World, i: int = 0, r: int = 0, **said: Any) -> World:
    """The drawn witness reveals its verdict."""
    return w.then(drawn(w, i, r), "witnesses.reveal", audit(w, r), i, word(w, i, r=r, **said))


def _convicted(w: World, t: int, i: int = 0) -> World:
    """Convicts the claim of a duty, at a step or without one."""
    return _fallen(w, w.state.duties[audit(w), i].slot, t=t)


def _final(w: World) -> World:
    """Ends the round without the convicted claims."""
    left = tuple(s for s in range(3) if w.state.claims[w.claim(s)].status == ClaimStatus.REVEALED)
    return w.attest(slots=left).freeze(slots=left).merge().finalize()


def _fallen(w: World, slot: int, r: int = 0, t: int = 1) -> World:
    """Convicts a claim, at a step or without one."""
    w.do("game", "market.onOpen", w.claim(slot, r), w.made(slot, r).body)
    return w.then("game", "market.onConvicted", w.claim(slot, r), t, [ACCOUNTS["verifier"]], [])


def _second(w: World, **said: Any) -> World:
    """All commit in the second round; most claims start from a carry."""
    return w.later().start(1).seal(1).commit(1, **{"carries": True, **said})


def _left_out(w: World, slots: tuple[int, ...]) -> None:
    """Only these slots revealed in the previous round, or are valid."""
    w.attest(slots=slots).freeze(slots=slots).merge(rounds=2)
    _second(w)


def _over(w: World, r: int = 1) -> World:
    """Merges round r and passes its window."""
    return _shut(w.attest(r).freeze(r).merge(r, rounds=1), r)


def _shut(w: World, r: int = 0) -> World:
    """Moves to just before the end of a merged round's window."""
    return w.until(w.round(r).merged_at + PARAMS.windows.challenge_seconds - 1)


def _shut_(w: World, r: int = 0) -> World:
    """Moves past the window of a round, merged or failed."""
    return _shut(w, r).later()


def _paid(w: World) -> World:
    """Finalises the first of two rounds based on one another."""
    return _over(w).later().then("poor", "market.finalize", JOB, 0)


def _again(w: World) -> None:
    """Merges the first round again, and repeats the second."""
    _rewound(w)
    w.merge(by=merger(w), rounds=2).later()
    _second(w).reveal(1, carries=True)


def _failed(w: World, r: int = 0) -> World:
    """Fails round r by too few joins."""
    return w.start(r, slots=(0,)).later(60).then("poor", "market.seal", w.job, r)


def _game_in_a_failed_round(w: World) -> None:
    """Fails a round without a merge while a game is open."""
    w.do("game", "market.onOpen", w.claim(0), w.made(0).body)
    w.later(4 * 60).do("poor", "market.finalize", JOB, 0)
    _second(w)


def _priced(w: World) -> None:
    """Demands a payload in a job that pays for gas."""
    for name in ("requester", "worker-0", "worker-1", "worker-2", "verifier"):
        w.do(name, "token.mint", name, 10**9)
        w.do(name, "vault.deposit", 10**8)
    w.create(PRICED, 8).to_revealed().do("verifier", "demands.unavailable", w.job, 0, 0, 1 << 70)
    w.later(2, 2)


def _alone(w: World) -> None:
    """Reveals the only slot of a job."""
    w.create(ALONE, 2)
    w.start(slots=(0,)).seal().commit(slots=(0,)).reveal(slots=(0,))


def _spoken(masks: Mapping[int, int]) -> Callable[[World], World]:
    """Returns an act: so many speakers give receipts with these masks, and the time passes."""
    return lambda w: w.then("poor", "market.attest", JOB, 0, [w.receipt(who, mask) for who, mask in masks.items()]
        ).until(w.round().attest_ends - 1)  # fmt: skip


def _four_games(w: World) -> None:
    """Opens four games on one claim with a silent worker."""
    for who in ("verifier", "mallory", "witness", "worker-1"):
        w.do(who, "game.open", *whole(w, 0))
    w.later(149)


def _fees_due(w: World) -> None:
    """The last round failed with an open duty, its base was voided, and it runs again."""
    w.create(DUO, 7)
    _enrolled(w)
    _drawn(w.to_revealed()).attest().freeze().merge(rounds=2).later().to_revealed(1)
    _rewound(_drawn(w, 1).attest(1, mask=0).freeze(1))
    w.merge(by=merger(w), rounds=1).later().to_revealed(1)


def _word_on_voided_work(w: World) -> None:
    """Keeps a game open on the claim that a verdict was about."""
    _shows(_says(w, r=1), r=1).do("game", "market.onOpen", w.claim(_looked_at(w), 1), w.made(_looked_at(w), 1).body)
    _rewound(w)


def _looked_at(w: World) -> int:
    """Returns the slot of the second round for which the witness was drawn."""
    return w.state.duties[audit(w, 1), 0].slot


def asked_for(w: World) -> Digest:
    """Returns the demand for the carry from which the witness's claim starts."""
    return demand(w, _looked_at(w), 1)


def _asked_for(w: World) -> World:
    """Makes that demand."""
    return w.then("verifier", "demands.carryUnavailable", w.job, 1, _looked_at(w), 0)


def _owners(w: World) -> None:
    w.create(OWNERS, 2)
    w.to_revealed().attest().freeze()


def _many_silent(w: World) -> None:
    """The only witness is silent in every round, which is not reported before the last; twenty fines are taken."""
    w.create(MANY, 6).then("witness", "witnesses.enrol", w.job, preimage(0))
    for r in range(MANY.schedule.rounds):
        w.start(r, (0,)).seal(r).commit(r, (0,)).reveal(r, (0,))
        _drawn(w, r).attest(r, (0,), mask=1).freeze(r, (0,)).merge(r).finalize(r)
    for r in range(20):
        w.do("poor", "witnesses.settle", audit(w, r), 0)


LOOKED = 2
"""Step up to which the witness replays in the job in which it does not replay to the end."""


def _wide(w: World, t: int) -> World:
    """Draws a witness for a claim with such states, with t* and a leaf in a tensor of several leaves as needed."""
    for nonce in range(2, 99):
        tried = _wide_of(w.fork(), nonce)
        duty, beacon = tried.state.duties[audit(tried), 0], tried.state.audits[audit(tried)].beacon
        if draws.step_of(preimage(duty.serial), beacon, 0, 4) == t and word(tried).leaf.leaf_proof:
            return _wide_of(w, nonce)
    raise AssertionError("of so many jobs none has this luck")


def _wide_of(w: World, nonce: int) -> World:
    w.create(WIDE, nonce).start().seal().then("witness", "witnesses.enrol", w.job, preimage(0))
    for slot in range(3):
        w.held[w.claim(slot)] = wide.WideClaim(w.claim(slot), 4)  # type: ignore[assignment]
    return _drawn(w.commit().reveal())


def elsewhere(w: World) -> Word:
    """Returns the drawn leaf of the previous state, with a valid proof."""
    return word(w, leaf=leaf_of(w, 0, LOOKED - 1))


def with_leaf(**changed: Any) -> Callable[[World], Word]:
    """Returns the witness's verdict with a changed leaf."""
    return lambda w: word(w, leaf=replace(word(w).leaf, **changed))


def next_leaf(w: World) -> Word:
    """Returns the leaf after the drawn one, of the right state."""
    return word(w, leaf=leaf_of(w, 0, LOOKED, further=1))


def last_state(w: World) -> Word:
    """Returns S_T, which the claim publishes."""
    made = w.made(w.state.duties[audit(w), 0].slot)
    return word(w, state=made.trace[3], proof=tuple(merkle.proof(made.levels, 3)))


def _crowd(w: World) -> None:
    """Reveals one claim where four witnesses are to be drawn for at least two, with the beacon available."""
    w.create(CROWD, 9).start().seal()
    for who in ("witness", "verifier", "mallory"):
        w.do(who, "witnesses.enrol", w.job, preimage(0))
    w.commit().reveal(slots=(0,)).until(w.round().reveal_ends).do("poor", "witnesses.draw", w.job, 0)
    w.later(2, 2)


def _rewound(w: World) -> None:
    """Convicts the first round's merge after the second round has begun."""
    w.do("game", "market.onOpen", w.claim(MERGE_SLOT), w.held[w.claim(MERGE_SLOT)].body)
    _convict_merge(w)


def _convict_merge(w: World) -> World:
    """Convicts the merge."""
    return w.then("game", "market.onConvicted", w.claim(MERGE_SLOT), 1, [ACCOUNTS["verifier"]], [])


def merger(w: World, r: int = 0) -> str:
    """Returns the name of the account that may merge."""
    return NAMES[views.merger_of(w.state, w.block, w.job, r)]


def _turns(w: World, count: int = 1) -> World:
    """Passes so many turns after an unbacked merge: the next call is in the first second of the next turn."""
    return w.later(count * PARAMS.merge.turn_seconds - 1)


def _merged(w: World, rounds: int = 0) -> World:
    """Merges by the account that may merge."""
    return w.merge(by=merger(w), rounds=rounds)


def _half(w: World, r: int = 0) -> World:
    """Moves to the first second of the second half of a merge's window."""
    return w.until(w.round(r).merged_at + PARAMS.windows.challenge_seconds // 2 - 1)


def _lingering(w: World) -> None:
    """Convicts the merge while a game is open on a claim of the second round."""
    w.do("game", "market.onOpen", w.claim(0, 1), w.made(0, 1).body)
    _rewound(w)


SWAPPED = ("worker-1", "worker-0", "worker-2")


def _swapped(w: World) -> None:
    """In the second round two workers have exchanged slots; all claims name their slot's carry."""
    w.do("requester", "market.startRound", w.job, 1)
    w.until(views.shared_from(w.params, w.round(1)))
    for slot, who in enumerate(SWAPPED):
        w.do(who, "market.join", w.job, 1, slot)
    w.seal(1)
    for slot, who in enumerate(SWAPPED):
        said = ids.commitment(w.claim(slot, 1), ACCOUNTS[who], w.opened(slot, 1, carries=True))
        w.do(who, "market.commit", w.job, 1, slot, said)


AHEAD = amended(PARAMS, max_lead=2, carry_period=0)
UNCARRIED = amended(PARAMS, carry_period=0)
TWO = amended(PARAMS, witnesses=2)
UNHURRIED = amended(PARAMS, carry_period=0, audit_seconds=73)
"""A job with long windows for witnesses."""


def _ahead(w: World) -> None:
    """Merges the most rounds that may be in flight."""
    w.create(AHEAD, 4)
    w.to_merged(rounds=2).later().to_merged(1, rounds=1)


def _unbacked_ahead(w: World) -> None:
    """Merges the most rounds that may be in flight, the last one unbacked."""
    w.create(AHEAD, 4)
    _turns(w.to_merged(rounds=2).later(130).to_merged(1))


def _settled_early(w: World) -> None:
    """Settles a round before the last one is merged, which is unbacked."""
    w.create(AHEAD, 4)
    w.to_merged(rounds=2).later(130).to_revealed(1).attest(1).finalize().freeze(1)
    _turns(w.merge(1))


def _two_settled(w: World) -> None:
    """Settles two rounds within a turn, the second when half of the third's window has passed."""
    w.create(amended(AHEAD, rounds=4, max_lead=3), 11)
    half = PARAMS.windows.challenge_seconds // 2
    w.to_merged(rounds=3).later().to_merged(1, rounds=2).until(w.round(1).merged_at + half - 42).to_merged(2)
    assert w.round(2).merged_at == w.round(1).merged_at + half
    w.finalize(0).finalize(1).until(w.round(0).merge_opens + PARAMS.merge.turn_seconds - 1)


def _two_to_draw(w: World, *enrolled: str) -> None:
    """Prepares a draw of two witnesses, with these enrolled."""
    w.create(TWO, 3).start().seal()
    for who in enrolled:
        w.do(who, "witnesses.enrol", w.job, preimage(0))
    w.commit().reveal().then("poor", "witnesses.draw", w.job, 0).later(2, 2)


def _two_duties(w: World) -> None:
    """Draws one witness for two rounds; in the first one it may still act."""
    w.create(UNHURRIED, 12)
    _enrolled(w)
    _drawn(w.to_revealed()).attest().then("poor", "market.attest", w.job, 0, [w.receipt(64, by="witness")])
    _drawn(w.freeze().merge(rounds=2).later().to_revealed(1), 1)


def _void(w: World) -> None:
    w.do("validator", "market.onInvalid", w.job, "verifier")


def _liars(w: World) -> None:
    """Gives each slot a different lie."""
    w.to_revealed(lies={0: Lie.VALUE, 1: Lie.PADDING, 2: Lie.ALIAS})


def _until(slot: int, phase: moves.GamePhase) -> Callable[[World], None]:
    """Plays the verifier's game to a phase: on the first slot's trace, or on another slot's first step."""

    def build(w: World) -> None:
        if game(w, slot) not in w.state.games:
            w.do("verifier", "game.open", *(whole(w, slot) if slot == 0 else at_step(w, 1, slot)))
        while w.state.games[game(w, slot)].phase != phase:
            mover, function, *given = next_move(w, slot)
            w.do(mover, function, *given)

    return build


def next_move(w: World, slot: int) -> tuple[Any, ...]:
    """Returns the next move in the game on a slot: the worker's as claimed, the verifier's by the truth."""
    id_ = game(w, slot)
    g, made = w.state.games[id_], w.held[w.claim(slot)]
    log = [
        games.decode({"topics": topics, "data": data})  # type: ignore[typeddict-item]
        for topics, data in (abi.log_of(e) for e in w.logged if e.contract == "DisputeGame")
        if topics[1][:32] == id_
    ]
    move = honest.answer(g, log, made) if g.defender_moves else honest.point(g, log, made.truth)
    assert move is not None
    given = tuple(getattr(move, part.name) for part in fields(move))
    if isinstance(move, moves.Stage | moves.ProveOp):
        given = (given[0], court.OperandProof(*given[1:]))
    return (f"worker-{slot}" if g.defender_moves else "verifier", f"game.{move.call}", id_, *given)


SCENES: Mapping[str, tuple[str, Callable[[World], object]]] = {
    # money
    "begun": ("", lambda w: None),
    "unbonding": ("begun", lambda w: w.then("mallory", "vault.requestUnbond", 500).later(3_597)),
    "unbonded": ("unbonding", lambda w: w.later(1)),
    "owned": ("begun", lambda w: w.then("mallory", "vault.setOwner", "verifier").then(
        "verifier", "vault.requestUnbondFor", "mallory", 500).then(
        "verifier", "vault.proposeOwner", "mallory", "witness").later(3_600)),
    "proposed before": ("begun", lambda w: w.then("mallory", "vault.proposeOwner", "mallory", "verifier").then(
        "mallory", "vault.setOwner", "poor")),
    "handed over": ("begun", lambda w: w.then("mallory", "vault.proposeOwner", "mallory", "verifier")),
    "owner changed": ("owned", lambda w: w.then("witness", "vault.acceptOwner", "mallory")),
    "proposed twice": ("owned", lambda w: w.then("verifier", "vault.proposeOwner", "mallory", "poor")),
    "owned and credited": ("owned", lambda w: w.then("market", "vault.escrow", "requester", 5_000).then(
        "market", "vault.credit", "mallory", 300)),
    "locked": ("begun", _locks),
    "rich": ("begun", lambda w: w.then("mallory", "token.mint", "mallory", 1 << 201).then(
        "mallory", "vault.deposit", 1 << 200).then("market", "vault.lock", "mallory", KEY["market"], (1 << 88) - 1)),
    "credited": ("locked", lambda w: w.then("market", "vault.credit", "mallory", 300).then(
        "market", "vault.slashLiveness", KEY["market"], 10)),
    # a round
    "job": ("begun", lambda w: w.create(PARAMS)),
    "cancelled": ("job", lambda w: w.then("requester", "market.cancel", JOB)),
    "finished": ("cancelled", lambda w: w.then("poor", "market.finish", JOB)),
    "joining": ("job", lambda w: w.start(slots=(0,))),
    "cancelled meanwhile": ("joining", lambda w: w.then("requester", "market.cancel", JOB)),
    "too late to leave": ("joining", lambda w: w.later(30)),
    "short of workers": ("joining", lambda w: w.later(60)),
    "enough workers": ("joining", lambda w: w.then("worker-1", "market.join", JOB, 0, 1).later(57)),
    "roster to close": ("enough workers", lambda w: w.later(1)),
    "roster closed": ("joining", lambda w: w.then("worker-1", "market.join", JOB, 0, 1).then(
        "worker-2", "market.join", JOB, 0, 2)),
    "last block of a seed": ("roster closed", lambda w: w.later(2, 255)),
    "seed due": ("roster closed", lambda w: w.later(2, 2)),
    "seed forgotten": ("roster closed", lambda w: w.later(300, 256)),
    "training": ("seed due", lambda w: w.then("poor", "market.seal", JOB, 0)),
    "half committed": ("training", lambda w: w.commit(slots=(0, 1))),
    "too late to commit": ("half committed", lambda w: w.later(60)),
    "carry from nowhere": ("training", lambda w: w.commit(carries=True)),
    "nobody committed": ("training", lambda w: w.later(60)),
    "half revealed": ("too late to commit", lambda w: w.reveal(slots=(0,))),
    "enrolled": ("training", _enrolled),
    "attesting": ("enrolled", lambda w: w.commit().reveal()),
    "one unrevealed": ("training", lambda w: w.commit().reveal(slots=(0, 1)).until(
        w.round().reveal_ends)),
    "delegate speaks": ("attesting", lambda w: w.then("worker-0", "vault.setDelegate", "poor")),
    "too late to draw": ("attesting", lambda w: w.later(40)),
    "half attested": ("attesting", lambda w: w.attest(slots=(0, 1), mask=3)),
    "one left out": ("half attested", lambda w: w.until(w.round().attest_ends)),
    "frozen without one": ("one left out", lambda w: w.then("poor", "market.freeze", JOB, 0, w.bodies())),
    "nobody named": ("attesting", lambda w: w.attest(mask=0).until(w.round().attest_ends)),
    **{f"named {i}": ("attesting", _spoken(masks)) for i, (masks, _) in enumerate(RECEIPTS)},
    "slot convicted": ("attesting", lambda w: _shut(
        _fallen(w, 1).attest(slots=(0, 2)).freeze(slots=(0, 2)).merge())),
    # witnesses
    "beacon fixed": ("attesting", lambda w: w.then("poor", "witnesses.draw", JOB, 0)),
    "beacon forgotten": ("beacon fixed", lambda w: w.later(20, 258)),
    "drawn": ("beacon fixed", lambda w: w.later(2, 2).then("poor", "witnesses.draw", JOB, 0)),
    "all spoke": ("drawn", lambda w: w.attest().then(
        "poor", "market.attest", JOB, 0, [w.receipt(64, by="witness")]).until(w.round().reveal_ends + 9)),
    "retired with a duty": ("drawn", lambda w: _shows(_says(w.then("witness", "witnesses.retire", JOB))).attest(
        ).freeze().merge().finalize()),
    "one revealed for a crowd": ("begun", _crowd),
    "silent witness": ("drawn", lambda w: w.later(40)),
    "silent, next beacon fixed": ("drawn", lambda w: w.attest().freeze().merge(rounds=2).later().to_revealed(
        1).then("poor", "witnesses.draw", JOB, 1)),
    "silent, next beacon there": ("silent, next beacon fixed", lambda w: w.later(2, 2)),
    "word committed": ("drawn", _says),
    "another preimage": ("drawn", lambda w: w.then(
        "witness", "witnesses.commit", audit(w), 0, bound(w, word(w, preimage=Digest(keccak(b"chosen")))))),
    "wide": ("begun", lambda w: _wide(w, LOOKED)),
    "wide word committed": ("wide", _says),
    "leaf of another state": ("wide", lambda w: w.then(
        "witness", "witnesses.commit", audit(w), 0, bound(w, elsewhere(w)))),
    "leaf of another place": ("wide", lambda w: w.then(
        "witness", "witnesses.commit", audit(w), 0, bound(w, next_leaf(w)))),
    "list of roots alone": ("wide", lambda w: _says(w, leaf=StateLeaf(CHOSEN))),
    "list of roots alone, final": ("list of roots alone", lambda w: _shows(
        w, leaf=StateLeaf(CHOSEN), agrees=False).attest().freeze().merge().finalize()),
    "looks to the end": ("begun", lambda w: _wide(w, 4)),
    "looked to the end": ("looks to the end", _says),
    "last state named": ("looks to the end", lambda w: w.then(
        "witness", "witnesses.commit", audit(w), 0, bound(w, last_state(w)))),
    "differing word": ("drawn", lambda w: w.then(
        "witness", "witnesses.commit", audit(w), 0, bound(w, word(w, state=StateRoot(keccak(b"garbage")))))),
    "word unrevealed": ("word committed", lambda w: w.later(80)),
    "word revealed": ("word committed", lambda w: w.then("witness", "witnesses.reveal", audit(w), 0, word(w))),
    "witness slashed": ("word revealed", lambda w: _convicted(w, 1)),
    "convicted without a proof": ("word revealed", lambda w: _final(_convicted(w, 0))),
    "failed with a word": ("word revealed", lambda w: w.attest(mask=0).freeze()),
    "failed with a word, final": ("failed with a word", lambda w: w.finalize()),
    "many silent": ("begun", _many_silent),
    "differed from what stands": ("differing word", lambda w: _final(
        _shows(w, state=StateRoot(keccak(b"garbage")), agrees=False))),
    "differed from what fell": ("differing word", lambda w: _convicted(
        _shows(w, state=StateRoot(keccak(b"garbage")), agrees=False), 0)),
    "differed, final": ("differed from what fell", _final),
    "failed with a differing word": ("differing word", lambda w: _shows(
        w, state=StateRoot(keccak(b"garbage")), agrees=False).attest(mask=0).freeze()),
    "failed, differed from what fell": ("failed with a differing word", lambda w: _convicted(w, 0)),
    "failed, differed, final": ("failed, differed from what fell", lambda w: w.finalize()),
    "drawn for a void job": ("word committed", lambda w: w.then("validator", "market.onInvalid", JOB, "verifier")),
    "three enrolled": ("enrolled", lambda w: w.then("verifier", "witnesses.enrol", JOB, preimage(0)).then(
        "mallory", "witnesses.enrol", JOB, preimage(0))),
    "first retired": ("three enrolled", lambda w: w.then("witness", "witnesses.retire", JOB)),
    "worker enrolled": ("training", lambda w: w.then("worker-0", "witnesses.enrol", JOB, preimage(0)).commit().reveal(
        ).then("poor", "witnesses.draw", JOB, 0).later(2, 2)),
    "one enrolled for two": ("begun", lambda w: _two_to_draw(w, "witness")),
    "two enrolled for two": ("begun", lambda w: _two_to_draw(w, "witness", "verifier")),
    "one word of two": ("two enrolled for two", lambda w: _says(w.then("poor", "witnesses.draw", w.job, 0))),
    "two duties": ("begun", _two_duties),
    "two words": ("two duties", lambda w: _says(_says(w), r=1)),
    "second word first": ("two words", lambda w: _shows(w, r=1)),
    "another preimage behind": ("two duties", lambda w: _shows(_says(_says(w, preimage=CHOSEN), r=1), r=1)),
    "two silent": ("two duties", lambda w: w.later(73).then("poor", "witnesses.settle", audit(w), 0)),
    "slashed with another": ("second word first", lambda w: _convicted(_shows(w), 1).then(
        "poor", "witnesses.settle", audit(w), 0)),
    "merged with a witness": ("word revealed", lambda w: w.attest().freeze().merge()),
    "witness to be paid": ("merged with a witness", lambda w: w.finalize()),
    # the merge
    "freezing": ("attesting", lambda w: w.attest().until(w.round().attest_ends)),
    "merging": ("freezing", lambda w: w.freeze()),
    "owners merge": ("merging", lambda w: w.later(60)),
    "nobody merged": ("merging", lambda w: w.later(4 * 60).then("poor", "market.finalize", JOB, 0)),
    "nobody merged, base": ("nobody merged", lambda w: w.later().start(1)),
    "nobody merged, last second": ("nobody merged", lambda w: _shut(w).later(-1)),
    "nobody merged, window over": ("nobody merged", _shut_),
    "nobody merges": ("merging", lambda w: w.later(4 * 60)),
    "merged": ("merging", lambda w: w.merge()),
    "backed": ("merging", lambda w: w.merge(rounds=2)),
    "under game": ("merged", lambda w: w.then("game", "market.onOpen", w.claim(0), w.made(0).body)),
    "last second": ("merged", lambda w: w.later(297)),
    "window over": ("merged", lambda w: w.later(298)),
    "two payloads missing": ("attesting", lambda w: w.then("verifier", "demands.unavailable", JOB, 0, 0, 0).then(
        "verifier", "demands.unavailable", JOB, 0, 1, 0).later(41)),
    "failed under game": ("two payloads missing", lambda w: w.then(
        "game", "market.onOpen", w.claim(0), w.made(0).body).then(
        "game", "market.onOpen", w.claim(0), w.made(0).body).then("poor", "market.freeze", JOB, 0, w.bodies())),
    "failed, one game left": ("failed under game", lambda w: w.then("game", "market.onRejected", w.claim(0))),
    "failed, no game left": ("failed, one game left", lambda w: w.then("game", "market.onRejected", w.claim(0))),
    "failed, window over": ("failed, no game left", _shut_),
    "failed, game outlives": ("failed, one game left", _shut_),
    "failed, one convicted": ("failed, one game left", lambda w: _shut_(w.then(
        "game", "market.onConvicted", w.claim(0), 1, [ACCOUNTS["verifier"]], []))),
    "failed and final": ("failed, window over", lambda w: w.then("poor", "market.finalize", JOB, 0)),
    "unnamed, one silent": ("one unrevealed", lambda w: w.attest(slots=(0, 1), mask=0).until(w.round().attest_ends)),
    "one left out, window over": ("frozen without one", lambda w: _shut_(w.merge())),
    "one left out, final": ("one left out, window over", lambda w: w.then("poor", "market.finalize", JOB, 0)),
    "game outlives": ("under game", lambda w: w.later(300)),
    "final": ("merged", lambda w: w.finalize()),
    "second round": ("backed", lambda w: w.later(1).start(1)),
    "second joining": ("backed", lambda w: w.later().start(1, slots=()).later(28)),
    "second joining, half over": ("second joining", lambda w: None),
    "second joining, one convicted": ("backed", lambda w: _fallen(w, 0).later().start(1, slots=())),
    "second joining, one left out": ("frozen without one", lambda w: w.merge(rounds=2).later().start(1, slots=())),
    "second joining, first final": ("final", lambda w: w.later().start(1, slots=())),
    "rewound": ("second round", _rewound),
    "first of the order convicted": ("merging", lambda w: _fallen(
        w, views.seed_order(PARAMS, w.round())[0]).later(60)),
    "its turn over": ("first of the order convicted", lambda w: w.later(60)),
    "convicted and merged": ("merged", lambda w: _shut(_fallen(w, 1))),
    "two games": ("under game", lambda w: _fallen(w, 0)),
    "void under game": ("under game", lambda w: w.then("validator", "market.onInvalid", JOB, "verifier").then(
        "poor", "market.release", JOB, 0).then("poor", "market.finish", JOB)),
    "failed under game, void": ("failed under game", _void),
    "failed, one released": ("failed under game, void", lambda w: w.then("poor", "market.release", JOB, 0)),
    "failed once": ("job", _failed),
    "failed twice": ("failed once", lambda w: _failed(w, 1)),
    "second merged": ("second round", lambda w: w.seal(1).commit(1).reveal(1).attest(1).freeze(1).merge(1)),
    "merge voided": ("second merged", _rewound),
    "failure voided": ("second round", lambda w: _rewound(
        w.seal(1).commit(1).reveal(1).attest(1, slots=(0, 1), mask=4).freeze(1))),
    "silence voided": ("second round", lambda w: _rewound(
        w.seal(1).commit(1).reveal(1, slots=(0, 1)).until(w.round(1).reveal_ends))),
    "late reveal voided": ("second round", lambda w: _rewound(
        w.seal(1).commit(1).reveal(1, slots=(0, 1)).until(w.round(1).reveal_ends - 1))),
    "seat voided": ("second round", lambda w: _rewound(w.seal(1).commit(1, slots=(0,)))),
    "two liars": ("rewound", lambda w: _convict_merge(w.merge(by=merger(w)))),
    "third merge": ("two liars", lambda w: w.merge(by=merger(w), rounds=2)),
    "unbacked, its turn": ("merging", lambda w: _turns(w.merge()).later(-1)),
    "unbacked": ("merging", lambda w: _turns(w.merge())),
    "unbacked, second turn": ("merging", lambda w: _turns(w.merge(), 2)),
    "unbacked, half of its window over": ("merging", lambda w: _half(w.merge())),
    "unbacked, half of its window": ("merging", lambda w: _half(w.merge()).later(-1)),
    "unbacked, window over": ("merging", lambda w: _shut(w.merge())),
    "unbacked by an owner": ("owners merge", lambda w: _turns(w.merge(by=merger(w)), 2)),
    "unbacked after a conviction": ("rewound", lambda w: _turns(_merged(w.later(60)), 2)),
    "unbacked, next of the order convicted": ("unbacked", lambda w: _fallen(
        w, views.seed_order(PARAMS, w.round())[0])),
    "unbacked, judged": ("unbacked", lambda w: w.then(
        "game", "market.onOpen", w.claim(MERGE_SLOT), w.held[w.claim(MERGE_SLOT)].body)),
    "unbacked, defended": ("unbacked, judged", lambda w: w.then("game", "market.onRejected", w.claim(MERGE_SLOT))),
    "unbacked, cancelled": ("unbacked", lambda w: w.then("requester", "market.cancel", JOB)),
    "unbacked, void": ("unbacked", _void),
    "backed for one": ("merging", lambda w: w.merge(rounds=1)),
    "unbacked, next under way": ("backed for one", lambda w: _turns(w.later().start(1))),
    "unbacked, next under way without a carry": ("begun", lambda w: _turns(
        w.create(UNCARRIED, 10).to_merged(rounds=1).later().start(1))),
    "unbacked, next failed": ("backed for one", lambda w: _turns(_failed(w.later(), 1))),
    "unbacked, next failed now": ("unbacked, next failed", lambda w: w.later(-2)),
    "unbacked, next failed, none to come": ("failed once", lambda w: _turns(
        _failed(w.to_merged(1, rounds=1).later(), 2))),
    "merged again": ("unbacked", lambda w: w.merge(by=merger(w), rounds=1)),
    "period merged, first again": ("backed for one", lambda w: _merged(_turns(w.later().to_merged(1)).later(), 2).until(
        w.round(1).merged_at + PARAMS.windows.challenge_seconds)),
    "merged again, next failed": ("merged again", lambda w: _turns(_failed(w.later(), 1))),
    "merged again, first's window over": ("unbacked, second turn", lambda w: w.merge(by=merger(w), rounds=1).later(
        PARAMS.windows.challenge_seconds - PARAMS.merge.turn_seconds)),
    "merged again in the second turn, fallen": ("unbacked, second turn", lambda w: _convict_merge(
        w.merge(by=merger(w), rounds=1))),
    "merged again, over": ("merged again", _shut_),
    "merged again, second round": ("merged again", lambda w: w.later().start(1)),
    "merged again, carrying": ("merged again, second round", lambda w: w.seal(1).commit(1, carries=True)),
    "liars passed over": ("third merge", lambda w: w.start(1).seal(1).commit(1).reveal(1).attest(1).freeze(1)),
    "first turn over": ("liars passed over", lambda w: w.later(60)),
    "second turn over": ("first turn over", lambda w: w.later(60)),
    "turns over": ("second turn over", lambda w: w.later(120)),
    "released": ("rewound", lambda w: w.then("poor", "market.release", JOB, 1)),
    "slots swapped": ("backed", _swapped),
    "second revealing": ("second round", lambda w: w.seal(1).commit(1, carries=True)),
    "carrying": ("second revealing", lambda w: w.reveal(1, carries=True)),
    "third joining": ("carrying", lambda w: w.attest(1).freeze(1).merge(1, rounds=1).later().start(2, slots=())),
    "left out, second": ("frozen without one", lambda w: _second(w.merge(rounds=2))),
    "absent, second": ("one unrevealed", lambda w: _left_out(w, (0, 1))),
    "convicted, second": ("backed", lambda w: _second(_fallen(w, 0))),
    "convicted before the reveal": ("second revealing", lambda w: _fallen(w, 0)),
    "failed, second": ("nobody merged", _second),
    "failed under a game, second": ("merging", _game_in_a_failed_round),
    "final, second": ("final", _second),
    "from zero": ("second round", lambda w: w.seal(1).commit(1).reveal(1)),
    "from zero, base convicted": ("from zero", lambda w: _paid(_fallen(w, 0))),
    "later convicted": ("carrying", lambda w: _fallen(w, 0)),
    "carry fallen": ("later convicted", _paid),
    "third round": ("carrying", lambda w: w.attest(1).freeze(1).merge(1, rounds=1).later().start(2).seal(2).commit(
        2, carries=True)),
    "last second of a period": ("carrying", lambda w: _over(w).later(-1)),
    "period over": ("carrying", _over),
    "first of a period over": ("backed", _shut_),
    "second failed": ("carrying", lambda w: w.attest(1, mask=0).freeze(1)),
    "second failed, first's window over": ("second failed", lambda w: _shut_(w)),
    "second failed, window over": ("second failed", lambda w: _shut_(w, 1)),
    "next round failed": ("backed", lambda w: _failed(w.later(), 1).later(300)),
    "run again": ("carrying", _again),
    "second drawn": ("carrying", lambda w: _drawn(w, 1)),
    "word on voided work": ("second drawn", _word_on_voided_work),
    "word on voided work, its game over": ("word on voided work", lambda w: w.then(
        "game", "market.onRejected", w.claim(_looked_at(w), 1))),
    "fees due": ("begun", _fees_due),
    "fees due, beacon there": ("fees due", lambda w: w.then("poor", "witnesses.draw", w.job, 1).later(2, 2)),
    "fees due, beacon fixed": ("fees due", lambda w: w.then("poor", "witnesses.draw", w.job, 1)),
    "fees given up": ("fees due", lambda w: w.then("poor", "witnesses.settle", ids.audit_id(w.job, 1, 0), 0).then(
        "poor", "witnesses.draw", w.job, 1).later(2, 2)),
    "second silent": ("second drawn", lambda w: w.later(40)),
    "second silent, merging": ("second silent", lambda w: w.freeze(1)),
    "its carry asked for": ("second drawn", lambda w: _asked_for(w).later(40)),
    "left out for its carry": ("its carry asked for", lambda w: w.later(2).freeze(1)),
    "asked for, convicted": ("second drawn", lambda w: _fallen(_asked_for(w), _looked_at(w), 1).later(161)),
    "asked for, failed": ("second drawn", lambda w: _asked_for(w).attest(1, mask=0).later(41).freeze(1).later(120)),
    "asked for, failed, settled": ("asked for, failed", lambda w: w.then("poor", "demands.settle", asked_for(w))),
    "looked at, carry fallen": ("second drawn", lambda w: _paid(_fallen(
        _shows(_says(w, r=1), r=1), _looked_at(w))).then("poor", "market.finalize", JOB, 1)),
    "lingering": ("carrying", _lingering),
    "liar voided": ("lingering", lambda w: w.then(
        "game", "market.onConvicted", w.claim(0, 1), 0, [ACCOUNTS["verifier"]], [])),
    "lingering, one merges": ("lingering", lambda w: w.merge(by=merger(w), rounds=2)),
    "lingering, unbacked": ("lingering", lambda w: _turns(w.merge(by=merger(w)))),
    "lingering, unbacked, no more": ("lingering, unbacked", lambda w: w.then(
        "game", "market.onRejected", w.claim(0, 1))),
    "lingering no more": ("lingering, one merges", lambda w: w.then("game", "market.onRejected", w.claim(0, 1))),
    "lingering, nobody merges": ("lingering", lambda w: w.later(300)),
    "carry demanded": ("carrying", lambda w: w.then("verifier", "demands.carryUnavailable", JOB, 1, 0, 0).later(2, 2)),
    "carry withheld": ("carry demanded", lambda w: w.later(161)),
    "all in flight, cancelled": ("second round", lambda w: w.seal(1).commit(1).reveal(1).attest(1).freeze(1).merge(
        1, rounds=1).start(2).then("requester", "market.cancel", JOB)),
    "void": ("second round", _void),
    "void, one left out": ("frozen without one", _void),
    "void while joining": ("roster closed", _void),
    "void while training": ("half committed", _void),
    "void while revealing": ("half revealed", _void),
    "void, one silent": ("one unrevealed", lambda w: _void(w.later(-1))),
    "void in the last second of revealing": ("one unrevealed", lambda w: _void(w.later(-2)) or w.later(60)),
    "seats released": ("void while joining", lambda w: w.then("poor", "market.release", JOB, 0)),
    "seats and work released": ("void while training", lambda w: w.then("poor", "market.release", JOB, 0)),
    "void, first released": ("void", lambda w: w.then("poor", "market.release", JOB, 0)),
    "void, released": ("void, first released", lambda w: w.then("poor", "market.release", JOB, 1)),
    # a job of one round
    "distinct job": ("begun", lambda w: w.create(DISTINCT, 2)),
    "short job": ("begun", lambda w: w.create(SHORT, 2)),
    "two rounds ahead": ("begun", _ahead),
    "two rounds ahead, unbacked": ("begun", _unbacked_ahead),
    "one round settled, unbacked": ("two rounds ahead, unbacked", lambda w: w.finalize()),
    "one round settled, its turn": ("one round settled, unbacked", lambda w: _turns(w).later(-2)),
    "one round settled, a turn ago": ("one round settled, unbacked", lambda w: _turns(w).later(-1)),
    "one round settled, last second": ("one round settled, unbacked", lambda w: _turns(_half(w, 1))),
    "one round settled, time over": ("one round settled, unbacked", lambda w: _turns(_half(w, 1)).later()),
    "one round settled late": ("two rounds ahead, unbacked", lambda w: _turns(_half(w, 1).later().then(
        "poor", "market.finalize", w.job, 0))),
    "one round settled early": ("begun", _settled_early),
    "one round settled early, half over": ("one round settled early", lambda w: _half(w, 1)),
    "two rounds settled": ("begun", _two_settled),
    "two rounds settled, its turn": ("two rounds settled", lambda w: w.later(-2)),
    "short job, unbacked": ("short job", lambda w: _turns(w.to_merged())),
    "one round settled": ("two rounds ahead", lambda w: w.finalize()),
    "alone": ("begun", _alone),
    "all spoken": ("short job", lambda w: w.to_revealed().attest().later(8)),
    "all spoken, time of demands over": ("all spoken", lambda w: None),
    "alone, spoken": ("alone", lambda w: w.attest(slots=(0,), mask=1)),
    "alone, time over": ("alone", lambda w: w.until(w.round().attest_ends)),
    "alone, aggregator late": ("alone, time over", lambda w: w.freeze(slots=(0,)).later(60)),
    "alone, over": ("alone, time over", lambda w: _shut(w.freeze(slots=(0,)).merge())),
    "alone, convicted": ("alone", lambda w: _fallen(w, 0).until(w.round().attest_ends)),
    "owners' job, merging": ("begun", lambda w: _owners(w)),
    "short job failed": ("short job", lambda w: w.start(slots=(0,)).later(60).then("poor", "market.seal", w.job, 0)),
    "short job's window over": ("short job", lambda w: w.to_merged().later(300)),
    "short job over": ("short job", lambda w: w.to_merged().finalize()),
    # demands
    "demanded": ("attesting", lambda w: w.then("verifier", "demands.unavailable", JOB, 0, 0, 1 << 70)),
    "demand's beacon forgotten": ("demanded", lambda w: w.later(2, 300)),
    "seed there": ("demanded", lambda w: w.later(2, 2)),
    "seed nearly forgotten": ("demanded", lambda w: w.later(2, 255)),
    "seed just forgotten": ("demanded", lambda w: w.later(2, 256)),
    "seed kept": ("seed nearly forgotten", lambda w: w.then("mallory", "demands.keepSeed", demand(w))),
    "seed kept, beacon forgotten": ("seed kept", lambda w: w.later(2, 300)),
    "priced, demanded": ("begun", _priced),
    "last second of a demand": ("demanded", lambda w: w.later(38, 2)),
    "answer late": ("demanded", lambda w: w.later(39)),
    "answered": ("seed there", lambda w: w.then(
        "poor", "demands.answer", demand(w), w.made(0).body, ENCODE, shown(w, demand(w)))),
    "asked again": ("answered", lambda w: w.then("mallory", "demands.unavailable", JOB, 0, 0, 1 << 70).later(41)),
    "asked again, settled": ("asked again", lambda w: w.then(
        "poor", "demands.settle", payload_demand_id(w.claim(0), 1)).until(w.round().attest_ends)),
    "payload missing": ("answer late", lambda w: w.then("poor", "demands.settle", demand(w))),
    "one missing, merged": ("payload missing", lambda w: _shut_(w.freeze().merge())),
    "frozen too early": ("attesting", lambda w: w.attest().until(w.round().attest_ends - 1).then(
        "verifier", "demands.unavailable", JOB, 0, 0, 0).later(1)),
    "row demanded": ("job", lambda w: w.then("verifier", "demands.demandRow", JOB, 0).then(
        "worker-0", "demands.commit", [
            committed(w, "worker-0", "demands.answerRow", *answer) for answer in (ANSWER_ROW, *WRONG_ANSWERS.values())
        ])),
    "row committed": ("row demanded", lambda w: w.later(1)),
    "row late": ("row committed", lambda w: w.later(40)),
    "row answered": ("row committed", lambda w: w.then("worker-0", "demands.answerRow", *ANSWER_ROW)),
    "row of a job that is over": ("row demanded", lambda w: w.then("requester", "market.cancel", JOB).then(
        "poor", "market.finish", JOB).later(41)),
    # games
    "liars": ("short job", _liars),
    "trace to reveal": ("liars", _until(0, moves.GamePhase.TRACE_REVEAL)),
    "trace to pick": ("trace to reveal", _until(0, moves.GamePhase.TRACE_PICK)),
    "step to argue": ("trace to pick", _until(0, moves.GamePhase.ADJACENT)),
    "step to defend": ("step to argue", _until(0, moves.GamePhase.DEFEND)),
    "graph to pick": ("step to defend", _until(0, moves.GamePhase.GRAPH_PICK)),
    "tensor to reveal": ("graph to pick", _until(0, moves.GamePhase.TENSOR)),
    "leaf to post": ("tensor to reveal", _until(0, moves.GamePhase.LEAF)),
    "op to prove": ("leaf to post", _until(0, moves.GamePhase.ELEMENT)),
    "padding to prove": ("liars", _until(1, moves.GamePhase.PADDING)),
    "alias to prove": ("liars", _until(2, moves.GamePhase.ALIAS)),
    "last second of the clock": ("trace to reveal", lambda w: w.later(118)),
    "silent defender": ("trace to reveal", lambda w: w.later(119)),
    "silent challenger": ("trace to pick", lambda w: w.later(121)),
    "convicted elsewhere": ("trace to reveal", lambda w: w.then(
        "game", "market.onConvicted", w.claim(0), 1, [ACCOUNTS["verifier"]], [])),
    "four games": ("liars", _four_games),
    "four games over": ("four games", lambda w: w.then(
        "poor", "game.resolve", game_id(w.claim(0), ACCOUNTS["witness"], 0),
        w.state.games[game_id(w.claim(0), ACCOUNTS["witness"], 0)].standing)),
    "game over": ("silent defender", lambda w: w.then(
        "poor", "game.resolve", game(w), w.state.games[game(w)].standing)),
    "delegated": ("trace to reveal", lambda w: w.then("worker-0", "vault.setDelegate", "poor")),
    # evidence
    "broken job": ("begun", lambda w: w.create(BROKEN, 2)),
    "evidence committed": ("broken job", lambda w: w.then(
        "verifier", "validator.commit", [committed(w, "verifier", "validator.proveInvalid", w.job, EVIDENCE)])),
    "evidence copied": ("evidence committed", lambda w: w.then(
        "poor", "validator.commit", [committed(w, "verifier", "validator.proveInvalid", w.job, EVIDENCE)])),
    "evidence ready": ("evidence committed", lambda w: w.later(1)),
    "evidence of nothing": ("short job", lambda w: w.then(
        "verifier", "validator.commit", [committed(w, *BY, w.job, HOLDING), committed(w, *BY, w.job, NOTHING),
                                         committed(w, *BY, JOB, NOTHING), committed(w, *BY, JOB, HOLDING)]).later(1)),
}  # fmt: skip
"""Maps a scene's name to the scene that it extends and the added acts."""
