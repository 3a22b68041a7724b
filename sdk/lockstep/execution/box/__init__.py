"""Strangers' Programs, run in a process of its own that holds no key and can be killed."""
