"""The chain as a node: JSON-RPC requests and answers, behind web3's own provider interface.

Web3(MemoryProvider(chain))      everything of lockstep.chain works over it; nothing but JSON crosses
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from web3.providers.base import BaseProvider

from lockstep.chain.memory.chain import GAS_LIMIT, MemoryChain, Mined, MinedReceipt, Transaction, TransactionRefused
from lockstep.chain.memory.machine import Message, MessageResult, TransactionLog, floor_gas
from lockstep.chain.rpc import Failure
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.calls import Block
from lockstep.protocol.types import Address

if TYPE_CHECKING:
    from web3.types import RPCEndpoint, RPCResponse

URL = "memory:"
NOBODY = Address("0x" + 40 * "0")
EMPTY_BLOOM = "0x" + 512 * "0"
CODE = "0xfe"
"""The answer of eth_getCode for a contract: it has code, of which nobody reads more."""
REVERTED, INVALID, NO_METHOD, SERVER = 3, -32602, -32601, -32000


class Failed(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.answer = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class MemoryProvider(BaseProvider):
    """A provider for web3 over a chain in memory."""

    def __init__(self, chain: MemoryChain) -> None:
        super().__init__()
        self.chain = chain
        self.impersonates = False
        """True if anybody may send in anybody's name (anvil_autoImpersonateAccount)."""
        self.requests = 0

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """One request. Raises `Unreachable` where the manners say that nobody answers."""
        return self._answer(str(method), params)

    def make_batch_request(self, batch_requests: Any) -> Any:
        """Several, in order."""
        return [self._answer(str(method), params) for method, params in batch_requests]

    def is_connected(self, show_traceback: bool = False) -> bool:
        """Returns True if the provider answers."""
        return not self.chain.manners.down

    def _answer(self, method: str, params: Any) -> Any:
        chain = self.chain
        with chain.lock:
            self._reach()
            chain.catch_up()
            self.requests += 1
            if chain.manners.pace and self.requests % chain.manners.pace == 0:
                chain.mine()
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": self.requests}
            handler = METHODS.get(method)
            try:
                if handler is None:
                    raise Failed(NO_METHOD, f"Method not found: {method}")
                answer["result"] = handler(self, *_jsonable(params))
            except Failed as failure:
                answer["error"] = failure.answer
            except TransactionRefused as failure:
                answer["error"] = {"code": SERVER, "message": str(failure)}
            return json.loads(json.dumps(answer))

    def _reach(self) -> None:
        if self.chain.manners.down:
            silent = self.chain.manners.down == "silent"
            cause = Failure("Timeout" if silent else "ConnectionError", timed_out=silent)
            raise Unreachable(
                f"the chain's RPC at {URL} does not answer ({cause})",
                "start the node or check the URL; nothing is lost, what was sent is in the outbox",
            ) from cause

    # -- blocks

    def at(self, tag: Any) -> tuple[Mined, Block]:
        """The block that a tag, number or hash names, and what a call in it sees."""
        chain = self.chain
        if tag == "pending":
            return chain.pending()
        mined = self.block(tag)
        if mined is None:
            raise Failed(SERVER, f"BlockOutOfRange: {tag}")
        return mined, chain.environment(mined)

    def block(self, tag: Any) -> Mined | None:
        """None if the chain has no such block."""
        chain = self.chain
        if isinstance(tag, Mapping):
            tag = tag.get("blockHash") or tag.get("blockNumber")
        if tag in ("latest", None):
            return chain.head
        if tag in ("safe", "finalized"):
            return chain.blocks[_bound(self, tag)]
        if tag == "pending":
            return chain.pending()[0]
        if tag == "earliest":
            return chain.blocks[0]
        if isinstance(tag, str) and len(tag) == 66:
            return next((mined for mined in chain.blocks if _hex(mined.hash) == tag), None)
        number = _number(tag)
        return chain.blocks[number] if 0 <= number < len(chain.blocks) else None

    # -- messages

    def message(self, request: Mapping[str, Any]) -> Message:
        """A call's request as the machine takes it."""
        data = bytes.fromhex(str(request.get("data") or request.get("input") or "0x")[2:])
        sender = _address(request.get("from")) or NOBODY
        gas = _number(request["gas"]) if request.get("gas") is not None else GAS_LIMIT
        return Message(sender, _address(request.get("to")), data, gas, _number(request.get("value", 0)))

    def simulated(self, request: Mapping[str, Any], tag: Any) -> MessageResult:
        """Runs a call at a block and returns its result. Raises `Failed` where it reverts."""
        mined, block = self.at(tag)
        message = self.message(request)
        outcome = self.chain.machine.run(mined.world, block, message, NOBODY)
        if not outcome.succeeded:
            if outcome.gas >= message.gas and not outcome.returned:
                raise Failed(SERVER, "EVM error OutOfGas")
            shown = _hex(outcome.returned)
            raise Failed(
                REVERTED, f"execution reverted: {shown[:10]}" if outcome.returned else "execution reverted", shown
            )
        return outcome

    def send(self, request: Mapping[str, Any]) -> str:
        """eth_sendTransaction, by whoever is impersonated."""
        if not self.impersonates:
            raise Failed(INVALID, "No Signer available")
        message, chain = self.message(request), self.chain
        fee = _number(request.get("maxFeePerGas", 2 * chain.head.base_fee + 10**9))
        nonce = _number(request.get("nonce", chain.next_nonce(message.sender, pending=True)))
        named = f"{message.sender} {nonce} {message.to} {message.value} {message.gas} {fee} ".encode() + message.data
        tip = min(_number(request.get("maxPriorityFeePerGas", 10**9)), fee)
        transaction = Transaction(
            keccak(b"impersonated " + named), message.sender, nonce, message.to, message.data, message.value,
            message.gas, fee, tip, len(message.data) + 200,
        )  # fmt: skip
        chain.submit(transaction)
        return _hex(transaction.hash)


