"""JSON-RPC endpoints of one chain: each is retried while it is busy, and replaced by the next one when it fails.

    one request      the first endpoint that is not in back-off; again after a delay (`stamina`), at most ATTEMPTS times
                     and about `timeout` seconds; then it is in back-off, and the next one is asked
    back-off         BACKOFF_SECONDS, twice as long each time; after it the endpoint is the first again
    a transaction    goes to every endpoint: its hash makes it one, however often it arrives
    no answer        `Unreachable`; it names hosts only, since a URL may hold a key (`base.redaction`)

An endpoint gets no request before it has returned the expected chain id.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lockstep.base.log import Logger
from lockstep.base.redaction import hide, redacted, urls_of
from lockstep.base.retries import retry_context
from lockstep.base.vitals import VITALS
from lockstep.chain import rpc_answers
from lockstep.chain.curves import defer_curves
from lockstep.chain.known_chains import require_own_blocks
from lockstep.chain.rpc_answers import Answer
from lockstep.protocol.errors import ChainError, Malformed, Unreachable, UsageError

if TYPE_CHECKING:
    from web3 import Web3
    from web3.providers.base import BaseProvider

TIMEOUT_SECONDS = 20.0
PATIENCE = 3
"""Time limit of a whole answer, in multiples of the timeout of each of its parts."""
PIECE_BYTES = 1 << 16
HEADERS = {"Content-Type": "application/json"}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
RECURSION_LIMIT = 1000
"""CPython's default.

py_ecc raises it to 100,000; nested text could then overflow a parser's stack.
"""
ATTEMPTS = 5
"""Most attempts of one request at one endpoint."""
WAIT_SECONDS = (0.2, 5.0)
"""First and longest delay between attempts, in seconds; it doubles each time, with jitter."""
BACKOFF_SECONDS = (15.0, 300.0)
"""First and longest back-off of a failed endpoint, in seconds."""

BUSY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses after which a request is retried."""
TOO_MUCH_STATUSES = frozenset({400, 413, 422, 500, 502, 504})
"""HTTP statuses by which providers refuse a range of blocks that is too wide."""
LIMIT_CODES = frozenset({-32005, -32029})
"""JSON-RPC codes of an exceeded limit: on requests, or on the size of one request."""
REVERTED = 3
"""The JSON-RPC code of a revert."""
RATE_WORDS = (
    "rate limit", "rate-limit", "ratelimit", "too many requests", "requests per", "request limit", "request count",
    "compute units", "throughput", "over capacity", "quota",
)  # fmt: skip
"""Words with which providers report an exceeded request rate."""

TROUBLE_WORDS = (
    "header not found", "missing trie node", "unknown block", "block not found", "block out of range",
    "blockoutofrange", "historical state", "state is not available", "state not available", "pruned", "internal error",
    "internal server error", "temporarily unavailable", "service unavailable", "timeout", "timed out", "not synced",
    "syncing", "no backend", "bad gateway",
)  # fmt: skip
"""Words in temporary read errors of nodes; another node, or the same one later, can answer."""
HISTORY_WORDS = frozenset({
    "missing trie node", "block out of range", "blockoutofrange", "historical state", "state is not available",
    "state not available", "pruned",
})  # fmt: skip
"""Words among these that report a block's state as no longer available."""
CODE_WORDS = ("revert", "vm exception", "evm error", "opcode", "jump", "stack", "gas")
"""Words that report a failure of the called code instead of the node."""
NAMED = ("safe", "finalized")
"""Block tags that only a beacon chain, or a rollup's parent, determines."""
UNNAMED_WORDS = ("block not found", "unknown block", "header not found")
"""Words with which nodes (geth, erigon, reth) report an unknown block."""
READS = frozenset({
    "eth_blockNumber", "eth_call", "eth_chainId", "eth_gasPrice", "eth_getBalance", "eth_getBlockByNumber",
    "eth_getCode", "eth_getTransactionCount", "eth_getTransactionReceipt",
})  # fmt: skip
KNOWN_WORDS = ("already known", "already imported", "nonce too low")
"""Words with which nodes (Anvil, geth, reth) report a transaction that they already have or have mined."""

SEND, LOGS = "eth_sendRawTransaction", "eth_getLogs"

log = Logger(__name__)


