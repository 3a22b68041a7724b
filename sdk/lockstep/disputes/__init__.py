"""Games played and shown: a seat at each, a queue of them, moves by hand, a delegate, and what the log tells."""
