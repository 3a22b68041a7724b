"""Typed wrappers of the contracts: reads return the protocol's values, writes return a `Call` for the outbox to
send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from lockstep.base.amounts import Currency, set_market_currency
from lockstep.chain import artifacts, reverts, rpc_answers, signatures
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
    # Loops over the slots (at most 64), and a rewind also over the rounds ahead (at most 16).
    "JobMarket.freeze": 5_000_000,
    "JobMarket.finalize": 6_000_000,
    "JobMarket.seal": 4_000_000,
    "JobMarket.startRound": 4_000_000,
    "JobMarket.release": 4_000_000,
    # Moves of a game: the most expensive are the proof, and the verdict that ends a proof or a resolve.
    "DisputeGame.proveOp": 2_000_000,
    # Calls with a Program's header and several leaves.
    "Validator.proveInvalid": 3_000_000,
    "Availability.answer": 3_000_000,
    "Availability.answerRow": 6_000_000,
    # Calls that store a word for each part of an answer.
    "Availability.commit": 1_000_000,
    "Validator.commit": 1_000_000,
    # Calls that may draw first, which loops over slots and duties (at most 64 of either).
    "Witnesses.draw": 6_000_000,
    "Witnesses.enrol": 6_000_000,
    "Witnesses.retire": 6_000_000,
    "Witnesses.settle": 6_000_000,
}
GAS_DEFAULT = 800_000
"""Default gas limit of a call.

It needs no estimate, so a transaction can be sent in the same block as one on which it depends.
"""

NEVER_REVERT = frozenset({
    "StakeVault.free", "StakeVault.credits", "StakeVault.unbonding", "StakeVault.lockOf", "StakeVault.totalEscrow",
    "StakeVault.unbondSeconds", "StakeVault.mayAct", "StakeVault.delegateOf", "StakeVault.ownerOf",
    "StakeVault.proposedOwnerOf", "JobMarket.job", "JobMarket.round", "JobMarket.claimIdOf", "JobMarket.barred",
    "JobMarket.rewound", "JobMarket.inclusionSeconds", "JobMarket.censorSeconds", "Availability.demand",
    "Availability.keptSeed",
})  # fmt: skip
"""Views that only read storage, and succeed for any argument."""


def _somebody(address: str) -> Address | None:
    """Converts a stored address; None for the zero address."""
    return Address(address) if int(address, 16) else None


@dataclass(frozen=True)
class Call:
    """An unsigned transaction, which the outbox signs and sends."""

    to: Address
    """The recipient; empty if the transaction creates a contract."""
    data: bytes
    gas: int
    """The gas limit; unused gas is not paid."""
    label: str
    """Contract.function, for messages and gas tables."""
    value: int = 0
    before: tuple[Call, ...] = ()
    """Transactions of the same account on which this one depends: the outbox sends them just before."""


class Contract:
    """Calls one deployed contract by its committed ABI."""

    def __init__(self, w3: Web3, address: Address, artifact: str) -> None:
        self.w3 = w3
        self.address = address
        self.artifact = artifacts.load(artifact)

    def call(self, function: str, *arguments: Any, gas: int | None = None) -> Call:
        """Returns the transaction that calls `function`; a dataclass argument is encoded as a struct."""
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
            with rpc_answers.awaiting(values, reverts=f"{self.artifact.name}.{function}" not in NEVER_REVERT):
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
        """Decodes a call's data into its arguments by name. Raises `ValueError` if no function of the contract accepts
        the data."""
        entry = artifacts.functions(self.artifact.name).get(data[:4])
        if entry is None:
            raise ValueError(f"{self.artifact.name} has no function 0x{data[:4].hex()}")
        values = self.w3.codec.decode(_types(entry["inputs"]), data[4:])
        return {part["name"]: value for part, value in zip(entry["inputs"], values, strict=True)}

    def _data(self, function: str, arguments: Sequence[Any]) -> bytes:
        """Encodes selector and arguments; web3's own encoder searches the whole ABI at each call."""
        entry = artifacts.function(self.artifact.name, function)
        return artifacts.selector(entry) + self.w3.codec.encode(_types(entry["inputs"]), [_plain(a) for a in arguments])


