"""Reads content from trustless IPFS gateways; every block is verified.

    GatewayStore    one gateway: GET /ipfs/CID?format=raw returns the block
    Readable        a store for reads and writes, with gateways for blocks that it does not have

Nothing that a gateway states is trusted: neither a name nor a length. One request takes at most BLOCK_SECONDS from its
first byte to its last, and returns at most one block.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from lockstep.base.log import Logger
from lockstep.base.redaction import hide, redacted
from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    DoctorError,
    LockstepError,
    PayloadInvalid,
    Unreachable,
    UsageError,
)
from lockstep.protocol.types import Cid
from lockstep.storage.cid import parse_cid, verify_block
from lockstep.storage.dagpb import Link
from lockstep.storage.store import BlockCodec, ContentStore
from lockstep.storage.unixfs import MAX_BLOCK_BYTES

PREFIX = "gateway+"
"""Prefix of a gateway's URL in a list of stores."""
MEDIA_TYPE = "application/vnd.ipld.raw"
PROBE = "bafkqaaa"
"""CID that holds its own (empty) content: every gateway has it."""
CONNECT_SECONDS = 5.0
BLOCK_SECONDS = 30.0
"""Time limit for one block, in seconds, from the request to its last byte."""
REST_SECONDS = 30.0
"""Seconds for which a failed gateway is tried after the others."""
ABSENT_STATUSES = frozenset({404, 410, 412})
"""HTTP statuses of a gateway that does not have or cannot find a block."""
WITHHELD = 451
BUSY, UNAVAILABLE = 429, 503
SECONDS = re.compile(r"\d{1,4}", re.ASCII)
"""Form of a Retry-After in seconds; dates are not supported."""

Result = TypeVar("Result")
log = Logger(__name__)


class GatewayStore(ContentStore):
    """Read-only content of one gateway."""

    def __init__(self, url: str, *, block_seconds: float = BLOCK_SECONDS) -> None:
        """`url` is http(s)://host[:port][/path]. Contacts nothing yet. Raises UsageError."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(
                f"not the URL of a gateway: {redacted(url)}", f"it looks like {PREFIX}https://trustless-gateway.link"
            )
        hide(url)
        self._url = url.rstrip("/")
        self._name = redacted(url)
        self._seconds = block_seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None

    @property
    def url(self) -> str:
        return PREFIX + self._url

    @property
    def name(self) -> str:
        """Scheme and host, safe to log."""
        return self._name

    def check(self) -> None:
        block = self._run(self._asked(PROBE, "the empty block"))
        if block:
            raise DoctorError(
                f"{self._name} is not a gateway: the empty block has {len(block)} bytes", "check --storage"
            )

    def fetch_block(self, cid: Cid) -> bytes:
        parse_cid(cid)
        block = self._run(self._asked(cid, f"block {cid}"))
        verify_block(cid, block, source=self._name)
        return block

    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        raise self._read_only()

    def put_stream(self, file: BinaryIO) -> Cid:
        raise self._read_only()

    def has(self, cid: str) -> bool:
        """Returns False always: a gateway does not distinguish its own content from content that it finds elsewhere."""
        parse_cid(cid)
        return False

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._client.aclose(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    async def _asked(self, cid: str, what: str) -> bytes:
        """Returns the bytes of one block as received, not yet verified."""
        import httpx2

        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        return await self._answered(cid, what)
                    except _Busy as busy:
                        await asyncio.sleep(busy.seconds)
        except TimeoutError as error:
            raise Unreachable(
                f"the gateway {self._name} did not give {what} within {self._seconds:g} s", "it is tried again later"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(
                f"the gateway {self._name} did not answer for {what}: {type(error).__name__}",
                "check its URL, or name another gateway",
            ) from error

    async def _answered(self, cid: str, what: str) -> bytes:
        # Requests no compression: a CID names the bytes of a block, and decompression could expand without bound.
        headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity"}
        target = f"{self._url}/ipfs/{cid}"
        async with self._client.stream("GET", target, params={"format": "raw"}, headers=headers) as answer:
            # A gateway that states when to retry counts as slow, within the time allowed for a block.
            if answer.status_code in (BUSY, UNAVAILABLE) and SECONDS.fullmatch(answer.headers.get("retry-after", "")):
                raise _Busy(int(answer.headers["retry-after"]))
            self._require_ok(answer.status_code, what)
            block = bytearray()
            async for piece in answer.aiter_raw():
                block += piece
                # INVARIANT: no gateway makes a reader hold more than one block.
                if len(block) > MAX_BLOCK_BYTES:
                    raise BlobCorrupt(
                        f"{what} from {self._name} has more than {MAX_BLOCK_BYTES} bytes", "name another gateway"
                    )
            return bytes(block)

    def _require_ok(self, status: int, what: str) -> None:
        """Raises the error that a gateway's HTTP status means."""
        if status == 200:
            return
        if status in ABSENT_STATUSES:
            raise BlobMissing(f"{what} is not at {self._name}", "its publisher may still be writing it")
        if 300 <= status < 400:
            # INVARIANT: a request goes where its operator said, and nowhere else.
            raise DoctorError(f"the gateway {self._name} redirects", "give the address that it redirects to")
        if status == WITHHELD:
            raise Unreachable(f"{self._name} refuses {what} for legal reasons (HTTP 451)", "name another gateway")
        if status != BUSY and 400 <= status < 500:
            raise DoctorError(
                f"{self._name} is not a trustless gateway: HTTP {status}", f"one that serves {MEDIA_TYPE} is needed"
            )
        raise Unreachable(f"the gateway {self._name} failed for {what}: HTTP {status}", "it is tried again later")

    def _read_only(self) -> UsageError:
        return UsageError(
            f"{self._name} is a gateway: nothing can be written there",
            f"name a store to write to before it: --storage http://127.0.0.1:5001,{PREFIX}{self._name}",
        )

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine on the store's own event loop, so that a deadline covers every byte of an answer."""
        import httpx2

        with self._lock:
            if self._loop is None:
                self._client = httpx2.AsyncClient(
                    follow_redirects=False, timeout=httpx2.Timeout(self._seconds, connect=CONNECT_SECONDS)
                )
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="gateway", daemon=True).start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(work, loop).result()


