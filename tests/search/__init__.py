"""Searches for attacks: random coalitions against the honest programs' own decisions, on the twin."""
