"""One form of ids: six hex digits of a job, claim or game name it in every command that reads, and no key is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.protocol.types import Address

from .conftest import Lockstep

NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""
READING = [
    ("replay", "{}"), ("dispute", "show", "{}"), ("dispute", "tree", "{}"), ("dispute", "watch", "{}"),
    ("dispute", "watch", "--job", "{}"), ("dispute", "list", "--job", "{}"), ("train", "status", "{}"),
    ("train", "watch", "{}"), ("train", "metrics", "{}"), ("train", "load", "{}"),
    ("train", "pull", "{}", "--out", "model"),
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_six_digits_are_an_id_and_five_are_none(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(Path("deployment.json"))
    for text in ("abcdef", "0xABCDEF01", "ab" * 32):
        ended = lockstep(*(word.format(text) for word in command), "--rpc", NOBODY, "--json")
        assert (ended.code, ended.error["code"]) == (9, "unreachable"), f"{text} is an id, and no key is asked for"
    if command[:2] != ("train", "load") and command[1] not in ("show", "tree") and command[:2] != ("dispute", "watch"):
        ended = lockstep(*(word.format("abcde") for word in command), "--rpc", NOBODY, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage")
        assert "6 hex digits" in ended.error["hint"]
