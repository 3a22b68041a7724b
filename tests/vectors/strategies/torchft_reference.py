"""DiLoCo as torchft 0.2.0 computes it, written to torchft.npz beside this file.

    python -m venv v && v/bin/pip install torch torchft==0.2.0 numpy
    v/bin/python tests/vectors/strategies/torchft_reference.py

Three replicas, threads of one process, each with torchft's own manager and Gloo group; its lighthouse counts them on
the loopback interface. A replica fits a matrix of its own to its own rows by AdamW, four steps a round.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

REPLICAS, ROUNDS, STEPS = 3, 4, 4
SHAPE = (16, 32)
HOST = "127.0.0.1"
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def start() -> torch.Tensor:
    """The parameters that all replicas start from."""
    return 0.1 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def replica(rank: int, lighthouse: str, ready: threading.Barrier) -> dict[str, Any]:
    """(parameters before each merge, after it, and the outer momentum) of a replica, round by round."""
    timeout = timedelta(seconds=120)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    model = torch.nn.Linear(SHAPE[1], SHAPE[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(start())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=REPLICAS,
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=timeout,
        connect_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{rank}",
        hostname=HOST,
        init_sync=False,
    )
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    outer = torch.optim.SGD(model.parameters(), **OUTER)
    draws = torch.Generator().manual_seed(100 + rank)
    rows, due = torch.randn((64, SHAPE[1]), generator=draws), torch.randn((64, SHAPE[0]), generator=draws)
    found: dict[str, Any] = {"lives": [], "bases": [], "momenta": []}
    # Registered before DiLoCo's own hook, it runs before the merge.
    seen = inner.register_step_post_hook(lambda *_: found["lives"].append(model.weight.detach().numpy().copy()))
    ready.wait()
    try:
        with DiLoCo(manager, [model], inner, outer, sync_every=STEPS):
            for t in range(ROUNDS * STEPS):
                part = slice(16 * (t % 4), 16 * (t % 4) + 16)
                inner.zero_grad()
                torch.nn.functional.mse_loss(model(rows[part]), due[part]).backward()
                inner.step()
                if t % STEPS == STEPS - 1:
                    assert manager.current_step() == t // STEPS + 1, "every merge was committed"
                    assert manager.num_participants() == REPLICAS
                    found["bases"].append(model.weight.detach().numpy().copy())
                    found["momenta"].append(outer.state[model.weight]["momentum_buffer"].numpy().copy())
        ready.wait()
    finally:
        seen.remove()
        manager.shutdown(wait=False)
    found["lives"] = found["lives"][STEPS - 1 :: STEPS]
    return found


def main() -> None:
    """Runs the replicas; they must end alike."""
    torch.set_num_threads(1)
    lighthouse = LighthouseServer(bind=f"{HOST}:0", min_replicas=REPLICAS)
    ready = threading.Barrier(REPLICAS)
    with ThreadPoolExecutor(REPLICAS) as pool:
        runs = [pool.submit(replica, rank, lighthouse.address(), ready) for rank in range(REPLICAS)]
        found = [run.result() for run in runs]
    lighthouse.shutdown()
    for each in found[1:]:
        for key in ("bases", "momenta"):
            assert np.array_equal(each[key], found[0][key]), "replicas disagree"
    np.savez_compressed(
        Path(__file__).with_name("torchft.npz"),
        torchft=version("torchft"),
        torch=torch.__version__,
        start=start().numpy(),
        lives=np.array([each["lives"] for each in found]).swapaxes(0, 1),
        bases=np.array(found[0]["bases"]),
        momenta=np.array(found[0]["momenta"]),
    )


if __name__ == "__main__":
    main()
