"""Aggregates, by which the accepted payloads of a round become one tensor: named in registry.py."""