def _answer(w3: Web3, called: dict[str, Any], block: int | str) -> bytes:
    """Returns the bytes that `w3.eth.call` would, without its repeated passes over the request. Does not follow a URL
    in the answer (EIP-3668)."""
    from web3._utils.error_formatters_utils import raise_contract_logic_error_on_revert as reverted
    from web3.types import RPCEndpoint

    at = hex(block) if isinstance(block, int) else block
    answer: str = w3.manager.request_blocking(RPCEndpoint("eth_call"), [called, at], error_formatters=reverted)
    return bytes.fromhex(answer[2:])


def _types(parts: Sequence[dict[str, Any]]) -> list[str]:
    return [artifacts.abi_type(part) for part in parts]


def _read(part: dict[str, Any], value: Any) -> Any:
    """Converts a decoded value, with every address in checksummed form."""
    from eth_utils.address import to_checksum_address

    kind: str = part["type"]
    if kind.endswith("]"):
        inner = part | {"type": kind[: kind.rindex("[")]}
        return [_read(inner, one) for one in value]
    if kind == "tuple":
        return tuple(_read(p, v) for p, v in zip(part["components"], value, strict=True))
    return to_checksum_address(value) if kind == "address" else value


MAX_DECIMALS, MAX_SYMBOL = 30, 16
UNNAMED = "TOKEN"
"""Symbol of a token without a symbol that can be shown."""
UNLIMITED = 1 << 200
"""An allowance that is never used up."""


class Token(Contract):
    """The ERC-20 token of prices, stakes and bonds."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "TestToken")
        self._currency: Currency | None = None
        self._domain: dict[str, Any] | Literal[False] | None = None
        """The domain of permits; None: not read yet; False: the token has no permits."""

    @property
    def currency(self) -> Currency:
        """The token's symbol and decimals, read once. Raises ChainError unless its decimals suit amounts."""
        if self._currency is None:
            try:
                decimals = int(self.read("decimals"))
            except ChainError as failure:
                raise ChainError(
                    f"the token at {self.address} does not say its decimals", "use an ERC-20 that has decimals()"
                ) from failure
            # INVARIANT: no amount is shown or read in another unit than the token's own.
            if decimals > MAX_DECIMALS:
                raise ChainError(
                    f"the token at {self.address} has {decimals} decimals", f"use one of at most {MAX_DECIMALS}"
                )
            symbol = self._text("symbol()")
            shown = symbol.isprintable() and not set(symbol) & set(" ,") and len(symbol) <= MAX_SYMBOL
            # A token's name is untrusted text, and "wei" already names the smallest unit.
            known = shown and symbol[:1].isalpha() and symbol.casefold() != "wei"
            self._currency = Currency(symbol if known else UNNAMED, decimals)
        return self._currency

    def balance_of(self, account: Address) -> Wei:
        """Returns the account's balance, in wei."""
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
        """Mints test tokens; any account may."""
        return self.call("mint", to, amount, gas=120_000)

    def sign_permit(
        self, account: LocalAccount, spender: Address, amount: Wei, deadline: Seconds
    ) -> tuple[int, int, bytes, bytes]:
        """Signs an ERC-2612 permit by `account`; returns (deadline, v, r, s).

        Raises ChainError if the token has no permits.
        """
        permit = self.permit_or_none(account, spender, amount, deadline)
        if permit is None:
            raise ChainError(f"the token at {self.address} takes no permit", "approve the spender instead")
        return permit

    def permit_or_none(
        self, account: LocalAccount, spender: Address, amount: Wei, deadline: Seconds
    ) -> tuple[int, int, bytes, bytes] | None:
        """Signs an ERC-2612 permit by `account`; returns (deadline, v, r, s), or None if the token has no permits.

        The deadline is chain time.
        """
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
            # Other permits also have a domain and nonces; ERC-2612's form is tried first.
            try:
                self.read("permit", account.address, spender, amount, *permit, sender=Address(account.address))
            except ChainError:
                self._domain = False
                return None
            self._domain = domain
        return permit

    def approvals(self, owner: Address, spender: Address, amount: Wei) -> tuple[Call, ...]:
        """Returns the transactions that let `spender` transfer the amount, whatever the present allowance is."""
        allowed = self.allowance(owner, spender)
        if allowed >= UNLIMITED:
            return ()
        # Some tokens refuse to change a nonzero allowance to another one.
        reset = (self.approve(spender, Wei(0)),) if allowed else ()
        return (*reset, self.approve(spender, amount))

    def _own_domain(self) -> dict[str, Any]:
        """Returns the EIP-712 domain, from ERC-5267 or, for older tokens, as confirmed by its separator.

        Raises ChainError if the token has neither.
        """
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
        raise ChainError(
            f"the token at {self.address} uses a non-standard EIP-712 domain", "use approve instead of permit"
        )

    def _text(self, function: str) -> str:
        """Returns a text of the token, in either type that tokens use for it; "" if it has none."""
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
    type_hash = keccak(text=f"EIP712Domain({','.join(f'{kinds[name]} {name}' for name in there)})")
    values = [keccak(text=domain[name]) if kinds[name] == "string" else domain[name] for name in there]
    words = ["bytes32" if kinds[name] == "string" else kinds[name] for name in there]
    return keccak(encode(["bytes32", *words], [type_hash, *values]))


