"""Shared parts of market processes: account, guard, transaction sender, back-off, executors, logs, metrics."""
