"""False inputs that a rule refuses: names, receipts, proofs, seats, seeds, clocks, stakes, and jobs that are traps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest
from eth_typing import HexStr
from web3.exceptions import ContractLogicError, Web3RPCError

from lockstep.chain import games
from lockstep.chain.contracts import Call, Contract, Contracts
from lockstep.chain.deployment import deploy
from lockstep.demo.cheats.challenges import Aim
from lockstep.disputes.player import Side
from lockstep.execution import jobs
from lockstep.execution.invalidity import proof
from lockstep.market.held import HeldClaim
from lockstep.numerics.scalar import Opcode as Code
from lockstep.presets import CHAINS
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves, openings
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.openings import Known
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.errors import ChainError, DoctorError, ProgramInvalid
from lockstep.protocol.jobs import NO_STATE, Phase, Receipt
from lockstep.protocol.market import ids
from lockstep.protocol.market.ids import commitment
from lockstep.protocol.market.job_rules import GAME_MOVES
from lockstep.protocol.programs.defects import Evidence, Held, ProgramParts, find, job_of
from lockstep.protocol.programs.program import CHUNK, F32, HEAD_BYTES, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Cid, Digest, GameId, Seconds, StateRoot, Step, TensorRoot, Wei
from lockstep.storage.containers import encode_program, load_spec
from tests.adversarial.cheat import Story
from tests.adversarial.claims import flips
from tests.adversarial.court import NAMES, UNBOND_SECONDS, WALLET, Court, Turn, reveal_of
from tests.adversarial.lies import at, by_program, lying, named, with_op
from tests.adversarial.players import LONG_CLOCK, attack
from tests.support import games as games_of_tests
from tests.support import toyjob
from tests.support.params import amended
from tests.support.random_ops import abi
from worker.progress import Material

# -- names, receipts ---------------------------------------------------------------------------------------------------

LONGEST = 128
"""Bytes of a CID."""


def committed(court: Court) -> Material:
    """Worker 0 alone has committed to its claim, and may reveal it."""
    made = court.compute(court.run(0))
    digest = commitment(made.claim, court.address("worker-0"), reveal_of(made))
    court.send(court.contracts.market.commit(court.job_id, 0, 0, digest), "worker-0")
    court.wait(Phase.REVEALING)
    return made


def endless_reveal(court: Court) -> str:
    """The owner of a slot reveals one byte too many, and then as many as there may be."""
    made, market = committed(court), court.contracts.market
    opened = reveal_of(made)
    rules = set()
    name = Cid("b" * (LONGEST + 1))
    for endless in (replace(opened, trace_cid=name), replace(opened, payload_cid=name)):
        rules.add(court.refused(market.reveal(court.job_id, 0, 0, endless), "worker-0"))
    (rule,) = rules
    longest = replace(opened, payload_cid=Cid("b" * LONGEST))
    court.send(market.reveal(court.job_id, 0, 0, longest), "worker-0")
    assert court.record(made.claim).payload_cid == "", "what names no content is read as none"
    return rule


def endless_merge(court: Court) -> str:
    """The merger names a checkpoint by one byte too many."""
    court.claim()
    court.freeze()
    market = court.contracts.market
    endless = market.merge(court.job_id, 0, NO_STATE, NO_STATE, "b" * (LONGEST + 1))
    return court.refused(endless, court.name_of(market.merger_of(court.job_id, 0)))


def signed(court: Court, who: int, mask: int, signer: str) -> Receipt:
    """A receipt for a slot."""
    attempt = court.contracts.market.round(court.job_id, 0).attempt
    (receipt,) = court.contracts.sign_receipts(court.accounts[signer], court.job_id, 0, attempt, mask, [who])
    return receipt


def receipt_of_another_slot(court: Court) -> str:
    """The owner of two slots says for one that slot 2 is there, and for the other that it is not; a stranger hands the
    first in twice."""
    court.owners = dict.fromkeys((0, 1), "worker-0")
    court.create()
    court.seal()
    court.claim()
    market = court.contracts.market
    court.wait(Phase.ATTESTING)
    good, bad = signed(court, 0, 0b111, "worker-0"), signed(court, 1, 0b011, "worker-0")
    copied = replace(good, who=1)
    rule = court.refused(market.attest(court.job_id, 0, [copied]), "mallory")
    assert court.refused(market.attest(court.job_id, 0, [good, copied]), "mallory") == rule
    assert market.round(court.job_id, 0).receipts == 0, "nothing was taken"
    court.send(market.attest(court.job_id, 0, [good, bad]), "mallory")
    assert market.round(court.job_id, 0).receipts == 2
    return rule


# -- seeds, seats ------------------------------------------------------------------------------------------------------

REMEMBERED = 256
"""Blocks whose hash the EVM knows."""


def roster(court: Court) -> int:
    """Round 1 starts and fills up, nobody has sealed; its seed block."""
    court.rounds(0)
    market = court.contracts.market
    court.send(market.start_round(court.job_id, 1), "requester")
    for slot in range(court.params.role.slots):
        court.send(market.join(court.job_id, 1, slot), f"worker-{slot}")
    return market.round(court.job_id, 1).seed_block


def any_sealer(court: Court) -> str:
    """Mallory and others wait for blocks that they like better; the seed stays."""
    block = roster(court)
    seal, hash_ = court.contracts.market.seal(court.job_id, 1), b""
    for waited, name in ((1, "mallory"), (40, "worker-0"), (REMEMBERED - 2, "requester")):
        mark = court.devnet.snapshot()
        court.devnet.mine(waited)
        court.send(seal, name)
        stored = court.contracts.market.round(court.job_id, 1)
        hash_ = bytes(court.devnet.w3.eth.get_block(block)["hash"])
        assert stored.seed == ids.seed(hash_, court.job_id, 1, stored.attempt), f"{waited} blocks later by {name}"
        court.devnet.revert(mark)
    court.devnet.mine(2)
    court.send(seal, "mallory")
    return court.refused(seal, "mallory")


def outwaited(court: Court) -> str:
    """Everybody waits until the EVM has forgotten the block: the round fails, and is not drawn again."""
    roster(court)
    court.devnet.mine(REMEMBERED + 2)
    court.send(court.contracts.market.seal(court.job_id, 1), "mallory")
    assert court.phase(1) == Phase.FAILED
    return court.refused(court.contracts.market.seal(court.job_id, 1), "mallory")


def ground(court: Court) -> str:
    """A slot is joined, the seed is awaited, and given back if it displeases: a full roster is closed."""
    roster(court)
    return court.refused(court.contracts.market.leave(court.job_id, 1, 0), "worker-0")


SQUATTED = (1, 2)


def squats(min_slots: int) -> Story:
    """Two of three seats are mallory's, who leaves when nobody has time to take them; `min_slots`: of the job, which
    goes on with one worker or fails."""

    def story(court: Court) -> str:
        court.owners = dict.fromkeys(SQUATTED, "mallory")
        court.create(min_slots=min_slots, max_fail=0)
        market, params = court.contracts.market, court.params
        court.send(market.start_round(court.job_id, 0), "requester")
        court.send(market.join(court.job_id, 0, 1), "mallory")
        court.send(market.leave(court.job_id, 0, 1), "mallory")
        for slot in SQUATTED:
            court.send(market.join(court.job_id, 0, slot), "mallory")
        ends = market.round(court.job_id, 0).join_ends
        for before in (params.windows.join_seconds // 2, 4):
            court.advance(ends - before - court.now())
            rule = court.refused(market.leave(court.job_id, 0, 1), "mallory")
        assert court.now() < ends, "the window is still open"
        court.send(market.join(court.job_id, 0, 0), "worker-0")
        court.devnet.mine(2)
        court.send(market.seal(court.job_id, 0), "requester")
        court.claim(absent=SQUATTED)
        if min_slots > 1:
            court.freeze()
            assert court.phase() == Phase.FAILED, "at the squatter's cost"
        return rule

    return story


# -- clocks, stakes ----------------------------------------------------------------------------------------------------

ETHEREUM = CHAINS["ethereum"]
SHORTEST = ETHEREUM.clock_floor
WINDOW = Seconds(10 * ETHEREUM.inclusion)
TERMS: Mapping[str, Any] = {
    "clock_seconds": SHORTEST, "step_seconds": Seconds(SHORTEST // 4), "attest_seconds": WINDOW,
    "merge_seconds": WINDOW, "answer_seconds": WINDOW,
}  # fmt: skip
"""What that chain can keep, with the shortest clock."""
CEILING = Wei(2 * toyjob.TOY_TERMS.slot_stake)
"""The most that a merge's stake may be."""
UNHEARD_OF = Wei(3 * 10**26)
"""Below the largest lock, above all tokens that there are."""


