"""Typed wrappers: reads return the protocol's values, writes return a `Call` for the outbox to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from lockstep.chain import answers, artifacts, reverts, signatures
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.protocol.errors import ChainError, Malformed
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import (
    Body,
    Claim,
    ClaimStatus,
    Facts,
    Genesis,
    JobParams,
    JobState,
    JobStatus,
    Merging,
    Phase,
    Pricing,
    Receipt,
    Reveal,
    Role,
    Round,
    RoundSchedule,
    SpecRef,
    Windows,
)
from lockstep.protocol.market.calls import HASH_BLOCKS
from lockstep.protocol.market.ids import receipt_hash
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.types import (
    Audit,
    AuditStatus,
    Demand,
    Duty,
    DutyStatus,
    Keeper,
    Lock,
    Row,
    Shown,
    Standing,
    Status,
    Witness,
    Word,
)
from lockstep.protocol.programs.defects import Code, Evidence
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    AuditId,
    ClaimId,
    Digest,
    JobId,
    Seconds,
    StateRoot,
    Step,
    Wei,
)

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3

GAS = {
    "JobMarket.create": 1_200_000,
    "JobMarket.createWithPermit": 1_300_000,
    "JobMarket.merge": 600_000,
    "StakeVault.burn": 200_000,
    # These loop over the slots (64 at most), a rewind also over the rounds ahead (16 at most).
    "JobMarket.freeze": 5_000_000,
    "JobMarket.finalize": 6_000_000,
    "JobMarket.seal": 4_000_000,
    "JobMarket.startRound": 4_000_000,
    "JobMarket.release": 4_000_000,
    # A game's moves: the worst is the proof, and the verdict that a proof or a resolve ends with.
    "DisputeGame.proveOp": 2_000_000,
    # These carry a Program's header and several leaves.
    "Validator.proveInvalid": 3_000_000,
    "Availability.answer": 3_000_000,
    "Availability.answerRow": 6_000_000,
    # These store a word for each part of an answer.
    "Availability.commit": 1_000_000,
    "Validator.commit": 1_000_000,
    # Each of these may draw first, which loops over the slots and the duties (64 of either at most).
    "Witnesses.draw": 6_000_000,
    "Witnesses.enrol": 6_000_000,
    "Witnesses.retire": 6_000_000,
    "Witnesses.settle": 6_000_000,
}
GAS_DEFAULT = 800_000
"""Limits, not estimates: with them a transaction may follow in the same block as the one that it depends on."""

NEVER_REVERT = frozenset({
    "StakeVault.free", "StakeVault.credits", "StakeVault.unbonding", "StakeVault.lockOf", "StakeVault.totalEscrow",
    "StakeVault.unbondSeconds", "StakeVault.mayAct", "StakeVault.delegateOf", "StakeVault.ownerOf",
    "StakeVault.proposedOwnerOf", "JobMarket.job", "JobMarket.round", "JobMarket.claimIdOf", "JobMarket.barred",
    "JobMarket.rewound", "JobMarket.inclusionSeconds", "JobMarket.censorSeconds", "Availability.demand",
    "Availability.keptSeed",
})  # fmt: skip
"""Views that read what is stored, whatever they are asked for."""


def _somebody(address: str) -> Address | None:
    """An address that a table holds; None where it holds none."""
    return Address(address) if int(address, 16) else None


@dataclass(frozen=True)
class Call:
    """A transaction not yet signed: what the outbox takes."""

    to: Address
    """Empty: a contract is created."""
    data: bytes
    gas: int
    """The limit; what is not used is not paid."""
    label: str
    """Contract.function, for messages and gas tables."""
    value: int = 0
    before: tuple[Call, ...] = ()
    """Transactions of the same account that it depends on: the outbox sends them just before it."""


class Contract:
    """One deployed contract, by its committed ABI."""

    def __init__(self, w3: Web3, address: Address, artifact: str) -> None:
        self.w3 = w3
        self.address = address
        self.artifact = artifacts.load(artifact)

    def call(self, function: str, *arguments: Any, gas: int | None = None) -> Call:
        """The transaction that runs `function`; dataclass arguments stand for structs."""
        label = f"{self.artifact.name}.{function}"
        return Call(self.address, self._data(function, arguments), gas or GAS.get(label, GAS_DEFAULT), label)

    def read(self, function: str, *arguments: Any, block: int | str = "latest", sender: Address | None = None) -> Any:
        """Calls `function` at `block` and returns its result; a revert raises the rule that it broke."""
        from eth_abi.exceptions import DecodingError
        from web3.exceptions import ContractLogicError, Web3RPCError

        called: Any = {"to": self.address, "data": "0x" + self._data(function, arguments).hex()}
        if sender:
            called["from"] = sender
        parts = artifacts.function(self.artifact.name, function)["outputs"]

        @cache
        def values(answer: bytes) -> list[Any]:
            try:
                found = self.w3.codec.decode(_types(parts), answer)
                return [_read(part, value) for part, value in zip(parts, found, strict=True)]
            except (DecodingError, ValueError, OverflowError) as failure:
                raise Malformed(
                    f"no {self.artifact.name} at {self.address}", "check the addresses file and the RPC URL"
                ) from failure

        try:
            # INVARIANT: no endpoint ends a process by a revert where the contract has none: another one is asked.
            with answers.awaiting(values, reverts=f"{self.artifact.name}.{function}" not in NEVER_REVERT):
                found = values(_answer(self.w3, called, block))
        except ContractLogicError as failure:
            raise reverts.decode(revert_data(failure)) from failure
        except Malformed as failure:
            raise ChainError(failure.message, failure.hint) from failure
        except Web3RPCError as failure:
            raise ChainError(
                f"the node does not call {self.artifact.name}.{function}: {failure}", "use another RPC provider"
            ) from failure
        return found[0] if len(found) == 1 else found

    def arguments_of(self, data: bytes) -> dict[str, Any]:
        """A call's arguments by name. Raises `ValueError` for data that no function here takes."""
        entry = artifacts.functions(self.artifact.name).get(data[:4])
        if entry is None:
            raise ValueError(f"{self.artifact.name} has no function 0x{data[:4].hex()}")
        values = self.w3.codec.decode(_types(entry["inputs"]), data[4:])
        return {part["name"]: value for part, value in zip(entry["inputs"], values, strict=True)}

    def _data(self, function: str, arguments: Sequence[Any]) -> bytes:
        """Selector and arguments; web3's own way looks through the whole ABI for a function at each call."""
        entry = artifacts.function(self.artifact.name, function)
        return artifacts.selector(entry) + self.w3.codec.encode(_types(entry["inputs"]), [_plain(a) for a in arguments])


