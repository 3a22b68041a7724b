"""Runs the demo: submits a job, follows it, advances the chain's clock, downloads the model, and checks the outcome.

Chain time is advanced only while no game is open and every open claim was audited; nothing else here affects the
outcome. Only the liar's own process knows who lies.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.base.naming import short
from lockstep.chain.devnet import CHAIN_ID, Devnet
from lockstep.chain.events import Cursor, Event, EventReader
from lockstep.cli.dispute_text import line, named_clocks, state
from lockstep.client import JobHandle, Network
from lockstep.demo import local, report
from lockstep.demo.cheats.lies import OF_MERGES, OF_SLOTS, cheat_of
from lockstep.demo.processes import Group, Lie, Process
from lockstep.demo.world import READY_SECONDS, World, build
from lockstep.disputes.following import Follower
from lockstep.disputes.progress import DisputeReader, game_reports
from lockstep.market.narrator import (
    ALERT,
    BAD,
    PROGRAM,
    QUIET,
    STEP,
    STRONG,
    Args,
    Line,
    claim,
    of_chain,
    of_program,
)
from lockstep.market.progress import Progress, windows_of
from lockstep.protocol.dispute.moves import Wrong
from lockstep.protocol.errors import Mismatch, TryLater, UsageError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market.receipts import demands_end
from lockstep.protocol.market.views import all_spoken
from lockstep.protocol.types import Address, Seconds
from lockstep.storage.payload import stored_length

if TYPE_CHECKING:
    from lockstep.cli.screen import Screen
    from lockstep.training.demo import DemoJob
    from lockstep.training.strategies.base import Strategy

INTEGER_CHEATS = ("wrong-code", "nearest-instead-of-stochastic")
"""The workers' lies about products of integers."""
CARRY_CHEATS = ("tampered-residual", "stale-carry")
"""The workers' lies about what a slot keeps from round to round."""
INDEX_CHEATS = ("wrong-index",)
"""The workers' lies about which elements a payload keeps."""
WORKER_CHEATS = tuple(OF_SLOTS)
COORDINATOR_CHEATS = tuple(OF_MERGES)
CHALLENGER_CHEATS = ("false-challenge",)
CHEATS = (*WORKER_CHEATS, *COORDINATOR_CHEATS, *CHALLENGER_CHEATS, "none")

CARRYING = "--strategy sparseloco or muloco, or diloco with --carry"
KEEPING = "--strategy sparseloco or muloco; scaled-payload is a lie about what any strategy sends"
SPARSE = "--strategy sparseloco; scaled-payload is a lie about what any strategy sends"
"""The hints of lies that want another strategy."""

LIMIT_SECONDS = 900.0
"""The longest run in this machine's time: a demo that takes longer has got stuck."""
POLL_SECONDS = 0.3
PROGRAM_TOLD = frozenset({"audited", "challenged", "equivocated", "lie", "lost", "won"})
"""Events of the parties that are told; what else they do the chain says."""
CHAIN_TOLD = frozenset({
    "RoundStarted", "Sealed", "Frozen", "Merged", "DutyDrawn", "VerdictRevealed", "RoundFinal", "RoundFailed",
    "RoundVoid", "Slashed",
})  # fmt: skip
"""Events of the chain that are told, beside every move of a game."""

