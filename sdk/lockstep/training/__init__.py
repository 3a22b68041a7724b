"""What is trained: models, optimizers, data, strategies."""
