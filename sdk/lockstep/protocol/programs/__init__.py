"""Programs: encoding, rules, and proofs that one is invalid."""
