"""Runs other parties' Programs in a confined child process, which has no keys and can be killed."""
