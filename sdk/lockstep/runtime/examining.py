"""Checks before a process starts: key, home, chain, contracts, store, money, machine.

    results = Examination(settings, "worker").run()
    [result.line() for result in results]

Checks change nothing, except that they write sixteen bytes to the store. A check whose precondition failed (without a
chain no contracts) is skipped, because its failure would add no information.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN, tokens
from lockstep.base.decoding import U64, account, either, from_json, nothing, whole
from lockstep.base.machine import memory, readable
from lockstep.base.published import MAX_BYTES, fetched
from lockstep.base.redaction import redacted, urls_of
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import CHAIN_ID
from lockstep.chain.keys import KEYSTORE, NODE_KEY, load_account, load_node_key
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import (
    ChainError,
    DoctorError,
    FundsError,
    GuardRefused,
    KeyStoreError,
    LockstepError,
    Malformed,
    Mismatch,
    Unreachable,
    UsageError,
)
from lockstep.protocol.types import Address
from lockstep.runtime.guard import lock
from lockstep.runtime.staking import Holdings
from lockstep.storage import open_store

if TYPE_CHECKING:
    from web3 import Web3

    from lockstep.base.settings import Settings

GAME_GAS = 2_000_000
"""Gas of one side in a whole game, rounded up (docs/measured.md): an account with less coin cannot defend a claim."""
DISK_BYTES = 1 << 30
MEMORY_BYTES = 512 << 20
SKEW_SECONDS = 60
"""The most that the latest block may be ahead of this machine's clock."""
STALE_SECONDS = 900
"""Age of the latest block above which the node counts as not following the chain."""
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    check: str
    ok: bool
    message: str
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as JSON."""
        return {"check": self.check, "ok": self.ok, "message": self.message, "hint": self.hint}

    def line(self) -> str:
        """Returns the result as a line of text, with the hint on a second line if the check failed."""
        head = f"{'ok    ' if self.ok else 'FAILED'}  {self.check}: {self.message}"
        return head if self.ok or not self.hint else f"{head}\n        {self.hint}"


def checked(name: str, run: Callable[[], str]) -> Result:
    """Runs a check; returns its message, or its error's message and hint."""
    try:
        return Result(name, True, run())
    except LockstepError as error:
        return Result(name, False, error.message, error.hint)


