"""`lockstep replay CLAIM`: checks a claim from public data only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.base.lines import say
from lockstep.base.naming import CLAIMS_SHOWN, digits_of
from lockstep.cli.device import on_device
from lockstep.cli.options import ComputingFlags, Json, PublicFlags
from lockstep.cli.output import emit
from lockstep.protocol.errors import LockstepError, Mismatch, UsageError

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.execution.jobs import ClaimRun
    from lockstep.market.ledger import ClaimRecord
    from lockstep.market.replay import PublicData, Replay
    from lockstep.protocol.dispute.moves import Finding
    from lockstep.protocol.programs.program import Program
    from lockstep.protocol.types import ClaimId, GameId
    from lockstep.storage import ContentStore


class KernelPath(StrEnum):
    """The kernels to compute with; all give the same bits."""

    AUTO = "auto"
    SCALAR = "scalar"
    AVX2 = "avx2"
    AVX512 = "avx512"
    VNNI = "vnni"
    NEON = "neon"
    DOTPROD = "dotprod"


@dataclass(frozen=True)
class Difference:
    """The first op and element within a transition at which a claim differs."""

    op: int
    element: int
    chunk: int | None
    claimed: int
    computed: int
    """The word that this machine computes."""
    contract: int | None
    """The word that the contract computed, if a game went that far."""
    seen_in: str
    """"game": a contract computed it; "output": the claim's public output shows it."""


def replay(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="The claim's id, or at least its first 6 hex digits.")],
    flags: PublicFlags,
    computing: ComputingFlags,
    path: Annotated[
        KernelPath, typer.Option(help="Kernels of the processor; the bits do not depend on them.")
    ] = KernelPath.AUTO,
    roots: Annotated[bool, typer.Option("--roots", help="Print every computed state root.")] = False,
    as_json: Json = False,
) -> None:
    """Replay a claim: MATCH (exit 0), or the first differing step, op and element (exit 10).

    Exit 11 if its public data is unavailable, which proves nothing about the claim. The op and element of an
    intermediate step are known only after a game about it: until then only the step's roots are public.
    """
    digits_of(claim, "claim", CLAIMS_SHOWN)
    # Who names kernels of the processor means the processor.
    on = computing.device or (None if path == KernelPath.AUTO else "cpu")
    settings, chosen = on_device(flags.settings("requester", computing, device=on))
    if path != KernelPath.AUTO and chosen.device != "cpu":
        raise UsageError(
            f"--path {path.value} does not apply to --device {chosen.device}",
            hint="--path selects kernels of --device cpu",
        )
    kernels = path.value if chosen.device == "cpu" else chosen.path
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.events import EventReader
    from lockstep.chain.rpc import connect
    from lockstep.market.ledger import ledger_of
    from lockstep.storage import open_store

    addresses = Addresses.load(settings.deployment)
    w3 = connect(settings.rpc, addresses.chain_id)
    contracts = Contracts.at(w3, addresses)
    found = ledger_of(EventReader(w3, addresses)).claim_named(claim)
    begun = time.monotonic()
    with (
        open_store(settings.storage) as store,
        prepared(contracts, store, found, settings.threads, kernels) as (public, run),
    ):
        done = _audit(run, found[2], public)
        place = None if done.matches else _place(contracts, public, done, found[2])
    data = _report(run, found[2], done, place) | {
        "threads": settings.threads, "device": chosen.device, "path": path.value,
        "seconds": round(time.monotonic() - begun, 3),
    }  # fmt: skip
    if roots:
        shown = done.held.trace if done.t is None else done.held.trace[: done.t]
        data["roots"] = [done.held.state_zero.hex(), *(root.hex() for root in shown)]
    emit(data, as_json, text=_text(data))
    if not done.matches:
        raise typer.Exit(Mismatch.exit_code)