Say = Callable[[Line], None]


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command line."""

    seed: int = 0
    workers: int = 3
    cheat: str = "one-ulp"
    folder: Path | None = None
    """The folder where everything is written; default: a new temporary folder."""
    keep: bool = False
    """The folder becomes a local market's (`demo.local`): its parties bear the names that it knows."""
    strategy: str = "diloco"
    """The strategy of the job, of the registry."""
    carry: bool = False
    """DiLoCo's slots carry their moments; others say themselves what theirs carry."""
    products: str | None = None
    """The arithmetic of the model's products: "float32" or "int8"; None: what the lie is about, else float32."""

    def __post_init__(self) -> None:
        if self.cheat not in CHEATS:
            raise UsageError(f"no cheat is called {self.cheat!r}", hint=f"one of {', '.join(CHEATS)}")
        if self.products not in (None, "float32", "int8"):
            raise UsageError(f"products is {self.products!r}", hint="one of float32, int8")
        if self.products == "float32" and self.cheat in INTEGER_CHEATS:
            raise UsageError(
                f"{self.cheat} is a lie about products of integers", hint="--products int8, or another lie"
            )
        if self.carry and self.strategy != "diloco":
            raise UsageError(f"--carry applies to the strategy diloco, not to {self.strategy}", hint="leave it out")
        if not 2 <= self.workers <= 16:
            raise UsageError(f"the number of workers is {self.workers}", hint="use 2 to 16 workers")
        folder = self.folder
        if not self.keep and folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not an empty folder", hint="name a new one")

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the model's products."""
        return self.products or ("int8" if self.cheat in INTEGER_CHEATS else "float32")

    def spec(self) -> Strategy:
        """The job's strategy; raises UsageError if there is none, or if the lie has no meaning for it."""
        from lockstep.storage.formats.sparse import Sparse
        from lockstep.training.demo import demo_strategy

        spec: Any = demo_strategy(self.strategy, carry=self.carry)
        parts = spec.parts()
        lacks: list[tuple[tuple[str, ...], bool, str, str]] = [
            (("stale-carry",), not spec.carry, "whose slots carry nothing", CARRYING),
            (("tampered-residual",), parts.decay is None, "whose payloads leave nothing for later", KEEPING),
            (INDEX_CHEATS, not isinstance(parts.codec.format, Sparse), "whose payloads keep every element", SPARSE),
        ]
        for cheats, missing, why, hint in lacks:
            if self.cheat in cheats and missing:
                raise UsageError(f"{self.cheat} has no meaning for {self.strategy}, {why}", hint=hint)
        return spec

    @property
    def verifier(self) -> str:
        """Name of the verifier that replays every claim."""
        return local.AUDITOR if self.keep else "verifier"

    def worker(self, i: int) -> str:
        """Returns the name of a worker."""
        return local.member(i) if self.keep else f"worker-{i}"


def run(options: DemoOptions, screen: Screen) -> dict[str, Any]:
    """Run the demo; returns `data` of its envelope. Raises LockstepError if anything ends otherwise than it must."""
    begun = time.monotonic()
    say = _timed(screen, begun)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="lockstep-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name a new folder of yours") from error
    say(Line(f"everything is written to {folder}", QUIET))
    chain = Devnet(folder / "chain", seed=options.seed, keep_state=options.keep)
    with chain as devnet, Group(folder / "logs", _narrator(say)) as group:
        names = ["requester", "coordinator", options.verifier, *(options.worker(i) for i in range(options.workers))]
        names += ["challenger"] if options.cheat in CHALLENGER_CHEATS else []
        names += [name for name in local.YOURS if options.keep and name not in names]
        world = build(folder, group, options.seed, devnet, names)
        say(Line(f"chain {devnet.url}, storage {world.storage_url}", QUIET))
        processes = _start_public(world, options)
        pages = processes[0].wait_for("ready", READY_SECONDS)["url"]
        say(Line(f"pages {pages}/: watch it in a browser", STRONG))
        import torch

        from lockstep.tracing.arithmetic import Arithmetic
        from lockstep.training.demo import WITNESSES, demo_job

        # OMP_NUM_THREADS alone does not bind torch: two threads that wait for each other starve beside the parties.
        torch.set_num_threads(1)
        arithmetic = Arithmetic(options.arithmetic)
        demo = demo_job(options.seed, slots=options.workers, spec=options.spec(), arithmetic=arithmetic)
        requester = Network(devnet.w3, world.contracts, world.store, world.account("requester"), folder / "requester")
        job = demo.job(aggregator=Address(world.account("coordinator").address), witnesses=WITNESSES)
        processes += _start_watched(world, options, processes[0])
        ops = {k: len(getattr(job.programs, k).ops) for k in ("step", "encode", "merge")}
        say(Line(f"the training step is {ops['step']} operations; encode {ops['encode']}, merge {ops['merge']}"))
        quote = requester.quote(job)
        if options.cheat in OF_SLOTS | OF_MERGES:
            # A lie that cannot be told of this job is refused before anybody pays for one.
            cheat_of(options.cheat, job.programs, quote.params, options.seed, CHAIN_ID)
        handle = requester.submit(quote, budget=quote.debit)
        escrowed = f"{tokens(quote.escrow, 6)}, deposit {tokens(quote.deposit, 6)}"
        say(Line(f"job {short(handle.id)} is escrowed: {escrowed}", STRONG))
        course = Course(world, handle, processes, say)
        screen.below = course.lines
        with ThreadPoolExecutor(1) as pool:
            # What plain PyTorch reaches is computed while the market works: this process only watches.
            yardstick = pool.submit(lambda: (demo.evaluate(handle.parts.genesis.shared[0]), demo.baseline_loss()))
            course.follow(begun)
            first, baseline = yardstick.result()
        screen.below = None
        say(Line("the job is done; downloading and evaluating", STEP))
        for process in processes:
            process.stop()
        data = _weigh(world, handle, demo, course, options) | {"loss_first": first, "baseline_loss": baseline}
    data["kept"] = str(folder) if options.keep else None
    data["pages"] = None
    data["seconds"] = round(time.monotonic() - begun, 1)
    return data


