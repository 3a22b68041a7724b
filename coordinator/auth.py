"""Signed requests: who may write, for how long, once.

A FastAPI dependency: it reads the body (bounded), and yields it with the account that registered the signing key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from coordinator.context import Context
from coordinator.models import Cursor, Node
from lockstep.identity import verify_request
from lockstep.protocol.errors import AuthError, TryLater, UsageError
from lockstep.protocol.requests import RequestSignature
from lockstep.protocol.types import Address, Seconds

SMALL_BODY_BYTES = 64 << 10


@dataclass(frozen=True)
class SignedRequest:
    """A request that passed."""

    account: Address
    """Who registered the key on chain."""
    node: bytes
    """The ed25519 key."""
    body: bytes


def signed(max_bytes: Callable[[Context], int]) -> Callable[[Request], Awaitable[SignedRequest]]:
    """A dependency that lets only signed, timely, unseen requests with a bounded body pass."""

    async def dependency(request: Request) -> SignedRequest:
        context: Context = request.app.state.context
        signature = RequestSignature.parse(request.headers)
        # A stranger's body is not even read.
        account, now = await run_in_threadpool(_known, context, signature)
        signature.check_time(now)
        body = await _read(request, max_bytes(context))
        verify_request(signature, request.method, _target(request), body)
        await run_in_threadpool(context.nonces.use_nonce, signature.key, signature.nonce, signature.expires)
        return SignedRequest(account, signature.key, body)

    return dependency


def _known(context: Context, signature: RequestSignature) -> tuple[Address, Seconds]:
    with context.database.reading() as session:
        cursor = session.get(Cursor, 1)
        account = session.scalar(select(Node.account).where(Node.key == "0x" + signature.key.hex()))
    if cursor is None:
        raise TryLater("the index has not reached the chain yet", hint="ask again in a few seconds")
    # INVARIANT: only a key that an account registered on chain may write.
    if account is None:
        raise AuthError(
            f"no account registered the node key {signature.key.hex()[:16]}",
            hint="call registerNode(key) with the staking key, and wait for the index to see it",
            code="auth.unknown",
        )
    return Address(account), context.nonces.latest(Seconds(cursor.time))


def _target(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope.get("query_string", b"")
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> UsageError:
    return UsageError(
        f"the body has more than {limit} bytes", hint="put large content into storage yourself", code="body_too_large"
    )
