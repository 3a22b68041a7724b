"""A chain in memory: the contracts as functions, behind the JSON-RPC that every other node speaks."""
