"""The HTTP API: a public index of the chain with a signed blob relay (docs/programs.md)."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from pydantic import BaseModel, ValidationError
from sqlalchemy import Select, exists, func, select, tuple_
from sqlalchemy.orm import Session
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Send

from coordinator import announcements, document, metrics, problems, receipts
from coordinator.auth import SMALL_BODY_BYTES, SignedRequest, signed
from coordinator.context import ApiContext
from coordinator.models import AnnouncementRow, ClaimRow, CursorRow, GameRow, JobRow, NodeRow, RoundRow, SignedClaimRow
from coordinator.projections import LARGEST_INTEGER
from coordinator.schema import (
    BlobOut,
    Bytes32,
    ClaimAccepted,
    ClaimIn,
    ClaimOut,
    GameOut,
    JobOut,
    NodeOut,
    Page,
    ReceiptAccepted,
    ReceiptIn,
    RoundOut,
    SignedClaimBody,
    SignedPage,
    StatusOut,
)
from lockstep.base.decoding import anything, from_json, refusing, several, text, whole
from lockstep.protocol.errors import LockstepError, Malformed, NotFoundError, TryLater, UsageError
from lockstep.storage.connections import HEALTH

READY_SECONDS = 30
"""An index that has not heard from the chain for this long is not ready."""

JUDGED_STATES = ("joined", "committed", "revealed", "accepted", "excluded")
"""The states in which two signatures may convict a slot's claim, now or once it is revealed."""

Limit = Annotated[int, Query(ge=1, le=200)]
Number = Annotated[int, Query(ge=0, le=LARGEST_INTEGER)]
FewRounds = Annotated[int, Query(ge=1, le=100)]
Small = Annotated[SignedRequest, Depends(signed(lambda _: SMALL_BODY_BYTES))]
Blob = Annotated[SignedRequest, Depends(signed(lambda context: context.max_blob_bytes))]
CURSOR_CHARACTERS = 200
"""The longest page cursor, which holds a number and an id."""
ID = re.compile("0x[0-9a-fA-F]{1,64}")
_CURSOR, _NUMBER, _KEY = several(anything, 2), whole(-LARGEST_INTEGER, LARGEST_INTEGER), text(66)
RowT = TypeVar("RowT")
BodyT = TypeVar("BodyT", bound=BaseModel)

log = structlog.get_logger(__name__)

public = APIRouter(prefix="/api/v1")
service = APIRouter()
BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The content.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
ABSENT, PAGED, SIGNED = document.problems(404, 422), document.problems(400, 422), document.SIGNED_PROBLEMS