def signed(raw: bytes, chain_id: int) -> Transaction:
    """A signed transaction and its sender. Raises `TransactionRefused` unless it is EIP-1559's, of this chain."""
    from eth_account import Account
    from eth_account.typed_transactions import TypedTransaction
    from hexbytes import HexBytes

    if not raw or raw[0] != 2:
        raise TransactionRefused("transaction type not supported")
    try:
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        sender = Address(Account.recover_transaction(raw))
    except Exception as failure:  # eth_account and rlp raise unrelated families
        raise TransactionRefused(f"failed to decode signed transaction: {failure}") from failure
    if fields["chainId"] != chain_id:
        raise TransactionRefused("invalid chain id for signer")
    return Transaction(
        keccak(raw), sender, fields["nonce"], _address("0x" + bytes(fields["to"]).hex()), bytes(fields["data"]),
        fields["value"], fields["gas"], fields["maxFeePerGas"], fields["maxPriorityFeePerGas"], len(raw),
    )  # fmt: skip


# -- values as JSON has them


def _hex(value: bytes) -> str:
    return "0x" + bytes(value).hex()


def _number(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


def _address(value: Any) -> Address | None:
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(value)) if value not in (None, "", "0x") else None


def _jsonable(params: Any) -> Any:
    return json.loads(json.dumps(params, default=_encoded))


def _encoded(value: Any) -> Any:
    return _hex(value) if isinstance(value, bytes) else dict(value)


def _block(mined: Mined, full: bool) -> dict[str, Any]:
    zero = _hex(bytes(32))
    return {
        "number": hex(mined.number), "hash": _hex(mined.hash), "parentHash": _hex(mined.parent),
        "timestamp": hex(mined.time), "baseFeePerGas": hex(mined.base_fee), "gasLimit": hex(GAS_LIMIT),
        "gasUsed": hex(mined.gas_used), "miner": NOBODY, "extraData": "0x", "difficulty": "0x0",
        "totalDifficulty": "0x0", "nonce": "0x0000000000000000", "mixHash": zero, "size": "0x0", "sha3Uncles": zero,
        "stateRoot": zero, "transactionsRoot": zero, "receiptsRoot": zero, "logsBloom": EMPTY_BLOOM, "uncles": [],
        "transactions": [
            _transaction(r.transaction, mined, r) if full else _hex(r.transaction.hash) for r in mined.receipts
        ],
    }  # fmt: skip


def _transaction(transaction: Transaction, mined: Mined | None, receipt: MinedReceipt | None) -> dict[str, Any]:
    return {
        "type": "0x2", "hash": _hex(transaction.hash), "from": transaction.sender, "to": transaction.to,
        "nonce": hex(transaction.nonce), "input": _hex(transaction.data), "value": hex(transaction.value),
        "gas": hex(transaction.gas), "maxFeePerGas": hex(transaction.max_fee),
        "maxPriorityFeePerGas": hex(transaction.tip), "accessList": [],
        "gasPrice": hex(receipt.price if receipt is not None else transaction.max_fee),
        "blockHash": _hex(mined.hash) if mined is not None else None,
        "blockNumber": hex(mined.number) if mined is not None else None,
        "transactionIndex": hex(receipt.index) if receipt is not None else None,
    }  # fmt: skip


