"""Measures the bytes of a stored payload, as its readers fetch them."""

from __future__ import annotations

from lockstep.protocol.types import Cid
from lockstep.storage import ContentStore, cid_from_bytes


def stored_bytes(store: ContentStore, cid: Cid) -> int:
    """Returns the bytes of a payload's or carry's manifest and blobs."""
    node = store.get_node(cid)
    return len(store.fetch_block(cid)) + sum(store.size(cid_from_bytes(bytes(link))) for link in node["tensors"])