class Examination:
    """Runs the checks of one role."""

    def __init__(self, settings: Settings, role: str) -> None:
        self._settings = settings
        self._role = role
        self._address: Address | None = None
        self._addresses: Addresses | None = None
        self._w3: Web3 | None = None

    def run(self, *more: tuple[str, Callable[[], str]]) -> list[Result]:
        """Runs every check, and the role's own checks (`more`) at the end."""
        results = [
            checked("home", self._home),
            checked("key", self._key),
            checked("device", self._device),
            checked("memory", self._memory),
            checked("disk", self._disk),
            checked("storage", self._storage),
            checked("deployment", self._deployment),
        ]
        if self._role != "verifier":
            results.append(checked("node key", self._node_key))
        if self._addresses is not None:
            results.append(checked("chain", self._chain))
            if self._settings.rpc_check:
                results.append(checked("second provider", self._second))
        if self._w3 is not None:
            results += [checked("contracts", self._code), checked("clock", self._clock)]
        if self._w3 is not None and self._address is not None and results[-2].ok:
            results += [checked("gas", self._gas), checked("stake", self._stake)]
        results += [
            checked(f"coordinator {redacted(url)}", lambda url=url: self._coordinator(url))  # type: ignore[misc]
            for url in urls_of(self._settings.coordinator)
        ]
        return results + [checked(name, run) for name, run in more]

    # -- this machine

    def _home(self) -> str:
        path = self._settings.home_path
        if not path.is_dir():
            raise KeyStoreError(f"the home {path} does not exist", "create one: `lockstep key new --home DIR`")
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise DoctorError(f"{path} cannot be written by this user", "run as the user whose home it is")
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o022:
            raise DoctorError(f"others may write into {path} (mode {mode:o})", f"chmod 700 {path}")
        holder = lock.holder(path)
        if holder is None:
            return f"{path}; nothing runs in it"
        if holder.who != self._role:
            raise GuardRefused(
                f"a {holder.who} (process {holder.pid}) works in {path}",
                "give each process a home and a key of its own, or stop that one",
            )
        return f"{path}; the {holder.who} runs in it (process {holder.pid})"

    def _key(self) -> str:
        account = load_account(self._settings.home_path / KEYSTORE, self._settings.password())
        self._address = Address(account.address)
        return str(account.address)

    def _node_key(self) -> str:
        path = self._settings.home_path / NODE_KEY
        if not path.exists():
            return "made at the first start"
        return bytes(load_node_key(path).verify_key).hex()

    def _device(self) -> str:
        try:
            from lockstep.numerics.devices import choose
        except ImportError as error:
            raise DoctorError(f"the native kernels are missing: {error}", "run `make setup`") from error
        chosen = choose(self._settings.device)
        return f"{chosen.device}, {chosen.name}: the self-test passed"

    def _memory(self) -> str:
        found = memory()
        if found.available < MEMORY_BYTES:
            raise DoctorError(
                f"{readable(found.available)} of memory are available", f"free at least {readable(MEMORY_BYTES)}"
            )
        return f"{readable(found.available)} of {readable(found.total)} are available"

    def _disk(self) -> str:
        place = self._settings.home_path
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < DISK_BYTES:
            raise DoctorError(f"{readable(free)} are free at {place}", f"free at least {readable(DISK_BYTES)}")
        return f"{readable(free)} are free at {place}"

    # -- what it reaches

    def _storage(self) -> str:
        with open_store(self._settings.storage) as store:
            store.check()
            written = os.urandom(16)
            cid = store.put(written)
            if store.get(cid, max_bytes=16) != written:
                raise Mismatch(f"{store.name} does not give back what it took", "name another --storage")
            return f"{store.name} took a block and gave it back"

    def _deployment(self) -> str:
        self._addresses = Addresses.load(self._settings.deployment)
        return f"{self._settings.deployment}, market {self._addresses.market}"

    def _chain(self) -> str:
        assert self._addresses is not None
        w3 = connect(self._settings.rpc, self._addresses.chain_id)
        number = int(w3.eth.block_number)
        self._w3 = w3
        return f"chain {self._addresses.chain_id} by {redacted(self._settings.rpc)}, block {number}"

    def _second(self) -> str:
        assert self._addresses is not None
        number = int(connect(self._settings.rpc_check, self._addresses.chain_id).eth.block_number)
        return f"{redacted(self._settings.rpc_check)}, block {number}"

    def _code(self) -> str:
        assert self._w3 is not None
        assert self._addresses is not None
        for name in CONTRACTS:
            address = getattr(self._addresses, name)
            if not self._w3.eth.get_code(self._w3.to_checksum_address(address)):
                raise ChainError(
                    f"no contract exists at {address}, where the {name} should be",
                    "the file of addresses is of another chain, or of one that was started anew",
                )
        return f"all {len(CONTRACTS)} have code"

    def _clock(self) -> str:
        assert self._w3 is not None
        assert self._addresses is not None
        ahead = int(self._w3.eth.get_block("latest")["timestamp"]) - int(time.time())
        message = f"the latest block is {abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock"
        # Testers move a local chain's time at will.
        if self._addresses.chain_id == CHAIN_ID:
            return f"{message}; a local chain's time is moved at will"
        if ahead > SKEW_SECONDS:
            raise DoctorError(message, "set this machine's clock: run an NTP client")
        if -ahead > STALE_SECONDS:
            raise DoctorError(message, "the node does not follow the chain, or this machine's clock is wrong")
        return message

    def _gas(self) -> str:
        assert self._w3 is not None
        coin = int(self._w3.eth.get_balance(self._w3.to_checksum_address(str(self._address))))
        game = GAME_GAS * int(self._w3.eth.gas_price)
        message = f"{tokens(coin, 4, COIN)}, a game costs about {tokens(game, 4, COIN)} at the present price"
        if coin == 0 or coin < game:
            raise FundsError(
                message, f"send {self._address} some of the chain's coin: silence in a game costs the stake"
            )
        return message

    def _stake(self) -> str:
        assert self._w3 is not None
        assert self._addresses is not None
        held = Holdings.of(Contracts.at(self._w3, self._addresses), Address(str(self._address)))
        message = f"{tokens(held.free)} staked and free, {tokens(held.wallet)} in the wallet"
        if held.free + held.wallet == 0:
            what = {"worker": "claims are staked", "verifier": "challenges take a bond"}.get(
                self._role, "merges are staked"
            )
            raise FundsError(message, f"send {self._address} the market's token: {what}")
        return message

    def _coordinator(self, url: str) -> str:
        try:
            found = from_json(fetched(url.rstrip("/"), "/api/v1/status"), MAX_BYTES)
            market, block = account(found["market"], "market"), either(nothing, whole(0, U64))(found["block"], "block")
        except (Malformed, UsageError, LookupError, TypeError) as error:
            raise Unreachable(
                f"its answer is not a coordinator's: {error}", "check the URL; a process works without one, too"
            ) from error
        if self._addresses is not None and market.lower() != self._addresses.market.lower():
            raise Mismatch(
                f"the coordinator serves another market, {market}", "name the coordinator of this deployment"
            )
        return f"it is at block {block}"
