"""Reads dispute games from the chain, and makes moves in them: converts between ABI values and the protocol's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.chain import contracts
from lockstep.chain.events import abi_events, abi_values
from lockstep.chain.ranges import logs_of, span_of
from lockstep.protocol.dispute import game, moves
from lockstep.protocol.errors import Mismatch, NotFoundError, TryLater
from lockstep.protocol.jobs import Body, ClaimStatus
from lockstep.protocol.market.ids import body_hash
from lockstep.protocol.types import (
    Address,
    ClaimId,
    Digest,
    GameId,
    ProgramRoot,
    StateRoot,
    Step,
)

if TYPE_CHECKING:
    from web3.types import LogReceipt

GAS = {"open": 1_000_000, "adjacent": 1_000_000, "defend": 1_000_000, "revealTensor": 1_000_000, "stage": 1_500_000,
       "proveOp": 3_000_000, "proveAlias": 1_400_000, "provePadding": 1_000_000, "resolve": 1_000_000}  # fmt: skip
"""Gas limits by move: most include the Program's header (up to 9 KiB), and a verdict on a merge voids the rounds based
on it.
"""
GAS_DEFAULT = 500_000
READS = 3
"""Number of reads after which a game's log counts as late: a move may be mined between two requests."""


@dataclass(frozen=True)
class LoggedEvent:
    """One event of a game, with its position on chain."""

    game: GameId
    event: moves.GameEvent
    block: int
    transaction: bytes
    index: int
    """The log's index in its block."""


def call(contract: contracts.GameContract, move: moves.Move, game_id: GameId) -> contracts.Call:
    """Returns the transaction that makes a move; `game_id` is ignored for `Open`."""
    return contract.call(move.call, *move.arguments(game_id), gas=GAS.get(move.call, GAS_DEFAULT))


def read(
    contract: contracts.GameContract, game_id: GameId, from_block: int = 0, known: game.Game | None = None
) -> game.Game:
    """Returns a game's current state, from its last event; the contract stores only a hash. `known` is the state as
    last read.

    Raises `NotFoundError` if there is no such game, `TryLater` if the node's log is behind its state.
    """
    for _ in range(READS):
        hashed, spent, ended = contract.read("game", game_id)
        if not int.from_bytes(hashed, "big") and ended == moves.Verdict.NONE:
            raise NotFoundError(f"no game {game_id.hex()}", "check the id and the addresses file")
        if known is not None and ended == moves.Verdict.NONE and known.standing.digest == hashed:
            return replace(known, spent=spent)
        logged = _logs(contract, from_block, [None, "0x" + game_id.hex()], latest=True)
        if not logged:
            break
        found = _left_by(logged[-1], _address("0x" + game.challenger_of(game_id).hex()))
        if (found.stored[0], found.verdict) == (hashed, ended):
            return replace(found, spent=spent)
    raise TryLater(
        f"the provider's log of game {game_id.hex()} is behind the game's state", "try again after the next block"
    )


def verdict(contract: contracts.GameContract, game_id: GameId) -> moves.Verdict:
    """Returns the verdict on a game; NONE while it is open."""
    return moves.Verdict(contract.read("game", game_id)[2])


def _left_by(entry: LogReceipt, challenger: Address) -> game.Game:
    """Returns the game's state after a log entry."""
    _, values = _values(entry)
    if "standing" in values:
        return as_it_stands(moves.GameState(*values["standing"]), challenger)
    return game.closed(challenger, ClaimId(values["claim"]), moves.Verdict(values.get("verdict", moves.Verdict.FRAUD)))


def as_it_stands(standing: moves.GameState, challenger: Address) -> game.Game:
    """Decodes a game's state from its six words; `challenger` opened it."""
    fields: dict[str, Any] = {
        **game.unpacked(standing.parties, game.PARTIES), **game.unpacked(standing.turn, game.TURN)
    }  # fmt: skip
    fields["phase"] = moves.GamePhase(fields["phase"])
    defender = _address(f"0x{standing.parties >> game.DEFENDER_AT:040x}")
    return game.Game(
        challenger, ClaimId(standing.claim), defender, node=Digest(standing.node), statement=Digest(standing.statement),
        staged=standing.staged, **fields,
    )  # fmt: skip


def log(contract: contracts.GameContract, game_id: GameId, from_block: int = 0) -> list[moves.GameEvent]:
    """Returns the game's events so far, in order: everything that an honest player needs of the other side."""
    return [entry.event for entry in entries(contract, game_id, from_block)]


def entries(contract: contracts.GameContract, game_id: GameId, from_block: int = 0) -> list[LoggedEvent]:
    """Returns the game's events so far, in order, with their positions on chain."""
    opened = _topic("Opened")
    return [_entry(found) for found in _logs(contract, from_block, [None, "0x" + game_id.hex()], opened)]


def all_opened(contract: contracts.GameContract, from_block: int = 0) -> list[LoggedEvent]:
    """Returns the event `Opened` of every game, in order."""
    return [_entry(found) for found in _logs(contract, from_block, ["0x" + _topic("Opened").hex()])]


def opened(contract: contracts.GameContract, claim: ClaimId, from_block: int = 0) -> list[GameId]:
    """Returns the games opened on a claim, in order."""
    logs = _logs(contract, from_block, ["0x" + _topic("Opened").hex(), None, "0x" + claim.hex()])
    return [GameId(bytes(entry["topics"][1])) for entry in logs]


