"""Messages between a process and its confined child: eight bytes of length, then the body.

Parent to child a body is a pickle: the child trusts its parent. Child to parent it is CBOR of bounded size, read as
bytes from outside are, for a child that was taken over says what its master wants.
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
"""The most bytes of one message from a child."""
MOST_HANDLES = 16
"""File descriptors that come with one message to a child."""


class Ended(Exception):
    """The other side has closed its end."""


class Late(Exception):
    """The other side took longer than it was given."""


def send(wire: socket.socket, body: bytes, handles: Sequence[int] = (), until: float = math.inf) -> None:
    """Sends one message. `until`: by `time.monotonic()`. Raises Ended, Late."""
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
    """Receives one message of at most `most` bytes; file descriptors that come with it are let go of by the kernel.

    Raises Ended, Late, and OverflowError for a longer one.
    """
    (size,) = HEAD.unpack(_exactly(wire, HEAD.size, until))
    # INVARIANT: no child has its parent make room for more than one message may have.
    if size > most:
        raise OverflowError(f"a message of {size} bytes")
    return _exactly(wire, size, until)


def order(wire: socket.socket, what: Any, handles: Sequence[int] = (), until: float = math.inf) -> None:
    """Parent to child."""
    send(wire, pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL), handles, until)


def ordered(wire: socket.socket) -> tuple[Any, list[int]]:
    """Reads, in the child, what its parent says, and the file descriptors beside it."""
    head, handles, _, _ = socket.recv_fds(wire, HEAD.size, MOST_HANDLES)
    if not head:
        raise Ended
    head += _exactly(wire, HEAD.size - len(head), math.inf)
    return pickle.loads(_exactly(wire, HEAD.unpack(head)[0], math.inf)), handles


def answer(wire: socket.socket, what: dict[str, Any]) -> None:
    """Child to parent."""
    send(wire, dag_cbor.encode(what))


def answered(wire: socket.socket, until: float) -> Any:
    """Reads, in the parent, what its child says. Raises Ended, Late, OverflowError, and Malformed."""
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
