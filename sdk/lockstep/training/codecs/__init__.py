"""Codecs, which turn tensors into payloads of a wire format: one module each, named in registry.py."""
