"""Fees of a transaction on three kinds of chain: gas, and for a rollup its bytes on the parent chain.

    ethereum    gas x base fee                                            EIP-1559
    op          gas x L2 base fee + L1 data fee, Ecotone or Fjord         OP Stack specs, "L1-Cost fees"
    arbitrum    (gas + L1 gas) x L2 base fee, L1 gas = 16 x compressed bytes x price / L2 base fee, rounded down
                                                                          nitro, see below

Ecotone:  (4 zeros + 16 others) / 16 x (16 x base_fee_scalar x l1_base_fee + blob_scalar x blob_base_fee) / 10^6
Fjord:    max(100, -42.5856 + 0.8365 x fastlz) x (the same) / 10^6

Sources: GasPriceOracle.sol of ethereum-optimism/optimism (packages/contracts-bedrock/src/L2: `_getL1FeeEcotone`,
`_getL1FeeFjord`, COST_INTERCEPT, COST_FASTLZ_COEF, MIN_TRANSACTION_SIZE), and "L1-Cost fees" of the Fjord
specification; OffchainLabs/nitro, arbos/l1pricing/l1pricing.go (`getPosterUnitsWithoutCache`, `GetPosterInfo`) and
arbos/tx_processor.go (`GetPosterGas`, `GasChargingHook`). No contract of either stack is called: the estimate that the
price stands for is ArbGasInfo's `getL1BaseFeeEstimate` (0x6c), in wei a unit, 16 units a byte.

The blob base fee is EIP-4844's. Fees move by the minute: the figures of a profile are round numbers to plan with, and
each can be given. Arbitrum compresses by brotli and the OP Stack prices by FastLZ; both are priced here by FastLZ's
size, which is the larger one. An operator fee (Isthmus) is not counted: OP Mainnet and Base charge none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from lockstep.protocol.errors import UsageError
from lockstep.protocol.market.prices import GAME_GAS

GWEI = 10**9
FJORD_INTERCEPT, FJORD_COEFFICIENT, FJORD_LEAST = -42_585_600, 836_500, 100
"""Regression of batch bytes on FastLZ's size (OP Stack specs, Fjord): intercept and coefficient in millionths, and
minimum.
"""
BYTE_GAS = 16
"""Gas of a nonzero byte of L1 calldata."""


@dataclass(frozen=True)
class FeeProfile:
    """One chain's fee parameters, in wei."""

    stack: str
    base_fee: int
    """Base fee of the chain itself, in wei per gas."""
    l1_base_fee: int = 0
    """Base fee of the parent chain, in wei per gas; on Arbitrum its estimate of the price of L1 calldata."""
    blob_base_fee: int = 0
    base_fee_scalar: int = 0
    blob_scalar: int = 0
    """Scalars of the OP Stack's SystemConfig."""
    fork: str = "fjord"
    """"ecotone" or "fjord"."""

    def __post_init__(self) -> None:
        for name in ("base_fee", "l1_base_fee", "blob_base_fee", "base_fee_scalar", "blob_scalar"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}", hint="give 0 or more")
        if self.base_fee == 0:
            raise UsageError("the base fee is 0", hint="give --base-fee in gwei")


