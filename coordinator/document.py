"""The parts of /openapi.json beyond the routes' own types: problems, the bodies and headers of signed requests."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from coordinator.problems import MEDIA_TYPE
from coordinator.schema import ClaimIn, Problem, ReceiptIn

REFERENCE = "#/components/schemas/{model}"
DESCRIBED: tuple[type[BaseModel], ...] = (ClaimIn, ReceiptIn, Problem)
"""The models that the routes read and answer themselves: no route declares them."""

HEADERS = {
    "Lockstep-Account": ("^0x[0-9a-f]{40}$", "The staking account."),
    "Lockstep-Nonce": ("^[0-9a-f]{32}$", "Never used twice by one account."),
    "Lockstep-Expires": ("^[0-9]{1,19}$", "Chain seconds, at most 900 ahead."),
    "Content-Digest": ("^sha-256=:[A-Za-z0-9+/]{43}=:$", "Of the body (RFC 9530)."),
    "Lockstep-Signature": ("^[0-9a-f]{128}$", "ed25519, by the node key that the account registered last."),
}
SIGNED_PROBLEMS = (401, 408, 409, 411, 413, 422, 429)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failures of a route; every one may answer 429 and 503 and a request that does not fit 422."""
    schema = {"$ref": REFERENCE.format(model=Problem.__name__)}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*statuses, 429, 503})
    }


def signed(body: type[BaseModel] | None) -> dict[str, Any]:
    """The headers and the body of a signed request; None: any bytes."""
    headers = [
        {"name": name, "in": "header", "required": True, "description": what,
         "schema": {"type": "string", "pattern": pattern}}
        for name, (pattern, what) in HEADERS.items()
    ]  # fmt: skip
    content: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    if body is not None:
        content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=body.__name__)}}}
    return {"parameters": headers, "requestBody": {"required": True, "content": content}}


def install(app: FastAPI) -> None:
    """Have the document hold the schemas that `problems` and `signed` name."""
    described = app.openapi

    def whole() -> dict[str, Any]:
        made = app.openapi_schema is None
        document = described()
        if made:
            _, schemas = models_json_schema([(model, "validation") for model in DESCRIBED], ref_template=REFERENCE)
            document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return document

    app.openapi = whole  # type: ignore[method-assign]
