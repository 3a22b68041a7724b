"""The coordinator: a public index of the chain with a signed blob relay."""
