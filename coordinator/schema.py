"""The API's requests and answers: roots and ids as 0x-hex, amounts as decimal strings, times in chain seconds."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Bytes32 = Annotated[str, StringConstraints(pattern="^0x[0-9a-f]{64}$")]
Account = Annotated[str, StringConstraints(pattern="^0x[0-9a-fA-F]{40}$")]
CidText = Annotated[str, StringConstraints(pattern="^[a-z2-7]+$", min_length=8, max_length=128)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
Mask = Annotated[str, StringConstraints(pattern="^(0|[1-9][0-9]{0,77})$")]
Row = TypeVar("Row")


class _Out(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Problem(BaseModel):
    """A failure, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    code: str
    """The error tree's code."""
    hint: str
    """Advice on what to do next; empty if nothing is known."""


class Page(BaseModel, Generic[Row]):
    """A page of rows, newest first; `next` is the cursor of the next page, null at the end."""

    items: list[Row]
    next: str | None = None


class JobOut(_Out):
    """A job."""

    id: str
    requester: str
    aggregator: str
    state: str
    spec_digest: str
    params: dict[str, Any]
    block: int
    time: int
    paid: str
    refunded: str


class ClaimOut(_Out):
    """A claim: a slot of a round, or a merge (slot 4294967295). It has a field for each thing that the chain says."""

    id: str
    job: str
    round: int
    attempt: int
    slot: int
    worker: str
    state: str
    commitment: str | None
    trace_root: str | None
    out: str | None
    out2: str | None
    trace_cid: str | None
    payload_cid: str | None
    paid: str
    slashed: str
    block: int
    time: int


class RoundOut(_Out):
    """A round and its claims."""

    number: int
    attempt: int
    state: str
    base: str | None
    outer: str | None
    seed: str | None
    attested: str | None
    mask: str | None
    merge_in: str | None
    started: int
    updated: int
    claims: list[ClaimOut] = []


class GameOut(_Out):
    """A dispute."""

    id: str
    claim: str
    challenger: str
    step: int
    verdict: str | None
    wrong: str | None
    position: int | None
    element: int | None
    chunk: int | None
    claimed_bits: str | None
    contract_bits: str | None
    moves: int
    block: int
    time: int
    closed: int | None


class NodeOut(_Out):
    """A registered node."""

    account: str
    key: str
    block: int


class StatusOut(BaseModel):
    """The progress of this index, and its contents."""

    version: str
    chain_id: int | None
    market: str | None
    aggregator: str
    block: int | None
    head: int | None
    time: int | None
    jobs: int
    claims: int
    games_open: int
    held: str | None
    """Transactions that wait for a lower fee, and why."""


class ClaimBody(BaseModel):
    """The claim that a worker signs: EIP-712 `Claim` of docs/protocol.md section 4."""

    model_config = ConfigDict(extra="forbid")
    job: Bytes32
    round: U32
    attempt: U32
    slot: U32
    seed: Bytes32
    base: Bytes32
    traceRoot: Bytes32
    transitions: U32
    out: Bytes32
    out2: Bytes32


class SignedClaimBody(BaseModel):
    """A claim and its worker's signature over it."""

    model_config = ConfigDict(extra="forbid")
    claim: ClaimBody
    worker: Account
    signature: Annotated[str, StringConstraints(pattern="^0x[0-9a-fA-F]{130}$")]


class ClaimIn(SignedClaimBody):
    """An announced claim: what is claimed, who signed it, where its material is."""

    trace_cid: CidText
    payload_cid: CidText


class SignedPage(BaseModel):
    """Signed claims in the order in which they came."""

    items: list[SignedClaimBody]
    last: int
    """The number to ask on `after`."""


class ClaimAccepted(BaseModel):
    """The id under which the announced claim can be read."""

    id: str


class ReceiptIn(BaseModel):
    """A receipt as `attest` takes it: EIP-712 `Receipt` of docs/protocol.md section 4, by an owner or its delegate."""

    model_config = ConfigDict(extra="forbid")
    job: Bytes32
    round: U32
    attempt: U32
    who: U32
    """The slot whose owner speaks."""
    mask: Mask
    """Decimal; bit s: slot s's payload was fetched and decoded."""
    signature: Annotated[str, StringConstraints(pattern="^0x([0-9a-fA-F]{2})+$", max_length=2 + 2 * 4096)]


class ReceiptAccepted(BaseModel):
    """The receipt that is kept, by its round and its speaker."""

    job: str
    round: int
    attempt: int
    who: int


class BlobOut(BaseModel):
    """A blob that was relayed into storage."""

    cid: str
    bytes: int
