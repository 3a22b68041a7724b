"""Serves the node on a local port, for programs that take an RPC URL."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lockstep.protocol.errors import Unreachable
from tests.support.memory.rpc import MemoryProvider


class Server:
    """Answers JSON-RPC over HTTP on 127.0.0.1 until it is closed."""

    def __init__(self, provider: MemoryProvider) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(provider))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        # polls for the end every 20 ms, because `close` waits for it
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server and waits for it."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler(provider: MemoryProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"
        # Small answers are sent at once (TCP_NODELAY).
        disable_nagle_algorithm = True
        # Head and body are sent together: otherwise the client waits between them.
        wbufsize = -1

        def do_POST(self) -> None:
            """Answers one request, or a batch of requests."""
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                answer = [_answer(one) for one in asked] if isinstance(asked, list) else _answer(asked)
            except Unreachable:
                self.close_connection = True
                return
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Logs nothing."""

    def _answer(asked: dict[str, Any]) -> dict[str, Any]:
        return dict(provider.make_request(asked["method"], asked.get("params", []))) | {"id": asked.get("id")}

    return Handler
