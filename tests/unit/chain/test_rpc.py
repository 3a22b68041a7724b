"""An RPC that is down is Unreachable (exit 9), when connecting and ever after; of several, one suffices."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_typing import HexStr
from structlog.testing import capture_logs
from web3 import Web3
from web3.exceptions import ContractLogicError, Web3RPCError

from lockstep.chain import artifacts, rpc, rpc_answers
from lockstep.chain.contracts import NEVER_REVERT, Contracts
from lockstep.chain.devnet import CHAIN_ID, Local, deploy
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect, is_rate_limit
from lockstep.protocol.errors import ChainError, FundsError, Unreachable, UsageError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, JobId, Wei
from tests.support.memory.devnet import MemoryDevnet
from tests.support.rpc_proxy import RpcProxy

pytestmark = pytest.mark.chain


def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="does not answer") as caught:
            connect(url)
    assert caught.value.exit_code == 9
    assert caught.value.hint, "says what to do"


def test_another_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="not an http"):
        connect("127.0.0.1:8545")


def test_another_chain_is_refused(devnet: Local) -> None:
    with pytest.raises(ChainError, match=f"is chain {CHAIN_ID}, not 1"):
        connect(devnet.url, chain_id=1)


def test_a_chain_that_goes_down_is_unreachable_everywhere_and_loses_nothing(tmp_path: Path) -> None:
    with MemoryDevnet() as chain, RpcProxy(chain.url) as proxy:
        account, w3 = chain.account("x"), connect(proxy.url)
        contracts = Contracts.at(w3, deploy(w3, account))
        outbox = Outbox(tmp_path / "outbox.db", w3, account)
        proxy.down = True
        with pytest.raises(Unreachable):
            contracts.vault.free(account.address)
        with pytest.raises(Unreachable):
            outbox.send(contracts.token.mint(account.address, Wei(1)), "mint")
    assert outbox._journal.row("mint") is None, "nothing half-written"


# -- several endpoints


class StoodStill:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """As time.monotonic()."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoodStill:
    """The clock by which endpoints rest."""
    clock = StoodStill()
    monkeypatch.setattr(rpc, "time", clock)
    return clock


@pytest.fixture
def proxies(devnet: Local, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RpcProxy, RpcProxy]]:
    """Two endpoints of one chain."""
    monkeypatch.setattr(rpc, "WAIT_SECONDS", (0.01, 0.05))
    with RpcProxy(devnet.url) as first, RpcProxy(devnet.url) as second:
        yield first, second


def both(proxies: tuple[RpcProxy, RpcProxy], **options: Any) -> Web3:
    w3 = connect(f"{proxies[0].url}, {proxies[1].url}", **options)
    for proxy in proxies:
        proxy.requests.clear()
    return w3


