"""The coalition of all dishonest accounts: random acts, and acts directed by a mood.

Random calls come from a Wanderer for the coalition's accounts; a mood adds directed calls, because chance alone seldom
makes a worker leave its slot in the last second.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.market.turns import COURTESY_SECONDS
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus, JobStatus, Phase
from lockstep.protocol.market import availability, court, ids, views
from lockstep.protocol.market.calls import Block, MarketCall
from lockstep.protocol.market.state import State
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, GameId, JobId, StateRoot
from tests.search.carrying import CarryClaim, claim_of
from tests.search.known import TAMPERED, NamedWanderer
from tests.search.scene import HEIRS, REQUESTER, Scene, sign
from tests.support.constant import CARRY, ConstantClaim, Lie

MANY = 16
"""Games opened at once."""
MOST = 40
"""Most games of a history, about: each costs an honest party time."""
HABITS = ("leaving", "double signing", "demands", "unbonding", "early ends", "one long game")
"""Acts of a coalition besides its mood; one may have any of them."""
CARRY_HABITS = (
    "withholding", "showing", "early lies", "wrong starts", "from zero", "false carry demands", "own carry demands",
    "absence",
)  # fmt: skip
"""Further habits if slots carry."""
TRIES_OF_A_MOVE = 2
"""Times that a refused move is sent."""


class Coalition:
    """The dishonest accounts of a scene."""

    def __init__(self, scene: Scene, known: NamedWanderer, dice: random.Random) -> None:
        self.scene = scene
        self.known = known
        self.dice = dice
        self.mood = scene.setting.mood
        self.members = scene.setting.coalition
        self.thieves = random.Random(f"thieves {scene.setting.seed}")
        """A separate generator, so that other random acts do not depend on it."""
        self.habits = frozenset(habit for habit in HABITS if dice.random() < 0.3)
        self.carriers = random.Random(f"carriers {scene.setting.seed}")
        """A separate generator for acts with carries."""
        if scene.setting.params.role.carries:
            self.habits |= {habit for habit in CARRY_HABITS if self.carriers.random() < 0.4}
            if self.mood == "carries" and self.carriers.random() < 0.5:
                self.habits = self.habits - {"absence", "from zero"} | {"withholding", "early lies"}
            if self.mood == "carries" and random.Random(f"never zero {scene.setting.seed}").random() < 0.1:
                self.habits |= {"never zero"}
            if self.mood == "carries" and random.Random(f"left open {scene.setting.seed}").random() < 0.1:
                self.habits |= {"left open"}
        self.misers = random.Random(f"misers {scene.setting.seed}")
        """A separate generator for the backing of merges."""
        self.backs_little = self.misers.random() < 0.2
        self.slots = range(scene.setting.params.role.slots)
        self.seats = sorted(self.carriers.sample(self.slots, self.carriers.choice(self.slots) + 1))
        """Slots that it takes again and again, if its mood is carries."""
        self.tried: Counter[tuple[GameId, moves.GamePhase, Digest]] = Counter()
        """Times that a move was sent, by (game, phase, node)."""

    def calls(self, s: State, b: Block) -> list[MarketCall]:
        """Returns the calls for the next block."""
        found = [call for call in self._bent(s, b) if call.sender in self.members]
        if self.dice.random() < (0.5 if self.mood == "anything" else 0.15):
            found += [call for call in self.known.calls(s, b) if call.sender in self.members]
        if self.dice.random() < (1.0 if self.mood == "carries" else 0.7):
            found += list(self._work(s, b))
        found += [call for call in self._usual(s, b) if call.sender in self.members]
        if self.scene.setting.params.role.carries:
            found += self._carries(s, b)
        # Tokens have value, so none are minted. One job per history.
        return [call for call in found if call.function not in ("mint", "create", "createWithPermit")]

    # -- keys of others

    def stolen(self, s: State) -> list[MarketCall]:
        """Returns calls of the vault with the stolen key of an account that has an owner, and with own keys.

        Acts on the account's work are not tried: a thief could sign its claims twice.
        """
        found = []
        for account in sorted(self.scene.setting.owned):
            if account in self._unbonded(s):
                if self.thieves.random() < 0.3:
                    found.append(MarketCall("StakeVault", "withdrawUnbonded", account, ()))
                continue
            if self.thieves.random() >= 0.1:
                continue
            d, thief, amount = self.thieves, self.thieves.choice(self.members or (account,)), s.free[account]
            verb, sender, arguments = d.choice((
                ("requestUnbond", account, (amount // d.choice((1, 2, 1_000)),)), ("withdrawUnbonded", account, ()),
                ("withdraw", account, ()), ("setOwner", account, (thief,)), ("setDelegate", account, (thief,)),
                ("proposeOwner", account, (account, thief)), ("acceptOwner", thief, (account,)),
                ("acceptOwner", account, (account,)), ("requestUnbondFor", d.choice((thief, account)), (account, 1)),
                ("withdrawUnbondedFor", thief, (account,)), ("withdrawFor", thief, (account,)),
                ("setDelegateFor", d.choice((thief, account)), (account, thief)),
                ("proposeOwner", thief, (account, thief)),
            ))  # fmt: skip
            found.append(MarketCall("StakeVault", verb, sender, arguments))
        return found

    def owners(self, s: State) -> list[MarketCall]:
        """Returns calls of owners: they unbond stake, withdraw it and credits, name delegates and hand accounts on; the
        coalition also withdraws its own unbonded stake.
        """
        due = self._unbonded(s)
        found = [MarketCall("StakeVault", "withdrawUnbonded", a, ()) for a in self.members if a in due]
        for account in sorted(self.scene.setting.owned):
            if self.thieves.random() >= (0.5 if account in due else 0.05):
                continue
            d, owner = self.thieves, s.owner_of[account]
            if account in due:
                found.append(MarketCall("StakeVault", "withdrawUnbondedFor", owner, (account,)))
                continue
            # An owner leaves its account the stake that a claim and a merge lock.
            amount = s.free[account] // 1_000
            verb, sender, arguments = d.choice((
                ("requestUnbondFor", owner, (account, amount)), ("withdrawUnbondedFor", owner, (account,)),
                ("withdrawFor", owner, (account,)), ("proposeOwner", owner, (account, HEIRS[account])),
                ("acceptOwner", HEIRS[account], (account,)), ("setDelegateFor", owner, (account, HEIRS[account])),
            ))  # fmt: skip
            found.append(MarketCall("StakeVault", verb, sender, arguments))
        return found

    def _unbonded(self, s: State) -> frozenset[Address]:
        """Returns the accounts whose stake may leave the vault."""
        now = self.scene.block.time
        return frozenset(a for a, unbond in s.unbonding.items() if unbond.amount and unbond.available_at <= now)

    # -- work, so that there is something to hurt with

    def _work(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields slots' and merges' acts of the coalition, by its mood."""
        job, p, d = self.scene.job, self.scene.setting.params, self.dice
        j = s.jobs[job]
        anybody = d.choice(self.members)
        if j.status == JobStatus.ACTIVE and j.started < p.schedule.rounds and d.random() < 0.3:
            yield MarketCall("JobMarket", "startRound", anybody, (job, j.started))
        for r in range(max(0, j.started - 3), j.started):
            ro = s.rounds[job, r]
            named = [ids.claim_id(job, r, ro.attempt, slot) for slot in range(p.role.slots)]
            phase = views.phase(s, b, job, r)
            if phase == Phase.JOINING and self.mood not in ("squatting", "carries") and d.random() < 0.6:
                free = [slot for slot, id_ in enumerate(named) if id_ not in s.claims]
                if free:
                    yield MarketCall("JobMarket", "join", anybody, (job, r, d.choice(free)))
            elif phase == Phase.SEALING:
                yield MarketCall("JobMarket", "seal", anybody, (job, r))
            elif phase in (Phase.TRAINING, Phase.REVEALING):
                for slot, id_ in enumerate(named):
                    c = s.claims[id_]
                    silent = {"silence": 0.7, "voiding": 0.4}.get(self.mood, 0.0)
                    if c.worker not in self.members or d.random() < silent:
                        continue
                    if phase == Phase.TRAINING and c.status == ClaimStatus.JOINED:
                        self.known.held.setdefault(id_, self._made(s, r, slot))
                        bound = ids.commitment(id_, c.worker, self.known._opened(id_, p, r))
                        yield MarketCall("JobMarket", "commit", c.worker, (job, r, slot, bound))
                    elif phase == Phase.REVEALING and c.status == ClaimStatus.COMMITTED and id_ in self.known.held:
                        yield MarketCall("JobMarket", "reveal", c.worker, (job, r, slot, self.known._opened(id_, p, r)))
            elif phase == Phase.MERGING and (merger := views.merger_of(s, b, job, r)) in self.members:
                lie = d.choice((Lie.NONE, Lie.NONE, Lie.NONE, Lie.VALUE, Lie.PADDING))
                made = ConstantClaim.of_merge(ro.merge_in, Lie.NONE if self.mood == "own merge" else lie)
                self.known.held[ids.claim_id(job, r, j.attempt, MERGE_SLOT)] = made
                rounds = self.misers.choice((0, 0, 1)) if self.backs_little else p.schedule.max_lead - 1
                yield MarketCall(
                    "JobMarket", "merge", merger, (job, r, made.body.out, made.body.out2, "checkpoint", rounds)
                )
            elif phase == Phase.LEAD and (merger := views.merger_of(s, b, job, r)) in self.members:
                # It takes over merges that are not backed, false or not.
                again = ids.claim_id(job, r, views.merge_attempt(j, phase), MERGE_SLOT)
                self.known.held[again] = self.known.held[ro.merge_claim]
                outputs, rounds = (ro.next_shared, ro.next_outer), j.started - r
                yield MarketCall("JobMarket", "merge", merger, (job, r, *outputs, "checkpoint", rounds))

    def _made(self, s: State, r: int, slot: int) -> ConstantClaim:
        p, d = self.scene.setting.params, self.dice
        lies = {"lies": 0.8, "carries": 0.1}.get(self.mood, 0.2)
        lie = d.choice(list(Lie)[1:]) if d.random() < lies else Lie.NONE
        if p.role.carries:
            return self._carrying(s, r, slot, lie)
        return ConstantClaim.of_slot(s.rounds[self.scene.job, r].base, p.role.zero_carry, r, lie)

    # -- carries

    def awaits(self, s: State, b: Block) -> bool:
        """Returns True if it needs the next block: with the mood carries it commits and reveals in time."""
        due = {(Phase.TRAINING, ClaimStatus.JOINED), (Phase.REVEALING, ClaimStatus.COMMITTED)}
        return self.mood == "carries" and any(
            c.worker in self.members and (views.phase(s, b, c.job, c.round), c.status) in due
            for c in s.claims.values()
            if c.status in (ClaimStatus.JOINED, ClaimStatus.COMMITTED)
        )

    def _is_absent(self, r: int) -> bool:
        """Returns True for rounds that it skips, so as to start from zero again."""
        return "absence" in self.habits and random.Random(f"absent {self.scene.setting.seed} {r}").random() < 0.3

    def _carrying(self, s: State, r: int, slot: int, lie: Lie) -> CarryClaim:
        """Returns a claim that starts from the valid carry, or states so, or from another word; its carry is stored, or
        not.
        """
        job, d, p = self.scene.job, self.carriers, self.scene.setting.params
        source, started = self.known.carry_behind(s, job, r, slot), None
        if "from zero" in self.habits and d.random() < 0.2:
            # Without a valid carry, naming one is refused at the reveal.
            source = self.known.behind(s, job, r, slot) if source is None and r else None
        if "never zero" in self.habits and r and r % p.role.carry_period == 0:
            # As if the period had not begun again.
            source = self.known.behind(s, job, r, slot)
        if "early lies" in self.habits:
            # Later claims in the period are right, but start from a wrong carry.
            first = r % p.role.carry_period == 0
            lie = d.choice((lie, Lie.VALUE, Lie.ENCODED)) if first else Lie.NONE
            started = CARRY + TAMPERED if first and d.random() < 0.6 else None
        if "wrong starts" in self.habits and d.random() < 0.4:
            right = CARRY if source is None else source[1].out
            others = {made.out for made in self.known.held.values() if isinstance(made, CarryClaim)} | {CARRY}
            started = d.choice([*sorted(others - {right}), right + TAMPERED])
        stored = "withholding" not in self.habits or d.random() < 0.25
        ro = s.rounds[job, r]
        return claim_of(ro.base, r * p.role.inner_steps, slot, source, lie=lie, started=started, stored=stored)

    def _carries(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields acts on carries: takes the slots again, demands carries, shows its own or not."""
        job, d = self.scene.job, self.carriers
        for r in range(max(0, s.jobs[job].started - 2), s.jobs[job].started):
            named = [ids.claim_id(job, r, s.rounds[job, r].attempt, slot) for slot in self.slots]
            phase = views.phase(s, b, job, r)
            if phase == Phase.JOINING and self.mood == "carries" and not self._is_absent(r):
                for slot in self.seats:
                    if named[slot] not in s.claims:
                        yield MarketCall("JobMarket", "join", self.members[slot % len(self.members)], (job, r, slot))
            elif phase == Phase.ATTESTING:
                yield from self._demands_carries(s, r, named)
        if self.mood == "carries" and d.random() < 0.3:
            # As early as the rules allow.
            yield MarketCall("JobMarket", "finalize", d.choice(self.members), (job, s.jobs[job].settled))
        yield from self._shows_carries(s, b)

    def _demands_carries(self, s: State, r: int, named: Sequence[ClaimId]) -> Iterator[MarketCall]:
        """Yields demands for carries, once or many times at once."""
        job, d = self.scene.job, self.carriers
        for slot, id_ in enumerate(named):
            own = s.claims[id_].worker in self.members
            if "left open" in self.habits and own and s.claims[id_].carries and not s.asked[id_].count:
                # The carry is not shown, and its demander does not end the demand.
                yield MarketCall("Availability", "carryUnavailable", self.members[-1], (job, r, slot, 0))
            habit = "own carry demands" if own else "false carry demands"
            if not s.claims[id_].carries or habit not in self.habits or d.random() >= 0.15:
                continue
            for k in range(d.choice((1, 2, MANY))):
                asker = self.members[k % len(self.members)]
                yield MarketCall("Availability", "carryUnavailable", asker, (job, r, slot, d.getrandbits(256)))

    def _shows_carries(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields answers to demands for its own carries, in time, late, or not at all; and settlements."""
        if "left open" in self.habits:
            return
        d, clock = self.carriers, self.scene.setting.params.windows.clock_seconds
        for id_, demand in s.demands.items():
            if demand.status != Status.OPEN or demand.row != availability.CARRY or demand.beacon == 0:
                continue
            claim = ClaimId(demand.subject)
            worker, late = s.claims[claim].worker, b.time > demand.deadline - clock
            shows = "showing" in self.habits and b.number >= demand.beacon and d.random() < (0.5 if late else 0.2)
            if worker in self.members and claim in self.known.held and shows:
                following = replace(b, number=b.number + 1)
                answer = (id_, *self.known._shown(s, following, id_, claim))
                yield MarketCall("Availability", "answer", worker, answer)
            if b.time > demand.deadline and d.random() < 0.1:
                yield MarketCall("Availability", "settle", d.choice(self.members), (id_,))

    # -- habits

    def _usual(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields the acts of its habits."""
        job, d = self.scene.job, self.dice
        anybody = d.choice(self.members)
        if "leaving" in self.habits:
            yield from self._leaves(s, b)
        if "double signing" in self.habits and d.random() < 0.1:
            own = [id_ for id_, c in s.claims.items() if c.worker in self.members and c.claimed_at]
            if own:
                claim = d.choice(own)
                yield self._signed_twice(s, claim, job, s.claims[claim].round)
        if "demands" in self.habits:
            yield from self._demands(s, b)
        if "unbonding" in self.habits and d.random() < 0.1:
            free = s.free[anybody]
            yield MarketCall("StakeVault", "requestUnbond", anybody, (d.choice((free, free // 2, 1)),))
        if "early ends" in self.habits and d.random() < 0.15:
            j = s.jobs[job]
            ending = d.choice(("finish", "release", "finalize", "cancel"))
            r = d.randrange(j.started) if j.started else 0
            sender = REQUESTER if ending == "cancel" else anybody
            yield MarketCall("JobMarket", ending, sender, (job,) if ending in ("finish", "cancel") else (job, r))

    def _leaves(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields calls that give slots back while that is free, or slightly too late."""
        job, p = self.scene.job, self.scene.setting.params
        for r in range(max(0, s.jobs[job].started - 2), s.jobs[job].started):
            if views.phase(s, b, job, r) != Phase.JOINING:
                continue
            for slot in range(p.role.slots):
                c = s.claims[ids.claim_id(job, r, s.rounds[job, r].attempt, slot)]
                if c.worker in self.members and self.dice.random() < 0.25:
                    yield MarketCall("JobMarket", "leave", c.worker, (job, r, slot))

    def _demands(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields demands for payloads and rows, answers to demands on its own (or not), and settlements."""
        job, p, d = self.scene.job, self.scene.setting.params, self.dice
        anybody = d.choice(self.members)
        for r in range(max(0, s.jobs[job].started - 2), s.jobs[job].started):
            if views.phase(s, b, job, r) == Phase.ATTESTING and d.random() < 0.4:
                slot = d.randrange(p.role.slots)
                yield MarketCall(
                    "Availability", "unavailable", anybody, (job, r, slot, d.choice((0, 1, 2, d.getrandbits(9))))
                )
        if s.jobs[job].started and d.random() < 0.02:
            yield MarketCall("Availability", "demandRow", anybody, (job, 0))
        for id_, demand in s.demands.items():
            if demand.status != Status.OPEN or demand.beacon == 0:
                continue
            claim = ClaimId(demand.subject)
            if s.claims[claim].worker in self.members and claim in self.known.held and d.random() < 0.2:
                answer = (id_, *self.known._shown(s, b, id_, claim))
                yield MarketCall("Availability", "answer", s.claims[claim].worker, answer)
            if b.time + 1 >= demand.deadline or d.random() < 0.05:
                yield MarketCall("Availability", "settle", anybody, (id_,))

    # -- moods

    def _bent(self, s: State, b: Block) -> Iterator[MarketCall]:
        match self.mood:
            case "false challenges":
                yield from self._challenges(s, b, own=False)
            case "own games":
                yield from self._challenges(s, b, own=True)
                yield from self._stalls(s, b)
            case "squatting":
                yield from self._squats(s, b)
            case "own merge":
                yield from self._merges_fall(s, b)
            case "voiding":
                yield from self._voids(s, b)
        if "one long game" in self.habits and self.mood != "false challenges":
            yield from self._challenges(s, b, own=False)
        liars = ("lies", "carries", "own merge", "anything", "false challenges")
        if self.mood in liars or "one long game" in self.habits:
            yield from self._answers_games(s, b)

    def _challenges(self, s: State, b: Block, *, own: bool) -> Iterator[MarketCall]:
        """Yields many openings of games at once, on the trace: the defender moves first."""
        if self.dice.random() < 0.6 or len(s.games) > MOST:
            return
        # Many games lengthen all of their clocks; a single one is hardest to answer in time.
        sparing = "one long game" in self.habits
        if sparing and any(g.phase != moves.GamePhase.CLOSED for g in s.games.values()):
            return
        live = [
            id_
            for id_, c in s.claims.items()
            if id_ in self.known.held and (c.worker in self.members) == own and views.window_open(s, b, id_)
        ]
        if not live:
            return
        count = 1 if sparing else self.dice.choice((1, 5, MANY))
        for k in range(count):
            claim = live[k % len(live)] if not own else self.dice.choice(live)
            sender, nonce = self.members[k % len(self.members)], self.dice.randrange(40)
            opening = moves.Open(
                claim, self.known.held[claim].body, nonce, 0, StateRoot(merkle.EMPTY[0]), (), moves.NO_TRANSITION
            )
            yield self.known._moved(opening, GameId(claim), sender)

    def _stalls(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields own moves shortly before a clock runs out."""
        for id_, g in s.games.items():
            late = g.deadline - 3 * self.scene.setting.chain.inclusion
            if g.phase == moves.GamePhase.CLOSED or not late <= b.time <= g.deadline:
                continue
            mover = g.defender if g.defender_moves else g.challenger
            if mover in self.members and (move := self.known._move(s, b, id_)) is not None:
                yield self.known._moved(move, id_, mover)

    def _answers_games(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields moves of liars by their claims; without a difference to point at they point anywhere, as deep as the
        game goes.
        """
        skipped = 0.0 if "one long game" in self.habits else 0.4
        for id_, g in s.games.items():
            if g.phase == moves.GamePhase.CLOSED or g.claim not in self.known.held or self.dice.random() < skipped:
                continue
            mover = g.defender if g.defender_moves else g.challenger
            if mover not in self.members or b.time > g.deadline or not views.live(s, g.claim):
                continue
            if self.tried[id_, g.phase, g.node] >= TRIES_OF_A_MOVE:
                continue
            self.tried[id_, g.phase, g.node] += 1
            move = None
            if not g.defender_moves and not self.known.held[g.claim].wrong_from:
                move = self._anywhere(id_, g)
            move = move or self.known._move(s, b, id_)
            if move is not None:
                yield self.known._moved(move, id_, mover)

    def _anywhere(self, id_: GameId, g: game.Game) -> moves.Move | None:
        """Returns a challenger's pick where nothing differs: mostly the first node, below which a game is longest."""
        seen = honest.GameLog(self.known.logs.get(id_, []))
        if g.phase in (moves.GamePhase.TRACE_PICK, moves.GamePhase.GRAPH_PICK, moves.GamePhase.TENSOR_PICK):
            i = 0 if self.dice.random() < 0.85 else self.dice.randrange(len(seen.children))
            return moves.Pick(g.standing, i, seen.children[i], tuple(merkle.proof(merkle.levels(seen.children), i)))
        return None

    def _squats(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Takes every slot, and gives it back as late as that is free."""
        job, p = self.scene.job, self.scene.setting.params
        for r in range(max(0, s.jobs[job].started - 2), s.jobs[job].started):
            if views.phase(s, b, job, r) != Phase.JOINING:
                continue
            ro = s.rounds[job, r]
            for slot in range(p.role.slots):
                c = s.claims[ids.claim_id(job, r, ro.attempt, slot)]
                if c.status == ClaimStatus.NONE and b.time < ro.join_ends - 3 * self.scene.setting.chain.inclusion:
                    # The last slot would close the roster.
                    if ro.joined + 1 < p.role.slots and self.dice.random() < 0.4:
                        yield MarketCall("JobMarket", "join", self.dice.choice(self.members), (job, r, slot))
                elif c.worker in self.members:
                    late = b.time >= ro.join_ends - 3 * self.scene.setting.chain.inclusion
                    if late or self.dice.random() < 0.02:
                        yield MarketCall("JobMarket", "leave", c.worker, (job, r, slot))

    def _merges_fall(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Convicts its own merge by two signatures, once others have worked on it."""
        job, p = self.scene.job, self.scene.setting.params
        for r in range(s.jobs[job].settled, s.jobs[job].started):
            ro = s.rounds[job, r]
            c = s.claims[ro.merge_claim]
            if ro.phase != Phase.LEAD or c.worker not in self.members:
                continue
            later = s.rounds[job, r + 1]
            if r + 1 < s.jobs[job].started and later.committed and self.dice.random() < 0.15:
                yield self._signed_twice(s, ro.merge_claim, job, r)
            backed = p.schedule.max_lead - 1
            if ro.backed < backed and not self.backs_little and self.dice.random() < 0.3:
                yield MarketCall("JobMarket", "back", c.worker, (job, r, backed - ro.backed))

    def _signed_twice(self, s: State, claim: ClaimId, job: JobId, r: int) -> MarketCall:
        c, ro = s.claims[claim], s.rounds[job, r]
        work = court.Work(job, r, c.attempt, c.slot, ro.seed, ro.base)
        signed = []
        for root in (b"one", b"other"):
            said = (keccak(root), 1, StateRoot(keccak(root)), StateRoot(keccak(root)))
            parts = (work.job, work.round, work.attempt, work.slot, work.seed, work.base, *said)
            digest = ids.claim_digest(s.at.chain_id, s.at.market, parts)
            signed.append(court.Signed(*said, sign(c.worker, digest)))  # type: ignore[arg-type]
        return MarketCall("DisputeGame", "equivocate", self.dice.choice(self.members), (work, *signed))

    def _voids(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Demands a row, and voids the job if it is not answered; games continue meanwhile."""
        job, d = self.scene.job, self.dice
        started = s.jobs[job].started
        if not s.demands and started and d.random() < 0.1:
            yield MarketCall("Availability", "demandRow", d.choice(self.members), (job, 0))
        yield MarketCall("Availability", "voidForRow", d.choice(self.members), (job, 0))
        if d.random() < 0.3:
            yield MarketCall("JobMarket", "release", d.choice(self.members), (job, s.jobs[job].settled))
        if d.random() < 0.5:
            yield MarketCall("JobMarket", "finish", d.choice(self.members), (job,))
        if d.random() < 0.02:
            yield MarketCall("JobMarket", "cancel", REQUESTER, (job,))
        if d.random() < 0.5:
            yield from self._challenges(s, b, own=d.random() < 0.5)


def deadlines(s: State, job: JobId) -> Sequence[int]:
    """Returns times at which something begins or ends."""
    p = s.params[job]
    assert p is not None
    found: list[int] = []
    for (of, r), ro in s.rounds.items():
        if of != job or ro.phase == Phase.FINAL:
            continue
        found += [ro.join_ends - p.windows.join_seconds // 2, ro.join_ends, ro.commit_ends, ro.reveal_ends]
        found += [ro.attest_ends, ro.join_ends - 2 * max(1, int(s.at.chain.inclusion))]
        if ro.phase == Phase.MERGING:
            found += [ro.merge_opens + k * p.merge.turn_seconds for k in range(1, p.role.slots + 3)]
        if ro.phase == Phase.LEAD and r + ro.backed < s.jobs[job].started:
            last = s.rounds[job, s.jobs[job].started - 1]
            since = max(last.merged_at, last.merge_opens)
            found += [since + k * p.merge.turn_seconds for k in range(1, p.role.slots + 2)]
            if settled := s.jobs[job].settled:
                found.append(s.rounds[job, settled - 1].merge_opens + p.merge.turn_seconds)
        if ro.phase in (Phase.LEAD, Phase.FAILED) and r >= s.jobs[job].settled:
            found.append(ro.merged_at + p.windows.challenge_seconds)
    found += [g.deadline + 1 for g in s.games.values() if g.phase != moves.GamePhase.CLOSED]
    found += [demand.deadline + 1 for demand in s.demands.values()]
    found += [demand.deadline + COURTESY_SECONDS + 1 for demand in s.demands.values() if p.role.carries]
    # Until then, an answer to a demand for a carry keeps its claim in the merge.
    found += [asked.until + 1 for asked in s.asked.values() if asked.open and p.role.carries]
    for audit in s.audits.values():
        found += [audit.commit_ends, audit.reveal_ends]
    return found
