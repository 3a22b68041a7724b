"""How workers' results become one model, one file a strategy."""
