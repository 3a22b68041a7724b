"""The chain: contracts, events, transactions, devnet."""