class Failure(Exception):
    """The reason why an endpoint did not answer: the cause of an `Unreachable`, without its URL."""

    def __init__(
        self, kind: str, *, status: int = 0, timed_out: bool = False, passes: bool = True, arrived: bool = True,
        again_after: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kind)
        self.status = status
        """The HTTP status; 0 if there was no answer."""
        self.timed_out = timed_out
        self.passes = passes
        """True if the same endpoint may answer soon."""
        self.arrived = arrived
        """True if the request may have reached the endpoint."""
        self.again_after = again_after
        """Seconds that the endpoint asks to wait (Retry-After)."""


def connect(urls: str, chain_id: int | None = None, timeout: float = TIMEOUT_SECONDS) -> Web3:
    """Connects web3 to a comma-separated list of http(s) URLs.

    Raises `UsageError` for an invalid URL, `Unreachable` if no endpoint answers, `ChainError` if one is of another
    chain than `chain_id` (by default the first endpoint's), or of a chain that no market can run on
    (`chain.known_chains`). Every later request raises `Unreachable` when all endpoints fail.
    """
    defer_curves()
    sys.setrecursionlimit(RECURSION_LIMIT)
    hide(urls)
    listed = urls_of(urls)
    if not listed:
        raise UsageError("no RPC URL is given", "give the chain's RPC URL, as http://127.0.0.1:8545")
    for url in listed:
        if not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
            raise UsageError(
                f"{redacted(url)} is not an http(s) URL", "give the chain's RPC URL, as http://127.0.0.1:8545"
            )
    provider = _provider_class()([Endpoint(url, timeout) for url in listed], timeout)
    provider.begin(chain_id)
    return over(provider)


def over(provider: BaseProvider) -> Web3:
    """Returns a Web3 with a single middleware, which makes answers' fields attributes.

    The default ones look up names and prices and scan each request for addresses, which takes longer than the rest of a
    read.
    """
    from web3 import Web3
    from web3.middleware import AttributeDictMiddleware

    return Web3(provider, middleware=[(AttributeDictMiddleware, "attrdict")])


