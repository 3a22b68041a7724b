"""The API's requests and answers: roots and ids as 0x-hex, amounts as decimal strings, times in chain seconds."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from lockstep.market.signed import MACHINE_CHARACTERS

Bytes32 = Annotated[str, StringConstraints(pattern="^0x[0-9a-f]{64}$")]
Account = Annotated[str, StringConstraints(pattern="^0x[0-9a-fA-F]{40}$")]
MachineText = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=MACHINE_CHARACTERS)]
CidText = Annotated[str, StringConstraints(pattern="^[a-z2-7]+$", min_length=8, max_length=128)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
Mask = Annotated[str, StringConstraints(pattern="^(0|[1-9][0-9]{0,77})$")]
AccountRole = Literal["", "requester", "worker", "aggregator", "verifier", "witness"]
Row = TypeVar("Row")


class _Out(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Problem(BaseModel):
    """A failure, in the form of RFC 9457."""

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


class ClaimDetailOut(ClaimOut):
    """A claim with what its job, its round and its disputes say of it."""

    steps: int | None = None
    """Steps of training that it claims; null of a merge."""
    rows: int | None = None
    """Elements of their dataset; null for a merge, and while the job's files are unavailable."""
    seconds: int | None = None
    """Chain seconds from the round's seed to the reveal; null before it."""
    machine: str | None = None
    """The processor or device that computed it, by the worker's own word; null if it named none."""
    why: str | None = None
    """One sentence on what became of it."""


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
    online: dict[str, int]
    """Accounts that an event of the last half hour of chain time names, by role; one may have several."""
    held: str | None
    """Transactions that wait for a lower fee, and why."""


class DeploymentOut(BaseModel):
    """The contracts' addresses: the file that `--deployment` takes."""

    chain_id: int
    token: str
    vault: str
    market: str
    game: str
    arbiter: str
    validator: str
    availability: str
    witnesses: str
    block: int
    """Events are read from this block on."""


class NetworkOut(BaseModel):
    """The market as a stranger needs it to check it: `--network URL` reads this."""

    deployment: DeploymentOut
    rpc_urls: list[str]
    """Public JSON-RPC endpoints of the chain; none where the operator publishes none."""
    gateways: list[str]
    """Trustless gateways that have the market's content, in addition to /ipfs of this server."""


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
    machine: MachineText = ""
    """The processor or device that computed it, by the worker's own word."""


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


# -- what the pages show --------------------------------------------------------------------------------


class DescriptionOut(BaseModel):
    """A job in its author's words, from its spec: unchecked, except for what follows from the Programs."""

    title: str
    """The job's name for people; empty without one."""
    model: str
    strategy: str
    arithmetic: str
    tokens_per_step: int
    """Elements of the dataset that one step of one slot draws: of its Program, which is checked."""
    operations_per_step: int
    """Operations of one step of one slot, by which prices are compared."""
    rows: str | None = None
    """Fields of a row, as its dataset's manifest has them; null for rows of tokens, and while it is unavailable."""


class TrainingOut(_Out):
    """A slot that somebody trains now."""

    round: int
    slot: int
    worker: str
    state: str
    id: str


class InsideOut(BaseModel):
    """A convicted payload that a standing merge holds: it stays in the weights of this and of every later merge."""

    round: int
    slot: int
    claim: str
    merge: str