def _timed(screen: Screen, begun: float) -> Say:
    return lambda line: screen.tell(line.after(f"{time.monotonic() - begun:6.1f} s  "))


def _declared(a: Args) -> str:
    e = a.get("expectation") or {}
    names = (("program", "Program "), ("step", "step "), ("op_index", "op "), ("op_name", ""), ("element", "element "))
    said = [f"{word}{e[key]}" for key, word in names if e.get(key) is not None]
    where = f" in {claim(a)}" if a.get("claim") else ""
    return f"lies ({a.get('cheat')}){where}: {', '.join(said) or 'everywhere'}"


PROGRAM_OR_LIAR = {**PROGRAM, "lie": (BAD, _declared)}
"""The sentences for what honest programs print, and for what their lying doubles do."""


def _narrator(say: Say) -> Callable[[str, dict[str, Any]], None]:
    def narrate(name: str, event: dict[str, Any]) -> None:
        kind = str(event.get("event"))
        if kind in PROGRAM_TOLD and not (kind == "audited" and event.get("verdict") == "match"):
            say(of_program(name, event, PROGRAM_OR_LIAR).after("  "))

    return narrate


def _lie(options: DemoOptions, cheats: Sequence[str]) -> Lie | None:
    return (options.cheat, options.seed) if options.cheat in cheats else None


def _start_public(world: World, options: DemoOptions) -> list[Process]:
    """Starts the coordinator, and the lying challenger if there is one."""
    arguments = ["coordinator", "up", "--port", "0"]
    processes = [world.join("coordinator", "coordinator", arguments, lie=_lie(options, COORDINATOR_CHEATS))]
    lie = _lie(options, CHALLENGER_CHEATS)
    if lie is not None:
        processes.append(world.join("challenger", "challenger", ["verifier", "up"], lie=lie))
    return processes


def _start_watched(world: World, options: DemoOptions, coordinator: Process) -> list[Process]:
    """Starts the verifier and the workers, which use the coordinator.

    The verifier replays every claim, and is the one staked witness that is drawn; it is started alike for every cheat.
    """
    url = coordinator.wait_for("ready", READY_SECONDS)["url"]
    arguments = ["verifier", "up", "--witness", "--volunteer", "--coordinator", url]
    processes = [world.join(options.verifier, "verifier", arguments)]
    for i in range(options.workers):
        lie = _lie(options, WORKER_CHEATS) if i == options.seed % options.workers else None
        arguments = ["worker", "up", "--once", "--max-stake", "all", "--coordinator", url]
        processes.append(world.join(options.worker(i), "worker", arguments, lie=lie))
    return processes


