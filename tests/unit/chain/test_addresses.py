"""The deployment file: read back whole, or named with what is wrong in it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.protocol.errors import NotFoundError, UsageError
from lockstep.protocol.types import Address

GOOD = Addresses(31337, *(Address(f"0x{n:040x}") for n in range(1, 1 + len(CONTRACTS))), block=7)
VAULT = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
MISTYPED = VAULT.replace("0x90", "0x91")


def test_what_was_saved_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GOOD.save(tmp_path / "deployment.json")
    assert Addresses.load(tmp_path / "deployment.json") == GOOD
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Addresses.load("~/deployment.json") == GOOD, "a home is spelled out"
    assert [p.name for p in tmp_path.iterdir()] == ["deployment.json"], "no part is left"


def test_an_address_without_capitals_is_checksummed(tmp_path: Path) -> None:
    (tmp_path / "deployment.json").write_text(json.dumps({**asdict(GOOD), "vault": VAULT.lower()}))
    assert Addresses.load(tmp_path / "deployment.json").vault == VAULT


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.json") as caught:
        Addresses.load(tmp_path / "none.json")
    assert "--network" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"chain_id": 1}',
        json.dumps({**asdict(GOOD), "owner": "0x0"}),
        json.dumps({**asdict(GOOD), "chain_id": "31337"}),
        json.dumps({**asdict(GOOD), "block": -1}),
        json.dumps({**asdict(GOOD), "market": "0x12"}),
        json.dumps({**asdict(GOOD), "vault": None}),
        json.dumps({**asdict(GOOD), "vault": MISTYPED}),
        json.dumps({**asdict(GOOD), "chain_id": True}),
    ],
)
def test_garbage_is_a_usage_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deployment.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"deployment\.json is not a deployment") as caught:
        Addresses.load(path)
    assert caught.value.hint


def test_bytes_and_folders_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    for name in ("bytes", "folder"):
        with pytest.raises(UsageError, match=name):
            Addresses.load(tmp_path / name)
