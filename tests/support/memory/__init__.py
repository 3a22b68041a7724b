"""A chain in memory: the contracts as functions, behind a node's JSON-RPC."""