def test_the_first_endpoint_is_asked_alone_while_it_answers(proxies: tuple[RpcProxy, RpcProxy]) -> None:
    w3 = both(proxies)
    for _ in range(3):
        assert w3.eth.block_number >= 0
    assert (proxies[0].requests.total(), proxies[1].requests.total()) == (3, 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("status", [0, 401, 429, 500, 502, 503, 504])
def test_the_next_endpoint_answers_for_one_that_is_gone_until_it_is_back(
    proxies: tuple[RpcProxy, RpcProxy], status: int, clock: StoodStill
) -> None:
    first, second = proxies
    w3 = both(proxies)
    first.status, first.down = status, not status
    with capture_logs() as said:
        assert w3.eth.block_number >= 0
        tried = first.requests.total()
        assert w3.eth.block_number >= 0
        assert first.requests.total() == tried, "it rests"
        assert tried == (rpc.ATTEMPTS if status not in (401, 500) else 1), "it is tried again if that may help"
        first.status, first.down = 0, False
        clock.now += rpc.BACKOFF_SECONDS[0]
        answered = second.requests.total()
        assert w3.eth.block_number >= 0
    assert second.requests.total() == answered, "the first one is asked again after its rest"
    assert [line["event"] for line in said if "RPC endpoint" in line["event"]] == [
        "an RPC endpoint failed and is in back-off: requests go to the others", "an RPC endpoint answers again",
    ]  # fmt: skip


@pytest.mark.sampled(1)
def test_all_gone_is_unreachable_and_names_them_all(proxies: tuple[RpcProxy, RpcProxy]) -> None:
    w3 = both(proxies)
    for proxy in proxies:
        proxy.down = True
    with pytest.raises(Unreachable) as caught:
        _ = w3.eth.block_number
    assert all(proxy.url in caught.value.message for proxy in proxies)
    proxies[1].down = False
    assert w3.eth.block_number >= 0, "one that rests is asked if nobody else answers"


@pytest.mark.sampled(1)
def test_a_busy_endpoint_is_asked_again(proxies: tuple[RpcProxy, RpcProxy]) -> None:
    w3 = connect(proxies[0].url)
    proxies[0].busy = 0.5
    for _ in range(30):
        assert w3.eth.block_number >= 0
    assert proxies[0].requests.total() > 30


@pytest.mark.sampled(1)
def test_retry_after_is_waited_for(proxies: tuple[RpcProxy, RpcProxy], monkeypatch: pytest.MonkeyPatch) -> None:
    w3, slept = connect(proxies[0].url, timeout=5), list[float]()
    # Time passes by waiting alone.
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    proxies[0].status, proxies[0].retry_after = 503, "1"
    with pytest.raises(Unreachable, match="HTTP 503"):
        _ = w3.eth.block_number
    assert [s for s in slept if s] == [1] * 4, "as long as it says, within the timeout"
    proxies[0].retry_after = "3600"
    with pytest.raises(Unreachable):
        _ = w3.eth.block_number
    assert sum(slept) == 4, "an hour is not waited for"


@pytest.mark.parametrize(
    ("method", "code", "message", "limited"),
    [
        ("eth_call", -32005, "limit exceeded", True),
        ("eth_call", -32029, "slow down", True),
        ("eth_getLogs", -32005, "daily request count exceeded, request rate limited", True),
        ("eth_getLogs", 429, "Your app has exceeded its compute units per second capacity", True),
        ("eth_call", -32007, "50/second request limit reached", True),
        ("eth_call", 0, "Too Many Requests", True),
        ("eth_getLogs", -32005, "query returned more than 10000 results", False),
        ("eth_getLogs", -32005, "query exceeds max block range 5", False),
        ("eth_call", 3, "execution reverted", False),
    ],
)
def test_a_limit_of_requests_is_told_from_a_limit_of_results(
    method: str, code: int, message: str, limited: bool
) -> None:
    assert is_rate_limit(method, {"error": {"code": code, "message": message}}) == limited


def test_an_endpoint_of_another_chain_is_refused_by_name(proxies: tuple[RpcProxy, RpcProxy]) -> None:
    proxies[1].chain_id = 5
    with pytest.raises(ChainError, match=f"{proxies[1].url} is chain 5, not {CHAIN_ID}"):
        both(proxies, chain_id=CHAIN_ID)
    with pytest.raises(ChainError, match="is chain 5"):
        both(proxies)


def test_an_endpoint_that_is_gone_at_first_is_checked_before_it_is_used(
    proxies: tuple[RpcProxy, RpcProxy], clock: StoodStill
) -> None:
    first, second = proxies
    first.down = True
    with capture_logs() as said:
        w3 = both(proxies, chain_id=CHAIN_ID)
    assert [line["host"] for line in said] == [first.url]
    first.down, first.chain_id = False, 5
    clock.now += rpc.BACKOFF_SECONDS[0]
    assert w3.eth.block_number >= 0
    assert first.requests == {"eth_chainId": 1}, "nothing is read from another chain"
    assert second.requests["eth_blockNumber"] == 1


def test_a_transaction_goes_to_every_endpoint_and_is_one(proxies: tuple[RpcProxy, RpcProxy], devnet: Local) -> None:
    account = devnet.account("sender")
    w3 = both(proxies)
    transaction = {
        "to": account.address, "value": 1, "gas": 21_000, "nonce": w3.eth.get_transaction_count(account.address),
        "chainId": CHAIN_ID, "maxFeePerGas": 10**11, "maxPriorityFeePerGas": 1,
    }  # fmt: skip
    signed = account.sign_transaction(transaction)
    sent = w3.eth.send_raw_transaction(signed.raw_transaction)
    assert sent == signed.hash
    assert all(proxy.requests["eth_sendRawTransaction"] == 1 for proxy in proxies)


def test_a_transaction_that_one_may_have_taken_is_not_refused(proxies: tuple[RpcProxy, RpcProxy]) -> None:
    w3 = both(proxies)
    with pytest.raises(Web3RPCError):
        w3.eth.send_raw_transaction(b"\2nonsense")
    proxies[0].down = True
    with pytest.raises(Unreachable):
        w3.eth.send_raw_transaction(b"\2nonsense")


@pytest.mark.parametrize(
    ("block", "message", "reason"),
    [
        ("finalized", "finalized block not found", ""),
        ("safe", "safe block not found", ""),
        ("finalized", "block not found: finalized", ""),
        ("safe", "Unknown block", ""),
        ("finalized", "header not found", ""),
        ("0x10", "block not found", "block not found"),
        ("finalized", "request timed out", "timed out"),
    ],
)
def test_a_node_without_a_final_block_can_read_all_the_same(block: str, message: str, reason: str) -> None:
    answer: Any = {"jsonrpc": "2.0", "id": 1, "error": {"code": -39001, "message": message}}
    assert rpc._trouble("eth_getBlockByNumber", [block, False], answer) == reason


# -- what a stranger answers

BLOCK = {"number": "0x5", "hash": "0x" + 64 * "1", "parentHash": "0x" + 64 * "2", "timestamp": "0x5"}
NESTED = 200_000


def said(result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


GARBAGE = {
    "no JSON": b"<html>",
    "no UTF-8": b"\xff\xfe",
    "a text of brackets": b"[" * NESTED,
    "a nested result": b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * NESTED + b"]" * NESTED + b"}",
    "a number of 100,000 digits": b'{"jsonrpc":"2.0","id":1,"result":' + b"9" * 100_000 + b"}",
    "a list": b"[1, 2]",
    "neither result nor error": b'{"jsonrpc":"2.0","id":1,"error":null}',
    "an error that is a list": b'{"jsonrpc":"2.0","id":1,"error":[1]}',
    "an error of another form": b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":5}}',
    "a lone surrogate": b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"\\ud800 \\u0000"}}',
    "a block that is a list": said([1, 2]),
    "a block that is a text": said("0x12"),
    "a block without fields": said({}),
    "a number that is none": said({**BLOCK, "number": "0xzz"}),
    "a negative number": said({**BLOCK, "number": "-0x5"}),
    "a hash of half a byte": said({**BLOCK, "hash": "0x1"}),
    "a hash that is a number": said({**BLOCK, "hash": 5}),
    "a time that is null": said({**BLOCK, "timestamp": None}),
    "a time that is a list": said({**BLOCK, "timestamp": []}),
    "a time after 2^40 seconds": said({**BLOCK, "timestamp": "0x" + 64 * "f"}),
}


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RpcProxy, MemoryDevnet]]:
    """An endpoint that says what it is told to, in front of a chain."""
    monkeypatch.setattr(rpc, "WAIT_SECONDS", (0.0, 0.0))
    with MemoryDevnet() as chain, RpcProxy(chain.url) as proxy:
        yield proxy, chain


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_failure_of_its_endpoint(stranger: tuple[RpcProxy, MemoryDevnet], garbage: bytes) -> None:
    proxy, chain = stranger
    alone, first = connect(proxy.url), connect(f"{proxy.url},{chain.url}")
    proxy.garbage = garbage
    with pytest.raises(Unreachable):
        alone.eth.get_block("latest")
    assert first.eth.get_block("latest")["number"] == chain.w3.eth.block_number, "the next one is asked"


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_is_bounded_also_when_it_is_unpacked(
    stranger: tuple[RpcProxy, MemoryDevnet], monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(rpc_answers, "MAX_ANSWER_BYTES", 1 << 20)
    proxy, _ = stranger
    w3, long = connect(proxy.url), said("0x" + "00" * (1 << 20))
    proxy.garbage, proxy.encoding = (gzip.compress(long), "gzip") if packed else (long, "")
    with pytest.raises(Unreachable, match="more than 1 MiB"):
        w3.eth.get_block("latest")


def test_an_answer_that_trickles_ends(stranger: tuple[RpcProxy, MemoryDevnet], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "PATIENCE", 0)
    with pytest.raises(Unreachable, match="too slowly"):
        connect(stranger[0].url)


def test_an_endpoint_that_sends_elsewhere_is_not_followed(stranger: tuple[RpcProxy, MemoryDevnet]) -> None:
    proxy, chain = stranger
    w3 = connect(proxy.url)
    proxy.status, proxy.location = 307, chain.url
    with pytest.raises(Unreachable, match="HTTP 307"):
        _ = w3.eth.block_number


def test_no_answer_makes_this_process_ask_a_url(
    stranger: tuple[RpcProxy, MemoryDevnet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIP-3668: a revert by which a contract names URLs to ask."""
    proxy, chain = stranger
    addresses, w3 = deploy(chain.w3, chain.account("x")), connect(proxy.url)
    market = Contracts.at(w3, addresses).market
    found, looked_up = socket.getaddrinfo, []

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        looked_up.append(host)
        return found("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    lookup = keccak(b"OffchainLookup(address,string[],bytes,bytes4,bytes)")[:4] + encode(
        ["address", "string[]", "bytes", "bytes4", "bytes"],
        [addresses.market, ["https://lookup.example/{data}"], b"", b"", b""],
    )
    error = {"code": 3, "message": "execution reverted", "data": "0x" + lookup.hex()}
    proxy.garbage = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    with pytest.raises(ChainError, match="reverted"):
        market.bond_of(JobId(bytes(32)))
    with pytest.raises(ContractLogicError):
        w3.eth.call({"to": addresses.market, "data": HexStr("0x")})
    assert "lookup.example" not in looked_up


@pytest.mark.parametrize("data", ["08c379a0", "08c379a0" + 64 * "f", "4e487b71", "4e487b71" + 64 * "f", "f" * 7])
def test_a_revert_of_no_form_is_an_error_of_the_chain(stranger: tuple[RpcProxy, MemoryDevnet], data: str) -> None:
    proxy, chain = stranger
    market = Contracts.at(connect(proxy.url), deploy(chain.w3, chain.account("x"))).market
    error = {"code": 3, "message": "execution reverted", "data": "0x" + data}
    proxy.garbage = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    with pytest.raises(ChainError):
        market.bond_of(JobId(bytes(32)))


UNREADABLE = {
    "nothing": {"result": "0x"},
    "half a word": {"result": "0x" + 16 * "00"},
    "words that no node says": {"error": {"code": -32000, "message": "evm module is not available"}},
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_a_read_without_a_value_is_a_failure_of_its_endpoint(
    stranger: tuple[RpcProxy, MemoryDevnet], answer: dict[str, Any]
) -> None:
    proxy, chain = stranger
    where, somebody = deploy(chain.w3, chain.account("x")), Address("0x" + 40 * "1")
    alone, first = (Contracts.at(connect(urls), where) for urls in (proxy.url, f"{proxy.url},{chain.url}"))
    proxy.garbage = json.dumps({"jsonrpc": "2.0", "id": 1, **answer}).encode()
    with pytest.raises(Unreachable):
        alone.vault.free(somebody)
    assert first.vault.free(somebody) == 0, "the next one is asked"


def test_a_call_that_reads_nothing_may_return_nothing(stranger: tuple[RpcProxy, MemoryDevnet]) -> None:
    proxy, _ = stranger
    w3 = connect(proxy.url)
    proxy.garbage = said("0x")
    assert w3.eth.call({"to": "0x" + 40 * "1"}) == b""  # type: ignore[typeddict-item]


@pytest.mark.parametrize("message", ["execution reverted", "out of gas", "invalid opcode: INVALID"])
def test_a_read_that_the_code_refuses_is_refused_by_every_endpoint(
    stranger: tuple[RpcProxy, MemoryDevnet], message: str
) -> None:
    proxy, chain = stranger
    market = Contracts.at(connect(f"{proxy.url},{chain.url}"), deploy(chain.w3, chain.account("x"))).market
    proxy.garbage = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": message}}).encode()
    with pytest.raises(ChainError):
        market.bond_of(JobId(bytes(32)))


@pytest.mark.parametrize("data", ["0x", "0x" + keccak(b"NoSuchJob(bytes32)")[:4].hex() + 64 * "0"])
def test_a_revert_of_a_view_that_has_none_is_a_failure_of_its_endpoint(
    stranger: tuple[RpcProxy, MemoryDevnet], data: str
) -> None:
    proxy, chain = stranger
    where, somebody = deploy(chain.w3, chain.account("x")), Address("0x" + 40 * "1")
    alone, first = (Contracts.at(connect(urls), where) for urls in (proxy.url, f"{proxy.url},{chain.url}"))
    error = {"code": 3, "message": "execution reverted", "data": data}
    proxy.garbage = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    with pytest.raises(Unreachable, match="of a read that never fails it says: execution reverted"):
        alone.vault.free(somebody)
    assert first.vault.free(somebody) == 0, "the next one is asked"


@pytest.fixture(scope="module")
def empty() -> Iterator[Contracts]:
    """Contracts to which nothing has happened."""
    with MemoryDevnet() as chain:
        yield Contracts.at(chain.w3, deploy(chain.w3, chain.account("x")))


@pytest.mark.parametrize("name", sorted(NEVER_REVERT))
def test_a_view_that_is_said_to_have_no_revert_has_none(empty: Contracts, name: str) -> None:
    contract, function = name.split(".")
    found: Any = {"StakeVault": empty.vault, "JobMarket": empty.market, "Availability": empty.demands}[contract]
    inputs = artifacts.function(contract, function)["inputs"]
    nothing = {"address": Address("0x" + 40 * "0"), "bytes32": bytes(32), "uint32": 0}
    most = {"address": Address("0x" + 40 * "f"), "bytes32": b"\xff" * 32, "uint32": 2**32 - 1}
    for given in (nothing, most):
        found.read(function, *(given[artifacts.abi_type(part)] for part in inputs))


def test_a_receipt_without_a_price_is_one(
    stranger: tuple[RpcProxy, MemoryDevnet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, chain = stranger
    account, w3 = chain.account("x"), connect(proxy.url)
    token = Contracts.at(w3, deploy(w3, account)).token
    outbox = Outbox(tmp_path / "outbox.db", w3, account)
    whole = rpc_answers.RESULTS["eth_getTransactionReceipt"]
    priceless = lambda value, where: whole(value and {**value, "effectiveGasPrice": None}, where)  # noqa: E731
    monkeypatch.setitem(rpc_answers.RESULTS, "eth_getTransactionReceipt", priceless)
    outbox.send(token.mint(account.address, Wei(1)), "mint")
    assert (outbox.wait("mint").succeeded, outbox.wait("mint").gas_price) == (True, 0)


def test_a_state_that_no_endpoint_keeps_is_called_so_and_a_revert_in_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "WAIT_SECONDS", (0.01, 0.05))
    gone = {"code": -32602, "message": "BlockOutOfRangeError: block height is 9 but requested was 3"}
    with MemoryDevnet() as chain, RpcProxy(chain.url) as proxy:
        account, w3 = chain.account("x"), connect(proxy.url)
        contracts = Contracts.at(w3, deploy(chain.w3, account))
        outbox = Outbox(tmp_path / "outbox.db", w3, account)
        outbox.submit(contracts.vault.request_unbond(Wei(1)), "no stake", check=False)
        assert outbox.receipt("no stake")
        proxy.no_state = gone
        with pytest.raises(Unreachable, match="does not keep the state of the block") as told:
            contracts.market.job(JobId(bytes(32)), 3)
        assert "local market" in told.value.hint
        with pytest.raises(ChainError, match=r"requestUnbond reverted in block .*does not keep the state"):
            outbox.wait("no stake")


def test_a_call_is_simulated_on_the_latest_block_where_a_provider_has_no_pending_one(tmp_path: Path) -> None:
    with MemoryDevnet() as chain, RpcProxy(chain.url) as proxy:
        proxy.terse = True
        account, w3 = chain.account("x"), connect(proxy.url)
        contracts = Contracts.at(w3, deploy(chain.w3, account))
        outbox = Outbox(tmp_path / "outbox.db", w3, account)
        for _ in range(2):
            with pytest.raises(FundsError, match="StakeTooLow"):
                outbox.simulate(contracts.vault.request_unbond(Wei(1)))
        outbox.send(contracts.token.mint(account.address, Wei(1)), "mint")
        assert contracts.token.balance_of(account.address) == 1
        assert proxy.pending == 1, "it is asked once"


def test_a_nested_text_overflows_no_stack_after_web3_is_imported(stranger: tuple[RpcProxy, MemoryDevnet]) -> None:
    connect(stranger[0].url)
    with pytest.raises(RecursionError):
        json.loads("[" * NESTED)
