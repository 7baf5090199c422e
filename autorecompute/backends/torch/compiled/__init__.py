"""Models that ``torch.compile`` runs: its memory budgets, and checkpoints that it traces."""
