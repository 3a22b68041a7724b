"""Facts about chains by id, as far as they differ from Ethereum and matter to a market.

    id, name    of the chain
    stack       "ethereum", "op", "arbitrum" or "devnet": whose rules of fees and forced inclusion it has
    preset      of `presets.CHAINS`: the deployment's assumptions about that chain

On Arbitrum, `block.number` is an estimate of the parent chain's block number (Arbitrum docs, "Block numbers and time"),
and `blockhash` is not the hash of any block. The contracts derive seeds from both, so such chains are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.protocol.errors import ChainError

if TYPE_CHECKING:
    from web3 import Web3

ARB_SYS = "0x0000000000000000000000000000000000000064"
"""The address of the precompile ArbSys on every chain of Arbitrum's stack, Orbit chains included."""


@dataclass(frozen=True)
class ChainFacts:
    """Facts about one chain: its stack, which decides fees and block numbers, and if it is public."""

    id: int
    name: str
    stack: str
    public: bool = True
    """True if its coin has value or others use the chain; a test token must then be chosen explicitly."""

    @property
    def preset(self) -> str:
        """The chain's key in `presets.CHAINS`."""
        return {"op": "op-stack"}.get(self.stack, self.stack)

    @property
    def foreign_blocks(self) -> bool:
        """True if contracts see the block numbers of another chain."""
        return self.stack == "arbitrum"

    @property
    def data_fee(self) -> bool:
        """True if a transaction pays for its bytes on another chain, in addition to its gas."""
        return self.stack in ("op", "arbitrum")


KNOWN = {
    facts.id: facts
    for facts in (
        ChainFacts(1, "Ethereum", "ethereum"),
        ChainFacts(11_155_111, "Sepolia", "ethereum"),
        ChainFacts(17_000, "Holesky", "ethereum"),
        ChainFacts(560_048, "Hoodi", "ethereum"),
        ChainFacts(10, "OP Mainnet", "op"),
        ChainFacts(11_155_420, "OP Sepolia", "op"),
        ChainFacts(8453, "Base", "op"),
        ChainFacts(84_532, "Base Sepolia", "op"),
        ChainFacts(42_161, "Arbitrum One", "arbitrum"),
        ChainFacts(42_170, "Arbitrum Nova", "arbitrum"),
        ChainFacts(421_614, "Arbitrum Sepolia", "arbitrum"),
        ChainFacts(31_337, "a devnet", "devnet", public=False),
        ChainFacts(1337, "a devnet", "devnet", public=False),
    )
}


def facts_of(chain_id: int) -> ChainFacts | None:
    """Returns the known facts of a chain; None if there are none."""
    return KNOWN.get(chain_id)


def require_own_blocks(chain_id: int) -> None:
    """Raises `ChainError` (`chain.foreign_blocks`) for a chain whose contracts see another chain's block numbers."""
    facts = facts_of(chain_id)
    # INVARIANT: a seed is the hash of a block yet to come: no market where contracts see no blocks of their own.
    if facts is not None and facts.foreign_blocks:
        raise _foreign(facts.name, chain_id)


def require_no_arb_sys(w3: Web3) -> None:
    """Raises `ChainError` (`chain.foreign_blocks`) for an unlisted chain of Arbitrum's stack (an Orbit chain)."""
    if w3.eth.get_code(ARB_SYS):  # type: ignore[arg-type]
        raise _foreign("this chain of Arbitrum's stack", w3.eth.chain_id)


def _foreign(name: str, chain_id: int) -> ChainError:
    return ChainError(
        f"on {name} (chain {chain_id}) block.number is another chain's and blockhash draws no seed",
        "take Ethereum or a chain of the OP stack: docs/public-chain.md lists them",
        code="chain.foreign_blocks",
    )
