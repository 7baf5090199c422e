"""What a training step saves, and what of it can be made again."""
