"""Merges as flwr 1.42.0 computes them, written to flwr.json beside this file.

    python -m venv v && v/bin/pip install flwr==1.42.0 && v/bin/python tests/vectors/strategies/flwr_reference.py

Three clients of equal size, four rounds, 40 parameters in float64; a client's parameters are the server's plus a draw.

flwr's FedAvgM has a plain momentum, b = momentum b + g and p = p - rate b. Nesterov's is the same sequence seen from
another point: where its parameters are q, p = q + rate momentum b, with the b of the round before (Sutskever 2013,
section 2, reversed). Photon's bases are FedAvgM's, moved to q.
"""

from __future__ import annotations

import json
from pathlib import Path

import flwr
import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedYogi

CLIENTS, ROUNDS, SIZE = 3, 4, 40
ADAPTIVE = {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
PHOTON = {"server_learning_rate": 0.7, "server_momentum": 0.7}
MADE = {
    "fedavg": (FedAvg, {}),
    "fedadam": (FedAdam, ADAPTIVE),
    "fedyogi": (FedYogi, ADAPTIVE),
    "photon": (FedAvgM, PHOTON),
}


def main() -> None:
    """Runs the four strategies on the same draws."""
    rng = np.random.default_rng(42)
    start = rng.standard_normal(SIZE)
    moves = 0.05 * rng.standard_normal((ROUNDS, CLIENTS, SIZE))
    found = {}
    for name, (made, given) in MADE.items():
        strategy = made(initial_parameters=ndarrays_to_parameters([start]), **given)
        base, bases = start, []
        for r in range(ROUNDS):
            results = [
                (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([base + moves[r, c]]), 10, {}))
                for c in range(CLIENTS)
            ]
            merged, _ = strategy.aggregate_fit(r + 1, results, [])
            (base,) = parameters_to_ndarrays(merged)
            if made is FedAvgM:
                (b,) = strategy.momentum_vector
                bases.append((base - given["server_learning_rate"] * given["server_momentum"] * b).tolist())
            else:
                bases.append(base.tolist())
        found[name] = {"options": given, "bases": bases}
    data = {"flwr": flwr.__version__, "start": start.tolist(), "moves": moves.tolist(), "strategies": found}
    Path(__file__).with_name("flwr.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
