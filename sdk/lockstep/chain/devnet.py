"""A local chain: Anvil's native binary on a port of its own, with accounts from a seed and optionally persistent
state."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lockstep.base.files import write_atomically
from lockstep.base.libc import libc
from lockstep.base.log import Logger
from lockstep.chain.deployment import deploy
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import ChainError, DoctorError, LockstepError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Seconds

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

__all__ = ["CHAIN_ID", "HARDFORK", "Devnet", "Local", "deploy", "find_anvil", "key_of"]

CHAIN_ID = 31_337
"""The chain id of Anvil."""
HARDFORK = "prague"
FUNDING_WEI = 10**22
BLOCKS_A_REQUEST = 200
KEPT_STATES = 256
"""Number of latest blocks whose states a persistent chain keeps: more than any role needs."""
SAVE_SECONDS, SAVE_SHARE = 5.0, 20.0
"""Pause between two writes of the state: seconds, or this multiple of the last write's duration."""
DUMP_SECONDS = 300.0
"""Longest wait in seconds for Anvil to return its state."""
START_SECONDS, LOADED_A_SECOND = 20.0, 5e6
"""Longest wait in seconds for Anvil to start, plus the least bytes of state that it reads per second."""
log = Logger(__name__)
_LISTENING = re.compile(r"Listening on 127\.0\.0\.1:(\d+)")
_NO_ANVIL = "`npm install @foundry-rs/anvil` in this folder, or name Foundry's anvil in PATH or LOCKSTEP_ANVIL"
_PACKAGES = ("anvil-linux-amd64", "anvil-linux-arm64", "anvil-darwin-arm64", "anvil-darwin-amd64")


def find_anvil() -> Path:
    """Finds the native binary: by LOCKSTEP_ANVIL, in the npm package near this source or the working folder, in PATH,
    or where Foundry's installer puts it.

    npm's own `anvil` is skipped: it is a script that, when killed, leaves the binary running.
    """
    if named := os.environ.get("LOCKSTEP_ANVIL"):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise DoctorError(f"LOCKSTEP_ANVIL is {named}, which is not a program", hint=_NO_ANVIL)
        return Path(named)
    for start in (Path(__file__).resolve(), Path.cwd() / "x"):
        for folder in start.parents:
            for package in _PACKAGES:
                binary = folder / "node_modules/@foundry-rs" / package / "bin/anvil"
                if binary.is_file():
                    return binary
    for found in (which("anvil"), which("anvil", path=str(Path("~/.foundry/bin").expanduser()))):
        if found and not _is_script(Path(found)):
            return Path(found)
    raise DoctorError("a local chain needs Anvil, and it was not found", hint=_NO_ANVIL)