def _answer(w3: Web3, called: dict[str, Any], block: int | str) -> bytes:
    """Returns what `w3.eth.call` would, which walks through the request four times. A URL that an answer names
    (EIP-3668) is not asked."""
    from web3._utils.error_formatters_utils import raise_contract_logic_error_on_revert as reverted
    from web3.types import RPCEndpoint

    at = hex(block) if isinstance(block, int) else block
    answer: str = w3.manager.request_blocking(RPCEndpoint("eth_call"), [called, at], error_formatters=reverted)
    return bytes.fromhex(answer[2:])


def _types(parts: Sequence[dict[str, Any]]) -> list[str]:
    return [artifacts.abi_type(part) for part in parts]


def _read(part: dict[str, Any], value: Any) -> Any:
    """An answer's value, with every address in its checksummed form."""
    from eth_utils.address import to_checksum_address

    kind: str = part["type"]
    if kind.endswith("]"):
        inner = part | {"type": kind[: kind.rindex("[")]}
        return [_read(inner, one) for one in value]
    if kind == "tuple":
        return tuple(_read(p, v) for p, v in zip(part["components"], value, strict=True))
    return to_checksum_address(value) if kind == "address" else value


UNLIMITED = 1 << 200
"""An allowance that no amount uses up."""


class Token(Contract):
    """The ERC-20 of price, stake and bonds."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "TestToken")
        self._domain: dict[str, Any] | Literal[False] | None = None
        """The domain of permits; None: not asked for yet; False: the token takes no permit."""

    def balance_of(self, account: Address) -> Wei:
        """Tokens held, in the smallest unit."""
        return Wei(self.read("balanceOf", account))

    def allowance(self, owner: Address, spender: Address) -> Wei:
        """Returns the amount that `spender` may still pull from `owner`."""
        return Wei(self.read("allowance", owner, spender))

    def approve(self, spender: Address, amount: Wei) -> Call:
        """Lets `spender` pull up to `amount`."""
        return self.call("approve", spender, amount, gas=100_000)

    def transfer(self, to: Address, amount: Wei) -> Call:
        """Sends tokens."""
        return self.call("transfer", to, amount, gas=120_000)

    def mint(self, to: Address, amount: Wei) -> Call:
        """Test token only: anybody mints."""
        return self.call("mint", to, amount, gas=120_000)

    def sign_permit(
        self, account: LocalAccount, spender: Address, amount: Wei, deadline: Seconds
    ) -> tuple[int, int, bytes, bytes]:
        """(deadline, v, r, s) of an ERC-2612 permit by `account`; raises ChainError if the token takes none."""
        permit = self.permit_or_none(account, spender, amount, deadline)
        if permit is None:
            raise ChainError(f"the token at {self.address} takes no permit", "approve the spender instead")
        return permit

    def permit_or_none(
        self, account: LocalAccount, spender: Address, amount: Wei, deadline: Seconds
    ) -> tuple[int, int, bytes, bytes] | None:
        """(deadline, v, r, s) of an ERC-2612 permit by `account`, None if the token takes none; the deadline is chain
        time."""
        if self._domain is False:
            return None
        try:
            domain = self._domain or self._own_domain()
            nonce = self.read("nonces", account.address)
        except ChainError:
            self._domain = False
            return None
        signed = account.sign_typed_data(
            domain_data=domain,
            message_types={
                "Permit": [
                    {"name": "owner", "type": "address"},
                    {"name": "spender", "type": "address"},
                    {"name": "value", "type": "uint256"},
                    {"name": "nonce", "type": "uint256"},
                    {"name": "deadline", "type": "uint256"},
                ]
            },
            message_data={
                "owner": account.address,
                "spender": spender,
                "value": amount,
                "nonce": nonce,
                "deadline": deadline,
            },
        )
        permit = (int(deadline), signed.v, signed.r.to_bytes(32, "big"), signed.s.to_bytes(32, "big"))
        if self._domain is None:
            # Others than ERC-2612's have the domain and the nonces, too: the first one is tried.
            try:
                self.read("permit", account.address, spender, amount, *permit, sender=Address(account.address))
            except ChainError:
                self._domain = False
                return None
            self._domain = domain
        return permit

    def approvals(self, owner: Address, spender: Address, amount: Wei) -> tuple[Call, ...]:
        """The transactions after which `spender` may pull so much, whatever it may pull before."""
        allowed = self.allowance(owner, spender)
        if allowed >= UNLIMITED:
            return ()
        # A token may refuse to change an allowance that is not zero.
        reset = (self.approve(spender, Wei(0)),) if allowed else ()
        return (*reset, self.approve(spender, amount))

    def _own_domain(self) -> dict[str, Any]:
        """The EIP-712 domain, by ERC-5267 or, for tokens older than that, as its separator proves it; raises
        ChainError if the token tells none."""
        try:
            _, name, version, chain_id, contract, _, _ = self.read("eip712Domain")
            return {"name": name, "version": version, "chainId": chain_id, "verifyingContract": contract}
        except ChainError:
            separator = self.read("DOMAIN_SEPARATOR")
        named = {"name": self._text("name()"), "chainId": self.w3.eth.chain_id, "verifyingContract": self.address}
        for version in dict.fromkeys((self._text("version()"), "1", "2", "")):
            domain = {**named, "version": version} if version else named
            if _separator(domain) == separator:
                return domain
        raise ChainError(f"the token at {self.address} has a domain of its own", "approve takes the permit's place")

    def _text(self, function: str) -> str:
        """A text that the token tells of itself, in either of the types that tokens have for it; "" if it does not."""
        from eth_abi.exceptions import DecodingError
        from eth_utils.crypto import keccak
        from web3.exceptions import ContractLogicError, Web3RPCError

        called = {"to": self.address, "data": "0x" + keccak(text=function)[:4].hex()}
        try:
            answer = _answer(self.w3, called, "latest")
            if len(answer) == 32:
                return answer.rstrip(b"\0").decode()
            return str(self.w3.codec.decode(["string"], answer)[0])
        except (ContractLogicError, Web3RPCError, DecodingError, ValueError, OverflowError):
            return ""


def _separator(domain: Mapping[str, Any]) -> bytes:
    """Returns the hash of an EIP-712 domain of these fields."""
    from eth_abi import encode
    from eth_utils.crypto import keccak

    kinds = {"name": "string", "version": "string", "chainId": "uint256", "verifyingContract": "address"}
    there = [name for name in kinds if name in domain]
    said = keccak(text=f"EIP712Domain({','.join(f'{kinds[name]} {name}' for name in there)})")
    values = [keccak(text=domain[name]) if kinds[name] == "string" else domain[name] for name in there]
    words = ["bytes32" if kinds[name] == "string" else kinds[name] for name in there]
    return keccak(encode(["bytes32", *words], [said, *values]))


class Vault(Contract):
    """StakeVault: stake, locks, credits."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "StakeVault")

    def free(self, account: Address) -> Wei:
        """Stake that nothing has locked."""
        return Wei(self.read("free", account))

    def credits(self, account: Address) -> Wei:
        """Returns the amount that `withdraw` would pay out."""
        return Wei(self.read("credits", account))

    def unbonding(self, account: Address) -> tuple[Wei, Seconds]:
        """(amount, chain time from which it can be withdrawn)."""
        amount, available_at = self.read("unbonding", account)
        return Wei(amount), Seconds(available_at)

    def lock_of(self, key: bytes) -> Lock | None:
        """The lock under a ClaimId or GameId; None if there is none."""
        account, amount, keeper = self.read("lockOf", key)
        return Lock(account, Wei(amount), Keeper(keeper)) if int(account, 16) else None

    def total_escrow(self) -> Wei:
        """Escrow of all jobs that is neither paid nor refunded."""
        return Wei(self.read("totalEscrow"))

    def unbond_seconds(self) -> Seconds:
        """The unbonding delay of this deployment."""
        return Seconds(self.read("unbondSeconds"))

    def may_act(self, account: Address, actor: Address) -> bool:
        """Returns True if `actor` may post game moves for `account`."""
        return bool(self.read("mayAct", account, actor))

    def delegate_of(self, account: Address) -> Address:
        """Returns the address that also moves and signs for the account; the zero address if there is none."""
        return Address(self.read("delegateOf", account))

    def owner_of(self, account: Address) -> Address | None:
        """The owner, which alone unbonds and is paid what leaves the vault for the account; None: the account."""
        return _somebody(self.read("ownerOf", account))

    def proposed_owner_of(self, account: Address) -> Address | None:
        """Whom the account's owner has offered it to."""
        return _somebody(self.read("proposedOwnerOf", account))

    def deposit(self, amount: Wei) -> Call:
        """Stakes tokens that were approved for the vault."""
        return self.call("deposit", amount, gas=250_000)

    def deposit_with_permit(self, amount: Wei, permit: tuple[int, int, bytes, bytes]) -> Call:
        """Stakes in one transaction; `permit` from `Token.sign_permit` for the vault."""
        return self.call("depositWithPermit", amount, *permit, gas=350_000)

    def request_unbond(self, amount: Wei) -> Call:
        """Starts the delay for `amount` of free stake."""
        return self.call("requestUnbond", amount, gas=150_000)

    def withdraw_unbonded(self) -> Call:
        """Pays unbonded stake out."""
        return self.call("withdrawUnbonded", gas=150_000)

    def withdraw(self) -> Call:
        """Pays credits out."""
        return self.call("withdraw", gas=150_000)

    def burn(self) -> Call:
        """Pushes what was burned to the burn address."""
        return self.call("burn")

    def register_node(self, key: bytes) -> Call:
        """Announces the account's ed25519 key (32 bytes)."""
        return self.call("registerNode", key, gas=100_000)

    def set_delegate(self, delegate: Address) -> Call:
        """Names who may post game moves for the caller."""
        return self.call("setDelegate", delegate, gas=120_000)

    def set_owner(self, owner: Address) -> Call:
        """Names the caller's owner, once and at once."""
        return self.call("setOwner", owner, gas=120_000)

    def request_unbond_for(self, account: Address, amount: Wei) -> Call:
        """The owner starts the delay for `amount` of the account's free stake."""
        return self.call("requestUnbondFor", account, amount, gas=150_000)

    def withdraw_unbonded_for(self, account: Address) -> Call:
        """Pays unbonded stake of the account out to the owner."""
        return self.call("withdrawUnbondedFor", account, gas=150_000)

    def withdraw_for(self, account: Address) -> Call:
        """Pays credits of the account out to the owner."""
        return self.call("withdrawFor", account, gas=150_000)

    def set_delegate_for(self, account: Address, delegate: Address) -> Call:
        """The owner names who may post game moves for the account."""
        return self.call("setDelegateFor", account, delegate, gas=120_000)

    def propose_owner(self, account: Address, owner: Address) -> Call:
        """Offers the account to another owner; the zero address: to nobody any more."""
        return self.call("proposeOwner", account, owner, gas=120_000)

    def accept_owner(self, account: Address) -> Call:
        """Takes the account that was offered to the caller."""
        return self.call("acceptOwner", account, gas=120_000)


