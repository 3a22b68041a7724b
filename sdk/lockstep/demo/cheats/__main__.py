"""Runs an honest program with one part replaced: python -m lockstep.demo.cheats NAME SEED PROGRAM ARGUMENT ..."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from lockstep.cli import main as lockstep
from lockstep.demo.cheats import lies
from lockstep.protocol.errors import LockstepError, UsageError

ITSELF = "lockstep.demo.cheats"
QUEUE = "coordinator.queue"
"""Runs in the place of a program: the coordinator's worker process, or its beat."""


def replace_part(name: str, seed: int, program: str) -> None:
    """Installs the lie in a program's own modules; raises UsageError if the program has no such lie."""
    if program == "worker" and name in lies.OF_SLOTS:
        import worker.service
        from lockstep.demo.cheats.worker import worker_of

        worker.service.Worker = worker_of(name, seed)  # type: ignore[misc]
    elif program == "coordinator" and name in lies.OF_MERGES:
        from coordinator import supervisor

        children = {role: [sys.executable, "-m", ITSELF, name, str(seed), QUEUE, role] for role in ("worker", "beat")}
        supervisor.queue_children = lambda: children
    elif program == QUEUE and name in lies.OF_MERGES:
        import coordinator.service
        from lockstep.demo.cheats.coordinator import coordinator_of

        coordinator.service.Coordinator = coordinator_of(name, seed)  # type: ignore[misc]
    elif program == "verifier" and name == "false-challenge":
        import verifier.service
        from lockstep.demo.cheats.challenges import challenger_of

        verifier.service.Verifier = challenger_of(seed)  # type: ignore[misc, assignment]
    else:
        raise UsageError(f"no cheat of a {program} is called {name!r}", hint="see lockstep/demo/cheats/lies.py")


def main(argv: list[str]) -> None:
    """NAME SEED PROGRAM ARGUMENT ...; exits as the program does."""
    try:
        if len(argv) < 3 or not argv[1].isdecimal():
            raise UsageError("a lie, a seed and a program are due", hint=str(__doc__))
        name, seed, program, *arguments = argv
        replace_part(name, int(seed), program)
    except LockstepError as error:
        sys.exit(lockstep.fail(error, as_json="--json" in argv))
    if program == QUEUE:
        from coordinator import queue

        queue.main(arguments)
    else:
        lockstep.main([program, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
