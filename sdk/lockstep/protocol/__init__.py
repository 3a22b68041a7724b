"""The protocol as pure functions: types, hashing, Merkle trees, the rules of rounds, money and disputes."""
