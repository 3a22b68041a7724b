"""The form of a row in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.reverts import HINTS
from tests.support.market.twin import World

TOKEN_ERRORS = (
    "ERC20InvalidReceiver", "ERC20InsufficientBalance", "ERC20InvalidSpender", "ERC20InsufficientAllowance",
    "ERC20InvalidApprover", "ERC2612ExpiredSignature", "ECDSAInvalidSignatureS", "ECDSAInvalidSignature",
    "ERC2612InvalidSigner",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One call in a scene, and its expected result."""

    expects: str
    sender: str | Callable[[World], str]
    function: str
    arguments: tuple[Any, ...]

    @property
    def is_refusal(self) -> bool:
        """True if an error is expected."""
        return self.expects.partition("(")[0] in {*HINTS, *TOKEN_ERRORS}


def row(expects: str, sender: str | Callable[[World], str], function: str, *arguments: Any) -> Row:
    """Returns a row of the table."""
    return Row(expects, sender, function, arguments)
