"""The worker: trains slots, then defends what it claimed."""
