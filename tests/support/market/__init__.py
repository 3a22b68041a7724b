"""A market for tests: the twin of the contracts with named accounts, and random behaviour of all of them."""
