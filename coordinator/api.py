"""The HTTP API: a public index of the chain with a signed blob relay (docs/processes.md)."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Send

from coordinator import (
    announcements,
    assets,
    chain_views,
    claim_views,
    document,
    exports,
    metrics,
    pages,
    problems,
    queries,
    receipts,
    stream,
    views,
)
from coordinator import economy as money_views
from coordinator.auth import SMALL_BODY_BYTES, SignedRequest, signed
from coordinator.context import ApiContext, Ctx
from coordinator.models import CursorRow
from coordinator.projections import LARGEST_INTEGER
from coordinator.roles import ANY
from coordinator.schema import (
    Account,
    AccountOut,
    AccountRole,
    BlobOut,
    Bytes32,
    ChainOut,
    ClaimAccepted,
    ClaimDetailOut,
    ClaimIn,
    CurveOut,
    DisputeOut,
    EconomyOut,
    FoundOut,
    GameOut,
    GridOut,
    JobOut,
    NetworkOut,
    NodeOut,
    Page,
    ReceiptAccepted,
    ReceiptIn,
    RoundOut,
    RunOut,
    SignedPage,
    StatusOut,
    TimelineOut,
    TransactionOut,
)
from lockstep.base.log import Logger
from lockstep.protocol.errors import LockstepError, TryLater, UsageError
from lockstep.protocol.types import Cid
from lockstep.storage.cid import parse_cid
from lockstep.storage.connections import HEALTH
from lockstep.storage.gateway import MEDIA_TYPE, PROBE

READY_SECONDS = 30
"""An index that has not heard from the chain for this long is not ready."""

Limit = Annotated[int, Query(ge=1, le=200)]
Number = Annotated[int, Query(ge=0, le=LARGEST_INTEGER)]
FewRounds = Annotated[int, Query(ge=1, le=100)]
FewRuns = Annotated[int, Query(ge=1, le=50)]
EventName = Annotated[str | None, Query(max_length=48)]
Format = Annotated[Literal["json", "csv"], Query(alias="format", description="`csv`: only the rows of the plot.")]
Raw = Annotated[Literal["raw"] | None, Query(alias="format", description="`raw`: the block itself.")]
Small = Annotated[SignedRequest, Depends(signed(lambda _: SMALL_BODY_BYTES))]
Blob = Annotated[SignedRequest, Depends(signed(lambda context: context.max_blob_bytes))]
BodyT = TypeVar("BodyT", bound=BaseModel)

log = Logger(__name__)

public = APIRouter(prefix="/api/v1")
service = APIRouter()
BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The content.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
BLOCK: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The block.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
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
    app.state.stream = stream.Stream(context.database)
    app.include_router(public)
    app.include_router(service)
    app.include_router(stream.router)
    app.include_router(pages.router)
    app.include_router(assets.router)
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
        # What strangers have stored is never taken for a script or a page.
        response.headers["X-Content-Type-Options"] = "nosniff"
        route = getattr(request.scope.get("route"), "path", "unmatched")
        metrics.observe_request(request.method, route, response.status_code, time.perf_counter() - began)
        return response

    return app


# -- reading --------------------------------------------------------------------------------------------


@public.get("/jobs", responses=PAGED)
def jobs(context: Ctx, limit: Limit = 50, cursor: str | None = None) -> Page[JobOut]:
    """Jobs, newest first."""
    return queries.jobs(context.database, limit, cursor)


@public.get("/jobs/{job}", responses=ABSENT)
def job(context: Ctx, job: Bytes32) -> JobOut:
    """One job with its parameters."""
    return queries.job(context.database, job)


@public.get("/jobs/{job}/rounds", responses=document.problems(400, 404, 422))
def rounds(context: Ctx, job: Bytes32, limit: FewRounds = 20, cursor: str | None = None) -> Page[RoundOut]:
    """A job's rounds, newest first, with their claims of every attempt."""
    return queries.rounds(context.database, job, limit, cursor)


