"""The state transition function: applies one call of one contract atomically, and answers view functions.

    apply(state, block, call) -> (State, events)      or raises what the contract reverts with
    view(state, block, contract, function, ...)       the answer of a `view` function

Contracts and functions have their names in the ABI.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.protocol.dispute import game, moves
from lockstep.protocol.jobs import (
    Body,
    Genesis,
    JobParams,
    Merging,
    Pricing,
    Receipt,
    Reveal,
    Role,
    RoundSchedule,
    SpecRef,
    Windows,
)
from lockstep.protocol.market import (
    availability,
    court,
    requester,
    rounds,
    settling,
    token,
    validity,
    vault,
    verdicts,
    views,
    witnesses,
)
from lockstep.protocol.market.calls import Block, Emitted, MarketCall
from lockstep.protocol.market.ids import audit_id
from lockstep.protocol.market.state import Draft, State
from lockstep.protocol.market.types import BURN, Row, StateLeaf, Word
from lockstep.protocol.market.types import Shown as ShownLeaf
from lockstep.protocol.programs import defects
from lockstep.protocol.types import Address, GameId

Verb = Callable[..., Any]
"""Maps (draft, sender, *arguments) to the function's return value."""
View = Callable[..., Any]
"""Maps (state, block, *arguments) to the answer."""


def apply(state: State, block: Block, call: MarketCall) -> tuple[State, tuple[Emitted, ...]]:
    """Returns the State after a call, and its events in order. Raises `Reverted` where the contract reverts."""
    after, events, _ = execute(state, block, call)
    return after, events


def execute(state: State, block: Block, call: MarketCall) -> tuple[State, tuple[Emitted, ...], Any]:
    """Applies a call as `apply`; also returns the call's return value."""
    verb = VERBS.get((call.contract, call.function))
    if verb is None:
        raise LookupError(f"{call.contract} has no function {call.function}")
    draft = Draft(state, block, call.data, call.gas)
    returned = verb(draft, call.sender, *call.arguments)
    return draft.close(), tuple(draft.events), returned


def view(state: State, block: Block, contract: str, function: str, *arguments: Any) -> Any:
    """Returns a view function's answer in a block. Raises `Reverted` where it reverts."""
    asked = VIEWS.get((contract, function))
    if asked is None:
        raise LookupError(f"{contract} has no view {function}")
    return asked(state, block, *arguments)


# -- the moves of a game, from their function's arguments


def _answer(move: type[moves.Answer]) -> Verb:
    def made(d: Draft, sender: Address, id_: GameId, standing: moves.GameState, *arguments: Any) -> None:
        court.move(d, sender, id_, move(standing, *arguments))

    return made


def _shown(move: type[moves.Stage | moves.ProveOp]) -> Verb:
    def made(d: Draft, sender: Address, id_: GameId, standing: moves.GameState, shown: court.OperandProof) -> None:
        court.move(d, sender, id_, move(standing, *shown))

    return made


# -- the tables