class Market(Contract):
    """JobMarket: jobs, rounds, claims; a method for each function of the contract."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "JobMarket")

    # -- reads

    def job(self, job: JobId, block: int | str = "latest") -> JobState:
        """The books of a job; status NONE if it does not exist."""
        requester, status, *rest = self.read("job", job, block=block)
        return JobState(requester, JobStatus(status), *rest)

    def params(self, job: JobId) -> JobParams:
        """Returns the parameters that the job fixed for ever."""
        spec, genesis, schedule, windows, merge, prices, roles = self.read("params", job)
        return JobParams(
            SpecRef(*spec),
            Genesis(*genesis),
            RoundSchedule(*schedule),
            Windows(*windows),
            Merging(*merge),
            Pricing(*prices),
            tuple(Role(*role) for role in roles),
        )

    def round(self, job: JobId, r: int, block: int | str = "latest") -> Round:
        """The round as stored; `phase` says what time has made of it. Who reads both names one block: else a seed may
        be drawn between the two."""
        phase, *rest = self.read("round", job, r, block=block)
        value = Round(Phase(phase), *rest)
        value.named = (value.named[0], value.named[1])
        return value

    def phase(self, job: JobId, r: int, block: int | str = "latest") -> Phase:
        """The round's phase at the block's time."""
        return Phase(self.read("phase", job, r, block=block))

    def claim(self, claim: ClaimId, block: int | str = "latest") -> Claim:
        """The claim, VOID once its round is; status NONE if it does not exist."""
        value = Claim(*self.read("claim", claim, block=block))
        value.status = ClaimStatus(value.status)
        return value

    def claim_id_of(self, job: JobId, r: int, slot: int = MERGE_SLOT) -> ClaimId:
        """The id of a slot's claim in the current attempt, or of the standing merge (zero if none)."""
        return ClaimId(self.read("claimIdOf", job, r, slot))

    def merger_of(self, job: JobId, r: int, block: int | str = "latest") -> Address:
        """Returns the account that may merge at the block's time; the zero address if nobody may."""
        return Address(self.read("mergerOf", job, r, block=block))

    def barred(self, job: JobId, account: Address) -> bool:
        """Returns True if the account was convicted of a merge of this job."""
        return bool(self.read("barred", job, account))

    def live(self, claim: ClaimId) -> bool:
        """Returns True if a verdict on the claim still counts."""
        return bool(self.read("live", claim))

    def window_open(self, claim: ClaimId) -> bool:
        """Returns True if a game may be opened on the claim now."""
        return bool(self.read("windowOpen", claim))

    def rewound(self, audit: AuditId) -> bool:
        """Returns True if a convicted merge voided the round of this audit."""
        return bool(self.read("rewound", audit))

    def chain_times(self) -> ChainTimes:
        """Returns the times that this deployment promises of its chain."""
        return ChainTimes(Seconds(self.read("inclusionSeconds")), Seconds(self.read("censorSeconds")))

    def bond_of(self, job: JobId) -> Wei:
        """Returns the bond that a challenger pays now for a game on a claim of the job."""
        return Wei(self.read("bondOf", job))

    def facts_of(self, claim: ClaimId, t: int, carried: Sequence[Digest] = ()) -> Facts:
        """Returns the facts that are certain of transition t of a claim."""
        return Facts(*self.read("factsOf", claim, t, list(carried)))

    # -- the requester

    def create(self, params: JobParams, nonce: int, escrow: Wei) -> Call:
        """Opens a job; the escrow must be approved for the vault."""
        return self.call("create", params, nonce, escrow)

    def create_with_permit(
        self, params: JobParams, nonce: int, escrow: Wei, permit: tuple[int, int, bytes, bytes]
    ) -> Call:
        """Opens a job in one transaction; `permit` from `Token.sign_permit` for the vault."""
        return self.call("createWithPermit", params, nonce, escrow, *permit)

    def cancel(self, job: JobId) -> Call:
        """Stops new rounds, refunds what no round in flight has reserved."""
        return self.call("cancel", job, gas=200_000)

    # -- anyone

    def start_round(self, job: JobId, r: int) -> Call:
        """Opens the next round for joining."""
        return self.call("startRound", job, r)

    def seal(self, job: JobId, r: int) -> Call:
        """Closes the roster, or draws the seed, or fails the round."""
        return self.call("seal", job, r)

    def attest(self, job: JobId, r: int, receipts: Sequence[Receipt]) -> Call:
        """Hands in receipts; the first of each speaker counts."""
        return self.call("attest", job, r, [_plain(given) for given in receipts], gas=150_000 + 150_000 * len(receipts))

    def freeze(self, job: JobId, r: int, bodies: Sequence[Body]) -> Call:
        """Fixes the accepted claims and the merge's input; `bodies` of the revealed slots, in order."""
        return self.call("freeze", job, r, [_plain(body) for body in bodies])

    def finalize(self, job: JobId, r: int) -> Call:
        """Pays a round that nobody can overturn any more."""
        return self.call("finalize", job, r)

    def release(self, job: JobId, r: int) -> Call:
        """Gives back the stakes of a VOID round."""
        return self.call("release", job, r)

    def finish(self, job: JobId) -> Call:
        """Refunds what is left."""
        return self.call("finish", job, gas=250_000)

    # -- workers, aggregator

    def join(self, job: JobId, r: int, slot: int) -> Call:
        """Takes a slot; locks slotStake."""
        return self.call("join", job, r, slot, gas=400_000)

    def leave(self, job: JobId, r: int, slot: int) -> Call:
        """Gives a slot back in the first half of the join window."""
        return self.call("leave", job, r, slot, gas=200_000)

    def commit(self, job: JobId, r: int, slot: int, commitment: Digest) -> Call:
        """Binds the caller to its claim without showing it."""
        return self.call("commit", job, r, slot, commitment, gas=200_000)

    def reveal(self, job: JobId, r: int, slot: int, opened: Reveal) -> Call:
        """Opens the commitment."""
        return self.call("reveal", job, r, slot, opened, gas=500_000)

    def merge(self, job: JobId, r: int, out: StateRoot, out2: StateRoot, checkpoint_cid: str, rounds: int = 0) -> Call:
        """Claims the merge; locks mergeStake, and the pay of `rounds` later rounds, which may start on it."""
        return self.call("merge", job, r, out, out2, checkpoint_cid.encode(), rounds)

    def back(self, job: JobId, r: int, rounds: int) -> Call:
        """Locks the pay of `rounds` more later rounds on the caller's merge."""
        return self.call("back", job, r, rounds, gas=250_000)


