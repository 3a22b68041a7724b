"""The chain: contracts, events, transactions, keys, devnet."""
