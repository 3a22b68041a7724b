"""Foundations of all packages: decoding of untrusted bytes, settings, this machine's resources, caches."""