class GameContract(Contract):
    """DisputeGame, by its ABI: `call` and `read` with the contract's own names."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "DisputeGame")

    def defending(self, account: Address) -> int:
        """Games that the account defends, on whatever claims."""
        return int(self.read("defending", account))


class Precommitted(Contract):
    """A contract that pays for what is shown to it, once its sender has committed to the very call."""

    def committed_at(self, digest: Digest) -> int:
        """The block in which a digest was first committed; 0 if it was not."""
        return int(self.read("committedAt", digest))

    def commit(self, digests: Sequence[Digest]) -> Call:
        """Commits to calls that follow in a later block."""
        return self.call("commit", list(digests))

    def committed(self, me: Address, calls: Sequence[Call]) -> Call | None:
        """The commitment that is still to be sent before `calls` can be; None once it is mined."""
        digests = [digest_of(me, call.data) for call in calls]
        missing = [digest for digest in digests if not self.committed_at(digest)]
        return self.commit(missing) if missing else None


class Validator(Precommitted):
    """Voids jobs that could not be defended."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Validator")

    def prove_invalid(self, job: JobId, evidence: Evidence) -> Call:
        """Voids the job by a rule that it breaks."""
        return self.call("proveInvalid", job, evidence.abi())


class Demands(Precommitted):
    """Availability: bonded demands for payloads and rows."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Availability")

    def demand(self, demand: bytes) -> Demand | None:
        """A demand as stored; None if it was never made."""
        subject, asker, status, beacon, deadline, row, following, wanted = self.read("demand", demand)
        if not status:
            return None
        return Demand(Digest(subject), asker, Status(status), beacon, Seconds(deadline), row, following, wanted)

    def seed_of(self, demand: bytes) -> Digest | None:
        """The word that names a payload's leaves to a transaction in the next block; None before the beacon."""
        stored, head = self.demand(demand), self.w3.eth.block_number
        if stored is None or head < stored.beacon:
            return None
        if head + 1 - stored.beacon <= HASH_BLOCKS:
            return keccak(demand + bytes(self.w3.eth.get_block(stored.beacon)["hash"]))
        return self._kept(demand) or keccak(demand + bytes(32))

    def fading(self, demand: bytes) -> bool:
        """Returns True if the chain soon forgets the word of an open demand, and nobody has kept it."""
        stored, head = self.demand(demand), self.w3.eth.block_number
        if stored is None or stored.status != Status.OPEN or not stored.beacon:
            return False
        return HASH_BLOCKS // 2 < head + 1 - stored.beacon <= HASH_BLOCKS and self._kept(demand) is None

    def _kept(self, demand: bytes) -> Digest | None:
        kept = bytes(self.read("keptSeed", demand))
        return Digest(kept) if any(kept) else None

    def missing(self, claim: ClaimId) -> bool:
        """Returns True if a demand for the claim's payload ended unanswered; reverts while one is open."""
        return bool(self.read("missing", claim))

    def row_bond_of(self, job: JobId, row: int) -> Wei:
        """Returns the bond that the asker of a row locks now."""
        return Wei(self.read("rowBondOf", job, row))

    def unavailable(self, job: JobId, r: int, slot: int, wanted: int) -> Call:
        """Demands eight leaves of a payload: four that `wanted` names, four that a later block's hash does."""
        return self.call("unavailable", job, r, slot, wanted)

    def carry_unavailable(self, job: JobId, r: int, slot: int, wanted: int) -> Call:
        """Demands the carry that a slot's claim starts from, in the same way."""
        return self.call("carryUnavailable", job, r, slot, wanted)

    def keep_seed(self, demand: bytes) -> Call:
        """Keeps the word that names a payload's leaves, before the chain forgets the beacon's block."""
        return self.call("keepSeed", demand)

    def answer(self, demand: bytes, body: Body, code: Code, shown: Sequence[Shown]) -> Call:
        """Posts the leaves that a payload's demand names."""
        return self.call("answer", demand, body, code, [astuple(s) for s in shown])

    def settle(self, demand: bytes) -> Call:
        """Ends a payload's demand that nobody answered."""
        return self.call("settle", demand)

    def demand_row(self, job: JobId, row: int) -> Call:
        """Demands a row of the dataset."""
        return self.call("demandRow", job, row)

    def answer_row(self, job: JobId, row: int, tree: Digest, begin: int, rows: Sequence[Row]) -> Call:
        """Posts a part of a row's leaves."""
        return self.call("answerRow", job, row, tree, begin, [astuple(shown) for shown in rows])

    def void_for_row(self, job: JobId, row: int) -> Call:
        """Voids the job for a row that nobody posted."""
        return self.call("voidForRow", job, row)