VERBS: dict[tuple[str, str], Verb] = {
    ("TestToken", "mint"): token.mint,
    ("TestToken", "transfer"): token.transfer,
    ("TestToken", "approve"): token.approve,
    ("TestToken", "transferFrom"): token.transfer_from,
    ("TestToken", "permit"): token.permit,
    ("StakeVault", "deposit"): vault.deposit,
    ("StakeVault", "depositWithPermit"): vault.deposit_with_permit,
    ("StakeVault", "requestUnbond"): vault.request_unbond,
    ("StakeVault", "withdrawUnbonded"): vault.withdraw_unbonded,
    ("StakeVault", "withdraw"): vault.withdraw,
    ("StakeVault", "burn"): vault.burn,
    ("StakeVault", "registerNode"): vault.register_node,
    ("StakeVault", "setDelegate"): vault.set_delegate,
    ("StakeVault", "setOwner"): vault.set_owner,
    ("StakeVault", "requestUnbondFor"): vault.request_unbond_for,
    ("StakeVault", "withdrawUnbondedFor"): vault.withdraw_unbonded_for,
    ("StakeVault", "withdrawFor"): vault.withdraw_for,
    ("StakeVault", "setDelegateFor"): vault.set_delegate_for,
    ("StakeVault", "proposeOwner"): vault.propose_owner,
    ("StakeVault", "acceptOwner"): vault.accept_owner,
    ("StakeVault", "lock"): vault.lock,
    ("StakeVault", "raise"): vault.raise_,
    ("StakeVault", "unlock"): vault.unlock,
    ("StakeVault", "takeBond"): vault.take_bond,
    ("StakeVault", "payBond"): vault.pay_bond,
    ("StakeVault", "slash"): vault.slash,
    ("StakeVault", "slashLiveness"): vault.slash_liveness,
    ("StakeVault", "escrow"): vault.escrow,
    ("StakeVault", "escrowWithPermit"): vault.escrow_with_permit,
    ("StakeVault", "credit"): vault.credit,
    ("JobMarket", "create"): requester.create,
    ("JobMarket", "createWithPermit"): requester.create_with_permit,
    ("JobMarket", "cancel"): requester.cancel,
    ("JobMarket", "startRound"): rounds.start_round,
    ("JobMarket", "seal"): rounds.seal,
    ("JobMarket", "attest"): rounds.attest,
    ("JobMarket", "freeze"): rounds.freeze,
    ("JobMarket", "finalize"): settling.finalize,
    ("JobMarket", "release"): settling.release,
    ("JobMarket", "finish"): requester.finish,
    ("JobMarket", "join"): rounds.join,
    ("JobMarket", "leave"): rounds.leave,
    ("JobMarket", "commit"): rounds.commit,
    ("JobMarket", "reveal"): rounds.reveal,
    ("JobMarket", "merge"): rounds.merge,
    ("JobMarket", "back"): rounds.back,
    ("JobMarket", "onOpen"): verdicts.on_open,
    ("JobMarket", "onConvicted"): verdicts.on_convicted,
    ("JobMarket", "onRejected"): verdicts.on_rejected,
    ("JobMarket", "onInvalid"): verdicts.on_invalid,
    ("JobMarket", "onDrawn"): verdicts.on_drawn,
    ("JobMarket", "onWitnessed"): verdicts.on_witnessed,
    ("JobMarket", "onDemanded"): verdicts.on_demanded,
    ("Witnesses", "enrol"): witnesses.enrol,
    ("Witnesses", "retire"): witnesses.retire,
    ("Witnesses", "commit"): witnesses.commit,
    ("Witnesses", "reveal"): witnesses.reveal,
    ("Witnesses", "publish"): witnesses.publish,
    ("Witnesses", "draw"): witnesses.draw,
    ("Witnesses", "settle"): witnesses.settle,
    ("Availability", "unavailable"): availability.unavailable,
    ("Availability", "carryUnavailable"): availability.carry_unavailable,
    ("Availability", "keepSeed"): availability.keep_seed,
    ("Availability", "answer"): availability.answer,
    ("Availability", "settle"): availability.settle,
    ("Availability", "demandRow"): availability.demand_row,
    ("Availability", "answerRow"): availability.answer_row,
    ("Availability", "voidForRow"): availability.void_for_row,
    ("Availability", "commit"): availability.commit,
    ("Validator", "proveInvalid"): validity.prove_invalid,
    ("Validator", "commit"): validity.commit,
    ("DisputeGame", "open"): court.open_,
    ("DisputeGame", "reveal"): _answer(moves.Reveal),
    ("DisputeGame", "pick"): _answer(moves.Pick),
    ("DisputeGame", "adjacent"): _answer(moves.Adjacent),
    ("DisputeGame", "defend"): _answer(moves.Defend),
    ("DisputeGame", "revealTensor"): _answer(moves.RevealTensor),
    ("DisputeGame", "postLeaf"): _answer(moves.PostLeaf),
    ("DisputeGame", "pickElement"): _answer(moves.PickElement),
    ("DisputeGame", "postPartials"): _answer(moves.PostPartials),
    ("DisputeGame", "pickPartial"): _answer(moves.PickPartial),
    ("DisputeGame", "stage"): _shown(moves.Stage),
    ("DisputeGame", "proveOp"): _shown(moves.ProveOp),
    ("DisputeGame", "proveAlias"): _answer(moves.ProveAlias),
    ("DisputeGame", "provePadding"): _answer(moves.ProvePadding),
    ("DisputeGame", "equivocate"): court.equivocate,
    ("DisputeGame", "resolve"): court.resolve,
}
"""Functions that write, by (contract, name)."""

