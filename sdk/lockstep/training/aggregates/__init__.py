"""Aggregates, which combine the accepted payloads of a round into one: named in registry.py."""
