"""Stores keys: the staking key in an encrypted keystore (v3), the node's ed25519 key in a file of mode 0600."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.decoding import (
    MAX_FILE_BYTES,
    anything,
    file_bytes,
    from_json,
    hexes,
    mapping,
    one_of,
    refusing,
    table,
    whole,
)
from lockstep.chain.curves import defer_curves
from lockstep.protocol.errors import KeyStoreError, Malformed
from lockstep.protocol.types import Address

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from nacl.signing import SigningKey

KEYSTORE, NODE_KEY = "keystore.json", "node.key"
"""The two key files in a party's home."""

SCRYPT_N = 1 << 17
"""Cost of one password guess (128 MiB for a moment); tests and local chains use less."""


def create_account(path: Path, password: str, secret: bytes | None = None, work: int = SCRYPT_N) -> LocalAccount:
    """Writes a new staking key (or `secret`, 32 bytes) to `path`, encrypted. Refuses to overwrite: `KeyStoreError`."""
    defer_curves()
    from eth_account import Account

    account = Account.from_key(secret) if secret is not None else Account.create()
    keystore = Account.encrypt(account.key, password, kdf="scrypt", iterations=work)
    _write_new(path, json.dumps(keystore).encode() + b"\n")
    return account


def load_account(path: Path, password: str) -> LocalAccount:
    """Decrypts the staking key in `path`. Raises `KeyStoreError` for a missing file, another format or a wrong
    password."""
    defer_curves()
    from eth_account import Account

    keystore = _keystore(path)
    try:
        return Account.from_key(Account.decrypt(keystore, password))
    except ValueError as failure:  # eth-account's error for a wrong MAC
        raise KeyStoreError(
            f"the password does not open {path}", "try again; nobody can recover a lost password", code="key.password"
        ) from failure


def account_address(path: Path) -> Address:
    """Returns the address in the keystore at `path` without its password. Raises `KeyStoreError`."""
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address("0x" + _keystore(path)["address"].removeprefix("0x")))


def _keystore(path: Path) -> dict[str, Any]:
    with refusing(KeyStoreError, f"{path} is not a v3 keystore: it", "restore the file from its backup"):
        return keystore_of(_read(path))


def keystore_of(data: bytes) -> dict[str, Any]:
    """Parses a v3 keystore, and lowers the case of its field names. Raises `Malformed`."""
    keystore: dict[str, Any] = _lowered(from_json(data, MAX_FILE_BYTES))
    crypto = _KEYSTORE(keystore, "the keystore")["crypto"]
    parameters = _KDF[crypto["kdf"]](crypto["kdfparams"], "kdfparams")
    blocks = parameters.get("n", 2) * parameters.get("r", 1)
    # INVARIANT: a password is tried in bounded memory, with parameters that scrypt takes.
    if blocks > MAX_SCRYPT_BLOCKS or parameters.get("n", 2).bit_count() != 1:
        raise Malformed(f"scrypt over {blocks} blocks: n is a power of two, n r at most {MAX_SCRYPT_BLOCKS}")
    return keystore


def _lowered(value: Any) -> Any:
    """Lowers the case of field names, in which Ethereum clients differ."""
    return {name.lower(): _lowered(x) for name, x in value.items()} if isinstance(value, dict) else value


MAX_SCRYPT_BLOCKS = 1 << 24
"""Most scrypt blocks of 128 bytes: 2 GiB for a moment."""
_WORK, _LENGTH, _HEX = whole(1, 1 << 24), whole(32, 32), hexes(None, bare=True)
_KDF = {
    "scrypt": table({"n": _WORK, "r": _WORK, "p": whole(1, 64), "dklen": _LENGTH, "salt": _HEX}),
    "pbkdf2": table({"c": _WORK, "dklen": _LENGTH, "prf": one_of("hmac-sha256"), "salt": _HEX}),
}
_KEYSTORE = table(
    {
        "version": whole(3, 3),
        "address": hexes(20, bare=True),
        "crypto": table(
            {
                "cipher": one_of("aes-128-ctr"),
                "cipherparams": table({"iv": hexes(16, bare=True)}),
                "ciphertext": hexes(32, bare=True),
                "kdf": one_of(*_KDF),
                "kdfparams": mapping(anything),
                "mac": hexes(32, bare=True),
            }
        ),
    },
    {"id": anything, "name": anything},
)


def create_node_key(path: Path, seed: bytes | None = None) -> SigningKey:
    """Writes a new ed25519 key (or the one of `seed`, 32 bytes) to `path`, mode 0600; raises if the file exists."""
    from nacl.signing import SigningKey

    key = SigningKey(seed) if seed is not None else SigningKey.generate()
    _write_new(path, bytes(key).hex().encode() + b"\n")
    return key


def load_node_key(path: Path) -> SigningKey:
    """Loads the node key in `path`. Raises `KeyStoreError` if it is missing, malformed or readable by others."""
    from nacl.signing import SigningKey

    text = _read(path)
    if path.stat().st_mode & 0o077:
        raise KeyStoreError(f"others can read {path}", f"chmod 600 {path}, and make a new key if it may be known")
    try:
        return SigningKey(bytes.fromhex(text.decode().strip()))
    except (ValueError, TypeError) as failure:
        raise KeyStoreError(f"{path} is not a node key", "restore the file, or make a new one") from failure


def _read(path: Path) -> bytes:
    try:
        place = Path(os.path.realpath(path, strict=True))
        # INVARIANT: a home's keys lie in it: no link in a folder that somebody else made leads to those of another
        # home.
        if not place.is_relative_to(path.absolute().parent.resolve()):
            raise KeyStoreError(
                f"{path} is a symbolic link out of its folder", f"name the key's own home: --home {place.parent}"
            )
        with refusing(KeyStoreError, str(path), "restore the file from its backup"):
            return file_bytes(place)
    except FileNotFoundError as failure:
        raise KeyStoreError(f"no key at {path}", "make one: `lockstep key new`") from failure
    except OSError as failure:
        raise KeyStoreError(f"cannot read {path}: {failure.strerror}", "check the file's owner and mode") from failure


def _write_new(path: Path, data: bytes) -> None:
    """Writes a new file atomically with mode 0600; never overwrites an existing key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError as failure:
            raise KeyStoreError(f"{path} exists", "choose another path, or move the old key away") from failure
    finally:
        temporary.unlink()
