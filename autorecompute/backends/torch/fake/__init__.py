"""Training steps on fake tensors: what they hold and compute."""
