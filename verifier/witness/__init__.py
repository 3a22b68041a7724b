"""A verifier's duties as a drawn witness: enrol, look where it is drawn, speak, attest, collect the fee."""