class Course:
    """Follows the demo's job to its end."""

    def __init__(self, world: World, handle: JobHandle, processes: list[Process], say: Say) -> None:
        self.world = world
        self.handle = handle
        self.processes = processes
        self.say = say
        self.events: list[Event] = []
        self._reader = EventReader(world.devnet.w3, world.contracts.addresses)
        self._cursor: Cursor = self._reader.start()
        self._follower = Follower(DisputeReader(world.contracts, world.store), job=handle.id)
        params = world.contracts.market.params(handle.id)
        self.progress = Progress(params.schedule.rounds, params.role.slots, windows_of(params))
        self._now, self._read_at = Seconds(world.devnet.w3.eth.get_block("latest")["timestamp"]), time.monotonic()

    def poll(self) -> list[Event]:
        """Returns the new events of the chain."""
        batch = self._reader.poll(self._cursor)
        self._cursor = batch.cursor
        self.events += batch.events
        return list(batch.events)

    def follow(self, begun: float, limit: float = LIMIT_SECONDS) -> None:
        """Runs until JobDone and until every witness's fee is decided.

        Raises LockstepError if a process fails, TryLater if it takes more than `limit` seconds since `begun`.
        """
        while time.monotonic() - begun < limit:
            seen = self.poll()
            for event in seen:
                self._tell(event)
            if seen:
                self._now, self._read_at = seen[-1].time, time.monotonic()
            if any(event.contract == "DisputeGame" for event in seen):
                self._tell_games()
            if any(e.name == "JobDone" for e in self.events) and self._named("DutyDrawn") == self._named("DutyClosed"):
                return
            self.world.group.check()
            # INVARIANT: windows pass only while no game is open and every open claim was audited.
            if self.quiet() and self._waits_for_time():
                self._advance()
            self._pass_demands()
            time.sleep(POLL_SECONDS)
        raise TryLater(f"the job is not done after {limit:.0f} s", hint=f"see the logs in {self.world.folder}")

    def quiet(self) -> bool:
        """Returns True if no game is open, every claim that can be challenged was audited, and every drawn witness has
        revealed."""
        opened = {e.args["game"] for e in self.events if e.name == "Opened"}
        resolved = {e.args["game"] for e in self.events if e.name == "Resolved"}
        market = [e for e in self.events if e.contract == "JobMarket"]
        claims = {e.args["claim"].hex() for e in market if e.name in ("Revealed", "Merged")}
        verifier = next(p for p in self.processes if p.name in ("verifier", local.AUDITOR))
        audited = {str(e["claim"]).removeprefix("0x") for e in verifier.named("audited")}
        spoken = self._named("VerdictRevealed") | self._named("DutyClosed")
        return opened == resolved and claims <= audited and self._named("DutyDrawn") <= spoken

    def _named(self, name: str) -> set[tuple[bytes, int]]:
        """Returns the duties that events of this name are about."""
        return {(e.args["audit"], e.args["i"]) for e in self.events if e.name == name}

    def _waits_for_time(self) -> bool:
        """Returns True if every round of the job waits for the challenge window."""
        market, job = self.world.contracts.market, self.handle.id
        params, books = market.params(job), market.job(job)
        if books.started < params.schedule.rounds:
            return False
        phases = [market.phase(job, r) for r in range(books.settled, books.started)]
        return bool(phases) and all(p in (Phase.LEAD, Phase.FINAL, Phase.FAILED) for p in phases)

    def _advance(self) -> None:
        market, job = self.world.contracts.market, self.handle.id
        params, books = market.params(job), market.job(job)
        now = self._chain_time()
        merged = [market.round(job, r).merged_at for r in range(books.settled, books.started)]
        ahead = max(merged, default=now) + params.windows.challenge_seconds + 1 - now
        if ahead > 0:
            self.say(Line(f"all claims are audited, no game is open: chain time moves on by {ahead} s", QUIET))
            self.world.devnet.advance(Seconds(ahead))

    def _chain_time(self) -> int:
        return int(self.world.devnet.w3.eth.get_block("latest")["timestamp"])

    def _pass_demands(self) -> None:
        """Advances the chain's clock past the time for demands, once every party has given its receipt."""
        told = [e for e in self.events if e.contract == "JobMarket"]
        if not told or told[-1].name != "Attested":
            return
        market, job, r = self.world.contracts.market, self.handle.id, told[-1].args["round"]
        stored, witnesses = market.round(job, r), market.params(job).role.witnesses
        if not all_spoken(stored, witnesses) or market.phase(job, r) != Phase.ATTESTING:
            return
        inclusion = market.chain_times().inclusion
        ends = demands_end(stored.reveal_ends, stored.attest_ends, inclusion)
        ahead = ends - self._chain_time()
        # Who plays a game has a clock that is many times as long.
        if ahead > 0:
            self.world.devnet.advance(Seconds(ahead))

    def _tell(self, event: Event) -> None:
        self.progress.see(event.name, event.args, event.time)
        if event.name in CHAIN_TOLD and event.contract != "DisputeGame":
            self.say(of_chain(event.name, event.args))

    def _tell_games(self) -> None:
        """Prints every move of every game, with the facts that it shows."""
        now = self._follower.reader.now()
        for seen in self._follower.poll():
            self.say(line(seen, now, timed=False).after("  "))

    def lines(self) -> list[Line]:
        """Returns lines on the run's progress, and on the clocks of each game."""
        now = Seconds(self._now + int(time.monotonic() - self._read_at))
        games = [d for d in list(self._follower.latest.values()) if d.running]
        clocks = [Line(f"game {short(d.id)}: {state(d, now)}, {named_clocks(d, now)}", ALERT) for d in games]
        return [*self.progress.lines(now), *clocks]


