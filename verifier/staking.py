"""Stakes what an act needs, and withdraws what was earned."""

from __future__ import annotations

from lockstep.chain.contracts import Call
from lockstep.protocol.types import Wei
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier import decide
from verifier.telling import Teller


class Wallet:
    """The account's stake and credits in the vault."""

    def __init__(self, party: Party, sender: Sender[None], teller: Teller) -> None:
        self._party = party
        self._sender = sender
        self._teller = teller

    def stake(self, bond: Wei, key: str) -> None:
        """Deposit what is missing of a bond; the key makes it one deposit, whatever crashes. Raises why it cannot."""
        if (deposit := self._missing(bond)) is not None:
            self._party.outbox.send(deposit, f"deposit/{key}")

    def try_stake(self, bond: Wei, key: str) -> bool:
        """The same; tells if the bond is there."""
        deposit = self._missing(bond)
        return deposit is None or self._sender.attempt(f"deposit/{key}", deposit)

    def missing(self, bond: Wei, key: str) -> tuple[str, Call] | None:
        """The deposit, with its key, that has to come before an act which stakes a bond; None if the bond is there."""
        deposit = self._missing(bond)
        return None if deposit is None else (f"deposit/{key}", deposit)

    def withdraw(self, block: int) -> None:
        """Pay the credits out, if there are any."""
        vault = self._party.contracts.vault
        amount = vault.credits(self._party.address)
        if amount and self._sender.attempt(f"withdraw/{block}", vault.withdraw()):
            self._teller.tell("withdrawn", amount=str(amount))

    def _missing(self, bond: Wei) -> Call | None:
        party = self._party
        missing = decide.deposit_due(party.contracts.vault.free(party.address), bond)
        return party.deposit(missing, party.head().time) if missing else None
