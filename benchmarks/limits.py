"""The most that one game may take: what benchmarks measure games against, and what tests hold them to."""

MAX_TRANSACTIONS, MAX_TRANSACTION_GAS = 16, 500_000
MAX_GAS = {"float32": 1_900_000, "int8": 1_600_000}
"""Gas of a game, by the arithmetic of its model."""
