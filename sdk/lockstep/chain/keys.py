"""Keys at rest: the staking key as an encrypted keystore (v3), the node's ed25519 key in a file of mode 0600."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.protocol.errors import KeyStoreError

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from nacl.signing import SigningKey

KEYSTORE, NODE_KEY = "keystore.json", "node.key"
"""The two files of a party's home."""

SCRYPT_N = 1 << 17
"""Work per password guess (128 MiB for a moment); tests and local chains pass less."""


def create_account(path: Path, password: str, secret: bytes | None = None, work: int = SCRYPT_N) -> LocalAccount:
    """Writes a new staking key (or `secret`, 32 bytes) to `path`, encrypted. Refuses to overwrite: `KeyStoreError`."""
    from eth_account import Account

    account = Account.from_key(secret) if secret is not None else Account.create()
    keystore = Account.encrypt(account.key, password, kdf="scrypt", iterations=work)
    _write_new(path, json.dumps(keystore).encode() + b"\n")
    return account


def load_account(path: Path, password: str) -> LocalAccount:
    """The staking key in `path`. Raises `KeyStoreError` for a missing file, another format or a wrong password."""
    from eth_account import Account

    try:
        keystore = json.loads(_read(path))
        secret = Account.decrypt(keystore, password)
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as failure:
        raise KeyStoreError(f"{path} is not a v3 keystore", "restore the file from its backup") from failure
    except ValueError as failure:  # eth-account's for a MAC that does not match
        raise KeyStoreError(
            f"the password does not open {path}", "try again; nobody can recover a lost password", code="key.password"
        ) from failure
    return Account.from_key(secret)


def create_node_key(path: Path, seed: bytes | None = None) -> SigningKey:
    """Writes a new ed25519 key (or the one of `seed`, 32 bytes) to `path`, readable by its owner alone."""
    from nacl.signing import SigningKey

    key = SigningKey(seed) if seed is not None else SigningKey.generate()
    _write_new(path, bytes(key).hex().encode() + b"\n")
    return key


def load_node_key(path: Path) -> SigningKey:
    """The node key in `path`. Raises `KeyStoreError` if it is missing, malformed or readable by others."""
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
        return path.read_bytes()
    except FileNotFoundError as failure:
        raise KeyStoreError(f"no key at {path}", "make one: `lockstep key new`") from failure
    except OSError as failure:
        raise KeyStoreError(f"cannot read {path}: {failure.strerror}", "check the file's owner and mode") from failure


def _write_new(path: Path, data: bytes) -> None:
    """Mode 0600 from the first byte on, whole or not at all, never over an existing key."""
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
