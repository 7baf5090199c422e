"""Detection of the tensors that a training step saves, and of those that can be made again."""
