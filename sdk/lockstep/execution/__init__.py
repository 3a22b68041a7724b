"""A job on this machine: loaded, run, merged, its evidence, and what it takes to keep up with it."""