class Vault(Contract):
    """The contract StakeVault: stakes, locks, credits."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "StakeVault")

    def free(self, account: Address) -> Wei:
        """Returns the account's stake that is not locked."""
        return Wei(self.read("free", account))

    def credits(self, account: Address) -> Wei:
        """Returns the amount that `withdraw` would pay out."""
        return Wei(self.read("credits", account))

    def unbonding(self, account: Address) -> tuple[Wei, Seconds]:
        """Returns (amount, chain time from which it can be withdrawn)."""
        amount, available_at = self.read("unbonding", account)
        return Wei(amount), Seconds(available_at)

    def lock_of(self, key: bytes) -> Lock | None:
        """Returns the lock with this key (a ClaimId or GameId); None if there is none."""
        account, amount, keeper = self.read("lockOf", key)
        return Lock(account, Wei(amount), Keeper(keeper)) if int(account, 16) else None

    def total_escrow(self) -> Wei:
        """Returns the escrow of all jobs that is neither paid nor refunded."""
        return Wei(self.read("totalEscrow"))

    def unbond_seconds(self) -> Seconds:
        """Returns the deployment's unbonding delay."""
        return Seconds(self.read("unbondSeconds"))

    def may_act(self, account: Address, actor: Address) -> bool:
        """Returns True if `actor` may post game moves for `account`."""
        return bool(self.read("mayAct", account, actor))

    def delegate_of(self, account: Address) -> Address:
        """Returns the address that may play games and sign receipts for the account; the zero address if there is
        none."""
        return Address(self.read("delegateOf", account))

    def owner_of(self, account: Address) -> Address | None:
        """Returns the account's owner, which alone may unbond and receives withdrawals; None if the account has no
        owner."""
        return _somebody(self.read("ownerOf", account))

    def proposed_owner_of(self, account: Address) -> Address | None:
        """Returns the account to which ownership is offered, if any."""
        return _somebody(self.read("proposedOwnerOf", account))

    def deposit(self, amount: Wei) -> Call:
        """Deposits approved tokens as stake."""
        return self.call("deposit", amount, gas=250_000)

    def deposit_with_permit(self, amount: Wei, permit: tuple[int, int, bytes, bytes]) -> Call:
        """Deposits tokens as stake in one transaction, with a `permit` from `Token.sign_permit` for the vault."""
        return self.call("depositWithPermit", amount, *permit, gas=350_000)

    def request_unbond(self, amount: Wei) -> Call:
        """Starts the unbonding delay for `amount` of free stake."""
        return self.call("requestUnbond", amount, gas=150_000)

    def withdraw_unbonded(self) -> Call:
        """Withdraws unbonded stake."""
        return self.call("withdrawUnbonded", gas=150_000)

    def withdraw(self) -> Call:
        """Withdraws credits."""
        return self.call("withdraw", gas=150_000)

    def burn(self) -> Call:
        """Sends burned tokens to the burn address."""
        return self.call("burn")

    def register_node(self, key: bytes) -> Call:
        """Registers the account's ed25519 node key (32 bytes)."""
        return self.call("registerNode", key, gas=100_000)

    def set_delegate(self, delegate: Address) -> Call:
        """Sets the account that may play games and sign receipts for the caller."""
        return self.call("setDelegate", delegate, gas=120_000)

    def set_owner(self, owner: Address) -> Call:
        """Sets the caller's owner, once and with immediate effect."""
        return self.call("setOwner", owner, gas=120_000)

    def request_unbond_for(self, account: Address, amount: Wei) -> Call:
        """Starts the unbonding delay for `amount` of the account's free stake, as its owner."""
        return self.call("requestUnbondFor", account, amount, gas=150_000)

    def withdraw_unbonded_for(self, account: Address) -> Call:
        """Pays unbonded stake of the account out to the owner."""
        return self.call("withdrawUnbondedFor", account, gas=150_000)

    def withdraw_for(self, account: Address) -> Call:
        """Pays credits of the account out to the owner."""
        return self.call("withdrawFor", account, gas=150_000)

    def set_delegate_for(self, account: Address, delegate: Address) -> Call:
        """Sets the account that may play games and sign receipts for `account`, as its owner."""
        return self.call("setDelegateFor", account, delegate, gas=120_000)

    def propose_owner(self, account: Address, owner: Address) -> Call:
        """Offers ownership of the account to another account; the zero address withdraws the offer."""
        return self.call("proposeOwner", account, owner, gas=120_000)

    def accept_owner(self, account: Address) -> Call:
        """Accepts ownership that was offered to the caller."""
        return self.call("acceptOwner", account, gas=120_000)


