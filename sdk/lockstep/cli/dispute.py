"""`lockstep dispute`: reads, follows and plays dispute games."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.base.amounts import tokens
from lockstep.base.lines import say
from lockstep.base.naming import CLAIMS_SHOWN, GAMES_SHOWN, JOBS_SHOWN, digits_of
from lockstep.base.settings import DEFAULTS, NETWORK, Settings, named_network
from lockstep.cli.device import on_device
from lockstep.cli.options import (
    ChainFlags,
    Commands,
    ComputingFlags,
    Json,
    PartyFlags,
    ProgramFlags,
    PublicFlags,
    an_id,
)
from lockstep.cli.output import emit
from lockstep.protocol.errors import Mismatch, UsageError

if TYPE_CHECKING:
    from lockstep.disputes.following import Follower, Sighting
    from lockstep.disputes.manual import ManualPlayer, Played
    from lockstep.disputes.progress import DisputeReader
    from lockstep.protocol.dispute import moves
    from lockstep.protocol.dispute.game import DisputedClaim
    from lockstep.protocol.types import Wei
    from lockstep.runtime.party import Head

app = Commands(name="dispute", help="Read, follow and play dispute games about claims.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", help="Lock the bond without asking for confirmation.")]
POLL_SECONDS = 0.5
"""Seconds between polls for a new block while games are watched."""

a_game = an_id("game", GAMES_SHOWN)
GameArgument = Annotated[
    str, typer.Argument(metavar="GAME", callback=a_game, help="The game's id, or at least its first 6 hex digits.")
]


@app.command("list")
def list_(
    *,
    job: Annotated[
        str | None,
        typer.Option(metavar="ID", help="List only games of this job: its id, or at least its first 6 hex digits."),
    ] = None,
    ended: Annotated[bool, typer.Option("--all/--open", help="Also list games that are over.")] = False,
    flags: ChainFlags,
    as_json: Json = False,
) -> None:
    """List running games with the side to move and the time on each clock."""
    if job is not None:
        digits_of(job, "job", JOBS_SHOWN)
    reader = _reader(flags.settings())
    wanted = None if job is None else reader.find_job(job)
    from lockstep.cli.dispute_text import table

    rows, now = reader.rows(wanted, ended=ended), reader.now()
    emit({"chain_time": now, "games": [row.to_dict(now) for row in rows]}, as_json, text=table(rows, now, ended))


@app.command("show")
def show(game: GameArgument, flags: PublicFlags, as_json: Json = False) -> None:
    """Show one game: parties, money, every move, its progress, and the number that the contract computed.

    Reads only the chain; --storage adds the names of ops.
    """
    reader = _reader(flags.settings(), names=True)
    from lockstep.cli.dispute_text import card

    found, now = reader.read(reader.find(game)), reader.now()
    command = replay_command(found.opened.claim.hex(), **flags.given())
    emit(
        {**found.to_dict(now), "chain_time": now, "replay": command}, as_json,
        text=None if as_json else card(found, now, command),
    )  # fmt: skip


@app.command("tree")
def tree(game: GameArgument, flags: ChainFlags, as_json: Json = False) -> None:
    """Show the bisection as a tree: each halved range and the half that differs, down to the number that the contract
    computed."""
    reader = _reader(flags.settings())
    from lockstep.cli.dispute_text import drawn
    from lockstep.disputes.bisection import bisection

    found, now = reader.read(reader.find(game)), reader.now()
    root = bisection(found.events, found.claim.transitions, found.op)
    emit({**found.to_dict(now), "tree": root.to_dict()}, as_json, text=None if as_json else drawn(found, root, now))


@app.command("check")
def check(game: GameArgument, flags: PublicFlags, computing: ComputingFlags, as_json: Json = False) -> None:
    """Replay a claim up to the step for which a contract computed a number, and compute that number here.

    MATCH (exit 0) if it equals the contract's, else MISMATCH (exit 10); exit 11 if the claim's public data is
    unavailable.
    """
    settings, chosen = on_device(flags.settings("requester", computing))
    reader = _reader(settings)
    from lockstep.cli.dispute_text import checked
    from lockstep.cli.replay import compute_again
    from lockstep.storage import open_store

    found = reader.find(game)
    with open_store(settings.storage) as store:
        data = compute_again(reader.contracts, store, found, settings.threads, chosen.path)
    data["device"] = chosen.device
    emit(data, as_json, text=checked(data))
    if data["verdict"] != "match":
        raise typer.Exit(Mismatch.exit_code)


def replay_command(claim: str, **flags: str | None) -> str:
    """Returns the command that reproduces a claim: `lockstep replay` with the locations that this command was given."""
    import shlex

    # `--network` comes by the environment (cli/main.py).
    flags = {**flags, NETWORK: named_network()}
    given = [part for name, value in flags.items() if value is not None for part in (f"--{name}", value)]
    return shlex.join(["lockstep", "replay", claim, *given])


def _reader(settings: Settings, *, names: bool = False) -> DisputeReader:
    """Returns a reader of the chain's games; with `names`, it reads the names of ops from a store, if one is
    configured."""
    from lockstep.chain.addresses import Addresses
    from lockstep.chain.contracts import Contracts
    from lockstep.chain.rpc import connect
    from lockstep.disputes.progress import DisputeReader
    from lockstep.storage import open_store

    addresses = Addresses.load(settings.deployment)
    contracts = Contracts.at(connect(settings.rpc, addresses.chain_id), addresses)
    store = open_store(settings.storage) if names and settings.storage != DEFAULTS["storage"] else None
    return DisputeReader(contracts, store)


# -- following


@app.command("watch")
def watch(
    *,
    game: Annotated[
        str | None,
        typer.Argument(metavar="[GAME]", callback=a_game, help="The game's id, or at least its first 6 hex digits."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Watch every game of this job instead: its id, or at least its first 6 hex digits."
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="LOCKSTEP_WEBHOOK", help="POST every event to this URL, as JSON."),
    ] = None,
    flags: PublicFlags,
    as_json: Json = False,
) -> None:
    """Print every move as it is made, with what it reveals, until the game is over; then print the command that
    reproduces the result.

    Ctrl-C ends the command, not the game. Reads only the chain; --storage adds the names of ops.
    """
    if (game is None) == (job is None):
        raise UsageError(
            "this command watches one game or one job", hint="give `lockstep dispute watch GAME`, or --job ID"
        )
    if job is not None:
        digits_of(job, "job", JOBS_SHOWN)
    from contextlib import ExitStack

    from lockstep.cli.dispute_text import GameScreen
    from lockstep.disputes.following import Follower
    from lockstep.runtime.webhook import Webhook

    def replay(claim: str) -> str:
        return replay_command(claim, **flags.given())

    with ExitStack() as stack:
        told = None if webhook is None else stack.enter_context(Webhook(webhook))
        reader = _reader(flags.settings(), names=True)
        wanted = None if job is None else reader.find_job(job)
        follower = Follower(reader, None if game is None else reader.find(game), wanted)
        # Read before the games: a block that comes meanwhile is the next one's.
        head = reader.head()
        seen = follower.poll()
        screen = stack.enter_context(GameScreen(follower, head.time, as_json, replay))
        while True:
            for one in seen:
                screen.tell(one)
                if told is not None:
                    told.tell({"event": one.kind.value, **one.to_dict(head.time)})
            if follower.over:
                return
            seen, head = _next(follower, head)
            screen.at(head.time)


def _next(follower: Follower, last: Head) -> tuple[list[Sighting], Head]:
    """Returns the next block's moves and its head; waits while the chain does not answer."""
    import time

    from lockstep.protocol.errors import TryLater, Unreachable

    warned = False
    while True:
        time.sleep(POLL_SECONDS)
        try:
            head = follower.reader.head()
            if head != last:
                return follower.poll(), head
        except (Unreachable, TryLater) as error:
            if not warned:
                say(f"{error.message}: retrying")
            warned = True


