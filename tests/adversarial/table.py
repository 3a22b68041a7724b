"""The table of cheats: a row for each form of each, by what it attacks.

A row says its name, which docs/threat-model.md has too, and its form; where it is told, a place in a transition or an
act; its story; and what must come of it: a game's verdict or a rule, who finds it, who loses what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Cid, Seconds
from tests.adversarial import claims, coalitions, inputs, models, players, withheld
from tests.adversarial.cheat import CONTRACT, Cheat, Losses, Place, Story, bond, merge_stake, nothing, slot_stake, toy
from tests.adversarial.claims import ENCODE, TRAINING, Convicts, Liar, tells
from tests.adversarial.claims import demo as lie_of_demo
from tests.adversarial.court import NOWHERE, Court
from tests.adversarial.lies import at, by_program, edits, scaled, word
from tests.adversarial.models import entry, statistic

# fmt: off
CARRYING = toy(carry=1, rounds=3, max_lead=4)
DAYS = toy(clock_seconds=players.LONG_CLOCK, step_seconds=Seconds(players.LONG_CLOCK // 4))
EMPTY = Court.forget
"""No job yet."""
INTEGERS, AGGREGATOR = toy(integers=True), toy(aggregator="aggregator")
BEHIND = toy(rounds=2, max_lead=2, max_fail=1)


def row(
    name: str, form: str, told: Place | str, story: Story, ends: str = "fraud", loses: Losses | None = slot_stake,
    **rest: Any,
) -> Cheat:
    """A slot's false claim that a game convicts, unless it says otherwise."""
    return Cheat(name, form, told, story, ends, loses=loses, **rest)


def told(
    name: str, form: str, demo: str, seed: int = 0, story: Callable[[Liar], Story] = Convicts, **rest: Any
) -> Cheat:
    """A lie of the demo, from the first seed of which something shows; it says itself where its game must end."""
    return row(name, form, Place(None), story(lie_of_demo(demo, seed)), demo=demo, **rest)


def refused(
    name: str, form: str, told: str, story: Story, rule: str, loses: Losses | None = None, **rest: Any
) -> Cheat:
    """What the contract refuses."""
    return Cheat(name, form, told, story, "refused", rule, CONTRACT, loses, **rest)


def rejected(name: str, form: str, t: int | None, story: Story, finder: str = "mallory", **rest: Any) -> Cheat:
    """Games about honest claims, which their challengers lose with their bonds."""
    return Cheat(name, form, Place(t), story, "rejected", finder=finder, **{"loses": bond, **rest})


def squatted(p: JobParams) -> Mapping[str, int]:
    """A fine for each of two seats."""
    return {"mallory": 2 * p.role.slot_price}


def silence(p: JobParams) -> Mapping[str, int]:
    """A payload that was demanded in vain costs the price of a slot, and earns nothing."""
    return {"worker-0": p.role.slot_price}


def unpaid(p: JobParams) -> Mapping[str, int]:
    """A claim that is left out earns nothing, and its stake comes back."""
    return {"worker-0": 0}


def unrewarded(gained: Mapping[str, int], p: JobParams) -> bool:
    """The sender has its gas back, which costs nothing here, and no prize."""
    return gained["verifier"] == 0


def honest(gained: Mapping[str, int], p: JobParams) -> bool:
    """Who was attacked is paid."""
    return gained["worker-0"] > 0