class RunOut(BaseModel):
    """A job as a run: its progress, its cost, and the outcomes of its claims."""

    id: str
    requester: str
    aggregator: str
    state: str
    time: int
    block: int
    rounds: int
    slots: int
    inner_steps: int
    rounds_started: int
    rounds_by_state: dict[str, int]
    claims: int
    """Claims of slots; merges are not counted."""
    claims_by_state: dict[str, int]
    settled_share: float | None
    """Final claims among those that were decided; null before any was."""
    steps: int
    """Steps of final and accepted claims."""
    tokens: int | None
    """Elements of their dataset; null while the job's files are unavailable."""
    escrow: str
    """All that was ever escrowed: fees of witnesses whose rounds fall with a convicted merge come to it again."""
    deposit: str
    paid: str
    refunded: str
    games: int
    games_open: int
    convicted: int
    """Convicted claims, merges among them."""
    description: DescriptionOut | None
    losses: list[float | str]
    """The loss after each merge, for a sparkline."""
    held: str
    """Escrow that is left: the most that the run can still cost."""
    slot_price: str
    operations_price: str | None
    """Pay for 10^15 operations of a slot; null while the job's files are unavailable."""
    rounds_done: int
    """Rounds that were merged, or that failed."""
    seconds_to_go: int | None
    """Chain seconds until the last round, at the pace of the latest rounds; null of a run that does not go on, or has
    begun fewer than two rounds."""
    training: list[TrainingOut]
    """Slots that are trained now."""
    inside: list[InsideOut]
    """Convicted payloads in the weights."""
    waits: str | None
    """One sentence on what the job waits for; null once it is over, and in lists."""


class CellOut(BaseModel):
    """One claim of a run's grid."""

    round: int
    attempt: int
    slot: int
    state: str
    id: str
    holds_convicted: bool = False
    """True of a merge that holds a payload whose claim was convicted later."""


class GridOut(BaseModel):
    """Rounds x slots, by what became of each claim; the merge is slot 4294967295."""

    job: str
    slots: int
    first: int
    last: int
    rounds: int
    """Rounds of the job that have begun."""
    cells: list[CellOut]


class RoundPoint(BaseModel):
    """A round of a run's time line."""

    round: int
    state: str
    started: int
    updated: int
    claims: dict[str, int]
    """Slots' claims of its present attempt, by state."""
    paid: str
    tokens: int | None
    """Tokens of accepted and final claims."""


class TimelineOut(BaseModel):
    """Every round of a run."""

    job: str
    rounds: list[RoundPoint]


class LossPoint(BaseModel):
    """The loss of one checkpoint, and what was spent until then."""

    merges: int
    round: int | None
    claim: str
    """The merge; empty: the first weights."""
    loss: float | str
    """binary64; a string if it is not finite."""
    step: int
    tokens: int | None
    time: int
    cost: str


class CurveOut(BaseModel):
    """A run's loss after each merge that stands, as this coordinator has computed it from public data."""

    job: str
    losses: list[LossPoint]


class LockOut(BaseModel):
    """Stake that stands behind a claim, a game or a duty."""

    key: str
    amount: str
    what: str
    """claim, merge, game, other."""
    until: int | None
    """Chain seconds at which it is free if nobody challenges; null if that is not known yet."""


class ReasonOut(BaseModel):
    """Claims of an account by what became of their pay: the codes of `lockstep worker why`."""

    code: str
    means: str
    claims: int


class RoleOut(_Out):
    """A role in which an account has acted: requester, worker, aggregator, verifier, witness."""

    role: str
    acts: int
    """Jobs, slots, merges, games, or enrolments and draws."""


class AccountOut(BaseModel):
    """An account's money in the vault and its claims."""

    account: str
    roles: list[RoleOut]
    key: str | None
    free: str
    locked: str
    unbonding: str
    credits: str
    deposited: str
    earned: str
    slashed: str
    paid: str
    """Pay for slots and merges: a part of the earnings."""
    gained: str
    """Pay, fees, and shares of stakes and bonds: what was credited, without escrow and deposits that came back."""
    money: dict[str, str]
    """By kind. Credited: slots, merges, witnessed, won (shares of stakes and bonds), returned (escrow and deposits of
    its jobs). Paid or lost: escrowed (escrow and deposits of its jobs), slashed, bonds."""
    claims: int
    reasons: list[ReasonOut]
    locks: list[LockOut]
    recent: list[ClaimOut]


class FlowOut(BaseModel):
    """The money of one kind that moved within an hour of chain time."""

    hour: int
    kind: str
    amount: str


