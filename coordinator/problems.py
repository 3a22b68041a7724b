"""Errors as RFC 9457 problems: one shape, `application/problem+json`, for whatever goes wrong in a request.

The error tree's code and hint travel as members `code` and `hint`; `type` is a URN made of the code.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lockstep.base.log import Logger
from lockstep.protocol.errors import (
    AuthError,
    DoctorError,
    FundsError,
    GuardRefused,
    LockstepError,
    Mismatch,
    NotFoundError,
    TryLater,
    Unreachable,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
STATUSES: tuple[tuple[type[LockstepError], HTTPStatus], ...] = (
    (AuthError, HTTPStatus.UNAUTHORIZED),
    (UsageError, HTTPStatus.BAD_REQUEST),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (GuardRefused, HTTPStatus.CONFLICT),
    (FundsError, HTTPStatus.CONFLICT),
    (Mismatch, HTTPStatus.UNPROCESSABLE_ENTITY),
    (TryLater, HTTPStatus.SERVICE_UNAVAILABLE),
    (Unreachable, HTTPStatus.BAD_GATEWAY),
    (DoctorError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""First match wins; anything else is 500."""

CODES: dict[str, HTTPStatus] = {
    "auth.replayed": HTTPStatus.CONFLICT,
    "body_timeout": HTTPStatus.REQUEST_TIMEOUT,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "claims_full": HTTPStatus.CONFLICT,
    "length_required": HTTPStatus.LENGTH_REQUIRED,
    "quota": HTTPStatus.TOO_MANY_REQUESTS,
    "receipt_given": HTTPStatus.CONFLICT,
}
"""Codes with a status of their own."""

RETRY_SECONDS = 2
log = Logger(__name__)


def problem(
    status: int, code: str, detail: str, hint: str = "", *, retry_after: int = RETRY_SECONDS, **members: Any
) -> JSONResponse:
    """A problem document with the headers that its status asks for."""
    headers = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Lockstep-Signature"
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY, HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(retry_after)
    document = {
        "type": f"urn:lockstep:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        "hint": hint,
        **members,
    }
    return JSONResponse(document, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def status_of(error: LockstepError) -> HTTPStatus:
    """The HTTP status of an error of the tree."""
    if error.code in CODES:
        return CODES[error.code]
    return next((status for kind, status in STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def install(app: FastAPI) -> None:
    """Answer every failure of `app` with a problem."""

    @app.exception_handler(LockstepError)
    async def lockstep_error(_request: Request, error: LockstepError) -> JSONResponse:
        return problem(status_of(error), error.code, error.message, error.hint)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [{"where": "/".join(str(x) for x in e["loc"]), "what": e["msg"]} for e in error.errors()]
        first = f"{faults[0]['where']}: {faults[0]['what']}" if faults else "the request does not fit its schema"
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", first, "see /openapi.json", errors=faults)

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        answer = problem(error.status_code, phrase.lower().replace(" ", "_"), str(error.detail), "see /openapi.json")
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("bug", path=request.url.path, exc_info=error)
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "a bug in the coordinator", "its log holds the trace"
        )
