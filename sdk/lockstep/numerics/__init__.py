"""Programs: exact arithmetic that every machine and the chain agree on."""
