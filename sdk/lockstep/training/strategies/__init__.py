"""How the slots of a round become its merge: a module a strategy, named in registry.py."""
