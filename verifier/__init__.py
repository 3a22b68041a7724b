"""The verifier: replays claims, then challenges the false ones."""
