"""One market for tests: the twin of the contracts with named accounts, and everybody at random in it."""