def get_logs(w3: Web3, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the logs of `eth_getLogs`, numbers as int and hex digits as bytes; addresses stay text.

    It is web3's `get_logs` without its formatters, which take longer than the answer and its decoding. Raises web3's
    errors, and `Unreachable`.
    """
    from web3.types import RPCEndpoint

    asked = {name: hex(value) if isinstance(value, int) else value for name, value in query.items()}
    response = w3.provider.make_request(RPCEndpoint(LOGS), [asked])
    return [
        {name: _PARSED[name](value) for name, value in entry.items() if name in _PARSED}
        for entry in w3.manager.formatted_response(response, [asked])
    ]


def _integer(value: str | int) -> int:
    return int(value, 16) if isinstance(value, str) else value


def _octets(digits: str) -> bytes:
    return bytes.fromhex(digits[2:])


_PARSED: dict[str, Callable[[Any], Any]] = {
    "address": str, "topics": lambda topics: [_octets(topic) for topic in topics], "data": _octets,
    "blockNumber": _integer, "blockHash": _octets, "blockTimestamp": _integer, "transactionHash": _octets,
    "logIndex": _integer,
}  # fmt: skip
"""The fields of a log that are read."""


class OtherChain(Failure):
    """Raised if an endpoint belongs to another chain."""

    def __init__(self, chain_id: int) -> None:
        super().__init__(f"is chain {chain_id}", passes=False, arrived=False)
        self.chain_id = chain_id


class Endpoint:
    """One URL: sends requests, and tracks its back-off."""

    def __init__(self, url: str, timeout: float) -> None:
        from requests import Session
        from web3.providers.base import JSONBaseProvider

        self.url, self.name = url, redacted(url)
        self._timeout = timeout
        self._session = Session()
        # A proxy is never used for this machine itself, and looking for one costs more than the request.
        self._session.trust_env = urlsplit(url).hostname not in LOOPBACK
        self._encode = JSONBaseProvider().encode_rpc_request
        self.checked = False
        """True once the endpoint has returned the expected chain id."""
        self._until = 0.0
        self._delay = 0.0

    def in_backoff(self) -> bool:
        """Returns True if another endpoint is asked first."""
        return time.monotonic() < self._until

    def failed(self, at_least: float = 0.0) -> None:
        """Puts the endpoint into back-off, twice as long as the last time."""
        self._delay = min(max(2 * self._delay, BACKOFF_SECONDS[0]), BACKOFF_SECONDS[1])
        self._until = time.monotonic() + max(self._delay, at_least)

    def answered(self) -> bool:
        """Resets the back-off; returns True if the endpoint was failing."""
        failed, self._until, self._delay = self._delay > 0, 0.0, 0.0
        return failed

    def ask(self, method: str, params: Any) -> Answer:
        """Makes one attempt at a request. Raises `Failure`."""
        answer = self._post(self._encode(method, params))  # type: ignore[arg-type]
        if is_rate_limit(method, answer):
            raise Failure("its rate limit is exceeded", status=429, arrived=False)
        if method in READS and (trouble := _trouble(method, params, answer)):
            raise Failure(trouble, status=503)
        if "error" in answer:
            return answer
        try:
            found = rpc_answers.result(method, answer["result"])
            if method == "eth_call":
                rpc_answers.called(found)
            return {**answer, "result": found}
        except Malformed as malformed:
            VITALS.count("rpc_errors", self.name)
            # INVARIANT: whatever an endpoint says is read here, or it is the endpoint's failure.
            raise Failure(malformed.message, passes=False) from None

    def _post(self, data: bytes) -> Answer:
        """Posts a request and returns the JSON-RPC answer."""
        VITALS.count("rpc_requests", self.name)
        try:
            return self._answered(data)
        except Failure:
            VITALS.count("rpc_errors", self.name)
            raise

    def _answered(self, data: bytes) -> Answer:
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        status, body, after, why = 0, bytearray(), None, None
        end = time.monotonic() + PATIENCE * self._timeout
        try:
            with self._session.post(
                self.url, data=data, headers=HEADERS, timeout=self._timeout, stream=True, allow_redirects=False
            ) as response:
                status, after = response.status_code, response.headers.get("Retry-After")
                while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                    body += piece
                    # INVARIANT: an answer is bounded in bytes, unpacked, and in time.
                    if len(body) > rpc_answers.MAX_ANSWER_BYTES:
                        why = Failure(f"more than {rpc_answers.MAX_ANSWER_BYTES >> 20} MiB", status=413, passes=False)
                        break
                    if time.monotonic() > end:
                        why = Failure("it answers too slowly", timed_out=True)
                        break
        except (RequestException, HTTPError, OSError) as error:
            why = _failure(error)
        # Raised outside of the handler: the library's error, which names the URL, would otherwise be its context.
        if why is not None:
            raise why
        right = 200 <= status < 300
        try:
            framed = rpc_answers.framed(bytes(body))
        except Malformed as malformed:
            raise (Failure(f"no JSON-RPC: {malformed.message}") if right else _refused(status, after)) from None
        # Some endpoints put the JSON-RPC error into an HTTP error; it has more information.
        if right or ("error" in framed and status != 429):
            return framed
        raise _refused(status, after)


def is_rate_limit(method: str, answer: Answer) -> bool:
    """Returns True if a JSON-RPC error reports too many requests, and not that this one is too large."""
    error = answer.get("error")
    if not isinstance(error, Mapping):
        return False
    text = str(error.get("message", "")).lower()
    return any(word in text for word in RATE_WORDS) or (error.get("code") in LIMIT_CODES and method != LOGS)


def _trouble(method: str, params: Any, answer: Answer) -> str:
    """Returns the reason that a node cannot read now; "" if it can."""
    if "error" not in answer:
        latest = method == "eth_getBlockByNumber" and params[0] == "latest"
        return "it has no latest block" if latest and answer["result"] is None else ""
    error = answer["error"]
    text = str(error.get("message", "")).lower()
    if method == "eth_getBlockByNumber" and params[0] in NAMED and any(words in text for words in UNNAMED_WORDS):
        # The node knows no such block before its chain has determined one: other nodes know no more, and the node can
        # read.
        return ""
    if method == "eth_call" and params[1:2] == ["pending"] and any(words in text for words in UNNAMED_WORDS):
        # A provider without a pending block has the other ones.
        return ""
    known = next((words for words in TROUBLE_WORDS if words in text and "revert" not in text), "")
    if method == "eth_call":
        by_code = "data" in error or error.get("code") == REVERTED or any(words in text for words in CODE_WORDS)
        if not rpc_answers.may_revert():
            return known or f"of a read that never fails it says: {text}"
        return known or ("" if by_code or not rpc_answers.awaited() else text)
    # A call may be refused for its arguments; a request for a number, a balance or a block may not.
    return known or ("" if params and params[0] in NAMED else text)


@cache
def _provider_class() -> Any:
    """Returns web3's provider class for a list of endpoints; imports web3 on first use."""
    from web3.providers.base import JSONBaseProvider

    class Endpoints(JSONBaseProvider):
        """Several endpoints of one chain, the first one preferred."""

        # INVARIANT: no answer of an endpoint makes this process ask a URL (EIP-3668).
        global_ccip_read_enabled = False

        def __init__(self, endpoints: Sequence[Endpoint], timeout: float) -> None:
            super().__init__()
            self._endpoints = list(endpoints)
            self._timeout = timeout
            self._chain_id: int | None = None
            self._lock = threading.Lock()

        def __str__(self) -> str:
            return f"RPC connection {', '.join(self.hosts)}"

        @property
        def hosts(self) -> list[str]:
            """The hosts of the endpoints, without keys."""
            return [each.name for each in self._endpoints]

        def begin(self, chain_id: int | None) -> None:
            """Requests every endpoint's chain id; raises `ChainError` for a different one, `Unreachable` if none
            answers."""
            self._chain_id = chain_id
            failures = []
            for each in self._endpoints:
                try:
                    self._check(each, retry_refused=False)
                except OtherChain as other:
                    # INVARIANT: nothing is read from, or sent to, another chain.
                    raise ChainError(
                        f"{each.name} is chain {other.chain_id}, not {self._chain_id}",
                        "check the RPC URL and the addresses file",
                    ) from None
                except Failure as failure:
                    failures.append((each, failure))
                    each.failed()
            if len(failures) == len(self._endpoints):
                raise self._unreachable(failures)
            require_own_blocks(self._chain_id or 0)
            for each, why in failures:
                log.warning("an RPC endpoint does not answer: requests go to the others", host=each.name, why=str(why))

        def make_request(self, method: Any, params: Any) -> Any:
            if method == SEND and len(self._endpoints) > 1:
                return self._send(params)
            if method == "eth_chainId":
                # Every endpoint in use has been checked; web3 requests the id before each call of a contract.
                return {"jsonrpc": "2.0", "id": 0, "result": hex(self._chain_id or 0)}
            return self._first(str(method), params, lambda each: each.ask(method, params))

        def is_connected(self, show_traceback: bool = False) -> bool:
            try:
                return "result" in self.make_request("eth_blockNumber", [])
            except Unreachable:
                return False

        def _first(self, method: str, params: Any, ask: Callable[[Endpoint], Any]) -> Any:
            """Returns the answer of the first endpoint that gives one."""
            failures = []
            for each in self._in_order():
                try:
                    answer = self._asked(each, ask)
                except Failure as failure:
                    failures.append((each, failure))
                    if self._asks_too_much(method, params, failure):
                        break
                    self._fail_over(each, failure)
                    continue
                self._well(each)
                return answer
            raise self._unreachable(failures)

        def _send(self, params: Any) -> Any:
            """Sends a transaction to every endpoint; returns an accepting answer, or else a refusing one."""
            taken: list[Answer] = []
            refused: list[Answer] = []
            failures = []
            for each in self._in_order():
                # An endpoint in back-off delays nothing once the transaction was accepted.
                if taken and each.in_backoff():
                    continue
                try:
                    answer = self._asked(each, lambda e: e.ask(SEND, params), attempts=1 if taken else ATTEMPTS)
                except Failure as failure:
                    failures.append((each, failure))
                    self._fail_over(each, failure)
                    continue
                self._well(each)
                (taken if _took(answer) else refused).append(answer)
            # INVARIANT: a transaction that an endpoint may have taken counts as sent: it is not refused.
            if not taken and (not refused or any(failure.arrived for _, failure in failures)):
                raise self._unreachable(failures)
            return (taken or refused)[0]

        def _fail_over(self, each: Endpoint, failure: Failure) -> None:
            if len(self._endpoints) > 1 and not each.in_backoff():
                report = log.error if isinstance(failure, OtherChain) else log.warning
                report(
                    "an RPC endpoint failed and is in back-off: requests go to the others",
                    host=each.name,
                    why=str(failure),
                )
            each.failed(failure.again_after or 0.0)

        def _well(self, each: Endpoint) -> None:
            if each.answered() and len(self._endpoints) > 1:
                log.warning("an RPC endpoint answers again", host=each.name)

        def _asked(self, each: Endpoint, ask: Callable[[Endpoint], Any], attempts: int = ATTEMPTS) -> Any:
            """Returns an endpoint's answer within its attempts. Raises the last `Failure`."""
            for attempt in _attempts(self._timeout, attempts):
                with attempt:
                    if not each.checked:
                        self._check(each)
                    return ask(each)
            raise AssertionError("stamina raises what the last attempt raised")

        def _check(self, each: Endpoint, *, retry_refused: bool = True) -> None:
            """Requests an endpoint's chain id. Raises `OtherChain`, or another `Failure`."""
            for attempt in _attempts(self._timeout, ATTEMPTS, retry_refused=retry_refused):
                with attempt:
                    answer = each.ask("eth_chainId", [])
            try:
                actual = int(answer["result"], 16)
            except (KeyError, TypeError, ValueError):
                raise Failure("it does not return its chain id", passes=False) from None
            with self._lock:
                if self._chain_id is None:
                    self._chain_id = actual
            if actual != self._chain_id:
                raise OtherChain(actual)
            each.checked = True

        def _in_order(self) -> list[Endpoint]:
            """Returns the endpoints not in back-off, then the others, so that every request has an endpoint."""
            ready = [each for each in self._endpoints if not each.in_backoff()]
            return ready + [each for each in self._endpoints if each not in ready]

        def _asks_too_much(self, method: str, params: Any, failure: Failure) -> bool:
            """Returns True if the request itself may be too large: logs of several blocks."""
            if method != LOGS or failure.status not in TOO_MUCH_STATUSES - BUSY_STATUSES:
                return False
            return bool(params[0].get("fromBlock") != params[0].get("toBlock"))

        def _unreachable(self, failures: Sequence[tuple[Endpoint, Failure]]) -> Unreachable:
            causes = ", ".join(f"{each.name} ({failure})" for each, failure in failures)
            if all(str(failure) in HISTORY_WORDS for _, failure in failures):
                error = Unreachable(
                    f"the chain's RPC at {causes} does not keep the state of the block that is asked for",
                    "use an archive node; a local market keeps the latest states, and none of before its last start",
                )
            else:
                error = Unreachable(
                    f"the chain's RPC at {causes} does not answer",
                    "start the node or check the URL; nothing is lost, what was sent is in the outbox",
                )
            error.__cause__ = failures[-1][1]
            error.__suppress_context__ = True
            return error

    return Endpoints


def _took(answer: Answer) -> bool:
    """Returns True if the node has the transaction."""
    text = str(answer["error"].get("message", "")).lower() if "error" in answer else ""
    return "error" not in answer or any(words in text for words in KNOWN_WORDS)


def _attempts(timeout: float, attempts: int, *, retry_refused: bool = True) -> Iterator[Any]:
    """Yields stamina's attempts: back-off with jitter, at least Retry-After, within a time bound."""
    end = time.monotonic() + timeout

    def again(error: Exception) -> bool | float:
        if not isinstance(error, Failure) or not error.passes or (not error.status and not retry_refused):
            return False
        if error.again_after is None:
            return True
        return error.again_after if time.monotonic() + error.again_after < end else False

    return iter(
        retry_context(
            on=again, attempts=attempts, timeout=timeout,
            wait_initial=WAIT_SECONDS[0], wait_max=WAIT_SECONDS[1], wait_jitter=WAIT_SECONDS[0],
        )
    )  # fmt: skip


def _refused(status: int, retry_after: str | None) -> Failure:
    """Returns the failure of an HTTP status."""
    return Failure(
        f"HTTP {status}", status=status, passes=status in BUSY_STATUSES, arrived=status not in (401, 403, 404, 429),
        again_after=_seconds(retry_after),
    )  # fmt: skip


def _failure(error: Exception) -> Failure:
    """Converts an exception of requests or urllib3 to a `Failure`; its own text contains the URL."""
    from requests import ConnectionError as NoConnection
    from requests import ConnectTimeout, Timeout
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as TooLate

    timed_out = isinstance(error, Timeout | TooLate)
    # Connection refused, or unknown host: nothing was sent.
    arrived = not isinstance(error, ConnectTimeout) and "NewConnectionError" not in repr(error)
    passes = timed_out or isinstance(error, NoConnection | ProtocolError)
    return Failure(type(error).__name__, timed_out=timed_out, passes=passes, arrived=arrived)


def _seconds(retry_after: str | None) -> float | None:
    """Parses a Retry-After header: seconds, or a date."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
