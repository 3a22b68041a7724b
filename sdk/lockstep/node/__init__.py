"""The parts that every role uses: its party to the chain, its identity, the ledger, replays, games, demands."""
