"""Foundations of every package: decoding of untrusted bytes, settings, this machine's resources, caches."""