class Market(Contract):
    """The contract JobMarket: jobs, rounds, claims; one method for each function."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "JobMarket")

    # -- reads

    def job(self, job: JobId, block: int | str = "latest") -> JobState:
        """Returns the stored state of a job; its status is NONE if the job does not exist."""
        requester, status, *rest = self.read("job", job, block=block)
        return JobState(requester, JobStatus(status), *rest)

    def params(self, job: JobId) -> JobParams:
        """Returns the immutable parameters of a job."""
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
        """Returns the round as stored; `phase` adds the effect of time. A caller of both passes the same block, since a
        seed may be drawn between two reads."""
        phase, *rest = self.read("round", job, r, block=block)
        value = Round(Phase(phase), *rest)
        value.named = (value.named[0], value.named[1])
        return value

    def phase(self, job: JobId, r: int, block: int | str = "latest") -> Phase:
        """Returns the round's phase at the block's time."""
        return Phase(self.read("phase", job, r, block=block))

    def claim(self, claim: ClaimId, block: int | str = "latest") -> Claim:
        """Returns the claim, with status VOID if its round is void and NONE if it does not exist."""
        value = Claim(*self.read("claim", claim, block=block))
        value.status = ClaimStatus(value.status)
        return value

    def claim_id_of(self, job: JobId, r: int, slot: int = MERGE_SLOT) -> ClaimId:
        """Returns the id of a slot's claim in the current attempt, or of the valid merge (zero if there is none)."""
        return ClaimId(self.read("claimIdOf", job, r, slot))

    def merger_of(self, job: JobId, r: int, block: int | str = "latest") -> Address:
        """Returns the account that may merge at the block's time; the zero address for none."""
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
        """Returns the bounds on inclusion and censorship times that this deployment assumes of its chain."""
        return ChainTimes(Seconds(self.read("inclusionSeconds")), Seconds(self.read("censorSeconds")))

    def bond_of(self, job: JobId) -> Wei:
        """Returns the bond that a challenger pays now for a game on a claim of the job."""
        return Wei(self.read("bondOf", job))

    def facts_of(self, claim: ClaimId, t: int, carried: Sequence[Digest] = ()) -> Facts:
        """Returns the facts that the contract itself knows of transition t of a claim."""
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
        """Cancels a job: no new round starts, and escrow that no round in flight has reserved is refunded."""
        return self.call("cancel", job, gas=200_000)

    # -- anyone

    def start_round(self, job: JobId, r: int) -> Call:
        """Opens the next round for joining."""
        return self.call("startRound", job, r)

    def seal(self, job: JobId, r: int) -> Call:
        """Closes the roster, or draws the seed, or fails the round."""
        return self.call("seal", job, r)

    def attest(self, job: JobId, r: int, receipts: Sequence[Receipt]) -> Call:
        """Submits receipts; the first of each speaker counts."""
        return self.call("attest", job, r, [_plain(given) for given in receipts], gas=150_000 + 150_000 * len(receipts))

    def freeze(self, job: JobId, r: int, bodies: Sequence[Body]) -> Call:
        """Fixes the accepted claims and the merge's input; `bodies` are those of the revealed slots, in order."""
        return self.call("freeze", job, r, [_plain(body) for body in bodies])

    def finalize(self, job: JobId, r: int) -> Call:
        """Pays out a round that can no longer be overturned."""
        return self.call("finalize", job, r)

    def release(self, job: JobId, r: int) -> Call:
        """Returns the stakes of a void round."""
        return self.call("release", job, r)

    def finish(self, job: JobId) -> Call:
        """Ends a job and refunds the remaining escrow."""
        return self.call("finish", job, gas=250_000)

    # -- workers, aggregator

    def join(self, job: JobId, r: int, slot: int) -> Call:
        """Takes a slot; locks slotStake."""
        return self.call("join", job, r, slot, gas=400_000)

    def leave(self, job: JobId, r: int, slot: int) -> Call:
        """Gives up a slot in the first half of the join window."""
        return self.call("leave", job, r, slot, gas=200_000)

    def commit(self, job: JobId, r: int, slot: int, commitment: Digest) -> Call:
        """Commits the caller to its claim without revealing it."""
        return self.call("commit", job, r, slot, commitment, gas=200_000)

    def reveal(self, job: JobId, r: int, slot: int, opened: Reveal) -> Call:
        """Reveals the committed claim."""
        return self.call("reveal", job, r, slot, opened, gas=500_000)

    def merge(self, job: JobId, r: int, out: StateRoot, out2: StateRoot, checkpoint_cid: str, rounds: int = 0) -> Call:
        """Claims the merge; locks mergeStake, and the pay of `rounds` later rounds that may start on it."""
        return self.call("merge", job, r, out, out2, checkpoint_cid.encode(), rounds)

    def back(self, job: JobId, r: int, rounds: int) -> Call:
        """Locks the pay of `rounds` more later rounds on the caller's merge."""
        return self.call("back", job, r, rounds, gas=250_000)


