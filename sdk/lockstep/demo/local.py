"""The local market: chain, storage, coordinator, verifier and workers that stay up across commands.

    lockstep local up       # makes or continues it, in ~/.lockstep/local (LOCKSTEP_LOCAL names another folder)
    lockstep local status   # who runs, where, what time it is there
    lockstep local down     # ends it; the chain, the keys and the jobs are kept for the next `up`

One supervisor process holds the folder's lock. It starts the members, starts again whoever ends, and ends them all when
it is told to. Every member of a market of real machines is a process of its own here, too; only the machine is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.base import networks
from lockstep.base.decoding import MAX_FILE_BYTES, file_bytes, from_json
from lockstep.base.files import write_atomically
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Devnet, find_anvil
from lockstep.demo.processes import Group, Lie, Process
from lockstep.demo.world import READY_SECONDS, World, build, reopen
from lockstep.protocol.errors import DoctorError, GuardRefused, LockstepError, Malformed, TryLater, UsageError
from lockstep.protocol.types import Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.guard import lock

HOLDER = "local market"
STATE, MADE = "local.json", "made"
YOURS = ("requester", "worker", "verifier")
"""Roles of the user's own funded homes, which no member of the market uses."""
AUDITOR = "auditor"
LIE = "one-ulp"
"""The lie of the last worker, if one is asked for."""
DEMO = "demo"
"""The holder of the folder while `lockstep demo --keep` runs in it."""
UP_SECONDS = 600.0
DOWN_SECONDS = 600.0
POLL_SECONDS = 0.5
RESTART_SECONDS, RESTART_MOST = 1.0, 60.0


@dataclass(frozen=True)
class LocalOptions:
    """The configuration of a local market; kept in its folder, so that `up` again is the same one."""

    workers: int = 3
    seed: int = 0
    block_seconds: int = 1
    liar: bool = False
    """True: the last worker lies, and no verifier of the market's own looks for it."""
    rpc_port: int = 0
    """0: any; the one that was taken is kept."""
    coordinator_port: int = 0
    storage_port: int = 0


@dataclass(frozen=True)
class Member:
    """One process of the market."""

    name: str
    role: str
    address: str
    pid: int
    restarts: int = 0


@dataclass(frozen=True)
class LocalState:
    """The market's state, as its supervisor last wrote it."""

    options: LocalOptions
    rpc: str = ""
    storage: str = ""
    coordinator: str = ""
    members: tuple[Member, ...] = ()
    failure: str = ""
    """The error that ended it, if one did."""

    def save(self, folder: Path) -> None:
        """Writes the state atomically."""
        write_atomically(folder / STATE, [json.dumps(asdict(self), indent=2).encode()])

    @staticmethod
    def load(folder: Path) -> LocalState | None:
        """Reads a folder's state; None if the folder has no market."""
        try:
            said: Any = from_json(file_bytes(folder / STATE), MAX_FILE_BYTES)
            members = tuple(Member(**m) for m in said.pop("members"))
            return LocalState(LocalOptions(**said.pop("options")), members=members, **said)
        except FileNotFoundError:
            return None
        except (OSError, Malformed, LookupError, TypeError) as error:
            raise DoctorError(
                f"{folder / STATE} cannot be read: {error}", hint="`lockstep local up --fresh` makes a new market"
            ) from error


# -- commands


def up(folder: Path, wanted: Mapping[str, Any], *, fresh: bool = False) -> LocalState:
    """Starts the market unless it runs; returns when every member is ready. `wanted`: options by name; a market that is
    kept has its own for the others.

    Raises UsageError if the market that is kept here is another one, and the error that kept it from starting.
    """
    if not fresh:
        _require_same(folder, wanted)
    elif (works := lock.holder(folder)) is not None and works.who == HOLDER:
        down(folder)
    if lock.holder(folder) is not None:
        return _up_already(folder)
    if fresh and folder.exists():
        _remove(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One that was killed could not take its entry back.
    with contextlib.suppress(FileNotFoundError):
        networks_file(folder).unlink()
    kept = LocalState.load(folder)
    LocalState(LocalOptions(**wanted) if kept is None else kept.options).save(folder)
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs/supervisor.log").open("ab") as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", "lockstep.demo.local", str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            env={**os.environ, "LOCKSTEP_ANVIL": str(find_anvil())},
        )  # fmt: skip
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        if networks_file(folder).exists() and lock.holder(folder) is not None:
            return _loaded(folder)
        if popen.poll() is not None:
            state = _loaded(folder)
            raise LockstepError(
                f"the market did not start: {state.failure or 'its supervisor was killed'}",
                hint=f"the logs are in {folder / 'logs'}; `lockstep local up --fresh` starts a new market",
            )
        time.sleep(0.1)
    popen.terminate()
    raise TryLater(f"the market is not up after {UP_SECONDS:.0f} s", hint=f"the logs are in {folder / 'logs'}")


