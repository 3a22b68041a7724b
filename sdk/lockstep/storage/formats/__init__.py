"""Wire formats of payload tensors: canonical bytes of a declared length, one module each, named in registry.py."""
