"""Wire formats of payload tensors: canonical encodings of a declared length, one module each, listed in registry.py."""
