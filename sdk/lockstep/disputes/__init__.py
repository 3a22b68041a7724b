"""Dispute games: one game's player, a queue of games, manual play, delegates, and reports from the log."""
