"""The demo: a whole market on one machine, in real processes."""
