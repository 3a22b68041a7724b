"""The sandboxed child process: `python -I -m lockstep.execution.box.child WIRE`, started only by `handle.Box`.

    launcher    creates the namespaces; kills the others when the parent exits (stdin closes)
    first       process 1 of its PID namespace: when it exits, every process in it ends
    inmate      sets resource limits and Landlock, then executes one order after the other from the wire

The child has no key, no chain and no clock. It requests content by CID, and the parent parses its answers as untrusted
input.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.execution.box import confinement, wire


def main() -> None:
    """Runs as the launcher: forks the other two processes, and exits when its parent or they exit."""
    pipe = socket.socket(fileno=int(sys.argv[1]))
    (limits, folder, walls), _ = wire.ordered(pipe)
    with _reporting(pipe):
        lacking = confinement.unshare_namespaces() if walls else ["it is not walled in"]
        first = os.fork()
    if first == 0:
        confinement.die_with_parent()
        _as_first(pipe, limits, folder, lacking, walls=walls)
    pipe.close()
    _outlive(first)


@contextmanager
def _reporting(pipe: socket.socket) -> Iterator[None]:
    """Reports to the parent an error that the system raises in the block."""
    try:
        yield
    except OSError as error:
        wire.answer(pipe, {"refused": error.errno or 0})
        os._exit(1)


def _outlive(first: int) -> None:
    """Waits for the first process and ends with it; ends it if this process's parent has gone."""
    ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell)
    while True:
        pid, status = os.waitpid(first, os.WNOHANG)
        if pid == first:
            _end_like(status)
        ready, _, _ = select.select([0, ended], [], [])
        if ended not in ready:
            os.kill(first, signal.SIGKILL)
            _end_like(os.waitpid(first, 0)[1])
        os.read(ended, 1 << 10)


def _as_first(
    pipe: socket.socket, limits: confinement.Allowance, folder: Any, lacking: list[str], *, walls: bool
) -> None:
    with _reporting(pipe):
        inmate = os.fork()
    if inmate == 0:
        confinement.die_with_parent()
        os.close(0)
        status = 1
        try:
            _as_inmate(pipe, limits, folder, lacking, walls=walls)
            status = 0
        finally:
            os._exit(status)
    pipe.close()
    while True:
        # Processes that the inmate leaves behind become children of process 1.
        ended, status = os.wait()
        if ended == inmate:
            _end_like(status)


def _end_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _as_inmate(
    pipe: socket.socket, limits: confinement.Allowance, folder: Any, lacking: list[str], *, walls: bool
) -> None:
    from lockstep.execution.box.inmate import Inmate

    if walls:
        counted = not lacking
        with _reporting(pipe):
            lacking = [*lacking, *confinement.set_rlimits(limits, counted=counted)]
            lacking += confinement.restrict_with_landlock(confinement.code_folders(), folder)
    wire.answer(pipe, {"ready": lacking})
    Inmate(pipe).serve()


if __name__ == "__main__":
    main()