PROFILES = {
    "mainnet": FeeProfile("ethereum", 10 * GWEI),
    "optimism": FeeProfile("op", GWEI // 1000, 10 * GWEI, GWEI, base_fee_scalar=5227, blob_scalar=1_014_213),
    "arbitrum": FeeProfile("arbitrum", GWEI // 100, 10 * GWEI),
}
"""Planning figures: OP Mainnet's scalars, Arbitrum One's least base fee; L1 at 10 gwei, blob gas at 1."""


@dataclass(frozen=True)
class Sent:
    """Gas and signed size of one transaction, or the sums over `calls` transactions."""

    calls: int
    gas: int
    zeros: int
    others: int
    compressed: int
    """Bytes after FastLZ compression."""

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return self.zeros + self.others

    @classmethod
    def of(cls, raw: bytes, gas: int) -> Sent:
        """Measures one signed transaction."""
        zeros = raw.count(0)
        return cls(1, gas, zeros, len(raw) - zeros, fastlz_size(raw))

    def __add__(self, more: Sent) -> Sent:
        return Sent(
            self.calls + more.calls, self.gas + more.gas, self.zeros + more.zeros, self.others + more.others,
            self.compressed + more.compressed,
        )  # fmt: skip


@dataclass(frozen=True)
class Fee:
    """The fee of transactions, in wei of the chain's coin."""

    execution: int
    data: int
    """The fee for the bytes on the parent chain."""

    @property
    def total(self) -> int:
        """Sum of both fees."""
        return self.execution + self.data

    def __add__(self, more: Fee) -> Fee:
        return Fee(self.execution + more.execution, self.data + more.data)


def fee_of(sent: Sent, profile: FeeProfile) -> Fee:
    """Returns the fee of transactions, computed as if each had their mean size."""
    execution = sent.gas * profile.base_fee
    if profile.stack == "op":
        return Fee(execution, _ecotone(sent, profile) if profile.fork == "ecotone" else _fjord(sent, profile))
    if profile.stack == "arbitrum":
        # Nitro rounds down to whole L2 gas (`GetPosterGas`).
        l1_gas = BYTE_GAS * sent.compressed * profile.l1_base_fee // profile.base_fee
        return Fee(execution, l1_gas * profile.base_fee)
    return Fee(execution, 0)


def cover(sent: Sent, profile: FeeProfile) -> float:
    """Returns the factor by which a refund for gas must be multiplied to cover the data fee too: total over
    execution."""
    fee = fee_of(sent, profile)
    return fee.total / fee.execution


def _weighted(profile: FeeProfile) -> int:
    return 16 * profile.base_fee_scalar * profile.l1_base_fee + profile.blob_scalar * profile.blob_base_fee


def _ecotone(sent: Sent, profile: FeeProfile) -> int:
    return (4 * sent.zeros + BYTE_GAS * sent.others) * _weighted(profile) // (16 * 10**6)


def _fjord(sent: Sent, profile: FeeProfile) -> int:
    least = FJORD_LEAST * 10**6 * sent.calls
    size = max(least, FJORD_INTERCEPT * sent.calls + FJORD_COEFFICIENT * sent.compressed)
    return size * _weighted(profile) // 10**12


def fastlz_size(data: bytes) -> int:
    """Returns the size in FastLZ's level-1 format: runs of up to 32 literals after a length byte, matches of two bytes
    up to length 8 and of three up to 264, within 8,191 bytes back; greedy, by the latest occurrence of three bytes."""
    size = literals = at = 0
    seen: dict[bytes, int] = {}
    while at < len(data):
        three = data[at : at + 3]
        back = seen.get(three, -1)
        if len(three) == 3:
            seen[three] = at
        if back < 0 or at - back > 8191:
            literals, at = literals + 1, at + 1
            continue
        length = 3
        while length < 264 and at + length < len(data) and data[back + length] == data[at + length]:
            length += 1
        size += literals + -(-literals // 32) + (2 if length <= 8 else 3)
        for inside in range(at + 1, min(at + length, len(data) - 2)):
            seen[data[inside : inside + 3]] = inside
        literals, at = 0, at + length
    return size + literals + -(-literals // 32)


@cache
def measured() -> Mapping[str, Mapping[str, Sent]]:
    """Maps "deployment", "job" and "game" to the total use of each transaction, as measured on Anvil."""
    text = resources.files(__package__).joinpath("costs.json").read_text()
    rows: dict[str, dict[str, dict[str, Any]]] = json.loads(text)["costs"]
    return {what: {name: Sent(**row) for name, row in of.items()} for what, of in rows.items()}


def total(rows: Mapping[str, Sent]) -> Sent:
    """Returns the sum of a table's rows."""
    return sum(rows.values(), start=Sent(0, 0, 0, 0, 0))


def profile_named(name: str, **given: int | None) -> FeeProfile:
    """Returns a profile, with the values in `given` (wei) replaced. Raises `UsageError`."""
    if name not in PROFILES:
        raise UsageError(f"fee profile {name!r} is unknown", hint=f"use one of {', '.join(PROFILES)}")
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(PROFILES[name], **changes)


def sums() -> dict[str, Sent]:
    """Returns the sums of all measured transactions of "deployment", "job" (10 rounds x 8 slots) and "game", and
    "game_most".

    The last is the most expensive game that the economic rules admit (`prices.GAME_GAS`), in calls of the measured
    game's mean size. The largest Program's game, played by `benchmarks/dispute.py --largest`, takes 22 calls and 2.53 M
    gas.
    """
    found = {what: total(rows) for what, rows in measured().items()}
    game = found["game"]
    # INVARIANT: nothing of it is assumed: the bound is the contracts', the rest scales with the gas.
    calls, zeros, others, compressed = (
        -(-n * GAME_GAS // game.gas) for n in (game.calls, game.zeros, game.others, game.compressed)
    )
    found["game_most"] = Sent(calls, GAME_GAS, zeros, others, compressed)
    return found