class _Busy(Exception):
    """Raised if a gateway asks for a retry."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = max(1, seconds)


class Readable(ContentStore):
    """A store combined with gateways: writes go only to the store, reads to any that has the content.

    If no gateway has a block either, the store's own error is raised.
    """

    def __init__(
        self, store: ContentStore | None, gateways: Sequence[GatewayStore], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`store` None: only gateways are read, and nothing can be written."""
        self._store = store
        self._gateways = list(gateways)
        self._clock = clock
        self._until: dict[str, float] = {}

    @property
    def url(self) -> str:
        return ",".join(each.url for each in [*([self._store] if self._store else []), *self._gateways])

    def check(self) -> None:
        """Checks that the store answers; without a store, that one gateway does."""
        if self._store is not None:
            self._store.check()
        failures: list[LockstepError] = []
        for gateway in self._gateways:
            try:
                gateway.check()
            except LockstepError as error:
                failures.append(error)
                log.warning(
                    "a gateway cannot be used: requests go to the others", gateway=gateway.name, why=error.message
                )
                self._rest(gateway)
        if self._store is None and len(failures) == len(self._gateways):
            raise failures[0]

    def fetch_block(self, cid: Cid) -> bytes:
        if self._store is None:
            return self._from_gateways(cid, None)
        try:
            return self._store.fetch_block(cid)
        except (BlobMissing, BlobCorrupt, PayloadInvalid, Unreachable) as error:
            return self._from_gateways(cid, error)

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        done, why = first, None
        if self._store is not None:
            try:
                for leaf in self._store.fetch_leaves(cid, links, first):
                    yield leaf
                    done += 1
                return
            except (BlobMissing, BlobCorrupt, PayloadInvalid, Unreachable) as error:
                why = error
        for link in links[done:]:
            # The store has failed for this content, so it is not tried for each of the blocks.
            yield self._from_gateways(link.cid, why)

    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        return self._writable().put_block(block, codec)

    def put_stream(self, file: BinaryIO) -> Cid:
        return self._writable().put_stream(file)

    def has(self, cid: str) -> bool:
        parse_cid(cid)
        return self._store is not None and self._store.has(cid)

    def close(self) -> None:
        for each in [*([self._store] if self._store else []), *self._gateways]:
            each.close()

    def _writable(self) -> ContentStore:
        return self._store if self._store is not None else self._gateways[0]

    def _from_gateways(self, cid: Cid, why: LockstepError | None) -> bytes:
        """Returns the block from the first gateway that has it; raises `why`, or the least certain of the gateways'
        errors.
        """
        failures: list[LockstepError] = []
        now = self._clock()
        for gateway in sorted(self._gateways, key=lambda g: self._until.get(g.name, 0.0) > now):
            try:
                return gateway.fetch_block(cid)
            except BlobMissing as error:
                failures.append(error)
            except LockstepError as error:
                failures.append(error)
                if self._until.get(gateway.name, 0.0) <= now:
                    log.warning(
                        "a gateway failed: requests go to the others first", gateway=gateway.name, why=error.message
                    )
                self._rest(gateway)
        if why is not None:
            raise why
        # INVARIANT: unreachable is never missing.
        raise next((e for e in failures if not isinstance(e, BlobMissing)), failures[0])

    def _rest(self, gateway: GatewayStore) -> None:
        self._until[gateway.name] = self._clock() + REST_SECONDS