def compute_again(contracts: Contracts, store: ContentStore, game: GameId, threads: int, path: str) -> dict[str, Any]:
    """Recomputes here, from the claim's public data, the number that a contract computed in a game.

    Raises UsageError if the contract has computed none, Inconclusive if the data is unavailable.
    """
    from lockstep.chain.events import EventReader
    from lockstep.market.held import HeldClaim
    from lockstep.market.ledger import ledger_of
    from lockstep.market.replay import UNDECIDED, computed_word, undecided

    finding, claim = _judged(contracts, game)
    found = ledger_of(EventReader(contracts.game.w3, contracts.addresses)).claim_named(claim.hex())
    begun, record = time.monotonic(), found[2]
    with prepared(contracts, store, found, threads, path) as (_, run):
        say(f"replaying {finding.t} of {run.transitions} transitions of round {record.round}, {_slot(record)}")
        try:
            computed = computed_word(HeldClaim(run, ()).whole(finding.t), finding)
        except UNDECIDED as error:
            raise undecided(error) from error
    program = run.program(finding.t)
    op = program.ops[finding.position]
    return {
        "game": game.hex(),
        "claim": record.id.hex(),
        "job": record.job.hex(),
        "verdict": "match" if computed == finding.contract_word else "mismatch",
        "program": run.job.programs.name_of(run.slot, finding.t, run.job.params.role.inner_steps),
        "step": finding.t,
        "op": {"index": finding.position, "kind": op.kind.name.lower(), "name": program.name_of(finding.position)},
        "element": finding.element,
        "chunk": finding.one_chunk if op.chunks > 1 else None,
        "claimed_bits": f"0x{finding.claimed_word:08x}",
        "contract_bits": f"0x{finding.contract_word:08x}",
        "computed_bits": f"0x{computed:08x}",
        "threads": threads,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _judged(contracts: Contracts, game: GameId) -> tuple[Finding, ClaimId]:
    """Returns a contract's finding in a game, and the claim that it is about."""
    from lockstep.chain import games
    from lockstep.protocol.dispute.moves import Convicted, Opened, Wrong

    log = games.log(contracts.game, game, contracts.addresses.block)
    claim = next(event.claim for event in log if isinstance(event, Opened))
    for event in log:
        if isinstance(event, Convicted) and event.finding.wrong is Wrong.OP:
            return event.finding, claim
    raise UsageError(
        f"the contract has not computed a number in game {game.hex()[:8]}", hint=f"give `lockstep replay {claim.hex()}`"
    )


@contextmanager
def prepared(
    contracts: Contracts, store: Any, found: Any, threads: int, path: str
) -> Iterator[tuple[PublicData, ClaimRun]]:
    """Yields a claim's public data and its computation, in a child process that ends with the block; raises
    Inconclusive if the data is unavailable."""
    from lockstep.execution.box.loading import load
    from lockstep.market.replay import UNDECIDED, PublicData, undecided

    ledger, round_, record = found
    try:
        params = contracts.market.params(record.job)
        # INVARIANT: nothing that a stranger wrote runs in the process of whoever replays it.
        job = load(record.job, params, store, threads, path)
        with ExitStack() as stack:
            if job.box is not None:
                stack.callback(job.box.close)
            public = PublicData(job, store)
            yield public, public.run_of(ledger, round_, record)
    except UNDECIDED as error:
        raise undecided(error) from error


def _audit(run: ClaimRun, record: ClaimRecord, public: PublicData) -> Replay:
    from lockstep.market.replay import UNDECIDED, audit, undecided

    say(f"replaying {run.transitions} transitions of round {record.round}, {_slot(record)}")
    try:
        return audit(run, record, public.store)
    except UNDECIDED as error:
        raise undecided(error) from error


def _place(contracts: Contracts, public: PublicData, done: Replay, record: ClaimRecord) -> Difference | None:
    """Returns the op and element of the difference, as far as they are public."""
    from lockstep.market.replay import computed_word

    finding = _finding(contracts, record)
    if finding is not None and finding.t == done.t:
        many = done.held.run.program(finding.t).ops[finding.position].chunks > 1
        return Difference(
            finding.position, finding.element, finding.one_chunk if many else None, finding.claimed_word,
            computed_word(done.held.whole(finding.t), finding), finding.contract_word, "game",
        )  # fmt: skip
    if done.t == done.held.run.transitions:
        return _in_output(public, done, record)
    return None


def _finding(contracts: Contracts, record: ClaimRecord) -> Finding | None:
    """Returns a contract's finding about an op of the claim, if a game went that far."""
    from lockstep.chain import games
    from lockstep.protocol.dispute.moves import Convicted, Wrong

    first = contracts.addresses.block
    for game in games.opened(contracts.game, record.id, first):
        for event in games.log(contracts.game, game, first):
            if isinstance(event, Convicted) and event.finding.wrong is Wrong.OP:
                return event.finding
    return None


def _in_output(public: PublicData, done: Replay, record: ClaimRecord) -> Difference | None:
    """Returns the first word of the claim's public output that differs from this machine's."""
    import numpy as np

    from lockstep.execution.merging import fetch_carry, fetch_payload, load_checkpoint
    from lockstep.protocol.programs.program import Alias

    run, step = done.held.run, done.held.step(done.held.run.transitions)
    try:
        if record.is_merge:
            there = load_checkpoint(run.job, public.store, record.payload_cid, record.out, record.out2)
            tensors = [*there.shared, *there.outer]
        else:
            tensors = list(fetch_payload(run.job, public.store, record.payload))
            if run.job.params.role.carries:
                tensors += fetch_carry(run.job, public.store, record.payload)
    except LockstepError:
        return None
    program = run.program(run.transitions)
    entries = [a for a in program.outputs if a.kind != Alias.EMPTY_KIND]
    for alias, claimed in zip(entries, tensors, strict=False):
        if alias.kind != Alias.OP_KIND:
            continue
        own = step.output(alias.index)
        words = np.frombuffer(b"".join(own.leaf(i) for i in range(own.header.leaves)), np.uint32)
        differing = np.flatnonzero(words != np.ascontiguousarray(claimed).reshape(-1).view(np.uint32))
        if differing.size:
            at = int(differing[0])
            theirs = int(np.ascontiguousarray(claimed).reshape(-1).view(np.uint32)[at])
            return Difference(alias.index, at, None, theirs, int(words[at]), None, "output")
    return None


def _report(run: ClaimRun, record: ClaimRecord, done: Replay, place: Difference | None) -> dict[str, Any]:
    program: Program | None = None if done.t is None else run.program(done.t)
    name = None if done.t is None else run.job.programs.name_of(run.slot, done.t, run.job.params.role.inner_steps)
    op = None
    if place is not None and program is not None:
        kind = program.ops[place.op].kind.name.lower()
        op = {"index": place.op, "kind": kind, "name": program.name_of(place.op)}
    return {
        "claim": record.id.hex(),
        "job": record.job.hex(),
        "round": record.round,
        "slot": "merge" if record.is_merge else record.slot,
        "worker": record.worker,
        "transitions": run.transitions,
        "verdict": "match" if done.matches else "mismatch",
        "program": name,
        "step": done.t,
        "op": op,
        "element": None if place is None else place.element,
        "chunk": None if place is None else place.chunk,
        "claimed_bits": None if place is None else f"0x{place.claimed:08x}",
        "computed_bits": None if place is None else f"0x{place.computed:08x}",
        "contract_bits": None if place is None or place.contract is None else f"0x{place.contract:08x}",
        "seen_in": None if place is None else place.seen_in,
    }


def _slot(record: ClaimRecord) -> str:
    return "the merge" if record.is_merge else f"slot {record.slot}"


def _text(data: dict[str, Any]) -> str:
    shown = "\n".join(f"S_{t} {root}" for t, root in enumerate(data.get("roots", ())))
    what = f"round {data['round']}, slot {data['slot']}, {data['transitions']} transitions"
    if data["verdict"] == "match":
        line = f"MATCH {data['claim']} ({what})"
    elif data["step"] is None:
        line = f"MISMATCH {data['claim']} ({what}): the step is unknown, since its list of roots is unavailable"
    else:
        line = f"MISMATCH {data['claim']} ({what}): first at step {data['step']} of Program {data['program']}"
        if data["op"] is None:
            line += "; op and element are known after a game about it"
        else:
            chunk = "" if data["chunk"] is None else f", chunk {data['chunk']}"
            line += (
                f", op {data['op']['index']} ({data['op']['kind']} {data['op']['name']}), element {data['element']}"
                f"{chunk}: claimed {data['claimed_bits']}, computed {data['computed_bits']}"
                f"{'' if data['contract_bits'] is None else ', the contract ' + data['contract_bits']}"
            )
    return f"{shown}\n{line}" if shown else line
