"""From trials to an answer: a race of the finalists, a confirmation of the winner, a verdict on recompute."""
