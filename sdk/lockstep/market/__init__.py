"""The market as seen by every role: ledger of events, replayed claims, and decisions shared by roles."""