class GameContract(Contract):
    """The contract DisputeGame; `call` and `read` take the names of its ABI."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "DisputeGame")

    def defending(self, account: Address) -> int:
        """Returns the number of games that the account defends."""
        return int(self.read("defending", account))


class Precommitted(Contract):
    """A contract that rewards a call only if its sender has committed to exactly that call in an earlier block."""

    def committed_at(self, digest: Digest) -> int:
        """Returns the block in which a digest was first committed; 0 if it was not."""
        return int(self.read("committedAt", digest))

    def commit(self, digests: Sequence[Digest]) -> Call:
        """Commits to calls that follow in a later block."""
        return self.call("commit", list(digests))

    def committed(self, me: Address, calls: Sequence[Call]) -> Call | None:
        """Returns the commitment that must be mined before `calls` can be sent; None once it is."""
        digests = [digest_of(me, call.data) for call in calls]
        missing = [digest for digest in digests if not self.committed_at(digest)]
        return self.commit(missing) if missing else None


class Validator(Precommitted):
    """The contract that voids jobs which could not be defended."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Validator")

    def prove_invalid(self, job: JobId, evidence: Evidence) -> Call:
        """Voids a job with the proof that it breaks a rule."""
        return self.call("proveInvalid", job, evidence.abi())


class Availability(Precommitted):
    """The contract Availability: bonded demands for payloads and dataset rows."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Availability")

    def demand(self, demand: bytes) -> Demand | None:
        """Returns a demand as stored; None if it was never made."""
        subject, asker, status, beacon, deadline, row, following, wanted = self.read("demand", demand)
        if not status:
            return None
        return Demand(Digest(subject), asker, Status(status), beacon, Seconds(deadline), row, following, wanted)

    def seed_of(self, demand: bytes) -> Digest | None:
        """Returns the random word that selects a payload's demanded leaves for a transaction in the next block; None
        before the beacon's block."""
        stored, head = self.demand(demand), self.w3.eth.block_number
        if stored is None or head < stored.beacon:
            return None
        if head + 1 - stored.beacon <= HASH_BLOCKS:
            return keccak(demand + bytes(self.w3.eth.get_block(stored.beacon)["hash"]))
        return self._kept(demand) or keccak(demand + bytes(32))

    def fading(self, demand: bytes) -> bool:
        """Returns True if the hash of an open demand's beacon block will soon be unavailable and has not been
        stored.
        """
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
        """Returns the bond that a demander of a row locks now."""
        return Wei(self.read("rowBondOf", job, row))

    def unavailable(self, job: JobId, r: int, slot: int, wanted: int) -> Call:
        """Demands eight leaves of a payload: four chosen by `wanted`, four by a later block's hash."""
        return self.call("unavailable", job, r, slot, wanted)

    def carry_unavailable(self, job: JobId, r: int, slot: int, wanted: int) -> Call:
        """Demands eight leaves of the carry that a slot's claim starts from, chosen as in `unavailable`."""
        return self.call("carryUnavailable", job, r, slot, wanted)

    def keep_seed(self, demand: bytes) -> Call:
        """Stores the random word that selects a payload's leaves, before the beacon block's hash becomes
        unavailable.
        """
        return self.call("keepSeed", demand)

    def answer(self, demand: bytes, body: Body, code: Code, shown: Sequence[Shown]) -> Call:
        """Posts the leaves that a demand for a payload selects."""
        return self.call("answer", demand, body, code, [astuple(s) for s in shown])

    def settle(self, demand: bytes) -> Call:
        """Ends an unanswered demand for a payload."""
        return self.call("settle", demand)

    def demand_row(self, job: JobId, row: int) -> Call:
        """Demands a row of the dataset."""
        return self.call("demandRow", job, row)

    def answer_row(self, job: JobId, row: int, tree: Digest, begin: int, rows: Sequence[Row]) -> Call:
        """Posts a part of a row's leaves."""
        return self.call("answerRow", job, row, tree, begin, [astuple(shown) for shown in rows])

    def void_for_row(self, job: JobId, row: int) -> Call:
        """Voids the job for a row that was not posted."""
        return self.call("voidForRow", job, row)


