"""Deposits the stake that an act needs, and withdraws earnings."""

from __future__ import annotations

from lockstep.chain.contracts import Call
from lockstep.protocol.types import Wei
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier import decide
from verifier.telling import EventPrinter


class Wallet:
    """Manages the account's stake and credits in the vault."""

    def __init__(self, party: Party, sender: Sender[None], printer: EventPrinter) -> None:
        self._party = party
        self._sender = sender
        self._printer = printer

    def stake(self, bond: Wei, key: str) -> None:
        """Deposits what is missing of a bond, once for each key even across crashes; raises the error that prevents
        it."""
        if (deposit := self._missing(bond)) is not None:
            self._party.outbox.send(deposit, f"deposit/{key}")

    def try_stake(self, bond: Wei, key: str) -> bool:
        """Deposits what is missing of a bond; returns False if that fails, where `stake` raises."""
        deposit = self._missing(bond)
        return deposit is None or self._sender.attempt(f"deposit/{key}", deposit)

    def missing(self, bond: Wei, key: str) -> tuple[str, Call] | None:
        """Returns (key, call) of the deposit that must precede an act which stakes a bond; None if free stake covers
        the bond."""
        deposit = self._missing(bond)
        return None if deposit is None else (f"deposit/{key}", deposit)

    def withdraw(self, block: int) -> None:
        """Withdraws the credits, if there are any."""
        vault = self._party.contracts.vault
        amount = vault.credits(self._party.address)
        if amount and self._sender.attempt(f"withdraw/{block}", vault.withdraw()):
            self._printer.print_event("withdrawn", amount=str(amount))

    def _missing(self, bond: Wei) -> Call | None:
        party = self._party
        missing = decide.deposit_due(party.contracts.vault.free(party.address), bond)
        return party.deposit(missing, party.head().time) if missing else None
