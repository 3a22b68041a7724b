"""The chain in memory beside Anvil: a read, a transaction with its receipt, a deployment, a round of a small job.

    python benchmarks/chain.py            a table
    python benchmarks/chain.py --json     one line of JSON on stdout

Both sides of a figure run turn by turn in one process, through the same web3; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from measure import in_turn

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from lockstep.chain.contracts import Contracts  # noqa: E402
from lockstep.chain.deployment import deploy  # noqa: E402
from lockstep.chain.devnet import Devnet, Local  # noqa: E402
from lockstep.protocol.types import Address, Wei  # noqa: E402
from tests.support.memory.devnet import MemoryDevnet  # noqa: E402

RUNS = 60


class MeasuredChain:
    """One chain, with the contracts and an account whose stake the vault may pull."""

    def __init__(self, chain: Local) -> None:
        self.chain = chain
        self.names = count()
        chain._request("anvil_autoImpersonateAccount", [True])
        self.contracts = Contracts.at(chain.w3, deploy(chain.w3, chain.account("deployer")))
        self.me = Address(chain.account("somebody").address)
        for call in (
            self.contracts.token.mint(self.me, Wei(10**9)),
            self.contracts.token.approve(self.contracts.vault.address, Wei(10**9)),
        ):
            self._send(call.to, call.data)

    def _send(self, to: str, data: bytes) -> object:
        request = {"from": self.me, "to": to, "data": "0x" + data.hex(), "gas": hex(800_000)}
        hash_ = self.chain._request("eth_sendTransaction", [request])
        while (receipt := self.chain._request("eth_getTransactionReceipt", [hash_])) is None:
            pass
        return receipt

    def read(self) -> object:
        """One eth_call."""
        return self.contracts.vault.free(self.me)

    def transaction(self) -> object:
        """One transaction, mined, with its receipt."""
        call = self.contracts.vault.deposit(Wei(1))
        return self._send(call.to, call.data)

    def deployment(self) -> object:
        """Ten signed creations."""
        return deploy(self.chain.w3, self.chain.account(f"deployer {next(self.names)}"))


def main() -> int:
    """Measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Devnet(Path(folder), block_seconds=0) as anvil:
        sides = (MeasuredChain(MemoryDevnet()), MeasuredChain(anvil))
        figures: dict[str, dict[str, float]] = {}
        acts: dict[str, tuple[int, Callable[[MeasuredChain], object]]] = {
            "read": (RUNS, MeasuredChain.read), "transaction": (RUNS, MeasuredChain.transaction),
            "deployment": (7, MeasuredChain.deployment),
        }  # fmt: skip
        for name, (runs, act) in acts.items():
            memory, real = in_turn(runs, *((lambda side=side, act=act: act(side)) for side in sides))
            mine, theirs = statistics.median(memory), statistics.median(real)
            figures[name] = {"memory_ms": 1e3 * mine, "anvil_ms": 1e3 * theirs, "ratio": mine / theirs}
    if asked.json:
        print(json.dumps(figures))
        return 0
    for name, found in figures.items():
        print(f"{name:12} {found['memory_ms']:8.2f} ms {found['anvil_ms']:8.2f} ms  ratio {found['ratio']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