def invalid(court: Court, group: str, **changes: Any) -> str:
    """The contract takes no such job: the group of parameters that it names."""
    with pytest.raises(ChainError, match=rf"JobInvalid\({group}\)"):
        court.submit(**changes)
    assert not court.events("JobCreated")
    return group


def steps_of_days(court: Court) -> str:
    """A step that takes most of a clock would make each game lengthen the next by as much."""
    for step in (LONG_CLOCK // 4 + 1, LONG_CLOCK * 5):
        rule = invalid(court, "clocks", clock_seconds=LONG_CLOCK, step_seconds=Seconds(step))
    court.submit(clock_seconds=LONG_CLOCK, step_seconds=Seconds(LONG_CLOCK // 4))
    return rule


def ethereum(court: Court) -> None:
    """The market as it is deployed on a chain of twelve seconds a block."""
    court.forget()
    chain, w3 = court.devnet, court.devnet.w3
    court.contracts = Contracts.at(
        w3, deploy(w3, chain.account("deployer"), unbond_seconds=UNBOND_SECONDS, chain=ETHEREUM)
    )
    for name in NAMES:
        court.fund(name)
    court.spent = []


def short_clocks(court: Court) -> str:
    """Clocks that a devnet takes, a clock one second too short, a step that is most of it, a window below a block."""
    invalid(court, "windows", **{**TERMS, "attest_seconds": Seconds(ETHEREUM.inclusion - 1)})
    clocks = ((60, 10), (SHORTEST - 1, 10), (SHORTEST, SHORTEST // 4 + 1))
    changes = ({**TERMS, "clock_seconds": Seconds(clock), "step_seconds": Seconds(step)} for clock, step in clocks)
    return {invalid(court, "clocks", **terms) for terms in changes}.pop()


def shortest_clock(late: Seconds) -> Story:
    """A game as long as it can be, and a defender whose every move is mined `late` seconds after the one before."""

    def story(court: Court) -> GameId:
        court.create(**TERMS, steps=100)
        court.seal()
        fold = named(court.job.programs.step, "gradient")
        game, challenger = attack(court, court.claim()[0], "mallory", aim=Aim(fold, "fold", "gradient", 0, 1))
        defender, answers = court.defender(game), list[int]()

        def turn(now: Seconds) -> moves.Move | None:
            if not games.read(court.contracts.game, game).defender_moves:
                return None
            court.advance(late - 1)
            made = defender(court.now())
            assert made is not None, "the defender is in time"
            answers.append(court.now() - now)
            return made

        court.play(game, turn, challenger)
        assert set(answers) == {late}
        assert len(answers) <= GAME_MOVES
        assert sum(answers) > 60, "a clock of a minute would have run out"
        return game

    return story


def unstakeable(court: Court) -> str:
    """Sent to the contract as it is; at the ceiling a job is merged by a worker, and paid."""
    rules = {invalid(court, "stakes", merge_stake=stake) for stake in (UNHEARD_OF, Wei(CEILING + 1))}
    court.reset(merge_stake=CEILING)
    court.claim()
    return rules.pop()


def unstakeable_by_the_sdk(court: Court) -> str:
    """Quoted by the requester's own SDK, which sends and stores nothing."""
    before, net = court.wealth("requester"), court.network()

    def quote(stake: Wei) -> object:
        return net.quote(toyjob.training_job(terms=replace(toyjob.TOY_TERMS, merge_stake=stake)))

    for stake in (UNHEARD_OF, Wei(CEILING + 1)):
        with pytest.raises(ChainError, match=r"JobInvalid\(stakes\)") as refused:
            quote(stake)
        assert "merge_stake <= 2 x slot_stake" in refused.value.hint
    assert court.wealth("requester") == before
    assert court.spent == []
    assert quote(CEILING)
    return "stakes"


# -- proofs ------------------------------------------------------------------------------------------------------------

PLACES = ("standing", "claim", "nonce", "t", "i", "chunk", "leaf_index")
"""Fields that name a move's place, and prove nothing."""
BLOBS = ("data", "posted", "words", "context", "descriptor", "header")
"""Fields of any length; all other bytes are words of 32."""
RULES = {
    "ProofInvalid", "LengthWrong", "StatementWrong", "OpeningsWrong", "OutOfRange", "DatasetInvalid",
    "DescriptorInvalid", "CommitmentMismatch",
}  # fmt: skip


def spoiled(value: Any) -> Iterator[Any]:
    """A move or an opening in which one field is wrong: too short, too long, or with one bit flipped."""
    for f in fields(value):
        if f.name not in PLACES:
            yield from (replace(value, **{f.name: other}) for other in forms(f.name, getattr(value, f.name)))


def forms(name: str, value: Any) -> Iterator[Any]:
    """The wrong forms of one field."""
    if is_dataclass(value):
        yield from spoiled(value)
    elif isinstance(value, tuple):
        yield from (value[:-1], (*value, value[-1])) if value else ()
        for i, item in list(enumerate(value))[-2:]:
            for other in spoiled(item) if is_dataclass(item) else [_flipped(item)]:
                yield (*value[:i], other, *value[i + 1 :])
    elif isinstance(value, bytes) and value:
        yield _flipped(value)
        if name in BLOBS:
            yield value[:-1]
            yield value + b"\0"


def _flipped(item: bytes) -> bytes:
    return bytes([item[0] ^ 1]) + item[1:]


def spoiled_moves(court: Court) -> GameId:
    """Both sides of a liar's game first send every spoiled form of their moves, and it ends where it must."""
    court.claim({0: lying(court.run(0), flips("m", 7))})
    claim, found = court.accused()
    opening, refusals = honest.opening(court.known(claim), found.held, found.published, 0), list[str]()
    assert opening is not None
    game, contract = game_id(claim, court.address("verifier"), 0), court.contracts.game

    def refuse(move: Any, name: str) -> None:
        for bad in spoiled(move):
            refusals.append(court.refused(games.call(contract, bad, game), name))
            assert refusals[-1] in RULES, f"{refusals[-1]} of {bad}"

    def careless(side: Side, held: HeldClaim, name: str) -> Turn:
        seat = court.seat(game, side, held, name)

        def turn(now: Seconds) -> moves.Move | None:
            due = seat.due(now)
            if due is None:
                return None
            refuse(due.move, name)
            seat.send(due.call, due.key)
            return due.move

        return turn

    refuse(opening, "verifier")
    court.begin(opening, "verifier")
    defender = careless(Side.DEFENDER, court.held[claim], "worker-0")
    court.play(game, defender, careless(Side.CHALLENGER, found.held, "verifier"))
    assert len(refusals) > 60, f"{len(refusals)} spoiled moves"
    return game


def second_preimage(court: Court) -> str:
    """An inner node of the trace's tree is passed off as a leaf, with the shorter proof that it has."""
    claim = court.known(court.claim()[0])
    held = court.held[claim.id]
    tree, program = honest.trace_levels(held.trace), held.step(1).program
    assert claim.trace_root == tree[-1][0]
    step = moves.Transition(held.state_zero, (), program.header, program.ops_root, program.consts_root)
    siblings = tuple(merkle.proof(tree, 0))
    # With as many siblings as the depth, the inner node is a leaf's preimage to nobody: the domains differ.
    rules = set()
    for proof_ in (siblings[1:], siblings):
        forged = moves.Open(claim.id, claim.body, 0, 1, StateRoot(tree[1][0]), proof_, step)
        call = games.call(court.contracts.game, forged, game_id(claim.id, court.address("mallory"), 0))
        rules.add(court.refused(call, "mallory"))
    (rule,) = rules
    return rule


def spoiled_reveals(court: Court) -> str:
    """A claim whose outputs are not its trace's last state: by a flipped, a missing and an extra sibling."""
    opened = reveal_of(committed(court))

    def reveal(form: Any) -> str:
        return court.refused(court.contracts.market.reveal(court.job_id, 0, 0, form), "worker-0")

    (rule,) = {reveal(replace(opened, proof_t=proof_)) for proof_ in forms("proof_t", opened.proof_t)}
    swapped = replace(opened, body=replace(opened.body, out=opened.body.out2, out2=opened.body.out))
    assert reveal(swapped) == "CommitmentMismatch"
    court.send(court.contracts.market.reveal(court.job_id, 0, 0, opened), "worker-0")
    return rule


# -- traps -------------------------------------------------------------------------------------------------------------


def later_operand(op: Op, index: int) -> Op:
    """It reads its own output: the defender would have to open what does not exist yet."""
    return replace(op, views=(View(Tag.OP, index, 0, op.views[0].strides),))


def too_many_instructions(op: Op, index: int) -> Op:
    """No block has the gas for it."""
    return replace(op, instrs=op.instrs * 33)


def out_of_range(op: Op, index: int) -> Op:
    """A view beyond the end of its tensor."""
    return replace(op, views=(replace(op.views[0], offset=1), *op.views[1:]))


def miscounted(op: Op, index: int) -> Op:
    """A running sum of elements that is off."""
    return replace(op, cumulative=op.cumulative + 1)


def trapped(court: Court, trap: Callable[[Op, int], Op], about: str) -> tuple[Program, Evidence]:
    """A job of which one op of the step could not be defended; what proves that."""
    programs = toyjob.schedule()
    index = named(programs.step, about)
    made = with_op(programs.step, index, trap(programs.step.ops[index], index))
    court.submit(step_program=Digest(made.root))
    court.seal()
    parts = (ProgramParts.of(program) for program in (made, programs.encode, programs.merge))
    found = find(Held(job_of(court.params), tuple(parts)))  # type: ignore[arg-type]
    assert found is not None
    return made, found[0]


def proves(court: Court, evidence: Evidence, name: str) -> Call:
    """What comes next of a proof: what commits to it, then the proof."""
    return proof(court.contracts.validator, court.address(name), court.job_id, evidence)[1]


def undefendable(trap: Callable[[Op, int], Op], about: str) -> Story:
    """Honest parties do not join; three careless workers do, and are paid from the deposit."""

    def story(court: Court) -> str:
        made, evidence = trapped(court, trap, about)
        with pytest.raises(ProgramInvalid):
            _check(court, made)
        court.send(proves(court, evidence, "verifier"), "verifier")
        prove = proves(court, evidence, "verifier")
        # The proof is in the mempool: who copies it is refused, also with a commitment of the same block.
        assert court.refused(prove, "mallory") == "NotCommitted"
        court.send(prove, "verifier")
        assert court.refused(court.contracts.market.leave(court.job_id, 0, 0), "worker-0") == "WrongPhase"
        court.settle_void("verifier")
        assert evidence.index == named(made, about)
        return evidence.subject.name

    return story


def _check(court: Court, made: Program) -> None:
    """What every honest party does before it joins."""
    programs = {"step": made, "encode": toyjob.encode_program_of(), "merge": toyjob.merge_program()}
    spec = load_spec(court.params, court.store)
    spec = replace(spec, programs={name: court.store.put(encode_program(p)) for name, p in programs.items()})
    court.store.put(spec.encode(), codec="dag-cbor")
    jobs.load(court.job_id, amended(court.params, spec_digest=spec.digest), court.store)


def paid_seats(commits: bool) -> Story:
    """A requester voids its own job to have the deposit back as the pay of its own seats: it joins every slot,
    `commits` to nothing at all, and an accomplice proves the job invalid."""

    def story(court: Court) -> str:
        court.owners = dict.fromkeys(range(3), "requester")
        _, evidence = trapped(court, later_operand, "squares")
        market, params = court.contracts.market, court.params
        for slot in range(3) if commits else ():
            court.send(market.commit(court.job_id, 0, slot, Digest(b"\x11" * 32)), "requester")
        for _ in range(2):
            court.send(proves(court, evidence, "accomplice"), "accomplice")
        court.settle_void("accomplice")
        rest = params.deposit - (3 * params.role.slot_price if commits else 0)
        lost = court.wealth("requester") - WALLET
        assert lost == -rest
        assert lost + court.wealth("accomplice") - WALLET == rest * 30 // 100 - rest, "70 % of the rest is burned"
        return "deposit"

    return story


def void_convicts_nobody(opened_late: bool) -> Story:
    """A row that nobody posts voids a job whose claims are right; an accomplice waits for its end to win a game by
    timeout. `opened_late`: it opens the game once the job is void."""

    def story(court: Court) -> str:
        claims = court.claim()
        opening = games_of_tests.open_at(court.known(claims[0]), court.held[claims[0]], 0)
        market, demands, game = court.contracts.market, court.contracts.demands, court.contracts.game
        court.send(demands.demand_row(court.job_id, 5), "verifier")
        opened = GameId(bytes(32)) if opened_late else court.begin(opening, "accomplice")
        court.advance(court.params.windows.answer_seconds + 1)
        court.send(demands.void_for_row(court.job_id, 5), "verifier")
        rules = list[str]()

        def over() -> None:
            assert market.job(court.job_id).status.name == "DONE"
            assert not any(market.live(claim) for claim in claims), "void for good"
            rules.append(court.refused(games.call(game, replace(opening, nonce=1), opened), "accomplice"))
            if not opened_late:
                # The owner has gone home: it owes nobody an answer.
                court.advance(games.read(game, opened).deadline - court.now() + 1)
                court.send(games.call(game, moves.Resolve(games.read(game, opened).standing), opened), "accomplice")
                assert court.verdict(opened) == moves.Verdict.VOID
                assert game.defending(court.address("worker-0")) == 0

        court.settle_void("verifier", over)
        assert not any(court.convicted(claim) for claim in claims)
        return rules[0]

    return story


# -- contract and client that disagree ---------------------------------------------------------------------------------

GAS = 5_000_000
MUTANTS = 400
"""Bytes of the Arbiter's code that are tried before one mutant answers otherwise instead of not at all."""
SWAPS = {0x01: 0x03, 0x03: 0x01, 0x10: 0x11, 0x11: 0x10, 0x16: 0x17, 0x17: 0x16, 0x1B: 0x1C, 0x1C: 0x1B}
"""add sub, lt gt, and or, shl shr."""


def _off(honest: Program) -> Program:
    ops = []
    for op in honest.ops:
        if op.kind == Kind.MAP and op.dtype == F32 and op.instrs:
            last = len(op.views) + len(op.instrs) - 1
            op = replace(op, instrs=(*op.instrs, Instr(Code.IMM, imm=1), Instr(Code.IADD, last, last + 1)))
        ops.append(op)
    return replace(honest, ops=tuple(ops))


def mutated_client(court: Court) -> str:
    """A build whose maps of floats come out one ulp high computes a claim, and refuses to make it."""
    wrong, market = lying(court.run(0), at(range(1, toyjob.STEPS + 2), by_program(_off))), court.contracts.market
    with pytest.raises(DoctorError, match="self-check"):
        court.compute(wrong)
    assert market.claim(market.claim_id_of(court.job_id, 0, 0)).status.name == "JOINED"
    return "self-check"


def mutated_contract(court: Court) -> str:
    """A deployment whose Arbiter is off by one opcode gives other words for an honest step's elements: they are
    executed by the deployed bytecode before anything is staked."""
    held = HeldClaim.of(court.run(0))
    sound = bytes(court.devnet.w3.eth.get_code(court.contracts.addresses.arbiter))  # type: ignore[arg-type]
    assert list(_disagreements(court, held, sound)) == [], "the deployed Arbiter computes our bits"
    found = next((op for code in _mutants(sound) for op in _disagreements(court, held, code)), None)
    assert found is not None, "no mutant answered otherwise"
    return "self-check"


def _mutants(code: bytes) -> Iterator[bytes]:
    """The bytecode with one opcode swapped, constants of PUSH left alone."""
    places, at_byte = [], 0
    while at_byte < len(code):
        if code[at_byte] in SWAPS:
            places.append(at_byte)
        at_byte += 1 + (code[at_byte] - 0x5F if 0x60 <= code[at_byte] <= 0x7F else 0)
    for place in Random(4).sample(places, min(MUTANTS, len(places))):
        yield code[:place] + bytes([SWAPS[code[place]]]) + code[place + 1 :]


def _disagreements(court: Court, held: HeldClaim, code: bytes) -> Iterator[int]:
    """Ops of which `code` in the Arbiter's place computes another word than the client; reverts say nothing."""
    contract = Contract(court.devnet.w3, court.contracts.addresses.arbiter, "Arbiter")
    step, params = held.whole(1), court.params
    program = step.program
    graph = Known(step.graph, program.depth)
    statement = Statement(
        held.state_zero, step.graph[-1][0], program.ops_root, program.consts_root, TensorRoot(params.role.dataset_root),
        held.run.seed, params.role.dataset_rows, params.role.row_length, 0, 0, Step(1), program.root,
        program.header[:HEAD_BYTES],
    )  # fmt: skip
    for index, op in enumerate(program.ops):
        element = op.header.elements // 2
        chunked = op.kind == Kind.FOLD and op.k_terms > CHUNK
        expected = step.partials(index, element)[0] if chunked else int(step.output(index).words[element])
        opened = openings.build(step, graph, statement, index, element, 0)
        call = contract.call("execute", *abi((statement, index, program.descriptors[index], element, 0, opened)))
        try:
            request: Any = {"to": call.to, "data": call.data, "gas": GAS}
            answer = court.devnet.w3.eth.call(request, "latest", {request["to"]: {"code": HexStr("0x" + code.hex())}})
        except (ContractLogicError, Web3RPCError):
            continue
        if len(answer) == 32 and int.from_bytes(answer, "big") != expected:
            yield index
