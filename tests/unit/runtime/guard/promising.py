"""A process that promises and signs until it is killed: the child of test_kill.py.

    python promising.py HOME SIGNED KILL_AT

It binds claims 0, 1, 2, .. and writes one line to SIGNED (fsynced) for each once `bind` has returned, as a worker would
send its commitment. It kills itself with SIGKILL at the KILL_AT-th line of the guard's code that it executes.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep.protocol.types import Address, Cid, ClaimId, Digest, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard import lock, memory
from lockstep.runtime.guard.memory import GuardMemory, RecordKey, Scope, SigningRecord

SCOPE = Scope(31337, b"g" * 32, Address("0x" + "11" * 20), Address("0x" + "22" * 20))
CLAIMS = 3


def place(number: int) -> RecordKey:
    """The number-th claim's."""
    return RecordKey(ClaimId(number.to_bytes(32, "big")), Seed(b"s" * 32), StateRoot(b"b" * 32))


def promise(number: int, trace: bytes = b"t") -> SigningRecord:
    """What the number-th claim is bound to."""
    nonce = bytes(31) + bytes([number])
    return SigningRecord(
        TraceRoot(trace * 32), Digest(b"o" * 32), Digest(b"p" * 32), nonce, Cid("bafytrace"), Cid("bafypay")
    )


def die_at(line: int) -> None:
    """SIGKILL to this process at the line-th line executed in lock.py or memory.py."""
    files = {lock.__file__, memory.__file__}
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def main(home: Path, signed: Path, kill_at: int) -> None:
    """SigningRecord, then sign, CLAIMS times."""
    die_at(kill_at)
    file = os.open(signed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with lock.held(home, "worker"), GuardMemory(home, SCOPE) as guard:
        for number in range(CLAIMS):
            guard.bind(place(number), promise(number))
            os.write(file, f"{number}\n".encode())
            os.fsync(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
