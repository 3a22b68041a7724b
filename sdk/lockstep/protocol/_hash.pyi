"""SHA-256 Merkle trees over buffers; levels come without their padding: a missing right sibling at level k is Z_k."""

from typing_extensions import Buffer

def isa() -> str:
    """The SHA-256 path that this machine runs: "avx512", "sha-ni", "sha2" or "portable"."""

def leaf_hashes(buf: Buffer, path: str = "auto", threads: int = 1) -> bytes:
    """leaf(.) of every 1 KiB leaf of `buf` (the last may be short), 32 bytes each."""

def tree_root(buf: Buffer, path: str = "auto", threads: int = 1) -> bytes:
    """tree(1 KiB leaves of `buf`), 32 bytes; Z_0 for no bytes at all."""

def tree_levels(buf: Buffer, path: str = "auto", threads: int = 1) -> list[bytes]:
    """Levels of tree(1 KiB leaves of `buf`), leaf hashes first, the root last; each is concatenated 32-byte hashes."""

def merkle_root(hashes: Buffer, path: str = "auto", threads: int = 1) -> bytes:
    """tree(hashes) of concatenated 32-byte hashes; Z_0 for none."""

def merkle_levels(hashes: Buffer, path: str = "auto", threads: int = 1) -> list[bytes]:
    """Levels of tree(hashes), hashes first, the root last."""
