"""Parts of a market process: its party on chain, guard, transaction sender, back-off, executors, logs and metrics."""
