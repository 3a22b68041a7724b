"""The demo: a whole market on one machine, in separate processes."""
