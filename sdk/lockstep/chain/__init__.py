"""Access to the chain: contracts, events, transactions, keys, a local chain."""