def create_app(context: ApiContext) -> FastAPI:
    """The application over `context`."""
    app = FastAPI(
        title="Lockstep coordinator",
        version=version("lockstep-compute"),
        description="An index of the chain with a signed blob relay: all of it rebuilt from the chain and storage.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    app.include_router(public)
    app.include_router(service)
    problems.install(app)
    document.install(app)

    @app.middleware("http")
    async def count(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        wait = 0.0 if request.url.path in HEALTH else context.rates.wait(request.client.host if request.client else "")
        if wait:
            response: Response = problems.problem(
                429, "rate", "this address asks too often", "ask again after Retry-After seconds",
                retry_after=math.ceil(wait),
            )  # fmt: skip
        else:
            response = await proceed(request)
        route = getattr(request.scope.get("route"), "path", "unmatched")
        metrics.observe_request(request.method, route, response.status_code, time.perf_counter() - began)
        return response

    return app


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Ctx = Annotated[ApiContext, Depends(_context)]


# -- reading --------------------------------------------------------------------------------------------


@public.get("/jobs", responses=PAGED)
def jobs(context: Ctx, limit: Limit = 50, cursor: str | None = None) -> Page[JobOut]:
    """Jobs, newest first."""
    with context.database.reading() as session:
        rows, following = _page(session, select(JobRow), (JobRow.block, JobRow.id), limit, cursor)
        return Page[JobOut](items=[JobOut.model_validate(row) for row in rows], next=following)


@public.get("/jobs/{job}", responses=ABSENT)
def job(context: Ctx, job: Bytes32) -> JobOut:
    """One job with its parameters."""
    with _found(context, JobRow, job) as (_, row):
        return JobOut.model_validate(row)


@public.get("/jobs/{job}/rounds", responses=document.problems(400, 404, 422))
def rounds(context: Ctx, job: Bytes32, limit: FewRounds = 20, cursor: str | None = None) -> Page[RoundOut]:
    """A job's rounds, newest first, with their claims of every attempt."""
    with _found(context, JobRow, job) as (session, _):
        query = select(RoundRow).where(RoundRow.job == job)
        found, following = _page(session, query, (RoundRow.number, RoundRow.job), limit, cursor)
        items = {row.number: RoundOut.model_validate({**_fields(row), "claims": []}) for row in found}
        # One range of the index on (job, round, slot).
        within = ClaimRow.round.between(min(items, default=0), max(items, default=-1))
        claims = select(ClaimRow).where(ClaimRow.job == job, within).order_by(ClaimRow.attempt, ClaimRow.slot)
        for row in session.scalars(claims):
            if row.round in items:
                items[row.round].claims.append(ClaimOut.model_validate(row))
        return Page[RoundOut](items=list(items.values()), next=following)


@public.get("/claims/{claim}", responses=ABSENT)
def claim(context: Ctx, claim: Bytes32) -> ClaimOut:
    """One claim. Before its reveal is indexed, its CIDs are those that its worker announced."""
    with _found(context, ClaimRow, claim) as (session, row):
        announced = session.get(AnnouncementRow, claim)
        out = ClaimOut.model_validate(row)
        if announced is not None and out.payload_cid is None:
            out.trace_cid, out.payload_cid = announced.body["trace_cid"], announced.body["payload_cid"]
        return out


@public.get("/signed", responses=document.problems(422))
def signed_claims(context: Ctx, after: Number = 0, limit: Limit = 200) -> SignedPage:
    """Every signed claim that was shown and can still be judged, in the order of arrival, from number `after` on.

    Numbers begin anew when the index is: a reader whose `after` is greater than `last` asks from 0.
    """
    live = exists().where(ClaimRow.id == SignedClaimRow.claim, ClaimRow.state.in_(JUDGED_STATES))
    query = select(SignedClaimRow).where(SignedClaimRow.id > after, live).order_by(SignedClaimRow.id)
    with context.database.reading() as session:
        rows = session.scalars(query.limit(limit)).all()
        newest = session.scalar(select(func.max(SignedClaimRow.id))) or 0
        last = rows[-1].id if len(rows) == limit else newest
        return SignedPage(items=[SignedClaimBody.model_validate(row.body) for row in rows], last=last)


@public.get("/games", responses=PAGED)
def games(context: Ctx, limit: Limit = 50, cursor: str | None = None, open_only: bool = False) -> Page[GameOut]:
    """Disputes, newest first."""
    query = select(GameRow).where(GameRow.verdict.is_(None)) if open_only else select(GameRow)
    with context.database.reading() as session:
        rows, following = _page(session, query, (GameRow.block, GameRow.id), limit, cursor)
        return Page[GameOut](items=[GameOut.model_validate(row) for row in rows], next=following)


@public.get("/nodes", responses=PAGED)
def nodes(context: Ctx, limit: Limit = 50, cursor: str | None = None) -> Page[NodeOut]:
    """Registered nodes, newest first."""
    with context.database.reading() as session:
        rows, following = _page(session, select(NodeRow), (NodeRow.block, NodeRow.account), limit, cursor)
        return Page[NodeOut](items=[NodeOut.model_validate(row) for row in rows], next=following)


@public.get("/status", responses=document.problems())
def status(context: Ctx) -> StatusOut:
    """Returns how far the index has read the chain, and what it holds."""
    with context.database.reading() as session:
        cursor = session.get(CursorRow, 1)
        return StatusOut(
            version=version("lockstep-compute"),
            chain_id=cursor.chain_id if cursor else None,
            market=cursor.market if cursor else None,
            aggregator=context.aggregator,
            block=cursor.block if cursor else None,
            head=cursor.head if cursor else None,
            time=cursor.time if cursor else None,
            jobs=session.scalar(select(func.count()).select_from(JobRow)) or 0,
            claims=session.scalar(select(func.count()).select_from(ClaimRow)) or 0,
            games_open=session.scalar(select(func.count()).select_from(GameRow).where(GameRow.verdict.is_(None))) or 0,
            held=(cursor.held if cursor else "") or None,
        )


# -- signed ---------------------------------------------------------------------------------------------


@public.post(
    "/claims",
    status_code=202,
    responses=document.problems(400, 404, *SIGNED),
    openapi_extra=document.signed(ClaimIn),
)
def announce(context: Ctx, request: Small, response: Response) -> ClaimAccepted:
    """Announce a claim: its EIP-712 signature and where its material is, so that it is fetched early."""
    body = _parsed(ClaimIn, request)
    claim_hex = announcements.accept(context, request, body)
    context.poke(body.claim.job)
    response.headers["Location"] = f"/api/v1/claims/{claim_hex}"
    return ClaimAccepted(id=claim_hex)


@public.post(
    "/receipts",
    status_code=202,
    responses=document.problems(400, 404, *SIGNED),
    openapi_extra=document.signed(ReceiptIn),
)
def give_receipt(context: Ctx, request: Small) -> ReceiptAccepted:
    """Hand over a receipt, to be sent with those of the round's other slot owners. The same again is fine."""
    body = _parsed(ReceiptIn, request)
    receipts.accept(context, request, body)
    context.poke(body.job)
    return ReceiptAccepted(**body.model_dump(exclude={"mask", "signature"}))


@public.post(
    "/blobs", status_code=201, responses=document.problems(400, *SIGNED, 502), openapi_extra=document.signed(None)
)
async def put_blob(context: Ctx, request: Blob, response: Response) -> BlobOut:
    """Relay the body into storage; the answer is its CID."""
    cid = await context.backing.call(lambda: context.store.put(request.body))
    response.headers["Location"] = f"/api/v1/blobs/{cid}"
    return BlobOut(cid=cid, bytes=len(request.body))


@public.get("/blobs/{cid}", response_class=Response, responses=document.problems(400, 404, 422, 502) | BYTES)
async def get_blob(context: Ctx, cid: str) -> Response:
    """Content by CID, verified block by block before it leaves; broken off where a later block cannot be had."""
    pieces = context.store.get_stream(cid, max_bytes=context.max_blob_bytes)
    # What is wrong with the first block, its size or the CID itself still gets a status.
    first = await context.backing.call(lambda: next(pieces, b""))
    headers = {"ETag": f'"{cid}"', "Cache-Control": "public, max-age=31536000, immutable"}

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in context.backing.stream(pieces):
            yield piece

    return Pieces(body(), media_type="application/octet-stream", headers=headers)


class Pieces(StreamingResponse):
    """A stream that breaks off, so that no client takes it for whole, when the store fails in the middle of it."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except LockstepError as error:
            log.warning("answer broken off", code=error.code, why=error.message)


def _parsed(kind: type[BodyT], request: SignedRequest) -> BodyT:
    try:
        return kind.model_validate_json(request.body)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{'/'.join(str(x) for x in first['loc']) or 'body'}: {first['msg']}",
            hint=f"see {kind.__name__} in /openapi.json",
        ) from error


# -- service --------------------------------------------------------------------------------------------


@service.get("/healthz")
def healthz() -> dict[str, str]:
    """The process serves."""
    return {"status": "ok"}


@service.get("/readyz", responses=document.problems())
def readyz(context: Ctx) -> dict[str, Any]:
    """The index follows the chain; 503 while it does not."""
    context.database.check()
    with context.database.reading() as session:
        cursor = session.get(CursorRow, 1)
    if cursor is None:
        raise TryLater("nothing is indexed yet", hint="is the RPC reachable? see the log")
    silence = int(time.time()) - cursor.checked
    if silence > READY_SECONDS:
        raise TryLater(f"the chain was last heard {silence} s ago", hint="is the RPC reachable? see the log")
    return {"status": "ok", "block": cursor.block, "behind": cursor.head - cursor.block}


@service.get("/metrics", response_class=PlainTextResponse, responses=document.problems())
def prometheus(context: Ctx) -> Response:
    """Prometheus metrics, prefix `lockstep_`."""
    body, media_type = metrics.render(context.database, context.account)
    return Response(body, media_type=media_type)


# -- pages ----------------------------------------------------------------------------------------------


@contextmanager
def _found(context: ApiContext, kind: type[RowT], key: str) -> Iterator[tuple[Session, RowT]]:
    with context.database.reading() as session:
        row = session.get(kind, key)
        if row is None:
            raise NotFoundError(
                f"no {kind.__name__.lower()} {key}",
                hint="the index follows the chain by a block or two: see /api/v1/status",
            )
        yield session, row


def _page(
    session: Session, query: Select[RowT], order: tuple[Any, Any], limit: int, cursor: str | None
) -> tuple[list[RowT], str | None]:
    """`limit` rows in descending `order`, after the row that `cursor` names, and the next page's cursor."""
    # INVARIANT: a page costs what it holds, however long the list is.
    if cursor is not None:
        query = query.where(tuple_(*order) < tuple_(*_decode(cursor)))
    rows = list(session.scalars(query.order_by(*(column.desc() for column in order)).limit(limit + 1)))
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], _encode([getattr(last, column.key) for column in order])


def _encode(key: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[int, str]:
    with refusing(UsageError, "a cursor", hint="use `next` of the page before"):
        try:
            data = base64.urlsafe_b64decode(cursor[:CURSOR_CHARACTERS] + "=" * (-len(cursor) % 4))
        except ValueError as error:
            raise Malformed("no base64") from error
        pair = _CURSOR(from_json(data, CURSOR_CHARACTERS), "the cursor")
        if len(pair) != 2:
            raise Malformed("no pair")
        number, key = _NUMBER(pair[0], "its number"), _KEY(pair[1], "its key")
        if not ID.fullmatch(key):
            raise Malformed("no id")
        return number, key


def _fields(row: RoundRow) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in RoundRow.__table__.columns}
