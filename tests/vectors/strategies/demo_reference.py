"""DeMo as pytorch-optimizer 4.1.0 computes it, written to demo.npz beside this file.

    python -m venv v && v/bin/pip install torch pytorch_optimizer==4.1.0 einops numpy
    v/bin/python tests/vectors/strategies/demo_reference.py

Two processes exchange coefficients over Gloo. The matrix has as many columns as a chunk of the transform, whose chunks
are then consecutive elements, as those of a flat tensor are. Gradients are multiples of 1/16 in one byte each; the
rate is a power of two, which scales every number exactly.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_optimizer import DeMo
from torch import distributed, multiprocessing

WORKERS, ROUNDS, SHAPE, RATE = 2, 2, (128, 64), 2.0**-10
SCALE = 1 / 16
CASES = {"demo": ("apart", 8), "distro": ("apart", 4), "shared": ("shared", 8)}
"""The draws and the coefficients of each chunk that are kept."""


def draws() -> dict[str, np.ndarray]:
    """Gradients by round and worker: of nothing in common, and of much."""
    normal = np.random.default_rng(5).standard_normal((2 * ROUNDS, WORKERS, *SHAPE))
    common = np.random.default_rng(6).standard_normal((ROUNDS, 1, *SHAPE))
    made = {"apart": normal[:ROUNDS], "shared": common + 0.5 * normal[ROUNDS:]}
    return {name: np.clip(np.round(x / SCALE), -127, 127).astype(np.int8) for name, x in made.items()}


class Seen(DeMo):
    """DeMo that notes what it sends and what it has decoded."""

    def demo_all_gather(self, sparse_idx: torch.Tensor, sparse_val: torch.Tensor) -> Any:
        """The exchange, noted."""
        self.sent = (sparse_idx.numpy().copy(), sparse_val.numpy().copy())
        return super().demo_all_gather(sparse_idx, sparse_val)


def worker(rank: int, store: str, folder: str) -> None:
    """Steps through the cases; writes what this worker has seen."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    found: dict[str, list[np.ndarray]] = {}
    for case, (drawn, kept) in CASES.items():
        parameter = torch.nn.Parameter(torch.zeros(SHAPE))
        optimizer = Seen([parameter], lr=RATE, compression_decay=0.999, compression_top_k=kept, compression_chunk=64)
        decode = optimizer.transform.decode

        def noted(x: torch.Tensor, decode: Any = decode, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.decoded = decode(x)
            return optimizer.decoded

        optimizer.transform.decode = noted
        for r in range(ROUNDS):
            parameter.grad = SCALE * torch.from_numpy(draws()[drawn][r, rank].astype(np.float32))
            optimizer.step()
            seen = {
                "indices": optimizer.sent[0].reshape(-1, kept).astype(np.int16),
                "values": optimizer.sent[1].reshape(-1, kept),
                "delta": optimizer.state[parameter]["delta"].numpy().copy(),
                "decoded": optimizer.decoded.numpy().copy(),
                "parameter": parameter.detach().numpy().copy(),
            }
            for key, value in seen.items():
                found.setdefault(f"{case}_{key}", []).append(value)
    np.savez(Path(folder) / f"{rank}.npz", **{key: np.array(values) for key, values in found.items()})
    distributed.destroy_process_group()


def main() -> None:
    """Runs the workers, and keeps what the test reads."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(worker, (f"{folder}/store", folder), nprocs=WORKERS, start_method="fork")
        found = [dict(np.load(Path(folder) / f"{rank}.npz")) for rank in range(WORKERS)]
    data: dict[str, Any] = {f"gradients_{name}": x for name, x in draws().items()}
    for case in CASES:
        for key in ("indices", "values", "delta"):
            data[f"{case}_{key}"] = np.stack([each[f"{case}_{key}"] for each in found], axis=1)
        for key in ("decoded", "parameter"):
            assert np.array_equal(found[0][f"{case}_{key}"], found[1][f"{case}_{key}"]), "workers disagree"
            data[f"{case}_{key}"] = found[0][f"{case}_{key}"]
        data[f"{case}_parameter"] = np.round(data[f"{case}_parameter"] / RATE).astype(np.int8)
    for key in ("distro_delta", "distro_decoded", "distro_parameter", "shared_delta"):
        del data[key]
    np.savez_compressed(
        Path(__file__).with_name("demo.npz"),
        pytorch_optimizer=version("pytorch_optimizer"),
        torch=torch.__version__,
        scale=SCALE,
        rate=RATE,
        **data,
    )


if __name__ == "__main__":
    sys.exit(main())
