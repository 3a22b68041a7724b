"""Lists the payments of a game (its bond, the claim's stake) from the vault's events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.protocol.dispute import moves
from lockstep.protocol.types import Address, GameId, Wei

if TYPE_CHECKING:
    from lockstep.chain.events import Event

BOND = "bond locked"
"""Name of the payment that opens a game."""


@dataclass(frozen=True)
class Payment:
    """An amount that a game locked, moved or returned."""

    what: str
    account: Address | None
    amount: Wei

    def to_dict(self) -> dict[str, Any]:
        """Returns the payment as JSON; the amount is a decimal string."""
        return {"what": self.what, "account": self.account, "amount": str(self.amount)}


def payments_of(event: Event, game: GameId, opened: moves.Opened) -> list[Payment]:
    """Returns the payments of a game that a vault event reports."""
    a, claim = event.args, opened.claim
    match event.name:
        case "Locked" if a["key"] == game:
            return [Payment(BOND, a["account"], Wei(a["amount"]))]
        case "Unlocked" if a["key"] == game:
            return [Payment("bond returned", a["account"], Wei(a["amount"]))]
        case "BondTaken" if a["key"] == game:
            return [
                Payment("bond taken", a["account"], Wei(a["amount"])),
                Payment("bond to the defender", opened.defender, Wei(a["to_defender"])),
                Payment("bond burned", None, Wei(a["burned"])),
            ]
        case "Slashed" if a["key"] == claim:
            parts = [
                Payment("stake slashed", a["account"], Wei(a["amount"])),
                Payment("slash to challengers", None, Wei(a["to_challenger"])),
                Payment("slash to the requester", None, Wei(a["to_requester"])),
                Payment("slash to lost work", None, Wei(a["owed"])),
                Payment("slash burned", None, Wei(a["burned"])),
            ]
            return [parts[0], *(p for p in parts[1:] if p.amount)]
        case "Credited" if a["amount"]:
            return [Payment("credited", a["account"], Wei(a["amount"]))]
    return []
