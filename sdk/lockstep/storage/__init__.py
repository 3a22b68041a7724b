"""Content-addressed storage: blobs named by the hash of their bytes."""

from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_from_bytes, cid_of_block, cid_of_digest, cid_to_bytes, parse_cid
from lockstep.storage.store import ContentStore
from lockstep.storage.stores import open_store
from lockstep.storage.unixfs import cid_of, cid_of_file

__all__ = [
    "Cid",
    "ContentStore",
    "cid_from_bytes",
    "cid_of",
    "cid_of_block",
    "cid_of_digest",
    "cid_of_file",
    "cid_to_bytes",
    "open_store",
    "parse_cid",
]