class Witnesses(Contract):
    """The contract Witnesses: enrolments, audits, duties."""

    def __init__(self, w3: Web3, address: Address) -> None:
        super().__init__(w3, address, "Witnesses")

    # -- reads

    def witness(self, job: JobId, account: Address) -> Witness:
        """Returns an account's status as a witness of a job; NONE if it is not enrolled."""
        standing, *rest = self.read("witness", job, account)
        return Witness(Standing(standing), *rest)

    def audit(self, audit: AuditId) -> Audit:
        """Returns one round's audit; its status is NONE if none was opened."""
        status, *rest = self.read("audit", audit)
        return Audit(AuditStatus(status), *rest)

    def duty(self, audit: AuditId, i: int) -> Duty:
        """Returns one duty; its status is NONE if it was not drawn."""
        account, slot, serial, status, t, commitment = self.read("duty", audit, i)
        return Duty(account, slot, serial, DutyStatus(status), Step(t), Digest(commitment))

    def accounts(self, job: JobId) -> list[Address]:
        """Returns the accounts that can be drawn."""
        return [Address(account) for account in self.read("accounts", job)]

    # -- witnesses

    def enrol(self, job: JobId, head: Digest) -> Call:
        """Enrols the caller as a witness of the job; locks its stake."""
        return self.call("enrol", job, head)

    def retire(self, job: JobId) -> Call:
        """Retires the caller as a witness of the job."""
        return self.call("retire", job)

    def commit(self, audit: AuditId, i: int, commitment: Digest) -> Call:
        """Commits the caller to the result of its replay."""
        return self.call("commit", audit, i, commitment, gas=250_000)

    def reveal(self, audit: AuditId, i: int, word: Word) -> Call:
        """Reveals the caller's verdict."""
        return self.call("reveal", audit, i, word)

    # -- workers

    def publish(self, job: JobId, r: int, slot: int, trace_cid: str) -> Call:
        """Publishes the CID of a claim's list of state roots."""
        return self.call("publish", job, r, slot, trace_cid.encode(), gas=250_000)

    # -- anyone

    def draw(self, job: JobId, r: int) -> Call:
        """Opens an audit by fixing its beacon's block, or draws its witnesses."""
        return self.call("draw", job, r)

    def settle(self, audit: AuditId, i: int) -> Call:
        """Closes a duty."""
        return self.call("settle", audit, i)


