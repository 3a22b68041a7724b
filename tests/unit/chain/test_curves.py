"""web3 is imported without the curves of BLS keys, which are there for whoever uses them."""

from __future__ import annotations

import json
import subprocess
import sys

from lockstep.chain.curves import CURVE, ORDER

LOADED = """
import json, sys
from lockstep.chain.curves import BLS, CURVE, defer_curves
{first}
defer_curves()
import web3
from eth_keyfile import create_keyfile_json, decode_keyfile_json, keyfile
before = [name in sys.modules for name in (BLS, CURVE)]
kept = create_keyfile_json(b"\\1" * 32, b"password", version=4, kdf="pbkdf2", iterations=2)
print(json.dumps([before, decode_keyfile_json(kept, b"password").hex(), kept["pubkey"], keyfile.curve_order]))
"""
"""Imports web3, then makes and opens a keystore of a BLS key."""


def said(first: str = "") -> list[object]:
    """Runs the program in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", LOADED.format(first=first)], capture_output=True, text=True, check=True, timeout=120
    )
    result: list[object] = json.loads(found.stdout)
    return result


def test_the_curves_are_imported_at_their_first_use() -> None:
    before, secret, *rest = said()
    assert before == [False, False]
    assert secret == "01" * 32
    loaded, *same = said(f"import {CURVE}, py_ecc.bls")
    assert loaded == [True, True], "whoever has imported them keeps them"
    assert same == [secret, *rest]
    assert rest[1] == ORDER