class Witnesses(Contract):
    """The verifier market: enrolments, audits, duties."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Witnesses")

    # -- reads

    def witness(self, job: JobId, account: Address) -> Witness:
        """An account's standing in a job; NONE if it is not enrolled."""
        standing, *rest = self.read("witness", job, account)
        return Witness(Standing(standing), *rest)

    def audit(self, audit: AuditId) -> Audit:
        """One round's audit; status NONE if nobody has asked for it."""
        status, *rest = self.read("audit", audit)
        return Audit(AuditStatus(status), *rest)

    def duty(self, audit: AuditId, i: int) -> Duty:
        """One duty; status NONE if it was not drawn."""
        account, slot, serial, status, t, commitment = self.read("duty", audit, i)
        return Duty(account, slot, serial, DutyStatus(status), Step(t), Digest(commitment))

    def accounts(self, job: JobId) -> list[Address]:
        """Returns the accounts that can be drawn."""
        return [Address(account) for account in self.read("accounts", job)]

    # -- witnesses

    def enrol(self, job: JobId, head: Digest) -> Call:
        """Joins the job's list; locks the stake."""
        return self.call("enrol", job, head)

    def retire(self, job: JobId) -> Call:
        """Leaves the list."""
        return self.call("retire", job)

    def commit(self, audit: AuditId, i: int, commitment: Digest) -> Call:
        """Binds the caller to what it saw."""
        return self.call("commit", audit, i, commitment, gas=250_000)

    def reveal(self, audit: AuditId, i: int, word: Word) -> Call:
        """Opens a verdict."""
        return self.call("reveal", audit, i, word)

    # -- workers

    def publish(self, job: JobId, r: int, slot: int, trace_cid: str) -> Call:
        """Names the list of a claim's state roots."""
        return self.call("publish", job, r, slot, trace_cid.encode(), gas=250_000)

    # -- anyone

    def draw(self, job: JobId, r: int) -> Call:
        """Fixes the beacon's block, or draws."""
        return self.call("draw", job, r)

    def settle(self, audit: AuditId, i: int) -> Call:
        """Closes a duty."""
        return self.call("settle", audit, i)


