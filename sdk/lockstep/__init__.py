"""Lockstep: verifiable training compute."""
