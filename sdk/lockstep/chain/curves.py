"""Keeps the curves of BLS keys out of web3's import, of which they take half.

eth_account imports eth_keyfile, which also reads keystores of BLS keys (EIP-2335) and computes pairings of BLS12-381 at
its import. No account of a chain has such a key.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

BLS, CURVE = "py_ecc.bls", "py_ecc.bls12_381"
ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
"""Order of BLS12-381's groups (draft-irtf-cfrg-pairing-friendly-curves, section 4.2.1)."""


class _Late:
    """Stands for py_ecc's signature scheme until an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(BLS).G2ProofOfPossession, name)


def defer_curves() -> None:
    """Has eth_keyfile import py_ecc's curves only when somebody uses a BLS key.

    Must run before the first import of eth_account or web3; afterwards it changes nothing.
    """
    stand_ins: dict[str, dict[str, Any]] = {BLS: {"G2ProofOfPossession": _Late()}, CURVE: {"curve_order": ORDER}}
    if "eth_keyfile" in sys.modules or stand_ins.keys() & sys.modules.keys():
        return
    for name, attributes in stand_ins.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(attributes)
    try:
        import_module("eth_keyfile")
    finally:
        for name in stand_ins:
            del sys.modules[name]
