"""Parts of a process that takes part: its party to the chain, guard, sender, back-off, executors, logs and metrics."""