class PriceOut(BaseModel):
    """The price of compute in a run."""

    job: str
    price: str
    """Pay for 10^15 operations of a slot."""


class EconomyOut(BaseModel):
    """All money of the market: totals, and hour by hour."""

    prices: list[PriceOut]
    """The prices of the latest runs whose files can be had."""
    paid_hour: str
    """Paid out of escrow in the last 24 hours of chain time, an hour of those since the market's first payment."""
    workers: int
    """Accounts with accepted or final claims of slots in that time."""
    earned_hour: str
    """The same, for each of these workers."""
    slots: int
    """Claims of slots in that time, whatever became of them."""

    totals: dict[str, str]
    staked: str
    """Free and locked stake in the vault."""
    locked: str
    hours: list[FlowOut]


class EventOut(BaseModel):
    """One event of the contracts."""

    id: str
    """The value for `Last-Event-ID`."""
    block: int
    index: int
    time: int
    contract: str
    name: str
    job: str | None
    game: str | None
    tx: str
    args: dict[str, Any]
    accounts: list[str]
    """The accounts that it names."""
    amount: str | None
    """The amount that it reports, if it reports one."""
    claim: str | None


class TransactionOut(BaseModel):
    """One transaction: the events of the contracts that it logged."""

    tx: str
    block: int
    time: int
    gas: int | None
    """Gas that it used; null if the index has not read it: it reads only that of disputes."""
    events: list[EventOut]


class FoundOut(BaseModel):
    """A thing that an id or an address, or the beginning of one, names."""

    kind: Literal["run", "claim", "dispute", "account", "transaction"]
    id: str
    path: str
    """Its page."""


class ChainOut(BaseModel):
    """The chain as far as it is indexed, with its latest events."""

    chain_id: int | None
    market: str | None
    block: int | None
    head: int | None
    time: int | None
    unreadable: int
    unprojected: int
    events: list[EventOut]
    next: str | None = None
    """The value for `before` of the page of older events."""


class OpOut(BaseModel):
    """The operation that a game is about; null if the job's files are unavailable."""

    index: int
    kind: str | None
    name: str | None
    dtype: str | None
    shape: list[int] | None
    described: str | None


class ClocksOut(BaseModel):
    """Seconds left on each side's clock."""

    challenger: int
    defender: int


class MoveOut(BaseModel):
    """A move of a game, with both clocks after it."""

    move: str
    by: str
    shows: str
    block: int
    time: int
    transaction: str
    challenger_seconds: int
    defender_seconds: int
    gas: int | None
    """Gas of its transaction; null where the index was made before it read gas."""


class RangeOut(BaseModel):
    """Consecutive positions that the defender has shown, and the challenger's word on them."""

    label: str
    challenger: str
    """differs, agrees, unsaid."""
    node: str | None
    first: int | None
    last: int | None
    parts: list[RangeOut]


class PaymentOut(BaseModel):
    """Money that a game locked, moved or gave back."""

    what: str
    account: str | None
    amount: str


class DisputeOut(BaseModel):
    """A game with all that the chain says of it."""

    id: str
    claim: str
    job: str
    round: int
    attempt: int
    slot: int
    challenger: str
    defender: str
    verdict: str | None
    winner: str | None
    opened: int
    closed: int | None
    transitions: int
    program: str | None
    step: int | None
    wrong: str | None
    op: OpOut | None
    leaf: int | None
    element: int | None
    chunk: int | None
    claimed_bits: str | None
    contract_bits: str | None
    claimed_value: float | int | str | None
    contract_value: float | int | str | None
    phase: str
    due: str | None
    mover: str | None
    deadline: int | None
    seconds_left: ClocksOut
    moves: list[MoveOut]
    transactions: int
    gas_total: int | None
    """Gas of all its transactions."""
    tree: RangeOut
    money: list[PaymentOut]
    check: str
    """The command that checks it: exit code 0 if this machine computes the same."""
