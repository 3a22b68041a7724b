"""Strategies, which train the slots of a round and merge them: one module each, named in registry.py."""
