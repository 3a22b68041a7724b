"""A node's RPC as a party sees it on a bad day: gone for a minute, or with few blocks of logs at a time."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LIMIT_EXCEEDED = -32005
"""EIP-1474: what providers answer to a query that is too large."""
READ_SECONDS = 30.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Parties that are killed hang up in the middle."""


class RpcProxy:
    """Listens on a port of its own, and hands requests to a node."""

    def __init__(self, url: str, log_blocks: int | None = None) -> None:
        """`log_blocks`: of a range in `eth_getLogs`, at most."""
        where = urlsplit(url)
        self._node = where.hostname or "127.0.0.1", where.port
        self._log_blocks = log_blocks
        self.down = False
        """Whether it hangs up on everybody."""
        self.refused = 0
        """Ranges of logs that were too long."""
        self.dropped = 0
        """Requests that came while it was down."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy._serve(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """The parties have logs of their own."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="rpc proxy", daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        if self.down:
            self.dropped += 1
            request.close_connection = True
            return
        answer = self._own_answer(body) or self._asked(body)
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _asked(self, body: bytes) -> bytes:
        connection = HTTPConnection(*self._node, timeout=READ_SECONDS)
        try:
            connection.request("POST", "/", body, {"Content-Type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()

    def _own_answer(self, body: bytes) -> bytes | None:
        """What a node with a limit says instead; None if the other one is to be asked."""
        question = json.loads(body)
        if self._log_blocks is None or not isinstance(question, dict) or question.get("method") != "eth_getLogs":
            return None
        asked = question["params"][0]
        first, last = (self._number(asked.get(k, "latest")) for k in ("fromBlock", "toBlock"))
        if last - first < self._log_blocks:
            return None
        self.refused += 1
        error = {"code": LIMIT_EXCEEDED, "message": f"query exceeds max block range {self._log_blocks}"}
        return json.dumps({"jsonrpc": "2.0", "id": question["id"], "error": error}).encode()

    def _number(self, block: str) -> int:
        if block.startswith("0x"):
            return int(block, 16)
        if block == "earliest":
            return 0
        asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
        return int(json.loads(self._asked(json.dumps(asked).encode()))["result"], 16)