def _is_script(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"#!"


def key_of(seed: int, name: str) -> bytes:
    """Derives a devnet account's private key from seed and name; worthless on any other chain."""
    return keccak(f"lockstep devnet {seed} {name}".encode())


def move_time(w3: Web3, seconds: Seconds) -> Seconds:
    """Moves a local chain's time forward and mines one block; returns its timestamp. Raises ChainError elsewhere."""
    _request(w3, "evm_increaseTime", [int(seconds)])
    _request(w3, "evm_mine", [])
    return Seconds(w3.eth.get_block("latest")["timestamp"])


def _request(w3: Web3, method: str, params: list[object]) -> object:
    answer = w3.provider.make_request(method, params)  # type: ignore[arg-type]
    if "error" in answer:
        raise ChainError(f"{method}: {answer['error']}", "this needs a local Anvil chain")
    return answer["result"]


class Local(ABC):
    """The controls of a local chain: its user funds accounts, moves time, mines and reverts."""

    seed: int
    w3: Web3

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the chain's JSON-RPC."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the chain; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def account(self, name: str) -> LocalAccount:
        """Returns the account of `name`, funded with the chain's coin if it has none."""
        from eth_account import Account

        account = Account.from_key(key_of(self.seed, name))
        if self.w3.eth.get_balance(account.address) == 0:
            self._request("anvil_setBalance", [account.address, hex(FUNDING_WEI)])
        return account

    def advance(self, seconds: Seconds) -> Seconds:
        """Moves chain time forward and mines one block; returns its timestamp."""
        return move_time(self.w3, seconds)

    def resume(self) -> None:
        """Continues chain time from the last block's timestamp."""
        self._request("evm_setTime", [int(self.w3.eth.get_block("latest")["timestamp"]) + 1])

    def mine(self, blocks: int) -> None:
        """Mines empty blocks, in batches that a busy machine answers in time."""
        while blocks > 0:
            self._request("anvil_mine", [hex(min(blocks, BLOCKS_A_REQUEST))])
            blocks -= BLOCKS_A_REQUEST

    def stop_mining(self) -> None:
        """Stops mining: transactions wait in the pool."""
        self._request("evm_setIntervalMining", [0])
        self._request("evm_setAutomine", [False])

    def snapshot(self) -> str:
        """Takes a snapshot; returns a mark for `revert`."""
        return str(self._request("evm_snapshot", []))

    def revert(self, mark: str) -> None:
        """Reverts the chain to a mark; to an observer this is a reorganisation."""
        self._request("evm_revert", [mark])

    def _request(self, method: str, params: list[object]) -> object:
        return _request(self.w3, method, params)


class Devnet(Local):
    """One running Anvil process. Use it as a context manager, or call `stop`."""

    def __init__(
        self, directory: Path, *, seed: int = 0, block_seconds: int = 1, keep_state: bool = False,
        genesis_time: Seconds | None = None, remembered: int | None = None, port: int = 0,
    ) -> None:  # fmt: skip
        """Starts the chain, with log and state in `directory`. Raises `DoctorError` or `ChainError`.

        `block_seconds` 0: a block for every transaction, at once.
        `keep_state`: a chain that was stopped continues where it was, and one that was killed where
        `directory`/state.json last had it whole, at the time of that block: no deadline passes while it is down. The
        states before that block are not kept, and while it runs those of the last KEPT_STATES are.
        `genesis_time`: of the first block, instead of now: the same blocks have the same hashes in every run.
        `remembered`: the states of that many blocks are kept, in memory; otherwise all of them, the older ones on disk,
        where a chain of many blocks takes gigabytes. `port` 0: any that is free.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.seed = seed
        self._log = directory / "anvil.log"
        command = [
            str(find_anvil()), "--host", "127.0.0.1", "--port", str(port), "--chain-id", str(CHAIN_ID),
            "--hardfork", HARDFORK, "--accounts", "1", "--order", "fifo",
        ]  # fmt: skip
        self._state = directory / "state.json" if keep_state else None
        self._stopped = threading.Event()
        self._saver: threading.Thread | None = None
        continues = self._state is not None and self._state.exists()
        if continues:
            # Blocks wait until the chain's clock is set back.
            command += ["--no-mining"]
        elif block_seconds:
            command += ["--block-time", str(block_seconds)]
        if genesis_time is not None:
            command += ["--timestamp", str(genesis_time)]
        if remembered is not None:
            command += ["--prune-history", str(remembered)]
        elif keep_state:
            command += ["--prune-history", str(KEPT_STATES)]
        seconds = START_SECONDS
        if self._state is not None and continues:
            command += ["--load-state", str(self._state)]
            seconds += self._state.stat().st_size / LOADED_A_SECOND
        with self._log.open("w") as written:
            self._process = subprocess.Popen(
                command, stdout=written, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
            )
        try:
            self._url = f"http://127.0.0.1:{self._port(seconds)}"
            self.w3 = connect(self._url, CHAIN_ID)
            if continues:
                self.resume()
                self._begin_mining(block_seconds)
        except BaseException:
            self._end()
            raise
        if self._state is not None:
            # Left by a process that was killed during a write.
            for left in directory.glob(f".{self._state.name}.*"):
                left.unlink()
            self._saver = threading.Thread(target=self._keep, name="devnet state", daemon=True)
            self._saver.start()

    @property
    def url(self) -> str:
        """The URL of the chain's JSON-RPC."""
        return self._url

    @property
    def pid(self) -> int:
        """The process id of Anvil."""
        return self._process.pid

    def stop(self) -> None:
        """Ends the process and waits for it; a persistent state is then on disk.

        Raises ChainError if the last state could not be written: the chain then continues from the state written
        before.
        """
        self._stopped.set()
        if self._saver is not None:
            self._saver.join()
            self._saver = None
            try:
                if self._process.poll() is None:
                    self._save()
            except ChainError:
                # A killed process has no state to return.
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(2)
                    return
                raise
            finally:
                self._end()
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _keep(self) -> None:
        """Saves the state periodically, less often the longer it takes, because Anvil answers no requests meanwhile."""
        pause = SAVE_SECONDS
        while not self._stopped.wait(pause):
            begun = time.monotonic()
            try:
                self._save()
            except LockstepError as error:
                if self._process.poll() is not None:
                    return
                log.warning("the chain's state could not be written: it is tried again", why=error.message)
            pause = max(SAVE_SECONDS, SAVE_SHARE * (time.monotonic() - begun))

    def _save(self) -> None:
        """Saves the state atomically. Anvil's own option would write into the file that it later reads."""
        assert self._state is not None, "asked for a chain that keeps its state alone"
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "anvil_dumpState", "params": [False]}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=DUMP_SECONDS) as answer:
                packed = bytes.fromhex(json.load(answer)["result"][2:])
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as state:
                write_atomically(self._state, iter(lambda: state.read(1 << 20), b""))
        except (OSError, ValueError, LookupError, EOFError) as error:
            raise ChainError(
                f"the chain's state could not be read from Anvil: {error}",
                f"the market continues from the last written state, {self._state}",
            ) from error

    def _begin_mining(self, block_seconds: int) -> None:
        if block_seconds:
            self._request("evm_setIntervalMining", [block_seconds])
        else:
            self._request("evm_setAutomine", [True])

    def _port(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if match := _LISTENING.search(self._log.read_text(errors="replace")):
                return int(match[1])
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        tail = self._log.read_text(errors="replace")[-400:].strip()
        raise DoctorError(f"Anvil did not start: {tail or 'no output'}", f"see {self._log}")


def die_with_parent() -> None:
    """On Linux, makes the chain end when its parent is killed; on other systems only `stop` ends it."""
    if sys.platform == "linux":
        libc().prctl(1, signal.SIGTERM)