def _receipt(mined: Mined, receipt: MinedReceipt) -> dict[str, Any]:
    logs = [_log(mined, receipt, receipt.first_log + i, log) for i, log in enumerate(receipt.outcome.logs)]
    return {
        "transactionHash": _hex(receipt.transaction.hash), "transactionIndex": hex(receipt.index),
        "blockHash": _hex(mined.hash), "blockNumber": hex(mined.number), "from": receipt.transaction.sender,
        "to": receipt.transaction.to, "status": hex(int(receipt.outcome.succeeded)), "type": "0x2",
        "gasUsed": hex(receipt.outcome.gas), "cumulativeGasUsed": hex(receipt.cumulative),
        "effectiveGasPrice": hex(receipt.price), "contractAddress": receipt.created, "logs": logs,
        "logsBloom": EMPTY_BLOOM,
    }  # fmt: skip


def _log(mined: Mined, receipt: MinedReceipt, index: int, log: TransactionLog) -> dict[str, Any]:
    return {
        "address": log.address, "topics": [_hex(topic) for topic in log.topics], "data": _hex(log.data),
        "blockNumber": hex(mined.number), "blockHash": _hex(mined.hash), "logIndex": hex(index), "removed": False,
        "transactionHash": _hex(receipt.transaction.hash), "transactionIndex": hex(receipt.index),
    }  # fmt: skip


# -- the methods


def _call(p: MemoryProvider, request: Any, tag: Any = "latest", *_: Any) -> str:
    return _hex(p.simulated(request, tag).returned)


def _estimate(p: MemoryProvider, request: Any, tag: Any = "pending", *_: Any) -> str:
    outcome = p.simulated(request, tag)
    return hex(max(outcome.gas, floor_gas(p.message(request).data)))


def _send_raw(p: MemoryProvider, raw: str) -> str:
    transaction = signed(bytes.fromhex(raw[2:]), p.chain.machine.chain_id)
    p.chain.submit(transaction)
    return _hex(transaction.hash)


def _get_block(p: MemoryProvider, tag: Any, full: bool = False) -> Any:
    mined = p.block(tag)
    return None if mined is None else _block(mined, full)


def _get_transaction(p: MemoryProvider, hash_: str) -> Any:
    wanted = bytes.fromhex(hash_[2:])
    found = p.chain.find(wanted)
    if found is not None:
        return _transaction(found[1].transaction, *found)
    waiting = next((t for t in p.chain.pool.values() if t.hash == wanted), None)
    return _transaction(waiting, None, None) if waiting is not None else None


def _get_receipt(p: MemoryProvider, hash_: str) -> Any:
    found = p.chain.find(bytes.fromhex(hash_[2:]))
    return None if found is None else _receipt(*found)


def _count(p: MemoryProvider, account: str, tag: Any = "latest") -> str:
    address = _address(account)
    assert address is not None
    if tag == "pending":
        return hex(p.chain.next_nonce(address, pending=True))
    return hex(p.at(tag)[0].world.nonces[address])


def _balance(p: MemoryProvider, account: str, tag: Any = "latest") -> str:
    return hex(p.at(tag)[0].world.coins[_address(account) or NOBODY])


def _get_code(p: MemoryProvider, account: str, tag: Any = "latest") -> str:
    return CODE if p.at(tag)[0].world.created[_address(account) or NOBODY] is not None else "0x"


def _logs(p: MemoryProvider, query: Any) -> list[Any]:
    chain = p.chain
    if query.get("blockHash"):
        mined = p.block(query["blockHash"])
        if mined is None:
            raise Failed(SERVER, "unknown block")
        first = last = mined.number
    else:
        first, last = (_bound(p, query.get(name, "latest")) for name in ("fromBlock", "toBlock"))
    if first > last:
        raise Failed(INVALID, "invalid block range params")
    widest = chain.manners.log_blocks
    if widest and last - first + 1 > widest:
        raise Failed(-32005, f"query exceeds max block range {widest}")
    wanted = query.get("address")
    addresses = None if wanted is None else {a.lower() for a in ([wanted] if isinstance(wanted, str) else wanted)}
    topics = query.get("topics") or []
    return [
        _log(mined, receipt, index, log)
        for mined in chain.blocks[first : last + 1]
        for index, receipt, log in mined.logs()
        if (addresses is None or log.address.lower() in addresses) and _matches(log, topics)
    ]


def _bound(p: MemoryProvider, tag: Any) -> int:
    if tag in ("latest", "pending"):
        return p.chain.head.number
    if tag in ("safe", "finalized"):
        return max(0, p.chain.head.number - getattr(p.chain.manners, tag))
    return 0 if tag == "earliest" else _number(tag)


def _matches(log: TransactionLog, topics: list[Any]) -> bool:
    if len(topics) > len(log.topics):
        return False
    for wanted, topic in zip(topics, log.topics, strict=False):
        if wanted is not None and _hex(topic) not in ([wanted] if isinstance(wanted, str) else wanted):
            return False
    return True


