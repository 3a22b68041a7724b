"""Authenticates signed requests, each of which is accepted once, from a registered node, within its lifetime.

A FastAPI dependency. It reads the headers first: the account's registered key, the time, the nonce, the length and the
signature, which covers the body's digest. Only then does it read the body, within the account's share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256

from eth_utils.address import to_checksum_address
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from coordinator.context import ApiContext
from coordinator.models import CursorRow, NodeRow
from lockstep.protocol.errors import AuthError, TryLater, UsageError
from lockstep.protocol.types import Address, Seconds
from lockstep.runtime.identity import verify_request
from lockstep.runtime.requests import RequestSignature

SMALL_BODY_BYTES = 64 << 10
BODY_SECONDS = 120.0
"""Machine seconds within which a body must arrive."""


@dataclass(frozen=True)
class SignedRequest:
    """A request that passed authentication."""

    account: Address
    """The account that sent the request."""
    node: bytes
    """The ed25519 key that the account registered on chain."""
    body: bytes


def signed(max_bytes: Callable[[ApiContext], int]) -> Callable[[Request], AsyncIterator[SignedRequest]]:
    """Returns a dependency that accepts only signed, unexpired and unused requests with a bounded body."""

    async def dependency(request: Request) -> AsyncIterator[SignedRequest]:
        context: ApiContext = request.app.state.context
        signature = RequestSignature.parse(request.headers)
        account, key, now = await run_in_threadpool(_known, context, signature)
        signature.check_time(now)
        length = _length(request, max_bytes(context))
        verify_request(signature, key, request.method, _target(request))
        await run_in_threadpool(context.nonces.require_fresh, signature.account, signature.nonce)
        # INVARIANT: no byte of a body is read for a stranger, nor beyond an account's share.
        with context.quotas.share(signature.account, length):
            body = await _read(request, length)
            signature.check_body(sha256(body).digest())
            await run_in_threadpool(context.nonces.use_nonce, signature.account, signature.nonce, signature.expires)
            yield SignedRequest(account, key, body)

    return dependency


def _known(context: ApiContext, signature: RequestSignature) -> tuple[Address, bytes, Seconds]:
    """Returns the account in the index's spelling, its node key, and chain time."""
    with context.database.reading() as session:
        cursor = session.get(CursorRow, 1)
        node = session.get(NodeRow, to_checksum_address(signature.account))
    if cursor is None:
        raise TryLater("the index has not reached the chain yet", hint="ask again in a few seconds")
    # INVARIANT: an account speaks through the key that it registered last, and through no other.
    if node is None:
        raise AuthError(
            f"{signature.account} registered no node key",
            hint="call registerNode(key) with the staking key, and wait for the index to see it",
            code="auth.unknown",
        )
    return Address(node.account), bytes.fromhex(node.key[2:]), context.nonces.latest(Seconds(cursor.time))


def _target(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope.get("query_string", b"")
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


def _length(request: Request, limit: int) -> int:
    """The declared length of the body. Raises UsageError `length_required` or `body_too_large`."""
    declared = request.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdecimal() and len(declared) <= 19):
        raise UsageError("the request does not say how long its body is", "send Content-Length", code="length_required")
    if int(declared) > limit:
        raise UsageError(
            f"the body has more than {limit} bytes",
            hint="put large content into storage yourself",
            code="body_too_large",
        )
    return int(declared)


async def _read(request: Request, length: int) -> bytes:
    """Reads the request's body. Raises UsageError if it is longer than declared, cut off or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > length:
                    raise UsageError("the body is longer than declared", "send what you declare", code="body_too_large")
    except TimeoutError as error:
        raise UsageError(
            f"the body did not arrive within {BODY_SECONDS:.0f} s", "send the request again", code="body_timeout"
        ) from error
    except ClientDisconnect as error:
        raise UsageError("the body is cut off", "try again") from error
    return bytes(body)
