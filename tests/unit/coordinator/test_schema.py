"""Schemathesis against the OpenAPI document: whatever is sent, no failure of ours, and every answer as described."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from requests import PreparedRequest
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from coordinator.models import CursorRow

from .conftest import JOB, NODE, NOW, WORKER, Api, claim_row

CHECKS = (
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
)  # fmt: skip
KNOWN = {"job": JOB, "claim": claim_row().id}
"""Ids that the index holds."""
FEW, MANY = 10, 300
"""Examples of an operation."""


def examine(api: Api, examples: int) -> None:
    """Call every operation of the document with valid and invalid requests, signed and unsigned.

    The chain is heard all the while: /readyz has no reason for its 503.
    """
    with api.context.database.session() as session:
        session.get_one(CursorRow, 1).checked += 86_400
    schema = schemathesis.openapi.from_asgi("/openapi.json", api.client.app)
    found = [result.ok() for result in schema.get_all_operations()]
    paths = api.client.get("/openapi.json").json()["paths"]
    assert len(found) == sum(map(len, paths.values())), "none is left out"
    for operation in found:
        known = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in operation.path}
        ways = [operation.as_strategy(mode) for mode in GenerationMode]
        cases = st.one_of(*ways, *([operation.as_strategy(path_parameters=known)] if known else []))

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        @given(case=cases, signed=st.booleans())
        def call(case: Case, signed: bool) -> None:
            answer = case.call(auth=sign) if signed else case.call()
            case.validate_response(answer, checks=CHECKS)

        call()


def sign(request: PreparedRequest) -> PreparedRequest:
    """Have a registered node sign a request as it is sent."""
    body = request.body or b""
    body = body.encode() if isinstance(body, str) else body
    request.headers.update(NODE.sign_request(WORKER.address, str(request.method), request.path_url, body, now=NOW))
    return request


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["sqlite"])
def test_few_requests_of_every_operation(api: Api) -> None:
    examine(api, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["postgresql"])
def test_many_requests_of_every_operation(api: Api) -> None:
    examine(api, MANY)