STEPS = (
    told("skipped step", "one step", "skipped-step", 0),
    told("skipped step", "another", "skipped-step", 3),
    row("fewer steps, interpolated roots", "3 steps of 5", Place(1, "m", 0), Convicts(claims.interpolated)),
    row("fabricated trace", "random states", Place(1, "m", 0), tells(claims.MADE_UP)),
    row("fabricated trace", "random roots", Place(1), claims.silent(claims.random_roots), "timeout"),
    row("spoofed Proof-of-Learning trace", "within a tolerance", Place(1, "p", 0), tells(claims.SPOOFED)),
    told("other data", "rows drawn otherwise", "other-data"),
    row("neighbour's slot", "slot 1 claimed for slot 0", Place(1, "rows"), Convicts(claims.neighbours_slot)),
    # The forward pass is the first that reads the parameters: a fold over all of them, its terms in one chunk.
    row("stale base", "genesis in round 1", Place(1, "predict"), Convicts(claims.stale_base, 1), begins=BEHIND),
    told("other learning rate, decay or betas", "rate x 1.5", "wrong-lr"),
    *(
        row("other learning rate, decay or betas", form, place, story)
        for form, place, story in (
            ("no decay", Place(1, "rates"), tells(at(TRAINING, by_program(claims.no_decay)))),
            # The moments are zero in step 1, and a beta multiplies them.
            ("beta 1 = 0.8", Place(2, "m"), tells(claims.other_beta("m", 0.9, 0.8))),
            ("beta 2 = 0.99", Place(2, "v"), tells(claims.other_beta("v", 0.95, 0.99))),
        )
    ),
    row("bf16 or TF32 compute", "bf16", Place(1, "gradient"), tells(claims.rounded(16))),
    row("bf16 or TF32 compute", "TF32", Place(1, "gradient"), tells(claims.rounded(13))),
    row("another reduction order", "backwards", Place(1, "gradient"),
        tells(at(TRAINING, by_program(claims.backwards)))),
    *(told("one-ulp flip", f"seed {seed}", "one-ulp", seed) for seed in (1, 200)),
    *(told("one-ulp flip of a product of integers", f"seed {seed}", "one-ulp", seed, begins=INTEGERS)
      for seed in (1, 200)),
    *(told("a code off by one", f"seed {seed}", "wrong-code", seed, begins=INTEGERS) for seed in (1, 200, 300)),
    told("gradients rounded to nearest", "every step", "nearest-instead-of-stochastic", begins=INTEGERS),
    *(row("NaN, infinity, -0, subnormals", name, Place(1, "v", 2), tells(claims.puts(word)))
      for name, word in claims.WORDS.items()),
    row("flip in a moment only", "m, bit 0", Place(3, "m", 5), tells(claims.flips("m", 0))),
    row("flip in a moment only", "v, bit 22", Place(3, "v", 5), tells(claims.flips("v", 22))),
    *(
        row("wrong alias", form, Place(2, k, rule="alias"), tells(claims.other_entry(k, shown)))
        for form, k, shown in (
            ("the first moment for the second", 5, "m"), ("the old parameters for the new", 0, 0),
            ("the anchor moved", 2, "p"),
        )
    ),
    *(row("right S_t with a garbage G", name, Place(2, name), claims.posts(claims.ones(name)))
      for name in ("features", "error", "clip")),
    *(row("garbage padding", form, Place(2, claims.behind_the_ops(which), rule="padding"),
          claims.posts(claims.litters(which))) for form, which in (("first", 0), ("last", -1))),
    row("wrong partials", "one chunk of three", Place(None), claims.partials(right=False)),
    row("wrong partials", "their combination", Place(None), claims.partials(right=True)),
    *(
        row("trace withheld", form, Place(3, "m", 5), claims.withholds(cid))
        for form, cid in (
            ("stored nowhere", lambda _: NOWHERE), ("another list", claims.damaged),
            ("no CID at all", lambda _: Cid("not a CID")),
        )
    ),
    *(
        row("lie in an unrolled recurrence", form, Place(2, op, element), tells(lie), begins=models.recurrent(kind))
        for form, kind, lie, op, element in (
            ("an LSTM's cell", "lstm", models.flipped(models.cell), models.cell, 17),
            ("an LSTM's hidden state", "lstm", models.flipped(models.hidden), models.hidden, 17),
            ("a product with an LSTM's hidden state", "lstm", models.flipped(models.reader), models.reader, 17),
            ("a token that an LSTM leaves out", "lstm", models.LEFT_OUT, models.hidden, None),
            ("a GRU's hidden state", "gru", models.flipped(models.hidden), models.hidden, 17),
            ("the state of a Mamba's scan", "mamba", models.flipped(models.scan), models.scan, 17),
        )
    ),
    *(
        row("lie in a running statistic", form, place, models.averaged(tells(lie)), begins=models.NORMED)
        for form, place, lie in (
            ("a channel's mean by one ulp", Place(2, statistic(0), 5), models.moved(0, models.ULP)),
            ("half of each variance", Place(2, statistic(1), 0), models.moved(1, scaled(0.5))),
            ("a batch counted twice", Place(2, statistic(2), 0), models.moved(2, lambda old, _: old + np.float32(1))),
            ("statistics that stand still", Place(2, entry(1)), edits(2, {entry(1): models.still})),
            ("others in the payload", Place(models.ENCODE, 1, rule="alias"), models.OTHERS),
        )
    ),
)
"""What a slot computes."""