@dataclass(frozen=True)
class Contracts:
    """The contracts of one deployment."""

    addresses: Addresses
    token: Token
    vault: Vault
    market: Market
    game: GameContract
    validator: Validator
    demands: Availability
    witnesses: Witnesses

    @classmethod
    def at(cls, w3: Web3, addresses: Addresses) -> Contracts:
        """Connects to the contracts of one deployment; from then on this process formats amounts in its token.

        Raises `ChainError` if there is no code where a contract should be, or another deployment's.
        """
        for name in CONTRACTS:
            address = getattr(addresses, name)
            if not w3.eth.get_code(address):
                raise ChainError(f"no contract at {address} ({name})", "check the addresses file and the RPC URL")
        market, game = Market(w3, addresses.market), GameContract(w3, addresses.game)
        validator, demands = Validator(w3, addresses.validator), Availability(w3, addresses.availability)
        # INVARIANT: the contracts are those that the market itself names; money goes to no other vault.
        names = ("token", "vault", "game", "validator", "availability", "witnesses")
        for contract, name in (*((market, name) for name in names), (game, "arbiter")):
            if _named(contract, name) != getattr(addresses, name).lower():
                raise ChainError(
                    f"the contract at {contract.address} refers to another {name} than the addresses file",
                    "the addresses file mixes two deployments: fetch it again",
                )
        vault, witnesses, token = (
            Vault(w3, addresses.vault),
            Witnesses(w3, addresses.witnesses),
            Token(w3, addresses.token),
        )
        set_market_currency(token.currency)
        return cls(addresses, token, vault, market, game, validator, demands, witnesses)

    def sign_receipts(
        self, account: LocalAccount, job: JobId, r: int, attempt: int, mask: int, speakers: Sequence[int]
    ) -> list[Receipt]:
        """Returns a receipt for the slots in `mask`, signed for each of the account's speakers in a round."""
        chain_id, market = self.addresses.chain_id, self.market.address
        digests = {who: receipt_hash(chain_id, market, job, r, attempt, who, mask) for who in speakers}
        return [
            Receipt(who, mask, bytes(account.unsafe_sign_hash(digest).signature))  # type: ignore[arg-type]
            for who, digest in digests.items()
        ]

    def signed_for(self, account: Address, digest: Digest, signature: bytes) -> bool:
        """Returns True if the account or its delegate made the signature.

        A contract's signature (ERC-1271), which the market also accepts, does not count here, because its validity may
        change.
        """
        signer = signatures.recovered(digest, signature)
        return signer is not None and signer in (account, self.vault.delegate_of(account))


def _named(contract: Contract, name: str) -> str | None:
    """Returns the contract's answer to `name`, lower case; None if it has no such function."""
    try:
        return str(contract.read(name)).lower()
    except ChainError:
        return None


def revert_data(failure: Any) -> bytes:
    """Returns the revert data of a failed eth_call, from web3's exception."""
    data = failure.data
    if isinstance(data, dict):
        data = data.get("data", "")
    return bytes.fromhex(data[2:]) if isinstance(data, str) and data.startswith("0x") else b""


def _plain(value: Any) -> Any:
    """Converts a struct to the tuple that the encoder takes."""
    if isinstance(value, Reveal):
        *first, trace_cid, payload_cid, carries = astuple(value)
        return *first, trace_cid.encode(), payload_cid.encode(), carries
    if hasattr(value, "__dataclass_fields__"):
        return astuple(value)
    return value