# -- playing


@app.command("open")
def open_(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="The claim's id, or at least its first 6 hex digits.")],
    *,
    yes: Yes = False,
    flags: PartyFlags,
    computing: ComputingFlags,
    as_json: Json = False,
) -> None:
    """Replay a claim, and open a game at the first step that differs. If the claim is right, no game is opened: MATCH,
    exit 0.

    A game locks a bond, which is lost if the claim is right; on a terminal, the command shows it and asks for
    confirmation.
    """
    digits_of(claim, "claim", CLAIMS_SHOWN)

    def agree(disputed: DisputedClaim, move: moves.Open, missing: Wei) -> bool:
        where = f"step {move.t}" if move.t else "an unknown step, since its list of states is unavailable"
        say(f"the replay differs from the claim at {where}; opening a game locks a bond of {tokens(disputed.bond)}")
        if missing:
            say(f"{tokens(missing)} of the bond will be deposited from the account's wallet")
        if yes:
            return True
        if as_json or not sys.stdin.isatty():
            raise UsageError(
                "a game locks a bond, and there is no terminal to ask on", hint="give --yes to open it without asking"
            )
        return typer.confirm("open the game?", err=True)

    with _player(flags, computing) as player:
        wanted = player.find(claim)
        done = player.open(wanted, agree)
    data = {
        "claim": wanted.hex(), "verdict": "match" if done.t is None else "mismatch", "step": done.t,
        "game": None if done.game is None else done.game.hex(), "already_open": done.already,
        "bond": str(done.bond),
    }  # fmt: skip
    if done.t is None:
        text = f"MATCH {wanted.hex()}: no game is opened"
    elif done.game is None:
        text = "no game is opened"
    else:
        text = f"game {done.game.hex()} {'was open already' if done.already else 'is open'}, about " + (
            f"step {done.t}" if done.t else "the whole trace"
        )
    emit(data, as_json, text=text)