@dataclass(frozen=True)
class Contracts:
    """The deployment that a process talks to."""

    addresses: Addresses
    token: Token
    vault: Vault
    market: Market
    game: GameContract
    validator: Validator
    demands: Demands
    witnesses: Witnesses

    @classmethod
    def at(cls, w3: Web3, addresses: Addresses) -> Contracts:
        """Wrappers for one deployment.

        Raises `ChainError` if there is no code where a contract should be, or another deployment's.
        """
        for name in CONTRACTS:
            address = getattr(addresses, name)
            if not w3.eth.get_code(address):
                raise ChainError(f"no contract at {address} ({name})", "check the addresses file and the RPC URL")
        market, game = Market(w3, addresses.market), GameContract(w3, addresses.game)
        validator, demands = Validator(w3, addresses.validator), Demands(w3, addresses.availability)
        # INVARIANT: the contracts are those that the market itself names; money goes to no other vault.
        names = ("token", "vault", "game", "validator", "availability", "witnesses")
        for contract, name in (*((market, name) for name in names), (game, "arbiter")):
            if _named(contract, name) != getattr(addresses, name).lower():
                raise ChainError(
                    f"the contract at {contract.address} belongs to another {name} than the file's",
                    "the addresses file mixes two deployments: take it anew",
                )
        vault, witnesses = Vault(w3, addresses.vault), Witnesses(w3, addresses.witnesses)
        return cls(addresses, Token(w3, addresses.token), vault, market, game, validator, demands, witnesses)

    def sign_receipts(
        self, account: LocalAccount, job: JobId, r: int, attempt: int, mask: int, speakers: Sequence[int]
    ) -> list[Receipt]:
        """One receipt that names the slots of `mask`, by each of the account's speakers in a round."""
        chain_id, market = self.addresses.chain_id, self.market.address
        digests = {who: receipt_hash(chain_id, market, job, r, attempt, who, mask) for who in speakers}
        return [
            Receipt(who, mask, bytes(account.unsafe_sign_hash(digest).signature))  # type: ignore[arg-type]
            for who, digest in digests.items()
        ]

    def signed_for(self, account: Address, digest: Digest, signature: bytes) -> bool:
        """Returns True if the account's key or its delegate's signed: that stays so, while the word of a contract
        (ERC-1271), which the market believes too, may change."""
        signer = signatures.recovered(digest, signature)
        return signer is not None and signer in (account, self.vault.delegate_of(account))


def _named(contract: Contract, name: str) -> str | None:
    """Returns the contract's answer to `name`, lower case; None if it has no such function."""
    try:
        return str(contract.read(name)).lower()
    except ChainError:
        return None


def revert_data(failure: Any) -> bytes:
    """The bytes that a failed eth_call returned, as web3's exception carries them."""
    data = failure.data
    if isinstance(data, dict):
        data = data.get("data", "")
    return bytes.fromhex(data[2:]) if isinstance(data, str) and data.startswith("0x") else b""


def _plain(value: Any) -> Any:
    """A struct as the tuple that the encoder takes."""
    if isinstance(value, Reveal):
        *said, trace_cid, payload_cid, carries = astuple(value)
        return *said, trace_cid.encode(), payload_cid.encode(), carries
    if hasattr(value, "__dataclass_fields__"):
        return astuple(value)
    return value