def _logs(
    contract: contracts.GameContract,
    from_block: int,
    topics: list[Any],
    first: bytes | None = None,
    *,
    latest: bool = False,
) -> list[LogReceipt]:
    """Returns logs in order, read backwards from the latest block to the entry with the topic `first`, or to
    `from_block`. With `latest`, stops at the first entry found.

    Backwards, because a game is short compared with its chain, and providers limit the blocks of a request.
    """
    query, span = {"address": contract.address, "topics": topics}, span_of(contract.w3)
    last = int(contract.w3.eth.block_number)
    found: list[LogReceipt] = []
    while last >= from_block:
        begin = max(from_block, last - span.blocks + 1)
        part = logs_of(contract.w3, query, begin, last)
        if part is None:
            continue
        found = part + found
        if any(entry["topics"][0] == first for entry in part) or (latest and part):
            break
        last = begin - 1
    return found


def claim(market: contracts.Market, claim_id: ClaimId, body: Body, carried: moves.Proof = ()) -> game.DisputedClaim:
    """Returns the facts that a challenger needs of a claim with this `body` before it opens a game.

    `carried` has the three words of the body of the claim whose carry is in its S_0.

    Raises `NotFoundError` if there is no such claim or it is not revealed, `Mismatch` if its body is another.
    """
    held = market.claim(claim_id)
    if not held.transitions:
        raise NotFoundError(f"no claim {claim_id.hex()}", "check the id and the addresses file")
    # Before the reveal, the digest is that of a commitment and not of a body.
    if held.status < ClaimStatus.REVEALED:
        raise NotFoundError(f"the claim {claim_id.hex()} is not revealed", "wait for its event Revealed")
    if held.digest != body_hash(body):
        raise Mismatch(f"the claim {claim_id.hex()} has other roots", "take its roots from the event Revealed")
    params = market.params(held.job)
    defending = contracts.GameContract(market.w3, Address(market.read("game"))).defending(held.worker)
    first, last = market.facts_of(claim_id, 1, carried), market.facts_of(claim_id, held.transitions)
    return game.DisputedClaim(
        claim_id, held.worker, held.transitions, body, first.state_zero, first.program, last.program, first.seed,
        first.round, first.slot, first.dataset_root, first.dataset_rows, first.row_length, params.windows.clock_seconds,
        params.windows.step_seconds, market.bond_of(held.job), defending, market.live(claim_id), carried,
    )  # fmt: skip


def decode(entry: LogReceipt) -> moves.GameEvent:
    """Decodes one log entry of the game contract. Raises `NotFoundError` for a log of anything else."""
    name, values = _values(entry)
    return _decoded(name, values)


def _decoded(name: str, values: dict[str, Any]) -> moves.GameEvent:
    """Returns the event of this name; decodes the game's state once if the event carries it."""
    words = values.get("standing")
    left = game.NO_GAME if words is None else as_it_stands(moves.GameState(*words), game.NOBODY)
    return _DECODERS[name](values, left)


def _values(entry: LogReceipt) -> tuple[str, dict[str, Any]]:
    """Returns the name of an entry's event, and its arguments by their ABI names."""
    first, *topics = (bytes(topic) for topic in entry["topics"])
    event = abi_events("DisputeGame").get(first)
    if event is None or event["name"] not in _DECODERS:
        raise NotFoundError("a log entry is not a move of a game", "pass only logs of the game contract")
    return event["name"], abi_values(event, topics, bytes(entry["data"]))


def of_values(name: str, values: dict[str, Any]) -> moves.GameEvent | None:
    """Returns the event of a name with its arguments by their ABI names, bytes as bytes; None if it is not a game's
    event."""
    return _decoded(name, values) if name in _DECODERS else None


def _entry(found: LogReceipt) -> LoggedEvent:
    return LoggedEvent(
        GameId(bytes(found["topics"][1])), decode(found), int(found["blockNumber"]), bytes(found["transactionHash"]),
        int(found["logIndex"]),
    )  # fmt: skip


def _topic(event: str) -> bytes:
    return next(topic for topic, entry in abi_events("DisputeGame").items() if entry["name"] == event)


def _nodes(values: Sequence[bytes]) -> moves.Proof:
    return tuple(Digest(value) for value in values)


def _address(value: str) -> Address:
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(value))


def _finding(values: Sequence[Any]) -> moves.Finding:
    wrong, program, t, position, element, chunk, claimed, computed = values
    return moves.Finding(
        moves.Wrong(wrong), ProgramRoot(program), t, position, element, chunk, Digest(claimed), Digest(computed)
    )


_DECODERS: dict[str, Callable[[dict[str, Any], game.Game], moves.GameEvent]] = {
    "Opened": lambda v, g: moves.Opened(
        ClaimId(v["claim"]), _address(v["challenger"]), _address(v["defender"]), v["nonce"], v["t"]
    ),
    "Argued": lambda v, g: moves.Argued(Step(g.t), g.node, v["statement"]),
    "Defended": lambda v, g: moves.Defended(g.node, StateRoot(v["state"]), _nodes(v["children"])),
    "Revealed": lambda v, g: moves.Revealed(g.node, _nodes(v["children"])),
    "Picked": lambda v, g: moves.Picked(g.phase, g.position, g.node),
    "TensorRevealed": lambda v, g: moves.TensorRevealed(g.op, g.node, _nodes(v["children"])),
    "LeafPosted": lambda v, g: moves.LeafPosted(v["data"]),
    "ElementPicked": lambda v, g: moves.ElementPicked(g.position),
    "PartialsPosted": lambda v, g: moves.PartialsPosted(v["words"]),
    "PartialPicked": lambda v, g: moves.PartialPicked(g.group, g.word),
    "Staged": lambda v, g: moves.Staged(g.staged),
    "Convicted": lambda v, g: moves.Convicted(ClaimId(v["claim"]), _finding(v["finding"])),
    "Resolved": lambda v, g: moves.Resolved(ClaimId(v["claim"]), moves.Verdict(v["verdict"]), _address(v["winner"])),
}