VIEWS: dict[tuple[str, str], View] = {
    ("TestToken", "name"): lambda s, b: token.NAME,
    ("TestToken", "symbol"): lambda s, b: token.SYMBOL,
    ("TestToken", "decimals"): lambda s, b: token.DECIMALS,
    ("TestToken", "totalSupply"): lambda s, b: s.total_supply,
    ("TestToken", "balanceOf"): lambda s, b, account: s.balances[account],
    ("TestToken", "allowance"): lambda s, b, owner, spender: s.allowances[owner, spender],
    ("TestToken", "nonces"): lambda s, b, owner: s.permits[owner],
    ("TestToken", "DOMAIN_SEPARATOR"): lambda s, b: token.domain_separator(s),
    ("TestToken", "eip712Domain"): lambda s, b: token.eip712_domain(s),
    ("StakeVault", "BURN"): lambda s, b: BURN,
    ("StakeVault", "token"): lambda s, b: s.at.token,
    ("StakeVault", "market"): lambda s, b: s.at.market,
    ("StakeVault", "game"): lambda s, b: s.at.game,
    ("StakeVault", "witnesses"): lambda s, b: s.at.witnesses,
    ("StakeVault", "availability"): lambda s, b: s.at.availability,
    ("StakeVault", "unbondSeconds"): lambda s, b: s.at.unbond_seconds,
    ("StakeVault", "free"): lambda s, b, account: s.free[account],
    ("StakeVault", "credits"): lambda s, b, account: s.credits[account],
    ("StakeVault", "delegateOf"): lambda s, b, account: s.delegate_of[account],
    ("StakeVault", "ownerOf"): lambda s, b, account: s.owner_of[account],
    ("StakeVault", "proposedOwnerOf"): lambda s, b, account: s.proposed_owner_of[account],
    ("StakeVault", "totalEscrow"): lambda s, b: s.total_escrow,
    ("StakeVault", "unbonding"): lambda s, b, account: (s.unbonding[account].amount, s.unbonding[account].available_at),
    ("StakeVault", "lockOf"): lambda s, b, key: s.locks[key],
    ("StakeVault", "mayAct"): lambda s, b, account, actor: views.may_act(s, account, actor),
    ("JobMarket", "token"): lambda s, b: s.at.token,
    ("JobMarket", "vault"): lambda s, b: s.at.vault,
    ("JobMarket", "game"): lambda s, b: s.at.game,
    ("JobMarket", "validator"): lambda s, b: s.at.validator,
    ("JobMarket", "witnesses"): lambda s, b: s.at.witnesses,
    ("JobMarket", "availability"): lambda s, b: s.at.availability,
    ("JobMarket", "inclusionSeconds"): lambda s, b: s.at.chain.inclusion,
    ("JobMarket", "censorSeconds"): lambda s, b: s.at.chain.censor,
    ("JobMarket", "job"): lambda s, b, job: s.jobs[job],
    ("JobMarket", "params"): lambda s, b, job: s.params[job],
    ("JobMarket", "round"): lambda s, b, job, r: s.rounds[job, r],
    ("JobMarket", "phase"): views.phase,
    ("JobMarket", "claim"): lambda s, b, claim: views.claim(s, claim),
    ("JobMarket", "claimIdOf"): lambda s, b, job, r, slot: views.claim_id_of(s, job, r, slot),
    ("JobMarket", "mergerOf"): views.merger_of,
    ("JobMarket", "barred"): lambda s, b, job, account: s.barred[job, account],
    ("JobMarket", "bondOf"): lambda s, b, job: views.bond_of(s, job),
    ("JobMarket", "live"): lambda s, b, claim: views.live(s, claim),
    ("JobMarket", "rewound"): lambda s, b, audit: s.rewound[audit],
    ("JobMarket", "convictedAt"): lambda s, b, claim: s.claims[claim].convicted_at,
    ("JobMarket", "windowOpen"): views.window_open,
    ("JobMarket", "factsOf"): lambda s, b, claim, t, carried: views.facts_of(s, claim, t, carried),
    ("Witnesses", "market"): lambda s, b: s.at.market,
    ("Witnesses", "vault"): lambda s, b: s.at.vault,
    ("Witnesses", "witness"): lambda s, b, job, account: s.enrolled[job, account],
    ("Witnesses", "accounts"): lambda s, b, job: s.lists[job],
    ("Witnesses", "audit"): lambda s, b, audit: s.audits[audit],
    ("Witnesses", "duty"): lambda s, b, audit, i: s.duties[audit, i],
    ("Witnesses", "auditIdOf"): lambda s, b, job, r, attempt: audit_id(job, r, attempt),
    ("Witnesses", "witnessOf"): lambda s, b, job, r, i: views.witness_of(s, job, r, i),
    ("Availability", "market"): lambda s, b: s.at.market,
    ("Availability", "vault"): lambda s, b: s.at.vault,
    ("Availability", "missing"): views.missing,
    ("Availability", "demand"): lambda s, b, demand: s.demands[demand],
    ("Availability", "asked"): lambda s, b, claim: s.asked[claim],
    ("Availability", "seedOf"): availability.seed_of,
    ("Availability", "keptSeed"): lambda s, b, demand: s.seeds[demand],
    ("Availability", "rowBondOf"): lambda s, b, job, row: availability.row_bond_of(s, job, row),
    ("Availability", "payloadDemandId"): lambda s, b, claim, n: availability.payload_demand_id(claim, n),
    ("Availability", "rowDemandId"): lambda s, b, job, row: availability.row_demand_id(job, row),
    ("Availability", "committedAt"): lambda s, b, digest: s.committed_at["Availability", digest],
    ("Validator", "market"): lambda s, b: s.at.market,
    ("Validator", "check"): lambda s, b, job, evidence: defects.check(job, evidence),
    ("Validator", "committedAt"): lambda s, b, digest: s.committed_at["Validator", digest],
    ("DisputeGame", "market"): lambda s, b: s.at.market,
    ("DisputeGame", "vault"): lambda s, b: s.at.vault,
    ("DisputeGame", "arbiter"): lambda s, b: s.at.arbiter_address,
    ("DisputeGame", "game"): lambda s, b, id_: s.games[id_].stored,
    ("DisputeGame", "gameIdOf"): lambda s, b, claim, challenger, nonce: game.game_id(claim, challenger, nonce),
    ("DisputeGame", "defending"): lambda s, b, account: s.defending[account],
}
"""Functions that only read, by (contract, name)."""

STRUCTS: dict[str, type] = {
    "JobParams": JobParams,
    "SpecRef": SpecRef,
    "Genesis": Genesis,
    "RoundSchedule": RoundSchedule,
    "Windows": Windows,
    "Merging": Merging,
    "Pricing": Pricing,
    "Role": Role,
    "JobParts": defects.JobParts,
    "Body": Body,
    "Reveal": Reveal,
    "Receipt": Receipt,
    "Refund": vault.Refund,
    "Word": Word,
    "Leaf": StateLeaf,
    "Code": defects.Code,
    "Piece": defects.Piece,
    "Evidence": defects.Evidence,
    "Shown": ShownLeaf,
    "Row": Row,
    "GameState": moves.GameState,
    "Step": moves.Transition,
    "Opening": moves.Opening,
    "Proof": court.OperandProof,
    "Work": court.Work,
    "Signed": court.Signed,
}
"""Maps the Solidity name of each struct that a call carries to its class; fields are in the ABI's order."""
