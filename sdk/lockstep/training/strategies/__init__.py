"""Strategies, by which the slots of a round become its merge: one module each, named in registry.py."""
