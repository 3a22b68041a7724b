"""The market as every role sees it: the ledger of its events, claims replayed and held, and decisions that roles
share."""