@public.get("/claims/{claim}", responses=ABSENT)
def claim(request: Request, context: Ctx, claim: Bytes32) -> ClaimDetailOut:
    """One claim. Before its reveal is indexed, its CIDs are those that its worker announced."""
    return claim_views.claim(context, claim, context.published.url_of(request))


@public.get("/signed", responses=document.problems(422))
def signed_claims(context: Ctx, after: Number = 0, limit: Limit = 200) -> SignedPage:
    """Signed claims that were shown and can still be judged, in the order of arrival, from number `after` on.

    The next page is asked for from `last` on, also where this one is not full. Numbers begin anew when the index is: a
    reader whose `after` is greater than `last` asks from 0.
    """
    return queries.signed_claims(context.database, after, limit)


@public.get("/games", responses=PAGED)
def games(context: Ctx, limit: Limit = 50, cursor: str | None = None, open_only: bool = False) -> Page[GameOut]:
    """Disputes, newest first."""
    return queries.games(context.database, limit, cursor, open_only=open_only)


@public.get("/nodes", responses=PAGED)
def nodes(context: Ctx, limit: Limit = 50, cursor: str | None = None) -> Page[NodeOut]:
    """Registered nodes, newest first."""
    return queries.nodes(context.database, limit, cursor)


@public.get("/status", responses=document.problems())
def status(context: Ctx) -> StatusOut:
    """Returns how far the index has read the chain, and what it holds."""
    return queries.status(context)


@public.get("/network", responses=document.problems())
def network(context: Ctx) -> NetworkOut:
    """Returns what a stranger needs to check this market: contracts, RPC endpoints, gateways (`--network URL`)."""
    return context.published.document()


@public.get("/runs", responses=PAGED)
def runs(context: Ctx, limit: FewRuns = 20, cursor: str | None = None) -> Page[RunOut]:
    """Jobs as runs, newest first: how far they are, what they have cost, what became of their claims."""
    return views.runs(context, limit, cursor)


@public.get("/jobs/{job}/run", responses=ABSENT)
def run(context: Ctx, job: Bytes32) -> RunOut:
    """One job as a run."""
    return views.run(context, job)


@public.get("/jobs/{job}/grid", responses=ABSENT | exports.CSV)
def grid(
    context: Ctx, job: Bytes32, before: Number | None = None, count: FewRounds = 60, form: Format = "json"
) -> GridOut:
    """The heat-map: the last `count` rounds before `before` by slot, each cell a claim."""
    return exports.answer(views.grid(context, job, before, count), "cells", form)


@public.get("/jobs/{job}/timeline", responses=ABSENT | exports.CSV)
def timeline(context: Ctx, job: Bytes32, form: Format = "json") -> TimelineOut:
    """Every round of a job: when it was, what became of its claims, what was paid, tokens of the dataset."""
    return exports.answer(views.timeline(context, job), "rounds", form)


@public.get("/jobs/{job}/losses", responses=ABSENT | exports.CSV)
def losses(context: Ctx, job: Bytes32, form: Format = "json") -> CurveOut:
    """The loss after each merge that stands, against step, tokens, time and cost."""
    return exports.answer(views.curve(context, job), "losses", form)


@public.get("/games/{game}", responses=ABSENT | exports.CSV)
def game(request: Request, context: Ctx, game: Bytes32, form: Format = "json") -> DisputeOut:
    """One dispute: every move, the clocks, the bisection, both values and the contract's. As CSV: the moves."""
    return exports.answer(views.dispute(context, game, context.published.url_of(request)), "moves", form)


@public.get("/accounts", responses=PAGED)
def accounts(context: Ctx, limit: FewRuns = 20, cursor: str | None = None, role: AccountRole = ANY) -> Page[AccountOut]:
    """Accounts that have acted in a role, or in any, the latest to begin first; without their locks and claims."""
    return views.accounts(context, limit, cursor, role)


