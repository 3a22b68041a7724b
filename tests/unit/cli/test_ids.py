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


KEYED = [
    ("worker", "quote", "{}"), ("worker", "fund", "--job", "{}"), ("train", "cancel", "{}"), ("verifier", "void", "{}"),
    ("dispute", "open", "{}"), ("dispute", "respond", "{}"), ("dispute", "prove", "{}"), ("dispute", "resolve", "{}"),
]  # fmt: skip
"""Commands of an account: without a key in the home the next thing that they miss is the key."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", KEYED, ids=" ".join)
def test_a_wrong_id_is_told_before_a_key_is_asked_for(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    wrong = lockstep(*(word.format("abcde") for word in command), "--rpc", NOBODY, "--json")
    assert (wrong.code, wrong.error["code"]) == (2, "usage")
    assert "6 hex digits" in wrong.error["hint"]
    right = lockstep(*(word.format("abcdef") for word in command), "--rpc", NOBODY, "--home", "home", "--json")
    assert (right.code, right.error["code"]) != (2, "usage"), "six digits are an id"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_six_digits_are_an_id_and_five_are_none(lockstep: Lockstep, command: tuple[str, ...]) -> None:
    Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS)))).save(Path("deployment.json"))
    for text in ("abcdef", "0xABCDEF01", "ab" * 32):
        ended = lockstep(*(word.format(text) for word in command), "--rpc", NOBODY, "--json")
        assert (ended.code, ended.error["code"]) == (9, "unreachable"), f"{text} is an id, and no key is asked for"
    if command[:2] != ("train", "load"):
        ended = lockstep(*(word.format("abcde") for word in command), "--rpc", NOBODY, "--json")
        assert (ended.code, ended.error["code"]) == (2, "usage")
        assert "6 hex digits" in ended.error["hint"]
