"""What every role stands on: its party to the chain, its identity, the ledger, replays, games, demands."""
