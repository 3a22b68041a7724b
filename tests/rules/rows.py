"""What a row of the table is."""

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
    """One call in a scene, and what comes of it."""

    expects: str
    sender: str | Callable[[World], str]
    function: str
    arguments: tuple[Any, ...]

    @property
    def is_refusal(self) -> bool:
        """Errors are known by name, and so are events."""
        return self.expects.partition("(")[0] in {*HINTS, *TOKEN_ERRORS}


def row(expects: str, sender: str | Callable[[World], str], function: str, *arguments: Any) -> Row:
    """A row of the table."""
    return Row(expects, sender, function, arguments)
