"""A verifier's duties as a drawn witness: enrol, replay, reveal a verdict, attest payloads, collect the fee."""
