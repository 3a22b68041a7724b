"""One decoder in a process of its own: libFuzzer, through Atheris, until its time is over or something else comes out.

python -m tests.fuzz.child NAME CORPUS [--planted] [libFuzzer's options]
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import atheris

from tests.fuzz import loading
from tests.fuzz.targets import DECODING, TARGETS


def main(name: str, corpus: Path, options: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    target = TARGETS[name]
    planted = "--planted" in options
    loading.install({*target.functions, DECODING}, target.planted if planted else None)
    seeds, run = target.open()
    for seed in seeds:
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    flags = [o for o in options if o != "--planted"]
    arguments = [
        sys.argv[0],
        f"-max_len={target.most_bytes}",
        "-len_control=0",
        "-keep_seed=1",
        # One change at a time leaves most of a text as it was: two at once are refused for the first.
        "-mutate_depth=1" if target.mutator else "-mutate_depth=5",
        "-print_final_stats=1",
        *flags,
        str(corpus),
    ]
    # What a target does with an input guides the search too: it may choose among kinds.
    run = atheris.instrument_func(run)
    atheris.Setup(arguments, run, custom_mutator=target.mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
