"""Messages between a process and its confined child: eight bytes of length, then the body.

From parent to child a body is a pickle, because the child trusts its parent. From child to parent it is CBOR of bounded
size, parsed as untrusted input, because a compromised child may send anything.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import dag_cbor

from lockstep.base.decoding import from_cbor

HEAD = struct.Struct(">Q")
MOST_BYTES = 1 << 24
"""Most bytes of one message from a child."""
MOST_HANDLES = 16
"""Most file descriptors with one message to a child."""


class Ended(Exception):
    """Raised if the other side has closed the connection."""


class Late(Exception):
    """Raised if the other side did not respond in time."""


def send(wire: socket.socket, body: bytes, handles: Sequence[int] = (), until: float = math.inf) -> None:
    """Sends one message before the time `until` of `time.monotonic()`. Raises Ended, Late."""
    view = memoryview(HEAD.pack(len(body)) + body)
    try:
        if handles:
            _wait(wire, until)
            view = view[socket.send_fds(wire, [view], handles) :]
        while view:
            _wait(wire, until)
            view = view[wire.send(view) :]
    except TimeoutError as error:
        raise Late from error
    except OSError as error:
        raise Ended from error


def receive(wire: socket.socket, most: int, until: float = math.inf) -> bytes:
    """Receives one message of at most `most` bytes; the kernel closes file descriptors that come with it.

    Raises Ended, Late, and OverflowError for a longer one.
    """
    (size,) = HEAD.unpack(_exactly(wire, HEAD.size, until))
    # INVARIANT: no child has its parent make room for more than one message may have.
    if size > most:
        raise OverflowError(f"a message of {size} bytes")
    return _exactly(wire, size, until)


def order(wire: socket.socket, what: Any, handles: Sequence[int] = (), until: float = math.inf) -> None:
    """Sends an order from parent to child."""
    send(wire, pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL), handles, until)


def ordered(wire: socket.socket) -> tuple[Any, list[int]]:
    """Receives an order in the child, with its file descriptors."""
    head, handles, _, _ = socket.recv_fds(wire, HEAD.size, MOST_HANDLES)
    if not head:
        raise Ended
    head += _exactly(wire, HEAD.size - len(head), math.inf)
    return pickle.loads(_exactly(wire, HEAD.unpack(head)[0], math.inf)), handles


def answer(wire: socket.socket, what: dict[str, Any]) -> None:
    """Sends an answer from child to parent."""
    send(wire, dag_cbor.encode(what))


def answered(wire: socket.socket, until: float) -> Any:
    """Receives the child's answer in the parent. Raises Ended, Late, OverflowError, and Malformed."""
    return from_cbor(receive(wire, MOST_BYTES, until), MOST_BYTES)


def _exactly(wire: socket.socket, size: int, until: float) -> bytes:
    found = bytearray()
    try:
        while len(found) < size:
            _wait(wire, until)
            piece = wire.recv(min(size - len(found), 1 << 20))
            if not piece:
                raise Ended
            found += piece
    except TimeoutError as error:
        raise Late from error
    except OSError as error:
        raise Ended from error
    return bytes(found)


def _wait(wire: socket.socket, until: float) -> None:
    if until == math.inf:
        wire.settimeout(None)
        return
    left = until - time.monotonic()
    if left <= 0:
        raise Late
    wire.settimeout(left)
