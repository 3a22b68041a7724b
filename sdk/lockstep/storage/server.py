"""Serves a directory store over the Kubo RPC, in its own process (`lockstep storage serve`).

The verbs that ipfshttpclient and `ipfs --api` use for content (POST, under /api/v0): version, id, add, cat, block/put,
block/get, block/stat, pin/add, pin/ls. Requests that would give content another name than `cid_of` (CIDv0, other
chunkers, directories) are refused, never silently reinterpreted. There is no garbage collection: every stored block
counts as pinned.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.protocol.errors import BlobCorrupt, BlobMissing, DoctorError, LockstepError, UsageError
from lockstep.protocol.types import Cid
from lockstep.storage import connections
from lockstep.storage.cid import parse_cid
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.store import BlockCodec
from lockstep.storage.unixfs import CHUNK_BYTES, MAX_BLOCK_BYTES, MAX_LINKS

log = logging.getLogger(__name__)

VERSION = "0.40.0-lockstep"
"""The version of Kubo whose RPC this server implements."""
MAX_REQUEST_BYTES = 8 << 30
"""Largest request body in bytes: a tensor of 2^31 elements, the largest in a Program."""
SHUTDOWN_SECONDS = 5
DRAIN_SECONDS = 30

_FIXED_ADD_OPTIONS = {
    "cid-version": ("1",),
    "raw-leaves": ("true",),
    "chunker": (f"size-{CHUNK_BYTES}",),
    "max-file-links": (str(MAX_LINKS),),
    "hash": ("sha2-256",),
    "trickle": ("false",),
    "nocopy": ("false",),
    "only-hash": ("false",),
    "inline": ("false",),
    "wrap-with-directory": ("false",),
}
_REQUIRED_ADD_OPTIONS = ("cid-version", "raw-leaves")
"""Options whose defaults in Kubo differ, so that a request must state them."""


class BodyTooLargeError(Exception):
    """A request body exceeds the limit."""


def application(store: DirectoryStore, *, max_bytes: int = MAX_REQUEST_BYTES) -> Starlette:
    """Returns the ASGI application: the RPC over `store`, with request bodies of at most `max_bytes`."""
    rpc = _Rpc(store, max_bytes)
    verbs = {
        "version": rpc.version,
        "id": rpc.id,
        "add": rpc.add,
        "cat": rpc.cat,
        "block/put": rpc.block_put,
        "block/get": rpc.block_get,
        "block/stat": rpc.block_stat,
        "pin/add": rpc.pin_add,
        "pin/ls": rpc.pin_ls,
    }
    routes = [Route(f"/api/v0/{verb}", endpoint, methods=["POST"]) for verb, endpoint in verbs.items()]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_NoWebPages)],
        exception_handlers={LockstepError: _kubo_error, HTTPException: _http_error, Exception: _unexpected_error},
    )


def serve(store: DirectoryStore, *, host: str, port: int, max_bytes: int, on_ready: Callable[[str, int], None]) -> None:
    """Serves `store` until SIGTERM or SIGINT; requests in progress are answered first.

    Port 0 selects a free port; `on_ready(host, port)` is called once requests are answered. Raises DoctorError if the
    port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise DoctorError(f"cannot listen on {host}:{port}: {error.strerror}", "take another --port, or 0") from error
    config = connections.config(application(store, max_bytes=max_bytes), drain_seconds=SHUTDOWN_SECONDS)
    server = _Server(config, lambda: on_ready(host, int(listener.getsockname()[1])))

    def stop(*_: object) -> None:
        server.should_exit = True

    # after a shutdown uvicorn raises the signal again; with this handler that does not kill the process
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with listener:
        server.run(sockets=[listener])