@public.get("/accounts/{account}", responses=ABSENT | exports.CSV)
def account(context: Ctx, account: Account, form: Format = "json") -> AccountOut:
    """One account: stake, earnings, what became of its claims, what is at stake until when. As CSV: the reasons."""
    return exports.answer(views.account(context, account), "reasons", form)


@public.get("/economy", responses=document.problems(422) | exports.CSV)
def economy(context: Ctx, form: Format = "json") -> EconomyOut:
    """All money of the market: totals, and hour by hour of chain time."""
    return exports.answer(money_views.economy(context), "hours", form)


@public.get("/chain", responses=document.problems(400, 422) | exports.CSV)
def chain(
    context: Ctx, limit: Limit = 50, before: str | None = None, event: EventName = None,
    account: Account | None = None, form: Format = "json",
) -> ChainOut:  # fmt: skip
    """The chain as far as it is indexed, with its latest events: all, those of one name, those that name an account."""
    return exports.answer(chain_views.chain(context, limit, before, event, account), "events", form)


@public.get("/transactions/{tx}", responses=ABSENT)
def transaction(context: Ctx, tx: Bytes32) -> TransactionOut:
    """One transaction: the events of the contracts that it logged."""
    return chain_views.transaction(context, tx)


@public.get("/search", responses=PAGED)
def search(context: Ctx, q: Annotated[str, Query(max_length=80)]) -> list[FoundOut]:
    """Runs, claims, disputes, transactions and accounts whose ids begin with these hex digits, four or more."""
    return chain_views.search(context, q)


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
    context.notify(body.claim.job)
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
    context.notify(body.job)
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
    """Content by CID, verified block by block before it leaves; broken off if a later block is unavailable."""
    pieces = context.store.get_stream(cid, max_bytes=context.max_blob_bytes)
    # What is wrong with the first block, its size or the CID itself still gets a status.
    first = await context.backing.call(lambda: next(pieces, b""))
    headers = {"ETag": f'"{cid}"', "Cache-Control": "public, max-age=31536000, immutable"}

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in context.backing.stream(pieces):
            yield piece

    return Pieces(body(), media_type="application/octet-stream", headers=headers)


@service.get("/ipfs/{cid}", response_class=Response, responses=document.problems(400, 404, 406, 422, 502) | BLOCK)
async def get_block(context: Ctx, request: Request, cid: str, form: Raw = None) -> Response:
    """One block by CID, as a trustless gateway gives it: whoever asks verifies it."""
    if form is None and MEDIA_TYPE not in request.headers.get("accept", ""):
        return problems.problem(406, "usage", "blocks are all that this gateway gives", "ask with ?format=raw")
    if cid != PROBE:
        parse_cid(cid)
    block = b"" if cid == PROBE else await context.backing.call(lambda: context.store.fetch_block(Cid(cid)))
    headers = {
        "ETag": f'"{cid}.raw"', "Cache-Control": "public, max-age=31536000, immutable",
        "Content-Disposition": "attachment", "Access-Control-Allow-Origin": "*",
    }  # fmt: skip
    return Response(block, media_type=MEDIA_TYPE, headers=headers)


class Pieces(StreamingResponse):
    """A stream that breaks off, so that no client takes it for whole, when the store fails in the middle of it."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except LockstepError as error:
            log.warning("an answer to a request was cut off", code=error.code, why=error.message)


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
        raise TryLater("nothing is indexed yet", hint="check that the chain's RPC answers, and read the log")
    silence = int(time.time()) - cursor.checked
    if silence > READY_SECONDS:
        raise TryLater(
            f"the chain last answered {silence} s ago", hint="check that the chain's RPC answers, and read the log"
        )
    return {"status": "ok", "block": cursor.block, "behind": cursor.head - cursor.block}


@service.get("/metrics", response_class=PlainTextResponse, responses=document.problems())
def prometheus(context: Ctx) -> Response:
    """Prometheus metrics, prefix `lockstep_`."""
    body, media_type = metrics.render(context)
    return Response(body, media_type=media_type)