def _fee_history(p: MemoryProvider, count: Any, newest: Any = "latest", percentiles: Any = ()) -> Any:
    last = p.at(newest)[0].number
    blocks = p.chain.blocks[max(0, last - _number(count) + 1) : last + 1]
    return {
        "oldestBlock": hex(blocks[0].number),
        "baseFeePerGas": [hex(b.base_fee) for b in [*blocks, p.chain.pending()[0]]],
        "gasUsedRatio": [b.gas_used / GAS_LIMIT for b in blocks],
        "reward": [[hex(10**9) for _ in percentiles or ()] for _ in blocks],
    }


def _set_balance(p: MemoryProvider, account: str, amount: Any) -> None:
    address = _address(account) or NOBODY
    p.chain.write(coins=p.chain.world.coins.with_({address: _number(amount)}))


def _mine_some(p: MemoryProvider, blocks: Any = 1, interval: Any = None) -> None:
    for _ in range(_number(blocks)):
        if interval is not None:
            p.chain.next_time = p.chain.head.time + _number(interval)
        p.chain.mine()


def _mine_one(p: MemoryProvider, time: Any = None) -> str:
    if time is not None:
        p.chain.next_time = _number(time)
    p.chain.mine()
    return "0x0"


def _increase(p: MemoryProvider, seconds: Any) -> int:
    p.chain.advance(_number(seconds))
    return p.chain.shift


def _next_time(p: MemoryProvider, time: Any) -> None:
    if _number(time) <= p.chain.head.time:
        raise Failed(INVALID, f"Timestamp error: {_number(time)} is lower than or equal to previous block's timestamp")
    p.chain.next_time = _number(time)


def _automine(p: MemoryProvider, on: bool) -> None:
    p.chain.manners = replace(p.chain.manners, automine=on)
    if on and p.chain.pool:
        p.chain.mine()


def _interval_mining(p: MemoryProvider, seconds: Any) -> None:
    p.chain.manners = replace(p.chain.manners, block_seconds=_number(seconds))


def _block_interval(p: MemoryProvider, seconds: Any) -> None:
    p.chain.manners = replace(p.chain.manners, interval=_number(seconds))


def _next_base_fee(p: MemoryProvider, fee: Any) -> None:
    p.chain.next_base_fee = _number(fee)


def _reorganise(p: MemoryProvider, depth: Any, *_: Any) -> None:
    if not 0 < _number(depth) < len(p.chain.blocks):
        raise Failed(INVALID, f"cannot replace {depth} blocks of {len(p.chain.blocks)}")
    p.chain.reorganise(_number(depth))


def _impersonate(p: MemoryProvider, *_: Any) -> None:
    p.impersonates = True


def _drop(p: MemoryProvider, hash_: str) -> str:
    p.chain.drop(bytes.fromhex(hash_[2:]))
    return hash_


METHODS: dict[str, Callable[..., Any]] = {
    "web3_clientVersion": lambda p: "lockstep-memory",
    "net_version": lambda p: str(p.chain.machine.chain_id),
    "eth_chainId": lambda p: hex(p.chain.machine.chain_id),
    "eth_syncing": lambda p: False,
    "eth_accounts": lambda p: [],
    "eth_blockNumber": lambda p: hex(p.chain.head.number),
    "eth_gasPrice": lambda p: hex(p.chain.head.base_fee + 10**9),
    "eth_maxPriorityFeePerGas": lambda p: hex(10**9),
    "eth_feeHistory": _fee_history,
    "eth_getBlockByNumber": _get_block,
    "eth_getBlockByHash": _get_block,
    "eth_getTransactionByHash": _get_transaction,
    "eth_getTransactionReceipt": _get_receipt,
    "eth_getTransactionCount": _count,
    "eth_getBalance": _balance,
    "eth_getCode": _get_code,
    "eth_getLogs": _logs,
    "eth_call": _call,
    "eth_estimateGas": _estimate,
    "eth_sendRawTransaction": _send_raw,
    "eth_sendTransaction": MemoryProvider.send,
    "anvil_setBalance": _set_balance,
    "anvil_mine": _mine_some,
    "evm_mine": _mine_one,
    "evm_increaseTime": _increase,
    "evm_setNextBlockTimestamp": _next_time,
    "anvil_setBlockTimestampInterval": _block_interval,
    "anvil_setNextBlockBaseFeePerGas": _next_base_fee,
    "evm_setAutomine": _automine,
    "evm_setIntervalMining": _interval_mining,
    "evm_snapshot": lambda p: hex(p.chain.snapshot()),
    "evm_revert": lambda p, mark: p.chain.revert(_number(mark)),
    "anvil_reorg": _reorganise,
    "anvil_dropTransaction": _drop,
    "anvil_autoImpersonateAccount": _impersonate,
    "anvil_impersonateAccount": _impersonate,
}
"""The node's methods: Ethereum's, and those of Anvil that a local chain's controls use."""
