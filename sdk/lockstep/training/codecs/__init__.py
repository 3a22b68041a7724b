"""Codecs, by which a tensor becomes what its wire format carries: one module each, named in registry.py."""
