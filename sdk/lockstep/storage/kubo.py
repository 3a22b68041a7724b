"""A store behind the Kubo RPC (an IPFS node, or `lockstep storage serve`), through ipfshttpclient."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, BinaryIO
from urllib.parse import urlsplit

# Before the import: ipfshttpclient's patched requests would support only unix sockets, and break with urllib3 3.
os.environ.setdefault("PY_IPFS_HTTP_CLIENT_PATCH_REQUESTS", "no")

import ipfshttpclient
import requests
import urllib3
from ipfshttpclient import exceptions as ipfs

from lockstep.base.redaction import redacted
from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    DoctorError,
    Mismatch,
    PayloadInvalid,
    Unreachable,
    UsageError,
)
from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_of_block, parse_cid, verify_block
from lockstep.storage.dagpb import Link
from lockstep.storage.store import BlockCodec, ContentStore
from lockstep.storage.unixfs import CHUNK_BYTES, MAX_BLOCK_BYTES, MAX_LINKS, cid_of_file

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
"""Longest silence in seconds. A Kubo node is silent while it searches the network for a block."""

_ADD_OPTIONS = {"max-file-links": str(MAX_LINKS)}


class KuboStore(ContentStore):
    """Content through the RPC of one node that the operator chose; every block is verified.

    `addr` is a multiaddr such as /ip4/127.0.0.1/tcp/5001/http. A block that the node neither has nor finds in time is
    Unreachable, not missing; only an explicit denial of the node raises BlobMissing.
    """

    def __init__(self, addr: str, *, read_seconds: float = READ_SECONDS) -> None:
        self._addr = addr
        self._name = redacted(addr)
        try:
            # Client, not connect(), which refuses every Kubo since 0.8; a session per request is thread-safe
            self._client = ipfshttpclient.Client(addr, timeout=(CONNECT_SECONDS, read_seconds), chunk_size=CHUNK_BYTES)
        except ipfs.AddressError as error:
            raise UsageError(
                f"not the address of a Kubo RPC: {self._name}", "it looks like /ip4/127.0.0.1/tcp/5001/http"
            ) from error

    @property
    def url(self) -> str:
        return self._addr

    def check(self) -> None:
        with self._translated("version"):
            self._client.version()

    def fetch_block(self, cid: Cid) -> bytes:
        parse_cid(cid)
        block = bytearray()
        with self._translated(f"block {cid}"), self._client.block.get(cid, stream=True) as pieces:
            for piece in pieces:
                block += piece
                if len(block) > MAX_BLOCK_BYTES:
                    break
        verify_block(cid, block, source=self._name)
        return bytes(block)

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        done = first
        try:
            for leaf in self._stream_leaves(cid, links, first):
                yield leaf
                done += 1
        except (Unreachable, BlobMissing, BlobCorrupt):
            # a broken stream gives no reason; requesting each block does
            yield from super().fetch_leaves(cid, links, done)

    def _stream_leaves(self, cid: Cid, links: Sequence[Link], first: int) -> Iterator[bytes]:
        """Fetches all leaves by one request instead of one each (`fetch_leaves`)."""
        waiting = bytearray()
        offset = sum(link.size_bytes for link in links[:first])
        with self._translated(f"content {cid}"), self._client.cat(cid, offset=offset, stream=True) as pieces:
            for link in links[first:]:
                while len(waiting) < link.size_bytes:
                    piece = next(pieces, None)
                    if piece is None:
                        raise BlobCorrupt(f"content {cid} from {self._name} is cut off")
                    waiting += piece
                leaf = bytes(waiting[: link.size_bytes])
                del waiting[: link.size_bytes]
                verify_block(link.cid, leaf, source=self._name)
                yield leaf

    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        if len(block) > MAX_BLOCK_BYTES:
            raise PayloadInvalid(
                f"a block has {len(block)} bytes, at most {MAX_BLOCK_BYTES} are kept",
                "put it as content, not as one block",
            )
        cid = cid_of_block(block, codec)
        options = {"cid-codec": codec, "mhtype": "sha2-256", "pin": "true"}
        with self._translated(f"block {cid}"):
            answer = self._client.block.put(io.BytesIO(block), opts=options)
        self._require_same(cid, str(answer["Key"]))
        return cid

    def put_stream(self, file: BinaryIO) -> Cid:
        start = file.tell()
        cid = cid_of_file(file)
        file.seek(start)
        with self._translated(f"content {cid}"):
            answer = self._client.add(
                _Unnamed(file),
                cid_version=1,
                raw_leaves=True,
                chunker=f"size-{CHUNK_BYTES}",
                pin=True,
                opts=dict(_ADD_OPTIONS),
            )
        self._require_same(cid, str(answer["Hash"]))
        return cid

    def has(self, cid: str) -> bool:
        parse_cid(cid)
        try:
            with self._translated(f"block {cid}"):
                self._client.block.stat(cid, offline=True)
        except (BlobMissing, BlobCorrupt):
            return False
        return True

    def _require_same(self, expected: Cid, answered: str) -> None:
        # INVARIANT: content is published under the name that every reader computes for it.
        if answered != expected:
            raise Mismatch(
                f"{self._name} stored {expected} under the name {answered}",
                "the file changed while it was read, or the node's Import settings override the request",
            )

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Translates ipfshttpclient's and requests' errors to the error tree."""
        try:
            yield
        except ipfs.StatusError as error:
            raise self._answered(what, error) from error
        except (ipfs.Error, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(
                f"the storage node at {self._name} did not answer for {what}: {_cause(error)}",
                "check that it runs: `lockstep storage serve` or `ipfs daemon`",
            ) from error

    def _answered(self, what: str, error: ipfs.StatusError) -> Exception:
        """Returns the error for an HTTP status of the node; `what` names the content."""
        status = _status(error)
        message = str(error)
        if status == 413:
            return PayloadInvalid(f"{self._name} refuses {what}: {message}", "raise --max-mib of the store")
        if not isinstance(error, ipfs.ErrorResponse) and 400 <= status < 500:
            return DoctorError(
                f"{self._name} is not a Kubo RPC: HTTP {status}", "give the RPC's port, not the gateway's"
            )
        for text, meaning in _MEANINGS:
            if text in message:
                return meaning(f"{what} at {self._name}: {message}")
        return Unreachable(f"the storage node at {self._name} failed for {what}: {message}", "look into the node's log")


def multiaddr_of_url(url: str) -> str:
    """Converts http(s)://host:port to a multiaddr.

    Raises UsageError if it has no port, or a path, query, fragment or user.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or port is None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(f"not the URL of a Kubo RPC: {redacted(url)}", "it looks like http://127.0.0.1:5001")
    if "@" in parts.netloc:
        raise UsageError(
            f"a Kubo RPC has no users: {redacted(url)} was given with one",
            "leave the user out; a gateway may have one: gateway+https://user:password@host",
        )
    try:
        family = f"ip{ip_address(parts.hostname).version}"
    except ValueError:
        family = "dns"
    return f"/{family}/{parts.hostname}/tcp/{port}/{parts.scheme}"


class _Unnamed:
    """A file object without a name: ipfshttpclient would transmit the local path."""

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read


def _missing(message: str) -> BlobMissing:
    return BlobMissing(message, "its publisher may still be writing it, or used another store")


def _corrupt(message: str) -> BlobCorrupt:
    return BlobCorrupt(message, "put the content again from a good copy, or read it from another store")


_MEANINGS: tuple[tuple[str, Callable[[str], Exception]], ...] = (
    ("not found", _missing),
    ("could not find", _missing),
    ("different hash than requested", _corrupt),
)
"""Maps Kubo's error texts to errors; any other text leaves open what the node has."""


def _status(error: ipfs.StatusError) -> int:
    response: Any = getattr(error.original, "response", None)
    return int(response.status_code) if response is not None else 0


def _cause(error: BaseException) -> str:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(error) or type(error).__name__
