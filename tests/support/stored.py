"""The bytes that a payload takes in a store, as its readers fetch them."""

from __future__ import annotations

from lockstep.protocol.types import Cid
from lockstep.storage import ContentStore, cid_from_bytes


def stored_bytes(store: ContentStore, cid: Cid) -> int:
    """The bytes of a payload's or carry's manifest and its blobs."""
    node = store.get_node(cid)
    return len(store.fetch_block(cid)) + sum(store.size(cid_from_bytes(bytes(link))) for link in node["tensors"])
