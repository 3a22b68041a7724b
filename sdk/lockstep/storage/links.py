"""DAG-CBOR links: CIDs by which one block names another, so that pinning the first pins the second."""

from __future__ import annotations

from typing import Any

from lockstep.protocol.errors import Malformed, UsageError
from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_from_bytes, cid_to_bytes


def link_of(cid: str) -> Any:
    """Returns the value that DAG-CBOR encodes as a link to `cid`."""
    from multiformats import CID

    return CID.decode(cid_to_bytes(cid))


def read_link(value: Any, where: str) -> Cid:
    """Reads a link, which the parser returns as a CID."""
    from multiformats import CID

    if not isinstance(value, CID):
        raise Malformed(f"{where} is not a link")
    try:
        return cid_from_bytes(bytes(value))
    except UsageError as error:
        raise Malformed(f"{where}: {error.message}") from error