class _NoWebPages:
    """Refuses requests of web pages: the RPC has no passwords, and it listens on machines that run browsers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # only POST is served, and browsers send the page's origin with every POST
        app = Response(status_code=403) if "origin" in Headers(scope=scope) else self._app
        await app(scope, receive, send)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()


class _Rpc:
    """Handlers of the RPC, one method per verb; blocking store calls run in the thread pool."""

    def __init__(self, store: DirectoryStore, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes

    async def version(self, request: Request) -> Response:
        return JSONResponse({"Version": VERSION, "Commit": "", "Repo": "", "System": "", "Golang": ""})

    async def id(self, request: Request) -> Response:
        return JSONResponse({"ID": "", "PublicKey": "", "Addresses": [], "AgentVersion": VERSION, "Protocols": []})

    async def add(self, request: Request) -> Response:
        _require_layout(request)
        async with self._upload(request) as file:
            cid = await run_in_threadpool(self._store.put_stream, file.file)
            name = file.filename or cid
        return JSONResponse({"Name": name, "Hash": cid, "Size": str(file.size or 0)})

    async def cat(self, request: Request) -> Response:
        cid = _cid(request)
        offset, length = _integer(request, "offset", 0), _integer(request, "length", -1)
        size = await run_in_threadpool(self._store.size, cid)
        end = size if length < 0 else min(size, offset + length)
        pieces = _window(self._store.get_stream(cid, max_bytes=size), offset, end)
        return _Pieces(pieces, media_type="text/plain", headers={"X-Content-Length": str(size)})

    async def block_put(self, request: Request) -> Response:
        codec = request.query_params.get("cid-codec", "raw")
        if codec not in ("raw", "dag-cbor") or request.query_params.get("mhtype", "sha2-256") != "sha2-256":
            raise UsageError("block put takes cid-codec raw or dag-cbor, and mhtype sha2-256")
        async with self._upload(request) as file:
            block = await file.read(MAX_BLOCK_BYTES + 1)
        cid = await run_in_threadpool(self._store.put_block, block, cast(BlockCodec, codec))
        return JSONResponse({"Key": cid, "Size": len(block)})

    async def block_get(self, request: Request) -> Response:
        block = await run_in_threadpool(self._store.fetch_block, _cid(request))
        return Response(block, media_type="application/octet-stream")

    async def block_stat(self, request: Request) -> Response:
        cid = _cid(request)
        block = await run_in_threadpool(self._store.fetch_block, cid)
        return JSONResponse({"Key": cid, "Size": len(block)})

    async def pin_add(self, request: Request) -> Response:
        cid = _cid(request)
        await run_in_threadpool(self._store.size, cid)
        return JSONResponse({"Pins": [cid]})

    async def pin_ls(self, request: Request) -> Response:
        if "arg" in request.query_params:
            cids = [_cid(request)]
            if not await run_in_threadpool(self._store.has, cids[0]):
                raise UsageError(f"path '{cids[0]}' is not pinned")
        else:
            cids = await run_in_threadpool(lambda: list(self._store.blocks()))
        return JSONResponse({"Keys": {cid: {"Type": "recursive", "Name": ""} for cid in cids}})

    @asynccontextmanager
    async def _upload(self, request: Request) -> AsyncIterator[UploadFile]:
        """Returns the only file of a multipart request; beyond the limit answers 413 and discards the rest of the
        body.
        """
        bounded = Request(request.scope, _bounded(request.receive, self._max_bytes))
        try:
            async with bounded.form(max_files=1, max_fields=0) as form:
                files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
                if len(files) != 1 or files[0].content_type == "application/x-directory":
                    raise UsageError("send exactly one file, and no directory")
                yield files[0]
        except BodyTooLargeError as error:
            detail = f"the request has more than {self._max_bytes} bytes"
            raise HTTPException(413, detail, headers={"Connection": "close"}) from error


class _Pieces(StreamingResponse):
    """A streamed answer that breaks off if the store fails midway, so that no client takes it for complete."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except LockstepError as error:
            # without a final message the response counts as broken, and the connection is closed
            log.error("%s", error)


def _require_layout(request: Request) -> None:
    given = request.query_params
    for option in _REQUIRED_ADD_OPTIONS:
        if option not in given:
            raise UsageError(f"this store adds content with {option}={_FIXED_ADD_OPTIONS[option][0]} only: say so")
    for option, accepted in _FIXED_ADD_OPTIONS.items():
        # INVARIANT: content that is accepted has the name that `cid_of` gives it.
        if option in given and given[option].lower() not in accepted:
            raise UsageError(f"this store adds content with {option}={accepted[0]} only, not {given[option]!r}")


def _cid(request: Request) -> Cid:
    text = request.query_params.get("arg", "").removeprefix("/ipfs/")
    parse_cid(text)
    return Cid(text)


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.lstrip("-").isdecimal() or (name in request.query_params and int(text) < 0):
        raise UsageError(f"{name} is not a count: {text!r}")
    return int(text)


def _window(pieces: Iterator[bytes], offset: int, end: int) -> Iterator[bytes]:
    """Yields bytes [offset, end) of the concatenation of `pieces`."""
    at = 0
    for piece in pieces:
        if at >= end:
            return
        yield piece[max(offset - at, 0) : end - at]
        at += len(piece)


def _bounded(receive: Receive, max_bytes: int) -> Receive:
    # the multipart frame does not count as part of the file
    left = max_bytes + 16384

    async def counted() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        # INVARIANT: no request makes the server keep more bytes than its operator allows.
        if left < 0:
            await _drain(receive, message)
            raise BodyTooLargeError
        return message

    return counted


async def _drain(receive: Receive, message: Message) -> None:
    """Reads and discards the rest of the body for a while: a client that is still sending would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while message.get("more_body", False):
                message = await receive()


async def _kubo_error(request: Request, error: Exception) -> Response:
    """Returns a failure as Kubo does: status 500 with a text, by which clients distinguish failures."""
    message = str(error)
    if isinstance(error, BlobMissing):
        cid = request.query_params.get("arg", "")
        message = f"block was not found locally (offline): ipld: could not find {cid}"
    elif isinstance(error, BlobCorrupt):
        message = f"block in storage has different hash than requested: {message}"
    return _failure(message)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    # Starlette raises the error again for the log; the client receives its kind, and no local path.
    return _failure(f"the store failed unexpectedly: {type(error).__name__}")


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return Response(status_code=500)
    if error.status_code != 413:
        return Response(status_code=error.status_code, headers=error.headers)
    return _failure(error.detail, 413, error.headers)


def _failure(message: str, status: int = 500, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a failure in Kubo's response format."""
    return JSONResponse({"Message": message, "Code": 0, "Type": "error"}, status, headers)