def _weigh(
    world: World,
    handle: JobHandle,
    demo: DemoJob,
    course: Course,
    options: DemoOptions,
) -> dict[str, Any]:
    course.poll()
    events = [e for e in course.events if e.contract != "TestToken"]
    model_path = handle.download(world.folder / "model")
    job = handle.parts
    checkpoint, _ = handle.checkpoint()
    totals = report.money(events, job.params.role.witness_fee)
    games = game_reports(world.contracts, events, job)
    requester = Address(world.account("requester").address)
    parties = [
        {
            "role": party.role,
            "address": party.address,
            "cheat": party.cheat,
            "stake_before": str(report.deposited(events, party.address)),
            "stake_after": str(report.stake_of(world.contracts.vault, events, party.address)),
            "earned": str(report.earned(events, party.address)),
            "witness_fees": str(report.fees(events, party.address)),
            "received_from_slash": str(report.received_from_slash(events, party.address, requester)),
        }
        for party in [report.Participant("requester", requester), *world.parties]
    ]
    return {
        "job": handle.id.hex(),
        "strategy": options.strategy,
        "bits_per_parameter": _bits_per_parameter(world, handle, demo, events),
        "rounds": handle.status()["settled"],
        "program_ops": {k: len(getattr(job.programs, k).ops) for k in ("step", "encode", "merge")},
        "loss_last": demo.evaluate(checkpoint.shared[0]),
        "parties": parties,
        "games": games,
        **_expectation(course, games, options, totals),
        **totals,
        "model_path": str(model_path),
        "sample": demo.sample(checkpoint.shared[0]),
    }


def _bits_per_parameter(world: World, handle: JobHandle, demo: DemoJob, events: Sequence[Event]) -> float:
    """Returns the bits of a payload for each parameter, the mean of all that were revealed: manifests and blobs as they
    are stored."""
    job = handle.parts
    lengths = [
        stored_length(
            world.store,
            e.args["payload_cid"],
            job.payload_layout,
            wire_format=job.wire_format,
            carries=job.params.role.carries,
        )
        for e in events
        if e.name == "Revealed" and e.contract == "JobMarket"
    ]
    return round(8 * fmean(lengths) / demo.parameters, 4)


def _expectation(
    course: Course, games: list[dict[str, Any]], options: DemoOptions, totals: dict[str, str]
) -> dict[str, Any]:
    """Returns the liar's declaration, checked against what the court found; raises Mismatch if they differ."""
    if not report.adds_up(totals):
        raise Mismatch(f"the money does not add up: {totals}", hint="this is a bug: report it")
    lies = [e for p in course.processes for e in p.named("lie")]
    if options.cheat == "two-signatures":
        _require_equivocation(course, lies, games)
        return {"expectation": lies[0]["expectation"]}
    if options.cheat == "none":
        if games or int(totals["slashed"]):
            raise Mismatch("an honest market had a game", hint="this is a bug: report it")
        return {"expectation": None}
    if not lies or not games:
        raise Mismatch(f"{options.cheat}: {len(lies)} lies, {len(games)} games", hint="see the logs of the run")
    # A lie that would be rounded away is declared again, at another place.
    expected = lies[-1]["expectation"]
    differing = [why for game in games if (why := difference(expected, game))]
    if differing:
        raise Mismatch(f"a game did not end where it must: {differing}", hint="this is a bug: report it")
    return {"expectation": expected}


def _require_equivocation(course: Course, lies: list[dict[str, Any]], games: list[dict[str, Any]]) -> None:
    found = [e for e in course.events if e.name == "Convicted" and e.contract == "DisputeGame"]
    if not lies or games or [e.args["finding"]["wrong"] for e in found] != [Wrong.EQUIVOCATION]:
        raise Mismatch(
            f"two signatures: {len(lies)} lies, {len(games)} games, {len(found)} convictions",
            hint="see the logs of the run",
        )


def difference(expected: dict[str, Any], game: dict[str, Any]) -> str | None:
    """Returns the difference between a game's end and what was declared, None if there is none."""
    found = {
        "verdict": game["verdict"],
        "program": game["program"],
        "step": game["step"],
        "op_index": (game["op"] or {}).get("index"),
        "op_kind": (game["op"] or {}).get("kind"),
        "element": game["element"],
        "chunk": game["chunk"],
    }
    wrong = {k: (v, found[k]) for k, v in expected.items() if k in found and v is not None and v != found[k]}
    return f"{wrong}" if wrong else None