def _require_same(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Raises UsageError unless the market of a folder, if it has one, is of these options."""
    kept = LocalState.load(folder)
    other = [] if kept is None else [name for name, value in wanted.items() if getattr(kept.options, name) != value]
    if kept is not None and other:
        told = " and ".join(f"{name.replace('_', ' ')} {getattr(kept.options, name)}" for name in other)
        raise UsageError(
            f"the market that is kept in {folder} has {told}",
            hint="`lockstep local up` resumes it; `lockstep local up --fresh` with your options removes its data and "
            "starts a new one",
        )


@contextlib.contextmanager
def to_keep(folder: Path, options: LocalOptions) -> Iterator[None]:
    """Hold the folder for a demo that makes its market there; what it made is the market's once it has ended well.

    Raises GuardRefused if a market is kept there, up or not.
    """
    up = lock.holder(folder)
    # INVARIANT: a market that somebody keeps is never written over.
    if up is not None or (folder / MADE).exists():
        raise GuardRefused(
            f"a {up.who} is at work in {folder}" if up is not None else f"{folder} holds a market that is down",
            hint="`lockstep local down` stops it, `lockstep local up` resumes it; for another one in parallel, name "
            "another folder in LOCKSTEP_LOCAL",
        )
    if folder.exists():
        _remove(folder)
    with lock.held(folder, DEMO):
        # From now on the folder is known for a market's: one that was cut off in the making is made anew.
        LocalState(options).save(folder)
        yield
        (folder / MADE).touch()


def down(folder: Path) -> bool:
    """Ends the market and keeps its data; returns True if it was running."""
    holder = lock.holder(folder)
    if holder is None:
        with contextlib.suppress(FileNotFoundError):
            networks_file(folder).unlink()
        return False
    if holder.who != HOLDER:
        raise GuardRefused(f"a {holder.who} works in {folder}", hint="wait until it has finished")
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_SECONDS
    while lock.holder(folder) is not None:
        if time.monotonic() > deadline:
            raise TryLater(f"process {holder.pid} has not ended", hint=f"its log is in {folder / 'logs'}")
        time.sleep(0.1)
    if (left := LocalState.load(folder)) is not None and left.failure:
        raise LockstepError(
            f"the market shut down uncleanly: {left.failure}", hint="run `lockstep local up` to continue"
        )
    return True


def status(folder: Path) -> LocalState | None:
    """Returns the market's state as its supervisor last wrote it; None if it is not running."""
    return None if lock.holder(folder) is None else LocalState.load(folder)


def networks_file(folder: Path) -> Path:
    """Returns the file by which every command finds the market."""
    return folder / networks.local_file().name


def member(i: int) -> str:
    """Name of a worker of the market."""
    return f"member-{i}"


def _up_already(folder: Path) -> LocalState:
    holder = lock.holder(folder)
    if holder is not None and holder.who == DEMO:
        raise GuardRefused(f"a {DEMO} makes a market in {folder}", hint="it is up once the demo has ended")
    deadline = time.monotonic() + UP_SECONDS
    while not networks_file(folder).exists():
        if time.monotonic() > deadline or lock.holder(folder) is None:
            raise TryLater("another `local up` or `down` is running", hint="try again in a moment")
        time.sleep(0.1)
    return _loaded(folder)


def _loaded(folder: Path) -> LocalState:
    state = LocalState.load(folder)
    assert state is not None, "the caller wrote it"
    return state


def _remove(folder: Path) -> None:
    """Removes a market's folder with all its contents; raises DoctorError if it is not a market's."""
    if any(folder.iterdir()) and not (folder / STATE).exists():
        raise DoctorError(
            f"{folder} is not the folder of a local market", hint="name an empty folder in LOCKSTEP_LOCAL"
        )
    shutil.rmtree(folder)


# -- the supervisor


@dataclass
class _Post:
    """A member's command and its present process."""

    name: str
    role: str
    arguments: list[str]
    process: Process
    lie: Lie | None = None
    restarts: int = 0


class Supervisor:
    """Keeps the processes of one market running until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._backoff: Backoff[str] = Backoff(RESTART_SECONDS, RESTART_MOST)

    def run(self) -> None:
        """Runs until SIGTERM. Raises the error that keeps the market from starting."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: self._stop.set())
        state = _loaded(self._folder)
        with self._devnet(state.options) as devnet, Group(self._folder / "logs") as group:
            world = self._world(group, devnet, state.options)
            posts = self._start(world, state.options)
            state = self._written(state, world, posts)
            try:
                self._publish(state)
                while not self._stop.wait(POLL_SECONDS):
                    if self._revive(world, posts):
                        state = self._written(state, world, posts)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    networks_file(self._folder).unlink()

    def _devnet(self, options: LocalOptions) -> Devnet:
        folder = self._folder
        if not (folder / MADE).exists():
            # A market that was cut off in the making holds nothing that anybody knows of.
            for part in [p for p in folder.iterdir() if p.name not in (STATE, "logs", lock.FILE_NAME)]:
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        return Devnet(
            folder / "chain", seed=options.seed, block_seconds=options.block_seconds, keep_state=True,
            port=options.rpc_port,
        )  # fmt: skip

    def _world(self, group: Group, devnet: Devnet, options: LocalOptions) -> World:
        if (self._folder / MADE).exists():
            return reopen(self._folder, group, options.seed, devnet, options.storage_port)
        names = [*YOURS, "coordinator", AUDITOR, *(member(i) for i in range(options.workers))]
        world = build(self._folder, group, options.seed, devnet, names, storage_port=options.storage_port)
        (self._folder / MADE).touch()
        return world

    def _start(self, world: World, options: LocalOptions) -> list[_Post]:
        posts = []

        def post(name: str, role: str, arguments: list[str], lie: Lie | None = None) -> Process:
            process = world.join(name, role, arguments, lie=lie)
            posts.append(_Post(name, role, arguments, process, lie))
            return process

        first = post("coordinator", "coordinator", ["coordinator", "up", "--port", str(options.coordinator_port)])
        url = first.wait_for("ready", READY_SECONDS)["url"]
        posts[0].arguments[-1] = url.rpartition(":")[2]
        if not options.liar:
            post(AUDITOR, "verifier", ["verifier", "up", "--coordinator", url])
        for i in range(options.workers):
            lie = (LIE, options.seed) if options.liar and i == options.workers - 1 else None
            post(member(i), "worker", ["worker", "up", "--max-stake", "all", "--coordinator", url], lie)
        for joined in posts[1:]:
            joined.process.wait_for("ready", READY_SECONDS)
        return posts

    def _revive(self, world: World, posts: list[_Post]) -> bool:
        """Restarts members that have ended; returns True if there were any."""
        revived, now = False, time.monotonic()
        for post in posts:
            if post.process.running:
                continue
            if post.name not in self._backoff or not self._backoff.in_backoff(post.name, now):
                self._backoff.failed(post.name, now)
                post.process = world.join(post.name, post.role, post.arguments, lie=post.lie)
                post.restarts += 1
                revived = True
        return revived

    def _written(self, state: LocalState, world: World, posts: list[_Post]) -> LocalState:
        members = tuple(
            Member(p.name, p.role, world.account(p.name).address, p.process.popen.pid, p.restarts) for p in posts
        )
        coordinator = posts[0].process.wait_for("ready", READY_SECONDS)["url"]
        ports: dict[str, Any] = {
            "rpc_port": _port(world.devnet.url), "coordinator_port": _port(coordinator),
            "storage_port": _port(world.storage_http),
        }  # fmt: skip
        found = replace(
            state, options=replace(state.options, **ports), rpc=world.devnet.url, storage=world.storage_url,
            coordinator=coordinator, members=members, failure="",
        )  # fmt: skip
        found.save(self._folder)
        return found

    def _publish(self, state: LocalState) -> None:
        """Writes the entry by which every command finds the market, once everything runs."""
        values = {
            "rpc": state.rpc, "storage": state.storage, "deployment": "deployment.json",
            "coordinator": state.coordinator, "home": "{role}", "password_file": "{role}/password",
        }  # fmt: skip
        lines = [f"[{networks.LOCAL}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        write_atomically(networks_file(self._folder), ["\n".join([*lines, ""]).encode()])


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].rstrip("/"))


@contextlib.contextmanager
def contracts_of(folder: Path, state: LocalState) -> Iterator[tuple[Contracts, Seconds]]:
    """The market's contracts and the chain's time, to be read by `status`."""
    from lockstep.chain.rpc import connect

    addresses = Addresses.load(folder / "deployment.json")
    w3 = connect(state.rpc, addresses.chain_id)
    yield Contracts.at(w3, addresses), Seconds(w3.eth.get_block("latest")["timestamp"])


def main(folder: Path) -> int:
    """Runs the supervisor's process."""
    from lockstep.runtime import logs

    logs.configure()
    try:
        with lock.held(folder, HOLDER):
            try:
                Supervisor(folder).run()
            except LockstepError as error:
                replace(_loaded(folder), failure=f"{error.message}; {error.hint}", members=()).save(folder)
                raise
    except LockstepError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