STATES = (
    row("wrong carry-in", "first moment", Place(1, "m", 0), Convicts(claims.moments(first=0.25))),
    row("wrong carry-in", "second moment", Place(1, "v", 0), Convicts(claims.moments(second=0.25))),
    *(
        row("wrong carry-in, carry published", form, Place(1, op, 0), story, begins=CARRYING)
        for form, op, story in (
            ("of the round before", "m", Convicts(claims.carry_of_round(1), 2)),
            ("another slot's", "m", Convicts(claims.carry_of_round(2, slot=1), 2)),
            ("none", "m", Convicts(claims.moments(0, 0), 2)),
            ("invented", "v", Convicts(claims.leaping, 2)),
        )
    ),
    row("wrong carry-in, carry published", "of a payload that was excluded", Place(1, "m", 0),
        withheld.kept_after_exclusion, begins=CARRYING, loses=lambda p: {"worker-0": 2 * p.role.slot_stake}),
    told("wrong carry of a residual", "what a payload lacks, ten times", "tampered-residual", 0, models.kept(0),
         begins=models.sparse(2)),
    told("wrong carry of a residual", "none, said to be the last", "stale-carry", 0, models.kept(1),
         begins=models.sparse(3)),
)
"""What a slot starts from."""

PAYLOADS = (
    told("scaled, noised or sign-flipped payload", "x 10", "scaled-payload"),
    row("scaled, noised or sign-flipped payload", "with noise", Place(ENCODE, "difference"),
        tells(claims.payload(*claims.NOISE))),
    row("scaled, noised or sign-flipped payload", "sign flipped", Place(ENCODE, "difference"),
        tells(claims.payload(*claims.FLIPPED))),
    told("a value beside its place", "of a sparse payload", "wrong-index", begins=models.sparse(1)),
    row('poisoning "within tolerance"', "1e-5 of the norm", Place(ENCODE, "difference", 0),
        tells(edits(ENCODE, {"difference": claims.poisoned}))),
    row("another worker's payload", "slot 1's in slot 0", Place(ENCODE, "difference", 0),
        Convicts(claims.anothers_payload)),
    *(
        row("better loss in an evaluation", form, place, models.reported(Convicts(liar)), begins=models.EVALUATION)
        for form, place, liar in (
            ("half of it in the payload", Place(models.EVALUATED, entry(0), 0), claims.of(models.HALVED)),
            ("one ulp of the sum", Place(3, entry(models.SUM), 0),
             claims.of(edits(3, {entry(models.SUM): word(0, lambda old: old - 1)}))),
            ("one batch's, and all that follows", Place(2, models.loss_of_the_batch, 0),
             claims.of(edits(2, {models.loss_of_the_batch: scaled(0.9)}, follows=True))),
            ("on rows of its choice", Place(1, models.rows_of_the_batch), claims.of(models.OTHER_ROWS)),
            # Tokens are looked up before anything else of the parameters is read.
            ("of better parameters", Place(1, "tokens.embedding"), models.better_model),
        )
    ),
    row("better loss in an evaluation", "found out after the merge", Place(models.EVALUATED, entry(0), 0),
        models.found_out_later, begins=models.EVALUATION),
    *(Cheat("payload withheld", form, "reveal", story, "excluded", "slot 0", loses=loses,
            gains=lambda gained, _: gained["verifier"] == 0)
      for form, story, loses in (
          ("one leaf hidden", withheld.one_leaf, silence),
          ("hidden by colluding receipts", withheld.hidden_by_receipts, silence),
          ("stored nowhere", withheld.unfetchable(lambda _: NOWHERE), unpaid),
          ("not a payload", withheld.unfetchable(lambda court: court.store.put(b"not a payload")), unpaid),
          ("of another shape", withheld.unfetchable(withheld.misshapen), unpaid),
          ("cut in half", withheld.unfetchable(withheld.truncated), unpaid),
      )),
    row("carry withheld", "demanded, and nobody shows it", "reveal", withheld.unanswered, "timeout", rule="slot 0",
        begins=CARRYING, gains=lambda gained, p: gained["verifier"] == p.role.slot_stake * 30 // 100),
    row("wrong claim behind a withheld carry", "found from the next claim", Place(1, "m", 0), withheld.wrong_source,
        begins=toy(carry=1, rounds=2, max_lead=4)),
)
"""What a slot puts out."""

MERGES = (
    told("lying aggregator", "one ulp", "lying-aggregator", 1, claims.merges, loses=merge_stake, begins=AGGREGATOR,
         gains=lambda gained, p: sum(gained[f"worker-{i}"] for i in range(3)) == p.round_pay),
    # How many payloads there are is the first thing that a merge computes; who was omitted is paid like the others.
    *(row("aggregator that omits an accepted payload", f"slot {slot}", Place(1, "count", 0),
          claims.merges(claims.omits(slot)), loses=merge_stake, begins=AGGREGATOR,
          gains=lambda gained, p, slot=slot: gained[f"worker-{slot}"] >= p.role.slot_price) for slot in (0, 2)),
    row("better loss in an evaluation", "in the merge", Place(1, entry(1), 0),
        claims.merges(claims.of(edits(1, {entry(1): scaled([0.9, 1, 1])}))), loses=merge_stake,
        begins=models.EVALUATION),
    row("lie in a running statistic", "the base's in the merge", Place(1, entry(1)),
        models.averaged(claims.merges(claims.of(edits(1, {entry(1): models.still}))), slots=(0, 1, 2)),
        loses=merge_stake, begins=models.NORMED),
    told("aggregator convicted late", "two rounds later", "lying-aggregator", 2,
         lambda lie: coalitions.voids(coalitions.found_late, lie), begins=coalitions.BACKING, loses=coalitions.voided),
    *(
        row("self-convicted merger", form, told, coalitions.voids(convict), ends, finder="accomplice",
            begins=coalitions.BACKING, loses=coalitions.voided, gains=coalitions.gain_nothing, rule=rule)
        for form, told, convict, ends, rule in (
            ("two signatures", "merge", coalitions.signs_again, "fraud", "equivocation"),
            ("silence in an accomplice's game", Place(1), coalitions.keeps_silent, "timeout", ""),
        )
    ),
    row("self-convicted merger", "to save a liar", Place(3), coalitions.saves_a_liar, "timeout",
        begins=coalitions.BACKING, loses=lambda p: {**slot_stake(p), **coalitions.voided(p)},
        gains=lambda gained, _: gained["verifier"] > 0),
    refused("self-convicted merger", "a round that no stake covers", "start of a round", coalitions.unbacked,
            "NotBacked", nothing, begins=coalitions.BACKING,
            gains=lambda gained, p: gained["aggregator"] == 3 * p.merge.price),
    row("lie in a job of one slot", "in the slot", Place(1, "m", 0), coalitions.alone, begins=toy(**coalitions.ALONE)),
    row("lie in a job of one slot", "in the merge", Place(1, 0), coalitions.again(claims.merges(claims.doubled)),
        begins=toy(**coalitions.ALONE, aggregator="mallory"),
        loses=lambda p: {"mallory": p.merge.stake + p.round_pay}),
)
"""What is merged."""

GAMES = (
    rejected("false challenge", "an invented word", 1, players.invented, demo="false-challenge"),
    rejected("false challenge", "silent", 3, players.challenged(3)),
    rejected("false challenge", "without t", None, players.challenged(0)),
    rejected("false challenge", "of an evaluation", models.EVALUATED, players.challenged(models.EVALUATED, slot=1),
             begins=models.EVALUATION),
    rejected("false challenge", "of a carry", 1, players.challenged(1, r=2, slot=1), begins=CARRYING),
    rejected("false challenge", "in a job of one slot", 1, players.challenged(1, r=1), begins=toy(**coalitions.ALONE),
             gains=lambda gained, p: gained["worker-0"] >= 2 * (p.role.slot_price + p.merge.price)),
    rejected("a hundred games at once", "on one honest claim", 1, players.hundred, finder="sybil-0",
             begins=toy(clock_seconds=600, step_seconds=10),
             loses=lambda p: {f"sybil-{i}": 25 * p.prices.bond for i in range(4)}, gains=honest),
    rejected("sixteen games at once", "on all claims of one worker", 1, players.sixteen, begins=EMPTY, gains=honest,
             loses=lambda p: dict.fromkeys(("mallory", "accomplice"), players.SIXTEEN // 2 * p.prices.bond)),
    refused("games with oneself", "steps of days", "a job's terms", inputs.steps_of_days, "clocks", begins=EMPTY),
    rejected("games with oneself", "two dozen at once", None, players.with_oneself, finder="accomplice",
             begins=DAYS,
             loses=lambda p: {"accomplice": players.DOZENS * p.prices.bond}),
    refused("clocks that a chain cannot keep", "twelve seconds a block", "a job's terms", inputs.short_clocks, "clocks",
            begins=inputs.ethereum),
    rejected("the shortest clock", "answers a block later", 1, inputs.shortest_clock(Seconds(12)),
             begins=inputs.ethereum),
    rejected("the shortest clock", "answers as late as promised", 1, inputs.shortest_clock(inputs.ETHEREUM.inclusion),
             begins=inputs.ethereum),
    row("stalling to the last second", "with seconds to spare", Place(3, "m", 5), players.stalls(40)),
    row("stalling to the last second", "until too late", Place(3), players.stalls(-2), "timeout", demo="silent"),
    row("stalling to the last second", "no second left", Place(3), players.stalls(0), "timeout"),
    row("withdrawal before the window ends", "all that is free", Place(3, "m", 5), players.withdraws),
    row("challenger that loses on purpose", "accomplice first", Place(3, "m", 5), players.thrown,
        loses=lambda p: {**slot_stake(p), "accomplice": p.prices.bond}),
    row("front-run winning move", "in the same game", Place(3, "m", 5), players.front_run,
        gains=lambda gained, _: gained["mallory"] == 0 < gained["verifier"]),
    row("front-run winning move", "in a game of its own", Place(3, "m", 5), players.copied, finder="mallory"),
    *(row("self-challenge to recover the stake", form, Place(3, "m", 5), players.convicts_itself(races),
          finder="accomplice",
          gains=lambda gained, p: gained["worker-0"] + gained["accomplice"] <= -p.role.slot_stake // 2)
      for form, races in (("alone", False), ("against the verifier", True))),
    row("malformed and oversized proofs", "every move of a game", Place(3, "m", 5), inputs.spoiled_moves),
    refused("malformed proofs, second preimages", "an inner node as a leaf", "opening of a game",
            inputs.second_preimage, "ProofInvalid", nothing),
    refused("malformed proofs, second preimages", "at reveal", "reveal", inputs.spoiled_reveals, "ProofInvalid"),
    row("equivocation", "two signatures", "signature", coalitions.two_signatures, rule="equivocation", gains=unrewarded,
        demo="two-signatures"),
    row("equivocation", "shown to coordinators", "signature", coalitions.told_apart, rule="equivocation",
        gains=unrewarded, loses=lambda p: {**slot_stake(p), "mallory": p.prices.bond}),
)
"""What is said in a game, or shown in its stead."""

RULES = (
    refused("endless name of content", "in a reveal", "reveal", inputs.endless_reveal, "CidTooLong"),
    refused("endless name of content", "in a merge", "merge", inputs.endless_merge, "CidTooLong", nothing),
    refused("receipt of another slot", "of the same owner", "attest", inputs.receipt_of_another_slot,
            "SignatureInvalid", nothing, begins=EMPTY),
    *(refused("seed capture, slots ground for a better seed", form, told, story, "WrongPhase", loses, begins=BEHIND)
      for form, told, story, loses in (
          ("whoever seals, whenever", "seal", inputs.any_sealer, None),
          ("outwaited", "seal", inputs.outwaited, nothing),
          ("left after the roster closed", "leave", inputs.ground, None),
      )),
    *(Cheat("squatter", form, "leave", inputs.squats(min_slots), "fined", "WrongPhase", CONTRACT, squatted,
            begins=EMPTY,
            gains=lambda gained, p, goes_on=min_slots == 1:
            gained["worker-0"] == p.role.slot_price + goes_on * p.merge.price)
      for form, min_slots in (("silent in a round that goes on", 1), ("silent in a round that fails", 2))),
    refused("unstakeable merge", "sent to the contract", "a job's terms", inputs.unstakeable, "stakes", nothing,
            begins=EMPTY),
    refused("unstakeable merge", "quoted by the SDK", "a job's terms", inputs.unstakeable_by_the_sdk, "stakes",
            begins=EMPTY),
    *(Cheat("undefendable Program", form, f"step, {op}", inputs.undefendable(trap, op), "void", rule, loses=None,
            begins=EMPTY) for form, op, trap, rule in (
          ("an operand that is not earlier", "squares", inputs.later_operand, "OP"),
          ("33 instructions", "squares", inputs.too_many_instructions, "OP"),
          ("a view out of range", "squares", inputs.out_of_range, "OPERAND"),
          ("elements miscounted", "clip", inputs.miscounted, "CUMULATIVE"),
      )),
    *(Cheat("paid seats", form, "join", inputs.paid_seats(commits), "void", "deposit", "accomplice", None,
            begins=EMPTY) for form, commits in (("joined and nothing more", False), ("committed to nothing", True))),
    *(Cheat("claims after the end of a void job", form, "game", inputs.void_convicts_nobody(late), "void",
            "WindowClosed", loses=None)
      for form, late in (("a game that was open", False), ("a game opened too late", True))),
    Cheat("missing dataset row", "nobody has it", "dataset", withheld.nobody_has_it, "void", "row", loses=None),
    *(Cheat("row demanded in spite", form, "demand", story, "answered", "bond lost", "accomplice", None, begins=begins)
      for form, story, begins in (
          ("somebody has it", withheld.somebody_has_it, toy()),
          ("longer than a transaction", withheld.long_row(), EMPTY),
          ("its answer copied", withheld.long_row(withheld.copied), EMPTY),
          ("single leaves posted ahead", withheld.long_row(withheld.one_leaf_ahead), EMPTY),
      )),
    *(Cheat(name, form, "audit", story, ends, ends, "accomplice", None, begins=coalitions.WITNESSED)
      for name, form, story, ends in (
          ("lazy witness", "a state of its invention", coalitions.lazy, "fined"),
          ("lazy witness", "the list of roots alone", coalitions.listed, "fined"),
          ("copying witness", "another's commitment", coalitions.copying, "fined"),
          ("silent cartel", "a worker and its witness", coalitions.cartel, "slashed"),
      )),
    refused("contract and client that disagree", "a mutated client", "build", inputs.mutated_client, "self-check"),
    refused("contract and client that disagree", "a mutated contract", "deployment", inputs.mutated_contract,
            "self-check"),
)
"""What a rule refuses, fines or voids."""

CLAIMS, INPUTS = (*STEPS, *STATES, *PAYLOADS, *MERGES), (*GAMES, *RULES)
TABLE = (*CLAIMS, *INPUTS)
