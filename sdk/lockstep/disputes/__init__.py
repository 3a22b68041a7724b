"""Dispute games: a player for one game, a queue of games, moves by hand, a delegate, and reports from the log."""