@app.command("respond")
def respond(game: GameArgument, flags: PartyFlags, computing: ComputingFlags, as_json: Json = False) -> None:
    """Make the move that is due from this account, as challenger, defender or its delegate. Exit 75: it is the other
    side's turn."""
    with _player(flags, computing) as player:
        _made(player.respond(_reader_of(player).find(game)), as_json)


@app.command("prove")
def prove(game: GameArgument, flags: PartyFlags, computing: ComputingFlags, as_json: Json = False) -> None:
    """Have the contract compute the disputed number, which convicts a wrong claim. Exit 75: the game has not reached
    the proof."""
    with _player(flags, computing) as player:
        _made(player.prove(_reader_of(player).find(game)), as_json)


@app.command("resolve")
def resolve_(game: GameArgument, flags: PartyFlags, as_json: Json = False) -> None:
    """End a game whose mover's clock has run out, or whose claim was decided elsewhere; anybody may. Exit 75: the clock
    still runs."""
    with _player(flags, None) as player:
        _made(player.resolve(_reader_of(player).find(game)), as_json)


@app.command("defend")
def defend(
    account: Annotated[
        str, typer.Argument(metavar="ACCOUNT", help="Account that has named this home's account its delegate.")
    ],
    flags: ProgramFlags,
    computing: ComputingFlags,
    as_json: Json = False,
) -> None:
    """Defend every claim of another account as its delegate, from public data; one JSON line per event on stdout.

    It replaces a lost worker; while that worker still answers, the delegate pays gas for moves that come second. It
    does not defend a claim whose replay on this machine gives a different result. On SIGTERM it plays open games to
    their end and exits with code 0; a second SIGTERM ends it at once.
    """
    import os
    import signal
    import threading

    from lockstep.base.lines import event
    from lockstep.base.naming import address_of
    from lockstep.base.signals import ignore_stops, stop_by_signals
    from lockstep.cli.device import tell
    from lockstep.disputes.delegate import Delegate
    from lockstep.disputes.manual import locked
    from lockstep.runtime import logs
    from lockstep.runtime.party import Party

    whose = address_of(account, "the account")
    settings = flags.settings("verifier", computing)
    logs.configure()
    _require_key(settings)
    settings, chosen = on_device(settings)
    stop = threading.Event()
    with locked(settings.home_dir), Party.open(settings) as party:
        delegate = Delegate(party, whose, event)
        stop_by_signals(stop, signal.SIGTERM, signal.SIGINT)
        tell(chosen)
        event("ready", time=party.head().time, address=party.address, account=whose, pid=os.getpid())
        delegate.run(stop)
        ignore_stops()


def _require_key(settings: Settings) -> None:
    """Raises an error unless the home has a key: playing creates none."""
    from lockstep.chain.keys import KEYSTORE, load_account

    if not (settings.home_path / KEYSTORE).is_file():
        load_account(settings.home_path / KEYSTORE, settings.password())


def _made(done: Played, as_json: bool) -> None:
    data = {
        "game": done.game.hex(),
        "side": None if done.side is None else done.side.value,
        "moves": list(done.moves),
        "phase": done.state.phase.name.lower(),
        "verdict": done.verdict,
    }
    from lockstep.disputes.gamelog import DUE

    whose = "the defender has" if done.state.defender_moves else "the challenger has"
    then = f"{whose} {DUE[done.state.phase]}" if done.state.phase in DUE else done.verdict
    emit(data, as_json, text=f"{', '.join(done.moves)}: {then}")


@contextmanager
def _player(flags: PartyFlags, computing: ComputingFlags | None) -> Iterator[ManualPlayer]:
    """Opens a player with this home's key, and locks the home. `computing` selects the device of its replays."""
    settings = flags.settings("verifier", computing or ComputingFlags())
    from lockstep.disputes.manual import ManualPlayer, locked
    from lockstep.runtime.party import Party

    _require_key(settings)
    if computing is not None:
        settings, _ = on_device(settings)
    with (
        locked(settings.home_dir),
        Party.open(settings, stored=computing is not None) as party,
        closing(ManualPlayer(party, say)) as player,
    ):
        player.settle()
        yield player


def _reader_of(player: ManualPlayer) -> DisputeReader:
    from lockstep.disputes.progress import DisputeReader

    return DisputeReader(player.party.contracts)
