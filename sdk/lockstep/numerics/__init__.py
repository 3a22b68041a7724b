"""Executes Programs in exact arithmetic, with the same bits on every machine and on chain."""
