"""Ids and addresses that people type: read whole, or refused with a hint."""

from __future__ import annotations

import pytest

from lockstep.base.naming import address_of, identified, short
from lockstep.protocol.errors import NotFoundError, UsageError

GOOD = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
ONE, OTHER = bytes.fromhex("abcdef01" * 8), bytes.fromhex("abcdef02" * 8)


@pytest.mark.parametrize("text", [GOOD, GOOD.lower(), "0x" + GOOD[2:].upper()])
def test_an_address_is_checksummed(text: str) -> None:
    assert address_of(text, "--to") == GOOD


@pytest.mark.parametrize("text", ["", "0x", GOOD[2:], GOOD[:-1], GOOD + "0", f" {GOOD}", "none"])
def test_what_is_no_address_is_told_with_what_it_was_for(text: str) -> None:
    with pytest.raises(UsageError, match=r"aggregator is .*, which is not an address") as refused:
        address_of(text, "aggregator", hint='"" is none')
    assert refused.value.hint == 'write 0x and 40 hex digits; "" is none'


@pytest.mark.parametrize("text", [GOOD.replace("EB", "eB"), GOOD.replace("0F79", "0f79"), GOOD[:-1] + "7"])
def test_an_address_with_a_mistyped_digit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--to is '0x.*', whose capitals are the checksum of another address"):
        address_of(text, "--to")


def test_an_id_is_named_by_digits_that_begin_no_other() -> None:
    assert identified("ABCDEF01", [ONE, OTHER], "job", "see") == ONE
    assert identified(f"0x{OTHER.hex()}", [ONE, OTHER], "job", "see") == OTHER
    with pytest.raises(UsageError, match="2 of them begin with abcdef: abcdef01abcd, abcdef02abcd") as refused:
        identified("abcdef", [OTHER, ONE, ONE], "job", "see")
    assert refused.value.hint == "give more digits"
    with pytest.raises(NotFoundError, match="no job begins with abcdef03"):
        identified("abcdef03", [ONE, OTHER], "job", "see")


def test_an_id_is_shown_by_digits_that_are_enough_to_name_it() -> None:
    assert short(ONE) == short(ONE.hex()) == "abcdef01"
    assert identified(short(ONE), [ONE, OTHER], "job", "see") == ONE
    assert short(GOOD) == GOOD[:10]
    assert short("slot 7") == "slot 7"
