"""Programs: the graph of a training step as bytes, its rules, and what proves one invalid."""
