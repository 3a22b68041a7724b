"""A proxy that makes a node's RPC behave like a public provider, or like a failing one.

It limits blocks of logs and sizes of transactions, refuses requests at random, requires a key in the URL, and can be
down, silent or lying.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LIMIT_EXCEEDED = -32005
"""EIP-1474 code of providers for a query that is too large."""
INVALID = -32000
PUBLIC_LOG_BLOCKS = 5
PUBLIC_TRANSACTION_BYTES = 128 << 10
READ_SECONDS = 30.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores killed parties that disconnect."""


class RpcProxy:
    """Listens on a port of its own and forwards requests to a node. Public attributes may be changed at any time."""

    def __init__(
        self, url: str, log_blocks: int | None = None, *, transaction_bytes: int | None = None, busy: float = 0.0,
        seed: int = 0, port: int = 0, path: str = "/", refusal: str = "",
    ) -> None:  # fmt: skip
        """`log_blocks`: of a range in `eth_getLogs`, at most. `busy`: how many requests in one are answered with 429.

        `path`: what the URL ends in; other paths are answered with 401. `refusal`: what it says to a range too long;
        "{most}", "{first}", "{last}" are filled in.
        """
        where = urlsplit(url)
        self._node = where.hostname or "127.0.0.1", where.port
        self._path = path
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.log_blocks = log_blocks
        self.transaction_bytes = transaction_bytes
        self.busy = busy
        self.retry_after = ""
        """Retry-After of a 429 answer; "" for none."""
        self.refusal = refusal or "query exceeds max block range {most}"
        self.down = False
        """True: disconnects every client."""
        self.status = 0
        """HTTP status of all answers; 0: normal answers."""
        self.silent_seconds = 0.0
        """Seconds of silence before each answer."""
        self.chain_id: int | None = None
        """The chain id that it reports; None: the true one."""
        self.garbage: bytes | None = None
        """Its answer to everything but the chain id; None: the true one."""
        self.encoding = ""
        """Content encoding that its answers declare."""
        self.location = ""
        """Redirect target of answers with a status."""
        self.drops_logs = False
        """True: falsely reports no logs."""
        self.other_hashes = False
        """True: falsifies the hash of every block."""
        self.terse = False
        """True: behaves as a node of a Clique chain behind a restrictive provider (`_terse`)."""
        self.no_state: dict[str, Any] | None = None
        """Error for a call on a block by number; None: the true answer."""
        self.pending = 0
        """Number of calls on a pending block that it does not have."""
        self.refused = 0
        """Number of refused ranges of logs and transactions."""
        self.dropped = 0
        """Requests received while it was down."""
        self.requests: Counter[str] = Counter()
        """Number of requests by method, whatever the answer."""
        self.ranges: list[int] = []
        """Numbers of blocks in answered ranges of logs."""
        self.transactions: list[int] = []
        """Bytes of each forwarded transaction."""
        self.oversized: list[int] = []
        """Bytes of each refused transaction."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self) -> None:
                proxy._serve(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Logs nothing."""

        self._server = _Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{path if path != '/' else ''}"
        threading.Thread(target=self._server.serve_forever, name="rpc proxy", daemon=True).start()

    @classmethod
    def public(cls, url: str, *, busy: float = 0.0, seed: int = 0, path: str = "/") -> RpcProxy:
        """Returns a proxy with the limits of a public endpoint."""
        return cls(url, PUBLIC_LOG_BLOCKS, transaction_bytes=PUBLIC_TRANSACTION_BYTES, busy=busy, seed=seed, path=path)

    def close(self) -> None:
        """Ends the proxy."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> RpcProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        question = json.loads(body)
        with self._lock:
            self.requests.update(_methods(question))
            busy = self._chance.random() < self.busy
        time.sleep(self.silent_seconds)
        if self.down:
            self.dropped += 1
            request.close_connection = True
            return None
        if request.path != self._path:
            return _answer(request, 401, b"{}")
        if self.status or busy:
            headers = {"Retry-After": self.retry_after, "Location": self.location}
            return _answer(request, self.status or 429, b"", headers)
        if self.garbage is not None and "eth_chainId" not in _methods(question):
            return _answer(request, 200, self.garbage, {"Content-Encoding": self.encoding})
        answer = self._own_answer(question)
        return _answer(request, 200, self._lied(question, self._asked(body)) if answer is None else answer)

    def _asked(self, body: bytes) -> bytes:
        connection = HTTPConnection(*self._node, timeout=READ_SECONDS)
        try:
            connection.request("POST", "/", body, {"Content-Type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()

    def _own_answer(self, question: Any) -> bytes | None:
        """Returns the answer of a node with limits; None to forward the request."""
        method = question.get("method") if isinstance(question, dict) else None
        if method == "eth_chainId" and self.chain_id is not None:
            return json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": hex(self.chain_id)}).encode()
        if method == "eth_sendRawTransaction":
            size = len(question["params"][0]) // 2 - 1
            if self.transaction_bytes is not None and size > self.transaction_bytes:
                self.refused += 1
                self.oversized.append(size)
                return _error(question, INVALID, "oversized data: transaction size exceeds the limit")
            self.transactions.append(size)
            return None
        if self.terse and method == "eth_call" and question["params"][1] == "pending":
            self.pending += 1
            return _error(question, INVALID, "pending block is not available")
        if self.no_state and method == "eth_call" and question["params"][1].startswith("0x"):
            return json.dumps({"jsonrpc": "2.0", "id": question["id"], "error": self.no_state}).encode()
        if method != "eth_getLogs":
            return None
        asked = question["params"][0]
        first, last = (self._number(asked.get(k, "latest")) for k in ("fromBlock", "toBlock"))
        if self.log_blocks is None or last - first < self.log_blocks:
            self.ranges.append(last - first + 1)
            return None
        self.refused += 1
        words = self.refusal.format(most=self.log_blocks, first=hex(first), last=hex(first + self.log_blocks - 1))
        return _error(question, LIMIT_EXCEEDED, words)

    def _lied(self, question: Any, truth: bytes) -> bytes:
        if not isinstance(question, dict) or not (self.drops_logs or self.other_hashes or self.terse):
            return truth
        answer = json.loads(truth)
        method, result = question.get("method"), answer.get("result")
        if self.terse and result:
            _terse(str(method), result)
        if self.drops_logs and method == "eth_getLogs" and result:
            answer["result"] = []
        if self.other_hashes and method in ("eth_getBlockByNumber", "eth_getBlockByHash") and result:
            result["hash"] = "0x" + bytes(b ^ 1 for b in bytes.fromhex(result["hash"][2:])).hex()
        return json.dumps(answer).encode()

    def _number(self, block: str) -> int:
        if block.startswith("0x"):
            return int(block, 16)
        if block == "earliest":
            return 0
        asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
        return int(json.loads(self._asked(json.dumps(asked).encode()))["result"], 16)


def _terse(method: str, result: Any) -> None:
    """Rewrites a result in place: seals of 97 bytes in every block, and only those fields that a node has to give."""
    if method.startswith("eth_getBlockBy"):
        for name in (
            "withdrawals",
            "withdrawalsRoot",
            "blobGasUsed",
            "excessBlobGas",
            "totalDifficulty",
            "uncles",
            "size",
        ):
            result.pop(name, None)
        result |= {"extraData": "0x" + "00" * 97, "difficulty": "0x2", "author": None}
    if method == "eth_getTransactionReceipt":
        for name in ("effectiveGasPrice", "contractAddress", "cumulativeGasUsed", "logsBloom", "type", "blobGasPrice"):
            result.pop(name, None)
    logs = result if method == "eth_getLogs" else result.get("logs", ()) if isinstance(result, dict) else ()
    for log in logs:
        for name in ("removed", "transactionIndex", "blockTimestamp"):
            log.pop(name, None)


def _methods(question: Any) -> Iterable[str]:
    return [each["method"] for each in (question if isinstance(question, list) else [question])]


def _error(question: Any, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": message}}).encode()


def _answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        if value:
            request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
