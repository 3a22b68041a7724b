"""Tensors as hivemind 1.1.12's Uniform8BitQuantization sends them, written to hivemind.npz beside this file.

    python -m venv v && v/bin/pip install torch hivemind==1.1.12 numpy==2.2.6
    v/bin/python tests/vectors/strategies/hivemind_reference.py

Of each draw: the codes and the averages of the bins as `quantize` returns them, and what `extract` makes of the
message that `compress` writes. hivemind reads a length in a way that numpy 2.4 refuses.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from hivemind.compression import CompressionInfo, Uniform8BitQuantization

SIZE = 3000


def draws() -> dict[str, np.ndarray]:
    """What differences look like, and what is hard on a quantiser."""
    normal = np.random.default_rng(8).standard_normal((5, SIZE))
    made = {
        "normal": 1e-3 * normal[0],
        "heavy": 0.01 * normal[1] * np.abs(normal[1]),
        "shifted": 0.002 + 1e-3 * normal[2],
        "layers": np.concatenate([1e-2 * normal[3, :100], 1e-4 * normal[3, 100:]]),
        "sparse": np.where(normal[4] > 1, normal[4], 0),
    }
    return {name: x.astype(np.float32) for name, x in made.items()}


def main() -> None:
    """Quantises the draws, whole tensors each."""
    codec, data = Uniform8BitQuantization(), {}
    for name, x in draws().items():
        tensor = torch.from_numpy(x)
        codes, averages = codec.quantize(tensor)
        back = codec.extract(codec.compress(tensor, CompressionInfo.from_tensor(tensor)))
        found = {"x": x, "codes": codes, "averages": averages, "decoded": back.numpy()}
        data |= {f"{name}_{key}": value for key, value in found.items()}
    np.savez_compressed(
        Path(__file__).with_name("hivemind.npz"), hivemind=version("hivemind"), torch=torch.__version__, **data
    )


if __name__ == "__main__":
    main()
